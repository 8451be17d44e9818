//! New nodes, made of old entries of a predecessor and new entries. Old entries are copied without
//! being decoded.

use std::sync::Arc;

use coppice_types::{Digest, Params, Version};
use coppice_verify::{hash, rules};
use twox_hash::XxHash3_64;

use super::{
    Body, Child, ENTRY_FIXED_BYTES, FORMAT, HEADER_BYTES, KIND_INLINE, KIND_STORED, KIND_TOMBSTONE, LOCATOR_NAMED,
    LOCATOR_VALUE_LOG, LeafRecord, Node, Patch, SLOT_BYTES, list::MerkleList,
};
use crate::place::{
    bytes::own,
    page::{PAGE_BYTES, Pid, SPAN_PAGES_MAX, zeroed},
};

impl LeafRecord<'_> {
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut out = Cut(out);
        out.put(&[match self.body {
            Body::Inline { .. } => KIND_INLINE,
            Body::Stored { .. } => KIND_STORED,
            Body::Tombstone => KIND_TOMBSTONE,
        }]);
        out.put(&self.stamp.epoch.0.to_le_bytes());
        out.put(&self.stamp.version.0.to_le_bytes());
        out.put(&(self.key.len() as u16).to_le_bytes());
        out.put(self.key);
        match &self.body {
            Body::Inline { hash, value } => {
                out.put(&(value.len() as u32).to_le_bytes());
                out.put(&hash.0);
                out.put(value);
            }
            Body::Stored { hash, len, blob } => {
                out.put(&len.to_le_bytes());
                out.put(&hash.0);
                out.put(&[if blob.len == *len { LOCATOR_VALUE_LOG } else { LOCATOR_NAMED }]);
                out.put(&blob.at.segment.to_le_bytes());
                out.put(&blob.at.offset.to_le_bytes());
            }
            Body::Tombstone => {}
        }
        assert!(out.0.is_empty(), "a record takes the bytes that it says");
    }
}

/// The bytes of an entry that are still to be filled.
struct Cut<'a>(&'a mut [u8]);

impl Cut<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// An entry of the new node that its predecessor does not have.
pub(crate) trait NewEntry {
    fn key(&self) -> &[u8];
    /// The entry's weight in the split rule.
    fn weight(&self, params: &Params) -> u32;
    /// The hashes of several entries, for the node's Merkle list.
    fn hashes<'e>(entries: impl Iterator<Item = &'e Self>) -> impl Iterator<Item = Digest>
    where
        Self: 'e;
    fn encoded_bytes(&self) -> usize;
    /// Encodes the entry into exactly [`Self::encoded_bytes`] bytes.
    fn encode(&self, out: &mut [u8]);
}

/// A record and its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedRecord<'a> {
    pub(crate) record: LeafRecord<'a>,
    pub(crate) hash: Digest,
}

#[cfg(test)]
impl<'a> HashedRecord<'a> {
    pub(crate) fn new(record: LeafRecord<'a>) -> Self {
        Self { record, hash: record.hash() }
    }
}

impl NewEntry for HashedRecord<'_> {
    fn key(&self) -> &[u8] {
        self.record.key
    }

    fn weight(&self, params: &Params) -> u32 {
        rules::record_weight(params, self.record.key.len(), self.record.body.value_len())
    }

    fn hashes<'e>(entries: impl Iterator<Item = &'e Self>) -> impl Iterator<Item = Digest>
    where
        Self: 'e,
    {
        entries.map(|entry| entry.hash)
    }

    fn encoded_bytes(&self) -> usize {
        self.record.encoded_bytes()
    }

    fn encode(&self, out: &mut [u8]) {
        self.record.encode(out);
    }
}

/// A child and its separator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildEntry {
    pub(crate) separator: Vec<u8>,
    pub(crate) child: Child,
}

impl NewEntry for ChildEntry {
    fn key(&self) -> &[u8] {
        &self.separator
    }

    fn weight(&self, params: &Params) -> u32 {
        rules::entry_weight(params, self.separator.len())
    }

    fn hashes<'e>(entries: impl Iterator<Item = &'e Self>) -> impl Iterator<Item = Digest> {
        let entries: Vec<_> = entries.map(|entry| (&*entry.separator, entry.child.hash)).collect();
        hash::entry_hashes(entries.into_iter()).into_iter()
    }

    fn encoded_bytes(&self) -> usize {
        ENTRY_FIXED_BYTES + self.separator.len()
    }

    fn encode(&self, out: &mut [u8]) {
        let mut out = Cut(out);
        out.put(&(self.separator.len() as u16).to_le_bytes());
        out.put(&self.separator);
        out.put(&self.child.pid.to_u64().to_le_bytes());
        out.put(&self.child.checksum.to_le_bytes());
        out.put(&self.child.hash.0);
        assert!(out.0.is_empty(), "an entry takes the bytes that it says");
    }
}

/// The origin of an entry of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Index of an entry of the predecessor.
    Old(usize),
    /// Index among the new entries.
    New(usize),
}

/// The entries of a new node in key order, without copies of them.
#[derive(Debug)]
pub(crate) struct Entries<'a, E> {
    pub(crate) sources: &'a [Source],
    /// The predecessor; `None` if all entries are new.
    pub(crate) old: Option<&'a Node>,
    pub(crate) new: &'a [E],
}

impl<'a, E: NewEntry> Entries<'a, E> {
    fn old(&self) -> &'a Node {
        self.old.expect("there are old entries")
    }

    pub(crate) fn key(&self, source: Source) -> &'a [u8] {
        match source {
            Source::Old(index) => self.old().key(index),
            Source::New(index) => self.new[index].key(),
        }
    }

    pub(crate) fn weight(&self, source: Source, params: &Params) -> u32 {
        match source {
            Source::Old(index) => self.old().weight(index, params),
            Source::New(index) => self.new[index].weight(params),
        }
    }

    /// Hashes of the new entries, in order.
    pub(crate) fn new_hashes(&self) -> impl Iterator<Item = Digest> {
        E::hashes(self.sources.iter().filter_map(|source| match source {
            Source::Old(_) => None,
            Source::New(index) => Some(&self.new[*index]),
        }))
    }

    fn encoded_bytes(&self, source: Source) -> usize {
        match source {
            Source::Old(index) => self.old().entry_range(index..index + 1).len(),
            Source::New(index) => self.new[index].encoded_bytes(),
        }
    }

    /// Number of entries at the start of `sources` that are consecutive in the predecessor.
    fn run(&self, sources: &[Source]) -> usize {
        let Some(Source::Old(first)) = sources.first() else { return 0 };
        sources.iter().enumerate().take_while(|(at, source)| **source == Source::Old(first + at)).count()
    }
}

/// The bytes of a node before it has a place.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(super) bytes: Arc<[u8]>,
    /// The node as a patch, unless it is to be stored whole.
    pub(crate) patch: Option<Patch>,
    pub(crate) level: u8,
    pub(crate) hash: Digest,
}

impl Draft {
    /// A node of at least one entry, in ascending key order; `list` holds the hashes of the
    /// entries.
    pub(crate) fn new<E: NewEntry>(made_at: Version, level: u8, entries: &Entries<'_, E>, list: &MerkleList) -> Self {
        let count = entries.sources.len();
        assert!(count > 0, "only the root of an empty tree has no entries, and it has no page");
        assert_eq!(list.leaves().len(), count);
        let root = list.root();
        let hash = match level {
            0 => hash::leaf_node_hash_of(count as u16, root),
            _ => hash::inner_node_hash_of(level, count as u16, root),
        };
        Self { bytes: encode(made_at, level, entries), patch: None, level, hash }
    }

    /// A node without a predecessor.
    pub(crate) fn all_new(made_at: Version, level: u8, new: &[impl NewEntry]) -> Self {
        let sources: Vec<Source> = (0..new.len()).map(Source::New).collect();
        let mut leaves = MerkleList::room(new.len());
        leaves.extend(NewEntry::hashes(new.iter()));
        let list = MerkleList::new(leaves);
        Self::new(made_at, level, &Entries { sources: &sources, old: None, new }, &list)
    }

    /// Length of the span that the whole node takes.
    pub(crate) fn pages(&self) -> usize {
        self.bytes.len() / PAGE_BYTES
    }

    /// Assigns the place: PID and checksum become part of the bytes.
    pub(crate) fn place(mut self, pid: Pid) -> (Node, Child) {
        assert_eq!(pid.is_patch(), self.patch.is_some());
        assert!(pid.is_patch() || pid.len_bytes() == self.bytes.len());
        let bytes = own(&mut self.bytes);
        bytes[8..16].copy_from_slice(&pid.to_u64().to_le_bytes());
        let checksum = XxHash3_64::oneshot_with_seed(pid.to_u64(), &bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        let base = self.patch.and_then(|patch| patch.base);
        (Node { bytes: self.bytes, base }, Child { pid, checksum, hash: self.hash })
    }
}

/// Pages of a node with this many entries that take this many bytes.
pub(crate) fn span_pages(entries: usize, encoded_bytes: usize) -> usize {
    (HEADER_BYTES + entries * SLOT_BYTES + encoded_bytes).div_ceil(PAGE_BYTES)
}

fn encode<E: NewEntry>(made_at: Version, level: u8, entries: &Entries<'_, E>) -> Arc<[u8]> {
    let sources = entries.sources;
    let slots_end = HEADER_BYTES + sources.len() * SLOT_BYTES;
    let encoded_bytes = sources.iter().map(|source| entries.encoded_bytes(*source)).sum::<usize>();
    let (pages, end) = (span_pages(sources.len(), encoded_bytes), slots_end + encoded_bytes);
    assert!(pages <= SPAN_PAGES_MAX, "weights bound the size of a node");
    let mut shared = zeroed(pages * PAGE_BYTES);
    let out = own(&mut shared);
    out[16..24].copy_from_slice(&made_at.0.to_le_bytes());
    out[24] = FORMAT;
    out[25] = level;
    out[26..28].copy_from_slice(&(sources.len() as u16).to_le_bytes());
    out[28..30].copy_from_slice(&(end as u16).to_le_bytes());
    let (mut at, mut index) = (slots_end, 0);
    while index < sources.len() {
        let slots = HEADER_BYTES + index * SLOT_BYTES;
        if let Source::New(new) = sources[index] {
            let entry = &entries.new[new];
            let len = entry.encoded_bytes();
            entry.encode(&mut out[at..at + len]);
            out[slots..slots + SLOT_BYTES].copy_from_slice(&(at as u16).to_le_bytes());
            at += len;
            index += 1;
            continue;
        }
        // Consecutive entries of the predecessor are copied at once.
        let run = entries.run(&sources[index..]);
        let Source::Old(first) = sources[index] else { continue };
        let old = entries.old();
        let range = old.entry_range(first..first + run);
        for (slot, from) in out[slots..slots + run * SLOT_BYTES].as_chunks_mut().0.iter_mut().zip(first..) {
            *slot = ((old.slot(from) - range.start + at) as u16).to_le_bytes();
        }
        out[at..at + range.len()].copy_from_slice(&old.bytes[range.clone()]);
        at += range.len();
        index += run;
    }
    assert_eq!(at, end);
    shared
}

#[cfg(test)]
mod tests {
    use coppice_types::Stamp;

    use super::*;
    use crate::place::{
        page::PageFile,
        refs::{BlobRef, ValueRef},
    };

    fn record<'a>(key: &'a [u8], body: Body<'a>) -> HashedRecord<'a> {
        HashedRecord::new(LeafRecord { key, stamp: Stamp::new(1, 2), body })
    }

    fn inline(value: &[u8]) -> Body<'_> {
        Body::Inline { hash: hash::sha256(value), value }
    }

    /// A value in the value log, alone or with its name.
    fn stored(len: u32, name_bytes: u32) -> Body<'static> {
        let at = ValueRef { segment: 9, offset: 70_000 };
        Body::Stored { hash: Digest([3; 32]), len, blob: BlobRef { at, len: len + name_bytes } }
    }

    fn child(number: u64) -> Child {
        Child { pid: Pid::new(PageFile::Data, number, 1), checksum: !number, hash: Digest([number as u8; 32]) }
    }

    fn entry(separator: &[u8], number: u64) -> ChildEntry {
        ChildEntry { separator: separator.to_vec(), child: child(number) }
    }

    fn encoded(entry: &impl NewEntry) -> Vec<u8> {
        let mut bytes = vec![0; entry.encoded_bytes()];
        entry.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_record_takes_the_bytes_of_the_format() {
        let stamp = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        let head = |kind: u8| [&[kind][..], &stamp, &[3, 0], b"key"].concat();
        let value = |len: u32, hash: Digest| [&len.to_le_bytes()[..], &hash.0].concat();
        let place = [9_u32.to_le_bytes(), 70_000_u32.to_le_bytes()].concat();
        let expected = [head(0), value(2, hash::sha256(b"ab")), b"ab".to_vec()].concat();
        assert_eq!(encoded(&record(b"key", inline(b"ab"))), expected);
        for (name_bytes, locator) in [(0, 1), (21, 2)] {
            let expected = [head(1), value(500, Digest([3; 32])), vec![locator], place.clone()].concat();
            assert_eq!(encoded(&record(b"key", stored(500, name_bytes))), expected);
        }
        assert_eq!(encoded(&record(b"key", Body::Tombstone)), head(2));
    }

    #[test]
    fn an_entry_takes_the_bytes_of_the_format() {
        let numbers = [child(5).pid.to_u64().to_le_bytes(), (!5_u64).to_le_bytes()].concat();
        assert_eq!(encoded(&entry(b"key", 5)), [&[3, 0][..], b"key", &numbers, &[5; 32]].concat());
    }

    /// The split rule bounds weights, and a span must have room for what it bounds.
    #[test]
    fn an_entry_is_at_least_as_heavy_as_its_bytes_and_its_slot() {
        let params = Params::default();
        for key_len in [1, 16, 500] {
            let key = vec![b'k'; key_len];
            for body in [Body::Tombstone, inline(b""), inline(&[7; 100]), stored(5000, 0), stored(5000, 30)] {
                let record = record(&key, body);
                assert!(record.weight(&params) as usize >= record.encoded_bytes() + SLOT_BYTES, "{body:?}");
            }
            let entry = entry(&key, 1);
            assert!(entry.weight(&params) as usize >= entry.encoded_bytes() + SLOT_BYTES);
        }
    }

    #[test]
    fn a_span_has_as_many_pages_as_its_node_needs() {
        let room = PAGE_BYTES - HEADER_BYTES - 2 * SLOT_BYTES;
        assert_eq!([1, room, room + 1].map(|bytes| span_pages(2, bytes)), [1, 1, 2]);
        for (len, pages) in [(0, 1), (3800, 1), (4000, 1), (4100, 2), (9000, 3)] {
            let value = vec![7; len];
            let draft = Draft::all_new(Version(1), 0, &[record(b"k", inline(&value))]);
            assert_eq!(draft.pages(), pages, "{len} bytes");
        }
    }

    #[test]
    fn consecutive_old_entries_are_one_run() {
        let old = Draft::all_new(Version(1), 0, &[b"a", b"b", b"c", b"d"].map(|key| record(key, Body::Tombstone)));
        let (old, _) = old.place(Pid::new(PageFile::Data, 1, 1));
        let new = [record(b"bb", Body::Tombstone)];
        let sources = [Source::Old(0), Source::Old(1), Source::New(0), Source::Old(2), Source::Old(3)];
        let entries = Entries { sources: &sources, old: Some(&old), new: &new };
        assert_eq!([0, 1, 2, 3, 4, 5].map(|from| entries.run(&sources[from..])), [2, 1, 0, 2, 1, 0]);
        assert_eq!(entries.run(&[Source::Old(0), Source::Old(2)]), 1, "entry 1 was removed");
        let keys: Vec<&[u8]> = sources.iter().map(|source| entries.key(*source)).collect();
        assert_eq!(keys, [&b"a"[..], b"b", b"bb", b"c", b"d"]);
        assert_eq!(entries.new_hashes().collect::<Vec<_>>(), [new[0].hash]);
    }

    #[test]
    fn an_inner_node_of_old_and_new_children_is_the_node_of_all_of_them() {
        let place = |draft: Draft| draft.place(Pid::new(PageFile::Index, 6, 1));
        let all: Vec<ChildEntry> = (0..6_u8).map(|n| entry(&vec![n; usize::from(n)], u64::from(n))).collect();
        for present in 1_u32..64 {
            let is_old = |index: &usize| present >> index & 1 == 1;
            let (old, new): (Vec<usize>, Vec<usize>) = (0..6).partition(is_old);
            let of = |indices: &[usize]| indices.iter().map(|index| all[*index].clone()).collect::<Vec<_>>();
            let (before, _) = place(Draft::all_new(Version(1), 1, &of(&old)));
            let source = |index: usize| match old.binary_search(&index) {
                Ok(at) => Source::Old(at),
                Err(_) => Source::New(new.partition_point(|other| *other < index)),
            };
            let sources: Vec<Source> = (0..6).map(source).collect();
            let entries = Entries { sources: &sources, old: Some(&before), new: &of(&new) };
            let list = MerkleList::new(NewEntry::hashes(all.iter()).collect());
            let mixed = place(Draft::new(Version(2), 1, &entries, &list));
            let whole = place(Draft::all_new(Version(2), 1, &all));
            assert_eq!((mixed.0.bytes(), mixed.1), (whole.0.bytes(), whole.1), "{present:b}");
        }
    }

    #[test]
    fn the_place_is_part_of_the_checksum_and_not_of_the_hash() {
        let draft = || Draft::all_new(Version(1), 0, &[record(b"k", inline(b"v"))]);
        let [(node, one), (_, other)] = [1, 2].map(|first| draft().place(Pid::new(PageFile::Data, first, 1)));
        assert_ne!(one.checksum, other.checksum);
        assert_eq!((one.hash, node.hash()), (other.hash, one.hash));
        assert_eq!((node.pid(), node.checksum()), (one.pid, one.checksum));
    }

    #[test]
    #[should_panic(expected = "a node has entries")]
    fn a_node_has_an_entry() {
        Draft::all_new(Version(1), 0, &[] as &[ChildEntry]);
    }
}
