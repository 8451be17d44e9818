//! `sim SEED [SEEDS]`: runs seeds one after the other; a single one with its whole trace.

use std::process::ExitCode;

use coppice_sim::{Settings, run};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without input and output needs nothing")
}

fn main() -> ExitCode {
    let filter = std::env::var("COPPICE_LOG").unwrap_or_else(|_| "off".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false).init();
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let Some(&first) = numbers.first() else {
        eprintln!("usage: sim SEED [SEEDS]");
        return ExitCode::from(2);
    };
    let count = numbers.get(1).copied().unwrap_or(1);
    let mut failed = 0;
    for seed in first..first + count {
        let verdict =
            run(runtime(), seed, Settings { print: count == 1, peaceful: std::env::var_os("PEACEFUL").is_some() });
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
