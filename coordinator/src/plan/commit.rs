//! The prepares of a version, made from its batches, and its header, made from the shards' answers.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use coppice_types::{Digest, MergeName, SessionCommit, ShardId, ShardState, Stamp, Version, codec::Writer};
use coppice_verify::{
    anchor::{Anchor, Stamps},
    epochs::Epochs,
    hash::{self, RecordBody},
    header::{Body, Header, Prune, Rollback},
    journal::{BatchEntry, Entry, MergeEntry},
    keys::KeyChange,
    merkle,
    shard_map::StateLeaf,
};

use super::{
    appends::Part,
    form::{Draft, fold},
    map::{Leaves, state_of},
    request::{Request, Write},
};

/// The encoded operation lists of a version by shard, in the order of the version's batches.
pub type ShardLists = BTreeMap<ShardId, Vec<Bytes>>;

/// The content of one shard's prepare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// The state that the version builds on.
    pub base: ShardState,
    /// A merge to install first.
    pub merge: Option<MergeName>,
    /// The folded writes, in key order.
    pub writes: Vec<Write>,
    /// Encoded operation lists of the batches.
    pub lists: Vec<Bytes>,
}

/// A version that was formed: its batches, and a prepare for each touched shard.
#[derive(Clone, Debug)]
pub struct Plan {
    pub stamp: Stamp,
    /// The time at which its requests were judged. Its header is not older, even if a clock is set
    /// back.
    pub judged_ms: u64,
    /// The batches and requests of members, in the order of their application.
    pub batches: Vec<Arc<Request>>,
    /// The entries and writes that follow from members' requests, in the order of the requests.
    pub appends: Vec<Part>,
    /// The entries and writes for the ledgers that the requests append to.
    pub heads: Vec<Part>,
    /// The touched shards.
    pub shards: BTreeMap<ShardId, ShardPlan>,
}

/// The end of the root log, decided or not. The next header follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// The newest header.
    pub header: Header,
    /// The hash of the newest entry.
    pub hash: Digest,
    /// The epochs under the header's epochs root.
    pub epochs: Epochs,
    /// The state leaves under the header's state root.
    pub leaves: Leaves,
}

/// A header that is ready to be appended, with everything that is sent to the root group.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Canonical header bytes.
    pub header: Vec<u8>,
    /// The log's end once the header is appended.
    pub tail: LogTail,
    /// The leaves that differ from those of the previous header.
    pub changed: Vec<StateLeaf>,
    /// Encoded journal entries.
    pub journal: Vec<Vec<u8>>,
    /// The encoded operation lists to which the entries commit.
    pub lists: ShardLists,
    /// Session, number, batch hash and journal index of each batch that has a session.
    pub sessions: Vec<SessionCommit>,
}

/// A rollback or prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Head becomes the target's state under a new epoch.
    Rollback {
        /// The target, by its original name.
        target: Stamp,
        /// The target's state leaves.
        leaves: Leaves,
    },
    /// Versions below the boundary can no longer be read.
    Prune {
        /// The oldest version kept.
        boundary: Version,
    },
}

impl Plan {
    /// Plans the prepares of a version. `batches` are those that the draft takes.
    ///
    /// # Panics
    /// If a batch was routed by other leaves.
    #[must_use]
    pub fn new(
        stamp: Stamp,
        batches: Vec<Arc<Request>>,
        draft: &Draft,
        leaves: &Leaves,
        merges: &BTreeMap<ShardId, MergeName>,
    ) -> Self {
        let requests = batches.iter().filter_map(|batch| batch.append.as_ref());
        let appends = requests.zip(&draft.appended).map(|(request, appended)| Part::append(request, appended, leaves));
        let (appends, heads) = (appends.collect(), draft.closed.iter().map(|closed| Part::head(closed, leaves)));
        let mut plan =
            Self { stamp, judged_ms: draft.now_ms, batches, appends, heads: heads.collect(), shards: BTreeMap::new() };
        let mut shards = BTreeMap::new();
        for leaf in leaves.all() {
            let batches: Vec<&Vec<Write>> = plan.writes().filter_map(|writes| writes.get(&leaf.shard)).collect();
            if batches.is_empty() {
                continue;
            }
            let lists = batches.iter().map(|batch| encode_list(batch).into()).collect();
            let (writes, merge) = (fold(batches.into_iter()), merges.get(&leaf.shard).cloned());
            shards.insert(leaf.shard, ShardPlan { base: state_of(leaf), merge, writes, lists });
        }
        let routed = plan.writes().flat_map(BTreeMap::keys).all(|shard| shards.contains_key(shard));
        assert!(routed, "batches are routed by the leaves in force");
        plan.shards = shards;
        plan
    }

    /// The operations of all entries of the journal that write, in its order.
    fn writes(&self) -> impl Iterator<Item = &BTreeMap<ShardId, Vec<Write>>> {
        let mut appends = self.appends.iter();
        let requests = self.batches.iter().map(move |batch| match &batch.append {
            None => &batch.writes,
            Some(_) => &appends.next().expect("each request of a member has its part").writes,
        });
        requests.chain(self.heads.iter().map(|head| &head.writes))
    }

    /// Makes the header of the version from the digests that the shards answered.
    ///
    /// # Panics
    /// If a touched shard's digest is missing, or the version does not follow the tail.
    #[must_use]
    pub fn commit(&self, digests: &BTreeMap<ShardId, Digest>, tail: &LogTail, now_ms: u64) -> Commit {
        assert_eq!(self.stamp, tail.next_stamp(), "versions have no gaps");
        assert!(self.shards.keys().eq(digests.keys()), "every touched shard answered, and no other");
        let state = |shard| digests.get(&shard).map(|&digest| ShardState { version: self.stamp.version, digest });
        let (leaves, changed) = tail.leaves.with(state);
        let journal = self.journal();
        let journal_hashes: Vec<Digest> = journal.iter().map(Entry::hash).collect();
        let header = Header {
            stamp: self.stamp,
            state_root: leaves.root(),
            journal_root: merkle::mth(&journal_hashes),
            journal_leaves: count(journal.len()),
            ..tail.next(Body::Commit, now_ms.max(self.judged_ms))
        };
        Commit {
            changed,
            journal: journal.iter().map(Entry::encode).collect(),
            lists: self.shards.iter().map(|(shard, part)| (*shard, part.lists.clone())).collect(),
            sessions: self.sessions(),
            ..Commit::of(header, tail.epochs.clone(), leaves)
        }
    }

    fn journal(&self) -> Vec<Entry> {
        let mut appends = self.appends.iter();
        let batch = |batch: &Arc<Request>| match &batch.append {
            None => Entry::Batch(BatchEntry {
                session: batch.session,
                metadata: batch.metadata_hash,
                shards: batch.list_hashes.iter().map(|(&shard, &hash)| (shard, hash)).collect(),
            }),
            Some(_) => appends.next().expect("each request of a member has its part").entry.clone(),
        };
        let heads = self.heads.iter().map(|head| head.entry.clone());
        let merge = |(&shard, plan): (&ShardId, &ShardPlan)| {
            let merge = plan.merge.as_ref()?;
            Some(Entry::Merge(MergeEntry { shard, inputs: merge.inputs.clone(), output: merge.output }))
        };
        self.batches.iter().map(batch).chain(heads).chain(self.shards.iter().filter_map(merge)).collect()
    }

    fn sessions(&self) -> Vec<SessionCommit> {
        let entry = |(index, batch): (usize, &Arc<Request>)| {
            let (session, number) = batch.session?;
            Some(SessionCommit { session, number, batch_hash: batch.batch_hash, journal_index: count(index) })
        };
        self.batches.iter().enumerate().filter_map(entry).collect()
    }
}

impl LogTail {
    /// The stamp of the next version.
    #[must_use]
    pub fn next_stamp(&self) -> Stamp {
        Stamp { epoch: self.header.stamp.epoch, version: self.header.stamp.version.next() }
    }

    /// A next header that changes no state.
    fn next(&self, body: Body, now_ms: u64) -> Header {
        Header {
            sequence: self.header.sequence.next(),
            timestamp_ms: now_ms.max(self.header.timestamp_ms),
            journal_root: merkle::empty_root(),
            journal_leaves: 0,
            key_changes: self.header.key_changes_until(&body),
            previous: self.hash,
            body,
            ..self.header.clone()
        }
    }

    /// Makes the header of a key change.
    #[must_use]
    pub fn change_key(&self, change: KeyChange, now_ms: u64) -> Commit {
        Commit::of(self.next(Body::Key(change), now_ms), self.epochs.clone(), self.leaves.clone())
    }

    /// Makes the header that keeps time stamps.
    #[must_use]
    pub fn anchor(&self, stamps: Stamps, now_ms: u64) -> Commit {
        let body = Body::Anchor(Anchor::Stamps(stamps));
        Commit::of(self.next(body, now_ms), self.epochs.clone(), self.leaves.clone())
    }

    /// Makes the header of a rollback or prune.
    #[must_use]
    pub fn admin(&self, admin: &Admin, principal: &str, reason: &str, now_ms: u64) -> Commit {
        let (principal, reason) = (principal.to_owned(), reason.to_owned());
        let admin_sequence = self.header.admin_sequence + 1;
        match admin {
            Admin::Rollback { target, leaves } => {
                let head_before = self.header.stamp;
                let stamp = Stamp { epoch: head_before.epoch.next(), version: target.version };
                let mut epochs = self.epochs.clone();
                epochs.roll_back(stamp.epoch, target.version);
                let body = Body::Rollback(Rollback { target: *target, head_before, principal, reason });
                let header = Header {
                    stamp,
                    state_root: leaves.root(),
                    epochs_root: epochs.root(),
                    epoch_pairs: count(epochs.pairs().len()),
                    admin_sequence,
                    ..self.next(body, now_ms)
                };
                let (_, changed) = self.leaves.with(|shard| leaves.state(shard));
                Commit { changed, ..Commit::of(header, epochs, leaves.clone()) }
            }
            Admin::Prune { boundary } => {
                let body = Body::Prune(Prune { boundary: *boundary, principal, reason });
                let header = Header { admin_sequence, ..self.next(body, now_ms) };
                Commit::of(header, self.epochs.clone(), self.leaves.clone())
            }
        }
    }
}

impl Commit {
    fn of(header: Header, epochs: Epochs, leaves: Leaves) -> Self {
        let bytes = header.encode();
        let hash = hash::log_entry_hash(&bytes);
        Self {
            header: bytes,
            tail: LogTail { header, hash, epochs, leaves },
            changed: Vec::new(),
            journal: Vec::new(),
            lists: ShardLists::new(),
            sessions: Vec::new(),
        }
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("versions, shards and epochs are few")
}

/// The operations of one batch on one shard, encoded as the operation list hash covers them.
fn encode_list(list: &[Write]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(count(list.len()));
    for write in list {
        match write.body() {
            RecordBody::Put { value_len, value_hash } => {
                out.u8(0);
                out.str16(&write.key);
                out.u32(value_len);
                out.digest(&value_hash);
            }
            RecordBody::Tombstone => {
                out.u8(1);
                out.str16(&write.key);
            }
        }
    }
    out.into_bytes()
}
