//! Epochs: which versions stand after rollbacks (`docs/verification.md` section 11).
//!
//! Invariant of [`Epochs`]: the first pair is (0, 0), epochs ascend, and the bases of all pairs
//! after the first ascend.

use alloc::{vec, vec::Vec};

use coppice_types::{Digest, Epoch, Stamp, Version};

use crate::{hash::epoch_leaf_hash, merkle};

/// An epoch and its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The epoch.
    pub epoch: Epoch,
    /// The version after which the epoch began: the epoch's versions are above it.
    pub base: Version,
}

impl Pair {
    /// Hash of the pair in the list of epochs.
    #[must_use]
    pub fn hash(&self) -> Digest {
        epoch_leaf_hash(self.epoch, self.base)
    }

    /// Whether this pair's epoch has the version, and the version stands. `next` is the pair after
    /// this one, `None` for the last.
    #[must_use]
    pub fn stands(&self, version: Version, next: Option<&Pair>) -> bool {
        let genesis = self.epoch == Epoch(0) && version == Version(0);
        genesis || version > self.base && next.is_none_or(|next| version <= next.base)
    }

    /// Whether some sequence of rollbacks leaves this pair at this index of the list.
    #[must_use]
    pub fn may_be_at(&self, index: u32) -> bool {
        let index = u64::from(index);
        match index.checked_sub(1) {
            None => *self == Self { epoch: Epoch(0), base: Version(0) },
            Some(before) => self.epoch.0 >= index && self.base.0 >= before,
        }
    }

    /// Whether some sequence of rollbacks leaves `next` right after this pair, which is at `index`.
    /// Only epoch 0 can have the base of a later pair.
    #[must_use]
    pub fn may_precede(&self, next: &Self, index: u32) -> bool {
        self.epoch < next.epoch && (index == 0 || self.base < next.base)
    }
}

/// The epochs that have versions that stand, with their bases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs {
    pairs: Vec<Pair>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self { pairs: vec![Pair { epoch: Epoch(0), base: Version(0) }] }
    }
}

impl Epochs {
    /// The epochs of a new ledger: the pair (0, 0).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The epochs with these pairs; `None` if no sequence of rollbacks leaves them.
    #[must_use]
    pub fn from_pairs(pairs: Vec<Pair>) -> Option<Self> {
        let first = pairs.first()?.may_be_at(0);
        let ascend = pairs.windows(2).zip(0..).all(|(pair, index)| pair[0].may_precede(&pair[1], index));
        (first && ascend).then_some(Self { pairs })
    }

    /// The pairs, oldest first; at least one.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The epoch of the newest pair.
    #[must_use]
    pub fn current(&self) -> Epoch {
        self.pairs.last().map_or(Epoch(0), |pair| pair.epoch)
    }

    /// Applies a rollback to `target`, which starts `epoch`.
    ///
    /// # Panics
    /// If the epoch is not above all earlier ones.
    pub fn roll_back(&mut self, epoch: Epoch, target: Version) {
        assert!(epoch > self.current(), "a rollback raises the epoch");
        self.pairs.retain(|pair| pair.epoch == Epoch(0) || pair.base < target);
        self.pairs.push(Pair { epoch, base: target });
    }

    /// Index of the pair by which the stamp stands; `None` if it does not stand. The caller checks
    /// that the version is not above head.
    #[must_use]
    pub fn find(&self, stamp: Stamp) -> Option<usize> {
        let index = self.pairs.iter().position(|pair| pair.epoch == stamp.epoch)?;
        self.pairs[index].stands(stamp.version, self.pairs.get(index + 1)).then_some(index)
    }

    /// Whether the stamp stands: the version of this name was not rolled back. The caller checks
    /// that it is not above head.
    #[must_use]
    pub fn stands(&self, stamp: Stamp) -> bool {
        self.find(stamp).is_some()
    }

    /// The stamp under which `version` stands, if it is at or below head.
    #[must_use]
    pub fn stamp_of(&self, version: Version) -> Stamp {
        let pair = self.pairs.iter().rev().find(|pair| pair.base < version);
        Stamp { epoch: pair.map_or(Epoch(0), |pair| pair.epoch), version }
    }

    /// Hashes of the pairs, oldest first.
    #[must_use]
    pub fn leaves(&self) -> Vec<Digest> {
        self.pairs.iter().map(Pair::hash).collect()
    }

    /// The epochs root, which every header carries.
    #[must_use]
    pub fn root(&self) -> Digest {
        merkle::mth(&self.leaves())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A model that keeps the stamp of every version that stands.
        #[test]
        fn stamps_stand_exactly_if_no_rollback_removed_them(steps in prop::collection::vec((0_u64..4, 0_u64..20), 0..40)) {
            let mut epochs = Epochs::new();
            let mut standing = BTreeMap::from([(0, 0)]);
            let mut all = BTreeSet::from([(0, 0)]);
            let (mut epoch, mut head) = (0, 0);
            for (kind, target) in steps {
                if kind == 0 {
                    head = target.min(head);
                    epoch += 1;
                    standing.retain(|version, _| *version <= head);
                    epochs.roll_back(Epoch(epoch), Version(head));
                } else {
                    head += 1;
                    standing.insert(head, epoch);
                    all.insert((epoch, head));
                }
                prop_assert_eq!(Epochs::from_pairs(epochs.pairs().to_vec()), Some(epochs.clone()));
                for (epoch, version) in &all {
                    let stands = standing.get(version) == Some(epoch);
                    prop_assert_eq!(epochs.stands(Stamp::new(*epoch, *version)), stands);
                }
                for (version, epoch) in &standing {
                    prop_assert_eq!(epochs.stamp_of(Version(*version)), Stamp::new(*epoch, *version));
                }
            }
        }
    }

    #[test]
    fn pairs_that_no_rollback_leaves_are_refused() {
        let pair = |epoch, base| Pair { epoch: Epoch(epoch), base: Version(base) };
        for pairs in [
            vec![],
            vec![pair(1, 0)],
            vec![pair(0, 1)],
            vec![pair(0, 0), pair(0, 1)],
            vec![pair(0, 0), pair(2, 5), pair(1, 7)],
            vec![pair(0, 0), pair(1, 5), pair(2, 5)],
        ] {
            assert_eq!(Epochs::from_pairs(pairs), None);
        }
        assert!(Epochs::from_pairs(vec![pair(0, 0), pair(1, 0), pair(2, 3)]).is_some());
    }
}
