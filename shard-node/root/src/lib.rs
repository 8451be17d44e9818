//! The root group's state machine: the root log, which decides what a ledger contains, and
//! everything that follows from it.
//!
//! A version is committed if and only if its header was committed by raft here. [`Root::apply`]
//! takes raft's committed commands in order and returns the [`Outcome`] of each. An outcome is a
//! pure function of the commands so far, so all replicas agree. Besides the log, the machine holds
//! the terms of leaders, sessions, state leaves by version, epochs, the pruned boundary and admin
//! operations.
//!
//! ```text
//!   transfer  fsck                      copies and checks of whole directories
//!   durable  apply  read                recovery and flushes, commands, answers
//!   flush                               the writes of one flush
//!   machine                             a replica
//!   state                               all that commands change
//!   log  manifest                       the root log, the files of a snapshot
//!   sealed  superblock  chunk           files that are written once, and their names
//!   journal  store                      the journal, the directory
//!   ledgers  pins  sessions  timeline  tiles    parts of the state that touch no file
//!   times                                       the index of header times, which is derived
//!   command  error  types  codec  cache
//! ```
//!
//! Invariants:
//! - A refused command changes nothing, on any replica.
//! - Sealed files (the tile, bundle, index and journal of 256 headers) never change again.
//! - Everything read from a file is checked before it is believed: entries and tiles against the
//!   log's root, which is in memory, and everything else by checksum.
//! - `apply` writes nothing. [`Root::flush`] makes everything durable that was applied, and only
//!   then may raft forget it.
//!
//! The head of `durable` says what a crash leaves; `docs/format.md` describes the files.

// Values, and parts of the state that touch no file.
mod cache;
mod codec;
mod command;
mod error;
mod ledgers;
mod pins;
mod sessions;
mod tiles;
mod timeline;
mod times;
mod types;

// Files, and parts of the state that are made of them.
mod chunk;
mod flush;
mod journal;
mod log;
mod manifest;
mod sealed;
mod store;
mod superblock;

// The machine of a replica.
mod machine;
mod state;

// The operations of the machine.
mod apply;
mod durable;
mod read;

// Operations on whole directories.
pub mod fsck;
mod transfer;

pub use command::{
    AppendHeader, CANDIDATE_BYTES_MAX, CHANGED_LEAVES_MAX, COMMAND_BYTES_MAX, COMMAND_VERSION, Command, CommandError,
    OpenSession, SetPin, TakeOver, Unpin,
};
pub use error::{Error, Refusal};
pub use flush::Flush;
pub use ledgers::LEDGERS_MAX;
pub use machine::{Options, Outcome, Root};
pub use manifest::{Manifest, SnapshotFile};
pub use pins::{PIN_TTL_MS_MAX, Pin, VERSION_PINS_MAX};
pub use read::{AtTime, HEADERS_PER_READ_MAX, View};
pub use sessions::{SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN, SESSIONS_MAX, Session};
pub use times::time_index_bytes;
pub use transfer::{PINS_MAX, SnapshotReceiver};
pub use types::{
    AdminEntry, AnchorPlace, EpochPair, KeyTurn, Operation, Position, SessionBatch, SessionCommit, ShardBoundary,
    ShardMap, ShardState, StateLeaf, VersionState,
};
