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

mod apply;
mod cache;
mod chunk;
mod command;
mod durable;
mod error;
pub mod fsck;
mod journal;
mod log;
mod pins;
mod read;
mod sessions;
mod state;
mod store;
mod tiles;
mod timeline;
mod transfer;
mod types;

use coppice_types::{Digest, Sequence, Term};

pub use command::{
    AppendHeader, CANDIDATE_BYTES_MAX, CHANGED_LEAVES_MAX, COMMAND_BYTES_MAX, COMMAND_VERSION, Command, CommandError,
    OpenSession, SetPin, TakeOver, Unpin,
};
pub use durable::Options;
pub use error::{Error, Refusal};
pub use pins::{PIN_TTL_MS_MAX, Pin, VERSION_PINS_MAX};
pub use read::{HEADERS_PER_READ_MAX, View};
pub use sessions::{SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN, SESSIONS_MAX, Session};
pub use transfer::{Manifest, PINS_MAX, SnapshotFile, SnapshotReceiver};
pub use types::{
    AdminOperation, EpochPair, KeyTurn, Operation, RaftPosition, SessionBatch, SessionCommit, ShardBoundary, ShardMap,
    ShardState, StateLeaf, VersionState,
};

use cache::Cache;
use chunk::Chunk;
use durable::Durable;
use journal::Journal;
use state::State;
use store::Store;

/// Indexes of sealed chunks that are kept in memory.
const CHUNKS_CACHED_MAX: usize = 16;

/// The state machine of one replica of the root group.
#[derive(Debug)]
pub struct Root {
    store: Store,
    journal: Journal,
    state: State,
    /// Raft index of the newest entry applied.
    applied: u64,
    chunks: Cache<u64, Chunk>,
    durable: Durable,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The candidate leads.
    TookOver {
        /// Its term.
        term: Term,
    },
    /// The header is the log's newest entry: what it says is decided.
    Appended {
        /// The header's place in the log.
        sequence: Sequence,
        /// Entries in the log, this one included.
        log_size: u64,
        /// Root of the log: what a checkpoint signs.
        log_root: Digest,
        /// The header's inclusion path in that log (RFC 9162).
        path: Vec<Digest>,
    },
    /// The session is open.
    SessionOpened {
        /// The highest number committed in it, 0 for none.
        highest_number: u64,
        /// Identity of that number's batch, if it is in the window.
        batch_hash: Option<Digest>,
        /// How many of the last numbers are remembered.
        window: u32,
    },
    /// The version is pinned.
    Pinned(Pin),
    /// The pin is gone.
    Unpinned {
        /// It was there.
        found: bool,
    },
    /// Nothing changed.
    Refused(Refusal),
}

impl Root {
    /// Executes the command of raft entry `index`. Entries without a command (elections, membership) need no call.
    ///
    /// # Errors
    /// If the bytes are not a command that this code knows, a file can't be read, or the index does not ascend. Nothing
    /// changed then, and the replica must stop: it can't follow the others any more.
    pub fn apply(&mut self, index: u64, command: &[u8]) -> Result<Outcome, Error> {
        if index <= self.applied {
            return Err(Error::OutOfOrder { index, applied: self.applied });
        }
        let decoded = Command::decode(command).map_err(|source| Error::Command { index, source })?;
        let outcome = self.execute(index, &decoded, command)?;
        self.applied = index;
        Ok(outcome)
    }

    /// Raft index of the newest entry applied or covered by a flush.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied
    }
}
