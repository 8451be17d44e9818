//! A multi-version Merkle B+-tree: copy-on-write, split when full.
//!
//! This is the baseline: its shape depends on the order of changes, so two histories of one content
//! share little. A batch is applied depth first, touching each node once. A node that is too large
//! is cut into as few even pieces as possible; one that becomes empty is removed. There is no other
//! rebalancing, as in the engine's trees.

use coppice_types::Digest;

use crate::{
    Result,
    entries::{self, Entry, NODE_BYTES},
    store::{Nodes, Store},
    structure::{Change, Item, Structure},
};

#[derive(Clone, Copy, Debug, Default)]
pub struct BPlusTree;

impl Structure for BPlusTree {
    fn name(&self) -> &'static str {
        "MVMB+-tree"
    }

    fn is_canonical(&self) -> bool {
        false
    }

    fn empty(&self, store: &mut Store) -> Digest {
        entries::put(store, 0, &[])
    }

    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>> {
        entries::get(nodes, root, key)
    }

    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest> {
        if changes.is_empty() {
            return Ok(*root);
        }
        let mut level = entries::level(store.node(root)?);
        let mut top = apply(store, root, changes)?;
        while top.len() > 1 {
            level += 1;
            top = split(store, level, top);
        }
        let Some(top) = top.pop() else { return Ok(self.empty(store)) };
        only_child(store, entries::name(&top.body)?)
    }

    fn expand(&self, _: &[u8], node: &[u8]) -> Result<Vec<Item>> {
        entries::expand(node)
    }

    fn level(&self, node: &[u8]) -> u8 {
        entries::level(node)
    }
}

/// Applies changes to a node; returns the nodes of the same level that replace it.
fn apply(store: &mut Store, name: &Digest, mut changes: &[Change]) -> Result<Vec<Entry>> {
    let node = store.node(name)?;
    let level = entries::level(node);
    let children = entries::read(node)?;
    if level == 0 {
        return Ok(split(store, 0, entries::merge(children, changes)));
    }
    let mut replaced = Vec::with_capacity(children.len());
    let mut children = children.into_iter().peekable();
    while let Some(child) = children.next() {
        let until = match children.peek() {
            Some(next) => changes.partition_point(|change| change.key < next.key),
            None => changes.len(),
        };
        let (own, rest) = changes.split_at(until);
        changes = rest;
        if own.is_empty() {
            replaced.push(child);
        } else {
            replaced.extend(apply(store, &entries::name(&child.body)?, own)?);
        }
    }
    Ok(split(store, level, replaced))
}

/// Entries as nodes: one, or as few even pieces as possible.
fn split(store: &mut Store, level: u8, all: Vec<Entry>) -> Vec<Entry> {
    let total: usize = all.iter().map(|entry| entry.bytes(level)).sum();
    let pieces = total.div_ceil(NODE_BYTES).max(1);
    let mut nodes = Vec::with_capacity(pieces);
    let (mut before, mut start) = (0, 0);
    for (at, entry) in all.iter().enumerate() {
        // The piece of an entry follows from the bytes before it.
        let piece = before * pieces / total;
        let next = (before + entry.bytes(level)) * pieces / total;
        before += entry.bytes(level);
        if next > piece || at + 1 == all.len() {
            let name = entries::put(store, level, &all[start..=at]);
            nodes.push(Entry::child(all[start].key.clone(), &name));
            start = at + 1;
        }
    }
    nodes
}

/// The highest node that has more than one child, or none.
pub(crate) fn only_child(store: &Store, mut name: Digest) -> Result<Digest> {
    loop {
        let node = store.node(&name)?;
        if entries::level(node) == 0 {
            return Ok(name);
        }
        let mut children = entries::Entries::of(node)?;
        match (children.next(), children.next()) {
            (Some(only), None) => name = entries::name(only?.1)?,
            _ => return Ok(name),
        }
    }
}
