//! The nodes of a version, one by one, for copies in other memories.
//!
//! A node comes as the `node part` that reveals all its entries, so a copy of it can answer
//! whatever a proof asks of it.

use coppice_types::Digest;
use coppice_verify::proof::{NodePart, Subtree};

use crate::{
    Result,
    cache::Class,
    meta::Tree as MetaTree,
    node::Child,
    read::{proof, view::View},
};

/// Where a view finds one node. It stands as long as a version with the node is retained.
#[derive(Clone, Copy, Debug)]
pub struct NodePlace {
    child: Child,
    level: u8,
    class: Class,
}

impl NodePlace {
    /// The node's hash. It names the node's content: level, entries and everything below.
    #[must_use]
    pub fn hash(&self) -> Digest {
        self.child.hash
    }

    /// 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }
}

/// A node with all its entries.
#[derive(Clone, Debug)]
pub struct WholeNode {
    /// Its entries. Children stand with their hashes, and the list proof is empty.
    pub part: NodePart<'static>,
    /// The places of its children, in order; none for a leaf.
    pub children: Vec<NodePlace>,
}

/// A tree of a version.
#[derive(Clone, Copy, Debug)]
pub struct TreePlace {
    /// Level of the root.
    pub level: u8,
    /// Number of records, tombstones included.
    pub entries: u64,
    /// Hash of the root, that of an empty leaf if there is none.
    pub root_hash: Digest,
    /// `None` for the empty tree.
    pub root: Option<NodePlace>,
}

impl View<'_> {
    /// The trees of the version, youngest first.
    #[must_use]
    pub fn tree_places(&self) -> Vec<TreePlace> {
        let place = |tree: &MetaTree| TreePlace {
            level: tree.level,
            entries: tree.entries,
            root_hash: tree.root_hash(),
            root: tree.root.map(|child| NodePlace { child, level: tree.level, class: tree.class() }),
        };
        self.trees().iter().map(place).collect()
    }

    /// A node of the version.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn whole_node(&self, place: &NodePlace) -> Result<WholeNode> {
        let node = self.store().node(&place.child, place.level, place.class)?;
        let Some(below) = place.level.checked_sub(1) else {
            let entries = (0..node.len()).map(|index| proof::record_entry(&node, index)).collect();
            return Ok(WholeNode { part: part(node.len(), entries), children: Vec::new() });
        };
        let child = |index| NodePlace { child: node.child(index), level: below, class: place.class };
        let children: Vec<NodePlace> = (0..node.len()).map(child).collect();
        let entry = |index| proof::child_entry(&node, index, Subtree::Hash(node.child(index).hash));
        Ok(WholeNode { part: part(node.len(), (0..node.len()).map(entry).collect()), children })
    }
}

fn part(len: usize, entries: proof::Revealed) -> NodePart<'static> {
    NodePart { count: len as u16, entries, hashes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Version;
    use coppice_verify::proof::{Entry, Tree, TreeList};

    use super::*;
    use crate::testing::{commit, create, delete, key, merge, puts, small};

    /// The whole subtree below a place, every node expanded.
    fn expanded(view: &View<'_>, place: &NodePlace) -> NodePart<'static> {
        let WholeNode { mut part, children } = view.whole_node(place).expect("sound pages");
        for ((_, entry), place) in part.entries.iter_mut().zip(&children) {
            let Entry::Child { child, .. } = entry else { panic!("an inner node has children") };
            assert_eq!(*child, Subtree::Hash(place.hash()));
            *child = Subtree::Expanded(expanded(view, place));
        }
        part
    }

    #[test]
    fn whole_nodes_make_the_proof_of_all_records() {
        let mut engine = create(&SimStorage::new(), small());
        for version in 1..=5 {
            commit(&mut engine, version, puts(version as u32 * 7..version as u32 * 7 + 9, 3 * version as usize));
            merge(&mut engine);
        }
        commit(&mut engine, 6, vec![delete(&key(9))]);
        for version in 0..=6 {
            let view = engine.view_at(Version(version)).expect("decided");
            let tree = |tree: &TreePlace| {
                let root = tree.root.map_or(Subtree::Hash(tree.root_hash), |root| {
                    assert_eq!((root.hash(), root.level()), (tree.root_hash, tree.level));
                    Subtree::Expanded(expanded(&view, &root))
                });
                Tree { level: tree.level, entries: tree.entries, root }
            };
            let list = TreeList { trees: view.tree_places().iter().map(tree).collect() };
            assert_eq!(list.encode(), view.prove_range(b"", None).expect("sound pages"), "version {version}");
        }
    }
}
