//! A node on the host: all its entries and the hash tree over them. It answers lookups as the
//! engine does, and it is what a page in MRAM is made from.
//!
//! The host keeps every node whose page lies on a DPU. So it can answer for a DPU that failed, for
//! a subtree that is asked for often, and for a batch that is too small.

use std::{cmp::Ordering, sync::Arc};

use coppice_types::Digest;
use coppice_verify::{
    hash,
    proof::{Entry, NodePart, Subtree},
};

use crate::{Error, Result};

/// A node with all its entries and hashes.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) level: u8,
    pub(crate) entries: Vec<Entry<'static>>,
    /// The hash tree, level by level: entry hashes first, the root last.
    list: Vec<Vec<Digest>>,
}

/// A part of a proof below some node, and what the nodes above need to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) part: NodePart<'static>,
    /// Whether the key has a record, which may be a tombstone.
    pub(crate) found: bool,
    /// Whether the key is above all keys of the part: the next entry above must be shown.
    pub(crate) open: bool,
}

impl Node {
    /// A node from the part that reveals all its entries.
    ///
    /// # Errors
    /// `Mismatch` if its hash is not the expected one.
    pub(crate) fn new(part: NodePart<'static>, level: u8, expected: &Digest) -> Result<Arc<Self>> {
        let entries: Vec<Entry<'static>> = part.entries.into_iter().map(|(_, entry)| entry).collect();
        if entries.is_empty() {
            return Err(Error::Mismatch("a node without entries"));
        }
        let mut list = vec![entry_hashes(&entries)?];
        while let Some(below) = list.last().filter(|level| level.len() > 1) {
            let mut above = vec![Digest::default(); below.len() / 2];
            hash::list_node_hashes(below, &mut above);
            above.extend(below.chunks(2).filter_map(|pair| <&[Digest; 1]>::try_from(pair).ok()).map(|[odd]| *odd));
            list.push(above);
        }
        let root = list[list.len() - 1][0];
        let hash = match level {
            0 => hash::leaf_node_hash_of(part.count, &root),
            level => hash::inner_node_hash_of(level, part.count, &root),
        };
        if hash != *expected || usize::from(part.count) != entries.len() {
            return Err(Error::Mismatch("a node has another hash"));
        }
        Ok(Arc::new(Self { level, entries, list }))
    }

    /// The same leaf with other values and the hashes of before: no sound node.
    #[cfg(test)]
    pub(crate) fn forged(&self) -> Self {
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            if let Entry::Record { stamp, .. } = entry {
                stamp.epoch.0 += 1;
            }
        }
        Self { level: self.level, entries, list: self.list.clone() }
    }

    /// The hashes of its children; none for a leaf.
    pub(crate) fn children(&self) -> impl Iterator<Item = Digest> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Child { child: Subtree::Hash(hash), .. } => Some(*hash),
            _ => None,
        })
    }

    pub(crate) fn child(&self, index: usize) -> Digest {
        match &self.entries[index] {
            Entry::Child { child: Subtree::Hash(hash), .. } => *hash,
            _ => panic!("only inner nodes have children, and these stand with their hashes"),
        }
    }

    /// All hashes of the tree over the entries, from the leaves to the root.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = &Digest> {
        self.list.iter().flatten()
    }

    /// The child that may hold a key.
    pub(crate) fn child_of(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(above) => above.saturating_sub(1),
        }
    }

    fn search(&self, key: &[u8]) -> std::result::Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.key().cmp(key))
    }

    /// What a leaf answers: the record, or both neighbours of the gap where it would be.
    pub(crate) fn answer_leaf(&self, key: &[u8]) -> Answer {
        assert_eq!(self.level, 0, "records are in leaves");
        let (found, open, first, last) = match self.search(key) {
            Ok(index) => (true, false, index, index),
            Err(above) => {
                let last = above.min(self.entries.len() - 1);
                (false, above == self.entries.len(), above.saturating_sub(1), last)
            }
        };
        let entries = (first..=last).map(|index| (index as u16, self.entries[index].clone())).collect();
        Answer { part: self.part(first, last, entries), found, open }
    }

    /// What an inner node adds to the answer of its child.
    pub(crate) fn answer_above(&self, index: usize, below: Answer) -> Answer {
        let child = |index: usize, child| {
            let Entry::Child { separator, .. } = &self.entries[index] else { panic!("an inner node has children") };
            (index as u16, Entry::Child { separator: separator.clone(), child })
        };
        let mut entries = vec![child(index, Subtree::Expanded(below.part))];
        let mut last = index;
        if below.open && index + 1 < self.entries.len() {
            last = index + 1;
            entries.push(child(last, Subtree::Hash(self.child(last))));
        }
        Answer { part: self.part(index, last, entries), found: below.found, open: below.open && last == index }
    }

    fn part(&self, first: usize, last: usize, entries: Vec<(u16, Entry<'static>)>) -> NodePart<'static> {
        let hashes = list_proof(self.entries.len(), first, last);
        let hashes = hashes.map(|(level, at)| self.list[level][at]).collect();
        NodePart { count: self.entries.len() as u16, entries, hashes }
    }
}

fn entry_hashes(entries: &[Entry<'static>]) -> Result<Vec<Digest>> {
    let hash = |entry: &Entry<'static>| match entry {
        Entry::Record { key, stamp, body } => Ok(hash::record_hash(key, *stamp, body)),
        Entry::Child { separator, child: Subtree::Hash(hash) } => Ok(hash::entry_hash(separator, hash)),
        Entry::Child { .. } => Err(Error::Mismatch("a child of a whole node stands with its hash")),
    };
    entries.iter().map(hash).collect()
}

/// The places of the hashes that prove the neighbouring leaves `first..=last` of a list: level and
/// index, in the order of a list proof. Left of the leaves from the root down, then right of them
/// from the leaves up.
pub(crate) fn list_proof(count: usize, first: usize, last: usize) -> impl Iterator<Item = (usize, usize)> {
    let widths = move || std::iter::successors(Some(count), |width| (*width > 1).then(|| width.div_ceil(2)));
    let levels = widths().count() - 1;
    let left = (0..levels).rev().map(move |level| (level, first >> level)).filter(|(_, at)| at % 2 == 1);
    let right = widths().take(levels).enumerate().map(move |(level, width)| (level, (last >> level) + 1, width));
    let right = right.filter(|(_, at, width)| at % 2 == 1 && at < width);
    left.map(|(level, at)| (level, at - 1)).chain(right.map(|(level, at, _)| (level, at)))
}

/// Whether an answer is one to this key: its record, or both neighbours of the gap where it would
/// be. A wrong way through the pages does not pass.
pub(crate) fn answers_key(answer: &Answer, key: &[u8]) -> bool {
    let mut part = &answer.part;
    // Whether an inner node shows the entry behind the key.
    let mut closed = false;
    loop {
        let next = part.entries.get(1).map(|(_, next)| next.key());
        if next.is_some_and(|next| next <= key) {
            return false;
        }
        match part.entries.first() {
            Some((_, Entry::Child { separator, child: Subtree::Expanded(below) })) if **separator <= *key => {
                closed |= next.is_some();
                part = below;
            }
            Some((index, entry @ Entry::Record { .. })) => {
                let last = usize::from(*index) + 1 == usize::from(part.count);
                let within = !answer.open && !closed;
                return match entry.key().cmp(key) {
                    Ordering::Equal => within && answer.found && next.is_none(),
                    Ordering::Less if next.is_some() => within && !answer.found,
                    Ordering::Less => !answer.found && last && answer.open != closed,
                    Ordering::Greater => within && !answer.found && *index == 0 && next.is_none(),
                };
            }
            _ => return false,
        }
    }
}
