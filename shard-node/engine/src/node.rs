//! A node in its one representation: the bytes of its span, in which searches work in place.
//!
//! `docs/FORMAT.md` section "Pages" has the layout. A [`Node`] is only made from bytes that this module wrote or
//! checked, so its accessors index without looking again. The checksum covers the whole span and is seeded with the
//! PID, so that a span read from the wrong place, or an older span left by a lost write, is found by the parent's copy
//! of it.

use std::{cmp::Ordering, ops::Range, sync::Arc};

use coppice_types::{Digest, Epoch, Stamp, Version};
use coppice_verify::hash::{self, RecordBody};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::page::{PAGE_BYTES, Pid, SPAN_PAGES_MAX};

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 32;
const SLOT_BYTES: usize = 2;
/// Kind, stamp and key length.
const RECORD_FIXED_BYTES: usize = 1 + 16 + 2;
/// Value length and hash.
const VALUE_FIXED_BYTES: usize = 4 + 32;
/// File kind, segment and offset.
const LOCATOR_BYTES: usize = 1 + 4 + 4;
/// Separator length, PID, checksum and hash of the child.
const ENTRY_FIXED_BYTES: usize = 2 + 8 + 8 + 32;

// A record takes no more bytes than its weight, nor does an entry (`docs/verification.md` section 4), so the heaviest
// legal piece of a split (`node_bytes` of 8192 and one more entry of at most 2048) fits the largest span.
const _: () = assert!(SLOT_BYTES + RECORD_FIXED_BYTES + VALUE_FIXED_BYTES + LOCATOR_BYTES <= 72);
const _: () = assert!(SLOT_BYTES + ENTRY_FIXED_BYTES <= 64);
const _: () = assert!(HEADER_BYTES + 8192 + 2048 <= SPAN_PAGES_MAX * PAGE_BYTES);

const KIND_INLINE: u8 = 0;
const KIND_STORED: u8 = 1;
const KIND_TOMBSTONE: u8 = 2;
/// File kind of a value locator: a segment of the value log. Others are free for later.
const LOCATOR_VALUE_LOG: u8 = 1;

/// Place of a value in the value log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ValueRef {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
}

/// What a parent knows of its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) checksum: u64,
    pub(crate) hash: Digest,
}

/// A record as it lies in a leaf.
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
    /// The value lies in the value log.
    Stored {
        hash: Digest,
        len: u32,
        at: ValueRef,
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

    /// What of it is hashed.
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

impl LeafRecord<'_> {
    pub(crate) fn hash(&self) -> Digest {
        hash::record_hash(self.key, self.stamp, &self.body.record_body())
    }

    fn encoded_bytes(&self) -> usize {
        RECORD_FIXED_BYTES + self.key.len() + self.body.encoded_bytes()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.body {
            Body::Inline { .. } => KIND_INLINE,
            Body::Stored { .. } => KIND_STORED,
            Body::Tombstone => KIND_TOMBSTONE,
        });
        out.extend_from_slice(&self.stamp.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.stamp.version.0.to_le_bytes());
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(self.key);
        match &self.body {
            Body::Inline { hash, value } => {
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(&hash.0);
                out.extend_from_slice(value);
            }
            Body::Stored { hash, len, at } => {
                out.extend_from_slice(&len.to_le_bytes());
                out.extend_from_slice(&hash.0);
                out.push(LOCATOR_VALUE_LOG);
                out.extend_from_slice(&at.segment.to_le_bytes());
                out.extend_from_slice(&at.offset.to_le_bytes());
            }
            Body::Tombstone => {}
        }
    }
}

/// The bytes of a node before it has a place.
pub(crate) struct Draft {
    bytes: Vec<u8>,
    pub(crate) level: u8,
    pub(crate) hash: Digest,
}

impl Draft {
    /// A leaf of at least one record, in ascending order of keys.
    pub(crate) fn leaf(made_at: Version, records: &[LeafRecord<'_>]) -> Self {
        assert!(!records.is_empty(), "only the root of an empty tree has no records, and it has no page");
        assert!(records.is_sorted_by(|a, b| a.key < b.key));
        let hashes: Vec<Digest> = records.iter().map(LeafRecord::hash).collect();
        let sizes = records.iter().map(LeafRecord::encoded_bytes);
        let bytes = encode(made_at, 0, sizes, |index, out| records[index].encode(out));
        Self { bytes, level: 0, hash: hash::leaf_node_hash(&hashes) }
    }

    /// An inner node of at least one child, in ascending order of separators.
    pub(crate) fn inner<S: AsRef<[u8]>>(made_at: Version, level: u8, entries: &[(S, Child)]) -> Self {
        assert!(level > 0);
        assert!(!entries.is_empty());
        assert!(entries.is_sorted_by(|a, b| a.0.as_ref() < b.0.as_ref()));
        let hashes: Vec<Digest> =
            entries.iter().map(|(separator, child)| hash::entry_hash(separator.as_ref(), &child.hash)).collect();
        let sizes = entries.iter().map(|(separator, _)| ENTRY_FIXED_BYTES + separator.as_ref().len());
        let bytes = encode(made_at, level, sizes, |index, out| {
            let (separator, child) = &entries[index];
            let separator = separator.as_ref();
            out.extend_from_slice(&(separator.len() as u16).to_le_bytes());
            out.extend_from_slice(separator);
            out.extend_from_slice(&child.pid.to_u64().to_le_bytes());
            out.extend_from_slice(&child.checksum.to_le_bytes());
            out.extend_from_slice(&child.hash.0);
        });
        Self { bytes, level, hash: hash::inner_node_hash(level, &hashes) }
    }

    /// Length of the span that it needs.
    pub(crate) fn pages(&self) -> usize {
        self.bytes.len() / PAGE_BYTES
    }

    /// Gives it its place.
    pub(crate) fn place(self, pid: Pid) -> (Node, Child) {
        let mut bytes = self.bytes;
        assert_eq!(pid.len_bytes(), bytes.len());
        bytes[8..16].copy_from_slice(&pid.to_u64().to_le_bytes());
        let checksum = xxh3_64_with_seed(&bytes[8..], pid.to_u64());
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        (Node { bytes: bytes.into() }, Child { pid, checksum, hash: self.hash })
    }
}

fn encode(
    made_at: Version,
    level: u8,
    sizes: impl ExactSizeIterator<Item = usize>,
    mut write: impl FnMut(usize, &mut Vec<u8>),
) -> Vec<u8> {
    let count = sizes.len();
    let slots_end = HEADER_BYTES + count * SLOT_BYTES;
    let mut out = Vec::with_capacity(2 * PAGE_BYTES);
    out.resize(16, 0);
    out.extend_from_slice(&made_at.0.to_le_bytes());
    out.push(FORMAT);
    out.push(level);
    out.extend_from_slice(&(count as u16).to_le_bytes());
    out.resize(HEADER_BYTES, 0);
    let mut offset = slots_end;
    for size in sizes {
        out.extend_from_slice(&u16::try_from(offset).expect("a span has at most 16 KiB").to_le_bytes());
        offset += size;
    }
    (0..count).for_each(|index| write(index, &mut out));
    assert_eq!(out.len(), offset);
    assert!(offset <= SPAN_PAGES_MAX * PAGE_BYTES, "weights bound the size of a node");
    out[28..30].copy_from_slice(&(offset as u16).to_le_bytes());
    out.resize(offset.next_multiple_of(PAGE_BYTES), 0);
    out
}

/// A node whose bytes were checked.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    bytes: Arc<[u8]>,
}

impl Node {
    /// Checks bytes that were read from a place against what the parent knows.
    pub(crate) fn check(bytes: Arc<[u8]>, child: &Child, level: u8) -> Result<Self, &'static str> {
        if bytes.len() != child.pid.len_bytes() {
            return Err("span length");
        }
        let node = Self { bytes };
        if xxh3_64_with_seed(&node.bytes[8..], child.pid.to_u64()) != child.checksum || node.u64(0) != child.checksum {
            return Err("checksum");
        }
        if node.u64(8) != child.pid.to_u64() || node.bytes[24] != FORMAT || node.level() != level {
            return Err("header");
        }
        node.check_layout()?;
        Ok(node)
    }

    /// A checksum that matches makes a bad layout a bug of the writer; still, bytes from a disk never panic.
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
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    pub(crate) fn checksum(&self) -> u64 {
        self.u64(0)
    }

    /// Version that made the node: no later one has changed it.
    pub(crate) fn made_at(&self) -> Version {
        Version(self.u64(16))
    }

    pub(crate) fn level(&self) -> u8 {
        self.bytes[25]
    }

    /// How many records or children it has.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.u16(26))
    }

    /// Key of record `index`, or separator of child `index`.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let at = self.slot(index) + if self.level() == 0 { 17 } else { 0 };
        let len = usize::from(self.u16(at));
        &self.bytes[at + 2..at + 2 + len]
    }

    pub(crate) fn record(&self, index: usize) -> LeafRecord<'_> {
        assert_eq!(self.level(), 0);
        let at = self.slot(index);
        let key = self.key(index);
        let stamp = Stamp { epoch: Epoch(self.u64(at + 1)), version: Version(self.u64(at + 9)) };
        let value_at = at + RECORD_FIXED_BYTES + key.len();
        let kind = self.bytes[at];
        if kind == KIND_TOMBSTONE {
            return LeafRecord { key, stamp, body: Body::Tombstone };
        }
        let len = self.u32(value_at);
        let hash = self.digest(value_at + 4);
        let rest = value_at + VALUE_FIXED_BYTES;
        let body = if kind == KIND_INLINE {
            Body::Inline { hash, value: &self.bytes[rest..rest + len as usize] }
        } else {
            Body::Stored { hash, len, at: ValueRef { segment: self.u32(rest + 1), offset: self.u32(rest + 5) } }
        };
        LeafRecord { key, stamp, body }
    }

    pub(crate) fn child(&self, index: usize) -> Child {
        assert_ne!(self.level(), 0);
        let at = self.slot(index) + 2 + self.key(index).len();
        let pid = Pid::from_u64(self.u64(at)).expect("the layout was checked");
        Child { pid, checksum: self.u64(at + 8), hash: self.digest(at + 16) }
    }

    /// Index of the key, or of the first larger one.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let Range { mut start, mut end } = 0..self.len();
        while start < end {
            let middle = start + (end - start) / 2;
            match self.key(middle).cmp(key) {
                Ordering::Less => start = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => end = middle,
            }
        }
        Err(start)
    }

    /// The last entry whose key is not above this one, else the first: the child that may hold the key.
    pub(crate) fn child_of(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(above) => above.saturating_sub(1),
        }
    }

    /// Hashes of the records or entries, in order.
    pub(crate) fn entry_hashes(&self) -> Vec<Digest> {
        (0..self.len())
            .map(|index| match self.level() {
                0 => self.record(index).hash(),
                _ => hash::entry_hash(self.key(index), &self.child(index).hash),
            })
            .collect()
    }

    /// The node hash, computed anew.
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
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn digest(&self, at: usize) -> Digest {
        Digest(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.bytes[at..].first_chunk().expect("the layout was checked")
    }
}

/// Length of the record at the start of the bytes, if it is one.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let kind = *bytes.first()?;
    let key_len = usize::from(u16::from_le_bytes(*bytes.get(17..)?.first_chunk()?));
    let fixed = RECORD_FIXED_BYTES + key_len;
    if key_len == 0 {
        return None;
    }
    let len = match kind {
        KIND_TOMBSTONE => fixed,
        KIND_INLINE => {
            let value_len = u32::from_le_bytes(*bytes.get(fixed..)?.first_chunk()?);
            fixed + VALUE_FIXED_BYTES + usize::try_from(value_len).ok().filter(|len| *len <= bytes.len())?
        }
        KIND_STORED => {
            let locator_kind = *bytes.get(fixed + VALUE_FIXED_BYTES)?;
            (locator_kind == LOCATOR_VALUE_LOG).then_some(fixed + VALUE_FIXED_BYTES + LOCATOR_BYTES)?
        }
        _ => return None,
    };
    (len <= bytes.len()).then_some(len)
}

/// Length of the entry at the start of the bytes, if it is one.
fn entry_bytes(bytes: &[u8]) -> Option<usize> {
    let key_len = usize::from(u16::from_le_bytes(*bytes.first_chunk()?));
    let len = ENTRY_FIXED_BYTES + key_len;
    let pid = u64::from_le_bytes(*bytes.get(2 + key_len..)?.first_chunk()?);
    (key_len > 0 && len <= bytes.len() && Pid::from_u64(pid).is_some()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageFile;

    fn leaf() -> (Node, Child) {
        let stamp = Stamp::new(1, 7);
        let at = ValueRef { segment: 3, offset: 99 };
        let records = [
            LeafRecord { key: b"a", stamp, body: Body::Inline { hash: hash::sha256(b"v"), value: b"v" } },
            LeafRecord { key: b"bb", stamp, body: Body::Tombstone },
            LeafRecord { key: b"c", stamp, body: Body::Stored { hash: hash::sha256(b""), len: 5000, at } },
        ];
        let draft = Draft::leaf(Version(7), &records);
        let pid = Pid::new(PageFile::Data, 4, draft.pages());
        let (node, child) = draft.place(pid);
        assert_eq!((0..3).map(|index| node.record(index)).collect::<Vec<_>>(), records);
        (node, child)
    }

    #[test]
    fn a_leaf_is_read_back_as_written() {
        let (node, child) = leaf();
        let node = Node::check(node.bytes().clone(), &child, 0).expect("untouched bytes are valid");
        assert_eq!(node.hash(), child.hash);
        assert_eq!((node.made_at(), node.len()), (Version(7), 3));
        assert_eq!(node.search(b"bb"), Ok(1));
        assert_eq!(node.search(b"b"), Err(1));
        assert_eq!(node.search(b"d"), Err(3));
    }

    #[test]
    fn an_inner_node_is_read_back_as_written() {
        let (_, child) = leaf();
        let entries = [(b"a".as_slice(), child), (b"k", child)];
        let draft = Draft::inner(Version(9), 1, &entries);
        let (node, place) = draft.place(Pid::new(PageFile::Index, 0, 1));
        let node = Node::check(node.bytes().clone(), &place, 1).expect("untouched bytes are valid");
        assert_eq!((node.key(1), node.child(1)), (b"k".as_slice(), child));
        assert_eq!(node.hash(), place.hash);
        assert_eq!([b"A", b"a", b"j", b"k", b"z"].map(|key| node.child_of(key)), [0, 0, 0, 1, 1]);
        assert!(Node::check(node.bytes().clone(), &place, 2).is_err());
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
                let checksum = xxh3_64_with_seed(&bytes[8..], child.pid.to_u64());
                bytes[..8].copy_from_slice(&checksum.to_le_bytes());
                let Ok(node) = Node::check(bytes.into(), &Child { checksum, ..child }, 0) else { continue };
                let _ = node.hash();
            }
        }
    }
}
