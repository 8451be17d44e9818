//! Three-way merge: applies the changes between a base and one version to another version.
//!
//! Only keys that the right side touched are read, in parts by key order, so memory holds one part.
//! Contents are compared: a key that was put again with the same value has not changed.

use coppice_types::{Change, Digest, Operation};

use super::view::{Record, View};
use crate::Result;

/// A key that both sides changed in different ways. Its values are not read; the records have their
/// hashes and lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub key: Vec<u8>,
    /// The record in the base.
    pub base: Option<Record>,
    /// The record on the left side.
    pub left: Option<Record>,
    /// The record on the right side.
    pub right: Option<Record>,
}

/// A part of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergePage {
    /// Changes of the right side alone, to be applied to the left side, in key order.
    pub taken: Vec<Operation>,
    /// The conflicts, in key order.
    pub conflicts: Vec<Conflict>,
    /// The lower bound of the next part, if there is one.
    pub next: Option<Vec<u8>>,
}

impl View<'_> {
    /// Merges the changes from `base` to `right` into this version, for `low <= key < high` and at
    /// most `limit` keys that `right` has touched. One of `base` and `right` must descend from the
    /// other. If `right` is the older one, the merge takes back the changes between them. This
    /// version may be any.
    ///
    /// # Errors
    /// `NotAncestor`, `Corrupted`, or a failure of the storage.
    ///
    /// # Panics
    /// If the limit is 0.
    pub fn merge(
        &self,
        base: &View<'_>,
        right: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<MergePage> {
        let (older, newer) = if right.stamp().version < base.stamp().version { (right, base) } else { (base, right) };
        let touched = newer.touched_keys(older, low, high, limit)?;
        let mut page = MergePage { next: touched.next, ..MergePage::default() };
        for key in touched.keys {
            let (was, theirs) = (base.get(&key, false)?, right.get(&key, false)?);
            if hash(&was) == hash(&theirs) {
                continue;
            }
            let ours = self.get(&key, false)?;
            if hash(&ours) == hash(&was) {
                let value = right.get(&key, true)?.and_then(|record| record.value);
                let change = value.map_or(Change::Delete, |value| Change::Put(value.into()));
                page.taken.push(Operation { key: key.into(), change });
            } else if hash(&ours) != hash(&theirs) {
                page.conflicts.push(Conflict { key, base: was, left: ours, right: theirs });
            }
        }
        Ok(page)
    }
}

fn hash(record: &Option<Record>) -> Option<Digest> {
    record.as_ref().map(|record| record.value_hash())
}
