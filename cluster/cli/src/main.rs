//! The `coppice` command.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{FromArgMatches, error::ErrorKind};
use coppice::{
    args::{self, Arguments, Command},
    commands,
    failure::Failure,
    kubectl, output, serve,
};
use tikv_jemallocator::Jemalloc;

/// `serve` and `dev` are nodes and coordinators. These allocate on many threads and free on one,
/// and the C library's allocator takes a lock for that.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    if kubectl::is_called(std::env::args_os().next().as_ref()) {
        return kubectl::main(std::env::args_os());
    }
    let parsed = args::command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let json = arguments.common.json;
    let done = match &arguments.command {
        // The process reads its settings, then opens its log, then starts its threads.
        Command::Serve(args) => serve::run(&args.matches),
        Command::Dev(_) | Command::Console(_) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.expect("the system gives threads and a poller").block_on(commands::run(arguments))
        }
        _ => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("the system gives threads and a poller").block_on(commands::run(arguments))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failure(&failure, json);
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Prints help and versions as they are, and wrong usage like every other failure.
fn usage(error: &clap::Error) -> ExitCode {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let json = std::env::args_os().any(|argument| argument == "--json");
    if asked || !json {
        // If the terminal is gone, nobody is left to tell.
        let _ = error.print();
    } else {
        output::failure(&Failure::usage(error.render().to_string().trim_end()), true);
    }
    ExitCode::from(if asked { 0 } else { 2 })
}
