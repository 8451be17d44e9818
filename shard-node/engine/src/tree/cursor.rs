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

    fn enter(&mut self, store: &Store, child: Child, level: u8, choose: impl Fn(&Node) -> usize) -> Result<()> {
        descend(store, &self.tree, &mut self.path, (child, level), choose)
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

/// Adds the nodes from a child down to a leaf to a path, each with the index that is chosen in it.
pub(super) fn descend(
    store: &Store,
    tree: &Tree,
    path: &mut Vec<(Node, usize)>,
    (mut child, level): (Child, u8),
    choose: impl Fn(&Node) -> usize,
) -> Result<()> {
    for level in (0..=level).rev() {
        let node = store.node(&child, level, tree.class())?;
        let index = choose(&node);
        if level > 0 {
            child = node.child(index);
        }
        path.push((node, index));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Params;

    use super::*;
    use crate::{
        Engine,
        testing::{commit, create, delete, key, puts, small},
    };

    /// Even numbers below 80, in one deep tree.
    fn deep() -> Engine {
        let mut engine = create(&SimStorage::new(), Params { capacity: 100, ..small() });
        commit(&mut engine, 1, puts(0..80, 5).into_iter().step_by(2).collect());
        assert!(engine.meta.tip().trees[0].level >= 2);
        engine
    }

    #[test]
    fn a_cursor_begins_at_the_first_key_that_is_not_below() {
        let engine = deep();
        let tree = &engine.meta.tip().trees[0];
        for number in 0..82 {
            let cursor = Cursor::seek(&engine.store, tree, key(number).as_bytes()).expect("sound pages");
            let expected = Some(key(number.next_multiple_of(2))).filter(|_| number < 79);
            assert_eq!(cursor.key(), expected.as_deref().map(str::as_bytes), "from {number}");
        }
    }

    #[test]
    fn a_cursor_visits_each_record_once_and_stays_at_the_end() {
        let engine = deep();
        let mut cursor = Cursor::seek(&engine.store, &engine.meta.tip().trees[0], b"").expect("sound pages");
        for number in (0..80).step_by(2) {
            let found = cursor.next(&engine.store).expect("sound pages").expect("it is there");
            assert_eq!(found.key, key(number).into_bytes());
        }
        for _ in 0..2 {
            assert_eq!(cursor.next(&engine.store).expect("nothing to read"), None);
            cursor.skip(&engine.store).expect("nothing to read");
            assert!(cursor.key().is_none() && cursor.at().is_none());
        }
    }

    #[test]
    fn an_empty_tree_has_no_record() {
        let engine = deep();
        let mut cursor = Cursor::seek(&engine.store, &Tree::empty(), b"").expect("nothing to read");
        assert!(cursor.key().is_none());
        assert_eq!(cursor.next(&engine.store).expect("nothing to read"), None);
    }

    #[test]
    fn a_forest_gives_the_newest_record_of_each_key_once_tombstones_included() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..8, 5));
        commit(&mut engine, 2, puts(4..12, 6));
        commit(&mut engine, 3, vec![delete(&key(0)), delete(&key(5)), crate::testing::put(&key(9), 7)]);
        let trees = &engine.meta.tip().trees;
        assert_eq!(trees.len(), 3);
        let walk = |low: &str, high: Option<&str>| {
            let mut cursor = ForestCursor::seek(&engine.store, trees, low.as_bytes()).expect("sound pages");
            let mut found = Vec::new();
            while let Some(newest) = cursor.next_newest(&engine.store, high.map(str::as_bytes)).expect("sound pages") {
                found.push((newest.stamp.version.0, newest.is_put()));
                assert_eq!(newest.key, key(found.len() as u32 - 1 + low.parse::<u32>().unwrap_or(0)).into_bytes());
            }
            found
        };
        let all = [3, 1, 1, 1, 2, 3, 2, 2, 2, 3, 2, 2].into_iter().zip(0..);
        let all: Vec<(u64, bool)> = all.map(|(version, at)| (version, at != 0 && at != 5)).collect();
        assert_eq!(walk("", None), all);
        assert_eq!(walk("0004", Some("0008")), all[4..8]);
        assert_eq!(walk("0004", Some("0004")), []);
    }

    #[test]
    fn among_equal_keys_that_of_the_youngest_tree_is_first() {
        let first = |keys: &[Option<&'static str>]| youngest(keys.iter().map(|key| key.map(str::as_bytes)));
        assert_eq!(first(&[Some("b"), Some("a"), Some("a")]), Some(1));
        assert_eq!(first(&[None, Some("b"), Some("ab")]), Some(2));
        assert_eq!(first(&[Some(""), None]), Some(0));
        assert_eq!((first(&[None, None]), first(&[])), (None, None));
    }
}
