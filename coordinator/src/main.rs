//! The binary `coppice-coordinator`. Its work is in [`coppice_coordinator::process`].

use std::process::ExitCode;

use coppice_coordinator::process;

fn main() -> ExitCode {
    coppice_process::run(&process::PROGRAM, process::serve)
}
