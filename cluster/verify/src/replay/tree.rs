//! One tree, as `docs/verification.md` section 4 describes it.

use alloc::{vec, vec::Vec};

use coppice_types::{Digest, Params, Stamp};

use crate::{
    hash::{self, RecordBody},
    rules,
};

/// The newest change of one key in one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// Stamp of the commit that made the change.
    pub stamp: Stamp,
    /// The value's length and hash, or a tombstone.
    pub body: RecordBody,
}

/// A change of one key in the active tree.
#[derive(Clone, Debug)]
pub enum Change {
    /// A put or tombstone, which replaces the key's record or adds one.
    Set(Record),
    /// Removes the key's record.
    Remove,
}

/// A node with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A node at level 0: its records in key order.
    Leaf(Vec<Record>),
    /// A node at level 1 or above.
    Inner {
        /// Level of the node.
        level: u8,
        /// Children with their separators, in order. The first separator is empty.
        entries: Vec<(Vec<u8>, Node)>,
    },
}

/// A Merkle B+-tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The root.
    pub root: Node,
}

impl Node {
    /// Level of the node; 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        match self {
            Self::Leaf(_) => 0,
            Self::Inner { level, .. } => *level,
        }
    }

    /// Hashes of the node's entries.
    #[must_use]
    pub fn entry_hashes(&self) -> Vec<Digest> {
        match self {
            Self::Leaf(records) => {
                records.iter().map(|record| hash::record_hash(&record.key, record.stamp, &record.body)).collect()
            }
            Self::Inner { entries, .. } => {
                entries.iter().map(|(separator, child)| hash::entry_hash(separator, &child.hash())).collect()
            }
        }
    }

    /// The node hash.
    #[must_use]
    pub fn hash(&self) -> Digest {
        match self {
            Self::Leaf(_) => hash::leaf_node_hash(&self.entry_hashes()),
            Self::Inner { level, .. } => hash::inner_node_hash(*level, &self.entry_hashes()),
        }
    }

    fn collect<'a>(&'a self, out: &mut Vec<&'a Record>) {
        match self {
            Self::Leaf(records) => out.extend(records),
            Self::Inner { entries, .. } => entries.iter().for_each(|(_, child)| child.collect(out)),
        }
    }

    /// The nodes that replace this one after the changes, each with its separator. That of the
    /// first is empty.
    fn apply(&self, params: &Params, changes: &[(Vec<u8>, Change)]) -> Vec<Named> {
        match self {
            Self::Leaf(records) => {
                let mut records = records.clone();
                for (key, change) in changes {
                    records.retain(|record| record.key != *key);
                    if let Change::Set(record) = change {
                        records.push(record.clone());
                    }
                }
                records.sort_by(|a, b| a.key.cmp(&b.key));
                leaves(params, &records, rules::split)
            }
            Self::Inner { level, entries } => {
                let mut next = Vec::new();
                for (index, (separator, child)) in entries.iter().enumerate() {
                    // A change goes to the last child whose separator is not above its key.
                    let goes_here = |key: &Vec<u8>| {
                        let after = entries.get(index + 1).is_none_or(|(next, _)| key < next);
                        separator <= key && after
                    };
                    let own: Vec<_> = changes.iter().filter(|(key, _)| goes_here(key)).cloned().collect();
                    if own.is_empty() {
                        next.push((separator.clone(), child.clone()));
                        continue;
                    }
                    let mut nodes = child.apply(params, &own);
                    if let Some((first, _)) = nodes.first_mut() {
                        first.clone_from(separator);
                    }
                    next.extend(nodes);
                }
                inner(params, *level, next, rules::split)
            }
        }
    }
}

impl Tree {
    /// The empty tree.
    #[must_use]
    pub fn empty() -> Self {
        Self { root: Node::Leaf(Vec::new()) }
    }

    /// All records in key order, tombstones included.
    #[must_use]
    pub fn records(&self) -> Vec<&Record> {
        let mut out = Vec::new();
        self.root.collect(&mut out);
        out
    }

    /// The tree digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        hash::tree_digest(self.root.level(), self.records().len() as u64, &self.root.hash())
    }

    /// The tree after these changes, which ascend by key, one for each key.
    #[must_use]
    pub fn apply(&self, params: &Params, changes: &[(Vec<u8>, Change)]) -> Self {
        let mut nodes = self.root.apply(params, changes);
        while nodes.len() > 1 {
            nodes = level_above(params, nodes, rules::split);
        }
        let mut root = nodes.pop().map_or(Node::Leaf(Vec::new()), |(_, root)| root);
        while let Node::Inner { entries, .. } = &mut root {
            if entries.len() > 1 {
                break;
            }
            root = entries.remove(0).1;
        }
        Self { root }
    }

    /// The packing of these records, which are in key order.
    #[must_use]
    pub fn pack(params: &Params, records: Vec<Record>) -> Self {
        let mut nodes = leaves(params, &records, rules::pack);
        while nodes.len() > 1 {
            nodes = level_above(params, nodes, rules::pack);
        }
        Self { root: nodes.pop().map_or(Node::Leaf(vec![]), |(_, root)| root) }
    }
}

/// A node with its separator.
type Named = (Vec<u8>, Node);

type Cut = fn(&Params, &[u32]) -> Vec<core::ops::Range<usize>>;

fn leaves(params: &Params, records: &[Record], cut: Cut) -> Vec<Named> {
    let weigh = |record: &Record| rules::record_weight(params, record.key.len(), record.body.value_len());
    let pieces = cut(params, &records.iter().map(weigh).collect::<Vec<_>>());
    let leaf = |piece: core::ops::Range<usize>| {
        let before = piece.start.checked_sub(1).map(|before| &records[before].key);
        let separator = before.map_or(&[][..], |before| rules::separator(before, &records[piece.start].key));
        (separator.to_vec(), Node::Leaf(records[piece].to_vec()))
    };
    pieces.into_iter().map(leaf).collect()
}

/// Inner nodes over these children. The separator of a node's first child becomes the node's own.
fn inner(params: &Params, level: u8, mut entries: Vec<Named>, cut: Cut) -> Vec<Named> {
    if let Some((first, _)) = entries.first_mut() {
        first.clear();
    }
    let weights: Vec<u32> = entries.iter().map(|(separator, _)| rules::entry_weight(params, separator.len())).collect();
    let node = |piece: core::ops::Range<usize>| {
        let mut entries = entries[piece].to_vec();
        let separator = core::mem::take(&mut entries[0].0);
        (separator, Node::Inner { level, entries })
    };
    cut(params, &weights).into_iter().map(node).collect()
}

fn level_above(params: &Params, nodes: Vec<Named>, cut: Cut) -> Vec<Named> {
    inner(params, nodes[0].1.level() + 1, nodes, cut)
}
