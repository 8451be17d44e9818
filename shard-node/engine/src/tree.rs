//! One copy-on-write Merkle B+-tree: lookups are here, walks in [`cursor`], changes in [`apply`],
//! merges in [`merge`] with their reads in [`lots`], and bulk building in [`build`].

pub(crate) mod active;
pub(crate) mod apply;
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
