//! Mapping between messages and the planner's types. A message that does not parse comes from a
//! broken peer, so the error is `INTERNAL`.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{Digest, Epoch, Reason, Sequence, ShardId, Stamp, Version};
use coppice_verify::{
    epochs::{Epochs, Pair},
    hash,
    header::{Body, Genesis, Header},
    shard_map::StateLeaf,
};
use tonic::Status;

use crate::plan::{BuiltMerge, Commit, Done, KeyState, Leaves, LogTail, Refusal, ShardPlan, ShardState, Write};

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

pub fn stamp_out(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 }
}

pub fn stamp_in(stamp: v1::Stamp) -> Stamp {
    Stamp::new(stamp.epoch, stamp.version)
}

pub fn bytes_of(digest: &Digest) -> Bytes {
    Bytes::copy_from_slice(&digest.0)
}

pub fn digest_in(bytes: &[u8]) -> Result<Digest, Status> {
    Digest::from_slice(bytes).ok_or_else(|| broken("digest"))
}

pub fn path_in(path: &v1::HashPath) -> Result<Vec<Digest>, Status> {
    path.hashes.iter().map(|hash| digest_in(hash)).collect()
}

pub fn state_out(state: ShardState) -> v1::ShardState {
    v1::ShardState { version: state.version.0, digest: bytes_of(&state.digest) }
}

pub fn state_in(state: Option<v1::ShardState>) -> Result<ShardState, Status> {
    let state = state.ok_or_else(|| broken("shard state"))?;
    Ok(ShardState { version: Version(state.version), digest: digest_in(&state.digest)? })
}

pub fn leaf_out(leaf: &StateLeaf) -> v1::StateLeaf {
    v1::StateLeaf {
        shard: leaf.shard.0,
        low: Bytes::copy_from_slice(&leaf.low),
        high: leaf.high.as_deref().map(Bytes::copy_from_slice),
        state: Some(state_out(leaf.into())),
    }
}

pub fn leaves_in(leaves: Vec<v1::StateLeaf>) -> Result<Leaves, Status> {
    let leaf = |leaf: v1::StateLeaf| {
        let state = state_in(leaf.state)?;
        Ok(StateLeaf {
            shard: ShardId(leaf.shard),
            low: leaf.low.to_vec(),
            high: leaf.high.map(|high| high.to_vec()),
            version: state.version,
            digest: state.digest,
        })
    };
    let leaves = leaves.into_iter().map(leaf).collect::<Result<Vec<_>, Status>>()?;
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

pub fn merge_out(merge: &BuiltMerge) -> v1::Merge {
    v1::Merge { inputs: merge.inputs.iter().map(bytes_of).collect(), output: bytes_of(&merge.output) }
}

pub fn merge_in(merge: &v1::Merge) -> Result<BuiltMerge, Status> {
    let inputs = merge.inputs.iter().map(|input| digest_in(input)).collect::<Result<_, _>>()?;
    Ok(BuiltMerge { inputs, output: digest_in(&merge.output)? })
}

/// The prepare of one shard.
pub fn prepare_out(
    shard: ShardId,
    plan: &ShardPlan,
    stamp: Stamp,
    attempt: u64,
    context: v1::ShardContext,
) -> v1::PrepareRequest {
    v1::PrepareRequest {
        group: group_number(shard),
        context: Some(context),
        stamp: Some(stamp_out(stamp)),
        attempt,
        base: Some(state_out(plan.base)),
        merges: plan.merge.iter().map(merge_out).collect(),
        operations: plan.writes.iter().map(operation_out).collect(),
        journal: plan.journal.iter().map(|list| Bytes::copy_from_slice(list)).collect(),
    }
}

/// The append of one header.
pub fn append_out(commit: &Commit, term: u64) -> v1::AppendHeaderRequest {
    let session = |&(id, number, batch_hash, journal_index): &_| v1::SessionCommit {
        session_id: session_out(id),
        number,
        batch_hash: bytes_of(&batch_hash),
        journal_index,
    };
    v1::AppendHeaderRequest {
        term,
        header: Bytes::copy_from_slice(&commit.header),
        changed_leaves: commit.changed.iter().map(leaf_out).collect(),
        journal: commit.journal.iter().map(|entry| Bytes::copy_from_slice(entry)).collect(),
        sessions: commit.sessions.iter().map(session).collect(),
    }
}

fn session_out(id: coppice_types::SessionId) -> Bytes {
    Bytes::copy_from_slice(&id.0)
}

pub fn done_in(batch: &v1::SessionBatch) -> Result<Done, Status> {
    Ok(Done {
        batch_hash: digest_in(&batch.batch_hash)?,
        sequence: Sequence(batch.sequence),
        journal_index: batch.journal_index,
        rolled_back: batch.rolled_back,
    })
}

pub fn key_state_in(record: &v1::ShardRecord) -> Result<KeyState, Status> {
    if !record.found {
        return Ok(KeyState::Absent);
    }
    let last_changed = stamp_in(record.last_changed.ok_or_else(|| broken("record"))?);
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
    /// The oldest version that can be read.
    pub boundary: Version,
    /// The term of the leader in force.
    pub term: u64,
    /// The living pin of the oldest version.
    pub oldest_pin: Option<v1::VersionPin>,
}

impl View {
    /// The stamp of the newest committed version.
    pub fn head(&self) -> Stamp {
        self.tail.header.stamp
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
    let tail = LogTail { header, hash: hash::log_entry_hash(&view.newest), epochs, leaves: leaves_in(view.leaves)? };
    Ok(View {
        genesis,
        tail,
        newest: view.newest,
        log_size: view.log_size,
        log_root: digest_in(&view.log_root)?,
        boundary: Version(view.pruned_boundary),
        term: view.term,
        oldest_pin: view.oldest_pin,
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
