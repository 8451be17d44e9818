//! The `coppice` command.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{FromArgMatches, error::ErrorKind};
use coppice::{
    args::{self, Arguments, Command},
    commands,
    failure::Failure,
    output,
};

fn main() -> ExitCode {
    let parsed = args::command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let json = arguments.common.json;
    let runtime = match arguments.command {
        Command::Dev(_) => tokio::runtime::Builder::new_multi_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    };
    let runtime = runtime.expect("the system gives threads and a poller");
    match runtime.block_on(commands::run(arguments)) {
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
