//! Filters over the keys of active trees. Most gets look for a key that the active tree does not
//! have.
//!
//! Nothing here is stored. A filter takes every key that a version writes into the active tree,
//! even if the version is dropped later. So it covers all versions of the tree that descend from
//! its start: the freeze that began the tree, or the state that was read when the engine was
//! opened. Other versions have no filter, and their active trees are always searched.

use coppice_types::Params;
use coppice_verify::rules::Filter;

use crate::{
    Result,
    meta::{Meta, VersionId, VersionRecord},
    store::Store,
};

/// The keys of one active tree. The filter has all keys of the tree's versions from `from` onwards.
#[derive(Debug)]
struct TreeKeys {
    /// Identifies the tree, as in [`VersionRecord`].
    freezes: u64,
    from: VersionId,
    filter: Filter,
}

/// When all filters exceed this many bytes, those of older trees are dropped. Only past versions
/// need them.
const BYTES_MAX: usize = 2 << 20;
/// At least this many filters are kept. Readers need that of the previous tree until a freeze is
/// decided.
const TREES_MIN: usize = 2;

/// Filters of active trees, the newest last.
#[derive(Debug, Default)]
pub(crate) struct ActiveKeys(Vec<TreeKeys>);

impl ActiveKeys {
    /// Reads the keys of the decided version and of the staged ones.
    pub(crate) fn read(store: &Store, meta: &Meta) -> Result<Self> {
        let tip = meta.tip();
        let mut filter = new_filter(&meta.params);
        let staged = meta.staged.iter().map(|id| &meta.versions[id]).filter(|staged| staged.freezes == tip.freezes);
        for version in staged.chain([tip]) {
            version.trees[0].add_keys_to(&mut filter, store)?;
        }
        Ok(Self(vec![TreeKeys { freezes: tip.freezes, from: tip.id, filter }]))
    }

    /// Adds the keys that a new version writes, as filter hashes. If it `froze` its base's active
    /// tree, it has a new one.
    pub(crate) fn note(
        &mut self,
        params: &Params,
        base: VersionId,
        (new, freezes): (VersionId, u64),
        froze: bool,
        filter_hashes: &[(u64, u64)],
    ) {
        let known = match self.0.iter().position(|known| known.freezes == freezes) {
            Some(known) => known,
            None if froze => {
                self.0.push(TreeKeys { freezes, from: new, filter: new_filter(params) });
                while self.size_bytes() > BYTES_MAX && self.0.len() > TREES_MIN {
                    self.0.remove(0);
                }
                self.0.len() - 1
            }
            None => return,
        };
        if froze || base >= self.0[known].from {
            filter_hashes.iter().for_each(|hash| self.0[known].filter.insert_hash(*hash));
        } else {
            // The base may have keys that the filter lacks.
            self.0.remove(known);
        }
    }

    /// The filter of a version's active tree; `None` if there is none.
    pub(crate) fn filter(&self, version: &VersionRecord) -> Option<&Filter> {
        let of = |known: &&TreeKeys| known.freezes == version.freezes && version.id >= known.from;
        self.0.iter().rev().find(of).map(|known| &known.filter)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.0.iter().map(|known| size_of_val(known.filter.blocks())).sum()
    }
}

fn new_filter(params: &Params) -> Filter {
    Filter::new(params, params.capacity.into())
}

#[cfg(test)]
mod tests {
    use coppice_types::{Epoch, Stamp, Version};
    use coppice_verify::hash;

    use super::*;
    use crate::meta::Tree;

    fn version(id: VersionId, freezes: u64) -> VersionRecord {
        VersionRecord {
            id,
            parent: 0,
            decided: true,
            stamp: Stamp { epoch: Epoch(0), version: Version(id) },
            prepare_id: crate::PrepareId::default(),
            digest: hash::empty_shard_digest(),
            trees: vec![Tree::empty()],
            freezes,
            installs: Vec::new(),
            delta: crate::meta::Delta::default(),
        }
    }

    fn of(number: u8) -> (u64, u64) {
        hash::filter_hash(&[number])
    }

    fn has(keys: &ActiveKeys, version: &VersionRecord, number: u8) -> Option<bool> {
        keys.filter(version).map(|filter| filter.admits_hash(of(number)))
    }

    #[test]
    fn a_version_has_the_keys_of_those_that_it_builds_on() {
        let params = Params::default();
        let mut keys = ActiveKeys::default();
        keys.note(&params, 4, (5, 0), false, &[of(1)]);
        assert_eq!(has(&keys, &version(5, 0), 1), None, "what was before is not known");
        keys.note(&params, 5, (6, 1), true, &[of(2)]);
        keys.note(&params, 6, (7, 1), false, &[of(3)]);
        assert_eq!([1, 2, 3].map(|number| has(&keys, &version(7, 1), number)), [false, true, true].map(Some));
        // A new tree begins while the decided version still has this one.
        keys.note(&params, 7, (8, 2), true, &[of(4)]);
        assert_eq!([3, 4].map(|number| has(&keys, &version(7, 1), number)), [true, false].map(Some));
        assert_eq!([3, 4].map(|number| has(&keys, &version(8, 2), number)), [false, true].map(Some));
        // That version is aborted. Another one freezes the same tree, and another one extends it.
        keys.note(&params, 7, (9, 2), true, &[of(5)]);
        keys.note(&params, 7, (10, 1), false, &[of(6)]);
        assert_eq!((has(&keys, &version(9, 2), 5), has(&keys, &version(10, 1), 6)), (Some(true), Some(true)));
        assert_eq!(has(&keys, &version(10, 2), 6), Some(false));
        // The number of trees is bounded.
        for freezes in 3..60 {
            keys.note(&params, 10 + freezes, (11 + freezes, freezes), true, &[of(freezes as u8)]);
        }
        assert!(keys.size_bytes() <= BYTES_MAX && keys.0.len() > 10, "{} of {}", keys.0.len(), keys.size_bytes());
        assert_eq!((has(&keys, &version(70, 59), 59), has(&keys, &version(61, 50), 50)), (Some(true), Some(true)));
        assert_eq!(has(&keys, &version(14, 3), 3), None);
        let large = Params { capacity: 1 << 24, ..params };
        (60..64).for_each(|freezes| keys.note(&large, 0, (100 + freezes, freezes), true, &[]));
        assert_eq!(keys.0.len(), TREES_MIN);
    }

    #[test]
    fn a_version_on_one_that_is_not_known_takes_the_filter_away() {
        let params = Params::default();
        let mut keys = ActiveKeys::default();
        keys.note(&params, 5, (6, 1), true, &[of(2)]);
        // A rollback led to a version older than the opening of the engine.
        assert_eq!(has(&keys, &version(3, 1), 2), None);
        keys.note(&params, 3, (7, 1), false, &[of(3)]);
        assert_eq!(has(&keys, &version(7, 1), 3), None);
    }
}
