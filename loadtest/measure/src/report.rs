//! The report: its data, written as JSON, and its tables, written as Markdown.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::{Deserialize, Serialize};

use crate::{
    figures::{Cells, Series, number, summarise},
    goals::{self, Goal},
    machine::Ceiling,
    plan::Collected,
    statistics::Summary,
    system::Facts,
};

/// The conditions of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// A run of minutes, with less data: its figures are not those of a full run.
    pub quick: bool,
    /// A description of the machine.
    pub machine: String,
    /// The commit that was built.
    pub revision: String,
    /// A description of data, caches and phases.
    pub workload: String,
    /// Free memory that was written to first, and kept with the machine ([`crate::memory`]).
    #[serde(default)]
    pub kept_memory_gib: f64,
    /// Microseconds of the first write to 4 KiB of that memory, before the jobs and after them.
    #[serde(default)]
    pub first_touch_4k_us: Vec<f64>,
    /// Load averages, before each job.
    pub load_averages: Vec<String>,
    /// Jobs without figures, and why.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// The report of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub conditions: Conditions,
    /// The machine's limits, measured before the run and after it.
    pub ceilings: Vec<Ceiling>,
    /// Facts about each system, by its id.
    pub systems: BTreeMap<String, Facts>,
    pub cells: Cells,
    pub series: Vec<Series>,
    pub goals: Vec<Goal>,
}

impl Report {
    /// Replaces figures, goals and curves by those of everything that was measured so far.
    pub fn take(&mut self, collected: &Collected) {
        self.cells = summarise(&collected.samples);
        self.goals = goals::judge(&self.cells);
        self.series = collected.series();
    }
}

/// Figures by which all systems are compared, in the order of the table.
const COMPARED: [(&str, &str); 20] = [
    ("put_4000", "put, batches of 4,000, records/s"),
    ("put_4000_p50_ms", "- a batch, p50, ms"),
    ("put_4000_p99_ms", "- a batch, p99, ms"),
    ("put_500", "put, batches of 500, records/s"),
    ("put_500_p50_ms", "- a batch, p50, ms"),
    ("put_500_p99_ms", "- a batch, p99, ms"),
    ("put_settle_s", "what the puts left to do afterwards, s"),
    ("put_settled", "all these puts with what they left to do, records/s"),
    ("written_per_user_byte", "bytes to the device for each byte put"),
    ("get_1", "get, 1 thread, per s"),
    ("get_2", "get, 2 threads, per s"),
    ("range_100_loaded", "ranges of 100 after the load, records/s"),
    ("range_1000_loaded", "ranges of 1,000 after the load, records/s"),
    ("range_100_updated", "ranges of 100 after updates, records/s"),
    ("range_1000_updated", "ranges of 1,000 after updates, records/s"),
    ("load_sorted", "load in key order, records/s"),
    ("load_unsorted", "load in no order, records/s"),
    ("disk_per_live_byte", "bytes on disk for each live byte, at the end"),
    ("memory_mib", "peak of resident memory, MiB"),
    ("proof_bytes", "proof of one record, bytes"),
];

/// The directory of curves and bars, below that of the report.
pub const CURVES_DIR: &str = "benchmarks";

/// The whole report as Markdown.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::from(
        "# The engine beside its peers\n\nWhat `make bench` measured: [loadtest/README.md](../loadtest/README.md) says how it is made \
         and what it can compare with. An absolute figure holds for one machine and one day; the ratios of one run are what to read.\n\n",
    );
    conditions(&mut out, report);
    goal_table(&mut out, &report.goals);
    comparison(&mut out, report);
    out.push_str("## What is timed, durable and proven\n\n| system | a put | after a power failure | proven | memory and reads |\n| --- | --- | --- | --- | --- |\n");
    for facts in report.systems.values() {
        line(&mut out, &[&facts.name, &facts.timed, &facts.durable, &facts.proven, &facts.memory]);
    }
    curves(&mut out, report);
    others(&mut out, report);
    out
}

fn line(out: &mut String, cells: &[&str]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn conditions(out: &mut String, report: &Report) {
    type Of = fn(&Ceiling) -> f64;
    let conditions = &report.conditions;
    let kind =
        if conditions.quick { "A quick run: less data and shorter phases than a full one." } else { "A full run." };
    let loads: Vec<f64> = conditions.load_averages.iter().filter_map(|load| load.parse().ok()).collect();
    let _ = writeln!(
        out,
        "{kind} {}. {} Revision {}. Load averages before the jobs: {}. {} GiB of free memory were written to first: {} us for 4 KiB.\n",
        conditions.machine,
        conditions.workload,
        conditions.revision,
        cell(Summary::of(&loads).as_ref()),
        number(conditions.kept_memory_gib),
        conditions.first_touch_4k_us.iter().map(|us| number(*us)).collect::<Vec<_>>().join(", in the end ")
    );
    if !conditions.missing.is_empty() {
        out.push_str("Not measured:\n");
        for job in &conditions.missing {
            let _ = writeln!(out, "- {job}");
        }
        out.push('\n');
    }
    out.push_str("| the machine itself | before | after |\n| --- | --- | --- |\n");
    let rows: [(&str, Of); 8] = [
        ("append 4 KiB + fdatasync, p50, us", |ceiling| ceiling.append_4k_fdatasync_us.p50),
        ("the same, p99, us", |ceiling| ceiling.append_4k_fdatasync_us.p99),
        ("4 KiB into the page cache, pages that it does not have yet, us", |ceiling| ceiling.cached_write_4k_us[0]),
        ("the same, pages that it had, us", |ceiling| ceiling.cached_write_4k_us[1]),
        ("sequential write, MB/s", |ceiling| ceiling.sequential_write_mb_per_second),
        ("random 4 KiB reads past the page cache, one after the other, per s", |ceiling| {
            ceiling.random_read_4k_per_second
        }),
        ("SHA-256 of 1 KiB, one core, MB/s", |ceiling| ceiling.sha256_1k_mb_per_second),
        ("SHA-256 of 64 B, one core, MB/s", |ceiling| ceiling.sha256_64_mb_per_second),
    ];
    for (name, of) in rows {
        let figures: Vec<String> = report.ceilings.iter().map(|ceiling| number(of(ceiling))).collect();
        line(out, &[&[name.to_owned()], figures.as_slice()].concat().iter().map(String::as_str).collect::<Vec<_>>());
    }
    out.push('\n');
}

fn goal_table(out: &mut String, goals: &[Goal]) {
    out.push_str("## Goals\n\n| | goal | measured | met |\n| --- | --- | --- | --- |\n");
    for goal in goals {
        let met = match goal.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        line(out, &[&goal.name, &goal.goal, &goal.measured, met]);
    }
    out.push('\n');
}

fn comparison(out: &mut String, report: &Report) {
    let systems: Vec<_> = report.systems.iter().filter(|(id, _)| report.cells.contains_key(*id)).collect();
    out.push_str("## Side by side\n\nMedian (least-greatest) of the repetitions.\n\n");
    let names: Vec<&str> = systems.iter().map(|(_, facts)| facts.name.as_str()).collect();
    line(out, &[&[""], names.as_slice()].concat());
    line(out, &vec!["---"; names.len() + 1]);
    for (name, label) in COMPARED {
        let cells: Vec<String> = systems.iter().map(|(id, _)| cell(report.cells[*id].get(name))).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            line(out, &[&[label], cells.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat());
        }
    }
    out.push('\n');
}

fn curves(out: &mut String, report: &Report) {
    out.push_str("\n## Curves\n\n");
    for series in &report.series {
        let _ = writeln!(out, "![{}]({CURVES_DIR}/{}.svg)\n", series.title, series.id);
    }
    out.push_str(
        "Reads for a get are those that the engine asks the file system for with its caches as the only memory.\n",
    );
}

/// All other figures, by system.
fn others(out: &mut String, report: &Report) {
    out.push_str("\n## Other figures\n\n| system | figure | median (least-greatest) |\n| --- | --- | --- |\n");
    for (system, figures) in &report.cells {
        for (name, summary) in figures.iter().filter(|(name, _)| COMPARED.iter().all(|(shown, _)| shown != name)) {
            line(out, &[system, name, &cell(Some(summary))]);
        }
    }
}

fn cell(summary: Option<&Summary>) -> String {
    match summary {
        None => String::new(),
        Some(summary) if summary.count == 1 => number(summary.median),
        Some(summary) => format!("{} ({}-{})", number(summary.median), number(summary.min), number(summary.max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{figures::Sample, machine::Quantiles};

    fn report() -> Report {
        let quantiles = Quantiles { p50: 200.0, p90: 300.0, p99: 400.0, p999: 500.0, count: 10 };
        let ceiling = Ceiling {
            append_4k_fdatasync_us: quantiles,
            cached_write_4k_us: [1.0, 0.5],
            sequential_write_mb_per_second: 650.0,
            random_read_4k_per_second: 12_345.0,
            sha256_1k_mb_per_second: 1400.0,
            sha256_64_mb_per_second: 380.0,
            cores: 2,
        };
        let facts = |name: &str| Facts {
            name: name.to_owned(),
            timed: "the put".to_owned(),
            durable: "all".to_owned(),
            proven: "nothing".to_owned(),
            memory: "caches".to_owned(),
        };
        let sample = |put: f64| Sample::from([("put_4000".to_owned(), put), ("sweep".to_owned(), 7.0)]);
        let samples = [
            ("coppice".to_owned(), sample(50_000.0)),
            ("coppice".to_owned(), sample(70_000.0)),
            ("coppice".to_owned(), sample(60_000.0)),
            ("rocksdb-synced".to_owned(), sample(80_000.0)),
        ];
        let systems = [("coppice", "Coppice"), ("rocksdb-synced", "RocksDB, synced")];
        let systems = systems.into_iter().map(|(id, name)| (id.to_owned(), facts(name))).collect();
        let conditions = Conditions { quick: true, machine: "2 cores".to_owned(), ..Conditions::default() };
        let ceilings = vec![ceiling.clone(), ceiling];
        let mut report = Report { conditions, ceilings, systems, ..Report::default() };
        report.take(&Collected { samples: samples.into(), ..Collected::default() });
        report
    }

    #[test]
    fn repetitions_become_medians_with_their_spread() {
        let text = markdown(&report());
        assert!(text.contains("| put, batches of 4,000, records/s | 60,000 (50,000-70,000) | 80,000 |"), "{text}");
        assert!(text.contains("| append 4 KiB + fdatasync, p50, us | 200 | 200 |"), "{text}");
        assert!(text.contains("| coppice | sweep | 7.00 (7.00-7.00) |"), "{text}");
    }

    #[test]
    fn a_missed_goal_stands_out_and_one_without_figures_is_not_called_met() {
        let text = markdown(&report());
        assert!(text.lines().any(|line| line.contains("put, batch 4,000") && line.contains("**no**")), "{text}");
        assert!(text.lines().any(|line| line.contains("QMDB") && line.contains("not measured")), "{text}");
    }

    #[test]
    fn jobs_without_figures_are_named() {
        let mut report = report();
        assert!(!markdown(&report).contains("Not measured"));
        report.conditions.missing.push("NOMT: Compare: given up after 60 s".to_owned());
        assert!(markdown(&report).contains("Not measured:\n- NOMT: Compare: given up after 60 s\n"));
    }

    #[test]
    fn a_report_survives_being_written_and_read() {
        let report = report();
        let text = serde_json::to_string(&report).expect("writes");
        assert_eq!(serde_json::from_str::<Report>(&text).expect("reads"), report);
    }
}
