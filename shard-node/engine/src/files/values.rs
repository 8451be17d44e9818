//! The value log: values too long for their leaf, filters, shortcuts, kept journals and
//! rows of the Meta table, in append-only segments.
//!
//! A record is written once and never moved; only a value that is erased is overwritten, see
//! [`erase`]. A merge may append a live value again and put the old record on a pending list. The
//! Meta table counts the live bytes of each segment. A segment without live bytes is deleted when
//! no superblock on disk needs it. Appended records stay in memory until they are written, with a
//! flush or ahead of it. A crash before the flush loses them and everything that refers to them.
//! Old segments may lie in a second directory, see [`tier`].

mod erase;
mod record;
mod scrub;
mod tail;
pub(crate) mod tier;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    sync::{Arc, Mutex, PoisonError},
};

use coppice_env::{File, OpenMode, Storage};
use coppice_types::Stamp;

pub(crate) use erase::Residue;
pub(crate) use record::{Named, RecordKind, StoredValue, file_name, file_number};
pub(crate) use scrub::ScrubPlace;
pub(crate) use tail::{Sealed, write_sealed};

use record::{check, corrupted, split_name};
use tail::Tail;
use tier::Tier;

use crate::{
    Error, Result,
    place::{
        bytes::to_u32,
        page::PlaceMap,
        refs::{BlobRef, NAME_FIXED_BYTES, RECORD_HEADER_BYTES, Segment, ValueRef, checksum, record_bytes},
    },
};

/// A large log has at least about this many segments, so that a mostly dead segment is a small part
/// of it.
const SEGMENTS: u64 = 16;
/// Segments of a small log are not made smaller than this.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// A segment of the largest size takes this many buffers in memory. Smaller buffers cost more
/// writes; larger ones leave more memory unused.
const PARTS: u32 = 64;

/// Limit on the number of segment files open at once.
const OPEN_FILES_MAX: usize = 512;

/// Limit on the bytes in one read of several records.
const RUN_BYTES_MAX: u64 = 128 << 10;
/// A gap of up to this many bytes between two records is read with them; a second read would cost
/// more.
const RUN_GAP_BYTES_MAX: u64 = 2 << 10;

/// For longer records, memory is allocated only if the file is long enough, since a length may come
/// from a peer.
const UNSEEN_BYTES_MAX: u32 = 1 << 20;

/// The place of the next record.
#[derive(Clone, Copy, Debug)]
struct Head {
    segment: u32,
    end: u64,
}

/// The log of one shard.
#[derive(Debug)]
pub(crate) struct ValueLog {
    storage: Arc<dyn Storage>,
    tier: Option<Tier>,
    segment_bytes_max: u64,
    /// Capacity of a new buffer for records.
    part_bytes: usize,
    /// Bytes of all segments, unflushed ones included.
    bytes: u64,
    active: Head,
    /// Journals are kept for ever, so they have their own segments: a journal would keep its whole
    /// segment from being freed.
    journals: Option<Head>,
    /// Rows of the Meta table are dropped in their order, long after the values beside them.
    rows: Option<Head>,
    tails: BTreeMap<u32, Tail>,
    files: Mutex<PlaceMap<u32, Arc<dyn File>>>,
    names_changed: bool,
}

/// The fixed part of a name.
fn name_fixed(key: &[u8], stamp: Stamp) -> [u8; NAME_FIXED_BYTES] {
    let mut fixed = [0; NAME_FIXED_BYTES];
    fixed[..8].copy_from_slice(&stamp.epoch.0.to_le_bytes());
    fixed[8..16].copy_from_slice(&stamp.version.0.to_le_bytes());
    fixed[16..].copy_from_slice(&(key.len() as u16).to_le_bytes());
    fixed
}

impl Head {
    fn place(self) -> ValueRef {
        ValueRef { segment: self.segment, offset: to_u32(self.end) }
    }
}

impl ValueLog {
    /// Opens the log. New records go to the last segment, unless it is dead or holds journals
    /// or rows.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        segment_bytes_max: u32,
        segments: &BTreeMap<u32, Segment>,
        mut apart: impl Iterator<Item = u32>,
    ) -> Self {
        let active = match segments.last_key_value() {
            None => Head { segment: 0, end: 0 },
            Some((id, segment)) => {
                let is_closed = segment.dead_at.is_some() || apart.any(|apart| apart == *id);
                if is_closed { Head { segment: id + 1, end: 0 } } else { Head { segment: *id, end: segment.end } }
            }
        };
        let mut log = Self {
            tier: storage.cold().map(Tier::new),
            storage,
            segment_bytes_max: segment_bytes_max.into(),
            part_bytes: (segment_bytes_max / PARTS) as usize,
            bytes: 0,
            active,
            journals: None,
            rows: None,
            tails: BTreeMap::new(),
            files: Mutex::default(),
            names_changed: false,
        };
        log.measure(segments);
        log
    }

    fn measure(&mut self, segments: &BTreeMap<u32, Segment>) {
        let unflushed = self.tails.values().map(|tail| tail.end() - tail.start);
        self.bytes = segments.values().map(|segment| segment.end).chain(unflushed).fold(0, u64::saturating_add);
    }

    /// The present limit for a segment's length.
    fn segment_bytes(&self) -> u64 {
        (self.bytes / SEGMENTS).max(SEGMENT_BYTES_MIN).min(self.segment_bytes_max)
    }

    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    pub(crate) fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_mut()
    }

    /// Records which segments are in the cold directory. If the newer superblock was lost, the last
    /// segment may be among them; it then takes no more records.
    pub(crate) fn set_cold(&mut self, segments: BTreeSet<u32>) {
        if segments.contains(&self.active.segment) {
            self.active = self.new_segment();
        }
        if let Some(tier) = &mut self.tier {
            tier.set(segments);
        }
    }

    /// Whether a part of the segment is not flushed.
    pub(crate) fn has_tail(&self, segment: u32) -> bool {
        self.tails.contains_key(&segment)
    }

    /// Drops the open file handle of a segment.
    pub(crate) fn close(&self, segment: u32) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(&segment);
    }

    fn new_segment(&self) -> Head {
        let [active, journals, rows] = self.taking();
        Head { segment: active.max(journals).max(rows) + 1, end: 0 }
    }

    /// The segments that take new records: one for journals, one for rows, and one for everything
    /// else. They are the same while journals and rows have no segment.
    pub(crate) fn taking(&self) -> [u32; 3] {
        [Some(self.active), self.journals, self.rows].map(|head| head.unwrap_or(self.active).segment)
    }

    /// Returns the head, or that of a new segment if a record with this many bytes does not fit.
    fn with_room(&self, head: Head, len: u32) -> Head {
        let is_full = head.end > 0 && head.end + record_bytes(len) > self.segment_bytes();
        if is_full { self.new_segment() } else { head }
    }

    /// The place of the next value, if it holds this many bytes.
    pub(crate) fn next_place(&mut self, len: u32) -> ValueRef {
        self.active = self.with_room(self.active, len);
        self.active.place()
    }

    /// Appends a value together with its name: stamp and key.
    pub(crate) fn append_named(&mut self, key: &[u8], stamp: Stamp, value: &[u8]) -> BlobRef {
        self.append_parts(RecordKind::Named, &[&name_fixed(key, stamp), key, value])
    }

    /// Appends what is left of an erased value: its name, and as many zeroes.
    pub(crate) fn append_erased(&mut self, key: &[u8], stamp: Stamp, len: u32) -> BlobRef {
        self.append_parts(RecordKind::Erased, &[&name_fixed(key, stamp), key, &vec![0; len as usize]])
    }

    /// Appends a record in memory.
    pub(crate) fn append(&mut self, kind: RecordKind, bytes: &[u8]) -> BlobRef {
        self.append_parts(kind, &[bytes])
    }

    fn append_parts(&mut self, kind: RecordKind, parts: &[&[u8]]) -> BlobRef {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = to_u32(bytes as u64);
        let apart = match kind {
            RecordKind::Journal => Some(self.journals),
            RecordKind::Rows => Some(self.rows),
            _ => None,
        };
        let head = match apart {
            Some(None) => self.new_segment(),
            Some(Some(head)) => self.with_room(head, len),
            None => self.with_room(self.active, len),
        };
        let at = head.place();
        let tail = self.tails.entry(head.segment).or_insert_with(|| Tail::new(head.end));
        let mut rest = [0; 8];
        rest[..4].copy_from_slice(&len.to_le_bytes());
        rest[4] = kind as u8;
        let size = RECORD_HEADER_BYTES + bytes;
        if tail.bytes.len() + size > tail.bytes.capacity() {
            // Growing would copy the records: the buffer is closed instead, and a new one begins.
            assert_eq!(tail.end(), head.end, "records of a segment follow each other");
            tail.close();
            tail.bytes = Vec::with_capacity(self.part_bytes.max(size));
        }
        let record_at = tail.bytes.len();
        tail.bytes.extend_from_slice(&[0; 8]);
        tail.bytes.extend_from_slice(&rest);
        parts.iter().for_each(|part| tail.bytes.extend_from_slice(part));
        let checksum = checksum(at, &tail.bytes[record_at + 8..]);
        tail.bytes[record_at..record_at + 8].copy_from_slice(&checksum.to_le_bytes());
        let after = Head { end: head.end + record_bytes(len), ..head };
        match kind {
            RecordKind::Journal => self.journals = Some(after),
            RecordKind::Rows => self.rows = Some(after),
            _ => self.active = after,
        }
        self.bytes = self.bytes.saturating_add(record_bytes(len));
        BlobRef { at, len }
    }

    /// Whether a record is read from memory.
    pub(crate) fn in_memory(&self, at: ValueRef) -> bool {
        self.tails.get(&at.segment).is_some_and(|tail| tail.ahead <= u64::from(at.offset))
    }

    /// Reads a record and checks it.
    pub(crate) fn read(&self, kind: RecordKind, blob: BlobRef) -> Result<Vec<u8>> {
        let mut record = self.read_unchecked(blob)?;
        check(kind, blob, &record)?;
        record.drain(..RECORD_HEADER_BYTES);
        Ok(record)
    }

    /// Reads a record with its header. A long one must end in its file before memory is allocated
    /// for it.
    fn read_unchecked(&self, blob: BlobRef) -> Result<Vec<u8>> {
        if blob.len > UNSEEN_BYTES_MAX && !self.in_memory(blob.at) {
            let file = self.open(blob.at.segment, OpenMode::Existing)?;
            let end = file.len().map_err(Error::io("read", &file_name(blob.at.segment)))?;
            if u64::from(blob.at.offset) + record_bytes(blob.len) > end {
                return Err(corrupted(blob.at, "the segment ends before the record"));
            }
        }
        let mut record = vec![0; RECORD_HEADER_BYTES + blob.len as usize];
        self.read_part(blob.at, &mut record)?;
        Ok(record)
    }

    /// Reads a value and checks it.
    pub(crate) fn read_value(&self, value: StoredValue) -> Result<Vec<u8>> {
        self.read(value.kind(), value.blob).map(|held| value.taken_from(held))
    }

    /// Reads and checks the value of a leaf's record, and the name that the value-log record may
    /// carry.
    pub(crate) fn read_of(&self, value: StoredValue, key: &[u8], stamp: Stamp) -> Result<Vec<u8>> {
        let held = self.read(value.kind(), value.blob)?;
        if value.kind() == RecordKind::Named && split_name(&held) != Some((stamp, key, value.len as usize)) {
            return Err(corrupted(value.blob.at, "the value has a different name than its record in the leaf"));
        }
        Ok(value.taken_from(held))
    }

    /// Reads and checks a record that lies within `bytes` from a place, if it carries this key.
    pub(crate) fn read_named(&self, at: ValueRef, bytes: usize, key: &[u8]) -> Named {
        let mut record = vec![0; bytes.max(RECORD_HEADER_BYTES)];
        if self.read_part(at, &mut record).is_err() {
            return Named::Unknown;
        }
        let len = record[8..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
        record.truncate(record_bytes(len).min(record.len() as u64) as usize);
        let Ok(held) = check(RecordKind::Named, BlobRef { at, len }, &record) else { return Named::Unknown };
        let Some((stamp, named, value_len)) = split_name(held) else { return Named::Unknown };
        if named != key {
            return Named::Other;
        }
        let value_at = record.len() - value_len;
        record.drain(..value_at);
        Named::This(stamp, record)
    }

    /// Fills a buffer from a place within a record, from memory or from a file. The record must not
    /// end before the buffer does.
    pub(crate) fn read_part(&self, at: ValueRef, buffer: &mut [u8]) -> Result<()> {
        if !self.in_memory(at) {
            return self.read_file(at, buffer);
        }
        let bytes = self.tails[&at.segment].get(at.offset.into(), buffer.len());
        buffer.copy_from_slice(bytes.ok_or_else(|| corrupted(at, "no record"))?);
        Ok(())
    }

    fn read_file(&self, at: ValueRef, buffer: &mut [u8]) -> Result<()> {
        match self.open(at.segment, OpenMode::Existing)?.read_exact_at(buffer, at.offset.into()) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(corrupted(at, "the segment ends before the record"))
            }
            Err(error) => Err(Error::io("read", &file_name(at.segment))(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Reads and checks values in the order of their places; values close to each other in a file
    /// take one read. `give` gets each value with its index. Returns the number of file reads.
    pub(crate) fn read_many(&self, values: &[StoredValue], mut give: impl FnMut(usize, Vec<u8>)) -> Result<u64> {
        let mut numbers: Vec<usize> = (0..values.len()).collect();
        numbers.sort_unstable_by_key(|number| values[*number].blob.at);
        let (mut rest, mut buffer, mut reads) = (numbers.as_slice(), Vec::new(), 0);
        while let Some(first) = rest.first().map(|number| values[*number].blob) {
            if self.in_memory(first.at) {
                give(rest[0], self.read_value(values[rest[0]])?);
                rest = &rest[1..];
                continue;
            }
            let (count, bytes) = self.run(first, rest[1..].iter().map(|number| values[*number].blob));
            let (run, after) = rest.split_at(count);
            rest = after;
            if buffer.len() < bytes {
                buffer.resize(bytes, 0);
            }
            reads += 1;
            match self.read_file(first.at, &mut buffer[..bytes]) {
                // Perhaps only one record, or only a gap, cannot be read. So each record is read
                // alone and reports its own error.
                Err(_) if count > 1 => {
                    reads += count as u64;
                    run.iter().try_for_each(|number| self.read_value(values[*number]).map(|it| give(*number, it)))?;
                }
                read => {
                    read?;
                    for number in run {
                        let value = values[*number];
                        let from = (value.blob.at.offset - first.at.offset) as usize;
                        let record = &buffer[from..from + RECORD_HEADER_BYTES + value.blob.len as usize];
                        give(*number, value.of(check(value.kind(), value.blob, record)?).to_vec());
                    }
                }
            }
        }
        Ok(reads)
    }

    /// Number of records, sorted by place, that one read should take, and the bytes from the first
    /// one's start to the last one's end. The first record is in its file, and `blobs` follow it.
    fn run(&self, first: BlobRef, blobs: impl Iterator<Item = BlobRef>) -> (usize, usize) {
        let start = u64::from(first.at.offset);
        let (mut count, mut end) = (1, start + record_bytes(first.len));
        for blob in blobs {
            let (from, to) = (u64::from(blob.at.offset), u64::from(blob.at.offset) + record_bytes(blob.len));
            let near = blob.at.segment == first.at.segment && from <= end + RUN_GAP_BYTES_MAX;
            if !near || to - start > RUN_BYTES_MAX || self.in_memory(blob.at) {
                break;
            }
            (count, end) = (count + 1, end.max(to));
        }
        (count, (end - start) as usize)
    }

    /// Opens the file of a segment in the data directory, or else in the cold one. A segment that
    /// is being moved is in the cold directory before it leaves the other.
    pub(crate) fn open(&self, segment: u32, mode: OpenMode) -> Result<Arc<dyn File>> {
        let files = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files().get(&segment) {
            return Ok(Arc::clone(file));
        }
        let name = file_name(segment);
        // The lock is not held here, so that a read of a hot file does not wait for a slow disk.
        let opened = match (self.storage.open(&name, mode), &self.tier) {
            (Err(error), Some(tier)) if error.kind() == ErrorKind::NotFound => tier.storage.open(&name, mode),
            (opened, _) => opened,
        };
        let file = opened.map_err(Error::io("open", &name))?;
        let mut files = files();
        if files.len() >= OPEN_FILES_MAX
            && let Some(any) = files.keys().next().copied()
        {
            files.remove(&any);
        }
        files.insert(segment, Arc::clone(&file));
        Ok(file)
    }

    /// Bytes that are not written yet.
    pub(crate) fn behind_bytes(&self) -> u64 {
        self.tails.values().map(|tail| tail.end() - tail.ahead).sum()
    }

    /// Segments with unflushed records, and their ends.
    pub(crate) fn unflushed_ends(&self) -> Vec<(u32, u64)> {
        self.tails.iter().map(|(segment, tail)| (*segment, tail.end())).collect()
    }

    /// Closes the buffers and returns the records that are not written yet. If a file cannot be
    /// opened, it returns none, and the flush reports the error.
    pub(crate) fn seal(&mut self) -> Vec<Sealed> {
        self.try_seal().unwrap_or_default()
    }

    fn try_seal(&mut self) -> Result<Vec<Sealed>> {
        let behind: Vec<u32> =
            self.tails.iter().filter(|(_, tail)| tail.ahead < tail.end()).map(|(segment, _)| *segment).collect();
        let mut given = Vec::new();
        for segment in behind {
            let file = self.file_to_write(segment)?;
            let tail = self.tail_mut(segment);
            tail.close();
            given.push(Sealed { segment, file, parts: tail.sealed.clone() });
        }
        Ok(given)
    }

    /// Drops durable records from memory. Returns the number of bytes dropped.
    pub(crate) fn written(&mut self, written: &[Sealed]) -> u64 {
        let mut bytes = 0;
        for Sealed { segment, parts, .. } in written {
            let tail = self.tail_mut(*segment);
            let ahead = tail.ahead;
            for (part, first) in parts.iter().zip(tail.sealed.drain(..parts.len())) {
                assert_eq!((tail.ahead, first.start), (part.start, part.start), "parts are written in order");
                tail.ahead = part.end();
            }
            bytes += tail.ahead - ahead;
        }
        bytes
    }

    /// The tail of a segment that has one from its first unflushed record to the end of a flush.
    fn tail_mut(&mut self, segment: u32) -> &mut Tail {
        self.tails.get_mut(&segment).expect("a segment with unflushed records has a tail")
    }

    /// Opens the file of a segment with records in memory.
    fn file_to_write(&mut self, segment: u32) -> Result<Arc<dyn File>> {
        let mode = if self.tails[&segment].start > 0 { OpenMode::Existing } else { OpenMode::OpenOrCreate };
        self.names_changed |= mode == OpenMode::OpenOrCreate;
        self.open(segment, mode)
    }

    /// Returns the records that are not written yet, for [`write_sealed`]. They stay in memory
    /// until [`Self::written`]. Also returns whether file names have changed.
    pub(crate) fn seal_to_write(&mut self) -> Result<(Vec<Sealed>, bool)> {
        Ok((self.try_seal()?, self.names_changed))
    }

    /// Notes that a superblock covers the segments up to these ends.
    pub(crate) fn flushed(&mut self, ends: &[(u32, u64)], segments: &BTreeMap<u32, Segment>) {
        for (segment, end) in ends {
            let tail = self.tail_mut(*segment);
            assert_eq!(tail.ahead, *end, "all up to there was written");
            assert!(tail.start <= *end, "a segment only grows");
            tail.start = *end;
        }
        self.tails.retain(|_, tail| tail.start < tail.end());
        self.measure(segments);
        self.names_changed = false;
    }

    /// Deletes a segment's file in both directories.
    pub(crate) fn delete(&mut self, segment: u32) -> Result<()> {
        self.close(segment);
        let name = file_name(segment);
        match self.storage.remove(&name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io("remove", &name)(error)),
            _ => {}
        }
        self.tier.as_mut().map_or(Ok(()), |tier| tier.delete(segment))
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    fn flush(log: &mut ValueLog, written: &[Sealed]) {
        let ends = log.unflushed_ends();
        log.written(written);
        log.flushed(&ends, &BTreeMap::new());
    }

    #[test]
    fn records_are_read_from_memory_and_from_the_file() {
        let sim = SimStorage::new();
        let mut log = ValueLog::new(sim.storage(), 100, &BTreeMap::new(), std::iter::empty());
        let blobs: Vec<BlobRef> = (0..5_u8).map(|n| log.append(RecordKind::Value, &[n; 40])).collect();
        assert_eq!(blobs.iter().map(|blob| blob.at.segment).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let read =
            |log: &ValueLog| blobs.iter().map(|blob| log.read(RecordKind::Value, *blob)).collect::<Result<Vec<_>>>();
        let expected: Vec<Vec<u8>> = (0..5_u8).map(|n| vec![n; 40]).collect();
        assert_eq!(read(&log).expect("in memory"), expected);
        let (parts, names_changed) = log.seal_to_write().expect("a new file");
        assert!(names_changed);
        write_sealed(&parts).expect("written");
        flush(&mut log, &parts);
        assert_eq!(read(&log).expect("in files"), expected);
        assert!(log.read(RecordKind::Filter, blobs[0]).is_err());
        sim.flip_bit("values-3", 30, 2);
        assert!(log.read(RecordKind::Value, blobs[3]).is_err());
    }

    #[test]
    fn segments_grow_with_the_log_flushed_or_not() {
        let sim = SimStorage::new();
        let mut log = ValueLog::new(sim.storage(), 64 << 20, &BTreeMap::new(), std::iter::empty());
        let value = vec![7; 256 << 10];
        let places: Vec<ValueRef> = (0..400).map(|_| log.append(RecordKind::Value, &value).at).collect();
        let segments = 1 + places.last().expect("some").segment;
        // 100 MiB: about 16 segments of the minimal size, then about 16 for each factor of e.
        assert!((16..80).contains(&segments), "{segments}");
        let last = places.iter().filter(|at| at.segment == segments - 2).count();
        assert!(last >= 16, "{last} values of 256 KiB in the last but one");
    }

    #[test]
    fn more_segments_than_may_be_open_are_read() {
        let sim = SimStorage::new();
        let mut log = ValueLog::new(sim.storage(), 100, &BTreeMap::new(), std::iter::empty());
        let value = |n: usize| (n as u64).to_le_bytes().repeat(5);
        let blobs: Vec<BlobRef> = (0..OPEN_FILES_MAX + 9).map(|n| log.append(RecordKind::Value, &value(n))).collect();
        let parts = log.seal_to_write().expect("new files").0;
        write_sealed(&parts).expect("written");
        flush(&mut log, &parts);
        for _ in 0..2 {
            for (n, blob) in blobs.iter().enumerate() {
                assert_eq!(log.read(RecordKind::Value, *blob).expect("it is there"), value(n));
            }
        }
        assert_eq!(log.files.lock().expect("nobody broke it").len(), OPEN_FILES_MAX);
    }

    #[test]
    fn many_values_are_read_from_wherever_they_lie_in_any_order() {
        let sim = SimStorage::new();
        let mut log = ValueLog::new(sim.storage(), 4096, &BTreeMap::new(), std::iter::empty());
        let mut blobs = Vec::new();
        let value = |number: usize| vec![number as u8; 100 + 7 * number];
        let (key, stamp) = (|number: usize| vec![1; number + 1], |number: usize| Stamp::new(2, number as u64));
        // There is one round for each place: covered by a superblock, written ahead, sealed in
        // memory, open in memory.
        for round in 0..4 {
            blobs.extend((10 * round..10 * (round + 1)).map(|number| match number % 3 {
                0 => log.append_named(&key(number), stamp(number), &value(number)),
                _ => log.append(RecordKind::Value, &value(number)),
            }));
            let sealed = if round < 3 { log.seal() } else { Vec::new() };
            if round < 2 {
                write_sealed(&sealed).expect("written");
                log.written(&sealed);
            }
            if round == 0 {
                let ends = log.unflushed_ends();
                log.flushed(&ends, &BTreeMap::new());
            }
        }
        assert!(blobs.iter().filter(|blob| log.in_memory(blob.at)).count() == 20);
        let read = |log: &ValueLog, numbers: &[usize]| {
            let wanted =
                numbers.iter().map(|number| StoredValue { len: value(*number).len() as u32, blob: blobs[*number] });
            let wanted: Vec<StoredValue> = wanted.collect();
            let mut found = vec![None; wanted.len()];
            let reads = log.read_many(&wanted, |at, value| assert_eq!(found[at].replace(value), None))?;
            let expected: Vec<Option<Vec<u8>>> = numbers.iter().map(|number| Some(value(*number))).collect();
            assert_eq!(found, expected);
            Ok::<u64, Error>(reads)
        };
        let shuffled: Vec<usize> = (0..40).map(|number| number * 27 % 40).collect();
        let files = u64::from(blobs[19].at.segment) + 1;
        assert_eq!(read(&log, &shuffled).expect("sound"), files);
        assert_eq!(read(&log, &[]).expect("nothing"), 0);
        assert_eq!(read(&log, &[5, 5, 5]).expect("the same thrice"), 1);
        assert_eq!(read(&log, &[39, 38, 0, 1]).expect("two in memory"), 1);

        for number in (0..40).step_by(3) {
            let (blob, this) = (blobs[number], Named::This(stamp(number), value(number)));
            let named = |key: &[u8], more: usize| {
                let size = (record_bytes(blob.len) as usize).saturating_add_signed(more as isize - 20);
                log.read_named(blob.at, size, key)
            };
            assert_eq!(named(&key(number), 20), this);
            assert_eq!(named(&key(number + 1), 20), Named::Other);
            assert_eq!(named(&key(number), 19), Named::Unknown);
            // Bytes after the record are read with it, if there are any.
            assert!([this, Named::Unknown].contains(&named(&key(number), 30)));
        }
        assert_eq!(log.read_named(blobs[1].at, record_bytes(blobs[1].len) as usize, b""), Named::Unknown);

        let damaged = |error: Error| match error {
            Error::Corrupted { file, page, .. } => (file, page),
            other => panic!("{other:?}"),
        };
        let offset = |number: usize| (file_name(blobs[number].at.segment), Some(u64::from(blobs[number].at.offset)));
        sim.flip_bit("values-0", u64::from(blobs[4].at.offset) + 60, 2);
        assert_eq!(damaged(read(&log, &[3, 4, 5]).expect_err("a flipped bit")), offset(4));
        assert_eq!(read(&log, &[3, 5]).expect("what is between two is nobody's"), 1);
        // The file ends within the sixth record.
        let file = sim.open("values-0", OpenMode::Existing).expect("it is there");
        file.set_len(u64::from(blobs[5].at.offset) + 20).expect("cut");
        assert_eq!(damaged(read(&log, &[2, 3, 5]).expect_err("a short file")), offset(5));
        assert_eq!(read(&log, &[2, 3]).expect("these are there"), 1);
    }

    fn empty_log(sim: &SimStorage, segment_bytes_max: u32) -> ValueLog {
        ValueLog::new(sim.storage(), segment_bytes_max, &BTreeMap::new(), std::iter::empty())
    }

    #[test]
    fn a_record_that_does_not_fit_begins_a_segment_and_may_be_longer_than_one() {
        let mut log = empty_log(&SimStorage::new(), 100);
        let places = [60, 24, 1, 500, 1].map(|len| log.append(RecordKind::Value, &vec![0; len]).at);
        let places = places.map(|at| (at.segment, at.offset));
        assert_eq!(places, [(0, 0), (1, 0), (1, 40), (2, 0), (3, 0)], "a header has 16 bytes");
        assert_eq!(log.next_place(67), ValueRef { segment: 3, offset: 17 }, "to the last byte");
        assert_eq!(log.next_place(68), ValueRef { segment: 4, offset: 0 });
    }

    #[test]
    fn journals_have_segments_of_their_own() {
        let mut log = empty_log(&SimStorage::new(), 100);
        assert_eq!(log.taking(), [0, 0, 0]);
        let kinds = [RecordKind::Value, RecordKind::Journal, RecordKind::Filter, RecordKind::Journal];
        let segments = |log: &mut ValueLog| kinds.map(|kind| log.append(kind, &[0; 30]).at.segment);
        assert_eq!(segments(&mut log), [0, 1, 0, 1]);
        assert_eq!(segments(&mut log), [2, 3, 2, 3], "both segments were full");
        assert_eq!(log.taking(), [2, 3, 2]);
    }

    #[test]
    fn new_records_go_to_the_last_segment_unless_it_is_dead_or_cold_or_holds_a_journal() {
        let segment = |dead_at| Segment { end: 50, live: 0, dead_at };
        let opened = |last, journal: Option<u32>| {
            let segments = BTreeMap::from([(3, segment(None)), (7, segment(last))]);
            ValueLog::new(SimStorage::new().storage(), 100, &segments, journal.into_iter())
        };
        let next = |mut log: ValueLog| (log.next_place(1).segment, log.next_place(1).offset);
        assert_eq!(next(opened(None, None)), (7, 50));
        assert_eq!(next(opened(None, Some(3))), (7, 50));
        assert_eq!(next(opened(Some(2), None)), (8, 0));
        assert_eq!(next(opened(None, Some(7))), (8, 0));
        for (cold, place) in [(3, (7, 50)), (7, (8, 0))] {
            let mut log = opened(None, None);
            log.set_cold(BTreeSet::from([cold]));
            assert_eq!(next(log), place);
        }
    }

    #[test]
    fn what_was_written_ahead_is_read_from_its_file_and_waits_for_its_superblock() {
        let sim = SimStorage::new();
        let mut log = empty_log(&sim, 1000);
        let first = log.append(RecordKind::Value, &[1; 40]);
        assert_eq!(log.behind_bytes(), 56);
        let sealed = log.seal();
        write_sealed(&sealed).expect("room");
        let second = log.append(RecordKind::Value, &[2; 40]);
        assert!(log.in_memory(first.at), "it is not known to be written");
        assert_eq!(log.written(&sealed), 56);
        assert_eq!([first, second].map(|blob| log.in_memory(blob.at)), [false, true]);
        assert_eq!((log.behind_bytes(), log.unflushed_ends(), log.has_tail(0)), (56, vec![(0, 112)], true));
        assert_eq!(log.read(RecordKind::Value, first).expect("in the file"), [1; 40]);
        let (parts, _) = log.seal_to_write().expect("it is open");
        write_sealed(&parts).expect("room");
        flush(&mut log, &parts);
        assert_eq!((log.behind_bytes(), log.unflushed_ends(), log.has_tail(0)), (0, vec![], false));
    }

    #[test]
    fn records_without_a_file_stay_in_memory_until_there_is_one() {
        let sim = SimStorage::new();
        let mut log = empty_log(&sim, 1000);
        let blob = log.append(RecordKind::Value, &[1; 40]);
        sim.set_opens_left(Some(0));
        assert!(log.seal().is_empty() && log.seal_to_write().is_err());
        assert_eq!(log.read(RecordKind::Value, blob).expect("in memory"), [1; 40]);
        sim.set_opens_left(None);
        let (parts, names_changed) = log.seal_to_write().expect("a new file");
        assert!(names_changed && parts.len() == 1 && log.behind_bytes() == 56);
    }

    #[test]
    fn a_value_whose_name_is_not_what_its_leaf_says_is_damage() {
        let mut log = empty_log(&SimStorage::new(), 1000);
        let stamp = Stamp::new(1, 2);
        let value = |blob, len| StoredValue { len, blob };
        let plain = value(log.append(RecordKind::Value, b"value"), 5);
        let named = value(log.append_named(b"key", stamp, b"value"), 5);
        assert_eq!(log.read_of(plain, b"any", stamp).expect("it has no name"), b"value");
        assert_eq!(log.read_of(named, b"key", stamp).expect("its name"), b"value");
        assert_eq!(log.read_value(named).expect("sound"), b"value");
        for (key, stamp) in [(&b"kex"[..], stamp), (b"ke", stamp), (b"key", Stamp::new(1, 3))] {
            assert!(matches!(log.read_of(named, key, stamp), Err(Error::Corrupted { .. })), "{key:?} {stamp}");
        }
    }

    /// A log with one record in its file.
    fn one_flushed(sim: &SimStorage) -> (ValueLog, BlobRef) {
        let mut log = empty_log(sim, 1000);
        let blob = log.append(RecordKind::Value, &[1; 40]);
        let (parts, _) = log.seal_to_write().expect("a new file");
        write_sealed(&parts).expect("room");
        flush(&mut log, &parts);
        (log, blob)
    }

    /// Memory for the record would be allocated before the read fails.
    #[test]
    fn a_record_longer_than_its_segment_is_damage() {
        let sim = SimStorage::new();
        let (log, blob) = one_flushed(&sim);
        for len in [41, UNSEEN_BYTES_MAX, UNSEEN_BYTES_MAX + 1, u32::MAX] {
            let read = log.read(RecordKind::Value, BlobRef { len, ..blob });
            assert!(matches!(read, Err(Error::Corrupted { file, .. }) if file == "values-0"), "{len}");
        }
    }

    #[test]
    fn a_deleted_segment_has_neither_a_file_nor_an_open_handle() {
        let sim = SimStorage::new();
        let (mut log, blob) = one_flushed(&sim);
        log.delete(0).expect("a sound disk");
        assert_eq!(sim.files(), [""; 0]);
        assert!(matches!(log.read(RecordKind::Value, blob), Err(Error::Io { .. })));
        log.delete(0).expect("it is gone already");
    }
}
