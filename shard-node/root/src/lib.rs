//! The root group's state machine: the root log, which decides what a ledger is, and all that follows from it.
//!
//! A version is committed if and only if its header is raft-committed here. [`Root::apply`] takes the commands that raft
//! committed, in order, and gives each its [`Outcome`]; it is a pure function of the commands before, so all replicas agree. Beside
//! the log it holds terms of leaders, sessions, state leaves by version, epochs, the pruned boundary and admin operations.
//!
//! Invariants:
//! - a refused command changes nothing, on any replica;
//! - what is sealed (256 headers: their tile, bundle, index and journal) never changes again;
//! - nothing that is read from a file is believed unchecked: entries and tiles are checked against the log's root, which is in
//!   memory, everything else by checksum;
//! - `apply` writes nothing: [`Root::flush`] makes everything durable that was applied, and only then may raft forget it.
//!
//! What a crash leaves is said in `durable`; `docs/FORMAT.md` describes the files.

// What a command and its outcome are made of.
mod codec;
mod error;
mod types;

// The caches and files under the state.
mod cache;
mod store;
mod tiles;

// The parts of the state.
mod chunk;
mod command;
mod journal;
mod log;
mod pins;
mod sealed;
mod sessions;
mod timeline;

// The state, and how a directory names it.
mod manifest;
mod state;
mod superblock;

// The machine, and what is done with it.
mod apply;
mod durable;
pub mod fsck;
mod machine;
mod read;
mod transfer;

pub use command::{
    AppendHeader, CANDIDATE_BYTES_MAX, CHANGED_LEAVES_MAX, COMMAND_BYTES_MAX, COMMAND_VERSION, Command, CommandError,
    OpenSession, SetPin, TakeOver, Unpin,
};
pub use error::{Error, Refusal};
pub use machine::{Options, Outcome, Root};
pub use manifest::{Manifest, SnapshotFile};
pub use pins::{PIN_TTL_MS_MAX, Pin, VERSION_PINS_MAX};
pub use read::{HEADERS_PER_READ_MAX, View};
pub use sessions::{SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN, SESSIONS_MAX, Session};
pub use transfer::{PINS_MAX, SnapshotReceiver};
pub use types::{
    AdminOperation, EpochPair, KeyTurn, Operation, RaftPosition, SessionBatch, SessionCommit, ShardBoundary, ShardMap,
    ShardState, StateLeaf, VersionState,
};
