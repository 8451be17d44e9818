//! Three-way merge: what one version changed against a common base, put into another version.
//!
//! Only the keys that the right side touched are looked at, part by part in key order, so that memory holds one part at a time. What
//! counts is the content: a key put again with the value that it had is not changed.

use coppice_types::{Change, Digest, Operation};

use super::view::{Record, View};
use crate::Result;

/// A key that both sides changed, in different ways. Values are not read: the records have their hashes and lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The key.
    pub key: Vec<u8>,
    /// What the base has.
    pub base: Option<Record>,
    /// What the left side has.
    pub left: Option<Record>,
    /// What the right side has.
    pub right: Option<Record>,
}

/// A part of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergePage {
    /// What brings the left side what the right one alone has changed, in order of keys.
    pub taken: Vec<Operation>,
    /// In order of keys.
    pub conflicts: Vec<Conflict>,
    /// The low end of the next part, if there is one.
    pub next: Option<Vec<u8>>,
}

impl View<'_> {
    /// Merges into this version what `right` changed against `base`, for `low <= key < high` and at most `limit` keys that
    /// `right` has touched. One of `base` and `right` descends from the other; so `right` may be older than `base`,
    /// and the merge then takes back what came between them. This version may be any.
    ///
    /// # Errors
    /// `NotAncestor`, or what reading pages gives.
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
                page.taken.push(Operation { key, change: value.map_or(Change::Delete, Change::Put) });
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
