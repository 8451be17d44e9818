//! `coppice-bench`: the programs that put load on a ledger, for `make chaos`, `make bench-cluster`
//! and `make load`.
//!
//! `history` runs clients and records their requests and answers for the checker; `collect` lists
//! what the ledger holds in the end, and walks its root log. `drive` and `ledger` measure under
//! load, as programs in Go measure other systems; `ceiling` measures the machine. `judge` checks
//! answers that k6 received against their proofs.

mod ceiling;
mod collect;
mod drive;
mod files;
mod history;
mod judge;
mod ledger;
mod load;
mod pace;
mod pair;
mod purge;
mod values;

use std::process::ExitCode;

use clap::Parser;

/// Put load on a ledger, and record what it answers.
#[derive(Debug, Parser)]
#[command(name = "coppice-bench", version, about)]
enum Arguments {
    /// Run clients until a signal or the end of the time, and record a history.
    History(history::Options),
    /// List all changes of a history's keys, and check the root log against every checkpoint that
    /// was seen.
    Collect(collect::Options),
    /// Put load on a ledger, and measure.
    Drive(drive::Options),
    /// Put load on a ledger of members, and measure.
    Ledger(ledger::Options),
    /// Fill a ledger of members, and purge most of it.
    Purge(purge::Options),
    /// Check answers that others received against their proofs.
    Judge(judge::Options),
    /// Measure the machine.
    Ceiling(ceiling::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the system gives threads and a poller");
    let done = runtime.block_on(async {
        match arguments {
            Arguments::History(options) => history::run(options).await,
            Arguments::Collect(options) => collect::run(options).await,
            Arguments::Drive(options) => drive::run(options).await,
            Arguments::Ledger(options) => ledger::run(options).await,
            Arguments::Purge(options) => purge::run(options).await,
            Arguments::Judge(options) => judge::run(options).await,
            Arguments::Ceiling(options) => ceiling::run(&options),
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coppice-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
