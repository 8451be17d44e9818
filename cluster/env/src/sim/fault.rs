//! Errors that tests inject into a simulated file system.

use std::io;

/// A kind of call, for counting and for injected errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_exact_at`.
    Read,
    /// `write_all_at`, `discard` and `set_len`.
    Write,
    /// `sync_data`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `open` of a file.
    Open,
    /// A change of names: a file created by `open`, `remove`, `rename`, `create_dir_all`,
    /// `remove_dir_all`.
    Name,
}

/// An error that one later call returns.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of call that fails.
    pub operation: Operation,
    /// Only calls on paths that contain this text match.
    pub path_part: String,
    /// Number of matching calls that succeed before.
    pub skip: u64,
    /// The kind of the error.
    pub kind: io::ErrorKind,
}
