//! The binary `coppice-coordinator`. Its work is in [`coppice_coordinator::process`].

use std::process::ExitCode;

use coppice_coordinator::process;
use tikv_jemallocator::Jemalloc;

/// Requests are allocated on the threads of connections and freed on that of the sequencer. The C
/// library's allocator takes a lock for that.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    coppice_process::run(&process::PROGRAM, process::serve)
}
