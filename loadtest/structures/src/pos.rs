//! A POS-tree (pattern-oriented split, of ForkBase): the content determines where nodes end.
//!
//! A node ends after an entry whose fingerprint has a pattern, or when it has [`NODE_BYTES_MAX`]
//! bytes. The nodes of a level therefore follow from its entries alone, read from first to last,
//! and all nodes of a version follow from its records. The fingerprint of an entry is XXH3 of its
//! bytes. The study uses a rolling window over the bytes, which costs more and ends nodes at the
//! same rate.
//!
//! A change starts at the beginning of the first node that it touches, and continues until a node
//! ends where an old one ended: from there on nothing differs. The removed and added nodes are the
//! changes of the level above.

use std::collections::BTreeMap;

use coppice_types::Digest;
use twox_hash::XxHash3_64;

use crate::{
    Error, Result,
    bplus::only_child,
    entries::{self, Entries, Entry, NODE_BYTES},
    store::{Nodes, Store},
    structure::{Change, Item, Structure},
};

/// A node ends when it has reached this size; the entry that reaches it is the last.
const NODE_BYTES_MAX: usize = 4 * NODE_BYTES;

#[derive(Clone, Copy, Debug, Default)]
pub struct PosTree;

impl Structure for PosTree {
    fn name(&self) -> &'static str {
        "POS-tree"
    }

    fn is_canonical(&self) -> bool {
        true
    }

    fn empty(&self, store: &mut Store) -> Digest {
        entries::put(store, 0, &[])
    }

    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>> {
        entries::get(nodes, root, key)
    }

    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest> {
        let top = entries::level(store.node(root)?);
        let mut changes = changes.to_vec();
        for level in 0..=top {
            if changes.is_empty() {
                return Ok(*root);
            }
            let Moved { gone, made } = edit(store, root, level, &changes)?;
            if level == top {
                return build(store, level, made);
            }
            changes = against(gone, made);
        }
        Err(Error::Malformed("level"))
    }

    fn expand(&self, _: &[u8], node: &[u8]) -> Result<Vec<Item>> {
        entries::expand(node)
    }

    fn level(&self, node: &[u8]) -> u8 {
        entries::level(node)
    }
}

/// The effect of a change on the nodes of one level.
#[derive(Default)]
struct Moved {
    gone: Vec<Entry>,
    made: Vec<Entry>,
}

/// Turns removed and added nodes into changes of the level above.
fn against(gone: Vec<Entry>, made: Vec<Entry>) -> Vec<Change> {
    let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = gone.iter().map(|entry| (entry.key.clone(), None)).collect();
    changes.extend(made.into_iter().map(|entry| (entry.key, Some(entry.body))));
    for entry in gone {
        if changes.get(&entry.key).is_some_and(|now| now.as_ref() == Some(&entry.body)) {
            changes.remove(&entry.key);
        }
    }
    changes.into_iter().map(|(key, payload)| Change { key, payload }).collect()
}

/// A node, with its place in its level.
struct Place {
    node: Entry,
    entries: Vec<Entry>,
    /// The lowest key of the next node of the level.
    next: Option<Vec<u8>>,
}

/// The node of a level that a key belongs to.
fn place(store: &Store, root: &Digest, level: u8, key: &[u8]) -> Result<Place> {
    let (mut name, mut next) = (*root, None);
    loop {
        let node = store.node(&name)?;
        if entries::level(node) <= level {
            let entries = entries::read(node)?;
            let low = entries.first().map(|entry| entry.key.clone()).unwrap_or_default();
            return Ok(Place { node: Entry::child(low, &name), entries, next });
        }
        let mut child = None;
        for entry in Entries::of(node)? {
            let (low, body) = entry?;
            if child.is_some() && low > key {
                next = Some(low.to_vec());
                break;
            }
            child = Some(body);
        }
        name = entries::name(child.ok_or(Error::Malformed("an inner node without children"))?)?;
    }
}

fn edit(store: &mut Store, root: &Digest, level: u8, mut changes: &[Change]) -> Result<Moved> {
    let mut moved = Moved::default();
    while let Some(first) = changes.first() {
        let mut at = place(store, root, level, &first.key)?;
        let mut chunk = Chunk::new(level);
        loop {
            let until = match &at.next {
                Some(next) => changes.partition_point(|change| change.key < *next),
                None => changes.len(),
            };
            let (own, rest) = changes.split_at(until);
            changes = rest;
            if !at.entries.is_empty() {
                moved.gone.push(at.node);
            }
            for entry in entries::merge(at.entries, own) {
                moved.made.extend(chunk.push(store, entry));
            }
            match at.next {
                Some(next) if !chunk.entries.is_empty() => at = place(store, root, level, &next)?,
                _ => break,
            }
        }
        moved.made.extend(chunk.end(store));
    }
    Ok(moved)
}

/// Builds the levels above, and returns the root.
fn build(store: &mut Store, mut level: u8, mut nodes: Vec<Entry>) -> Result<Digest> {
    while nodes.len() > 1 {
        level += 1;
        let mut chunk = Chunk::new(level);
        let mut above = Vec::new();
        for node in nodes {
            above.extend(chunk.push(store, node));
        }
        above.extend(chunk.end(store));
        nodes = above;
    }
    match nodes.pop() {
        Some(root) => only_child(store, entries::name(&root.body)?),
        None => Ok(entries::put(store, 0, &[])),
    }
}

/// A node that is being built.
struct Chunk {
    level: u8,
    bytes: usize,
    entries: Vec<Entry>,
}

impl Chunk {
    fn new(level: u8) -> Self {
        Self { level, bytes: 0, entries: Vec::new() }
    }

    /// Adds an entry; returns the node if the entry ends it.
    fn push(&mut self, store: &mut Store, entry: Entry) -> Option<Entry> {
        let bytes = entry.bytes(self.level);
        let ends = ends_node(self.level, &entry);
        self.bytes += bytes;
        self.entries.push(entry);
        // An inner node has at least two children; otherwise levels would not end.
        let ends = (ends && (self.level == 0 || self.entries.len() > 1)) || self.bytes >= NODE_BYTES_MAX;
        if ends { self.end(store) } else { None }
    }

    fn end(&mut self, store: &mut Store) -> Option<Entry> {
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        let low = entries.first()?.key.clone();
        let name = entries::put(store, self.level, &entries);
        Some(Entry::child(low, &name))
    }
}

/// Whether a node ends here by the pattern. The probability of the pattern is the entry's share of
/// the bytes of a node.
fn ends_node(level: u8, entry: &Entry) -> bool {
    let mut bytes = Vec::with_capacity(entry.bytes(level));
    entry.encode(level, &mut bytes);
    let share = u64::MAX / NODE_BYTES as u64 * bytes.len().min(NODE_BYTES) as u64;
    XxHash3_64::oneshot(&bytes) < share
}
