//! The durable log of one replica: entries, raft's hard state and the memberships, in segment files
//! next to the file `meta`.
//!
//! ```text
//!  log, recover, compact     appending, opening, dropping
//!    segment   slot          one file; one entry in memory
//!    meta  block  batch      the encodings
//! ```
//!
//! Invariants:
//! - After [`Log::flush`] returned, everything appended before is durable. A flush is one batch and
//!   one fsync, and is done as a whole or not at all.
//! - A segment is begun only when all earlier batches are durable, so only a batch of the newest
//!   segment can be cut off.
//! - The first batch of every segment repeats hard state and memberships, so that older segments
//!   can be dropped.
//! - Entries are readable as soon as they are appended, durable or not.
//!
//! What a crash leaves:
//! - during a flush: a complete batch, or one that the next start cuts away;
//! - while a segment is made: a file without a batch of that segment;
//! - during a cut and `reset`: the old or the new `meta`, and files that `meta` does not count,
//!   which the next start removes.

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod compact;
pub(crate) mod meta;
pub(crate) mod recover;
pub(crate) mod segment;
mod slot;

use std::{
    collections::VecDeque,
    iter,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use coppice_env::{
    DirectBuffer, OpenMode, Storage,
    bug::{Bug, planted},
};
use coppice_types::codec::{Reader, Writer};
use raft::eraftpb::Entry;

use self::{
    batch::{ENTRY_HEADER_BYTES, HardState, Item, Items, entry_data, make_entry},
    meta::{Meta, Owner},
    segment::{Place, Segment},
    slot::{Content, Slot},
};
use crate::{
    Membership, Position,
    error::{Error, Result},
    output::{Beside, Writing},
    width::{len32, to_usize},
};

/// Room that is kept free for votes and commit indexes when data is refused on a full disk.
const RESERVE_BYTES: usize = 64 << 10;

/// The smallest step in which a segment is filled.
const FILL_BYTES_MIN: u64 = 64 << 10;

/// Bytes of one write once a batch was longer than `WRITE_BYTES`. Larger writes are no faster, and
/// a buffer that is reused costs no page faults.
const LARGE_WRITE_BYTES: usize = 2 << 20;
/// Bytes of one write before that.
const WRITE_BYTES: usize = 512 << 10;

/// Sizes of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A new segment is begun where a batch would not fit in this size.
    pub segment_bytes: u64,
    /// Segments are filled with zeroes in steps of at most this size.
    pub fill_bytes: u64,
    /// Bytes of durable entries that are kept in memory.
    pub cache_bytes: usize,
    /// A smaller batch is written on the caller's thread.
    pub beside_bytes_min: usize,
}

#[derive(Debug, Default)]
struct Pending {
    items: Items,
    /// Entries in `items`: the index, and where in `items` the entry begins.
    entries: Vec<(u64, u64)>,
    /// Whether the batch has a new hard state.
    hard_state: bool,
    /// Whether it holds anything that must be durable before messages speak of it.
    sync: bool,
    /// Bytes that room was made for. Their entries may not have been appended yet.
    reserved: usize,
}

#[derive(Debug)]
pub(crate) struct Log {
    storage: Arc<dyn Storage>,
    sizes: Sizes,
    meta: Meta,
    hard_state: HardState,
    /// The membership at the base and all later ones, each with the first index that it is valid
    /// at.
    memberships: Vec<(u64, Membership)>,
    /// The entries after the base.
    slots: VecDeque<Slot>,
    /// The segments, oldest first. The last one takes new batches.
    segments: VecDeque<Segment>,
    /// A filled segment that is begun when the last one is full.
    spare: Option<Segment>,
    /// Dropped segments whose files later segments reuse. Writing over old blocks costs a disk less
    /// than writing new ones, and the file system has nothing to record. At most as many are kept
    /// as one of the last two compactions dropped.
    dropped: Vec<Segment>,
    /// How many reusable segments the last compaction dropped.
    dropped_last: usize,
    /// Segments before this one may hold what must not stay on the disk: their files are removed,
    /// never used again.
    clean_from: u64,
    /// Whether the next batch begins a segment in any case.
    renews: bool,
    /// Whether the cut that has begun may still be stored.
    cut: Option<Arc<Mutex<bool>>>,
    sequence_next: u64,
    pending: Pending,
    /// The buffer of one write.
    buffer: DirectBuffer,
    /// The end of the log and raft's state when the last batch was written. A new segment begins
    /// with them.
    written: (Position, HardState),
    cached_bytes: usize,
    /// Entries with a smaller index have no data in memory.
    cached_from: u64,
}

/// The place of an entry's slot in the list of slots.
fn slot_of(base: Position, index: u64) -> usize {
    assert!(index > base.index, "entries up to the base have no slot");
    to_usize(index - base.index - 1)
}

/// The commands among a batch's entries, by index.
fn commands(slots: &VecDeque<Slot>, base: Position, entries: &[(u64, u64)]) -> Vec<(u64, Bytes)> {
    let command = |(index, _): &(u64, u64)| Some((*index, slots[slot_of(base, *index)].command()?));
    entries.iter().filter_map(command).collect()
}

impl Log {
    /// Creates a log that starts after `base`, durably.
    pub(crate) fn create(
        storage: Arc<dyn Storage>,
        sizes: Sizes,
        owner: Owner,
        base: Position,
        membership: Membership,
    ) -> Result<Self> {
        if Meta::load(&*storage)?.is_some() {
            return Err(Error::Existence("there is a raft log in this directory already"));
        }
        let hard_state = HardState { term: base.term, vote: 0, commit: base.index };
        let meta = Meta { owner, base, membership, hard_state, first_segment: 1, manifest: None, quarantine: None };
        meta.store(&*storage)?;
        Ok(Self::empty(storage, sizes, meta))
    }

    /// A log without segments, as its meta file describes it.
    fn empty(storage: Arc<dyn Storage>, sizes: Sizes, meta: Meta) -> Self {
        Self {
            storage,
            sizes,
            hard_state: meta.hard_state,
            memberships: vec![(meta.base.index, meta.membership.clone())],
            slots: VecDeque::new(),
            segments: VecDeque::new(),
            spare: None,
            dropped: Vec::new(),
            dropped_last: 0,
            clean_from: 0,
            renews: false,
            cut: None,
            sequence_next: 1,
            pending: Pending::default(),
            buffer: DirectBuffer::zeroed(WRITE_BYTES),
            written: (meta.base, meta.hard_state),
            cached_bytes: 0,
            cached_from: meta.base.index + 1,
            meta,
        }
    }

    /// Bytes that the segments take on the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let segments = self.segments.iter().chain(&self.spare).chain(&self.dropped);
        let blocks: u64 = segments.map(|segment| segment.filled_blocks).sum();
        blocks * block::BLOCK_BYTES as u64
    }

    pub(crate) fn base(&self) -> Position {
        self.meta.base
    }

    pub(crate) fn last(&self) -> Position {
        let index = self.meta.base.index + self.slots.len() as u64;
        Position { index, term: self.slots.back().map_or(self.meta.base.term, |slot| slot.term) }
    }

    pub(crate) fn hard_state(&self) -> HardState {
        self.hard_state
    }

    pub(crate) fn manifest(&self) -> Option<&[u8]> {
        self.meta.manifest.as_deref()
    }

    pub(crate) fn quarantine(&self) -> Option<&[u8]> {
        self.meta.quarantine.as_deref()
    }

    /// Records durably why this replica does not trust its own state; `None` if it does.
    pub(crate) fn set_quarantine(&mut self, evidence: Option<&[u8]>) -> Result<()> {
        let mut meta = self.meta.clone();
        meta.quarantine = evidence.map(<[u8]>::to_vec);
        self.forget_cut();
        meta.store(&*self.storage)?;
        self.meta = meta;
        Ok(())
    }

    fn slot(&self, index: u64) -> Option<&Slot> {
        let at = index.checked_sub(self.meta.base.index + 1)?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// The term at an index that the log holds or starts after.
    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        if index == self.meta.base.index {
            return Some(self.meta.base.term);
        }
        self.slot(index).map(|slot| slot.term)
    }

    /// The membership that holds once the entry at `index` is applied.
    pub(crate) fn membership_at(&self, index: u64) -> &Membership {
        assert!(index >= self.meta.base.index, "memberships before the base are forgotten");
        let at = self.memberships.partition_point(|(from, _)| *from <= index);
        assert!(at > 0, "the first membership is that of the base");
        &self.memberships[at - 1].1
    }

    /// The newest membership, and the first index that it is valid at.
    pub(crate) fn newest_membership(&self) -> &(u64, Membership) {
        self.memberships.last().expect("there is one from the base on")
    }

    /// Appends entries in memory. They replace the entries from the first one's index on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.meta.base.index, "entries before the base are applied");
        assert!(first.index > self.hard_state.commit, "committed entries are never replaced");
        assert!(first.index <= self.last().index + 1, "entries leave no gap");
        self.truncate(first.index);
        for entry in entries {
            let position = Position { index: entry.index, term: entry.term };
            assert_eq!(position.index, self.last().index + 1, "entries follow each other");
            assert!(position.term >= self.last().term, "terms never fall");
            let data = entry_data(entry).clone();
            let kind = entry.get_entry_type();
            self.pending.entries.push((position.index, self.pending.items.len() as u64));
            self.pending.items.push_entry(kind, position, &data);
            self.cached_bytes += data.len();
            let bytes = len32(data.len());
            self.slots.push_back(Slot { term: position.term, kind, bytes, content: Content::Volatile(data) });
        }
        self.pending.sync = true;
    }

    fn truncate(&mut self, from: u64) {
        assert!(from > self.meta.base.index, "the base stays");
        while self.last().index >= from
            && let Some(slot) = self.slots.pop_back()
        {
            self.cached_bytes -= slot.cached_bytes();
        }
        self.pending.entries.retain(|(index, _)| *index < from);
        self.cached_from = self.cached_from.min(from);
    }

    /// Sets raft's state. A change of the commit index alone need not be durable.
    pub(crate) fn set_hard_state(&mut self, state: HardState) {
        let before = self.hard_state;
        assert!(state.term >= before.term, "terms never fall");
        assert!(state.commit >= before.commit, "the commit index never falls");
        assert!(state.commit <= self.last().index, "only entries of the log are committed");
        let voted = state.term == before.term && before.vote != 0;
        assert!(!voted || state.vote == before.vote, "a replica votes once in a term");
        if planted(Bug::VoteForgotten) {
            self.hard_state = state;
            return;
        }
        self.pending.sync |= (state.term, state.vote) != (self.hard_state.term, self.hard_state.vote);
        self.pending.hard_state = true;
        self.hard_state = state;
    }

    /// Sets the membership that holds once the entry at `index` is applied.
    pub(crate) fn set_membership(&mut self, index: u64, membership: Membership) {
        assert!(index > self.meta.base.index, "the base has its membership");
        assert!(index <= self.last().index, "a membership belongs to an entry");
        self.pending.items.push(&Item::Membership(index, membership.clone()));
        self.memberships.retain(|(from, _)| *from < index);
        assert!(!self.memberships.is_empty(), "the membership of the base stays");
        self.memberships.push((index, membership));
        self.pending.sync = true;
    }

    /// Whether anything must be flushed before messages speak of it.
    pub(crate) fn needs_sync(&self) -> bool {
        self.pending.sync
    }

    /// The largest step in which a segment is filled.
    fn fill_blocks_max(&self) -> u64 {
        (self.sizes.fill_bytes / block::BLOCK_BYTES as u64).max(1)
    }

    /// The step in which a segment with `filled` blocks is filled. It doubles with the segment,
    /// because the log of a quiet group stays short.
    fn fill_blocks(&self, filled: u64) -> u64 {
        let most = self.fill_blocks_max();
        filled.clamp((FILL_BYTES_MIN / block::BLOCK_BYTES as u64).min(most), most)
    }

    fn segment_blocks(&self) -> u64 {
        self.sizes.segment_bytes / block::BLOCK_BYTES as u64
    }

    /// An upper bound of the blocks that a batch with `bytes` of items takes at the start of a
    /// segment.
    fn blocks_needed(&self, bytes: usize) -> u64 {
        block::count(bytes + self.carry_over().len() + batch::BATCH_HEADER_BYTES)
    }

    /// Whether `blocks` more fit into the last segment.
    fn fits(&self, blocks: u64) -> bool {
        let fits = |last: &Segment| last.end_block + blocks <= self.segment_blocks().max(last.filled_blocks);
        self.segments.back().is_some_and(fits)
    }

    /// Whether the next batch begins a new segment: the last one is full, or a spare segment is
    /// ready and the last one is not filled far enough.
    fn begins_segment(&self, blocks: u64) -> bool {
        let filled = |last: &Segment| last.end_block + blocks <= last.filled_blocks;
        self.renews || !self.fits(blocks) || (self.spare.is_some() && !self.segments.back().is_some_and(filled))
    }

    /// Makes sure that `bytes` more of entries can be written, even if the disk fills up now.
    ///
    /// An error leaves the log as it was, apart from unused space, and the log stays usable.
    pub(crate) fn ensure_room(&mut self, bytes: usize) -> Result<()> {
        let reserved = self.pending.reserved + bytes;
        let blocks = self.blocks_needed(reserved + RESERVE_BYTES);
        self.make_room(blocks)?;
        self.pending.reserved = reserved;
        Ok(())
    }

    fn make_room(&mut self, blocks: u64) -> Result<()> {
        let filled = self.segments.back().map_or(0, |last| last.filled_blocks);
        let step = self.fill_blocks(filled);
        if self.fits(blocks)
            && let Some(last) = self.segments.back_mut()
        {
            let needed = last.end_block + blocks;
            return last.fill_by(needed, step);
        }
        let mut spare = match self.spare.take() {
            Some(spare) => spare,
            None => self.make_segment()?,
        };
        let missing = spare.filled_blocks < blocks;
        let filled = spare.fill_by(blocks, step);
        let synced = filled.and_then(|()| if missing { spare.sync() } else { Ok(()) });
        self.spare = Some(spare);
        synced
    }

    fn segment_next(&self) -> u64 {
        self.segments.back().map_or(self.meta.first_segment, |last| last.id + 1)
    }

    fn make_segment(&mut self) -> Result<Segment> {
        let id = self.segment_next();
        let segment = match self.dropped.pop() {
            Some(dropped) => dropped.reuse(&*self.storage, &self.meta, id)?,
            None => Segment::open(&*self.storage, &self.meta, id, OpenMode::OpenOrCreate)?,
        };
        self.storage.sync_dir("").map_err(Error::io("sync its directory"))?;
        Ok(segment)
    }

    /// The state before a segment, which the segment's first batch repeats.
    fn carry_over(&self) -> Vec<u8> {
        let (end, hard_state) = self.written;
        let mut writer = Writer::new();
        Item::Start(end).encode(&mut writer);
        Item::HardState(hard_state).encode(&mut writer);
        for (index, membership) in &self.memberships {
            Item::Membership(*index, membership.clone()).encode(&mut writer);
        }
        writer.into_bytes()
    }

    /// Makes everything that was appended and set durable, with one fsync. A large batch is written
    /// by another thread, if there is one, while this thread does other work.
    ///
    /// After an error it is unknown which entries are durable, and the log must not be used again.
    pub(crate) fn flush(&mut self, beside: &mut Beside<'_>) -> Result<()> {
        if std::mem::take(&mut self.pending.hard_state) {
            self.pending.items.push(&Item::HardState(self.hard_state));
        }
        if self.pending.items.len() == 0 {
            assert!(!self.pending.sync, "what must be durable is in the batch");
            return Ok(());
        }
        let mut carried = Vec::new();
        if self.begins_segment(self.blocks_needed(self.pending.items.len())) {
            carried = self.carry_over();
            let next = match self.spare.take() {
                Some(spare) => spare,
                None => self.make_segment()?,
            };
            assert_eq!(next.id, self.segment_next(), "segments are numbered without gaps");
            self.segments.push_back(next);
            self.renews = false;
        }
        let Pending { items, entries, .. } = std::mem::take(&mut self.pending);
        let newest = entries.last().map_or(self.written.0.index, |(index, _)| *index);
        assert_eq!(newest, self.last().index, "the batch holds every entry that is not durable");
        let filled = self.segments.iter().rev().take(2).map(|segment| segment.filled_blocks).max();
        let fill_blocks = self.fill_blocks(filled.unwrap_or_default());
        let last = self.segments.back_mut().expect("there is one to write to");
        let carried_bytes = carried.len() as u64;
        let parts: Vec<Bytes> = iter::once(carried.into()).chain(items.into_parts()).collect();
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        if bytes > self.buffer.len() && self.buffer.len() < LARGE_WRITE_BYTES {
            self.buffer = DirectBuffer::zeroed(LARGE_WRITE_BYTES);
        }
        let (sequence, buffer, writes) = (self.sequence_next, &mut self.buffer, beside.writes);
        let mut write = || {
            writes(false);
            let start = last.append(sequence, &parts, fill_blocks, buffer);
            writes(true);
            start
        };
        let start = if bytes >= self.sizes.beside_bytes_min {
            let (commands, meanwhile) = (commands(&self.slots, self.meta.base, &entries), &mut *beside.meanwhile);
            beside.workers.beside(write, |goes_on| meanwhile(&Writing { commands: &commands, goes_on }))?
        } else {
            write()?
        };
        let start = start + carried_bytes;
        let segment = last.id;
        self.sequence_next += 1;
        self.written = (self.last(), self.hard_state);
        for (index, offset) in entries {
            self.slots[slot_of(self.meta.base, index)].set_durable(Place { segment, offset: start + offset });
        }
        self.evict();
        Ok(())
    }

    /// Drops the oldest durable entries from memory until the cache is small enough.
    fn evict(&mut self) {
        while self.cached_bytes > self.sizes.cache_bytes && self.cached_from <= self.last().index {
            let at = slot_of(self.meta.base, self.cached_from);
            let Some(freed) = self.slots[at].evict() else { return };
            self.cached_bytes -= freed;
            self.cached_from += 1;
        }
    }

    /// The entries of a range that the log holds: as many as fit in `bytes_max`, and at least one.
    pub(crate) fn entries(&self, range: RangeInclusive<u64>, bytes_max: u64) -> Result<Vec<Entry>> {
        let (first, last) = range.into_inner();
        assert!(last <= self.last().index, "the caller knows where the log ends");
        let slots = self.slots.range(slot_of(self.meta.base, first)..=slot_of(self.meta.base, last));
        let mut entries = Vec::new();
        let mut bytes = 0_u64;
        for (index, slot) in (first..).zip(slots) {
            bytes += u64::from(slot.bytes) + ENTRY_HEADER_BYTES as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(self.entry(index, slot)?);
        }
        Ok(entries)
    }

    fn entry(&self, index: u64, slot: &Slot) -> Result<Entry> {
        let position = Position { index, term: slot.term };
        let place = match &slot.content {
            Content::Volatile(data) | Content::Cached(data, _) => {
                return Ok(make_entry(slot.kind, position, data.clone()));
            }
            Content::Stored(place) => *place,
        };
        let at = self.segments.partition_point(|segment| segment.id < place.segment);
        let segment = &self.segments[at];
        assert_eq!(segment.id, place.segment, "the segment of an entry after the base stays");
        let len = ENTRY_HEADER_BYTES + to_usize(slot.bytes.into());
        let bytes = segment.read(place.offset, len)?;
        match Item::decode(&mut Reader::new(&bytes)) {
            Ok(Item::Entry { kind, position: found, data }) if found == position && kind == slot.kind => {
                Ok(make_entry(kind, position, Bytes::copy_from_slice(data)))
            }
            _ => Err(segment.corrupted_at(place.offset, "another entry stands here")),
        }
    }
}

#[cfg(test)]
mod tests;
