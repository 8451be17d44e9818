//! Bytes that the host and the kernel exchange (`kernel/record.h`): pages, queries and results.
//!
//! Every entry and every hash of a page ends with a check of 8 bytes, seeded with the page's serial
//! number, the entry count and the place in the page. The kernel copies them unread. So the host
//! notices a damaged, stale or misplaced page in each answer, without hashing proofs.

use std::borrow::Cow;

use coppice_types::{Digest, Stamp};
use coppice_verify::{
    hash::RecordBody,
    proof::{Entry, NodePart, Subtree},
};
use twox_hash::XxHash3_64;

use crate::{
    Error, Result,
    node::{Answer, Node, list_proof},
};

pub(crate) const KEY_BYTES_MAX: usize = 128;
pub(crate) const ENTRIES_MAX: usize = 256;
/// Most levels of a subtree on a DPU.
pub const LEVELS_MAX: usize = 4;
pub(crate) const PREFIX_BYTES_MAX: usize = 32;
pub(crate) const RESULT_BYTES_MAX: usize = 2048;
const HEAD_BYTES_MAX: usize = 304;
const GROUP: usize = 8;
const HASH_BYTES: usize = 32 + CHECK_BYTES;
const LEAF_TAIL_BYTES: usize = 16 + 32 + CHECK_BYTES;
const INNER_TAIL_BYTES: usize = 8 + 32 + CHECK_BYTES;
const CHECK_BYTES: usize = 8;
const PAGE_HEAD_BYTES: usize = 16;
const RESULT_HEAD_BYTES: usize = 16;
#[cfg(test)]
const PART_HEAD_BYTES: usize = 16;
const ADDRESS_BITS: u32 = 26;

const STATUS_DONE: u32 = 1;
const STATUS_OVERFLOW: u32 = 2;

const KIND_PUT: u16 = 0;
const KIND_TOMBSTONE: u16 = 1;
const KIND_CHILD: u16 = 2;

/// The sizes in the order of the C side's `emu_layout`; a test compares them.
#[cfg(test)]
pub(crate) const LAYOUT: [u32; 12] = [
    KEY_BYTES_MAX as u32,
    ENTRIES_MAX as u32,
    LEVELS_MAX as u32,
    PREFIX_BYTES_MAX as u32,
    HEAD_BYTES_MAX as u32,
    RESULT_BYTES_MAX as u32,
    HASH_BYTES as u32,
    LEAF_TAIL_BYTES as u32,
    INNER_TAIL_BYTES as u32,
    PAGE_HEAD_BYTES as u32,
    RESULT_HEAD_BYTES as u32,
    PART_HEAD_BYTES as u32,
];

const _: () = assert!(HEAD_BYTES_MAX == PAGE_HEAD_BYTES + PREFIX_BYTES_MAX + 8 * (ENTRIES_MAX / GROUP));

/// Name of a page on a DPU: where it is, how long its head is, and its serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageName {
    /// Length of the head in units of 8 bytes (upper 6 bits), and address.
    pointer: u32,
    serial: u32,
}

impl PageName {
    /// # Panics
    /// If the address is not a multiple of 8 below 64 MiB.
    pub(crate) fn new(page: &PageBytes, address: u32, serial: u32) -> Self {
        assert!(address < 1 << ADDRESS_BITS && address.is_multiple_of(8), "an address of MRAM");
        Self { pointer: (page.head_bytes as u32 / 8) << ADDRESS_BITS | address, serial }
    }

    pub(crate) fn address(self) -> u32 {
        self.pointer & ((1 << ADDRESS_BITS) - 1)
    }

    #[cfg(test)]
    pub(crate) fn serial(self) -> u32 {
        self.serial
    }
}

/// The sizes of a node's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageBytes {
    prefix_bytes: usize,
    head_bytes: usize,
    blobs_at: usize,
    hashes_at: usize,
    pub(crate) bytes: usize,
}

impl PageBytes {
    /// `None` if the kernel can't hold the node: too many entries, or keys that are too long.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let count = node.entries.len();
        if count > ENTRIES_MAX || node.entries.iter().any(|entry| entry.key().len() > KEY_BYTES_MAX) {
            return None;
        }
        let groups = count.div_ceil(GROUP);
        let prefix_bytes = prefix(node).len();
        let head_bytes = PAGE_HEAD_BYTES + up8(prefix_bytes) + 8 * groups;
        let blobs_at = head_bytes + groups * GROUP * 8 + count * 8;
        let hashes_at = blobs_at + node.entries.iter().map(blob_bytes).sum::<usize>();
        let bytes = hashes_at + node.hashes().count() * HASH_BYTES;
        Some(Self { prefix_bytes, head_bytes, blobs_at, hashes_at, bytes })
    }
}

fn up8(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// The longest prefix that all keys share. The empty separator of a first child does not count.
fn prefix(node: &Node) -> &[u8] {
    let skipped = usize::from(node.level > 0);
    let (Some(first), Some(last)) = (node.entries.get(skipped), node.entries.last()) else { return &[] };
    // Keys ascend, so what the first and the last one share is shared by all.
    let shared = first.key().iter().zip(last.key()).take_while(|(a, b)| a == b).count();
    &first.key()[..shared.min(PREFIX_BYTES_MAX)]
}

fn blob_bytes(entry: &Entry<'_>) -> usize {
    let tail = if matches!(entry, Entry::Record { .. }) { LEAF_TAIL_BYTES } else { INNER_TAIL_BYTES };
    8 + up8(entry.key().len()) + tail
}

/// The first 8 bytes behind the prefix, as the kernel compares them: big-endian, in two halves.
fn put_word(out: &mut Vec<u8>, key: &[u8], prefix_bytes: usize) {
    let mut word = [0; 8];
    let rest = key.get(prefix_bytes..).unwrap_or_default();
    let taken = rest.len().min(8);
    word[..taken].copy_from_slice(&rest[..taken]);
    let word = u64::from_be_bytes(word);
    out.extend(((word >> 32) as u32).to_le_bytes());
    out.extend((word as u32).to_le_bytes());
}

/// What a check covers besides bytes: the page, its count, and the place in it.
#[derive(Clone, Copy)]
struct Seed {
    serial: u32,
    count: u16,
}

/// A place in a page: entry 0, 1, .. or a hash of the list.
#[derive(Clone, Copy)]
enum Place {
    Entry(usize),
    Hash(usize),
}

impl Seed {
    fn check(self, place: Place, bytes: &[u8]) -> [u8; CHECK_BYTES] {
        let place = match place {
            Place::Entry(index) => index as u64,
            Place::Hash(number) => 1 << 15 | number as u64,
        };
        let seed = u64::from(self.serial) << 32 | u64::from(self.count) << 16 | place;
        XxHash3_64::oneshot_with_seed(seed, bytes).to_le_bytes()
    }

    fn seal(self, place: Place, out: &mut Vec<u8>, from: usize) {
        let check = self.check(place, &out[from..]);
        out.extend(check);
    }
}

/// The bytes of a node's page. `children` names the pages of the children on the same DPU.
///
/// # Panics
/// If an inner node comes without the pages of all its children.
pub(crate) fn encode_page(node: &Node, page: &PageBytes, serial: u32, children: &[PageName]) -> Vec<u8> {
    assert_eq!(children.len(), if node.level == 0 { 0 } else { node.entries.len() }, "a page for each child");
    let count = node.entries.len();
    let seed = Seed { serial, count: count as u16 };
    let mut out = Vec::with_capacity(page.bytes);
    out.extend(serial.to_le_bytes());
    out.extend((count as u16).to_le_bytes());
    out.extend([node.level, page.prefix_bytes as u8]);
    out.extend((page.hashes_at as u32).to_le_bytes());
    out.extend((page.bytes as u32).to_le_bytes());
    out.extend(prefix(node));
    out.resize(PAGE_HEAD_BYTES + up8(page.prefix_bytes), 0);
    node.entries.iter().step_by(GROUP).for_each(|entry| put_word(&mut out, entry.key(), page.prefix_bytes));
    assert_eq!(out.len(), page.head_bytes, "the head is as long as measured");
    node.entries.iter().for_each(|entry| put_word(&mut out, entry.key(), page.prefix_bytes));
    out.resize(page.head_bytes + count.next_multiple_of(GROUP) * 8, 0xff);
    let mut blob_at = page.blobs_at;
    for (index, entry) in node.entries.iter().enumerate() {
        out.extend(((blob_at / 8) as u16).to_le_bytes());
        out.extend((entry.key().len() as u16).to_le_bytes());
        out.extend(children.get(index).map_or(0, |child| child.pointer).to_le_bytes());
        blob_at += blob_bytes(entry);
    }
    assert!(blob_at / 8 <= usize::from(u16::MAX), "a reference of 16 bits");
    for (index, entry) in node.entries.iter().enumerate() {
        let from = out.len();
        put_blob(&mut out, entry, children.get(index));
        seed.seal(Place::Entry(index), &mut out, from);
    }
    assert_eq!(out.len(), page.hashes_at, "the entries are as long as measured");
    for (number, hash) in node.hashes().enumerate() {
        let from = out.len();
        out.extend(hash.0);
        seed.seal(Place::Hash(number), &mut out, from);
    }
    assert_eq!(out.len(), page.bytes, "the page is as long as measured");
    out
}

fn put_blob(out: &mut Vec<u8>, entry: &Entry<'_>, child: Option<&PageName>) {
    let (kind, value_len) = match entry {
        Entry::Record { body: RecordBody::Put { value_len, .. }, .. } => (KIND_PUT, *value_len),
        Entry::Record { body: RecordBody::Tombstone, .. } => (KIND_TOMBSTONE, 0),
        Entry::Child { .. } => (KIND_CHILD, 0),
    };
    out.extend((entry.key().len() as u16).to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(value_len.to_le_bytes());
    out.extend(entry.key());
    out.resize(out.len().next_multiple_of(8), 0);
    match entry {
        Entry::Record { stamp, body, .. } => {
            out.extend(stamp.epoch.0.to_le_bytes());
            out.extend(stamp.version.0.to_le_bytes());
            out.extend(match body {
                RecordBody::Put { value_hash, .. } => value_hash.0,
                RecordBody::Tombstone => [0; 32],
            });
        }
        Entry::Child { child: subtree, .. } => {
            let name = child.expect("an inner node has the pages of its children");
            out.extend(name.pointer.to_le_bytes());
            out.extend(name.serial.to_le_bytes());
            let Subtree::Hash(hash) = subtree else { panic!("children of whole nodes stand with their hashes") };
            out.extend(hash.0);
        }
    }
}

/// Length of a query whose key has at most `key_bytes` bytes.
#[must_use]
pub fn query_bytes(key_bytes: usize) -> usize {
    8 + up8(key_bytes)
}

/// Appends a query.
pub(crate) fn put_query(out: &mut Vec<u8>, page: PageName, key: &[u8], query_bytes: usize) {
    let end = out.len() + query_bytes;
    out.extend(page.pointer.to_le_bytes());
    out.extend((key.len() as u16).to_le_bytes());
    out.extend([0; 2]);
    out.extend(key);
    assert!(out.len() <= end, "the key fits the query");
    out.resize(end, 0);
}

/// What a DPU said to a query.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Answer(Answer),
    /// The answer is longer than a result. The host answers.
    Overflow,
}

/// Reads a result and all its checks.
///
/// # Errors
/// `Mismatch` if it is not an answer of the page that was asked.
pub(crate) fn decode_result(bytes: &[u8], page: PageName) -> Result<Reply> {
    let mut input = Input { bytes };
    let status = input.u32()?;
    let (levels, open, used, asked) = (input.u16()?, input.u16()?, input.u32()?, input.u32()?);
    if asked != page.pointer {
        return Err(Error::Mismatch("a result of another query"));
    }
    // What lies behind is of an earlier batch.
    input.bytes = bytes.get(RESULT_HEAD_BYTES..used as usize).ok_or(Error::Mismatch("the length of a result"))?;
    match status {
        STATUS_DONE if (1..=LEVELS_MAX).contains(&usize::from(levels)) && open <= 1 => {}
        STATUS_OVERFLOW => return Ok(Reply::Overflow),
        _ => return Err(Error::Mismatch("the status of a result")),
    }
    let mut below: Option<(Answer, PageName)> = None;
    for level in 0..levels as u8 {
        let (part, name, found) = decode_part(&mut input, level, below.take())?;
        below = Some((Answer { part, found, open: open == 1 }, name));
    }
    match below {
        Some((answer, name)) if name == page => Ok(Reply::Answer(answer)),
        _ => Err(Error::Mismatch("a result of another page")),
    }
}

/// Reads one level. `below` is what the levels below it gave.
fn decode_part(
    input: &mut Input<'_>,
    level: u8,
    below: Option<(Answer, PageName)>,
) -> Result<(NodePart<'static>, PageName, bool)> {
    let name = PageName { pointer: input.u32()?, serial: input.u32()? };
    let (count, index) = (input.u16()?, input.u16()?);
    let [shown, hashes, found, own_level] = *input.array()?;
    let (first, last) = (usize::from(index), usize::from(index) + usize::from(shown).saturating_sub(1));
    if !matches!(shown, 1 | 2) || last >= usize::from(count) || usize::from(count) > ENTRIES_MAX || own_level != level {
        return Err(Error::Mismatch("the head of a part"));
    }
    let seed = Seed { serial: name.serial, count };
    let (below, child) = below.map_or((None, None), |(answer, child)| (Some(answer), Some(child)));
    let found = below.as_ref().map_or(found == 1, |below| below.found);
    let mut entries = Vec::with_capacity(2);
    let mut expanded = below.map(|below| below.part);
    for index in first..=last {
        let (mut entry, named) = decode_blob(input, seed, index)?;
        if let Entry::Child { child: subtree, .. } = &mut entry
            && let Some(part) = expanded.take()
        {
            if named != child {
                return Err(Error::Mismatch("a part of another child"));
            }
            *subtree = Subtree::Expanded(part);
        }
        if matches!(entry, Entry::Record { .. }) != (level == 0) {
            return Err(Error::Mismatch("the kind of an entry"));
        }
        entries.push((index as u16, entry));
    }
    let places: Vec<usize> = hash_numbers(usize::from(count), first, last).collect();
    if places.len() != usize::from(hashes) {
        return Err(Error::Mismatch("the number of hashes"));
    }
    let hash = |number| -> Result<Digest> {
        let bytes: &[u8; 32] = input.array()?;
        if *input.array()? != seed.check(Place::Hash(number), bytes) {
            return Err(Error::Mismatch("the check of a hash"));
        }
        Ok(Digest(*bytes))
    };
    let hashes = places.into_iter().map(hash).collect::<Result<_>>()?;
    Ok((NodePart { count, entries, hashes }, name, found))
}

/// The numbers of the hashes of a list proof in a page, in its order.
fn hash_numbers(count: usize, first: usize, last: usize) -> impl Iterator<Item = usize> {
    let start = move |level: usize| {
        std::iter::successors(Some(count), |width| Some(width.div_ceil(2))).take(level).sum::<usize>()
    };
    list_proof(count, first, last).map(move |(level, at)| start(level) + at)
}

/// An entry, and the page of the child that it names.
fn decode_blob(input: &mut Input<'_>, seed: Seed, index: usize) -> Result<(Entry<'static>, Option<PageName>)> {
    let whole = input.bytes;
    let (key_len, kind, value_len) = (usize::from(input.u16()?), input.u16()?, input.u32()?);
    if key_len > KEY_BYTES_MAX {
        return Err(Error::Mismatch("the length of a key"));
    }
    let key = &input.take(up8(key_len))?[..key_len];
    let key = Cow::Owned(key.to_vec());
    let (entry, child) = if kind == KIND_CHILD {
        let name = PageName { pointer: input.u32()?, serial: input.u32()? };
        (Entry::Child { separator: key, child: Subtree::Hash(Digest(*input.array()?)) }, Some(name))
    } else {
        let stamp = Stamp::new(input.u64()?, input.u64()?);
        let value_hash = Digest(*input.array()?);
        let body = match kind {
            KIND_PUT => RecordBody::Put { value_len, value_hash },
            _ => RecordBody::Tombstone,
        };
        (Entry::Record { key, stamp, body }, None)
    };
    let covered = &whole[..whole.len() - input.bytes.len()];
    if *input.array()? != seed.check(Place::Entry(index), covered) {
        return Err(Error::Mismatch("the check of an entry"));
    }
    Ok((entry, child))
}

/// Bytes that are read from the front.
struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Error::Mismatch("a result is cut short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(Error::Mismatch("a result is cut short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(*self.array()?))
    }
}
