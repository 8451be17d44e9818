//! Whether a run is worse than an earlier one. Machines and days differ, so figures are divided by
//! RocksDB's of the same run, wherever RocksDB has that figure in both runs.

use crate::{
    figures::{Cells, number},
    report::Report,
};

const OURS: &str = "coppice";
const MEASURE: &str = "rocksdb-synced";

/// A figure that became worse.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    pub figure: String,
    /// The earlier value.
    pub before: f64,
    /// The present value.
    pub now: f64,
    /// Whether both values are multiples of RocksDB's.
    pub relative: bool,
}

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.relative { " x RocksDB" } else { "" };
        write!(f, "{}: {}{unit}, it was {}{unit}", self.figure, number(self.now), number(self.before))
    }
}

/// Whether more of a figure is better; `None` for figures that are not judged.
fn more_is_better(figure: &str) -> Option<bool> {
    let ends = |ends: &[&str]| ends.iter().any(|end| figure.ends_with(end));
    if ends(&["_s", "_entries", "_rests", "_inner", "_leaves", "_patches", "_values", "_of_budget"]) {
        return None;
    }
    let alone = figure.strip_prefix("scaling_").unwrap_or(figure);
    let alone = alone.strip_prefix("100_").unwrap_or(alone);
    let begins = |begins: &[&str]| begins.iter().any(|begin| alone.starts_with(begin));
    if alone.starts_with("plateau_") {
        return if ends(&["_disk", "_written"]) { Some(false) } else { ends(&["_put"]).then_some(true) };
    }
    let is_time = ends(&["_ms", "_us", "_us_per_version", "_us_per_key"]);
    if is_time || begins(&["proof_", "multiproof_", "reads_", "written_", "disk_", "memory_"]) {
        return Some(false);
    }
    begins(&["put", "get", "load", "range_"]).then_some(true)
}

/// Figures of our engine that are worse than in the earlier run by more than `tolerance`, as a
/// share of the earlier value.
#[must_use]
pub fn compare(former: &Report, now: &Report, tolerance: f64) -> Vec<Regression> {
    let median = |cells: &Cells, system: &str, figure: &str| Some(cells.get(system)?.get(figure)?.median);
    let mut regressions = Vec::new();
    for figure in now.cells.get(OURS).into_iter().flat_map(|figures| figures.keys()) {
        let Some(more_is_better) = more_is_better(figure) else { continue };
        let both = |system| Some((median(&former.cells, system, figure)?, median(&now.cells, system, figure)?));
        let Some((mut before, mut after)) = both(OURS) else { continue };
        let measure = both(MEASURE).filter(|(before, now)| *before > 0.0 && *now > 0.0);
        if let Some(measure) = measure {
            (before, after) = (before / measure.0, after / measure.1);
        }
        let worse =
            if more_is_better { after < before * (1.0 - tolerance) } else { after > before * (1.0 + tolerance) };
        if worse {
            regressions.push(Regression { figure: figure.clone(), before, now: after, relative: measure.is_some() });
        }
    }
    regressions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Collected;

    fn report(figures: &[(&str, &str, f64)]) -> Report {
        let samples: Vec<_> = figures
            .iter()
            .map(|(system, figure, value)| ((*system).to_owned(), [((*figure).to_owned(), *value)].into()))
            .collect();
        let mut report = Report::default();
        report.take(&Collected { samples, ..Collected::default() });
        report
    }

    #[test]
    fn a_slower_machine_is_not_a_regression() {
        let former = report(&[(OURS, "put_4000", 100.0), (MEASURE, "put_4000", 50.0)]);
        let now = report(&[(OURS, "put_4000", 52.0), (MEASURE, "put_4000", 25.0)]);
        assert_eq!(compare(&former, &now, 0.1), []);
    }

    #[test]
    fn falling_behind_rocksdb_is_one() {
        let former = report(&[(OURS, "put_4000", 100.0), (MEASURE, "put_4000", 50.0)]);
        let now = report(&[(OURS, "put_4000", 100.0), (MEASURE, "put_4000", 60.0)]);
        let found = compare(&former, &now, 0.1);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "put_4000: 1.67 x RocksDB, it was 2.00 x RocksDB");
        assert_eq!(compare(&former, &now, 0.2), []);
    }

    #[test]
    fn costs_are_worse_when_they_grow() {
        let former = report(&[(OURS, "proof_2_trees_bytes", 1500.0), (OURS, "get_back_40", 100.0)]);
        let larger = report(&[(OURS, "proof_2_trees_bytes", 2000.0), (OURS, "get_back_40", 100.0)]);
        assert_eq!(compare(&former, &larger, 0.1).len(), 1);
        assert_eq!(compare(&larger, &former, 0.1), []);
    }

    #[test]
    fn a_prefix_changes_nothing_about_a_figure() {
        for (figure, better) in [
            ("scaling_put", Some(true)),
            ("scaling_100_get", Some(true)),
            ("scaling_memory_beside_caches_mib", Some(false)),
            ("scaling_records", None),
            ("plateau_small_disk", Some(false)),
            ("plateau_large_put", Some(true)),
            ("plateau_large_flush_mib", None),
            ("reads_100_at_10_per_mille", Some(false)),
            ("reads_100_at_10_per_mille_leaves", None),
        ] {
            assert_eq!(more_is_better(figure), better, "{figure}");
        }
    }

    #[test]
    fn a_figure_that_one_run_lacks_is_not_judged() {
        let former = report(&[(OURS, "get_1", 100.0)]);
        assert_eq!(compare(&former, &report(&[(OURS, "put_500", 1.0)]), 0.1), []);
        assert_eq!(compare(&former, &report(&[(OURS, "load_settle_s", 1.0)]), 0.1), []);
    }
}
