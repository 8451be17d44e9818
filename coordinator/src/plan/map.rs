//! The state of every shard at one version, and the routing of keys to shards.

use std::sync::Arc;

use coppice_types::{Digest, ShardId, ShardState};
use coppice_verify::shard_map::{StateLeaf, state_root};

use super::refusal::Refusal;

/// The state that a leaf names.
pub fn state_of(leaf: &StateLeaf) -> ShardState {
    ShardState { version: leaf.version, digest: leaf.digest }
}

/// The state leaves of one version: ascending ranges that cover the key space once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaves(Arc<Vec<StateLeaf>>);

impl Leaves {
    /// Checks that the ranges cover the key space.
    ///
    /// # Errors
    /// If they do not, which means that a peer is broken.
    pub fn new(leaves: Vec<StateLeaf>) -> Result<Self, Refusal> {
        let starts = leaves.first().is_some_and(|first| first.low.is_empty());
        let ends = leaves.last().is_some_and(|last| last.high.is_none());
        let joined = leaves.windows(2).all(|pair| pair[0].high.as_ref() == Some(&pair[1].low));
        let ascends = leaves.windows(2).all(|pair| pair[0].low < pair[1].low);
        if starts && ends && joined && ascends {
            Ok(Self(Arc::new(leaves)))
        } else {
            Err(Refusal::new(coppice_types::Reason::Internal, "state leaves do not cover the key space once"))
        }
    }

    /// The leaves in key order.
    #[must_use]
    pub fn all(&self) -> &[StateLeaf] {
        &self.0
    }

    /// The index of the shard that holds a key.
    #[must_use]
    pub fn index_of(&self, key: &[u8]) -> usize {
        self.0.partition_point(|leaf| leaf.low.as_slice() <= key).saturating_sub(1)
    }

    /// The shard that holds a key.
    #[must_use]
    pub fn route(&self, key: &[u8]) -> ShardId {
        self.0[self.index_of(key)].shard
    }

    /// A shard's state.
    #[must_use]
    pub fn state(&self, shard: ShardId) -> Option<ShardState> {
        self.0.iter().find(|leaf| leaf.shard == shard).map(state_of)
    }

    /// The indices of the shards that hold keys of a range.
    #[must_use]
    pub fn overlapping(&self, low: &[u8], high: Option<&[u8]>) -> std::ops::Range<usize> {
        let end = high.map_or(self.0.len(), |high| self.0.partition_point(|leaf| leaf.low.as_slice() < high));
        self.index_of(low)..end
    }

    /// The same shards with some states replaced. Also returns the leaves that changed.
    #[must_use]
    pub fn with(&self, states: impl Fn(ShardId) -> Option<ShardState>) -> (Self, Vec<StateLeaf>) {
        let mut leaves = self.0.to_vec();
        let mut changed = Vec::new();
        for leaf in &mut leaves {
            if let Some(state) = states(leaf.shard)
                && state != state_of(leaf)
            {
                leaf.version = state.version;
                leaf.digest = state.digest;
                changed.push(leaf.clone());
            }
        }
        (Self(Arc::new(leaves)), changed)
    }

    #[must_use]
    pub fn root(&self) -> Digest {
        state_root(&self.0)
    }
}
