//! Walks over one tree and over a forest in key order.

use crate::{
    Result,
    meta::Tree,
    node::{Child, Node, compare},
    store::Store,
    tree::found::Found,
};

/// A position in one tree. It holds the nodes of its path, so it stays valid while the tree's pages
/// do.
#[derive(Debug)]
pub(crate) struct Cursor {
    tree: Tree,
    /// Nodes from the root down, each with the index of its current child or record.
    path: Vec<(Node, usize)>,
}

impl Cursor {
    /// A cursor at the first record whose key is not below `low`.
    pub(crate) fn seek(store: &Store, tree: &Tree, low: &[u8]) -> Result<Self> {
        let mut cursor = Self { tree: tree.clone(), path: Vec::new() };
        let Some(root) = tree.root else { return Ok(cursor) };
        cursor.enter(store, root, tree.level, |node| match node.level() {
            0 => node.search(low).unwrap_or_else(|above| above),
            _ => node.child_of(low),
        })?;
        cursor.settle(store)?;
        Ok(cursor)
    }

    fn enter(&mut self, store: &Store, mut child: Child, level: u8, choose: impl Fn(&Node) -> usize) -> Result<()> {
        for level in (0..=level).rev() {
            let node = store.node(&child, level, self.tree.class())?;
            let index = choose(&node);
            if level > 0 {
                child = node.child(index);
            }
            self.path.push((node, index));
        }
        Ok(())
    }

    /// Moves to the next leaf if this one has no record left.
    fn settle(&mut self, store: &Store) -> Result<()> {
        while self.path.last().is_some_and(|(node, index)| *index >= node.len()) {
            self.path.pop();
            while let Some((node, index)) = self.path.last_mut() {
                *index += 1;
                if *index < node.len() {
                    let (child, level) = (node.child(*index), node.level() - 1);
                    self.enter(store, child, level, |_| 0)?;
                    break;
                }
                self.path.pop();
            }
        }
        Ok(())
    }

    /// Key of the current record.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.path.last().map(|(leaf, index)| leaf.key(*index))
    }

    /// Leaf and index of the current record.
    pub(crate) fn at(&self) -> Option<(&Node, usize)> {
        self.path.last().map(|(leaf, index)| (leaf, *index))
    }

    /// Returns the current record and moves to the next one.
    pub(crate) fn next(&mut self, store: &Store) -> Result<Option<Found>> {
        let Some((leaf, index)) = self.path.last() else { return Ok(None) };
        let found = Found::of(&leaf.record(*index));
        self.skip(store)?;
        Ok(Some(found))
    }

    /// Moves to the next record.
    pub(crate) fn skip(&mut self, store: &Store) -> Result<()> {
        if let Some((_, index)) = self.path.last_mut() {
            *index += 1;
        }
        self.settle(store)
    }
}

/// All trees of a forest, youngest first.
#[derive(Debug)]
pub(crate) struct ForestCursor {
    pub(crate) cursors: Vec<Cursor>,
}

impl ForestCursor {
    /// Cursors at the first keys not below `low`.
    pub(crate) fn seek(store: &Store, trees: &[Tree], low: &[u8]) -> Result<Self> {
        Ok(Self { cursors: trees.iter().map(|tree| Cursor::seek(store, tree, low)).collect::<Result<_>>()? })
    }

    /// Returns the newest record of the smallest remaining key, if that is below `high`, and moves
    /// to the next key.
    pub(crate) fn next_newest(&mut self, store: &Store, high: Option<&[u8]>) -> Result<Option<Found>> {
        let Some(youngest) = youngest(self.cursors.iter().map(Cursor::key)) else { return Ok(None) };
        let [newest, older @ ..] = &mut self.cursors[youngest..] else { return Ok(None) };
        if high.is_some_and(|high| newest.key().is_none_or(|key| key >= high)) {
            return Ok(None);
        }
        let found = newest.next(store)?;
        for cursor in older {
            if cursor.key() == found.as_ref().map(|found| found.key.as_slice()) {
                cursor.skip(store)?;
            }
        }
        Ok(found)
    }
}

/// The youngest tree with a record of the smallest remaining key; `keys` are the next keys of the
/// trees, youngest first. `None` at the end.
pub(crate) fn youngest<'k>(keys: impl Iterator<Item = Option<&'k [u8]>>) -> Option<usize> {
    let keys = keys.enumerate().filter_map(|(tree, key)| Some((key?, tree)));
    keys.min_by(|one, other| compare(one.0, other.0)).map(|(_, tree)| tree)
}
