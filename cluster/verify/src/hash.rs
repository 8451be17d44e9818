//! One function for each kind of hash (`docs/verification.md` sections 1 to 11).
//!
//! Every input begins with a tag of its own. Everything of variable length carries its length or
//! its count. So no input of one kind is also an input of another.
//!
//! Callers pass values that were decoded, or checked against their limits: the length of a key or
//! separator fits a `u16`, every other length a `u32`.

pub(crate) mod list;
mod message;
pub(crate) mod plan;

use alloc::vec::Vec;

use coppice_types::{
    Batch, ClusterId, Digest, Epoch, LedgerId, MemberId, Precondition, ShardId, Stamp, Version, codec::Writer,
};

use self::{
    list::mth,
    message::{Hasher, len16, len32},
};
pub use self::{
    list::{list_node_hash, list_node_hashes},
    message::{RecordBody, sha256, sha256_each},
};

/// Hash of an entry of the root log, which is an RFC 6962 leaf (section 9, tag `00`). `entry` is a
/// header's canonical bytes.
#[must_use]
pub fn log_entry_hash(entry: &[u8]) -> Digest {
    Hasher::tagged(0x00).raw(entry).finish()
}

/// Hash of one record of a leaf node (section 3, tag `10`). `stamp` names the commit that made the
/// change.
#[must_use]
pub fn record_hash(key: &[u8], stamp: Stamp, body: &RecordBody) -> Digest {
    Hasher::new().record(key, stamp, body).finish()
}

/// [`record_hash`] of several records, in their order. Faster than one call for each.
#[must_use]
pub fn record_hashes<'k>(records: impl ExactSizeIterator<Item = (&'k [u8], Stamp, RecordBody)>) -> Vec<Digest> {
    Hasher::each(records, |hasher, (key, stamp, body)| {
        hasher.record(key, stamp, &body);
    })
}

/// Hash of a leaf node over the hashes of its records in key order (section 3, tag `11`). Without
/// records it is the root of the empty tree.
#[must_use]
pub fn leaf_node_hash(records: &[Digest]) -> Digest {
    leaf_node_hash_of(len16(records.len()), &mth(records))
}

/// [`leaf_node_hash`] of `count` records whose hashes have the list root `list` (section 2).
#[must_use]
pub fn leaf_node_hash_of(count: u16, list: &Digest) -> Digest {
    Hasher::new().leaf_node(count, list).finish()
}

/// Hash of one entry of an inner node (section 3, tag `12`). No key in the child is below the
/// separator, and every key in the children before it is. The first entry of a node has the empty
/// separator.
#[must_use]
pub fn entry_hash(separator: &[u8], child: &Digest) -> Digest {
    Hasher::new().entry(separator, child).finish()
}

/// [`entry_hash`] of several entries, in their order. Faster than one call for each.
#[must_use]
pub fn entry_hashes<'s>(entries: impl ExactSizeIterator<Item = (&'s [u8], Digest)>) -> Vec<Digest> {
    Hasher::each(entries, |hasher, (separator, child)| {
        hasher.entry(separator, &child);
    })
}

/// Hash of an inner node over the hashes of its entries in order (section 3, tag `1c`). `level` is
/// 1 or more; the children are one level below.
#[must_use]
pub fn inner_node_hash(level: u8, entries: &[Digest]) -> Digest {
    inner_node_hash_of(level, len16(entries.len()), &mth(entries))
}

/// [`inner_node_hash`] of `count` entries whose hashes have the list root `list` (section 2).
#[must_use]
pub fn inner_node_hash_of(level: u8, count: u16, list: &Digest) -> Digest {
    Hasher::new().inner_node(level, count, list).finish()
}

/// Digest of a tree (section 4, tag `13`): the level of its root, the number of its records
/// (tombstones included), and the hash of its root node.
#[must_use]
pub fn tree_digest(level: u8, entries: u64, root: &Digest) -> Digest {
    Hasher::tagged(0x13).u8(level).u64(entries).digest(root).finish()
}

/// Hash of the root node of the empty tree: a leaf without records.
#[must_use]
pub fn empty_root_hash() -> Digest {
    leaf_node_hash(&[])
}

/// Digest of the empty tree: level 0, no entries (section 4).
#[must_use]
pub fn empty_tree_digest() -> Digest {
    tree_digest(0, 0, &empty_root_hash())
}

/// Digest of a shard's forest (section 6, tag `14`) from the digests of its trees, youngest first.
///
/// # Panics
/// If there are more than 255 trees.
#[must_use]
pub fn shard_digest(trees: &[Digest]) -> Digest {
    let count = u8::try_from(trees.len()).expect("a shard has at most 16 trees");
    let mut hasher = Hasher::tagged(0x14);
    trees.iter().fold(hasher.u8(1).u8(count), Hasher::digest).finish()
}

/// Digest of a new shard's forest: one empty tree.
#[must_use]
pub fn empty_shard_digest() -> Digest {
    shard_digest(&[empty_tree_digest()])
}

/// The two numbers that choose a key's bits in a filter (section 5, tag `15`): `a` for the block,
/// then `x` for the bits in it.
#[must_use]
pub fn filter_hash(key: &[u8]) -> (u64, u64) {
    filter_numbers(&Hasher::new().filter_key(key).finish())
}

/// [`filter_hash`] of several keys, in their order. Faster than one call for each.
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

/// Hash of a state leaf (section 7, tag `16`): one shard at a version. The shard holds `low <= key
/// < high`, without `high` all keys from `low` on. `version` is the newest one in which the shard
/// received a Prepare, `digest` its forest there.
#[must_use]
pub fn state_leaf_hash(shard: ShardId, low: &[u8], high: Option<&[u8]>, version: Version, digest: &Digest) -> Digest {
    Hasher::tagged(0x16).u32(shard.0).str16(low).opt_str16(high).u64(version.0).digest(digest).finish()
}

/// Hash of an encoded shard map (section 7, tag `17`).
#[must_use]
pub fn shard_map_hash(encoded: &[u8]) -> Digest {
    Hasher::tagged(0x17).raw(encoded).finish()
}

/// Hash of an epoch leaf (section 11, tag `18`): the epoch, and the version above which it began.
#[must_use]
pub fn epoch_leaf_hash(epoch: Epoch, base: Version) -> Digest {
    Hasher::tagged(0x18).u64(epoch.0).u64(base.0).finish()
}

/// Hash of an encoded journal entry (section 8, tag `19`): a leaf of the journal. That of a batch
/// names the batch in receipts.
#[must_use]
pub fn journal_leaf_hash(entry: &[u8]) -> Digest {
    Hasher::tagged(0x19).raw(entry).finish()
}

/// Hash of the operations of one batch on one shard, in the order in which they were sent (section
/// 8, tag `1a`). Values count by their length and SHA-256 alone.
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

/// Hash of the metadata of a batch (section 8, tag `1b`).
///
/// # Panics
/// If the metadata has 4 GiB or more.
#[must_use]
pub fn metadata_hash(metadata: &[u8]) -> Digest {
    Hasher::tagged(0x1b).u32(len32(metadata)).raw(metadata).finish()
}

/// Identity of a request in its session (section 8, tag `1d`): all operations, preconditions and
/// metadata of the batch. It is not part of any proof.
///
/// # Panics
/// If there are 2^32 operations or preconditions or more, or one value or the metadata has 4 GiB or
/// more.
#[must_use]
pub fn batch_hash(batch: &Batch) -> Digest {
    let operations =
        batch.operations.iter().map(|operation| (operation.key.as_ref(), RecordBody::of(&operation.change)));
    batch_hash_of(operations, &batch.preconditions, &batch.metadata)
}

/// [`batch_hash`] of a batch's parts, for callers that have hashed the values already.
///
/// # Panics
/// If there are 2^32 operations or preconditions or more, or the metadata has 4 GiB or more.
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

/// Hash of one journal's leaf in the list of a ledger (section 18, tag `04`).
#[must_use]
pub fn ledger_leaf_hash(leaf: &[u8]) -> Digest {
    Hasher::tagged(0x04).raw(leaf).finish()
}

/// Hash of one item of a signed request (section 18, tag `06`). `bytes` is the length of the
/// envelope, `commitment` its SHA-256.
///
/// # Panics
/// If there are 2^16 clues or more.
#[must_use]
pub fn item_hash(kind: u8, commitment: &Digest, bytes: u32, clues: &[Digest]) -> Digest {
    let mut hasher = Hasher::tagged(0x06);
    hasher.u8(kind).digest(commitment).u32(bytes).u16(len16(clues.len()));
    clues.iter().fold(&mut hasher, Hasher::digest).finish()
}

/// The chain of a clue after one more journal (section 18, tag `07`).
#[must_use]
pub fn clue_chain(before: &Digest, jsn: u64, leaf: &Digest) -> Digest {
    Hasher::tagged(0x07).digest(before).u64(jsn).digest(leaf).finish()
}

/// Hash of a clue in a ledger (section 18, tag `08`).
///
/// # Panics
/// If the clue has 2^16 bytes or more.
#[must_use]
pub fn clue_hash(ledger: LedgerId, clue: &[u8]) -> Digest {
    Hasher::tagged(0x08).raw(ledger.as_bytes()).str16(clue).finish()
}

/// Id of the ledger that a signed request founds (section 18, tag `05`). The lowest bit of its last
/// byte says whether the ledger is spread over the shards.
#[must_use]
pub fn ledger_id(cluster: ClusterId, signed: &[u8], spread: bool) -> LedgerId {
    let hash = Hasher::tagged(0x05).raw(cluster.as_bytes()).digest(&sha256(signed)).finish();
    let mut id = [0; 16];
    id.copy_from_slice(&hash.0[..16]);
    id[15] = id[15] & 0xfe | u8::from(spread);
    LedgerId(id)
}

/// Id of the member of this name (section 18, tag `09`).
///
/// # Panics
/// If the name has 2^16 bytes or more.
#[must_use]
pub fn member_id(name: &str) -> MemberId {
    let hash = Hasher::tagged(0x09).str16(name.as_bytes()).finish();
    let mut id = [0; 16];
    id.copy_from_slice(&hash.0[..16]);
    MemberId(id)
}

/// The second byte of a reserved key (section 18, tag `0a`): 1 to 255. Keys with the same unit lie
/// in one shard.
#[must_use]
pub fn ledger_place(ledger: LedgerId, unit: &[u8]) -> u8 {
    let hash = Hasher::tagged(0x0a).raw(ledger.as_bytes()).raw(unit).finish();
    let mut first = [0; 8];
    first.copy_from_slice(&hash.0[..8]);
    1 + (u64::from_le_bytes(first) % 255) as u8
}

/// Checksum that ends a proof file, over all bytes before it (section 12, tag `1e`). It finds
/// damage; it is not a defence against lies.
#[must_use]
pub fn file_checksum(bytes: &[u8]) -> u64 {
    let hash = Hasher::tagged(0x1e).raw(bytes).finish();
    let mut first = [0; 8];
    first.copy_from_slice(&hash.0[..8]);
    u64::from_le_bytes(first)
}

/// Id of a key in signature lines and vkeys (section 10): the first 4 bytes of a SHA-256 over name,
/// type and public key. `key_type` is 1 for a key that signs notes, 4 for one that cosigns.
#[must_use]
pub fn key_id(name: &str, key_type: u8, key: &[u8]) -> [u8; 4] {
    let hash = Hasher::new().raw(name.as_bytes()).raw(b"\n").raw(&[key_type]).raw(key).finish();
    [hash.0[0], hash.0[1], hash.0[2], hash.0[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without repetition, so that a wrong offset gives a different hash.
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
