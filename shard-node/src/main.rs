//! The binary `coppice-shard-node`; see [`coppice_shard_node::process`].

use std::process::ExitCode;

use coppice_shard_node::process;
use tikv_jemallocator::Jemalloc;

/// The engine allocates tree nodes on many threads and frees them on one. The C library's allocator
/// takes a lock for that, and the threads would wait for it.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    coppice_process::run(&process::PROGRAM, process::serve)
}
