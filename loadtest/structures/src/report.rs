//! The report of a run, as JSON and as Markdown.

use std::{fmt::Write as _, fs};

use serde::Serialize;

use crate::measure::{Row, Sharing, Spread, Table};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub conditions: Conditions,
    /// One table for each workload.
    pub tables: Vec<Table>,
    /// Several parties in one store.
    pub sharing: Vec<Sharing>,
    /// Workloads that were not measured, and why.
    pub missing: Vec<String>,
}

/// The conditions of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// `quick` or `full`.
    pub scale: String,
    /// The number of repetitions.
    pub repetitions: usize,
    pub processor: String,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// Load averages before the run.
    pub load_before: String,
    /// Load averages after the run.
    pub load_after: String,
}

/// The kernel's load averages.
#[must_use]
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// The processor's name.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown".to_owned(), |line| line.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn spread(spread: &Spread) -> String {
    let digits = |figure: f64| if figure < 9.95 { 2 } else { usize::from(figure < 99.5) };
    let digits = digits(spread.median);
    format!("{:.digits$} ({:.digits$}-{:.digits$})", spread.median, spread.min, spread.max)
}

fn bytes(bytes: u64) -> String {
    if bytes < 10 << 20 {
        format!("{:.2} MiB", bytes as f64 / 1048576.0)
    } else {
        format!("{:.0} MiB", bytes as f64 / 1048576.0)
    }
}

type Column = (&'static str, fn(&Row) -> String);

const TIMES: &[Column] = &[
    ("load", |row| spread(&row.load_us)),
    ("update", |row| spread(&row.update_us)),
    ("lookup, newest", |row| spread(&row.lookup_us)),
    ("lookup, oldest", |row| spread(&row.lookup_old_us)),
    ("diff, neighbours", |row| spread(&row.diff_near_us)),
    ("diff, ends", |row| spread(&row.diff_far_us)),
    ("merge", |row| spread(&row.merge_us)),
    ("prove", |row| spread(&row.prove_us)),
    ("verify", |row| spread(&row.verify_us)),
];

const SIZES: &[Column] = &[
    ("newest: nodes", |row| row.sizes.newest_nodes.to_string()),
    ("bytes", |row| bytes(row.sizes.newest_bytes)),
    ("all: nodes", |row| row.sizes.all_nodes.to_string()),
    ("bytes", |row| bytes(row.sizes.all_bytes)),
    ("deduplication", |row| format!("{:.3}", row.sizes.deduplication)),
    ("node sharing", |row| format!("{:.3}", row.sizes.node_sharing)),
    ("proof, present", |row| format!("{:.0} B", row.sizes.proof_present_bytes)),
    ("proof, absent", |row| format!("{:.0} B", row.sizes.proof_absent_bytes)),
];

fn grid(out: &mut String, rows: &[Row], columns: &[Column]) {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(out, "| | {} |\n|{}", names.join(" | "), " --- |".repeat(columns.len() + 1));
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(row)).collect();
        let _ = writeln!(out, "| {} | {} |", row.structure, cells.join(" | "));
    }
    out.push('\n');
}

/// The tables as Markdown.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let Conditions { scale, repetitions, processor, processors, load_before, load_after } = &report.conditions;
    let _ = writeln!(
        out,
        "A {scale} run; {repetitions} repetitions in turns, median (min-max). {processor}, {processors} processors; load average {load_before} before, {load_after} after.\n"
    );
    for table in &report.tables {
        let _ = writeln!(
            out,
            "### {}\n\n{}.\n\nMicroseconds of processor time for each key:\n",
            table.workload, table.about
        );
        grid(&mut out, &table.rows, TIMES);
        out.push_str("Sizes:\n\n");
        grid(&mut out, &table.rows, SIZES);
    }
    if !report.sharing.is_empty() {
        out.push_str("### Parties with histories of their own, in one store\n\n| | records in common | deduplication | node sharing |\n| --- | --- | --- | --- |\n");
        for Sharing { structure, overlap_percent, deduplication, node_sharing } in &report.sharing {
            let _ = writeln!(out, "| {structure} | {overlap_percent} % | {deduplication:.3} | {node_sharing:.3} |");
        }
        out.push('\n');
    }
    for missing in &report.missing {
        let _ = writeln!(out, "**Not measured:** {missing}\n");
    }
    out
}
