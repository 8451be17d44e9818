//! The report as Markdown, of which docs/benchmarks.md shows the tables.

use std::fmt::Write;

use coppice_pim::Calibration;

use crate::{
    index::{Lines, table, table_bytes},
    run::{Outcome, Results},
    systems::{DPUS, QUERY_BYTES, RESULT_BYTES, System},
};

/// What every table says.
const MODELLED: &str = "*Modelled for UPMEM v1A from published constants, not run on hardware.*";
/// Batches whose break-even is looked for.
const CORES: [usize; 3] = [1, 4, 16];

/// The paper's ratio of single and multi-queries, and why ours may differ.
fn paper(system: System) -> (&'static str, &'static str) {
    match system {
        System::Panther => ("1", "the divisor"),
        System::Coppice => ("–", "not in the paper, whose batches of 100,000 ask for 10,000 keywords"),
        System::Ht => (
            "1.40 / 1.58",
            "both indexes are measured on this host, where a table beats Bitcoin's many lines; the paper gives no times of them",
        ),
        System::Sdb => ("2.1 / 2.6", "queries cluster on few blocks only as far as our assumed skew makes them"),
        System::Pp => ("6.2 / 7.9", "neither its rule of promotion nor its host's time for a lookup is given"),
        System::Ss => ("above DS", "which hash is not given: here that of the keyword"),
        System::Ds => {
            ("above PP", "what moves in a batch is not given: here hot keywords, at the rate of a single DPU")
        }
        System::SdnWide => ("–", "the engine's nodes are wide, so there are few rounds"),
        System::SdnBinary => (
            "up to 23.6 / 19.6",
            "the divisor of the paper's figure is inferred; rounds are as deep as the trees, and trees of 4SQ are low",
        ),
    }
}

/// Writes all tables.
#[must_use]
pub fn markdown(results: &Results) -> String {
    let mut out = String::from("# Placements in memory modules\n\n");
    conditions(&mut out, results);
    ratios(&mut out, results);
    loads(&mut out, results);
    metadata(&mut out, results);
    lines(&mut out, results);
    break_even(&mut out, results);
    out
}

fn head(out: &mut String, title: &str, columns: &[&str]) {
    let rule = columns.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
    let _ = write!(out, "\n## {title}\n\n{MODELLED}\n\n| {} |\n| {rule} |\n", columns.join(" | "));
}

fn row(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn conditions(out: &mut String, results: &Results) {
    let Results { plan, costs, .. } = results;
    let _ = writeln!(
        out,
        "{MODELLED} {DPUS} DPUs of two ranks, seed {}; batches of {} single queries or {} multi-queries; the mean of {} \
         batches after {}. Keywords are drawn by Zipf's law with the exponent {}, each with 8 places: the paper gives \
         neither. For each lookup the host takes {:.0} ns to queue it, {:.0} ns to find its block by lines, and {:.0} ns \
         by a hash table, measured on this machine.",
        plan.seed,
        plan.singles,
        plan.multiples,
        plan.batches - plan.warm_up,
        plan.warm_up,
        plan.exponent,
        costs[0].dispatch_s * 1e9,
        costs[0].lines_s * 1e9,
        costs[0].table_s * 1e9,
    );
}

fn ratios(out: &mut String, results: &Results) {
    head(out, "Time of a batch over Panther's", &["system", "paper", "ETH", "Bitcoin", "4SQ", "why they differ"]);
    for system in System::ALL {
        let (printed, why) = paper(system);
        let ratio =
            |outcome: &Outcome| format!("{:.2} / {:.2}", outcome.ratio(system, false), outcome.ratio(system, true));
        let mut cells = vec![system.name().to_owned(), printed.to_owned()];
        cells.extend(results.outcomes.iter().map(ratio));
        cells.push(why.to_owned());
        row(out, &cells);
    }
    out.push_str("\nA cell has single queries / multi-queries.\n");
    let fill = |outcome: &Outcome| {
        let bytes = &outcome.placement.bytes;
        let (least, most) = (bytes.iter().min().copied().unwrap_or(0), bytes.iter().max().copied().unwrap_or(0));
        format!("{} {:.1} to {:.1} MB", outcome.shape.name, least as f64 / 1e6, most as f64 / 1e6)
    };
    let fills = results.outcomes.iter().map(fill).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "\nPages on the least and the most filled of the DPUs: {fills}. A DPU has 67 MB.");
}

fn loads(out: &mut String, results: &Results) {
    head(
        out,
        "Loads of single queries",
        &["system", "busiest DPU over mean: ETH", "Bitcoin", "4SQ", "share of the host: ETH", "Bitcoin", "4SQ"],
    );
    for system in System::ALL.into_iter().filter(|it| !matches!(it, System::SdnWide | System::SdnBinary)) {
        let mut cells = vec![system.name().to_owned()];
        let found = |outcome: &Outcome| outcome.batch(system, false);
        cells.extend(results.outcomes.iter().map(|it| format!("{:.2}", found(it).imbalance)));
        cells.extend(results.outcomes.iter().map(|it| format!("{:.0} %", 100.0 * found(it).host_share)));
        row(out, &cells);
    }
}

fn metadata(out: &mut String, results: &Results) {
    head(
        out,
        "Bytes of the index from times to blocks",
        &["data", "blocks", "lines, error 1", "hash table", "the root group's index", "times of blocks"],
    );
    for outcome in &results.outcomes {
        let times = &outcome.times;
        let cells = [
            outcome.shape.name.to_owned(),
            times.len().to_string(),
            Lines::new(times, 1).bytes().to_string(),
            table_bytes(&table(times)).to_string(),
            coppice_root::time_index_bytes(times.iter().copied()).to_string(),
            (8 * times.len()).to_string(),
        ];
        row(out, &cells);
    }
    out.push_str(
        "\nThese sizes are exact, not modelled. The paper: one to two orders of magnitude between lines and hash table, \
         least for Bitcoin. Lines need the times of the blocks, too, which the paper does not count. The root group's index \
         allows errors of 64 versions, and serves times between versions.\n",
    );
}

fn lines(out: &mut String, results: &Results) {
    head(out, "Number of lines by their largest error", &["data", "1", "2", "4", "8", "16", "32"]);
    for outcome in &results.outcomes {
        let mut cells = vec![outcome.shape.name.to_owned()];
        cells.extend([1, 2, 4, 8, 16, 32].map(|error| Lines::new(&outcome.times, error).len().to_string()));
        row(out, &cells);
    }
    out.push_str("\nThese numbers are exact. As in the paper, the error matters for Bitcoin alone.\n");
}

fn break_even(out: &mut String, results: &Results) {
    let mut columns = vec!["data".to_owned(), "cycles of a lookup".to_owned()];
    columns.extend(CORES.map(|cores| format!("beside {cores} core{}", if cores == 1 { "" } else { "s" })));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    head(out, "Below how many lookups in a batch one module loses to a processor", &columns);
    for outcome in &results.outcomes {
        let cost = outcome.tree.cost;
        let mut cells = vec![outcome.shape.name.to_owned(), format!("{:.0}", cost.cycles)];
        cells.extend(CORES.map(|cores| {
            let base = Calibration::default();
            let calibration =
                Calibration { lookup_cycles: cost.cycles, host_lookup_s: base.host_lookup_s / cores as f64, ..base };
            match calibration.break_even(DPUS, QUERY_BYTES, RESULT_BYTES) {
                Some(lookups) => lookups.to_string(),
                None => "it always loses".to_owned(),
            }
        }));
        row(out, &cells);
    }
    let _ = writeln!(
        out,
        "\nLookups are spread evenly, and a core takes {:.1} us for one. With skew, a module loses for longer. The model says \
         nothing about how much sooner a module would be above these numbers.",
        Calibration::default().host_lookup_s * 1e6
    );
}
