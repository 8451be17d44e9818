//! A node in its only representation: the bytes of its span, searched in place.
//!
//! `docs/format.md` section "Pages" has the layout. A [`Node`] is made only from bytes that this
//! module wrote or checked, so its accessors index without further checks. The checksum covers the
//! whole span and is seeded with the PID, and a parent stores its child's checksum. So a span read
//! from the wrong place is detected, and so is an older span that a lost write left there.

mod draft;
pub(crate) mod list;
mod patch;

use std::{cmp::Ordering, hint::black_box, ops::Range, sync::Arc};

use coppice_types::{Digest, Epoch, Params, Stamp, Version};
use coppice_verify::{
    hash::{self, RecordBody},
    rules,
};
use twox_hash::XxHash3_64;

pub(crate) use draft::{ChildEntry, Draft, Entries, HashedRecord, NewEntry, Source, span_pages};
pub(crate) use patch::{Base, Patch, PatchPage, patch_in};

use crate::place::{
    bytes::array,
    page::{PAGE_BYTES, Pid, SPAN_PAGES_MAX},
    refs::{self, BlobRef, ValueRef},
};

/// Size of a cache line; some processors have lines twice as long.
const LINE_BYTES: usize = 64;

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 32;
const SLOT_BYTES: usize = 2;
/// Fixed part of a record: kind, stamp and key length.
const RECORD_FIXED_BYTES: usize = 1 + 16 + 2;
/// Fixed part of a value: length and hash.
const VALUE_FIXED_BYTES: usize = 4 + 32;
/// Locator of a value: file kind, segment and offset.
const LOCATOR_BYTES: usize = 1 + 4 + 4;
/// Fixed part of an entry: separator length, and PID, checksum and hash of the child.
const ENTRY_FIXED_BYTES: usize = 2 + 8 + 8 + 32;

// Neither a record nor an entry takes more bytes than its weight (`docs/verification.md` section
// 4). So the heaviest legal piece of a split (`node_bytes` of 8192 and one more entry of at most
// 2048) fits the largest span.
const _: () = assert!(SLOT_BYTES + RECORD_FIXED_BYTES + VALUE_FIXED_BYTES + LOCATOR_BYTES <= 72);
const _: () = assert!(SLOT_BYTES + ENTRY_FIXED_BYTES <= 64);
const _: () = assert!(HEADER_BYTES + 8192 + 2048 <= SPAN_PAGES_MAX * PAGE_BYTES);

const KIND_INLINE: u8 = 0;
const KIND_STORED: u8 = 1;
const KIND_TOMBSTONE: u8 = 2;
/// File kinds of a value locator: a plain record of the value log, and a record that carries stamp
/// and key. Other numbers are unused.
const LOCATOR_VALUE_LOG: u8 = 1;
const LOCATOR_NAMED: u8 = 2;

/// The data that a parent stores about its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) checksum: u64,
    pub(crate) hash: Digest,
}

/// A record of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafRecord<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) stamp: Stamp,
    pub(crate) body: Body<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// The value lies in the leaf.
    Inline {
        hash: Digest,
        value: &'a [u8],
    },
    /// The value lies in the value log, at the end of this record's content.
    Stored {
        hash: Digest,
        len: u32,
        blob: BlobRef,
    },
    Tombstone,
}

impl Body<'_> {
    pub(crate) fn value_len(&self) -> Option<u32> {
        match self {
            Self::Inline { value, .. } => Some(value.len() as u32),
            Self::Stored { len, .. } => Some(*len),
            Self::Tombstone => None,
        }
    }

    /// The part of the body that is hashed.
    pub(crate) fn record_body(&self) -> RecordBody {
        match self {
            Self::Inline { hash, value } => RecordBody::Put { value_len: value.len() as u32, value_hash: *hash },
            Self::Stored { hash, len, .. } => RecordBody::Put { value_len: *len, value_hash: *hash },
            Self::Tombstone => RecordBody::Tombstone,
        }
    }

    fn encoded_bytes(&self) -> usize {
        match self {
            Self::Inline { value, .. } => VALUE_FIXED_BYTES + value.len(),
            Self::Stored { .. } => VALUE_FIXED_BYTES + LOCATOR_BYTES,
            Self::Tombstone => 0,
        }
    }
}

impl<'a> LeafRecord<'a> {
    pub(crate) fn hash(&self) -> Digest {
        let (key, stamp, body) = self.hashed();
        hash::record_hash(key, stamp, &body)
    }

    /// The parts of the record that are hashed.
    pub(crate) fn hashed(&self) -> (&'a [u8], Stamp, RecordBody) {
        (self.key, self.stamp, self.body.record_body())
    }

    pub(crate) fn encoded_bytes(&self) -> usize {
        RECORD_FIXED_BYTES + self.key.len() + self.body.encoded_bytes()
    }
}

/// A node whose bytes were checked.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    bytes: Arc<[u8]>,
    /// The base, if the node is stored as a patch.
    base: Option<Base>,
}

impl Node {
    /// Checks bytes read from a place against the data in the parent.
    pub(crate) fn check(bytes: Arc<[u8]>, child: &Child, level: u8) -> Result<Self, &'static str> {
        if !child.pid.is_patch() && bytes.len() != child.pid.len_bytes() {
            return Err("span length");
        }
        let node = Self { bytes, base: None };
        if XxHash3_64::oneshot_with_seed(child.pid.to_u64(), &node.bytes[8..]) != child.checksum
            || node.u64(0) != child.checksum
        {
            return Err("checksum");
        }
        if node.u64(8) != child.pid.to_u64() || node.bytes[24] != FORMAT || node.level() != level {
            return Err("header");
        }
        node.check_layout()?;
        Ok(node)
    }

    /// Checks the layout. If the checksum matches, a bad layout is a bug of the writer. Still,
    /// bytes from a disk must never cause a panic.
    fn check_layout(&self) -> Result<(), &'static str> {
        let end = usize::from(self.u16(28));
        let count = self.len();
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        if count == 0 || end > self.bytes.len() || slots_end > end {
            return Err("entry count");
        }
        let mut expected = slots_end;
        for index in 0..count {
            if usize::from(self.u16(HEADER_BYTES + index * SLOT_BYTES)) != expected {
                return Err("slot");
            }
            let rest = &self.bytes[expected..end];
            let len = if self.level() == 0 { record_bytes(rest) } else { entry_bytes(rest) };
            expected += len.ok_or("entry")?;
        }
        if expected != end {
            return Err("entries do not fill the node");
        }
        if (1..count).any(|index| self.key(index - 1) >= self.key(index)) {
            return Err("key order");
        }
        if self.level() > 0 && !self.key(0).is_empty() {
            return Err("first separator");
        }
        Ok(())
    }

    /// Loads the node into the processor's caches, all lines in parallel. Without this, a search
    /// would wait for one line after the other.
    pub(crate) fn load(&self) {
        black_box(self.bytes.iter().step_by(LINE_BYTES).fold(0, |all, byte| all ^ byte));
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    pub(crate) fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::known(self.u64(8))
    }

    pub(crate) fn checksum(&self) -> u64 {
        self.u64(0)
    }

    /// Version that made the node. No later version has changed it.
    pub(crate) fn made_at(&self) -> Version {
        Version(self.u64(16))
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[25]
    }

    /// Number of records or children.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.u16(26))
    }

    /// Key of record `index`, or separator of child `index`.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let at = self.slot(index) + if self.level() == 0 { 17 } else { 0 };
        let len = usize::from(self.u16(at));
        &self.bytes[at + 2..at + 2 + len]
    }

    pub(crate) fn record(&self, index: usize) -> LeafRecord<'_> {
        assert_eq!(self.level(), 0);
        decode_record(&self.bytes[self.slot(index)..])
    }

    /// The encoded bytes of record `index`.
    pub(crate) fn encoded_record(&self, index: usize) -> &[u8] {
        assert_eq!(self.level(), 0);
        &self.bytes[self.entry_range(index..index + 1)]
    }

    pub(crate) fn child(&self, index: usize) -> Child {
        assert_ne!(self.level(), 0);
        let at = self.slot(index) + 2 + self.key(index).len();
        Child { pid: Pid::known(self.u64(at)), checksum: self.u64(at + 8), hash: self.digest(at + 16) }
    }

    /// Byte range of consecutive entries.
    pub(crate) fn entry_range(&self, entries: Range<usize>) -> Range<usize> {
        let end = if entries.end == self.len() { usize::from(self.u16(28)) } else { self.slot(entries.end) };
        self.slot(entries.start)..end
    }

    /// An entry's weight in the split rule.
    pub(crate) fn weight(&self, index: usize, params: &Params) -> u32 {
        let key_len = self.key(index).len();
        if self.level() > 0 {
            return rules::entry_weight(params, key_len);
        }
        let at = self.slot(index);
        let value_len = (self.bytes[at] != KIND_TOMBSTONE).then(|| self.u32(at + RECORD_FIXED_BYTES + key_len));
        rules::record_weight(params, key_len, value_len)
    }

    /// Index of the key, or of the first larger one.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_from(0, key)
    }

    /// Like [`Self::search`], but begins at entry `first`.
    pub(crate) fn search_from(&self, first: usize, key: &[u8]) -> Result<usize, usize> {
        let Range { mut start, mut end } = first..self.len();
        while start < end {
            let middle = start + (end - start) / 2;
            match compare(self.key(middle), key) {
                Ordering::Less => start = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => end = middle,
            }
        }
        Err(start)
    }

    /// The last entry whose separator is not above the key: the child that may hold it. In a leaf,
    /// the last record not above the key, or the first record.
    pub(crate) fn child_of(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(above) => above.saturating_sub(1),
        }
    }

    /// Hashes of the records or child entries, in order.
    pub(crate) fn entry_hashes(&self) -> Vec<Digest> {
        let all = 0..self.len();
        match self.level() {
            0 => hash::record_hashes(all.map(|index| self.record(index).hashed())),
            _ => hash::entry_hashes(all.map(|index| (self.key(index), self.child(index).hash))),
        }
    }

    /// The node hash, computed from the bytes.
    pub(crate) fn hash(&self) -> Digest {
        match self.level() {
            0 => hash::leaf_node_hash(&self.entry_hashes()),
            level => hash::inner_node_hash(level, &self.entry_hashes()),
        }
    }

    fn slot(&self, index: usize) -> usize {
        assert!(index < self.len());
        usize::from(self.u16(HEADER_BYTES + index * SLOT_BYTES))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(array(&self.bytes, at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(array(&self.bytes, at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(array(&self.bytes, at))
    }

    fn digest(&self, at: usize) -> Digest {
        Digest(array(&self.bytes, at))
    }
}

/// Compares keys as byte strings. Most keys that a search compares differ in their first bytes.
pub(crate) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    match (one.first_chunk(), other.first_chunk()) {
        (Some(first), Some(second)) if first != second => u64::from_be_bytes(*first).cmp(&u64::from_be_bytes(*second)),
        _ => one.cmp(other),
    }
}

/// Decodes the record at the start of bytes that are known to begin with one.
pub(crate) fn decode_record(bytes: &[u8]) -> LeafRecord<'_> {
    let key = encoded_key(bytes);
    let [epoch, version] = [1, 9].map(|at| u64::from_le_bytes(array(bytes, at)));
    let stamp = Stamp { epoch: Epoch(epoch), version: Version(version) };
    let value_at = RECORD_FIXED_BYTES + key.len();
    let kind = bytes[0];
    if kind == KIND_TOMBSTONE {
        return LeafRecord { key, stamp, body: Body::Tombstone };
    }
    let len = u32::from_le_bytes(array(bytes, value_at));
    let hash = Digest(array(bytes, value_at + 4));
    let rest = value_at + VALUE_FIXED_BYTES;
    let body = if kind == KIND_INLINE {
        Body::Inline { hash, value: &bytes[rest..rest + len as usize] }
    } else {
        let [segment, offset] = [rest + 1, rest + 5].map(|at| u32::from_le_bytes(array(bytes, at)));
        let name_bytes = if bytes[rest] == LOCATOR_NAMED { refs::name_bytes(key) } else { 0 };
        let blob = BlobRef { at: ValueRef { segment, offset }, len: len.saturating_add(name_bytes) };
        Body::Stored { hash, len, blob }
    };
    LeafRecord { key, stamp, body }
}

pub(crate) fn is_tombstone(record: &[u8]) -> bool {
    record[0] == KIND_TOMBSTONE
}

/// The key of an encoded record.
pub(crate) fn encoded_key(record: &[u8]) -> &[u8] {
    let key_len = usize::from(u16::from_le_bytes([record[17], record[18]]));
    &record[RECORD_FIXED_BYTES..RECORD_FIXED_BYTES + key_len]
}

/// Length of the record at the start of the bytes; `None` if they do not begin with one.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let kind = *bytes.first()?;
    let key_len = usize::from(u16::from_le_bytes(*bytes.get(17..)?.first_chunk()?));
    let fixed = RECORD_FIXED_BYTES + key_len;
    if key_len == 0 {
        return None;
    }
    Some(fixed + body_bytes(kind, bytes.get(fixed..)?)?)
}

/// Length of the part after the key, at the start of the bytes, in a record of this kind.
fn body_bytes(kind: u8, bytes: &[u8]) -> Option<usize> {
    let len = match kind {
        KIND_TOMBSTONE => 0,
        KIND_INLINE => {
            let value_len = u32::from_le_bytes(*bytes.first_chunk()?);
            VALUE_FIXED_BYTES + usize::try_from(value_len).ok().filter(|len| *len <= bytes.len())?
        }
        KIND_STORED => {
            let locator_kind = *bytes.get(VALUE_FIXED_BYTES)?;
            matches!(locator_kind, LOCATOR_VALUE_LOG | LOCATOR_NAMED).then_some(VALUE_FIXED_BYTES + LOCATOR_BYTES)?
        }
        _ => return None,
    };
    (len <= bytes.len()).then_some(len)
}

/// Length of the entry at the start of the bytes; `None` if they do not begin with one.
fn entry_bytes(bytes: &[u8]) -> Option<usize> {
    let key_len = usize::from(u16::from_le_bytes(*bytes.first_chunk()?));
    let len = ENTRY_FIXED_BYTES + key_len;
    let pid = u64::from_le_bytes(*bytes.get(2 + key_len..)?.first_chunk()?);
    (len <= bytes.len() && Pid::from_u64(pid).is_some()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node::list::MerkleList, place::page::PageFile};

    fn leaf() -> (Node, Child) {
        let stamp = Stamp::new(1, 7);
        let at = ValueRef { segment: 3, offset: 99 };
        let stored = |len, blob_len| Body::Stored { hash: hash::sha256(b""), len, blob: BlobRef { at, len: blob_len } };
        let records = [
            LeafRecord { key: b"a", stamp, body: Body::Inline { hash: hash::sha256(b"v"), value: b"v" } },
            LeafRecord { key: b"bb", stamp, body: Body::Tombstone },
            LeafRecord { key: b"c", stamp, body: stored(5000, 5000) },
            LeafRecord { key: b"d", stamp, body: stored(5000, 5019) },
        ];
        let draft = Draft::all_new(Version(7), 0, &records.map(HashedRecord::new));
        let pid = Pid::new(PageFile::Data, 4, draft.pages());
        let (node, child) = draft.place(pid);
        assert_eq!((0..4).map(|index| node.record(index)).collect::<Vec<_>>(), records);
        (node, child)
    }

    #[test]
    fn keys_are_compared_as_byte_strings() {
        let keys: [&[u8]; 9] =
            [b"", b"a", b"aaaaaaa", b"aaaaaaaa", b"aaaaaaaaa", b"aaaaaaab", b"aaaaaab", b"b\0", b"\xff\0\0\0\0\0\0\0"];
        assert!(keys.is_sorted());
        for (at, one) in keys.iter().enumerate() {
            keys.iter().enumerate().for_each(|(other, key)| assert_eq!(compare(one, key), at.cmp(&other)));
        }
    }

    #[test]
    fn a_leaf_is_read_back_as_written() {
        let (node, child) = leaf();
        let node = Node::check(node.bytes().clone(), &child, 0).expect("untouched bytes are valid");
        assert_eq!(node.hash(), child.hash);
        assert_eq!((node.made_at(), node.len()), (Version(7), 4));
        assert_eq!(node.search(b"bb"), Ok(1));
        assert_eq!(node.search(b"b"), Err(1));
        assert_eq!(node.search(b"ca"), Err(3));
    }

    #[test]
    fn a_node_of_old_and_new_entries_is_the_node_of_all_of_them() {
        let stamp = Stamp::new(2, 8);
        let keys: Vec<Vec<u8>> = (0..9_u8).map(|n| vec![b'k'; usize::from(n) + 1]).collect();
        let record = |index: usize, value: &'static [u8]| {
            let body = if index % 4 == 3 { Body::Tombstone } else { Body::Inline { hash: hash::sha256(value), value } };
            HashedRecord::new(LeafRecord { key: &keys[index], stamp, body })
        };
        let all: Vec<HashedRecord<'_>> = (0..9).map(|index| record(index, b"value")).collect();
        for present in 1_u32..512 {
            let (old, new): (Vec<usize>, Vec<usize>) = (0..9).partition(|index| present >> index & 1 == 1);
            let place = |draft: Draft| {
                let pid = Pid::new(PageFile::Data, 4, draft.pages());
                draft.place(pid)
            };
            let records = |indices: &[usize]| indices.iter().map(|index| all[*index]).collect::<Vec<_>>();
            let (before, _) = place(Draft::all_new(Version(1), 0, &records(&old)));
            let source = |index: usize| match old.binary_search(&index) {
                Ok(at) => Source::Old(at),
                Err(_) => Source::New(new.iter().position(|it| *it == index).expect("old or new")),
            };
            let sources: Vec<Source> = (0..9).map(source).collect();
            let new = records(&new);
            let entries = Entries { sources: &sources, old: Some(&before), new: &new };
            let list = MerkleList::new(all.iter().map(|record| record.hash).collect());
            let (patched, place_of) = place(Draft::new(Version(2), 0, &entries, &list));
            let (whole, child) = place(Draft::all_new(Version(2), 0, &all));
            assert_eq!((patched.bytes(), place_of), (whole.bytes(), child));
            let weights = |node: &Node| (0..9).map(|index| node.weight(index, &Params::default())).collect::<Vec<_>>();
            assert_eq!(weights(&patched), all.iter().map(|it| it.weight(&Params::default())).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_inner_node_is_read_back_as_written() {
        let (_, child) = leaf();
        let entries = [&b""[..], b"k"].map(|separator| ChildEntry { separator: separator.to_vec(), child });
        let draft = Draft::all_new(Version(9), 1, &entries);
        let (node, place) = draft.place(Pid::new(PageFile::Index, 0, 1));
        let node = Node::check(node.bytes().clone(), &place, 1).expect("untouched bytes are valid");
        assert_eq!((node.key(1), node.child(1)), (b"k".as_slice(), child));
        assert_eq!(node.hash(), place.hash);
        assert_eq!([b"A", b"a", b"j", b"k", b"z"].map(|key| node.child_of(key)), [0, 0, 0, 1, 1]);
        assert!(Node::check(node.bytes().clone(), &place, 2).is_err());
        let named = Draft::all_new(Version(9), 1, &[ChildEntry { separator: b"a".to_vec(), child }]);
        let (named, place) = named.place(Pid::new(PageFile::Index, 0, 1));
        assert_eq!(Node::check(named.bytes().clone(), &place, 1).map(|_| ()), Err("first separator"));
    }

    #[test]
    fn every_flipped_byte_and_every_wrong_place_is_found() {
        let (node, child) = leaf();
        for at in 0..node.bytes().len() {
            let mut bytes = node.bytes().to_vec();
            bytes[at] ^= 0x10;
            assert!(Node::check(bytes.into(), &child, 0).is_err(), "byte {at}");
        }
        let elsewhere = Child { pid: Pid::new(PageFile::Data, 5, 1), ..child };
        assert!(Node::check(node.bytes().clone(), &elsewhere, 0).is_err());
    }

    #[test]
    fn garbage_with_a_fitting_checksum_never_panics() {
        let (node, child) = leaf();
        for at in 16..200 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = node.bytes().to_vec();
                bytes[at] = value;
                let checksum = XxHash3_64::oneshot_with_seed(child.pid.to_u64(), &bytes[8..]);
                bytes[..8].copy_from_slice(&checksum.to_le_bytes());
                let Ok(node) = Node::check(bytes.into(), &Child { checksum, ..child }, 0) else { continue };
                let _ = node.hash();
            }
        }
    }

    /// The error of a node whose bytes were changed, with a checksum that fits them.
    fn error_of(whole: &(Node, Child), level: u8, change: impl FnOnce(&mut [u8])) -> Option<&'static str> {
        let mut bytes = whole.0.bytes().to_vec();
        change(&mut bytes);
        let checksum = XxHash3_64::oneshot_with_seed(whole.1.pid.to_u64(), &bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        Node::check(bytes.into(), &Child { checksum, ..whole.1 }, level).err()
    }

    fn put_u16(bytes: &mut [u8], at: usize, number: u16) {
        bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }

    #[test]
    fn a_node_with_another_header_is_refused() {
        let leaf = leaf();
        assert_eq!(error_of(&leaf, 0, |_| ()), None);
        assert_eq!(error_of(&leaf, 0, |bytes| bytes[8] ^= 1), Some("header"), "its place");
        assert_eq!(error_of(&leaf, 0, |bytes| bytes[24] = FORMAT + 1), Some("header"));
        assert_eq!(error_of(&leaf, 1, |_| ()), Some("header"), "its level");
        let (node, child) = leaf;
        assert_eq!(Node::check(node.bytes()[..4000].into(), &child, 0).err(), Some("span length"));
        let other = Child { checksum: !child.checksum, ..child };
        assert_eq!(Node::check(node.bytes().clone(), &other, 0).err(), Some("checksum"));
    }

    #[test]
    fn a_node_whose_entries_do_not_fill_it_is_refused() {
        let leaf = leaf();
        let end = leaf.0.u16(28);
        let error = |change: fn(&mut [u8], u16)| error_of(&leaf, 0, |bytes| change(bytes, end));
        assert_eq!(error(|bytes, _| put_u16(bytes, 26, 0)), Some("entry count"));
        assert_eq!(error(|bytes, _| put_u16(bytes, 26, u16::MAX)), Some("entry count"));
        assert_eq!(error(|bytes, _| put_u16(bytes, 28, PAGE_BYTES as u16 + 1)), Some("entry count"));
        assert_eq!(error(|bytes, _| put_u16(bytes, 26, 3)), Some("slot"), "the slots take less room");
        assert_eq!(error(|bytes, _| put_u16(bytes, HEADER_BYTES + 2, 60)), Some("slot"));
        assert_eq!(error(|bytes, end| put_u16(bytes, 28, end - 1)), Some("entry"), "the last one is cut");
        assert_eq!(error(|bytes, end| put_u16(bytes, 28, end + 1)), Some("entries do not fill the node"));
    }

    #[test]
    fn a_record_that_no_leaf_has_is_refused() {
        let leaf = leaf();
        let first = leaf.0.slot(0);
        assert_eq!(error_of(&leaf, 0, |bytes| bytes[first] = 3), Some("entry"), "its kind");
        assert_eq!(error_of(&leaf, 0, |bytes| put_u16(bytes, first + 17, 0)), Some("entry"), "an empty key");
        assert_eq!(error_of(&leaf, 0, |bytes| put_u16(bytes, first + 17, u16::MAX)), Some("entry"), "a long key");
        let value_at = first + RECORD_FIXED_BYTES + 1;
        assert_eq!(error_of(&leaf, 0, |bytes| bytes[value_at + 3] = 0xff), Some("entry"), "a long value");
        let locator_at = leaf.0.slot(2) + RECORD_FIXED_BYTES + 1 + VALUE_FIXED_BYTES;
        for kind in [0, 3] {
            assert_eq!(error_of(&leaf, 0, |bytes| bytes[locator_at] = kind), Some("entry"), "file kind {kind}");
        }
    }

    #[test]
    fn keys_that_do_not_ascend_are_refused() {
        let leaf = leaf();
        let key_at = leaf.0.slot(2) + RECORD_FIXED_BYTES;
        // The keys are a, bb, c and d.
        for (key, error) in
            [(b'a', Some("key order")), (b'b', Some("key order")), (b'c', None), (b'd', Some("key order"))]
        {
            assert_eq!(error_of(&leaf, 0, |bytes| bytes[key_at] = key), error, "{key}");
        }
    }

    #[test]
    fn an_entry_that_names_no_place_is_refused() {
        let (_, child) = leaf();
        let entries = [&b""[..], b"k"].map(|separator| ChildEntry { separator: separator.to_vec(), child });
        let inner = Draft::all_new(Version(9), 1, &entries).place(Pid::new(PageFile::Index, 0, 1));
        assert_eq!(error_of(&inner, 1, |_| ()), None);
        let pid_at = inner.0.slot(1) + 2 + 1;
        assert_eq!(error_of(&inner, 1, |bytes| bytes[pid_at + 7] = 0), Some("entry"));
        assert_eq!(error_of(&inner, 1, |bytes| put_u16(bytes, pid_at - 3, u16::MAX)), Some("entry"), "a long key");
    }

    #[test]
    fn a_search_from_an_entry_finds_what_follows_it() {
        let (node, _) = leaf();
        for first in 0..=4 {
            for (key, at) in [(&b"a"[..], Ok(0)), (b"ab", Err(1)), (b"bb", Ok(1)), (b"d", Ok(3)), (b"e", Err(4))] {
                let expected = if at.unwrap_or_else(|above| above) < first { Err(first) } else { at };
                assert_eq!(node.search_from(first, key), expected, "{key:?} from {first}");
            }
        }
    }
}
