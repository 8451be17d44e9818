//! The history of a key, and the difference between two versions.
//!
//! The cost of both grows with the number of changes, not with that of versions or records. A
//! history jumps from a record to the version before that record. If there is no record, a node's
//! own version shows since when nothing has changed there. A diff compares trees that share nodes,
//! and skips shared nodes.

use std::{cmp::Ordering, collections::BTreeSet};

use coppice_types::{Stamp, Version};

use crate::{
    Error, Result,
    cache::Class,
    meta::{Tree, VersionRecord, rows::Row},
    node::{Child, Node},
    read::view::{Record, View},
    store::Store,
    tree,
};

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Stamp of the commit that made the change.
    pub stamp: Stamp,
    /// The key's record from then on; `None` if the key was deleted.
    pub record: Option<Record>,
}

/// A part of a key's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// The changes, newest first.
    pub changes: Vec<KeyChange>,
    /// Whether a limit cut the history short.
    pub more: bool,
}

/// A part of the difference between two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiffPage {
    /// The records before and after, in key order.
    pub differences: Vec<(Option<Record>, Option<Record>)>,
    /// The lower bound of the next part, if there is one.
    pub next: Option<Vec<u8>>,
}

impl<'e> View<'e> {
    /// Changes of a key up to this version, newest first, as far back as versions are retained. The
    /// last one may be the value in the oldest retained version, even if an older version put it.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn history(&self, key: &[u8], limit: usize) -> Result<HistoryPage> {
        self.history_part(key, None, limit, usize::MAX)
    }

    /// Like [`history`](Self::history), for changes below a version, if one is given. The part ends
    /// with the change that brings keys and values to `bytes_max`, which must not be 0. The next
    /// part is below that change's version.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn history_part(
        &self,
        key: &[u8],
        below: Option<Version>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<HistoryPage> {
        let mut page = HistoryPage::default();
        let mut room = Room { changes: limit, bytes: bytes_max };
        let mut view = match below {
            Some(below) => self.before(below)?,
            None => Some(self.clone()),
        };
        // The oldest of the versions without a record of the key that the walk is passing.
        let mut absent_from: Option<Stamp> = None;
        while let Some(at) = view {
            let found = tree::get(at.store(), at.trees(), at.active_keys(), key)?;
            let change = match found {
                None => {
                    let since = at.unchanged_since(key)?;
                    let before = at.before(since)?;
                    absent_from = Some(at.first_from(since)?);
                    view = before;
                    continue;
                }
                Some(found) => {
                    let removed = absent_from.take().filter(|_| found.is_put());
                    if let Some(stamp) = removed
                        && !page.push(KeyChange { stamp, record: None }, key, &mut room)
                    {
                        return Ok(page);
                    }
                    KeyChange { stamp: found.stamp, record: at.live(found, room.is_left())? }
                }
            };
            view = at.before(change.stamp.version)?;
            // A delete in the oldest version cannot be recognized once earlier versions are pruned.
            let untold = change.record.is_none() && view.is_none();
            if !untold && !page.push(change, key, &mut room) {
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// A version, at most this one, since which the key has not changed in the active tree.
    fn unchanged_since(&self, key: &[u8]) -> Result<Version> {
        let path = self.trees()[0].path(self.store(), key)?;
        // A node with keys on both sides has covered this key since it was made. If the key's
        // record had been removed since, the node would have been replaced.
        let holds = |node: &&Node| match node.search(key) {
            Ok(index) => index > 0,
            // The first child of an inner node may hold keys that are older than the node.
            Err(above) => above > usize::from(node.level() > 0) && above < node.len(),
        };
        let node = path.iter().rev().find(holds);
        let since = match node {
            Some(node) => node.made_at(),
            None => self.same_tree_since()?,
        };
        Ok(since.min(self.row.stamp.version))
    }

    /// The oldest version on this view's line with the same active tree. The root's version does
    /// not show that, since an old node becomes the root when its siblings are removed.
    fn same_tree_since(&self) -> Result<Version> {
        let mut since = self.clone();
        while let Some(before) = since.before(since.row.stamp.version)? {
            if before.trees()[0].id() != self.trees()[0].id() {
                break;
            }
            since = before;
        }
        Ok(since.row.stamp.version)
    }

    /// Stamp of the oldest version on this view's line that is not below `version`. `version` is
    /// not above this view's version.
    fn first_from(&self, version: Version) -> Result<Stamp> {
        let decided = self.line.decided_from(version)?;
        if let Some(first) = decided.filter(|first| first.stamp.version <= self.row.stamp.version) {
            return Ok(first.stamp);
        }
        // The staged versions of the line, which are in the table.
        let mut first: &VersionRecord = &self.row;
        let versions = &self.line.meta.versions;
        while let Some(parent) = versions.get(&first.parent).filter(|parent| parent.stamp.version >= version) {
            if parent.id == first.id {
                break;
            }
            first = parent;
        }
        Ok(first.stamp)
    }

    /// The differences between an older version of the same line and this one, for `low <= key <
    /// high`: the records before and after, in key order.
    ///
    /// # Errors
    /// `NotAncestor`, `Corrupted`, or a failure of the storage.
    pub fn diff(
        &self,
        from: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Result<Vec<(Option<Record>, Option<Record>)>> {
        Ok(self.diff_part(from, low, high, usize::MAX, usize::MAX)?.differences)
    }

    /// Like [`diff`](Self::diff), for at most `limit` keys that versions between the two touched.
    /// The part ends with the key that brings the keys and values read to `bytes_max`.
    ///
    /// # Errors
    /// `NotAncestor`, `Corrupted`, or a failure of the storage.
    ///
    /// # Panics
    /// If the limit is 0.
    pub fn diff_part(
        &self,
        from: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<DiffPage> {
        let touched = self.touched_keys(from, low, high, limit)?;
        let mut page = DiffPage { next: touched.next, ..DiffPage::default() };
        let (mut keys, mut bytes) = (touched.keys.into_iter(), 0);
        while let Some(key) = keys.next() {
            let (before, after) = (from.get(&key, true)?, self.get(&key, true)?);
            bytes += [&before, &after].into_iter().flatten().map(record_bytes).sum::<usize>();
            if before.as_ref().map(|record| record.stamp) != after.as_ref().map(|record| record.stamp) {
                page.differences.push((before, after));
            }
            if bytes >= bytes_max {
                page.next = keys.next().or(page.next);
                break;
            }
        }
        Ok(page)
    }

    /// The first keys, at most `limit`, that versions between `from` and this one touched, for `low
    /// <= key < high`. The records of some may be equal again.
    pub(crate) fn touched_keys(
        &self,
        from: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<TouchedKeys> {
        assert!(limit > 0, "a part has at least one key");
        let found = TouchedKeys { keys: BTreeSet::new(), next: None };
        let mut compare = Compare { store: self.store(), low, high, limit, found };
        for (before, after) in self.lifetimes(from)? {
            compare.trees(&before, &after)?;
        }
        Ok(compare.found)
    }

    /// The active trees between two versions, each as it was in the older version (or empty) and
    /// when it was last active.
    fn lifetimes(&self, from: &View<'_>) -> Result<Vec<(Tree, Tree)>> {
        let (older, newer) = (&from.row, &self.row);
        let mut newest_of: Vec<Row<'_>> = vec![newer.clone()];
        let mut at = self.clone();
        while at.row.id != older.id {
            let not_ancestor = Error::NotAncestor { from: older.stamp.version, to: newer.stamp.version };
            at = at.before(at.row.stamp.version)?.ok_or(not_ancestor.clone())?;
            if at.row.stamp.version < older.stamp.version {
                return Err(not_ancestor);
            }
            if newest_of.last().is_none_or(|last| last.freezes != at.row.freezes) {
                newest_of.push(at.row.clone());
            }
        }
        let before = |record: &VersionRecord| {
            if record.freezes == older.freezes { older.trees[0].clone() } else { Tree::empty() }
        };
        Ok(newest_of.iter().map(|record| (before(record), record.trees[0].clone())).collect())
    }
}

impl HistoryPage {
    /// Adds a change. Returns `false` if there is no room for it.
    fn push(&mut self, change: KeyChange, key: &[u8], room: &mut Room) -> bool {
        self.more = !room.is_left();
        if !self.more {
            room.changes -= 1;
            room.bytes = room.bytes.saturating_sub(change.record.as_ref().map_or(key.len(), record_bytes));
            self.changes.push(change);
        }
        !self.more
    }
}

/// The remaining limits of a part.
struct Room {
    changes: usize,
    bytes: usize,
}

impl Room {
    fn is_left(&self) -> bool {
        self.changes > 0 && self.bytes > 0
    }
}

/// Bytes of key and value.
fn record_bytes(record: &Record) -> usize {
    record.key.len() + record.value_len as usize
}

/// A part of the keys that versions touched.
pub(crate) struct TouchedKeys {
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// The lowest further key, if the limit cut the list short.
    pub(crate) next: Option<Vec<u8>>,
}

/// The next item on one side of a comparison: a record, or a node with a lower bound of its keys.
enum Item {
    Node { key: Vec<u8>, child: Child, level: u8 },
    Record { key: Vec<u8>, stamp: Stamp },
}

impl Item {
    fn key(&self) -> &[u8] {
        match self {
            Self::Node { key, .. } | Self::Record { key, .. } => key,
        }
    }
}

/// Finds the keys whose records differ between two trees, and reads only nodes that the trees do
/// not share. It stops once it has as many keys as the limit.
struct Compare<'c> {
    store: &'c Store,
    low: &'c [u8],
    high: Option<&'c [u8]>,
    limit: usize,
    found: TouchedKeys,
}

impl Compare<'_> {
    fn trees(&mut self, a: &Tree, b: &Tree) -> Result<()> {
        // The next item of each side is the last of its vector.
        let (mut a, mut b) = (Self::root(a), Self::root(b));
        loop {
            let order = match (a.last(), b.last()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.key().cmp(b.key()),
            };
            let next = if order == Ordering::Greater { &b } else { &a };
            if next.last().is_some_and(|next| self.is_above(next.key())) {
                return Ok(());
            }
            match order {
                Ordering::Less => self.one_sided(&mut a)?,
                Ordering::Greater => self.one_sided(&mut b)?,
                Ordering::Equal => self.both(&mut a, &mut b)?,
            }
        }
    }

    fn root(tree: &Tree) -> Vec<Item> {
        tree.root.into_iter().map(|child| Item::Node { key: Vec::new(), child, level: tree.level }).collect()
    }

    /// Takes an item whose key is on one side only.
    fn one_sided(&mut self, side: &mut Vec<Item>) -> Result<()> {
        match side.pop() {
            Some(Item::Record { key, .. }) => self.differs(key),
            Some(Item::Node { key, child, level }) => self.expand(side, key, &child, level)?,
            None => {}
        }
        Ok(())
    }

    fn both(&mut self, a: &mut Vec<Item>, b: &mut Vec<Item>) -> Result<()> {
        match (a.last(), b.last()) {
            (Some(Item::Node { child: x, level: m, .. }), Some(Item::Node { child: y, level: n, .. })) => {
                let (m, n) = (*m, *n);
                if x.pid == y.pid {
                    a.pop();
                    b.pop();
                    return Ok(());
                }
                if m >= n {
                    self.one_sided(a)?;
                }
                if n >= m {
                    self.one_sided(b)?;
                }
                Ok(())
            }
            (Some(Item::Node { .. }), _) => self.one_sided(a),
            (_, Some(Item::Node { .. })) => self.one_sided(b),
            (Some(Item::Record { stamp: x, .. }), Some(Item::Record { stamp: y, .. })) => {
                let differs = x != y;
                b.pop();
                match a.pop() {
                    Some(Item::Record { key, .. }) if differs => self.differs(key),
                    _ => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether this key and all higher ones are outside of the range.
    fn is_above(&self, key: &[u8]) -> bool {
        let ends = [self.high, self.found.next.as_deref()];
        ends.into_iter().flatten().any(|end| key >= end)
    }

    fn differs(&mut self, key: Vec<u8>) {
        if *key >= *self.low && !self.is_above(&key) {
            self.found.keys.insert(key);
        }
        if self.found.keys.len() > self.limit {
            self.found.next = self.found.keys.pop_last();
        }
    }

    /// Replaces a node by its entries, unless all its keys are below the range.
    fn expand(&self, side: &mut Vec<Item>, separator: Vec<u8>, child: &Child, level: u8) -> Result<()> {
        let below = side.last().is_some_and(|next| next.key() <= self.low);
        if below {
            return Ok(());
        }
        let node = self.store.node(child, level, Class::Young)?;
        for index in (0..node.len()).rev() {
            side.push(match level.checked_sub(1) {
                None => Item::Record { key: node.key(index).to_vec(), stamp: node.record(index).stamp },
                Some(level) => {
                    let key = if index == 0 { separator.clone() } else { node.key(index).to_vec() };
                    Item::Node { key, child: node.child(index), level }
                }
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
