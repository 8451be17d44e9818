//! Values in the root group's commands and answers.

use coppice_types::{
    Epoch, Sequence, ShardId, Stamp, Version,
    codec::{Error, Reader, Writer},
};
pub use coppice_types::{Position, SessionBatch, SessionCommit, ShardState};
pub use coppice_verify::{
    epochs::Pair as EpochPair,
    shard_map::{ShardMap, StateLeaf},
};

/// A key of the ledger after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTurn {
    /// The header that changed the key. The new key signs checkpoints of larger logs.
    pub sequence: Sequence,
    /// The Ed25519 key.
    pub public_key: [u8; 32],
}

/// The place of an anchor with stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnchorPlace {
    /// The anchor's own place in the log.
    pub sequence: Sequence,
    /// Entries of the log that it stamps.
    pub stamped_size: u64,
    /// The time in its header, in ms since 1970.
    pub timestamp_ms: u64,
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

/// The operation that each shard executes for a rollback or prune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Roll back to a version.
    Rollback {
        /// The target, by its original name.
        to: Stamp,
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Drop the data that only older versions need.
    Prune {
        /// The oldest version kept.
        before: Version,
    },
}

/// One logged rollback or prune.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminEntry {
    /// The number of the operation; the first one is 1.
    pub admin_sequence: u64,
    /// The place of the operation's header in the root log.
    pub sequence: Sequence,
    pub operation: Operation,
    /// Each shard's part in the operation, in key order.
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
