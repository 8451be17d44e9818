//! `sim SEED [SEEDS]` runs seeds one after the other, a single one with its whole trace. With `BUG`
//! in the environment, a deliberate bug is planted; without a seed, the first seed that finds it is
//! searched for. With `LEDGERS`, members append to a ledger; with `FEDERATION`, members' cosigners
//! follow a ledger that forks; with `PEACEFUL`, there are no faults.

use std::process::ExitCode;

use coppice_env::bug::{self, Bug};
use coppice_sim::{Settings, run};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without input and output needs nothing")
}

/// Number of seeds that a deliberate bug may need.
const SEEDS_MAX: u64 = 2000;

fn main() -> ExitCode {
    let filter = std::env::var("COPPICE_LOG").unwrap_or_else(|_| "off".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false).init();
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|text| text.parse().ok()).collect();
    // An argument that is not a number, or no seeds at all, would be a run that finds nothing.
    let Some(numbers) = numbers.filter(|numbers| numbers.get(1) != Some(&0)) else {
        return usage();
    };
    let first = numbers.first().copied();
    let wanted = std::env::var("BUG").ok();
    let bugs: Vec<Bug> = Bug::ALL
        .iter()
        .copied()
        .filter(|bug| wanted.as_ref().is_some_and(|name| name == "all" || bug.name() == name))
        .collect();
    if wanted.is_some() && bugs.is_empty() {
        eprintln!("the bugs are {}", Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join(", "));
        return ExitCode::from(2);
    }
    if wanted.is_some() && first.is_none() {
        return hunt(&bugs);
    }
    let Some(first) = first else {
        return usage();
    };
    let count = numbers.get(1).copied().unwrap_or(1);
    let set = |name: &str| std::env::var_os(name).is_some();
    let settings = Settings {
        print: count == 1,
        peaceful: set("PEACEFUL"),
        ledgers: set("LEDGERS"),
        federation: set("FEDERATION"),
    };
    let mut failed = 0;
    for seed in first..first + count {
        bug::plant(bugs.first().copied());
        let verdict = run(runtime(), seed, settings);
        let (commits, reads) = verdict.done;
        let what = verdict.wrong.as_deref().unwrap_or("sound");
        println!(
            "seed {seed}: {commits} commits, {reads} reads, {} events, trace {:016x}: {what}",
            verdict.events, verdict.trace
        );
        failed += u64::from(verdict.wrong.is_some());
    }
    if count > 1 {
        println!("{failed} of {count} seeds failed");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: sim SEED [SEEDS], BUG=NAME sim [SEED [SEEDS]] with a deliberate bug; without a seed the first one that finds it (`all`: each of them)"
    );
    ExitCode::from(2)
}

/// Plants deliberate bugs, one after the other, and prints the first seed that finds each.
fn hunt(bugs: &[Bug]) -> ExitCode {
    let mut missed = 0;
    for &bug in bugs {
        let found = (1..=SEEDS_MAX).find_map(|seed| {
            bug::plant(Some(bug));
            let (ledgers, federation) = (bug.is_of_ledgers(), bug.is_of_cosigners());
            let settings = Settings { ledgers, federation, ..Settings::default() };
            let verdict = run(runtime(), seed, settings);
            bug::plant(None);
            Some((seed, verdict.wrong?))
        });
        match &found {
            Some((seed, finding)) => println!("| `{bug}` | {seed} | {finding} |"),
            None => println!("| `{bug}` | not within {SEEDS_MAX} | |"),
        }
        missed += u64::from(found.is_none());
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
