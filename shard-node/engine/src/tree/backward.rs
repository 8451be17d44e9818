//! Walks over one tree and over a forest from the last key to the first.

use crate::{
    Result,
    meta::Tree,
    node::{Node, compare},
    store::Store,
    tree::{cursor::descend, found::Found},
};

/// A position in one tree, behind its current record.
#[derive(Debug)]
struct Backward {
    tree: Tree,
    /// Nodes from the root down. An inner node has the index of its current child, a leaf the
    /// number of its records that are left.
    path: Vec<(Node, usize)>,
}

impl Backward {
    /// A cursor at the last record whose key is below `high`, or at the last of all.
    fn seek(store: &Store, tree: &Tree, high: Option<&[u8]>) -> Result<Self> {
        let mut cursor = Self { tree: tree.clone(), path: Vec::new() };
        let Some(root) = tree.root else { return Ok(cursor) };
        descend(store, tree, &mut cursor.path, (root, tree.level), |node| match (high, node.level()) {
            (Some(high), 0) => node.search(high).unwrap_or_else(|above| above),
            (Some(high), _) => node.child_of(high),
            (None, _) => last(node),
        })?;
        cursor.settle(store)?;
        Ok(cursor)
    }

    /// Moves to the leaf before if this one has no record left.
    fn settle(&mut self, store: &Store) -> Result<()> {
        while self.path.last().is_some_and(|(_, left)| *left == 0) {
            self.path.pop();
            while let Some((node, index)) = self.path.last_mut() {
                let Some(before) = index.checked_sub(1) else {
                    self.path.pop();
                    continue;
                };
                *index = before;
                let below = (node.child(before), node.level() - 1);
                descend(store, &self.tree, &mut self.path, below, last)?;
                break;
            }
        }
        Ok(())
    }

    /// Key of the current record.
    fn key(&self) -> Option<&[u8]> {
        self.path.last().map(|(leaf, left)| leaf.key(*left - 1))
    }

    /// Returns the current record and moves to the one before.
    fn next(&mut self, store: &Store) -> Result<Option<Found>> {
        let Some((leaf, left)) = self.path.last_mut() else { return Ok(None) };
        *left -= 1;
        let found = Found::of(&leaf.record(*left));
        self.settle(store)?;
        Ok(Some(found))
    }
}

/// The last child of an inner node; the number of records of a leaf.
fn last(node: &Node) -> usize {
    if node.level() == 0 { node.len() } else { node.len().saturating_sub(1) }
}

/// All trees of a forest, youngest first.
#[derive(Debug)]
pub(crate) struct BackwardForest(Vec<Backward>);

impl BackwardForest {
    /// Cursors at the last keys below `high`, or at the last of all.
    pub(crate) fn seek(store: &Store, trees: &[Tree], high: Option<&[u8]>) -> Result<Self> {
        Ok(Self(trees.iter().map(|tree| Backward::seek(store, tree, high)).collect::<Result<_>>()?))
    }

    /// Returns the newest record of the largest remaining key, if that is not below `low`, and
    /// moves to the key before.
    pub(crate) fn next_newest(&mut self, store: &Store, low: &[u8]) -> Result<Option<Found>> {
        let keys = self.0.iter().enumerate().filter_map(|(tree, cursor)| Some((cursor.key()?, tree)));
        // Of equal keys, that of the youngest tree, which comes first.
        let largest = keys.max_by(|one, other| compare(one.0, other.0).then(other.1.cmp(&one.1)));
        let Some((key, youngest)) = largest.filter(|(key, _)| *key >= low) else { return Ok(None) };
        let key = key.to_vec();
        let [newest, older @ ..] = &mut self.0[youngest..] else { return Ok(None) };
        let found = newest.next(store)?;
        for cursor in older {
            if cursor.key() == Some(&key) {
                cursor.next(store)?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Params;

    use super::*;
    use crate::{
        Engine,
        testing::{commit, create, delete, key, put, puts, small},
        tree::cursor::ForestCursor,
    };

    /// Three trees with keys in common, tombstones among them, the oldest of several levels.
    fn forest() -> Engine {
        let mut engine = create(&SimStorage::new(), Params { capacity: 40, ..small() });
        commit(&mut engine, 1, puts(0..80, 5).into_iter().step_by(2).collect());
        commit(&mut engine, 2, puts(30..75, 6).into_iter().step_by(3).collect());
        commit(&mut engine, 3, vec![delete(&key(0)), delete(&key(36)), put(&key(79), 7), put(&key(33), 8)]);
        engine
    }

    #[test]
    fn a_walk_back_visits_what_a_walk_forward_does() {
        let engine = forest();
        let trees = &engine.meta.tip().trees;
        assert!(trees.len() > 1 && trees.iter().any(|tree| tree.level >= 2));
        for low in 0..82 {
            for high in [None, Some(low), Some(low + 1), Some(low + 7), Some(78), Some(90)] {
                let (from, to) = (key(low), high.map(key));
                let to = to.as_deref().map(str::as_bytes);
                let mut forward = ForestCursor::seek(&engine.store, trees, from.as_bytes()).expect("sound pages");
                let mut expected = Vec::new();
                while let Some(found) = forward.next_newest(&engine.store, to).expect("sound pages") {
                    expected.push((found.key.clone(), found.stamp, found.is_put()));
                }
                expected.reverse();
                let mut back = BackwardForest::seek(&engine.store, trees, to).expect("sound pages");
                let mut seen = Vec::new();
                while let Some(found) = back.next_newest(&engine.store, from.as_bytes()).expect("sound pages") {
                    seen.push((found.key.clone(), found.stamp, found.is_put()));
                }
                assert_eq!(seen, expected, "from {low} to {high:?}");
            }
        }
    }

    #[test]
    fn an_empty_forest_has_no_last_record() {
        let engine = forest();
        let trees = [Tree::empty(), Tree::empty()];
        let mut back = BackwardForest::seek(&engine.store, &trees, None).expect("nothing to read");
        assert_eq!(back.next_newest(&engine.store, b"").expect("nothing to read"), None);
    }
}
