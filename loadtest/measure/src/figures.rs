//! Figures and curves: the output of jobs, and the input of goals and reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;

/// The figures of one run of a job, by name.
pub type Sample = BTreeMap<String, f64>;

/// Figures of each system, by the system's id and the figure's name.
pub type Cells = BTreeMap<String, BTreeMap<String, Summary>>;

/// Points by the name of their line.
pub type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// The data of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name of its file, without extension.
    pub id: String,
    /// The heading of the plot.
    pub title: String,
    /// The label of the horizontal axis.
    pub x: String,
    /// The label of the vertical axis.
    pub y: String,
    pub lines: Lines,
}

impl Series {
    #[must_use]
    pub fn new(id: &str, title: &str, x: &str, y: &str, lines: Lines) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), x: x.to_owned(), y: y.to_owned(), lines }
    }
}

/// Summarises repetitions: one figure for each system and name.
#[must_use]
pub fn summarise(samples: &[(String, Sample)]) -> Cells {
    let mut values: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for (system, sample) in samples {
        for (name, value) in sample {
            values.entry((system, name)).or_default().push(*value);
        }
    }
    let mut cells = Cells::new();
    for ((system, name), values) in values {
        let summary = Summary::of(&values).expect("it was entered with a value");
        cells.entry(system.to_owned()).or_default().insert(name.to_owned(), summary);
    }
    cells
}

/// Formats a number with three significant digits, and commas between thousands.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size < 10.0 {
        return format!("{value:.2}");
    }
    if size < 100.0 {
        return format!("{value:.1}");
    }
    let unit = 10_f64.powi(size.log10() as i32 - 2);
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let cases =
            [(0.1234, "0.12"), (12.34, "12.3"), (123.4, "123"), (12_345.0, "12,300"), (1_234_567.0, "1,230,000")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(-123_456.0), "-123,000");
    }
}
