//! One function for each kind of hash (`docs/verification.md` sections 1 to 11).
//!
//! Every input begins with a tag of its own, and everything of variable length carries its length or its count, so that no
//! value of one kind is a value of another. Lengths are those of decoded or limit-checked values: a key or separator fits
//! a `u16`, everything else a `u32`.

mod plan;

use alloc::vec::Vec;

use coppice_types::{Batch, Change, Digest, Epoch, Precondition, ShardId, Stamp, Version, codec::Writer};
use sha2::{Digest as _, Sha256};

pub(crate) use self::plan::{HashPlan, Planned};
use crate::{
    merkle,
    sha256::{BLOCK_BYTES, LANES, PADDING_BYTES_MIN, digest_each, message_each, pad, pair_each},
};

/// What a record or an operation says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// The key has a value of this length and SHA-256.
    Put {
        /// Length of the value in bytes.
        value_len: u32,
        /// SHA-256 of the value.
        value_hash: Digest,
    },
    /// The key has no value; in a tree, the record hides older ones.
    Tombstone,
}

impl RecordBody {
    /// The body that a put of this value leaves.
    ///
    /// # Panics
    /// If the value has 4 GiB or more.
    #[must_use]
    pub fn put(value: &[u8]) -> Self {
        Self::Put { value_len: len32(value), value_hash: sha256(value) }
    }

    /// The body that a change leaves.
    ///
    /// # Panics
    /// If a value has 4 GiB or more.
    #[must_use]
    pub fn of(change: &Change) -> Self {
        match change {
            Change::Put(value) => Self::put(value),
            Change::Delete => Self::Tombstone,
        }
    }

    /// The length of the value, if there is one.
    #[must_use]
    pub fn value_len(&self) -> Option<u32> {
        match self {
            Self::Put { value_len, .. } => Some(*value_len),
            Self::Tombstone => None,
        }
    }
}

/// SHA-256 of the bytes, without a tag.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    let [hash] = message_each([bytes]);
    hash
}

/// [`sha256`] of several messages, side by side as far as they have blocks in common.
#[must_use]
pub fn sha256_each(messages: &[&[u8]]) -> Vec<Digest> {
    let (fours, rest) = messages.as_chunks::<LANES>();
    let mut out = Vec::with_capacity(messages.len());
    fours.iter().for_each(|four| out.extend(message_each(*four)));
    out.extend(rest.iter().map(|message| sha256(message)));
    out
}

/// Entry of the root log: an RFC 6962 leaf.
#[must_use]
pub fn log_entry_hash(entry: &[u8]) -> Digest {
    Hasher::tagged(0x00).raw(entry).finish()
}

const LIST_NODE_TAG: u8 = 0x01;

/// Inner node of a Merkle list.
#[must_use]
pub fn list_node_hash(left: &Digest, right: &Digest) -> Digest {
    let [hash] = pair_each(LIST_NODE_TAG, [[left, right]]);
    hash
}

/// [`list_node_hash`] of neighbours: of each pair of `below` for which `above` has room.
///
/// # Panics
/// If there are fewer pairs.
pub fn list_node_hashes(below: &[Digest], above: &mut [Digest]) {
    let (pairs, _) = below[..2 * above.len()].as_chunks();
    let (pairs, above) = list_nodes_by::<LANES>(pairs, above);
    let (pairs, above) = list_nodes_by::<2>(pairs, above);
    list_nodes_by::<1>(pairs, above);
}

/// Hashes so many pairs at once, and gives those that are left.
#[inline]
fn list_nodes_by<'a, const N: usize>(
    pairs: &'a [[Digest; 2]],
    above: &'a mut [Digest],
) -> (&'a [[Digest; 2]], &'a mut [Digest]) {
    let ((groups, rest), (groups_above, rest_above)) = (pairs.as_chunks::<N>(), above.as_chunks_mut::<N>());
    for (group, above) in groups.iter().zip(groups_above) {
        *above = pair_each(LIST_NODE_TAG, group.each_ref().map(<[Digest; 2]>::each_ref));
    }
    (rest, rest_above)
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
    leaf_node_hash_of(len16(records.len()), &merkle::mth(records))
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
    inner_node_hash_of(level, len16(entries.len()), &merkle::mth(entries))
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

fn len16(len: usize) -> u16 {
    u16::try_from(len).expect("nodes and keys are small")
}

fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("values and metadata are limited")
}

/// Most bytes that are hashed as one message on the stack: a record of a key of 127 bytes.
const SHORT_BYTES_MAX: usize = 3 * BLOCK_BYTES;

/// SHA-256 fed with codec values. Nearly all messages of a tree have two blocks; they are padded where they were built
/// and hashed at once, which takes half the time of a streaming hasher. They are built in place: moving one would cost as much as a block.
struct Hasher {
    short: [u8; SHORT_BYTES_MAX],
    len: usize,
    /// Everything so far, once it was too long for one message on the stack.
    long: Option<Sha256>,
}

impl Hasher {
    #[inline]
    const fn new() -> Self {
        Self { short: [0; SHORT_BYTES_MAX], len: 0, long: None }
    }

    #[inline]
    fn tagged(tag: u8) -> Self {
        let mut hasher = Self::new();
        hasher.short[0] = tag;
        hasher.len = 1;
        hasher
    }

    #[inline]
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.len + bytes.len();
        if end + PADDING_BYTES_MIN <= SHORT_BYTES_MAX && self.long.is_none() {
            self.short[self.len..end].copy_from_slice(bytes);
            self.len = end;
        } else {
            self.stream(bytes);
        }
        self
    }

    /// Goes on as a message that is too long for the stack.
    fn stream(&mut self, bytes: &[u8]) {
        let begun = &self.short[..self.len];
        self.long.get_or_insert_with(|| Sha256::new_with_prefix(begun)).update(bytes);
    }

    #[inline]
    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    #[inline]
    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    fn stamp(&mut self, stamp: Stamp) -> &mut Self {
        self.u64(stamp.epoch.0).u64(stamp.version.0)
    }

    #[inline]
    fn str16(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(len16(bytes.len())).raw(bytes)
    }

    fn opt_str16(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            None => self.u8(0),
            Some(bytes) => self.u8(1).str16(bytes),
        }
    }

    #[inline]
    fn digest(&mut self, digest: &Digest) -> &mut Self {
        self.raw(&digest.0)
    }

    #[inline]
    fn record(&mut self, key: &[u8], stamp: Stamp, body: &RecordBody) -> &mut Self {
        match body {
            RecordBody::Put { value_len, value_hash } => {
                self.u8(0x10).u8(0).stamp(stamp).str16(key).u32(*value_len).digest(value_hash)
            }
            RecordBody::Tombstone => self.u8(0x10).u8(1).stamp(stamp).str16(key),
        }
    }

    #[inline]
    fn leaf_node(&mut self, count: u16, list: &Digest) -> &mut Self {
        self.u8(0x11).u16(count).digest(list)
    }

    #[inline]
    fn entry(&mut self, separator: &[u8], child: &Digest) -> &mut Self {
        self.u8(0x12).str16(separator).digest(child)
    }

    #[inline]
    fn inner_node(&mut self, level: u8, count: u16, list: &Digest) -> &mut Self {
        self.u8(0x1c).u8(level).u16(count).digest(list)
    }

    #[inline]
    fn filter_key(&mut self, key: &[u8]) -> &mut Self {
        self.u8(0x15).raw(key)
    }

    fn operations<'a>(&mut self, operations: impl ExactSizeIterator<Item = (&'a [u8], RecordBody)>) -> &mut Self {
        let count = u32::try_from(operations.len()).expect("batches are limited");
        operations.fold(self.u32(count), |hasher, (key, body)| match body {
            RecordBody::Put { value_len, value_hash } => hasher.u8(0).str16(key).u32(value_len).digest(&value_hash),
            RecordBody::Tombstone => hasher.u8(1).str16(key),
        })
    }

    #[inline]
    fn finish(&mut self) -> Digest {
        if let Some(long) = self.long.take() {
            return Digest(long.finalize().into());
        }
        let [hash] = digest_each([pad(&mut self.short, self.len, self.len)]);
        hash
    }

    /// Hashes of what is written for each of the items, side by side.
    #[inline]
    fn each<T>(mut items: impl ExactSizeIterator<Item = T>, write: impl Fn(&mut Self, T)) -> Vec<Digest> {
        let mut out = Vec::with_capacity(items.len());
        while items.len() >= LANES {
            let mut hashers = [const { Self::new() }; LANES];
            hashers.iter_mut().zip(&mut items).for_each(|(hasher, item)| write(hasher, item));
            out.extend(Self::finish_each(&mut hashers));
        }
        out.extend(items.map(|item| {
            let mut hasher = Self::new();
            write(&mut hasher, item);
            hasher.finish()
        }));
        out
    }

    /// [`Hasher::finish`] of several.
    #[inline]
    fn finish_each<const N: usize>(hashers: &mut [Self; N]) -> [Digest; N] {
        if hashers.iter().any(|hasher| hasher.long.is_some()) {
            return hashers.each_mut().map(Self::finish);
        }
        digest_each(hashers.each_mut().map(|hasher| pad(&mut hasher.short, hasher.len, hasher.len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 as a streaming hasher has it.
    fn expected(message: &[u8]) -> Digest {
        Digest(Sha256::digest(message).into())
    }

    /// No part of them is like another one.
    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
    }

    #[test]
    fn messages_of_every_length_and_cut_are_hashed_as_sha256_says() {
        let bytes = bytes(400);
        for len in 0..bytes.len() {
            let message = &bytes[..len];
            assert_eq!(sha256(message), expected(message), "{len} bytes");
            for cut in [0, len / 3, len.saturating_sub(1)] {
                let hash = Hasher::new().raw(&message[..cut]).raw(&message[cut..]).finish();
                assert_eq!(hash, expected(message), "{len} bytes cut at {cut}");
            }
        }
    }

    #[test]
    fn messages_side_by_side_are_hashed_as_each_alone_whatever_their_lengths() {
        let bytes = bytes(4000);
        let lengths = [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1024, 3000];
        for seed in 0..600 {
            // Steps of 0 give messages of one length.
            let step = seed / lengths.len();
            let messages: Vec<&[u8]> = (0..seed % 10)
                .map(|at| &bytes[37 * at + seed % 5..][..lengths[(seed + at * step) % lengths.len()]])
                .collect();
            let alone: Vec<Digest> = messages.iter().map(|message| expected(message)).collect();
            assert_eq!(sha256_each(&messages), alone);
        }
    }

    #[test]
    fn list_nodes_are_the_hashes_of_their_tag_and_two_digests() {
        let below: Vec<Digest> = (0..41_u8).map(|seed| sha256(&[seed])).collect();
        let node = |pair: &[Digest; 2]| expected(&[&[0x01][..], &pair[0].0, &pair[1].0].concat());
        let above: Vec<Digest> = below.as_chunks().0.iter().map(node).collect();
        for count in 0..=above.len() {
            let mut out = alloc::vec![Digest::default(); count];
            list_node_hashes(&below, &mut out);
            assert_eq!(out, above[..count], "{count} nodes");
        }
        assert_eq!(list_node_hash(&below[4], &below[5]), above[2]);
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
