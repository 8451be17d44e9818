//! Nodes as patches: what sets a node apart from an older one, its base, that lies whole in its span.
//!
//! A version changes few entries of most nodes that it touches, so a whole span for each would be most of what is written.
//! A patch has all that differs from the base, not from the node before it, so a read takes two places, however long the
//! chain of versions is. Only nodes of the active tree have patches: merges write whole nodes.
//!
//! `docs/FORMAT.md` section "Patches" has the layout.

use std::{iter, ops::Range, sync::Arc};

use coppice_types::codec::Reader;

use super::{Child, Draft, FORMAT, HEADER_BYTES, Node, SLOT_BYTES, Source, entry_bytes, record_bytes};
use crate::page::{PAGE_BYTES, Pid, SPAN_PAGES_MAX};

/// Length of each patch in its page.
const LEN_BYTES: usize = 2;
const RUN_BYTES: usize = 3 * 2;
/// Most patches of one page.
const PATCHES_MAX: u16 = 256;

/// What a node that is stored as a patch rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) pid: Pid,
    pub(crate) checksum: u64,
    /// What the base and the patches on it took so far, this one included, and how many they are.
    spent: u32,
    count: u16,
    /// Length of the patch.
    pub(crate) patch_bytes: u16,
    /// Of each entry of the node, which one of the base it is; [`NEW`] if it is none.
    from: Arc<[u16]>,
}

const NEW: u16 = u16::MAX;

impl Base {
    /// As the parent of a node that lies whole would know it; nobody knows its hash.
    pub(crate) fn child(&self) -> Child {
        Child { pid: self.pid, checksum: self.checksum, hash: coppice_types::Digest::default() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_u64().to_le_bytes());
        out.extend(self.checksum.to_le_bytes());
        out.extend(self.spent.to_le_bytes());
        out.extend(self.count.to_le_bytes());
    }

    /// Bytes of it in memory.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.from)
    }

    /// What a patch rests on, without its entries.
    pub(crate) fn of(patch: &[u8]) -> Option<Self> {
        let mut input = Reader::new(patch);
        let pid = Pid::from_u64(input.u64().ok()?).filter(|pid| !pid.is_patch())?;
        let (checksum, spent, count) = (input.u64().ok()?, input.u32().ok()?, input.u16().ok()?);
        let (patch_bytes, from) = (patch.len() as u16, Arc::default());
        (count > 0).then_some(Self { pid, checksum, spent, count, patch_bytes, from })
    }
}

/// A patch before it has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) base: Base,
}

/// Neighbours in the base, then entries that are new.
#[derive(Default)]
struct Run {
    first: u16,
    count: u16,
    /// Where the new ones lie in the new node.
    new: Range<usize>,
}

/// Base, version.
const HEAD_BYTES: usize = 8 + 8 + 4 + 2 + 8;

impl Patch {
    /// A node as a patch of its predecessor's base, or of its predecessor if that lies whole; `sources` says what becomes of the
    /// predecessor's entries. None if the node whole is the better choice: if the patch would take more than base and patches
    /// took on average until now. So the average falls as long as it can, and what follows begins a new cycle.
    pub(crate) fn new(draft: &Draft, old: &Node, sources: &[Source]) -> Option<Self> {
        let node = Node { bytes: Arc::clone(&draft.bytes), base: None };
        let before = old.base.as_ref();
        let (pid, checksum) = before.map_or_else(|| (old.pid(), old.checksum()), |base| (base.pid, base.checksum));
        let (spent, count) = before.map_or((old.bytes.len() as u32, 1), |base| (base.spent, base.count));
        let mean = spent as usize / usize::from(count);
        let most = mean.min(PAGE_BYTES - LEN_BYTES);
        let from = sources.iter().map(|source| match (source, before) {
            (Source::New(_), _) => NEW,
            (Source::Old(index), Some(base)) => base.from[*index],
            (Source::Old(index), None) => *index as u16,
        });
        let from: Arc<[u16]> = from.collect();
        let runs = runs(&from, &node);
        let len = HEAD_BYTES + runs.iter().map(|run| RUN_BYTES + run.new.len()).sum::<usize>();
        if len > most || count == u16::MAX {
            return None;
        }
        let (spent, count) = (spent + len as u32, count + 1);
        let base = Base { pid, checksum, spent, count, patch_bytes: len as u16, from };
        let mut bytes = Vec::with_capacity(len);
        base.encode(&mut bytes);
        bytes.extend(node.made_at().0.to_le_bytes());
        for Run { first, count, new } in runs {
            [first, count, new.len() as u16].into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend_from_slice(&node.bytes[new]);
        }
        assert_eq!(bytes.len(), len);
        Some(Self { bytes, base })
    }
}

/// How a node is made of its base's entries and of new ones.
fn runs(from: &[u16], node: &Node) -> Vec<Run> {
    let mut runs = Vec::with_capacity(8);
    runs.push(Run::default());
    for (index, from) in from.iter().enumerate() {
        let run = runs.last_mut().expect("there is one");
        if *from == NEW {
            let Range { start, end } = node.entry_range(index..index + 1);
            run.new = if run.new.is_empty() { start..end } else { run.new.start..end };
        } else if run.new.is_empty() && run.count == 0 {
            (run.first, run.count) = (*from, 1);
        } else if run.new.is_empty() && run.first + run.count == *from {
            run.count += 1;
        } else {
            runs.push(Run { first: *from, count: 1, new: 0..0 });
        }
    }
    runs
}

impl Node {
    /// The node that a patch makes of its base, checked against what the parent knows.
    pub(crate) fn patched(patch: &[u8], base: &Self, child: &Child, level: u8) -> Result<Self, &'static str> {
        let (bytes, on) = Self::apply(patch, base, child, level)?;
        let mut node = Self::check(bytes, child, level)?;
        node.base = Some(on);
        Ok(node)
    }

    /// The bytes of that node, not checked.
    pub(crate) fn apply(
        patch: &[u8],
        base: &Self,
        child: &Child,
        level: u8,
    ) -> Result<(Arc<[u8]>, Base), &'static str> {
        let (on, made_at, pieces) = pieces(patch, base, level).ok_or("patch")?;
        let count: usize = pieces.iter().map(|piece| piece.0).sum();
        let slots_end = HEADER_BYTES + count * SLOT_BYTES;
        let end = slots_end + pieces.iter().map(|piece| piece.1.len()).sum::<usize>();
        if count == 0 || end > SPAN_PAGES_MAX * PAGE_BYTES {
            return Err("patch length");
        }
        let mut shared: Arc<[u8]> = iter::repeat_n(0, end.next_multiple_of(PAGE_BYTES)).collect();
        let out = Arc::get_mut(&mut shared).expect("it was made here");
        out[..8].copy_from_slice(&child.checksum.to_le_bytes());
        out[8..16].copy_from_slice(&child.pid.to_u64().to_le_bytes());
        out[16..24].copy_from_slice(&made_at.to_le_bytes());
        (out[24], out[25]) = (FORMAT, level);
        out[26..28].copy_from_slice(&(count as u16).to_le_bytes());
        out[28..30].copy_from_slice(&(end as u16).to_le_bytes());
        let (mut at, mut slot) = (slots_end, HEADER_BYTES);
        for (count, bytes) in pieces {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            for _ in 0..count {
                out[slot..slot + SLOT_BYTES].copy_from_slice(&(at as u16).to_le_bytes());
                slot += SLOT_BYTES;
                at += entry_len(&out[at..end], level).ok_or("entry")?;
            }
        }
        Ok((shared, on))
    }
}

fn entry_len(bytes: &[u8], level: u8) -> Option<usize> {
    if level == 0 { record_bytes(bytes) } else { entry_bytes(bytes) }
}

/// Entries that lie one behind the other: how many, and their bytes.
type Piece<'a> = (usize, &'a [u8]);

/// What the patch rests on, the version that made the node, and the node's entries, in order.
fn pieces<'a>(patch: &'a [u8], base: &'a Node, level: u8) -> Option<(Base, u64, Vec<Piece<'a>>)> {
    let mut on = Base::of(patch)?;
    let (head, mut rest) = patch.split_at_checked(HEAD_BYTES)?;
    let made_at = u64::from_le_bytes(*head.last_chunk()?);
    let (mut pieces, mut from) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<RUN_BYTES>()?;
        let [first, count, len] = [0, 2, 4].map(|at| usize::from(u16::from_le_bytes([head[at], head[at + 1]])));
        let (new, after) = after.split_at_checked(len)?;
        rest = after;
        if count > 0 {
            let range = (first + count <= base.len()).then(|| base.entry_range(first..first + count))?;
            pieces.push((count, &base.bytes[range]));
            from.extend((first..first + count).map(|index| index as u16));
        }
        let mut open = new;
        while !open.is_empty() {
            let (entry, after) = open.split_at_checked(entry_len(open, level)?)?;
            pieces.push((1, entry));
            from.push(NEW);
            open = after;
        }
    }
    on.from = from.into();
    Some((on, made_at, pieces))
}

/// A page of patches as it fills.
#[derive(Debug)]
pub(crate) struct PatchPage {
    bytes: Arc<[u8]>,
    used: usize,
    count: u16,
}

impl PatchPage {
    pub(crate) fn new() -> Self {
        Self { bytes: iter::repeat_n(0, PAGE_BYTES).collect(), used: 0, count: 0 }
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Adds a patch, unless there is no room; gives its slot.
    ///
    /// # Panics
    /// If the page's bytes were given away.
    pub(crate) fn push(&mut self, patch: &[u8]) -> Option<u8> {
        let end = self.used + LEN_BYTES + patch.len();
        if end > PAGE_BYTES || self.count == PATCHES_MAX {
            return None;
        }
        let bytes = Arc::get_mut(&mut self.bytes).expect("a page that fills has one owner");
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
mod tests {
    use coppice_env::{Rng, SimRng};
    use coppice_types::{Stamp, Version};
    use coppice_verify::hash;

    use super::*;
    use crate::{
        list::MerkleList,
        node::{Body, Entries, HashedRecord, LeafRecord},
        page::PageFile,
    };

    fn key(number: u64) -> Vec<u8> {
        format!("key/{number:028}").into_bytes()
    }

    fn leaf_record(key: &[u8], version: u64) -> HashedRecord<'_> {
        let (hash, at) = (hash::sha256(&version.to_le_bytes()), crate::node::ValueRef { segment: 1, offset: 2 });
        let body = Body::Stored { hash, len: 1024, at };
        HashedRecord::new(LeafRecord { key, stamp: Stamp::new(1, version), body })
    }

    /// A leaf of these keys, whole.
    fn whole(keys: &[Vec<u8>]) -> (Node, Child) {
        let records: Vec<HashedRecord<'_>> = keys.iter().map(|key| leaf_record(key, 1)).collect();
        let draft = Draft::all_new(Version(1), 0, &records);
        let pid = Pid::new(PageFile::Data, 7, draft.pages());
        draft.place(pid)
    }

    /// What a version makes of a leaf: keys that are put, and those that are removed.
    fn next(old: &Node, version: u64, puts: &[Vec<u8>], removes: &[Vec<u8>]) -> Draft {
        let new: Vec<HashedRecord<'_>> = puts.iter().map(|key| leaf_record(key, version)).collect();
        let stays = |index: &usize| !puts.iter().chain(removes).any(|key| key == old.key(*index));
        let mut sources: Vec<Source> = (0..old.len()).filter(stays).map(Source::Old).collect();
        sources.extend((0..new.len()).map(Source::New));
        let entries = |sources| Entries { sources, old: Some(old), new: &new };
        let unsorted = sources.clone();
        sources.sort_by_key(|source| entries(&unsorted).key(*source));
        let entries = entries(&sources);
        let hashes = sources.iter().map(|source| match source {
            Source::Old(index) => old.record(*index).hash(),
            Source::New(index) => new[*index].hash,
        });
        let mut draft = Draft::new(Version(version), 0, &entries, &MerkleList::new(hashes.collect()));
        draft.patch = Patch::new(&draft, old, &sources);
        draft
    }

    #[test]
    fn a_patch_gives_the_node_that_was_placed_through_many_versions() {
        let mut rng = SimRng::new(7);
        let keys: Vec<Vec<u8>> = (0..60).map(key).collect();
        let mut base = whole(&keys[..30]).0;
        let (mut node, mut patches, mut wholes, mut bytes) = (base.clone(), 0, 0, 0);
        for version in 2..600 {
            let some = |rng: &mut SimRng| keys[rng.below(60) as usize].clone();
            let mut puts: Vec<Vec<u8>> = (0..1 + rng.below(3)).map(|_| some(&mut rng)).collect();
            puts.sort();
            puts.dedup();
            let removes: Vec<Vec<u8>> =
                (0..rng.below(3)).map(|_| some(&mut rng)).filter(|key| !puts.contains(key)).collect();
            let draft = next(&node, version, &puts, &removes);
            let Some(patch) = draft.patch.clone() else {
                let pages = draft.pages();
                node = draft.place(Pid::new(PageFile::Data, version, pages)).0;
                bytes += node.bytes().len();
                (base, wholes) = (node.clone(), wholes + 1);
                continue;
            };
            let pid = Pid::of_patch(version, 3);
            let (placed, child) = draft.place(pid);
            let read = Node::patched(&patch.bytes, &base, &child, 0).expect("what was written");
            assert_eq!((read.bytes(), read.base(), read.hash()), (placed.bytes(), placed.base(), child.hash));
            assert_eq!(read.base().map(|on| on.child().checksum), Some(base.checksum()));
            bytes += patch.bytes.len();
            (node, patches) = (placed, patches + 1);
        }
        // What a cycle costs on average is near twice the root of base times growth.
        assert!(patches > 5 * wholes && wholes > 10, "{patches} {wholes}");
        assert!(bytes < 598 * 4096 / 2, "{bytes}");
    }

    #[test]
    fn every_flipped_bit_of_patch_and_base_is_found() {
        let keys: Vec<Vec<u8>> = (0..12).map(key).collect();
        let (base, _) = whole(&keys);
        let draft = next(&base, 2, &keys[3..5], &keys[7..8]);
        let patch = draft.patch.clone().expect("little has changed").bytes;
        let (_, child) = draft.place(Pid::of_patch(5, 0));
        for at in 0..patch.len() * 8 {
            let mut patch = patch.clone();
            patch[at / 8] ^= 1 << (at % 8);
            let bookkeeping = (16..22).contains(&(at / 8)) || at / 8 < 16;
            // What the base is, `Store` asks before; the rest of the head only says when the next base is due.
            assert!(bookkeeping || Node::patched(&patch, &base, &child, 0).is_err(), "bit {at}");
        }
        let elsewhere = Child { pid: Pid::of_patch(5, 1), ..child };
        assert!(Node::patched(&patch, &base, &elsewhere, 0).is_err());
        let (other, _) = whole(&keys[1..]);
        assert!(Node::patched(&patch, &other, &child, 0).is_err());
    }

    #[test]
    fn a_page_takes_patches_until_it_is_full_and_gives_them_back() {
        let mut page = PatchPage::new();
        let patches: Vec<Vec<u8>> = (0..=255_u8).map(|n| vec![n; usize::from(n % 5) + 9]).collect();
        for (slot, patch) in patches.iter().enumerate() {
            assert_eq!(page.push(patch), Some(slot as u8));
        }
        assert_eq!(page.push(&[1]), None);
        for (slot, patch) in patches.iter().enumerate() {
            assert_eq!(patch_in(page.bytes(), slot as u8), Some(patch.as_slice()));
        }
        let mut page = PatchPage::new();
        assert_eq!((page.push(&[7; 4094]), page.push(&[])), (Some(0), None));
        assert_eq!(patch_in(page.bytes(), 1), None);
    }
}
