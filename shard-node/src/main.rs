//! The binary `coppice-shard-node`; what it does is in [`coppice_shard_node::process`].

use std::process::ExitCode;

use coppice_shard_node::process;
use tikv_jemallocator::Jemalloc;

/// Nodes are made on many threads and let go on one, for which the C library's allocator has a lock that they wait for.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    coppice_process::run(&process::PROGRAM, process::serve)
}
