//! The binary `coppice-shard-node`; what it does is in [`coppice_shard_node::process`].

use std::process::ExitCode;

use coppice_shard_node::process;

fn main() -> ExitCode {
    coppice_process::run(&process::PROGRAM, process::serve)
}
