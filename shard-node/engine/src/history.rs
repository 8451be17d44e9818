//! A key through the versions, and the difference of two versions.
//!
//! Both read as many pages as there are changes, not as there are versions or records. History jumps from a record to
//! the version before the record's; where there is no record, a node's own version says how long nothing has changed
//! there. A diff compares trees that share nodes and skips what is shared.

use std::{cmp::Ordering, collections::BTreeSet};

use coppice_types::{Stamp, Version};

use crate::{
    Error, Record, Result, View,
    cache::Class,
    meta::{Tree, VersionRecord},
    node::{Child, Node},
    store::Store,
    tree,
};

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The commit that made it.
    pub stamp: Stamp,
    /// What the key had from then on; none if it was deleted.
    pub record: Option<Record>,
}

/// A part of a key's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// Newest first.
    pub changes: Vec<KeyChange>,
    /// The limit cut the history short.
    pub more: bool,
}

impl<'e> View<'e> {
    /// Changes of a key up to this version, newest first, as far back as versions are retained. The value that the
    /// oldest retained version shows is the last one, even if it was put before.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn history(&self, key: &[u8], limit: usize) -> Result<HistoryPage> {
        let mut page = HistoryPage::default();
        let mut view = Some(*self);
        // Versions in which the key has no record, if the walk is in such a stretch: the oldest of them.
        let mut absent_from: Option<Stamp> = None;
        while let Some(at) = view {
            let found = tree::get(&at.engine.store, at.trees(), at.active_keys(), key)?;
            let change = match found {
                None => {
                    let since = at.unchanged_since(key)?;
                    let before = at.before(since);
                    absent_from = Some(at.first_from(since));
                    view = before;
                    continue;
                }
                Some(found) => {
                    let removed = absent_from.take().filter(|_| found.is_put());
                    if let Some(stamp) = removed
                        && !page.push(KeyChange { stamp, record: None }, limit)
                    {
                        return Ok(page);
                    }
                    KeyChange { stamp: found.stamp, record: at.live(found, true)? }
                }
            };
            view = at.before(change.stamp.version);
            // Whether the oldest version deleted a key can't be told once those before are pruned.
            let untold = change.record.is_none() && view.is_none();
            if !untold && !page.push(change, limit) {
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// A version, not above this one, since which no change of the key has been made in the active tree.
    fn unchanged_since(&self, key: &[u8]) -> Result<Version> {
        let path = self.trees()[0].path(&self.engine.store, key)?;
        // A node that holds keys on both sides has held this one's place since it was made: had the key's record gone
        // since, the node would have been made anew.
        let holds = |node: &&Node| match node.search(key) {
            Ok(index) => index > 0,
            // The first child of an inner node may have keys from before the node.
            Err(above) => above > usize::from(node.level() > 0) && above < node.len(),
        };
        let node = path.iter().rev().find(holds);
        Ok(node.map_or_else(|| self.same_tree_since(), Node::made_at).min(self.record.stamp.version))
    }

    /// The oldest version on this view's line that has its active tree. The root's own version would not say it: a node that is left
    /// alone becomes the root without being made anew.
    fn same_tree_since(&self) -> Version {
        let mut since = *self;
        while let Some(before) = since.before(since.record.stamp.version) {
            if before.trees()[0].id() != self.trees()[0].id() {
                break;
            }
            since = before;
        }
        since.record.stamp.version
    }

    /// Stamp of the oldest version on this view's line that is not below `version`, which is not above this view's.
    fn first_from(&self, version: Version) -> Stamp {
        let meta = &self.engine.meta;
        let decided = meta.decided.range(version..).next().map(|(_, id)| &meta.versions[id]);
        if let Some(first) = decided.filter(|first| first.stamp.version <= self.record.stamp.version) {
            return first.stamp;
        }
        let mut first = self.record;
        while let Some(parent) = meta.versions.get(&first.parent).filter(|parent| parent.stamp.version >= version) {
            if parent.id == first.id {
                break;
            }
            first = parent;
        }
        first.stamp
    }

    /// What differs between an older version of the same line and this one, for `low <= key < high`: the record before
    /// and the record after, in order of keys.
    ///
    /// # Errors
    /// `NotAncestor`, or what reading pages gives.
    pub fn diff(
        &self,
        from: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Result<Vec<(Option<Record>, Option<Record>)>> {
        let mut out = Vec::new();
        for key in self.touched_keys(from, low, high, usize::MAX)?.keys {
            let (before, after) = (from.get(&key, true)?, self.get(&key, true)?);
            if before.as_ref().map(|record| record.stamp) != after.as_ref().map(|record| record.stamp) {
                out.push((before, after));
            }
        }
        Ok(out)
    }

    /// The first keys, at most `limit`, that versions between an older one of the same line and this one touched, for
    /// `low <= key < high`. The records of some may be equal again.
    pub(crate) fn touched_keys(
        &self,
        from: &View<'_>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<TouchedKeys> {
        assert!(limit > 0, "a part has a key at least");
        let found = TouchedKeys { keys: BTreeSet::new(), next: None };
        let mut compare = Compare { store: &self.engine.store, low, high, limit, found };
        for (before, after) in self.lifetimes(from)? {
            compare.trees(&before, &after)?;
        }
        Ok(compare.found)
    }

    /// The active trees between two versions: of each, as it was at the older version (or empty) and when it was last
    /// active.
    fn lifetimes(&self, from: &View<'_>) -> Result<Vec<(Tree, Tree)>> {
        let (older, newer) = (from.record, self.record);
        let mut newest_of: Vec<&VersionRecord> = vec![newer];
        let mut at = *self;
        while at.record.id != older.id {
            let not_ancestor = Error::NotAncestor { from: older.stamp.version, to: newer.stamp.version };
            at = at.before(at.record.stamp.version).ok_or(not_ancestor.clone())?;
            if at.record.stamp.version < older.stamp.version {
                return Err(not_ancestor);
            }
            if newest_of.last().is_none_or(|last| last.freezes != at.record.freezes) {
                newest_of.push(at.record);
            }
        }
        let before = |record: &VersionRecord| {
            if record.freezes == older.freezes { older.trees[0].clone() } else { Tree::empty() }
        };
        Ok(newest_of.iter().map(|record| (before(record), record.trees[0].clone())).collect())
    }
}

impl HistoryPage {
    /// False if the limit is reached.
    fn push(&mut self, change: KeyChange, limit: usize) -> bool {
        self.more = self.changes.len() >= limit;
        if !self.more {
            self.changes.push(change);
        }
        !self.more
    }
}

/// A part of the keys that versions touched.
pub(crate) struct TouchedKeys {
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// The limit cut them short; this is the lowest of the others.
    pub(crate) next: Option<Vec<u8>>,
}

/// What comes next on one side of a comparison: a record, or a node with a bound that no key in it is below.
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

/// Finds the keys that two trees disagree on, and reads only nodes that they do not share. It ends where as many keys as it may hold
/// are below.
struct Compare<'c> {
    store: &'c Store,
    low: &'c [u8],
    high: Option<&'c [u8]>,
    limit: usize,
    found: TouchedKeys,
}

impl Compare<'_> {
    fn trees(&mut self, a: &Tree, b: &Tree) -> Result<()> {
        // The next item of each side is the last one.
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

    /// The lowest key is on one side only.
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

    /// Neither this key nor a higher one is of interest.
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

    /// Puts a node's entries in its place, unless no key of the range is among them.
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
