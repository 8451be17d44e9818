//! All figures of a run.

use std::collections::BTreeMap;

use super::step::{Step, Target};
use crate::{
    figures::{Lines, Sample, Series},
    jobs::Outcome,
};

/// The title and the axis of a curve.
fn curve_words(curve: &str) -> (&'static str, &'static str) {
    match curve {
        "capacity" => ("By the capacity of the active tree", "Ki records"),
        "batch" => ("By the size of batches", "records of a batch"),
        "value" => ("By the size of values", "bytes of a value"),
        "skew" => ("By the skew of keys", "Zipf's exponent"),
        _ => ("", ""),
    }
}

/// The quantity that is varied, and the quantity that is measured.
pub(crate) type Curve = (&'static str, &'static str);

/// All figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Samples by the id of their system.
    pub samples: Vec<(String, Sample)>,
    /// Points by curve and figure, then by line.
    pub(crate) curves: BTreeMap<Curve, Lines>,
    /// Series by their ids.
    pub(crate) series: BTreeMap<String, Series>,
}

impl Collected {
    /// Adds the outcome of a step.
    pub fn add(&mut self, step: &Step, name: &str, outcome: Outcome) {
        for series in outcome.series {
            self.add_series(name, series);
        }
        match step.target {
            Target::Figures => self.samples.push((step.store.id().to_owned(), outcome.sample)),
            Target::Under(other) => self.samples.push((other.to_owned(), outcome.sample)),
            Target::Prefixed(prefix) => {
                let sample = outcome.sample.into_iter().map(|(figure, value)| (format!("{prefix}{figure}"), value));
                self.samples.push((step.store.id().to_owned(), sample.collect()));
            }
            Target::Curve(curve, x) => {
                let figures = [("put", "records put a second"), ("get", "gets a second")];
                for (figure, axis) in figures {
                    let Some(y) = outcome.sample.get(figure) else { continue };
                    let lines = self.curves.entry((curve, axis)).or_default();
                    lines.entry(name.to_owned()).or_default().push((x, *y));
                }
            }
        }
    }

    /// Adds a series; a curve may consist of several steps' series. A line without a name gets the
    /// system's name.
    pub(super) fn add_series(&mut self, name: &str, mut series: Series) {
        let lines = std::mem::take(&mut series.lines);
        let known = self.series.entry(series.id.clone()).or_insert(series);
        for (line, points) in lines {
            let line = if line.is_empty() { name.to_owned() } else { line };
            let all = known.lines.entry(line).or_default();
            all.retain(|(x, _)| points.iter().all(|(other, _)| x.total_cmp(other).is_ne()));
            all.extend(points);
            all.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
    }

    #[must_use]
    pub fn series(&self) -> Vec<Series> {
        let curve = |((curve, axis), lines): (&Curve, &Lines)| {
            let (title, x) = curve_words(curve);
            let what = if axis.starts_with("gets") { "get" } else { "put" };
            Series::new(&format!("{what}-by-{curve}"), &format!("{title}: {axis}"), x, axis, lines.clone())
        };
        self.series.values().cloned().chain(self.curves.iter().map(curve)).collect()
    }
}
