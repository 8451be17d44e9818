//! Opening a log: which files count, which entries they hold, and where a batch was cut off.

use std::{collections::VecDeque, sync::Arc};

use coppice_env::{OpenMode, Storage};
use coppice_types::codec::Reader;

use super::{
    Log, Sizes,
    batch::{HardState, Item},
    meta::{META_FILE, Meta, Owner},
    segment::{FoundBatch, Place, Scan, Segment, file_id, file_name},
    slot::{Content, Slot},
};
use crate::{
    Membership, Position,
    error::{Error, Result},
    output::LogReport,
};

/// The state that the batches read so far lead to.
struct Replay<'a> {
    meta: &'a Meta,
    hard_state: HardState,
    memberships: Vec<(u64, Membership)>,
    /// The entries known so far. The first one has index `known_from`.
    slots: VecDeque<Slot>,
    known_from: u64,
    end: Option<Position>,
    sequence: Option<u64>,
}

fn corrupted(segment: u64, detail: &'static str) -> Error {
    Error::Corrupted { file: file_name(segment), block: 0, detail }
}

impl Replay<'_> {
    fn batch(&mut self, segment: u64, first: bool, batch: &FoundBatch) -> Result<()> {
        if self.sequence.is_some_and(|sequence| sequence + 1 != batch.sequence) {
            return Err(corrupted(segment, "a batch is missing"));
        }
        if self.sequence.is_none() {
            // The first segment repeats the hard state, and `meta` may hold a newer one.
            self.hard_state = HardState::default();
        }
        self.sequence = Some(batch.sequence);
        let mut reader = Reader::new(&batch.items);
        let mut expect_start = first;
        while reader.remaining() > 0 {
            let offset = batch.offset + (batch.items.len() - reader.remaining()) as u64;
            let item = Item::decode(&mut reader).map_err(|_| corrupted(segment, "a batch can't be read"))?;
            if expect_start != matches!(item, Item::Start(_)) {
                return Err(corrupted(segment, "a segment does not begin as it should"));
            }
            expect_start = false;
            self.item(item, Place { segment, offset }).map_err(|detail| corrupted(segment, detail))?;
        }
        Ok(())
    }

    fn item(&mut self, item: Item<'_>, place: Place) -> std::result::Result<(), &'static str> {
        match item {
            Item::Start(position) => {
                if self.end.is_some_and(|end| end != position) {
                    return Err("the log before this segment ends elsewhere");
                }
                if self.end.is_none() {
                    self.known_from = position.index + 1;
                }
                self.end = Some(position);
            }
            Item::HardState(state) => {
                if state.term < self.hard_state.term {
                    return Err("the term falls");
                }
                self.hard_state = state;
            }
            Item::Membership(index, membership) => {
                self.memberships.retain(|(from, _)| *from < index);
                self.memberships.push((index, membership));
            }
            Item::Entry { kind, position, data } => {
                let bytes = u32::try_from(data.len()).map_err(|_| "an entry is too long")?;
                let slot = Slot { term: position.term, kind, bytes, content: Content::Stored(place) };
                self.entry(position, slot)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, position: Position, slot: Slot) -> std::result::Result<(), &'static str> {
        let Some(end) = self.end else { return Err("an entry before the start of the log") };
        if position.index > end.index + 1 || position.index == 0 {
            return Err("an entry is missing");
        }
        if position.index <= self.hard_state.commit && position.index > self.meta.base.index {
            return Err("an entry replaces a committed one");
        }
        while self.known_from + self.slots.len() as u64 > position.index && !self.slots.is_empty() {
            self.slots.pop_back();
        }
        if self.slots.is_empty() {
            self.known_from = position.index;
        }
        if self.slots.back().is_some_and(|before| before.term > position.term) {
            return Err("the term of an entry falls");
        }
        self.slots.push_back(slot);
        self.end = Some(position);
        Ok(())
    }

    /// Drops the entries that the base covers, and checks that none is missing after it.
    fn finish(&mut self) -> std::result::Result<(), &'static str> {
        let base = self.meta.base;
        let end = self.end.unwrap_or(base);
        if end.index < base.index {
            return Err("the log ends before its base");
        }
        if end.index > base.index && self.known_from > base.index + 1 {
            return Err("the entries after the base are missing");
        }
        while self.known_from <= base.index
            && let Some(slot) = self.slots.pop_front()
        {
            if self.known_from == base.index && slot.term != base.term {
                return Err("the base has another term");
            }
            self.known_from += 1;
        }
        if base.index + self.slots.len() as u64 != end.index {
            return Err("the entries after the base are missing");
        }
        self.hard_state.commit = self.hard_state.commit.max(base.index);
        if self.hard_state.commit > end.index {
            return Err("the log ends before what is committed");
        }
        self.memberships.retain(|(from, _)| *from > base.index);
        self.memberships.insert(0, (base.index, self.meta.membership.clone()));
        Ok(())
    }
}

/// A segment that counts, and the content that was found in it.
struct Found {
    segment: Segment,
    scan: Scan,
}

/// The content that was found in a directory. Reading changes nothing.
struct Reading<'a> {
    replay: Replay<'a>,
    /// The segments, oldest first, without their batches.
    found: Vec<Found>,
    /// Segments older than the base, and one that was filled ahead but never begun.
    leftovers: Vec<String>,
}

/// Reads the segments that `meta` counts, in order. Only the newest one that was written to may end
/// in a batch that was cut off.
fn read<'a>(storage: &dyn Storage, meta: &'a Meta) -> Result<Reading<'a>> {
    let replay = Replay {
        meta,
        hard_state: meta.hard_state,
        memberships: Vec::new(),
        slots: VecDeque::new(),
        known_from: meta.base.index + 1,
        end: None,
        sequence: None,
    };
    let mut reading = Reading { replay, found: Vec::new(), leftovers: Vec::new() };
    let mut ids = Vec::new();
    for name in storage.list("").map_err(Error::io("list its directory"))? {
        match file_id(&name) {
            Some(id) if id < meta.first_segment => reading.leftovers.push(name),
            Some(id) => ids.push(id),
            None => {}
        }
    }
    ids.sort_unstable();
    let mut ended = None;
    for (expected, id) in (meta.first_segment..).zip(ids) {
        if id != expected {
            return Err(corrupted(expected, "the file is missing"));
        }
        let segment = Segment::open(storage, meta, id, OpenMode::Existing)?;
        let mut scan = segment.scan()?;
        if scan.written_blocks == 0 {
            ended = ended.or(Some(id));
            reading.leftovers.push(file_name(id));
            continue;
        }
        if let Some(ended) = ended {
            return Err(corrupted(ended, "a batch is cut off, and this is not the newest segment"));
        }
        for (at, batch) in std::mem::take(&mut scan.batches).iter().enumerate() {
            reading.replay.batch(id, at == 0, batch)?;
        }
        ended = (scan.written_blocks != scan.end_block).then_some(id);
        reading.found.push(Found { segment, scan });
    }
    let damaged = |detail| Error::Corrupted { file: META_FILE.to_owned(), block: 0, detail };
    reading.replay.finish().map_err(damaged)?;
    Ok(reading)
}

fn load(storage: &dyn Storage, owner: &Owner) -> Result<Option<Meta>> {
    let Some(meta) = Meta::load(storage)? else { return Ok(None) };
    if meta.owner != *owner {
        return Err(Error::WrongOwner { expected: owner.describe(), found: meta.owner.describe() });
    }
    Ok(Some(meta))
}

/// Reads the log of a directory and changes nothing; `None` if there is none.
pub(crate) fn inspect(storage: &dyn Storage, owner: &Owner) -> Result<Option<LogReport>> {
    let Some(meta) = load(storage, owner)? else { return Ok(None) };
    let reading = read(storage, &meta)?;
    let torn = reading.found.last().is_some_and(|found| found.scan.written_blocks != found.scan.end_block);
    Ok(Some(LogReport {
        base: meta.base,
        last: reading.replay.end.unwrap_or(meta.base),
        commit: reading.replay.hard_state.commit,
        segments: reading.found.len(),
        leftovers: reading.leftovers.len(),
        torn,
        quarantined: meta.quarantine.is_some(),
    }))
}

impl Log {
    /// Opens the log of a directory; `None` if there is none.
    pub(crate) fn open(storage: Arc<dyn Storage>, sizes: Sizes, owner: Owner) -> Result<Option<Self>> {
        let Some(meta) = load(&*storage, &owner)? else { return Ok(None) };
        // A process that was killed may have renamed the file without syncing the directory.
        storage.sync_dir("").map_err(Error::io("sync its directory"))?;
        let Reading { replay, mut found, mut leftovers } = read(&*storage, &meta)?;
        let Replay { hard_state, memberships, slots, sequence, .. } = replay;
        if let Some(Found { segment, scan }) = found.last_mut() {
            segment.cut(scan)?;
            if scan.end_block == 0 {
                // The segment's first batch is incomplete, so the segment was never begun.
                leftovers.push(file_name(segment.id));
                found.pop();
            }
        }
        for name in leftovers {
            storage.remove(&name).map_err(Error::io("remove a segment"))?;
        }
        let mut log = Self::empty(storage, sizes, meta);
        log.hard_state = hard_state;
        log.memberships = memberships;
        log.slots = slots;
        log.sequence_next = sequence.map_or(1, |sequence| sequence + 1);
        log.written = (log.last(), hard_state);
        log.cached_from = log.last().index + 1;
        log.segments = found
            .into_iter()
            .map(|Found { mut segment, scan }| {
                segment.end_block = scan.end_block;
                segment
            })
            .collect();
        Ok(Some(log))
    }
}
