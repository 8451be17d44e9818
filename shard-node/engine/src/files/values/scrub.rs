//! Reads the value log from end to end, in steps.

use std::{fmt, hash::Hasher, io::ErrorKind};

use coppice_env::OpenMode;
use twox_hash::XxHash3_64;

use super::{
    ValueLog,
    record::{RecordKind, file_name},
};
use crate::{
    Error, Result,
    place::refs::{RECORD_HEADER_BYTES, ValueRef, record_bytes, seed},
};

const CHECKSUM_BYTES: usize = 8;
/// The scrubber's position in the log.
#[derive(Debug, Default)]
pub(crate) struct ScrubPlace {
    pub(crate) segment: u32,
    /// Records before this offset are checked.
    pub(crate) offset: u64,
    begun: Option<BegunRecord>,
}

impl ScrubPlace {
    /// The start of a segment.
    pub(crate) fn of_segment(segment: u32) -> Self {
        Self { segment, ..Self::default() }
    }
}

/// A record that is read in several steps, since it may be much longer than a step.
struct BegunRecord {
    checksum: u64,
    size: u64,
    read: u64,
    /// Hash of the bytes read after the checksum.
    hash: XxHash3_64,
}

impl BegunRecord {
    /// The record at a place, with its checksum read; `None` if the header is malformed.
    fn new(at: ValueRef, header: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (checksum, len, kind, zeroes) = (word(0), word(8) as u32, header[12], &header[13..]);
        let sound = (RecordKind::Value as u8..=RecordKind::Shortcuts as u8).contains(&kind) && zeroes == [0; 3];
        let hash = XxHash3_64::with_seed(seed(at));
        sound.then_some(Self { checksum, size: record_bytes(len), read: CHECKSUM_BYTES as u64, hash })
    }
}

impl fmt::Debug for BegunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BegunRecord").field("size", &self.size).field("read", &self.read).finish_non_exhaustive()
    }
}

impl ValueLog {
    /// Reads and checks about this many bytes of a segment whose last record ends at `end`; the
    /// next call continues there. Returns the number of bytes read.
    pub(crate) fn scrub(&self, place: &mut ScrubPlace, end: u64, bytes: u64) -> Result<u64> {
        let segment = place.segment;
        let corrupted = |at: u64, what: &str| Error::corrupted(file_name(segment), Some(at), what);
        let from = place.offset + place.begun.as_ref().map_or(0, |record| record.read);
        let mut buffer = vec![0; end.saturating_sub(from).min(bytes.max(RECORD_HEADER_BYTES as u64)) as usize];
        match self.open(segment, OpenMode::Existing)?.read_exact_at(&mut buffer, from) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(corrupted(place.offset, "the segment ends before the record"));
            }
            read => read.map_err(Error::io("read", &file_name(segment)))?,
        }
        let mut rest: &[u8] = &buffer;
        while !rest.is_empty() {
            let at = place.offset;
            let record = match &mut place.begun {
                Some(record) => record,
                begun => {
                    let Some((header, _)) = rest.split_first_chunk() else { break };
                    let offset = u32::try_from(at).map_err(|_| corrupted(at, "offset"))?;
                    let new = BegunRecord::new(ValueRef { segment, offset }, header);
                    let new = new.filter(|record| record.size <= end - at);
                    rest = &rest[CHECKSUM_BYTES..];
                    begun.insert(new.ok_or_else(|| corrupted(at, "record header"))?)
                }
            };
            let here = rest.split_off(..rest.len().min((record.size - record.read) as usize)).unwrap_or_default();
            record.hash.write(here);
            record.read += here.len() as u64;
            if record.read == record.size {
                let (size, sound) = (record.size, record.hash.finish() == record.checksum);
                place.begun = None;
                if !sound {
                    return Err(corrupted(at, "checksum"));
                }
                place.offset += size;
            }
        }
        let read = buffer.len() - rest.len();
        if read == 0 { Err(corrupted(from, "the segment ends within a record")) } else { Ok(read as u64) }
    }
}
