//! Mapping between messages and the planner's types. A message that does not parse comes from a
//! broken peer, so the error is `INTERNAL`.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_proto::{
    convert::{self, Malformed},
    status, v1,
};
use coppice_types::{Digest, Epoch, Reason, SessionBatch, ShardId, Stamp, Term, Version};
use coppice_verify::{
    epochs::{Epochs, Pair},
    hash,
    header::{Body, Genesis, Header},
    merkle,
};
use tonic::Status;

use crate::plan::{Commit, Done, KeyState, Leaves, LogTail, Refusal, ShardPlan, Write};

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        status::refuse(refusal.reason, refusal.message)
    }
}

/// The group number of a shard in messages.
pub fn group_number(shard: ShardId) -> u32 {
    coppice_types::GroupId::Shard(shard).number()
}

pub fn broken(what: &str) -> Status {
    status::refuse(Reason::Internal, format!("a shard-node sent a malformed {what}"))
}

/// Reads a part of an answer.
pub fn read<T>(part: Result<T, Malformed>) -> Result<T, Status> {
    part.map_err(|error| status::refuse(Reason::Internal, format!("a shard-node sent a malformed message: {error}")))
}

pub fn digest_in(bytes: &[u8]) -> Result<Digest, Status> {
    read(convert::digest(bytes, "digest"))
}

pub fn path_in(path: &v1::HashPath) -> Result<Vec<Digest>, Status> {
    read(convert::path(path, "path"))
}

pub fn leaves_in(leaves: Vec<v1::StateLeaf>) -> Result<Leaves, Status> {
    let leaves = read(leaves.into_iter().map(convert::leaf).collect())?;
    Leaves::new(leaves).map_err(|_| broken("list of state leaves"))
}

pub fn header_in(bytes: &[u8]) -> Result<Header, Status> {
    Header::decode(bytes).map_err(|error| broken(&format!("header: {error}")))
}

pub fn operation_out(write: &Write) -> v1::Operation {
    let change = match &write.put {
        Some(put) => v1::operation::Change::Put(put.value.clone()),
        None => v1::operation::Change::Delete(true),
    };
    v1::Operation { key: write.key.clone(), change: Some(change) }
}

/// The prepare of one shard.
pub fn prepare_out(
    shard: ShardId,
    plan: &ShardPlan,
    journal: Vec<Bytes>,
    (stamp, attempt): (Stamp, u64),
    context: v1::ShardContext,
) -> v1::PrepareRequest {
    v1::PrepareRequest {
        group: group_number(shard),
        context: Some(context),
        stamp: Some(convert::to_stamp(stamp)),
        attempt,
        base: Some(convert::to_state(plan.base)),
        merges: plan.merge.iter().map(convert::to_merge).collect(),
        operations: plan.writes.iter().map(operation_out).collect(),
        journal,
    }
}

/// The append of one header.
pub fn append_out(commit: &Commit, term: Term) -> v1::AppendHeaderRequest {
    v1::AppendHeaderRequest {
        term: term.0,
        header: Bytes::copy_from_slice(&commit.header),
        changed_leaves: commit.changed.iter().map(convert::to_leaf).collect(),
        journal: commit.journal.iter().map(|entry| Bytes::copy_from_slice(entry)).collect(),
        sessions: commit.sessions.iter().map(convert::to_session_commit).collect(),
    }
}

pub fn done_in(batch: &v1::SessionBatch) -> Result<Done, Status> {
    let SessionBatch { batch_hash, sequence, journal_index, rolled_back, .. } = read(convert::session_batch(batch))?;
    Ok(Done { batch_hash, sequence, journal_index, rolled_back })
}

pub fn key_state_in(record: &v1::ShardRecord) -> Result<KeyState, Status> {
    if !record.found {
        return Ok(KeyState::Absent);
    }
    let last_changed = read(convert::stamp(record.last_changed, "last_changed"))?;
    Ok(KeyState::Live { last_changed, value_hash: digest_in(&record.value_sha256)? })
}

/// A state of the root group, as reads and the leader need it.
#[derive(Clone, Debug)]
pub struct View {
    /// The body of the genesis header.
    pub genesis: Genesis,
    /// The newest header, its hash, the epochs and the state leaves.
    pub tail: LogTail,
    /// Canonical bytes of the newest header.
    pub newest: Bytes,
    /// Entries in the root log.
    pub log_size: u64,
    /// The root log's root.
    pub log_root: Digest,
    /// The newest header's inclusion path in the log. `None` if the path that a replica gave does
    /// not lead to the log's root.
    pub newest_path: Option<Vec<Digest>>,
    /// The oldest version that can be read.
    pub boundary: Version,
    /// The term of the leader in force.
    pub term: Term,
    /// The living pin of the oldest version.
    pub oldest_pin: Option<v1::VersionPin>,
    /// The newest version that appended to a ledger of members; 0 before the first.
    pub ledger_floor: Version,
    /// The newest anchor with stamps.
    pub anchor: Option<AnchorPlace>,
}

/// The place of an anchor with stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchorPlace {
    pub sequence: u64,
    /// Entries of the log that it stamps.
    pub stamped_size: u64,
    /// The time in its header, in ms since 1970.
    pub timestamp_ms: u64,
}

impl View {
    /// The stamp of the newest committed version.
    pub fn head(&self) -> Stamp {
        self.tail.header.stamp
    }
}

/// The mark that tells this view from every other one.
pub fn mark_out(view: &View) -> v1::RootMark {
    v1::RootMark {
        term: view.term.0,
        log_size: view.log_size,
        log_root: convert::to_digest(&view.log_root),
        oldest_pin: view.oldest_pin.clone(),
    }
}

pub fn view_in(view: Option<v1::RootView>) -> Result<View, Status> {
    let view = view.ok_or_else(|| broken("root view"))?;
    if view.genesis.is_empty() {
        return Err(status::refuse(Reason::Unavailable, "the ledger has no genesis yet"));
    }
    let Body::Genesis(genesis) = header_in(&view.genesis)?.body else { return Err(broken("genesis header")) };
    let header = header_in(&view.newest)?;
    if header.sequence.0.checked_add(1) != Some(view.log_size) {
        return Err(broken("root view"));
    }
    let pair = |pair: &v1::EpochPair| Pair { epoch: Epoch(pair.epoch), base: Version(pair.base) };
    let epochs = Epochs::from_pairs(view.epochs.iter().map(pair).collect()).ok_or_else(|| broken("list of epochs"))?;
    let (hash, log_root) = (hash::log_entry_hash(&view.newest), digest_in(&view.log_root)?);
    let path = path_in(view.newest_path.as_ref().ok_or_else(|| broken("root view"))?)?;
    let leads = merkle::verify_inclusion(header.sequence.0, view.log_size, &hash, &path, &log_root).is_ok();
    let tail = LogTail { header, hash, epochs, leaves: leaves_in(view.leaves)? };
    Ok(View {
        genesis,
        tail,
        newest: view.newest,
        log_size: view.log_size,
        log_root,
        newest_path: leads.then_some(path),
        boundary: Version(view.pruned_boundary),
        term: Term(view.term),
        oldest_pin: view.oldest_pin,
        ledger_floor: Version(view.ledger_floor),
        anchor: view.anchor.map(|it| {
            let v1::AnchorPlace { sequence, stamped_size, timestamp_ms } = it;
            AnchorPlace { sequence, stamped_size, timestamp_ms }
        }),
    })
}

/// The record as clients see it.
pub fn record_out(record: v1::ShardRecord, want_value: bool) -> v1::Record {
    v1::Record {
        key: record.key,
        found: record.found,
        value: if want_value { record.value } else { Bytes::new() },
        last_changed: record.last_changed,
    }
}

/// The digests that shards answered, by shard.
pub type Digests = BTreeMap<ShardId, Digest>;
