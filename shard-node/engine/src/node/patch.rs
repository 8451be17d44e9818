//! Nodes as patches: the difference between a node and an older one, its base. A base is stored
//! whole, either in its span or as a patch of nothing.
//!
//! A version changes few entries of most nodes that it touches. Whole spans would therefore be most
//! of the bytes written. A patch holds all differences from the base, not from the node before, so
//! a read takes two places, however long the chain of versions is. Only nodes of the active tree
//! are stored as patches; merges write whole nodes.
//!
//! `docs/format.md` section "Patches" has the layout.

use std::{ops::Range, sync::Arc};

use coppice_types::codec::{Reader, put_short};

use super::{
    Child, Draft, ENTRY_FIXED_BYTES, FORMAT, HEADER_BYTES, Node, RECORD_FIXED_BYTES, SLOT_BYTES, Source, body_bytes,
    entry_bytes, record_bytes,
};
use crate::place::{
    bytes::own,
    page::{PAGE_BYTES, Pid, SPAN_PAGES_MAX, zeroed},
};

/// Length field before each patch in its page.
const LEN_BYTES: usize = 2;
const RUN_BYTES: usize = 3 * 2;
/// Limit on the number of patches in one page.
const PATCHES_MAX: u16 = 256;

/// The base of a node that is stored as a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) pid: Pid,
    pub(crate) checksum: u64,
    /// Bytes of the base and of all patches made on it so far, this one included, and their number.
    spent: u32,
    count: u16,
    /// Length of the patch.
    pub(crate) patch_bytes: u16,
    /// For each entry of the node, its index in the base. The index is combined with [`RENEWED`] if
    /// only the key is the same. It is [`NEW`] if the base does not have the key.
    from: Arc<[u16]>,
}

const NEW: u16 = u16::MAX;
const RENEWED: u16 = 1 << 15;
/// Kind and stamp of a record.
const RECORD_HEAD_BYTES: usize = RECORD_FIXED_BYTES - 2;
/// Flag in the kind of a patch's record: the record has the key of the base's next entry.
const KEYLESS: u8 = 1 << 7;

impl Base {
    /// The base as a parent would refer to it. Its hash is unknown.
    pub(crate) fn child(&self) -> Child {
        Child { pid: self.pid, checksum: self.checksum, hash: coppice_types::Digest::default() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_u64().to_le_bytes());
        out.extend(self.checksum.to_le_bytes());
        out.extend(self.spent.to_le_bytes());
        out.extend(self.count.to_le_bytes());
    }

    /// Size of the table of entries in memory.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.from)
    }

    /// Decodes the base of a patch, without the table of entries. The outer option is `None` if the
    /// patch is malformed, the inner one if it is a patch of nothing.
    pub(crate) fn of(patch: &[u8]) -> Option<Option<Self>> {
        let mut input = Reader::new(patch);
        let (place, checksum) = (input.u64().ok()?, input.u64().ok()?);
        let (spent, count) = (input.u32().ok()?, input.u16().ok()?);
        if (place, checksum, spent, count) == (0, 0, 0, 0) {
            return Some(None);
        }
        let (patch_bytes, from) = (patch.len() as u16, Arc::default());
        let on = Self { pid: Pid::from_u64(place)?, checksum, spent, count, patch_bytes, from };
        (count > 0).then_some(Some(on))
    }
}

/// A patch that has no place yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) bytes: Vec<u8>,
    /// The base; `None` if the patch holds the whole node.
    pub(crate) base: Option<Base>,
}

/// Consecutive entries of the base, followed by new entries.
#[derive(Default)]
struct Run {
    first: u16,
    count: u16,
    /// The base's entry that may share its key with the next new entry.
    next: u16,
    /// Indices of the new entries in the new node.
    new: Range<usize>,
}

/// A larger node is stored in its own span, since it would leave little room for others in a page
/// of patches.
const WHOLE_BYTES_MAX: usize = PAGE_BYTES / 4 * 3;

/// Head of a patch: base and version.
const HEAD_BYTES: usize = 8 + 8 + 4 + 2 + 8;

impl Patch {
    /// Makes a patch of the predecessor's base, or of the predecessor itself if that is stored
    /// whole. `sources` has the origin of each entry of the new node.
    ///
    /// Returns `None` if the whole node is the better choice: if the patch is larger than the
    /// average of base and patches so far. So the average falls as long as possible, and then a new
    /// cycle begins.
    pub(crate) fn new(draft: &Draft, old: &Node, sources: &[Source]) -> Option<Self> {
        let node = Node { bytes: Arc::clone(&draft.bytes), base: None };
        let before = old.base.as_ref();
        let (pid, checksum) = before.map_or_else(|| (old.pid(), old.checksum()), |base| (base.pid, base.checksum));
        let (spent, count) = before.map_or((old.whole_bytes() as u32, 1), |base| (base.spent, base.count));
        let mean = spent as usize / usize::from(count);
        let most = mean.min(PAGE_BYTES - LEN_BYTES);
        let of_base = |index: usize| before.map_or(index as u16, |base| base.from[index]);
        let mut next = 0;
        let from = sources.iter().enumerate().map(|(index, source)| match source {
            Source::Old(old) => {
                next = old + 1;
                of_base(*old)
            }
            Source::New(_) => match old.search_from(next, node.key(index)).map(of_base) {
                Ok(NEW) | Err(_) => NEW,
                Ok(replaced) => replaced | RENEWED,
            },
        });
        let from: Arc<[u16]> = from.collect();
        let mut bytes = Vec::with_capacity(most);
        bytes.resize(HEAD_BYTES, 0);
        for Run { first, count, new, .. } in runs(&from) {
            let start = bytes.len() + RUN_BYTES;
            bytes.resize(start, 0);
            new.for_each(|index| node.encode_new(index, from[index] != NEW, &mut bytes));
            let run = [first, count, (bytes.len() - start) as u16];
            let numbers = run.into_iter().flat_map(u16::to_le_bytes);
            bytes[start - RUN_BYTES..start].iter_mut().zip(numbers).for_each(|(byte, number)| *byte = number);
            if bytes.len() > most {
                return None;
            }
        }
        if bytes.len() > most || count == u16::MAX {
            return None;
        }
        // These numbers come from the base's patch and were never checked.
        let (spent, count) = (spent.checked_add(bytes.len() as u32)?, count + 1);
        let base = Base { pid, checksum, spent, count, patch_bytes: bytes.len() as u16, from };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        base.encode(&mut head);
        head.extend(node.made_at().0.to_le_bytes());
        bytes[..HEAD_BYTES].copy_from_slice(&head);
        Some(Self { bytes, base: Some(base) })
    }

    /// Makes a patch of nothing, which holds the whole node. `None` if the node is too large.
    pub(crate) fn whole(draft: &Draft) -> Option<Self> {
        let node = Node { bytes: Arc::clone(&draft.bytes), base: None };
        let entries = node.entry_range(0..node.len());
        let len = HEAD_BYTES + RUN_BYTES + entries.len();
        if len > WHOLE_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(HEAD_BYTES - 8, 0);
        bytes.extend(node.made_at().0.to_le_bytes());
        bytes.extend([0, 0, entries.len() as u16].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend_from_slice(&node.bytes[entries]);
        Some(Self { bytes, base: None })
    }
}

/// The runs that build a node from its base's entries and new ones.
fn runs(from: &[u16]) -> Vec<Run> {
    let (mut runs, mut run) = (Vec::with_capacity(8), Run::default());
    for (index, from) in from.iter().enumerate() {
        let (renewed, place) = (*from & RENEWED != 0, *from & !RENEWED);
        let first_of_run = run.new.is_empty() && run.count == 0;
        if *from == NEW || (renewed && run.next == place) {
            let start = if run.new.is_empty() { index } else { run.new.start };
            run.new = start..index + 1;
            run.next += u16::from(*from != NEW);
        } else if renewed {
            let next = Run { first: place, count: 0, next: place + 1, new: index..index + 1 };
            runs.push(std::mem::replace(&mut run, next));
        } else if first_of_run || (run.new.is_empty() && run.next == place) {
            run.first = if first_of_run { place } else { run.first };
            run.count += 1;
            run.next = place + 1;
        } else {
            let next = Run { first: place, count: 1, next: place + 1, new: 0..0 };
            runs.push(std::mem::replace(&mut run, next));
        }
    }
    runs.push(run);
    runs
}

impl Node {
    /// Builds the node from a patch and its base, if it has one, and checks it against the parent's
    /// knowledge.
    pub(crate) fn patched(patch: &[u8], base: Option<&Self>, child: &Child, level: u8) -> Result<Self, &'static str> {
        let (bytes, on) = Self::apply(patch, base, child, level)?;
        let mut node = Self::check(bytes, child, level)?;
        node.base = on;
        Ok(node)
    }

    /// Bytes on disk of a node that is stored whole.
    pub(crate) fn whole_bytes(&self) -> usize {
        match self.pid().is_patch() {
            true => HEAD_BYTES + RUN_BYTES + self.entry_range(0..self.len()).len(),
            false => self.bytes.len(),
        }
    }

    /// Builds the bytes of the patched node without checking them.
    pub(crate) fn apply(
        patch: &[u8],
        base: Option<&Self>,
        child: &Child,
        level: u8,
    ) -> Result<(Arc<[u8]>, Option<Base>), &'static str> {
        let (on, made_at, pieces) = pieces(patch, base, level).ok_or("patch")?;
        let count: usize = pieces.iter().map(|piece| piece.count).sum();
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        let end = slots_end + pieces.iter().map(Piece::len).sum::<usize>();
        if count == 0 || end > SPAN_PAGES_MAX * PAGE_BYTES {
            return Err("patch length");
        }
        let mut shared = zeroed(end.next_multiple_of(PAGE_BYTES));
        let out = own(&mut shared);
        out[..8].copy_from_slice(&child.checksum.to_le_bytes());
        out[8..16].copy_from_slice(&child.pid.to_u64().to_le_bytes());
        out[16..24].copy_from_slice(&made_at.to_le_bytes());
        (out[24], out[25]) = (FORMAT, level);
        out[26..28].copy_from_slice(&(count as u16).to_le_bytes());
        out[28..30].copy_from_slice(&(end as u16).to_le_bytes());
        let (mut at, mut to, mut slot) = (slots_end, slots_end, HEADER_BYTES);
        for Piece { count, head, parts } in &pieces {
            for part in head.iter().map(<[u8; _]>::as_slice).chain(*parts) {
                out[to..to + part.len()].copy_from_slice(part);
                to += part.len();
            }
            for _ in 0..*count {
                out[slot..slot + SLOT_BYTES].copy_from_slice(&(at as u16).to_le_bytes());
                slot += SLOT_BYTES;
                at += entry_len(&out[at..to], level).ok_or("entry")?;
            }
        }
        Ok((shared, on))
    }

    /// Encodes an entry for a patch, without its key if the base's next entry has the same one.
    fn encode_new(&self, index: usize, keyless: bool, out: &mut Vec<u8>) {
        let entry = &self.bytes[self.entry_range(index..index + 1)];
        let key_len = self.key(index).len();
        match (keyless, self.level()) {
            (false, _) => out.extend_from_slice(entry),
            (true, 0) => {
                let stamp = self.record(index).stamp;
                out.push(entry[0] | KEYLESS);
                put_short(out, stamp.epoch.0);
                put_short(out, self.made_at().0.wrapping_sub(stamp.version.0));
                out.extend_from_slice(&entry[RECORD_FIXED_BYTES + key_len..]);
            }
            (true, _) => {
                out.extend([0; 2]);
                out.extend_from_slice(&entry[2 + key_len..]);
            }
        }
    }

    /// An entry's key length and key, as encoded.
    fn encoded_key(&self, index: usize) -> &[u8] {
        let start = self.slot(index) + if self.level() == 0 { RECORD_HEAD_BYTES } else { 0 };
        &self.bytes[start..start + 2 + self.key(index).len()]
    }
}

fn entry_len(bytes: &[u8], level: u8) -> Option<usize> {
    if level == 0 { record_bytes(bytes) } else { entry_bytes(bytes) }
}

/// Consecutive entries: their number, and their bytes in parts that follow each other.
struct Piece<'a> {
    count: usize,
    /// The bytes before the key, for a record whose own key is left out.
    head: Option<[u8; RECORD_HEAD_BYTES]>,
    parts: [&'a [u8]; 2],
}

impl Piece<'_> {
    fn len(&self) -> usize {
        self.head.map_or(0, |head| head.len()) + self.parts.iter().map(|part| part.len()).sum::<usize>()
    }
}

/// Decodes a patch: its base, the version that made the node, and the node's entries in order.
fn pieces<'a>(patch: &'a [u8], base: Option<&'a Node>, level: u8) -> Option<(Option<Base>, u64, Vec<Piece<'a>>)> {
    let mut on = Base::of(patch)?;
    if on.is_some() != base.is_some() || base.is_some_and(|base| base.base.is_some()) {
        return None;
    }
    let (head, mut rest) = patch.split_at_checked(HEAD_BYTES)?;
    let made_at = u64::from_le_bytes(*head.last_chunk()?);
    let (mut pieces, mut from) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<RUN_BYTES>()?;
        let [first, count, len] = [0, 2, 4].map(|at| usize::from(u16::from_le_bytes([head[at], head[at + 1]])));
        let (mut new, after) = after.split_at_checked(len)?;
        rest = after;
        let mut next = first + count;
        if count > 0 {
            let base = base.filter(|base| next <= base.len())?;
            let range = base.entry_range(first..next);
            pieces.push(Piece { count, head: None, parts: [&base.bytes[range], &[]] });
            from.extend((first..next).map(|index| index as u16));
        }
        while !new.is_empty() {
            let (piece, after) = match base.and_then(|base| Some((base, keyless(new, made_at, level)?))) {
                Some((base, body)) => {
                    let (head, body, after) = body?;
                    let key = (next < base.len()).then(|| base.encoded_key(next))?;
                    from.push(next as u16 | RENEWED);
                    next += 1;
                    (Piece { count: 1, head, parts: [key, body] }, after)
                }
                None => {
                    let (entry, after) = new.split_at_checked(entry_len(new, level)?)?;
                    from.push(NEW);
                    (Piece { count: 1, head: None, parts: [entry, &[]] }, after)
                }
            };
            pieces.push(piece);
            new = after;
        }
    }
    if let Some(on) = &mut on {
        on.from = from.into();
    }
    Some((on, made_at, pieces))
}

/// The bytes before an entry's key, those after it, and those after the entry.
type Keyless<'a> = (Option<[u8; RECORD_HEAD_BYTES]>, &'a [u8], &'a [u8]);

/// Decodes the entry at the start of the bytes if it is stored without its key. The inner option is
/// `None` if the entry is cut off.
fn keyless(bytes: &[u8], made_at: u64, level: u8) -> Option<Option<Keyless<'_>>> {
    let record = || {
        let mut input = Reader::new(bytes);
        let kind = input.u8().ok()? & !KEYLESS;
        let (epoch, back) = (input.short().ok()?, input.short().ok()?);
        let rest = input.take(input.remaining()).ok()?;
        let mut head = [kind; RECORD_HEAD_BYTES];
        head[1..9].copy_from_slice(&epoch.to_le_bytes());
        head[9..].copy_from_slice(&made_at.wrapping_sub(back).to_le_bytes());
        let (body, after) = rest.split_at_checked(body_bytes(kind, rest)?)?;
        Some((Some(head), body, after))
    };
    let child = || {
        let (body, after) = bytes.get(2..)?.split_at_checked(ENTRY_FIXED_BYTES - 2)?;
        Some((None, body, after))
    };
    match level {
        0 => (*bytes.first()? & KEYLESS != 0).then(record),
        _ => bytes.starts_with(&[0; 2]).then(child),
    }
}

/// A page of patches that is being filled.
#[derive(Debug)]
pub(crate) struct PatchPage {
    bytes: Arc<[u8]>,
    used: usize,
    count: u16,
}

impl PatchPage {
    pub(crate) fn new() -> Self {
        Self { bytes: zeroed(PAGE_BYTES), used: 0, count: 0 }
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Adds a patch and returns its slot; `None` if there is no room.
    ///
    /// # Panics
    /// If other owners hold the page's bytes.
    pub(crate) fn push(&mut self, patch: &[u8]) -> Option<u8> {
        let end = self.used + LEN_BYTES + patch.len();
        if end > PAGE_BYTES || self.count == PATCHES_MAX {
            return None;
        }
        let bytes = own(&mut self.bytes);
        bytes[self.used..self.used + LEN_BYTES].copy_from_slice(&(patch.len() as u16).to_le_bytes());
        bytes[self.used + LEN_BYTES..end].copy_from_slice(patch);
        self.used = end;
        self.count += 1;
        Some((self.count - 1) as u8)
    }
}

/// The patch in a slot of a page.
pub(crate) fn patch_in(page: &[u8], slot: u8) -> Option<&[u8]> {
    let mut rest = page;
    for _ in 0..slot {
        let (len, after) = rest.split_first_chunk::<LEN_BYTES>()?;
        rest = after.get(usize::from(u16::from_le_bytes(*len))..)?;
    }
    let (len, after) = rest.split_first_chunk::<LEN_BYTES>()?;
    after.get(..usize::from(u16::from_le_bytes(*len)))
}

#[cfg(test)]
mod tests;
