//! Applying a batch of changes to the active tree (`docs/verification.md` section 4): in key order, depth first, each
//! node touched once.
//!
//! No node is changed in place. The nodes on the way to a change are made anew and their predecessors pended; a failure
//! leaves the old tree as it was, and the caller gives back what the delta has allocated.

use std::borrow::Cow;

use coppice_types::{Params, Version};
use coppice_verify::rules;

use crate::{
    Result,
    cache::Class,
    meta::{Delta, Meta, Tree},
    node::{Body, Child, Draft, LeafRecord, Node},
    store::Store,
    values,
};

/// What becomes of one key of the active tree.
#[derive(Clone, Debug)]
pub(crate) enum TreeChange<'a> {
    /// The record, a put or a tombstone, replaces or joins.
    Upsert(LeafRecord<'a>),
    /// The record, which exists, goes.
    Remove(&'a [u8]),
}

impl TreeChange<'_> {
    fn key(&self) -> &[u8] {
        match self {
            Self::Upsert(record) => record.key,
            Self::Remove(key) => key,
        }
    }
}

/// A child with its separator.
type Entry<'a> = (Cow<'a, [u8]>, Child);

/// Makes the nodes of one version.
pub(crate) struct Applier<'e> {
    pub(crate) store: &'e mut Store,
    pub(crate) meta: &'e mut Meta,
    pub(crate) params: &'e Params,
    pub(crate) version: Version,
    pub(crate) delta: &'e mut Delta,
}

impl Applier<'_> {
    /// The tree after the changes, which ascend by key.
    pub(crate) fn apply(&mut self, tree: &Tree, changes: &[TreeChange<'_>]) -> Result<Tree> {
        assert!(tree.filter.is_none(), "frozen trees never change");
        assert!(changes.is_sorted_by(|a, b| a.key() < b.key()));
        if changes.is_empty() {
            return Ok(tree.clone());
        }
        let mut entries = tree.entries;
        let mut level = tree.level;
        let mut list = match tree.root {
            None => self.apply_leaf(None, changes, &mut entries)?,
            Some(root) => self.apply_node(root, level, changes, &mut entries)?,
        };
        while list.len() > 1 {
            level = level.checked_add(1).expect("a tree is far lower than 255 levels");
            list = self.make_inner(level, list);
        }
        let Some((_, mut root)) = list.pop() else { return Ok(Tree::empty()) };
        while level > 0 {
            let node = self.store.node(&root, level, Class::Young)?;
            if node.len() > 1 {
                break;
            }
            self.retire(root);
            root = node.child(0);
            level -= 1;
        }
        Ok(Tree::new(Some(root), level, entries, None))
    }

    /// A node that the new tree does not use: never made if it is new, else pended.
    fn retire(&mut self, child: Child) {
        match self.delta.allocated.iter().rposition(|pid| *pid == child.pid) {
            Some(at) => {
                self.delta.allocated.swap_remove(at);
                self.meta.discard(child.pid);
                self.store.forget(&self.meta.take_freed());
            }
            None => self.delta.pended.push(child.pid),
        }
    }

    fn apply_node(
        &mut self,
        child: Child,
        level: u8,
        changes: &[TreeChange<'_>],
        entries: &mut u64,
    ) -> Result<Vec<Entry<'static>>> {
        let node = self.store.node(&child, level, Class::Young)?;
        self.delta.pended.push(child.pid);
        if level == 0 {
            self.apply_leaf(Some(&node), changes, entries)
        } else {
            self.apply_inner(&node, changes, entries)
        }
    }

    fn apply_inner(
        &mut self,
        node: &Node,
        mut changes: &[TreeChange<'_>],
        entries: &mut u64,
    ) -> Result<Vec<Entry<'static>>> {
        let mut list: Vec<Entry<'_>> = Vec::with_capacity(node.len() + 1);
        for index in 0..node.len() {
            let mine = if index + 1 < node.len() {
                let next = node.key(index + 1);
                changes.partition_point(|change| change.key() < next)
            } else {
                changes.len()
            };
            let (mine, later) = changes.split_at(mine);
            changes = later;
            if mine.is_empty() {
                list.push((Cow::Borrowed(node.key(index)), node.child(index)));
            } else {
                list.extend(self.apply_node(node.child(index), node.level() - 1, mine, entries)?);
            }
        }
        Ok(self.make_inner(node.level(), list))
    }

    fn make_inner(&mut self, level: u8, list: Vec<Entry<'_>>) -> Vec<Entry<'static>> {
        let weights: Vec<u32> = list.iter().map(|(key, _)| rules::entry_weight(self.params, key.len())).collect();
        let pieces = rules::split(self.params, &weights);
        pieces
            .into_iter()
            .map(|piece| {
                let entries = &list[piece];
                let draft = Draft::inner(self.version, level, entries);
                let child = self.store.add_node(self.meta, self.delta, draft, Class::Young);
                (Cow::Owned(entries[0].0.to_vec()), child)
            })
            .collect()
    }

    fn apply_leaf(
        &mut self,
        node: Option<&Node>,
        changes: &[TreeChange<'_>],
        entries: &mut u64,
    ) -> Result<Vec<Entry<'static>>> {
        let old_len = node.map_or(0, Node::len);
        let mut records: Vec<LeafRecord<'_>> = Vec::with_capacity(old_len + changes.len());
        let mut old = (0..old_len).filter_map(|index| node.map(|node| node.record(index))).peekable();
        for change in changes {
            while let Some(record) = old.next_if(|record| record.key < change.key()) {
                records.push(record);
            }
            let replaced = old.next_if(|record| record.key == change.key());
            if let Some(LeafRecord { body: Body::Stored { len, at, .. }, .. }) = replaced {
                self.delta.pend_value(at.segment, values::record_bytes(len));
            }
            match change {
                TreeChange::Upsert(record) => {
                    records.push(*record);
                    *entries += u64::from(replaced.is_none());
                }
                TreeChange::Remove(_) => {
                    assert!(replaced.is_some(), "only records that exist are removed");
                    *entries -= 1;
                }
            }
        }
        records.extend(old);
        let weight =
            |record: &LeafRecord<'_>| rules::record_weight(self.params, record.key.len(), record.body.value_len());
        let weights: Vec<u32> = records.iter().map(weight).collect();
        let pieces = rules::split(self.params, &weights);
        let mut made = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let draft = Draft::leaf(self.version, &records[piece.clone()]);
            let child = self.store.add_node(self.meta, self.delta, draft, Class::Young);
            made.push((Cow::Owned(records[piece.start].key.to_vec()), child));
        }
        Ok(made)
    }
}
