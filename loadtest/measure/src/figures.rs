//! Figures and curves, as jobs give them and as goals and reports read them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;

/// The figures of one run of a job, by name.
pub type Sample = BTreeMap<String, f64>;

/// Figures of each system, by the system's id and the figure's name.
pub type Cells = BTreeMap<String, BTreeMap<String, Summary>>;

/// Points by the name of their line.
pub type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// A plot's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of its file, without ending.
    pub id: String,
    /// Above the plot.
    pub title: String,
    /// What lies on the horizontal axis.
    pub x: String,
    /// What lies on the vertical axis.
    pub y: String,
    /// What is plotted.
    pub lines: Lines,
}

impl Series {
    /// A plot of lines.
    #[must_use]
    pub fn new(id: &str, title: &str, x: &str, y: &str, lines: Lines) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), x: x.to_owned(), y: y.to_owned(), lines }
    }
}

/// Repetitions by system, made into one figure each.
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

/// Three digits that count; thousands are parted by commas.
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
    fn numbers_have_three_digits_that_count() {
        let cases =
            [(0.1234, "0.12"), (12.34, "12.3"), (123.4, "123"), (12_345.0, "12,300"), (1_234_567.0, "1,230,000")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(-123_456.0), "-123,000");
    }
}
