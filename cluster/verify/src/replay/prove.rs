//! A naive prover of one shard. It shows what `docs/verification.md` section 13 asks for, and no
//! more.

use alloc::{borrow::Cow, collections::BTreeSet, vec::Vec};

use super::{
    forest::Forest,
    tree::{Node, Tree},
};
use crate::{
    merkle,
    proof::{self, Entry, NodePart, Subtree, TreeList},
};

impl Forest {
    /// The list of trees that answers these keys, which ascend.
    #[must_use]
    pub fn prove_keys(&self, keys: &[&[u8]]) -> TreeList<'static> {
        let mut open: Vec<&[u8]> = keys.to_vec();
        let mut trees = Vec::new();
        for tree in self.trees() {
            trees.push(shown(tree, (!open.is_empty()).then(|| part_for_keys(&tree.root, &open))));
            open.retain(|key| !holds(&tree.root, key));
        }
        TreeList { trees }
    }

    /// The list of trees that answers the range `low <= key < high`.
    #[must_use]
    pub fn prove_range(&self, low: &[u8], high: Option<&[u8]>) -> TreeList<'static> {
        let trees = self.trees();
        TreeList { trees: trees.iter().map(|tree| shown(tree, Some(part_for_range(&tree.root, low, high)))).collect() }
    }
}

/// A tree that shows the given part. Without a part, and if the tree is empty, only its hash is
/// shown.
fn shown(tree: &Tree, part: Option<NodePart<'static>>) -> proof::Tree<'static> {
    let entries = tree.records().len() as u64;
    let root = match part {
        Some(part) if entries > 0 => Subtree::Expanded(part),
        _ => Subtree::Hash(tree.root.hash()),
    };
    proof::Tree { level: tree.root.level(), entries, root }
}

fn holds(node: &Node, key: &[u8]) -> bool {
    match node {
        Node::Leaf(records) => records.iter().any(|record| record.key == key),
        Node::Inner { entries, .. } => entries.iter().any(|(_, child)| holds(child, key)),
    }
}

fn ends_below(node: &Node, key: &[u8]) -> bool {
    match node {
        Node::Leaf(records) => records.iter().all(|record| *record.key < *key),
        Node::Inner { entries, .. } => entries.iter().all(|(_, child)| ends_below(child, key)),
    }
}

fn part_for_keys(node: &Node, keys: &[&[u8]]) -> NodePart<'static> {
    let mut revealed = BTreeSet::new();
    let mut expanded: Vec<Vec<&[u8]>> = Vec::new();
    let separators = keys_of(node);
    expanded.resize(separators.len(), Vec::new());
    for key in keys {
        let after = separators.iter().filter(|separator| **separator <= *key).count();
        if let Some(at) = after.checked_sub(1) {
            revealed.insert(at);
            expanded[at].push(key);
        }
        // In a leaf, the neighbouring record above the key shows that the key is absent. In an
        // inner node, the next entry does if the child ends below the key.
        let open_above = match node {
            Node::Leaf(_) => !holds(node, key),
            Node::Inner { entries, .. } => after.checked_sub(1).is_some_and(|at| ends_below(&entries[at].1, key)),
        };
        if open_above && after < separators.len() {
            revealed.insert(after);
        }
    }
    part(node, &revealed, |index, child| {
        let keys = &expanded[index];
        if keys.is_empty() { Subtree::Hash(child.hash()) } else { Subtree::Expanded(part_for_keys(child, keys)) }
    })
}

fn part_for_range(node: &Node, low: &[u8], high: Option<&[u8]>) -> NodePart<'static> {
    let separators = keys_of(node);
    let start = separators.iter().filter(|separator| **separator <= low).count().saturating_sub(1);
    let end = separators.iter().filter(|separator| high.is_none_or(|high| **separator < high)).count();
    let last = end.min(separators.len().saturating_sub(1));
    let revealed = (start..=last).filter(|index| *index < separators.len()).collect();
    part(node, &revealed, |index, child| {
        if index < end { Subtree::Expanded(part_for_range(child, low, high)) } else { Subtree::Hash(child.hash()) }
    })
}

fn keys_of(node: &Node) -> Vec<&[u8]> {
    match node {
        Node::Leaf(records) => records.iter().map(|record| record.key.as_slice()).collect(),
        Node::Inner { entries, .. } => entries.iter().map(|(separator, _)| separator.as_slice()).collect(),
    }
}

/// A node part with these entries, whose children `show` provides. Tests use it for provers that
/// lie.
pub fn part(
    node: &Node,
    revealed: &BTreeSet<usize>,
    mut show: impl FnMut(usize, &Node) -> Subtree<'static>,
) -> NodePart<'static> {
    let mut entry = |index: usize| match node {
        Node::Leaf(records) => {
            let record = &records[index];
            Entry::Record { key: Cow::Owned(record.key.clone()), stamp: record.stamp, body: record.body }
        }
        Node::Inner { entries, .. } => {
            let (separator, child) = &entries[index];
            Entry::Child { separator: Cow::Owned(separator.clone()), child: show(index, child) }
        }
    };
    let indices: Vec<u64> = revealed.iter().map(|index| *index as u64).collect();
    let hashes = node.entry_hashes();
    NodePart {
        count: hashes.len() as u16,
        entries: revealed.iter().map(|index| (*index as u16, entry(*index))).collect(),
        hashes: merkle::list_proof(&hashes, &indices),
    }
}
