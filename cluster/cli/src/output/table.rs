//! Rows of a result: objects with `--json`, lines with tabs into a pipe or a file, aligned columns
//! with headings on a terminal.
//!
//! The rows are a stream that may never end, so a terminal's table is laid out in parts. The
//! columns of each part are at least as wide as those of the previous one.

use std::io;

use comfy_table::{ColumnConstraint, ContentArrangement, Row, Width, presets};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use super::{Output, line};
use crate::{failure::Failure, text};

/// Most rows that are laid out together.
const PART_ROWS_MAX: usize = 200;
/// Most characters of a cell, if the terminal does not tell its width.
const CELL_CHARS_MAX: usize = 72;
/// Spaces between two columns.
const GAP: u16 = 2;

/// Rows under headings.
pub struct Table {
    output: Output,
    headings: &'static [&'static str],
    rows: Vec<Vec<String>>,
    /// The widths of the columns in the previous part.
    widths: Vec<u16>,
    part_rows_max: usize,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(output: Output, headings: &'static [&'static str]) -> Self {
        Self { output, headings, rows: Vec::new(), widths: Vec::new(), part_rows_max: PART_ROWS_MAX }
    }

    /// Chooses whether each row is shown at once.
    #[must_use]
    pub fn live(mut self, live: bool) -> Self {
        self.part_rows_max = if live { 1 } else { PART_ROWS_MAX };
        self
    }

    /// Adds a row: the object with `--json`, else its cells, which must be escaped already.
    pub fn row<const N: usize>(
        &mut self,
        object: &Value,
        cells: impl FnOnce() -> Result<[String; N], Failure>,
    ) -> Result<(), Failure> {
        if self.output.json {
            return self.output.result(object, String::new);
        }
        let cells = cells()?;
        if !self.output.terminal || self.output.aside {
            return self.output.result(object, || cells.join("\t"));
        }
        self.rows.push(cells.into());
        if self.rows.len() >= self.part_rows_max { self.flush() } else { Ok(()) }
    }

    /// Shows the rows that are left.
    pub fn end(mut self) -> Result<(), Failure> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col).filter(|width| *width > 0);
        let (text, widths) = lay_out(self.headings, std::mem::take(&mut self.rows), &self.widths, width);
        self.widths = widths;
        line(&text)
    }
}

/// Shows the rows before a failure, too.
impl Drop for Table {
    fn drop(&mut self) {
        // A failure to print would only hide the first failure.
        let _ = self.flush();
    }
}

/// Lays out a part of a table. Returns its text, and the widths of its columns. Only the first
/// part, which has no widths before it, has headings. If the terminal is too narrow, the last
/// column is cut.
fn lay_out(headings: &[&str], rows: Vec<Vec<String>>, before: &[u16], width: Option<u16>) -> (String, Vec<u16>) {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_truncation_indicator("…");
    match width {
        Some(width) => table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if before.is_empty() {
        table.set_header(headings.to_vec());
    }
    let chars = width.map_or(CELL_CHARS_MAX, usize::from);
    for mut cells in rows {
        if let Some(last) = cells.last_mut() {
            *last = text::shorten(last, chars);
        }
        let mut row = Row::from(cells);
        row.max_height(1);
        table.add_row(row);
    }
    let last = headings.len() - 1;
    let mut widths = table.column_max_content_widths();
    for (index, width) in widths.iter_mut().enumerate() {
        *width = before.get(index).copied().unwrap_or(0).max(*width);
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, if index == last { 0 } else { GAP }));
            if index < last {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(*width + GAP)));
            }
        }
    }
    (table.trim_fmt(), widths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[[&str; 2]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn columns_stand_under_their_headings_in_every_part() {
        let (first, widths) = lay_out(&["KEY", "VALUE"], rows(&[["alice", "100"], ["b", "20"]]), &[], Some(80));
        assert_eq!(first, "KEY    VALUE\nalice  100\nb      20");
        let (second, widths) = lay_out(&["KEY", "VALUE"], rows(&[["c", "3"]]), &widths, Some(80));
        assert_eq!(second, "c      3");
        let (third, _) = lay_out(&["KEY", "VALUE"], rows(&[["dorothea", "4"]]), &widths, None);
        assert_eq!(third, "dorothea  4");
    }

    #[test]
    fn the_last_column_gives_way_where_there_is_no_room() {
        let (text, _) = lay_out(&["KEY", "VALUE"], rows(&[["alice", &"x".repeat(500)]]), &[], Some(20));
        assert!(text.lines().all(|line| line.chars().count() <= 20), "{text}");
        assert!(text.ends_with('…') && text.lines().count() == 2, "{text}");
    }
}
