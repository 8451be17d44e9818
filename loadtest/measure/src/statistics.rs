//! Figures from repeated measurements.

use serde::{Deserialize, Serialize};

/// The summary of several measurements of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The number of measurements.
    pub count: usize,
}

impl Summary {
    /// Summarises measurements; `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, min: first, max: last, count: values.len() })
    }
}

/// The quantile of ascending values; `part` is from 0 to 1.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn quantile(ascending: &[f64], part: f64) -> f64 {
    let index = (part * ascending.len() as f64) as usize;
    ascending[index.min(ascending.len() - 1)]
}

/// Whether a quantity is stable. `of` summarizes its values in the last quarter, and those in the
/// second quarter. The former must not exceed the latter by more than a tenth.
#[must_use]
pub fn is_plateau(values: &[f64], of: fn(Summary) -> f64) -> bool {
    let quarter = values.len() / 4;
    let before = Summary::of(&values[quarter..2 * quarter]).map(of);
    let last = Summary::of(&values[values.len() - quarter..]).map(of);
    before.zip(last).is_some_and(|(before, last)| last <= 1.1 * before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let summary = Summary::of(&[3.0, 1.0, 2.0]).expect("not empty");
        assert_eq!(summary, Summary { median: 2.0, min: 1.0, max: 3.0, count: 3 });
        assert_eq!(Summary::of(&[4.0, 1.0]).expect("not empty").median.to_bits(), 2.5_f64.to_bits());
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn quantiles_stay_within_the_values() {
        let values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99) as u32, 99);
        assert_eq!(quantile(&values, 1.0) as u32, 99);
        assert_eq!(quantile(&values, 0.0) as u32, 0);
    }

    #[test]
    fn growth_is_not_a_plateau() {
        let growing: Vec<f64> = (1..=40).map(f64::from).collect();
        let resting: Vec<f64> = growing.iter().map(|value| value.min(12.0)).collect();
        let [greatest, median]: [fn(Summary) -> f64; 2] = [|summary| summary.max, |summary| summary.median];
        for of in [greatest, median] {
            assert!(!is_plateau(&growing, of));
            assert!(is_plateau(&resting, of));
            assert!(!is_plateau(&[1.0, 1.0], of));
        }
        let mut disturbed = resting;
        disturbed[35] = 30.0;
        assert!(!is_plateau(&disturbed, greatest));
        assert!(is_plateau(&disturbed, median));
    }
}
