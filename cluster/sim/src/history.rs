//! A record of the questions of clients and the answers they got, in the order in which both
//! happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use coppice_engine::ShardState;
use coppice_proto::v1;
use coppice_types::{Digest, GroupId, MemberId, Reason, Stamp, Version};
use coppice_verify::{
    ledgers::{Checked, Request},
    merkle,
};

use crate::shape::CLUSTER;

/// A moment: the number of moments before it.
pub type Moment = u64;

/// Names a batch. It is the batch's metadata, too.
pub type BatchId = u64;

/// A checker's finding: the checker's name, a colon, and a description.
pub type Finding = String;

/// The answer to a member's request: its hash, the version, and the number of its first journal.
pub type Told = (Digest, Stamp, u64);

/// A batch, and the answers that its sender got.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The batch as it was sent.
    pub batch: v1::Batch,
    /// The session in which it was sent, and its number there.
    pub session: Option<(Bytes, u64)>,
    /// The moment at which it was sent first.
    pub begin: Moment,
    /// The outcome of each attempt; `None` while the attempt is under way.
    pub attempts: Vec<Option<Outcome>>,
}

/// The outcome of an attempt to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch is committed.
    Committed(Committed),
    /// The attempt was refused, so it did not commit the batch.
    Refused(Reason),
    /// The session says that the batch was rolled back.
    RolledBack,
    /// The client can't know.
    Unknown,
}

/// The answer to a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Stamp of the version that has the batch.
    pub stamp: Stamp,
    /// Header of that version.
    pub header: Bytes,
    /// Index of the batch in the version's journal.
    pub index: u32,
    /// The moment of the answer.
    pub end: Moment,
    /// Whether an earlier attempt committed the batch.
    pub replayed: bool,
}

/// Something that was read or refused at one moment of the log between question and answer.
#[derive(Clone, Debug)]
pub struct Look {
    pub client: u64,
    /// The moment of the question.
    pub begin: Moment,
    /// The moment of the answer.
    pub end: Moment,
    /// Whether the answer may be of an older moment.
    pub stale_ok: bool,
    pub seen: Seen,
}

/// The content of an answer.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Records of keys or of a range.
    Records {
        /// The state that was asked for; `None` for head.
        asked: Option<Stamp>,
        /// The state that was read.
        at: Stamp,
        /// For each key, its value and the stamp of its last change; `None` without a value.
        records: Vec<(Bytes, Option<(Bytes, Stamp)>)>,
        /// Low and high of a range. It must hold no other keys.
        range: Option<(Bytes, Option<Bytes>)>,
    },
    /// Head, size of the log, and boundary of the last prune.
    Head {
        /// Stamp of the head.
        stamp: Stamp,
        /// Entries in the root log.
        log_size: u64,
        /// The oldest version that is kept.
        boundary: u64,
    },
    /// A version could not be read.
    Refused { asked: Stamp, reason: Reason },
    /// A precondition of a batch, or its expected head, did not hold.
    Failed(BatchId),
    /// A prune, rollback or key change was carried out.
    Admin {
        /// Its header.
        header: Bytes,
    },
}

/// A staged batch.
#[derive(Clone, Debug)]
pub struct Staged {
    /// Stamp of the version that the stage would become.
    pub stamp: Stamp,
    /// State root of that version.
    pub state_root: Digest,
}

/// Everything that happened in a run.
#[derive(Debug, Default)]
pub struct History {
    now: Moment,
    /// Every batch that was ever sent.
    pub batches: BTreeMap<BatchId, Batch>,
    /// Every read, refusal and administrative answer.
    pub looks: Vec<Look>,
    /// Stages by their batch.
    pub staged: BTreeMap<BatchId, Staged>,
    /// Every root of the log that was ever shown, signed or by a replica, by size.
    pub checkpoints: BTreeMap<u64, Digest>,
    /// The keys that signed roots of the log, by size.
    pub signers: BTreeSet<(u64, [u8; 32])>,
    /// For each entry of each group's raft log (group, index), the digest of its outcome, and the
    /// first replica that reported it.
    digests: BTreeMap<(u32, u64), (Bytes, u64)>,
    /// The state of each shard at each version, wherever it was seen: by group, number of executed
    /// admin operations, and version.
    states: BTreeMap<(GroupId, u64, Version), ShardState>,
    /// Leaf hashes of the longest root log that any replica has had.
    log: Vec<Digest>,
    /// Every request of a member that was ever sent, by the hash of the signed bytes.
    pub requests: BTreeMap<Digest, Checked>,
    /// The answers to members' requests: hash, version, and number of the first journal.
    pub appended: Vec<Told>,
    /// Nonces of the envelopes that orders have occulted.
    pub occulted: Vec<[u8; 32]>,
    /// The first finding.
    pub wrong: Option<Finding>,
    /// Number of commits and reads that succeeded.
    pub done: (u64, u64),
}

/// A history that is being written. Clones write to the same history.
#[derive(Clone, Debug, Default)]
pub struct Scribe(Arc<Mutex<History>>);

impl Scribe {
    pub fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the next moment.
    pub fn now(&self) -> Moment {
        let mut history = self.lock();
        history.now += 1;
        history.now
    }

    /// Records a finding, unless there is one already.
    pub fn wrong(&self, what: Finding) {
        self.lock().wrong.get_or_insert(what);
    }
}

impl History {
    /// Begins the next moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Notes a request of a member that is about to be sent, the key that signed it, and the keys
    /// of members that approve orders.
    ///
    /// # Panics
    /// If its form or signature is wrong.
    pub fn request(&mut self, request: &Request, key: &[u8; 32], keys_of: impl Fn(MemberId) -> Vec<[u8; 32]>) {
        let mut checked = request.clone().check(CLUSTER).expect("authors send requests of sound form");
        assert!(checked.verify(key), "authors sign their requests");
        checked.verify_approvals(keys_of);
        self.requests.insert(checked.hash, checked);
    }

    /// Records a root of the log, signed or seen. Two roots of the same size must be equal, and the
    /// log of that size must have this root.
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
            self.wrong.get_or_insert(format!("log: the checkpoint of {size} entries belongs to another log"));
        }
    }

    /// Number of known entries of the log.
    pub fn log_size(&self) -> u64 {
        self.log.len() as u64
    }

    /// Adds entries of the log, and checks the roots that were recorded for the new sizes.
    pub fn log_grows(&mut self, leaves: &[Digest]) {
        let old = self.log_size();
        self.log.extend_from_slice(leaves);
        let new = self.checkpoints.range(old + 1..self.log_size() + 1);
        let due: Vec<(u64, Digest)> = new.map(|(size, root)| (*size, *root)).collect();
        for (size, root) in due {
            self.check_prefix(size, root);
        }
    }

    /// Records the digest that a replica reports for an entry. All replicas must report the same.
    pub fn digest(&mut self, group: u32, index: u64, from: u64, digest: Bytes) {
        let (known, first) = self.digests.entry((group, index)).or_insert_with(|| (digest.clone(), from));
        if *known != digest {
            let group = GroupId::from_number(group);
            let what = format!("replicas: {group} at entry {index}: {from:x} has a different digest than {first:x}");
            self.wrong.get_or_insert(what);
        }
    }

    /// Records a decided state of a replica. All replicas must have the same state of a version.
    pub fn state(&mut self, group: GroupId, executed: u64, state: ShardState) {
        let known = *self.states.entry((group, executed, state.version)).or_insert(state);
        if known != state {
            let version = state.version;
            self.wrong.get_or_insert(format!("replicas: {group} has two states {version} after {executed} operations"));
        }
    }
}
