//! What clients asked and what they heard, in the order in which it happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{Digest, Reason, Stamp};

/// A moment, by the number of moments before.
pub type Moment = u64;

/// Names a batch; it is the batch's metadata, too.
pub type BatchId = u64;

/// A batch and what its sender heard of it.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What was asked.
    pub batch: v1::Batch,
    /// It was sent within a session, under this number.
    pub session: Option<(Bytes, u64)>,
    /// When it was sent first.
    pub begin: Moment,
    /// How each attempt ended; none while it is under way.
    pub attempts: Vec<Option<Outcome>>,
}

/// How an attempt to commit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed.
    Committed(Committed),
    /// It was refused, so that it was not committed.
    Refused(Reason),
    /// Its session says that it was rolled back.
    RolledBack,
    /// Nobody knows.
    Unknown,
}

/// What a client is told of its commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where it stands.
    pub stamp: Stamp,
    /// Its header.
    pub header: Bytes,
    /// Its place in the journal.
    pub index: u32,
    /// When that was heard.
    pub end: Moment,
    /// It was committed by an earlier attempt.
    pub replayed: bool,
}

/// Something that was read, or refused, at one moment of the log between its begin and its end.
#[derive(Clone, Debug)]
pub struct Look {
    /// Who looked.
    pub client: u64,
    /// When it was asked.
    pub begin: Moment,
    /// When it was answered.
    pub end: Moment,
    /// It may be of an older moment.
    pub stale_ok: bool,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Records of keys, or of a range, of a state.
    Records {
        /// The state that was asked for, if not head.
        asked: Option<Stamp>,
        /// The state that was read.
        at: Stamp,
        /// For each key what it holds: value and the stamp of its last change.
        records: Vec<(Bytes, Option<(Bytes, Stamp)>)>,
        /// Low and high of a range, which holds no other keys.
        range: Option<(Bytes, Option<Bytes>)>,
    },
    /// Head, log size, pruned boundary.
    Head {
        /// Head's name.
        stamp: Stamp,
        /// Entries in the root log.
        log_size: u64,
        /// The oldest version kept.
        boundary: u64,
    },
    /// A version could not be read.
    Refused {
        /// Which one.
        asked: Stamp,
        /// Why.
        reason: Reason,
    },
    /// A batch's precondition or expected head did not hold.
    Failed(BatchId),
    /// A prune or rollback was done.
    Admin {
        /// Its header.
        header: Bytes,
    },
}

/// A stage and its root.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The version that it would be.
    pub stamp: Stamp,
    /// The root of its state.
    pub state_root: Digest,
}

/// All that happened.
#[derive(Debug, Default)]
pub struct History {
    now: Moment,
    /// Every batch that was ever sent.
    pub batches: BTreeMap<BatchId, Batch>,
    /// Everything that was seen.
    pub looks: Vec<Look>,
    /// Stages by their batch.
    pub staged: BTreeMap<BatchId, Staged>,
    /// Every signed tree head that was ever shown, by size, and who showed it.
    pub checkpoints: BTreeMap<u64, Digest>,
    /// What is wrong already.
    pub wrong: Option<String>,
    /// Commits and reads that succeeded.
    pub done: (u64, u64),
}

/// A history that is being written. Clones write the same one.
#[derive(Clone, Debug, Default)]
pub struct Scribe(Arc<Mutex<History>>);

impl Scribe {
    /// The history, to write or read.
    pub fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next moment.
    pub fn now(&self) -> Moment {
        let mut history = self.lock();
        history.now += 1;
        history.now
    }

    /// Notes the first thing that is wrong.
    pub fn wrong(&self, what: String) {
        self.lock().wrong.get_or_insert(what);
    }
}

impl History {
    /// A new moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Notes a signed tree head; two of one size must be the same.
    pub fn checkpoint(&mut self, size: u64, root: Digest) {
        let known = *self.checkpoints.entry(size).or_insert(root);
        if known != root {
            self.wrong.get_or_insert(format!("checkpoints: two signed roots of log size {size}"));
        }
    }
}
