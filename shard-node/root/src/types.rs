//! Values in the root group's commands and answers.

use coppice_types::{
    Digest, Epoch, Sequence, SessionId, ShardId, Stamp, Version,
    codec::{Error, Reader, Writer},
};
pub use coppice_verify::{
    epochs::Pair as EpochPair,
    shard_map::{ShardMap, StateLeaf},
};

/// A place in the root group's raft log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RaftPosition {
    /// Index of the entry.
    pub index: u64,
    /// Raft term of the entry.
    pub term: u64,
}

/// A key of the ledger after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTurn {
    /// The header that changed the key. The new key signs checkpoints of larger logs.
    pub sequence: Sequence,
    /// The Ed25519 key.
    pub public_key: [u8; 32],
}

/// The name of a state of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// The newest version that touched the shard.
    pub version: Version,
    /// Commits to the shard's forest at that version.
    pub digest: Digest,
}

impl ShardState {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.version.0);
        out.digest(&self.digest);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { version: Version(input.u64()?), digest: input.digest()? })
    }
}

/// A batch of a session, as the leader commits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCommit {
    pub session: SessionId,
    /// The batch's number in the session, from 1.
    pub number: u64,
    /// Identity of the request.
    pub batch_hash: Digest,
    /// The batch's place in the version's journal.
    pub journal_index: u32,
}

/// A batch that a session remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionBatch {
    /// The batch's number in its session, from 1.
    pub number: u64,
    /// Identity of the request.
    pub batch_hash: Digest,
    /// The header that committed the batch.
    pub sequence: Sequence,
    /// The batch's place in that header's journal.
    pub journal_index: u32,
    /// Whether the batch's version was rolled back. The batch is never applied again.
    pub rolled_back: bool,
}

/// A version that was found by number, with its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionState {
    /// Canonical bytes of the version's commit or genesis header.
    pub header: Vec<u8>,
    /// The header's place in the root log.
    pub sequence: Sequence,
    /// The version's original name.
    pub stamp: Stamp,
    /// State leaves in key order.
    pub leaves: Vec<StateLeaf>,
}

/// What a rollback or prune asks of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Go back to a version.
    Rollback {
        /// The target, by its original name.
        to: Stamp,
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Drop what only older versions need.
    Prune {
        /// The oldest version kept.
        before: Version,
    },
}

/// One logged rollback or prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOperation {
    /// Counts these operations from 1.
    pub admin_sequence: u64,
    /// The place of the operation's header in the root log.
    pub sequence: Sequence,
    pub operation: Operation,
    /// What every shard needs to execute the operation, in key order.
    pub shards: Vec<ShardBoundary>,
}

/// One shard's part in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardBoundary {
    pub shard: ShardId,
    /// The shard's decided state at the target or boundary version.
    pub boundary: ShardState,
    /// The shard's decided state just before the operation.
    pub newest: ShardState,
}

pub(crate) fn encode_leaf(leaf: &StateLeaf, out: &mut Writer) {
    out.u32(leaf.shard.0);
    out.str16(&leaf.low);
    out.flag(leaf.high.is_some());
    if let Some(high) = &leaf.high {
        out.str16(high);
    }
    out.u64(leaf.version.0);
    out.digest(&leaf.digest);
}

pub(crate) fn decode_leaf(input: &mut Reader<'_>) -> Result<StateLeaf, Error> {
    Ok(StateLeaf {
        shard: ShardId(input.u32()?),
        low: input.str16()?.to_vec(),
        high: if input.flag("bound")? { Some(input.str16()?.to_vec()) } else { None },
        version: Version(input.u64()?),
        digest: input.digest()?,
    })
}
