//! Proofs of a version's records: the `list of trees` of `docs/verification.md` section 12.
//!
//! For keys, the trees are visited from the youngest to the oldest, and each proves the keys that
//! no younger one has answered. For ranges, every tree proves all its records in the range. A node
//! part reveals exactly what the verifier's walk (section 13) needs.

use std::borrow::Cow;

use coppice_verify::proof::{Entry, NodePart, Subtree, Tree as TreePart, TreeList};

use crate::{
    Error, Result,
    cache::Class,
    meta::Tree,
    node::{Child, Node},
    read::view::View,
    store::Store,
};

impl View<'_> {
    /// Proves the records of keys, or their absence. The keys ascend, each occurs once.
    ///
    /// # Errors
    /// `Invalid` keys, `Corrupted`, or a failure of the storage.
    pub fn prove_keys(&self, keys: &[&[u8]]) -> Result<Vec<u8>> {
        if keys.is_empty() || !keys.is_sorted_by(|a, b| a < b) {
            return Err(Error::Invalid("keys to prove must ascend"));
        }
        let mut open: Vec<&[u8]> = keys.to_vec();
        let mut trees = Vec::with_capacity(self.trees().len());
        for tree in self.trees() {
            let root = match tree.root {
                Some(root) if !open.is_empty() => {
                    let mut absent = Vec::with_capacity(open.len());
                    let (part, _) = self.walk(tree).keys(&root, tree.level, &open, &mut absent)?;
                    open = absent;
                    Subtree::Expanded(part)
                }
                _ => Subtree::Hash(tree.root_hash()),
            };
            trees.push(TreePart { level: tree.level, entries: tree.entries, root });
        }
        Ok(TreeList { trees }.encode())
    }

    /// Proves all records with `low <= key < high`. If a limit cut a read short, its range ends
    /// with the last record's key followed by a zero byte.
    ///
    /// # Errors
    /// An `Invalid` range, `Corrupted`, or a failure of the storage.
    pub fn prove_range(&self, low: &[u8], high: Option<&[u8]>) -> Result<Vec<u8>> {
        if high.is_some_and(|high| low >= high) {
            return Err(Error::Invalid("a range must end above its start"));
        }
        let mut trees = Vec::with_capacity(self.trees().len());
        for tree in self.trees() {
            let root = match tree.root {
                Some(root) => Subtree::Expanded(self.walk(tree).range(&root, tree.level, low, high)?),
                None => Subtree::Hash(tree.root_hash()),
            };
            trees.push(TreePart { level: tree.level, entries: tree.entries, root });
        }
        Ok(TreeList { trees }.encode())
    }

    fn walk(&self, tree: &Tree) -> Walk<'_> {
        Walk { store: self.store(), class: tree.class() }
    }
}

/// A walk from a root to the leaves that a proof reveals.
struct Walk<'s> {
    store: &'s Store,
    class: Class,
}

/// Revealed entries by ascending index.
pub(super) type Revealed = Vec<(u16, Entry<'static>)>;

impl Walk<'_> {
    /// The part of a node that answers these keys, which ascend. Absent keys are added to `absent`,
    /// in order. Returns `true` if the last key is above all keys of the node; the following entry
    /// must then be revealed to prove its absence.
    fn keys<'k>(
        &self,
        child: &Child,
        level: u8,
        keys: &[&'k [u8]],
        absent: &mut Vec<&'k [u8]>,
    ) -> Result<(NodePart<'static>, bool)> {
        let node = self.store.node(child, level, self.class)?;
        let (revealed, open) =
            if level == 0 { leaf_keys(&node, keys, absent) } else { self.inner_keys(&node, keys, absent)? };
        Ok((self.part(child, &node, revealed), open))
    }

    fn inner_keys<'k>(
        &self,
        node: &Node,
        mut keys: &[&'k [u8]],
        absent: &mut Vec<&'k [u8]>,
    ) -> Result<(Revealed, bool)> {
        let mut revealed = Revealed::with_capacity(2);
        // The index of the entry after an open end. It is revealed with a bare hash, unless it is
        // expanded for other keys.
        let mut open = None;
        while let Some(key) = keys.first() {
            let index = node.child_of(key);
            let next = index + 1;
            let (mine, above) = keys.split_at(match next < node.len() {
                true => keys.partition_point(|key| *key < node.key(next)),
                false => keys.len(),
            });
            keys = above;
            revealed.extend(open.take().filter(|open| *open < index).map(|open| unexpanded(node, open)));
            let (part, is_open) = self.keys(&node.child(index), node.level() - 1, mine, absent)?;
            revealed.push(child_entry(node, index, Subtree::Expanded(part)));
            open = is_open.then_some(next);
        }
        let last = open == Some(node.len());
        revealed.extend(open.filter(|_| !last).map(|open| unexpanded(node, open)));
        Ok((revealed, last))
    }

    /// The part of a node that reveals all its records in a range.
    fn range(&self, child: &Child, level: u8, low: &[u8], high: Option<&[u8]>) -> Result<NodePart<'static>> {
        let node = self.store.node(child, level, self.class)?;
        // From the last entry not above `low` to the first one beyond the range.
        let first = node.child_of(low);
        let end = high.map_or(node.len(), |high| node.search(high).unwrap_or_else(|above| above));
        let mut revealed = Revealed::with_capacity((end + 1).saturating_sub(first));
        if level == 0 {
            revealed.extend((first..(end + 1).min(node.len())).map(|index| record_entry(&node, index)));
        } else {
            for index in first..end {
                let part = self.range(&node.child(index), level - 1, low, high)?;
                revealed.push(child_entry(&node, index, Subtree::Expanded(part)));
            }
            revealed.extend((end < node.len()).then(|| unexpanded(&node, end)));
        }
        Ok(self.part(child, &node, revealed))
    }

    fn part(&self, child: &Child, node: &Node, entries: Revealed) -> NodePart<'static> {
        let indices: Vec<u64> = entries.iter().map(|(index, _)| u64::from(*index)).collect();
        let hashes = self.store.list_proof(child, node, &indices);
        NodePart { count: node.len() as u16, entries, hashes }
    }
}

fn leaf_keys<'k>(leaf: &Node, keys: &[&'k [u8]], absent: &mut Vec<&'k [u8]>) -> (Revealed, bool) {
    let mut revealed = Revealed::with_capacity(2);
    let (mut next, mut open) = (0, false);
    for key in keys {
        // Reveals the record, or both neighbours of the gap where it would be. Keys ascend, so
        // entries before `next` have been revealed if needed.
        let (first, end) = match leaf.search(key) {
            Ok(index) => (index, index + 1),
            Err(above) => {
                absent.push(*key);
                open = above == leaf.len();
                (above.saturating_sub(1), (above + 1).min(leaf.len()))
            }
        };
        revealed.extend((first.max(next)..end).map(|index| record_entry(leaf, index)));
        next = end.max(next);
    }
    (revealed, open)
}

pub(super) fn record_entry(leaf: &Node, index: usize) -> (u16, Entry<'static>) {
    let record = leaf.record(index);
    let key = Cow::Owned(record.key.to_vec());
    (index as u16, Entry::Record { key, stamp: record.stamp, body: record.body.record_body() })
}

pub(super) fn child_entry(node: &Node, index: usize, child: Subtree<'static>) -> (u16, Entry<'static>) {
    (index as u16, Entry::Child { separator: Cow::Owned(node.key(index).to_vec()), child })
}

fn unexpanded(node: &Node, index: usize) -> (u16, Entry<'static>) {
    child_entry(node, index, Subtree::Hash(node.child(index).hash))
}

#[cfg(test)]
mod tests;
