//! The machine of one replica: its fields, and how a command is applied.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::Storage;
use coppice_types::{Digest, Sequence, Term};

use crate::{
    Command, Error, Manifest, Pin, Refusal,
    cache::Cache,
    chunk::Chunk,
    journal::{End, Journal},
    state::State,
    store::{Lock, Store},
    superblock::Superblock,
    times::Times,
};

/// Limit on the number of sealed chunks' indexes that are kept in memory.
const CHUNKS_CACHED_MAX: usize = 16;

/// Settings that may change at each start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state is saved when the journal has grown by this much and by more than the state's own
    /// size since the last save. Opening a directory replays no more than that.
    pub save_after_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { save_after_bytes: 1 << 20 }
    }
}

/// The state machine of one replica of the root group.
#[derive(Debug)]
pub struct Root {
    pub(crate) store: Store,
    pub(crate) journal: Journal,
    pub(crate) state: State,
    /// Raft index of the newest entry applied.
    pub(crate) applied: u64,
    pub(crate) chunks: Cache<u64, Chunk>,
    /// The index of times. It may lag behind the state.
    pub(crate) times: Times,
    pub(crate) durable: Durable,
}

/// The durable state, and the pins and the lock that protect it.
#[derive(Debug)]
pub(crate) struct Durable {
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    /// Whether a flush was begun and not ended.
    pub(crate) flushing: bool,
    /// Bytes of the journal since the state was saved.
    pub(crate) unsaved_bytes: u64,
    /// Size of the newest saved state.
    pub(crate) saved_bytes: u64,
    /// Snapshots that are being read.
    pub(crate) pins: BTreeMap<u64, Manifest>,
    pub(crate) lock: Option<Lock>,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The candidate leads in a new term.
    TookOver {
        term: Term,
    },
    /// The header is the log's newest entry: its event is decided.
    Appended {
        /// The header's place in the log.
        sequence: Sequence,
        /// Entries in the log, this one included.
        log_size: u64,
        /// Root of the log, which a checkpoint signs.
        log_root: Digest,
        /// The header's inclusion path in that log (RFC 9162).
        path: Vec<Digest>,
    },
    /// The session is open.
    SessionOpened {
        /// The highest number committed in it; 0 if none was.
        highest_number: u64,
        /// Identity of that number's batch; `None` if it is below the window.
        batch_hash: Option<Digest>,
        /// The count of remembered numbers, which are the highest ones.
        window: u32,
    },
    Pinned(Pin),
    Unpinned {
        /// Whether there was such a pin.
        found: bool,
    },
    /// Nothing changed.
    Refused(Refusal),
}

impl Root {
    /// A machine with this state, whose journal ends at `end`.
    pub(crate) fn from_parts(storage: Arc<dyn Storage>, state: State, end: End, options: Options) -> Self {
        Self {
            store: Store::new(storage),
            journal: Journal::new(end),
            state,
            applied: 0,
            chunks: Cache::new(CHUNKS_CACHED_MAX),
            times: Times::default(),
            durable: Durable {
                options,
                superblock: Superblock::new(),
                flushing: false,
                unsaved_bytes: 0,
                saved_bytes: 0,
                pins: BTreeMap::new(),
                lock: None,
            },
        }
    }

    /// Executes the command of raft entry `index`. Entries without a command (elections,
    /// membership) need no call.
    ///
    /// # Errors
    /// If the bytes are not a command that this code knows, a file can't be read, or the index does
    /// not ascend. Nothing has changed then. The replica must stop, because it can't follow the
    /// others.
    pub fn apply(&mut self, index: u64, command: &[u8]) -> Result<Outcome, Error> {
        if index <= self.applied {
            return Err(Error::OutOfOrder { index, applied: self.applied });
        }
        let decoded = Command::decode(command).map_err(|source| Error::Command { index, source })?;
        let (end, log_size) = (self.journal.end(), self.log_size());
        let outcome = self.execute(index, &decoded, command)?;
        if matches!(outcome, Outcome::Refused(_)) {
            assert_eq!(self.journal.end(), end, "a refused command is not in the journal");
            assert_eq!(self.log_size(), log_size, "a refused command appends nothing");
        } else {
            assert_ne!(self.journal.end(), end, "an accepted command is in the journal");
            assert!(self.log_size() - log_size <= 1, "a command appends one header at most");
        }
        self.applied = index;
        self.index_times();
        Ok(outcome)
    }

    /// Raft index of the newest entry that was applied or that a flush covered.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied
    }
}
