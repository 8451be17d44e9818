//! One copy-on-write Merkle B+-tree: lookups are here, walks in [`cursor`]
//! and [`backward`], changes in [`apply`],
//! merges in [`merge`] with their reads in [`lots`], and bulk building in [`build`].

pub(crate) mod active;
pub(crate) mod apply;
pub(crate) mod backward;
pub(crate) mod build;
pub(crate) mod cursor;
pub(crate) mod found;
pub(crate) mod lots;
pub(crate) mod merge;

use coppice_verify::{hash, rules::Filter};

use crate::{
    Result,
    cache::Class,
    files::values::Named,
    meta::Tree,
    node::{LeafRecord, Node},
    store::Store,
    tree::{
        cursor::Cursor,
        found::{Found, FoundBody},
    },
};

impl Tree {
    /// Adds all keys of the tree to a filter, hashed one leaf at a time.
    pub(crate) fn add_keys_to(&self, filter: &mut Filter, store: &Store) -> Result<()> {
        let mut cursor = Cursor::seek(store, self, b"")?;
        while let Some((leaf, index)) = cursor.at() {
            if index == 0 {
                let hashes = hash::filter_hashes((0..leaf.len()).map(|index| leaf.key(index)));
                hashes.into_iter().for_each(|hash| filter.insert_hash(hash));
            }
            cursor.skip(store)?;
        }
        Ok(())
    }

    /// The nodes from the root to the leaf that may hold a key.
    pub(crate) fn path(&self, store: &Store, key: &[u8]) -> Result<Vec<Node>> {
        let Some(mut child) = self.root else { return Ok(Vec::new()) };
        let mut path = Vec::with_capacity(usize::from(self.level) + 1);
        for level in (0..=self.level).rev() {
            let node = store.node(&child, level, self.class())?;
            if level > 0 {
                child = node.child(node.child_of(key));
            }
            path.push(node);
        }
        Ok(path)
    }

    /// Looks up a key.
    fn search<T>(&self, store: &Store, key: &[u8], of: impl Fn(&LeafRecord<'_>) -> T) -> Result<Option<T>> {
        let Some(mut child) = self.root else { return Ok(None) };
        if self.class() == Class::Old {
            let (leaf, sure) = store.leaf_of(&child, self.level, key)?;
            let found = store.search(&leaf, Class::Old, key, &of)?;
            if sure || found.is_some() {
                return Ok(found);
            }
        }
        for level in (1..=self.level).rev() {
            let node = store.node(&child, level, self.class())?;
            child = node.child(node.child_of(key));
        }
        store.search(&child, self.class(), key, of)
    }

    pub(crate) fn has(&self, store: &Store, key: &[u8]) -> Result<bool> {
        Ok(self.search(store, key, |_| ())?.is_some())
    }

    /// The tree's record of a key.
    pub(crate) fn get(&self, store: &Store, key: &[u8]) -> Result<Option<Found>> {
        self.search(store, key, Found::of)
    }
}

/// The newest record of a key in a forest, tombstones included.
pub(crate) fn get(store: &Store, trees: &[Tree], active: Option<&Filter>, key: &[u8]) -> Result<Option<Found>> {
    newest(store, trees, active, key, |tree, _| tree.get(store, key))
}

/// Like [`get`], with the value where shortcuts lead to it. Other values are not read.
pub(crate) fn get_with_value(
    store: &Store,
    trees: &[Tree],
    active: Option<&Filter>,
    key: &[u8],
) -> Result<Option<Found>> {
    newest(store, trees, active, key, |tree, filter_hash| match store.named(tree, key, filter_hash)? {
        None => tree.get(store, key),
        Some(Named::This(stamp, value)) => {
            Ok(Some(Found { key: key.to_vec(), stamp, body: FoundBody::Named { value } }))
        }
        Some(_) => Ok(None),
    })
}

/// The newest record of a key, looked up by `of`. Only trees whose filters admit the key's filter
/// hash are asked; `active` is the filter of the active tree, if there is one.
fn newest(
    store: &Store,
    trees: &[Tree],
    active: Option<&Filter>,
    key: &[u8],
    of: impl Fn(&Tree, (u64, u64)) -> Result<Option<Found>>,
) -> Result<Option<Found>> {
    store.counters.gets.one();
    let filter_hash = hash::filter_hash(key);
    for (index, tree) in trees.iter().enumerate() {
        let admits = match tree.filter {
            None => active.is_none_or(|filter| filter.admits_hash(filter_hash)),
            Some(_) if index + 1 == trees.len() => store.oldest_admits(tree, filter_hash)?,
            Some(_) => store.admits(tree, filter_hash)?,
        };
        if !admits {
            store.counters.filter_skips.one();
            continue;
        }
        if let Some(found) = of(tree, filter_hash)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
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

    /// Even numbers below 40 in a frozen tree, numbers from 10 to 13 above it.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), Params { capacity: 20, ..small() });
        commit(&mut engine, 1, puts(0..40, 5).into_iter().step_by(2).collect());
        commit(&mut engine, 2, [puts(10..14, 6), vec![delete(&key(20))]].concat());
        engine
    }

    #[test]
    fn a_path_goes_from_the_root_to_the_leaf_of_the_key() {
        let engine = engine();
        let frozen = &engine.meta.tip().trees[1];
        assert!(frozen.level >= 2);
        for number in 0..40 {
            let path = frozen.path(&engine.store, key(number).as_bytes()).expect("sound pages");
            let levels: Vec<u8> = path.iter().map(Node::level).collect();
            assert_eq!(levels, (0..=frozen.level).rev().collect::<Vec<_>>());
            let leaf = path.last().expect("a leaf");
            assert_eq!(leaf.search(key(number).as_bytes()).is_ok(), number % 2 == 0);
        }
        assert!(Tree::empty().path(&engine.store, b"a").expect("nothing to read").is_empty());
    }

    #[test]
    fn a_tree_has_its_own_records_alone() {
        let engine = engine();
        let [active, frozen] = engine.meta.tip().trees.as_slice() else { panic!("two trees") };
        for number in 0..42 {
            let key = key(number);
            let has = [active, frozen].map(|tree| tree.has(&engine.store, key.as_bytes()).expect("sound pages"));
            assert_eq!(has, [(10..14).contains(&number) || number == 20, number % 2 == 0 && number < 40], "{number}");
            let got = frozen.get(&engine.store, key.as_bytes()).expect("sound pages");
            assert_eq!(got.is_some(), has[1]);
        }
    }

    #[test]
    fn the_newest_record_of_a_key_may_be_a_tombstone() {
        let engine = engine();
        let trees = &engine.meta.tip().trees;
        let newest = |number| {
            let found = get(&engine.store, trees, None, key(number).as_bytes()).expect("sound pages");
            found.map(|found| (found.stamp.version.0, found.is_tombstone()))
        };
        assert_eq!(
            [8, 10, 11, 20, 21].map(newest),
            [Some((1, false)), Some((2, false)), Some((2, false)), Some((2, true)), None]
        );
    }

    #[test]
    fn the_active_tree_is_not_read_for_a_key_that_its_filter_does_not_admit() {
        let engine = engine();
        let trees = &engine.meta.tip().trees;
        let none = Filter::from_blocks(vec![[0; 8]]).expect("a block");
        let found = get(&engine.store, trees, Some(&none), key(10).as_bytes()).expect("sound pages");
        assert_eq!(found.map(|found| found.stamp.version.0), Some(1), "the filter was believed");
        assert_eq!(engine.counters().filter_skips, 1);
    }

    #[test]
    fn a_filter_of_the_keys_of_a_tree_admits_each_of_them() {
        let engine = engine();
        let frozen = &engine.meta.tip().trees[1];
        let mut filter = Filter::new(&small(), frozen.entries);
        frozen.add_keys_to(&mut filter, &engine.store).expect("sound pages");
        assert!((0..20).all(|n| filter.admits(key(2 * n).as_bytes())));
        assert_eq!(*engine.store.filter(frozen).expect("readable"), filter, "it is the stored one");
    }
}
