//! The trees of a shard, gathered from proofs of ranges that cover the whole shard: a state from
//! which a replay may begin.
//!
//! The proof of a range shows every record in it, superseded and deleted ones included, within
//! their nodes. So the parts of all ranges together are the trees themselves. They are the right
//! ones if they lead to the signed digest.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

use super::{forest::Error, tree::Record};
use crate::proof::{Entry, NodePart, Subtree, TreeList};

/// Parts of a shard's trees, youngest tree first.
#[derive(Debug, Default)]
pub struct Gathered {
    pub(super) trees: Vec<GatheredTree>,
}

#[derive(Debug)]
pub(super) struct GatheredTree {
    pub level: u8,
    pub entries: u64,
    pub root: Option<GatheredNode>,
}

/// The known part of a node.
#[derive(Debug)]
pub(super) struct GatheredNode {
    pub count: u16,
    /// Records of a leaf, by their index.
    pub records: BTreeMap<u16, Record>,
    /// Children of an inner node with their separators, by their index.
    pub children: BTreeMap<u16, (Vec<u8>, Option<Box<GatheredNode>>)>,
}

impl Gathered {
    /// Adds a part to the known ones.
    ///
    /// # Errors
    /// If the part is of other trees.
    pub fn take(&mut self, part: &TreeList<'_>) -> Result<(), Error> {
        if self.trees.is_empty() {
            let tree =
                |tree: &crate::proof::Tree<'_>| GatheredTree { level: tree.level, entries: tree.entries, root: None };
            self.trees = part.trees.iter().map(tree).collect();
        }
        let same = |(known, tree): (&GatheredTree, &crate::proof::Tree<'_>)| {
            (known.level, known.entries) == (tree.level, tree.entries)
        };
        if self.trees.len() != part.trees.len() || !self.trees.iter().zip(&part.trees).all(same) {
            return Err(Error::Parts("of other trees"));
        }
        for (known, tree) in self.trees.iter_mut().zip(&part.trees) {
            known.root = join(known.root.take(), &tree.root)?;
        }
        Ok(())
    }
}

fn join(known: Option<GatheredNode>, part: &Subtree<'_>) -> Result<Option<GatheredNode>, Error> {
    let Subtree::Expanded(NodePart { count, entries, .. }) = part else { return Ok(known) };
    let mut node = known.unwrap_or(GatheredNode { count: *count, records: BTreeMap::new(), children: BTreeMap::new() });
    if node.count != *count {
        return Err(Error::Parts("of another node"));
    }
    for (index, entry) in entries {
        match entry {
            Entry::Record { key, stamp, body } => {
                node.records.insert(*index, Record { key: key.to_vec(), stamp: *stamp, body: *body });
            }
            Entry::Child { separator, child } => {
                let known = node.children.remove(index).and_then(|(_, known)| known);
                let joined = join(known.map(|known| *known), child)?;
                node.children.insert(*index, (separator.to_vec(), joined.map(Box::new)));
            }
        }
    }
    Ok(Some(node))
}
