//! One function for each kind of hash (`docs/verification.md` sections 1 to 11).
//!
//! Every input begins with a tag of its own, and everything of variable length carries its length or its count, so that no
//! value of one kind is a value of another. Lengths are those of decoded or limit-checked values: a key or separator fits
//! a `u16`, everything else a `u32`.

pub(crate) mod list;
mod message;
pub(crate) mod plan;

use alloc::vec::Vec;

use coppice_types::{Batch, Digest, Epoch, Precondition, ShardId, Stamp, Version, codec::Writer};

use self::{
    list::mth,
    message::{Hasher, len16, len32},
};
pub use self::{
    list::{list_node_hash, list_node_hashes},
    message::{RecordBody, sha256, sha256_each},
};

/// Entry of the root log: an RFC 6962 leaf.
#[must_use]
pub fn log_entry_hash(entry: &[u8]) -> Digest {
    Hasher::tagged(0x00).raw(entry).finish()
}

/// Record of a leaf node.
#[must_use]
pub fn record_hash(key: &[u8], stamp: Stamp, body: &RecordBody) -> Digest {
    Hasher::new().record(key, stamp, body).finish()
}

/// [`record_hash`] of several.
#[must_use]
pub fn record_hashes<'k>(records: impl ExactSizeIterator<Item = (&'k [u8], Stamp, RecordBody)>) -> Vec<Digest> {
    Hasher::each(records, |hasher, (key, stamp, body)| {
        hasher.record(key, stamp, &body);
    })
}

/// Leaf node over the hashes of its records.
#[must_use]
pub fn leaf_node_hash(records: &[Digest]) -> Digest {
    leaf_node_hash_of(len16(records.len()), &mth(records))
}

/// Leaf node of `count` records whose list has the root `list`.
#[must_use]
pub fn leaf_node_hash_of(count: u16, list: &Digest) -> Digest {
    Hasher::new().leaf_node(count, list).finish()
}

/// Entry of an inner node: no key in the child is below the separator, none before it is not. That of a node's first entry is empty.
#[must_use]
pub fn entry_hash(separator: &[u8], child: &Digest) -> Digest {
    Hasher::new().entry(separator, child).finish()
}

/// [`entry_hash`] of several.
#[must_use]
pub fn entry_hashes<'s>(entries: impl ExactSizeIterator<Item = (&'s [u8], Digest)>) -> Vec<Digest> {
    Hasher::each(entries, |hasher, (separator, child)| {
        hasher.entry(separator, &child);
    })
}

/// Inner node at `level` over the hashes of its entries.
#[must_use]
pub fn inner_node_hash(level: u8, entries: &[Digest]) -> Digest {
    inner_node_hash_of(level, len16(entries.len()), &mth(entries))
}

/// Inner node at `level` of `count` entries whose list has the root `list`.
#[must_use]
pub fn inner_node_hash_of(level: u8, count: u16, list: &Digest) -> Digest {
    Hasher::new().inner_node(level, count, list).finish()
}

/// Tree: level of its root, records in it, hash of its root node.
#[must_use]
pub fn tree_digest(level: u8, entries: u64, root: &Digest) -> Digest {
    Hasher::tagged(0x13).u8(level).u64(entries).digest(root).finish()
}

/// The root node of a tree without records.
#[must_use]
pub fn empty_root_hash() -> Digest {
    leaf_node_hash(&[])
}

/// The tree without records.
#[must_use]
pub fn empty_tree_digest() -> Digest {
    tree_digest(0, 0, &empty_root_hash())
}

/// Forest of a shard, youngest tree first.
///
/// # Panics
/// If there are more than 255 trees.
#[must_use]
pub fn shard_digest(trees: &[Digest]) -> Digest {
    let count = u8::try_from(trees.len()).expect("a shard has at most 16 trees");
    let mut hasher = Hasher::tagged(0x14);
    trees.iter().fold(hasher.u8(1).u8(count), Hasher::digest).finish()
}

/// The forest of a new shard: one empty tree.
#[must_use]
pub fn empty_shard_digest() -> Digest {
    shard_digest(&[empty_tree_digest()])
}

/// The two numbers that choose a key's bits in a filter.
#[must_use]
pub fn filter_hash(key: &[u8]) -> (u64, u64) {
    filter_numbers(&Hasher::new().filter_key(key).finish())
}

/// [`filter_hash`] of several keys.
#[must_use]
pub fn filter_hashes<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]>) -> Vec<(u64, u64)> {
    let hashes = Hasher::each(keys, |hasher, key| {
        hasher.filter_key(key);
    });
    hashes.iter().map(filter_numbers).collect()
}

fn filter_numbers(hash: &Digest) -> (u64, u64) {
    let (words, _) = hash.0.as_chunks();
    (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))
}

/// State of one shard at a version: its range, its newest version at or below, its forest.
#[must_use]
pub fn state_leaf_hash(shard: ShardId, low: &[u8], high: Option<&[u8]>, version: Version, digest: &Digest) -> Digest {
    Hasher::tagged(0x16).u32(shard.0).str16(low).opt_str16(high).u64(version.0).digest(digest).finish()
}

/// Encoded shard map.
#[must_use]
pub fn shard_map_hash(encoded: &[u8]) -> Digest {
    Hasher::tagged(0x17).raw(encoded).finish()
}

/// Epoch and the version from which it started.
#[must_use]
pub fn epoch_leaf_hash(epoch: Epoch, base: Version) -> Digest {
    Hasher::tagged(0x18).u64(epoch.0).u64(base.0).finish()
}

/// Encoded journal entry.
#[must_use]
pub fn journal_leaf_hash(entry: &[u8]) -> Digest {
    Hasher::tagged(0x19).raw(entry).finish()
}

/// Operations of one batch on one shard, as sent.
///
/// # Panics
/// If there are 2^32 operations or more.
#[must_use]
pub fn operation_list_hash<'a, I>(operations: I) -> Digest
where
    I: IntoIterator<Item = (&'a [u8], RecordBody)>,
    I::IntoIter: ExactSizeIterator,
{
    Hasher::tagged(0x1a).operations(operations.into_iter()).finish()
}

/// Metadata of a batch.
///
/// # Panics
/// If it has 4 GiB or more.
#[must_use]
pub fn metadata_hash(metadata: &[u8]) -> Digest {
    Hasher::tagged(0x1b).u32(len32(metadata)).raw(metadata).finish()
}

/// Identity of a request in its session: operations, preconditions and metadata.
///
/// # Panics
/// If one of them has 2^32 items or more.
#[must_use]
pub fn batch_hash(batch: &Batch) -> Digest {
    let operations =
        batch.operations.iter().map(|operation| (operation.key.as_slice(), RecordBody::of(&operation.change)));
    batch_hash_of(operations, &batch.preconditions, &batch.metadata)
}

/// The same of its parts, for a caller that has hashed the values already.
///
/// # Panics
/// If one of them has 2^32 items or more.
#[must_use]
pub fn batch_hash_of<'a, I>(operations: I, preconditions: &[Precondition], metadata: &[u8]) -> Digest
where
    I: IntoIterator<Item = (&'a [u8], RecordBody)>,
    I::IntoIter: ExactSizeIterator,
{
    let mut encoded = Writer::new();
    preconditions.iter().for_each(|precondition| precondition.encode(&mut encoded));
    let count = u32::try_from(preconditions.len()).expect("batches are limited");
    Hasher::tagged(0x1d)
        .operations(operations.into_iter())
        .u32(count)
        .raw(&encoded.into_bytes())
        .u32(len32(metadata))
        .raw(metadata)
        .finish()
}

/// Checksum that ends a proof file, over all before it: it finds damage, not lies.
#[must_use]
pub fn file_checksum(bytes: &[u8]) -> u64 {
    let hash = Hasher::tagged(0x1e).raw(bytes).finish();
    let mut first = [0; 8];
    first.copy_from_slice(&hash.0[..8]);
    u64::from_le_bytes(first)
}

/// Id of a key of any type in signature lines and vkeys.
#[must_use]
pub fn key_id(name: &str, key_type: u8, key: &[u8]) -> [u8; 4] {
    let hash = Hasher::new().raw(name.as_bytes()).raw(b"\n").raw(&[key_type]).raw(key).finish();
    [hash.0[0], hash.0[1], hash.0[2], hash.0[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No part of them is like another one.
    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
    }

    #[test]
    fn records_entries_and_keys_side_by_side_are_hashed_as_each_alone() {
        let bytes = bytes(600);
        let record = |at: usize| {
            let key = &bytes[at..][..[1, 32, 40, 127, 128, 500][at % 6]];
            let body = if at % 7 == 3 { RecordBody::Tombstone } else { RecordBody::put(&bytes[..at]) };
            (key, Stamp::new(at as u64, 3), body)
        };
        let keys = (0..30).map(|at| record(at).0);
        assert_eq!(filter_hashes(keys.clone()), keys.map(filter_hash).collect::<Vec<_>>());
        for (first, count) in (0..30).flat_map(|first| (0..11).map(move |count| (first, count))) {
            let records = (first..first + count).map(record);
            let alone: Vec<Digest> = records.clone().map(|(key, stamp, body)| record_hash(key, stamp, &body)).collect();
            assert_eq!(record_hashes(records), alone);
            let entries = (first..first + count).map(|at| (record(at).0, sha256(&[at as u8])));
            let alone: Vec<Digest> = entries.clone().map(|(key, child)| entry_hash(key, &child)).collect();
            assert_eq!(entry_hashes(entries), alone);
        }
    }
}
