//! The value log: values too long for their leaf, filters, and kept journals, in append-only segments.
//!
//! A record is written once and never moved; a merge may write a live one anew and pend the old. The Meta table counts
//! the live bytes of each segment; one without any is deleted when no superblock on disk needs it. What was appended
//! is in memory until it is written, ahead of the flush or with it; a crash before the flush loses it together with
//! everything that refers to it. Old segments may lie in a second directory: see `cold`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::ErrorKind,
    sync::{Arc, Mutex, PoisonError},
};

use coppice_env::{File, OpenMode, Storage};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Error, Result,
    cold::Tier,
    meta::{BlobRef, Segment},
    node::ValueRef,
};

/// Checksum, length, kind, zeroes.
pub(crate) const RECORD_HEADER_BYTES: usize = 16;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Value = 1,
    Filter = 2,
    Journal = 3,
}

/// The log has about so many segments at least, or one that is mostly dead would be too large a part of it,
const SEGMENTS: u64 = 16;
/// unless they were smaller than this.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// Most segment files that are open at once; the values of old ones are read seldom.
const OPEN_FILES_MAX: usize = 256;

/// Bytes that a record of this many takes.
pub(crate) fn record_bytes(len: u32) -> u64 {
    RECORD_HEADER_BYTES as u64 + u64::from(len)
}

/// Name of a segment file.
pub(crate) fn file_name(segment: u32) -> String {
    format!("values-{segment}")
}

/// Number in the name of a segment file.
pub(crate) fn file_number(name: &str) -> Option<u32> {
    name.strip_prefix("values-")?.parse().ok()
}

/// Whole records of a segment that no more are added to, so that they can be written beside the engine.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    segment: u32,
    file: Arc<dyn File>,
    start: u64,
    bytes: Arc<Vec<u8>>,
}

impl Sealed {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// Writes records, in the order of the log, and syncs each segment.
pub(crate) fn write_sealed(sealed: &[Sealed]) -> Result<()> {
    for of_segment in sealed.chunk_by(|one, next| one.segment == next.segment) {
        let name = file_name(of_segment[0].segment);
        for part in of_segment {
            part.file.write_all_at(&part.bytes, part.start).map_err(Error::io("write", &name))?;
        }
        of_segment[0].file.sync_data().map_err(Error::io("sync", &name))?;
    }
    Ok(())
}

/// What no superblock covers of a segment.
#[derive(Debug)]
struct Tail {
    /// Where it begins.
    start: u64,
    /// How far it was written ahead: the rest is in memory.
    ahead: u64,
    /// What follows on that, without a gap.
    sealed: Vec<Sealed>,
    /// Where `bytes` begin.
    open: u64,
    /// What comes last.
    bytes: Vec<u8>,
}

impl Tail {
    fn new(start: u64) -> Self {
        Self { start, ahead: start, sealed: Vec::new(), open: start, bytes: Vec::new() }
    }

    fn end(&self) -> u64 {
        self.open + self.bytes.len() as u64
    }

    /// `size` bytes at an offset, if they are in memory, within one part.
    fn get(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let (start, bytes) = if offset >= self.open {
            (self.open, &self.bytes)
        } else {
            let part = &self.sealed[self.sealed.partition_point(|part| part.end() <= offset)];
            (part.start, &*part.bytes)
        };
        let from = usize::try_from(offset - start).ok()?;
        bytes.get(from..from.checked_add(size)?)
    }
}

/// The log of one shard.
#[derive(Debug)]
pub(crate) struct ValueLog {
    storage: Arc<dyn Storage>,
    tier: Option<Tier>,
    segment_bytes_max: u64,
    /// Where the next segment ends at the latest.
    segment_bytes: u64,
    active: u32,
    active_end: u64,
    tails: BTreeMap<u32, Tail>,
    files: Mutex<HashMap<u32, Arc<dyn File>>>,
    names_changed: bool,
}

impl ValueLog {
    pub(crate) fn new(storage: Arc<dyn Storage>, segment_bytes_max: u32, segments: &BTreeMap<u32, Segment>) -> Self {
        let (active, active_end) = segments.last_key_value().map_or((0, 0), |(id, segment)| (*id, segment.end));
        let mut log = Self {
            tier: storage.cold().map(Tier::new),
            storage,
            segment_bytes_max: segment_bytes_max.into(),
            segment_bytes: 0,
            active,
            active_end,
            tails: BTreeMap::new(),
            files: Mutex::default(),
            names_changed: false,
        };
        log.fit_segments(segments);
        log
    }

    /// Chooses the size of segments by that of the log.
    fn fit_segments(&mut self, segments: &BTreeMap<u32, Segment>) {
        let all = segments.values().fold(0_u64, |sum, segment| sum.saturating_add(segment.end));
        self.segment_bytes = (all / SEGMENTS).max(SEGMENT_BYTES_MIN).min(self.segment_bytes_max);
    }

    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    pub(crate) fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_mut()
    }

    /// Notes which segments are in the cold directory. If the newer superblock was lost, the last one may be among them: it takes no
    /// more.
    pub(crate) fn set_cold(&mut self, segments: BTreeSet<u32>) {
        if segments.contains(&self.active) {
            (self.active, self.active_end) = (self.active + 1, 0);
        }
        if let Some(tier) = &mut self.tier {
            tier.set(segments);
        }
    }

    /// Whether something of the segment is in memory alone.
    pub(crate) fn has_tail(&self, segment: u32) -> bool {
        self.tails.contains_key(&segment)
    }

    /// Forgets the open file of a segment.
    pub(crate) fn close(&self, segment: u32) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(&segment);
    }

    /// Appends in memory.
    pub(crate) fn append(&mut self, kind: RecordKind, bytes: &[u8]) -> BlobRef {
        let len = u32::try_from(bytes.len()).expect("values and filters have less than 4 GiB");
        if self.active_end > 0 && self.active_end + record_bytes(len) > self.segment_bytes {
            self.active += 1;
            self.active_end = 0;
        }
        let offset = u32::try_from(self.active_end).expect("a segment ends below its maximum");
        let at = ValueRef { segment: self.active, offset };
        let tail = self.tails.entry(self.active).or_insert_with(|| Tail::new(self.active_end));
        let mut rest = [0; 8];
        rest[..4].copy_from_slice(&len.to_le_bytes());
        rest[4] = kind as u8;
        let record_at = tail.bytes.len();
        tail.bytes.extend_from_slice(&[0; 8]);
        tail.bytes.extend_from_slice(&rest);
        tail.bytes.extend_from_slice(bytes);
        let checksum = checksum(at, &tail.bytes[record_at + 8..]);
        tail.bytes[record_at..record_at + 8].copy_from_slice(&checksum.to_le_bytes());
        self.active_end += record_bytes(len);
        BlobRef { at, len }
    }

    /// Whether the record is read without its file.
    pub(crate) fn in_memory(&self, at: ValueRef) -> bool {
        self.tails.get(&at.segment).is_some_and(|tail| tail.ahead <= u64::from(at.offset))
    }

    /// Reads a record and checks it.
    pub(crate) fn read(&self, kind: RecordKind, blob: BlobRef) -> Result<Vec<u8>> {
        let size = RECORD_HEADER_BYTES + blob.len as usize;
        let offset = u64::from(blob.at.offset);
        let tail = self.tails.get(&blob.at.segment).filter(|tail| tail.ahead <= offset);
        let corrupted = |what: &str| Error::corrupted(file_name(blob.at.segment), Some(offset), what);
        let mut record = match tail {
            Some(tail) => tail.get(offset, size).ok_or_else(|| corrupted("no record"))?.to_vec(),
            None => {
                let mut record = vec![0; size];
                match self.open(blob.at.segment, OpenMode::Existing)?.read_exact_at(&mut record, offset) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                        return Err(corrupted("the segment ends before the record"));
                    }
                    read => read.map_err(|error| Error::io("read", &file_name(blob.at.segment))(error))?,
                }
                record
            }
        };
        check(kind, blob, &record).map_err(corrupted)?;
        record.drain(..RECORD_HEADER_BYTES);
        Ok(record)
    }

    /// Reads and checks the records of a segment from an offset on, of which the last one ends at `end`: as many as have about `bytes`.
    /// Gives where the next one begins.
    pub(crate) fn scrub(&self, segment: u32, offset: u64, end: u64, bytes: u64) -> Result<u64> {
        let corrupted = |at: u64, what: &str| Error::corrupted(file_name(segment), Some(at), what);
        let file = self.open(segment, OpenMode::Existing)?;
        let read = |at: u64, len: u64| {
            let len = usize::try_from(len).map_err(|_| corrupted(at, "record length"))?;
            let mut buffer = vec![0; len];
            match file.read_exact_at(&mut buffer, at) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    Err(corrupted(at, "the segment ends before the record"))
                }
                read => read.map(|()| buffer).map_err(Error::io("read", &file_name(segment))),
            }
        };
        let mut at = offset;
        let mut buffer = read(at, (end - at).min(bytes.max(RECORD_HEADER_BYTES as u64)))?;
        let mut rest: &[u8] = &buffer;
        while let Some((header, _)) = rest.split_first_chunk::<RECORD_HEADER_BYTES>() {
            let len = header[8..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
            let (kind, zeroes) = (header[12], &header[13..]);
            let size = record_bytes(len);
            if zeroes != [0; 3]
                || !(RecordKind::Value as u8..=RecordKind::Journal as u8).contains(&kind)
                || size > end - at
            {
                return Err(corrupted(at, "record header"));
            }
            if (rest.len() as u64) < size {
                if at > offset {
                    break;
                }
                buffer = read(at, size)?;
                rest = &buffer;
            }
            let (record, after) = rest.split_at(size as usize);
            let offset = u32::try_from(at).map_err(|_| corrupted(at, "offset"))?;
            if record[..8] != checksum(ValueRef { segment, offset }, &record[8..]).to_le_bytes() {
                return Err(corrupted(at, "checksum"));
            }
            at += size;
            rest = after;
        }
        if at == offset { Err(corrupted(at, "the segment ends within a record")) } else { Ok(at) }
    }

    /// The file of a segment, in this directory or the cold one: one that goes there meanwhile is there before it is gone here.
    pub(crate) fn open(&self, segment: u32, mode: OpenMode) -> Result<Arc<dyn File>> {
        let files = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files().get(&segment) {
            return Ok(Arc::clone(file));
        }
        let name = file_name(segment);
        // Without the lock: who wants a hot file need not wait for a slow disk.
        let opened = match (self.storage.open(&name, mode), &self.tier) {
            (Err(error), Some(tier)) if error.kind() == ErrorKind::NotFound => tier.storage.open(&name, mode),
            (opened, _) => opened,
        };
        let file = opened.map_err(Error::io("open", &name))?;
        let mut files = files();
        if files.len() >= OPEN_FILES_MAX {
            files.clear();
        }
        files.insert(segment, Arc::clone(&file));
        Ok(file)
    }

    /// Bytes that are not written.
    pub(crate) fn behind_bytes(&self) -> u64 {
        self.tails.values().map(|tail| tail.end() - tail.ahead).sum()
    }

    /// Where the segments end that have something in memory.
    pub(crate) fn unflushed_ends(&self) -> Vec<(u32, u64)> {
        self.tails.iter().map(|(segment, tail)| (*segment, tail.end())).collect()
    }

    /// Closes what is in memory, and gives what was not written ahead; nothing if a file can't be opened, which the flush
    /// finds, too.
    pub(crate) fn seal(&mut self) -> Vec<Sealed> {
        self.try_seal().unwrap_or_default()
    }

    fn try_seal(&mut self) -> Result<Vec<Sealed>> {
        let behind: Vec<u32> =
            self.tails.iter().filter(|(_, tail)| tail.ahead < tail.end()).map(|(segment, _)| *segment).collect();
        let mut given = Vec::new();
        for segment in behind {
            let file = self.file_to_write(segment)?;
            let tail = self.tails.get_mut(&segment).expect("it was found above");
            if !tail.bytes.is_empty() {
                let bytes = Arc::new(std::mem::take(&mut tail.bytes));
                tail.sealed.push(Sealed { segment, file, start: tail.open, bytes });
                tail.open = tail.sealed.last().map_or(tail.open, Sealed::end);
            }
            given.extend(tail.sealed.iter().cloned());
        }
        Ok(given)
    }

    /// Lets go of what is durable now, and gives how many bytes that are.
    pub(crate) fn written_ahead(&mut self, written: &[Sealed]) -> u64 {
        for part in written {
            let tail = self.tails.get_mut(&part.segment).expect("a flush waits for what is written ahead");
            let first = tail.sealed.remove(0);
            assert_eq!((tail.ahead, first.start), (part.start, part.start), "parts are written in order");
            tail.ahead = part.end();
        }
        written.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// The file of a segment that has something in memory.
    fn file_to_write(&mut self, segment: u32) -> Result<Arc<dyn File>> {
        let mode = if self.tails[&segment].start > 0 { OpenMode::Existing } else { OpenMode::OpenOrCreate };
        self.names_changed |= mode == OpenMode::OpenOrCreate;
        self.open(segment, mode)
    }

    /// What was not written ahead, for [`write_sealed`]; it is kept in memory until [`Self::flushed`]. True if names changed.
    pub(crate) fn seal_to_write(&mut self) -> Result<(Vec<Sealed>, bool)> {
        Ok((self.try_seal()?, self.names_changed))
    }

    /// What was written is covered by a superblock.
    pub(crate) fn flushed(&mut self, segments: &BTreeMap<u32, Segment>) {
        self.fit_segments(segments);
        self.tails.clear();
        self.names_changed = false;
    }

    /// Deletes a segment's file, wherever it is.
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

fn checksum(at: ValueRef, rest: &[u8]) -> u64 {
    xxh3_64_with_seed(rest, u64::from(at.segment) << 32 | u64::from(at.offset))
}

fn check(kind: RecordKind, blob: BlobRef, record: &[u8]) -> std::result::Result<(), &'static str> {
    let mut rest = [0; 8];
    rest[..4].copy_from_slice(&blob.len.to_le_bytes());
    rest[4] = kind as u8;
    if record[..8] != checksum(blob.at, &record[8..]).to_le_bytes() {
        return Err("checksum");
    }
    if record[8..16] != rest { Err("record header") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    #[test]
    fn records_are_read_from_memory_and_from_the_file() {
        let sim = SimStorage::new();
        let mut log = ValueLog::new(sim.storage(), 100, &BTreeMap::new());
        let blobs: Vec<BlobRef> = (0..5_u8).map(|n| log.append(RecordKind::Value, &[n; 40])).collect();
        assert_eq!(blobs.iter().map(|blob| blob.at.segment).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let read =
            |log: &ValueLog| blobs.iter().map(|blob| log.read(RecordKind::Value, *blob)).collect::<Result<Vec<_>>>();
        let expected: Vec<Vec<u8>> = (0..5_u8).map(|n| vec![n; 40]).collect();
        assert_eq!(read(&log).expect("in memory"), expected);
        let (parts, names_changed) = log.seal_to_write().expect("a new file");
        assert!(names_changed);
        write_sealed(&parts).expect("written");
        log.flushed(&BTreeMap::new());
        assert_eq!(read(&log).expect("in files"), expected);
        assert!(log.read(RecordKind::Filter, blobs[0]).is_err());
        sim.flip_bit("values-3", 30, 2);
        assert!(log.read(RecordKind::Value, blobs[3]).is_err());
    }
}
