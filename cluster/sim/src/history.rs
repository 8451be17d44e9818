//! What clients asked and what they heard, in the order in which it happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use coppice_engine::ShardState;
use coppice_proto::v1;
use coppice_types::{Digest, GroupId, Reason, Stamp, Version};
use coppice_verify::merkle;

/// A moment, by the number of moments before.
pub type Moment = u64;

/// Names a batch; it is the batch's metadata, too.
pub type BatchId = u64;

/// What a checker found wrong: its name, a colon, and what it saw.
pub type Finding = String;

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
    /// Every head of the root log that was ever shown, signed or by a replica, by size.
    pub checkpoints: BTreeMap<u64, Digest>,
    /// The keys that signed heads of the root log, by size.
    pub signers: BTreeSet<(u64, [u8; 32])>,
    /// Digest of what came of each entry of each group's raft log, and the first replica that told it.
    digests: BTreeMap<(u32, u64), (Bytes, u64)>,
    /// What each state of each shard was, wherever it was seen: by group, admin operations executed, and version.
    states: BTreeMap<(GroupId, u64, Version), ShardState>,
    /// Leaf hashes of the root log, as far as any replica had it.
    log: Vec<Digest>,
    /// What is wrong already.
    pub wrong: Option<Finding>,
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
    pub fn wrong(&self, what: Finding) {
        self.lock().wrong.get_or_insert(what);
    }
}

impl History {
    /// A new moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Notes the head of a log, signed or seen; two of one size must be the same, and that of the log when it had this size.
    pub fn checkpoint(&mut self, size: u64, root: Digest) {
        let new = !self.checkpoints.contains_key(&size);
        let known = *self.checkpoints.entry(size).or_insert(root);
        if known != root {
            self.wrong.get_or_insert(format!("checkpoints: two roots of log size {size}"));
        }
        if new {
            self.check_prefix(size, root);
        }
    }

    fn check_prefix(&mut self, size: u64, root: Digest) {
        let prefix = usize::try_from(size).ok().and_then(|size| self.log.get(..size));
        if prefix.is_some_and(|prefix| merkle::mth(prefix) != root) {
            self.wrong.get_or_insert(format!("log: the checkpoint of {size} entries is of another log"));
        }
    }

    /// Entries of the log that are known.
    pub fn log_size(&self) -> u64 {
        self.log.len() as u64
    }

    /// More entries of the log: what was signed over them before is looked at now.
    pub fn log_grows(&mut self, leaves: &[Digest]) {
        let old = self.log_size();
        self.log.extend_from_slice(leaves);
        let new = self.checkpoints.range(old + 1..self.log_size() + 1);
        let due: Vec<(u64, Digest)> = new.map(|(size, root)| (*size, *root)).collect();
        for (size, root) in due {
            self.check_prefix(size, root);
        }
    }

    /// Notes what a replica says came of an entry; all say the same.
    pub fn digest(&mut self, group: u32, index: u64, from: u64, digest: Bytes) {
        let (known, first) = self.digests.entry((group, index)).or_insert_with(|| (digest.clone(), from));
        if *known != digest {
            let group = GroupId::from_number(group);
            let what = format!("replicas: {group} at entry {index}: {from:x} has another digest than {first:x}");
            self.wrong.get_or_insert(what);
        }
    }

    /// Notes a decided state of a replica; where it has one of that version, it has the same.
    pub fn state(&mut self, group: GroupId, executed: u64, state: ShardState) {
        let known = *self.states.entry((group, executed, state.version)).or_insert(state);
        if known != state {
            let version = state.version;
            self.wrong.get_or_insert(format!("replicas: {group} has two states {version} after {executed} operations"));
        }
    }
}
