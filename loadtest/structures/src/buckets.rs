//! A Merkle bucket tree: a fixed number of buckets, and a tree of a fixed shape above them.
//!
//! A key's bucket follows from its hash. The shape therefore never changes, equal contents have
//! equal roots, and buckets grow with the number of records. Ranges are not supported, and walks
//! are in the order of buckets.
//!
//! `inner node = u8 level || hash of each child`; buckets have the bytes of leaves (`entries`).

use coppice_types::Digest;
use twox_hash::XxHash3_64;

use crate::{
    Error, Result, entries,
    store::{Nodes, Store},
    structure::{Change, Item, Link, Part, Structure},
};

/// Children of an inner node.
const FANOUT: usize = 16;
/// Levels above the buckets.
const LEVELS: u8 = 3;
const BUCKETS: usize = FANOUT.pow(LEVELS as u32);

#[derive(Clone, Copy, Debug, Default)]
pub struct BucketTree;

/// The bucket of a key.
fn bucket(key: &[u8]) -> usize {
    (XxHash3_64::oneshot(key) % BUCKETS as u64) as usize
}

/// The number of buckets below a node.
fn span(level: u8) -> usize {
    FANOUT.pow(u32::from(level))
}

/// The place of an item: the first bucket below it, then the key of a record.
fn place(bucket: usize, key: &[u8]) -> Vec<u8> {
    [&(bucket as u32).to_be_bytes(), key].concat()
}

impl Structure for BucketTree {
    fn name(&self) -> &'static str {
        "Merkle bucket tree"
    }

    fn is_canonical(&self) -> bool {
        true
    }

    fn empty(&self, store: &mut Store) -> Digest {
        let bucket = entries::put(store, 0, &[]);
        (1..=LEVELS).fold(bucket, |child, level| put(store, level, &[child; FANOUT]))
    }

    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let bucket = bucket(key);
        let mut name = *root;
        for level in (1..=LEVELS).rev() {
            name = child(nodes.node(&name)?, level, bucket / span(level - 1) % FANOUT)?;
        }
        let node = nodes.node(&name)?;
        if entries::level(node) > 0 {
            return Err(Error::Malformed("level"));
        }
        entries::find(node, key)
    }

    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest> {
        let mut sorted: Vec<(usize, Change)> =
            changes.iter().map(|change| (bucket(&change.key), change.clone())).collect();
        // The sort is stable: keys within a bucket stay in order.
        sorted.sort_by_key(|(bucket, _)| *bucket);
        apply(store, root, LEVELS, 0, &sorted)
    }

    fn expand(&self, at: &[u8], node: &[u8]) -> Result<Vec<Item>> {
        let first = at.first_chunk().map_or(0, |at| u32::from_be_bytes(*at) as usize);
        let level = entries::level(node);
        if level == 0 {
            let mut items = entries::expand(node)?;
            items.iter_mut().for_each(|item| item.place = place(first, &item.place));
            return Ok(items);
        }
        let item = |index: usize| {
            let name = child(node, level, index)?;
            Ok(Item { place: place(first + index * span(level - 1), &[]), part: Part::Node(Link::Name(name)) })
        };
        (0..FANOUT).map(item).collect()
    }

    fn level(&self, node: &[u8]) -> u8 {
        entries::level(node)
    }
}

fn put(store: &mut Store, level: u8, children: &[Digest]) -> Digest {
    let names = children.iter().flat_map(|name| name.0);
    store.put([level].into_iter().chain(names).collect())
}

fn child(node: &[u8], level: u8, index: usize) -> Result<Digest> {
    let whole = node.len() == 1 + FANOUT * 32 && node[0] == level && level <= LEVELS;
    let name = whole.then(|| &node[1 + index * 32..][..32]);
    name.and_then(Digest::from_slice).ok_or(Error::Malformed("inner node"))
}

fn apply(store: &mut Store, name: &Digest, level: u8, first: usize, changes: &[(usize, Change)]) -> Result<Digest> {
    if changes.is_empty() {
        return Ok(*name);
    }
    if level == 0 {
        let own: Vec<Change> = changes.iter().map(|(_, change)| change.clone()).collect();
        let entries = entries::merge(entries::read(store.node(name)?)?, &own);
        return Ok(entries::put(store, 0, &entries));
    }
    let mut children = Vec::with_capacity(FANOUT);
    let mut rest = changes;
    for index in 0..FANOUT {
        let start = first + index * span(level - 1);
        let (own, after) = rest.split_at(rest.partition_point(|(bucket, _)| *bucket < start + span(level - 1)));
        rest = after;
        let old = child(store.node(name)?, level, index)?;
        children.push(apply(store, &old, level - 1, start, own)?);
    }
    Ok(put(store, level, &children))
}
