//! Reads the value log from end to end, in steps.

use std::{fmt, hash::Hasher, io::ErrorKind};

use coppice_env::OpenMode;
use twox_hash::XxHash3_64;

use super::{
    Residue, ValueLog,
    record::{RecordKind, file_name},
};
use crate::{
    Error, Result,
    place::refs::{NAME_FIXED_BYTES, RECORD_HEADER_BYTES, ValueRef, record_bytes, seed},
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
        Self::of_record(segment, 0)
    }

    /// The start of a record.
    pub(crate) fn of_record(segment: u32, offset: u64) -> Self {
        Self { segment, offset, begun: None }
    }
}

/// A record that is read in several steps, since it may be much longer than a step.
struct BegunRecord {
    checksum: u64,
    size: u64,
    read: u64,
    kind: u8,
    /// The bytes of the name that were read, if a record of this kind has one.
    name: Vec<u8>,
    /// Hash of the bytes read after the checksum.
    hash: XxHash3_64,
}

impl BegunRecord {
    /// The record at a place, with its checksum read; `None` if the header is malformed.
    fn new(at: ValueRef, header: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (checksum, len, kind, zeroes) = (word(0), word(8) as u32, header[12], &header[13..]);
        let sound = (RecordKind::Value as u8..=RecordKind::Erased as u8).contains(&kind) && zeroes == [0; 3];
        let hash = XxHash3_64::with_seed(seed(at));
        let read = CHECKSUM_BYTES as u64;
        sound.then_some(Self { checksum, size: record_bytes(len), read, kind, name: Vec::new(), hash })
    }

    /// Takes the next bytes of the record.
    fn take(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
        if [RecordKind::Named as u8, RecordKind::Erased as u8].contains(&self.kind) {
            let mut content = &bytes[bytes.len().min(RECORD_HEADER_BYTES.saturating_sub(self.read as usize))..];
            while self.name.len() < self.name_bytes() && !content.is_empty() {
                let missing = content.len().min(self.name_bytes() - self.name.len());
                self.name.extend_from_slice(&content[..missing]);
                content = &content[missing..];
            }
        }
        self.read += bytes.len() as u64;
    }

    /// Length of the name, as far as it is known.
    fn name_bytes(&self) -> usize {
        let key = self.name.get(NAME_FIXED_BYTES - 2..NAME_FIXED_BYTES);
        NAME_FIXED_BYTES + key.map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])))
    }

    /// The key of a record with a name.
    fn key(&self) -> Option<&[u8]> {
        if self.name.len() == self.name_bytes() { self.name.get(NAME_FIXED_BYTES..) } else { None }
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
    ///
    /// Adds the records of erased keys that still have their values to `found`. Such a record may
    /// have any checksum.
    pub(crate) fn scrub(
        &self,
        place: &mut ScrubPlace,
        end: u64,
        bytes: u64,
        is_erased: &dyn Fn(&[u8]) -> bool,
        found: &mut Vec<Residue>,
    ) -> Result<u64> {
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
            record.take(here);
            if record.read == record.size {
                let (size, sound) = (record.size, record.hash.finish() == record.checksum);
                let (erased, bare) = (record.key().is_some_and(is_erased), record.kind == RecordKind::Erased as u8);
                let name = std::mem::take(&mut record.name);
                place.begun = None;
                if erased && !(sound && bare) {
                    let at = ValueRef { segment, offset: at as u32 };
                    found.push(Residue { at, len: (size - RECORD_HEADER_BYTES as u64) as u32, name, is_sound: sound });
                } else if !sound {
                    return Err(corrupted(at, "checksum"));
                } else if bare && !erased {
                    return Err(corrupted(at, "a record without its value, which is not erased"));
                }
                place.offset += size;
            }
        }
        let read = buffer.len() - rest.len();
        if read == 0 { Err(corrupted(from, "the segment ends within a record")) } else { Ok(read as u64) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use coppice_env::{SimStorage, Storage};

    use super::*;
    use crate::files::values::write_sealed;

    const LENS: [usize; 4] = [0, 40, 1000, 3];
    const END: u64 = 4 * 16 + 1043;

    /// A log with one segment of four records in its file.
    fn log(sim: &SimStorage) -> ValueLog {
        let mut log = ValueLog::new(sim.storage(), 1 << 20, &BTreeMap::new(), std::iter::empty());
        for len in LENS {
            log.append(RecordKind::Value, &vec![7; len]);
        }
        write_sealed(&log.seal()).expect("room");
        log
    }

    /// Reads up to this end by steps of this size. Returns the number of steps.
    fn scrub(log: &ValueLog, end: u64, bytes: u64) -> Result<u64> {
        let (mut place, mut read, mut steps) = (ScrubPlace::of_segment(0), 0, 0);
        while place.offset < end {
            read += log.scrub(&mut place, end, bytes, &|_| false, &mut Vec::new())?;
            steps += 1;
        }
        assert_eq!(read, end, "each byte once");
        Ok(steps)
    }

    fn step(log: &ValueLog, place: &mut ScrubPlace, bytes: u64) -> Result<u64> {
        log.scrub(place, END, bytes, &|_| false, &mut Vec::new())
    }

    fn found(result: Result<u64>) -> (Option<u64>, String) {
        match result {
            Err(Error::Corrupted { page, what, .. }) => (page, what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_longer_than_a_step_is_read_in_several() {
        let sim = SimStorage::new();
        let log = log(&sim);
        assert_eq!(scrub(&log, END, 1 << 20).expect("sound"), 1);
        for bytes in [1, 16, 17, 100, 500] {
            let steps = scrub(&log, END, bytes).expect("sound");
            // A step takes at least a header, and may leave a part of one to the next.
            assert!((END / bytes.max(16)..=END / bytes.max(16) * 3).contains(&steps), "{steps} steps of {bytes}");
        }
    }

    #[test]
    fn a_flipped_bit_of_any_byte_is_found_at_its_record() {
        let starts = [0, 16, 72, 1088];
        for at in (0..200).chain((200..END).step_by(97)).chain(1060..END) {
            let sim = SimStorage::new();
            let log = log(&sim);
            sim.flip_bit("values-0", at, 1);
            let start = starts.iter().rev().find(|start| **start <= at).copied();
            for bytes in [16, 1 << 20] {
                assert_eq!(found(scrub(&log, END, bytes)).0, start, "byte {at} in steps of {bytes}");
            }
        }
    }

    #[test]
    fn a_segment_that_ends_within_a_record_is_damage() {
        let sim = SimStorage::new();
        let log = log(&sim);
        assert_eq!(found(scrub(&log, END - 1, 1 << 20)).1, "record header", "a record beyond the end");
        assert_eq!(found(scrub(&log, END - 4, 1 << 20)).1, "the segment ends within a record", "half a header");
        let file = sim.open("values-0", OpenMode::Existing).expect("it is there");
        file.set_len(END - 1).expect("cut");
        assert_eq!(found(scrub(&log, END, 1 << 20)).1, "the segment ends before the record");
    }

    #[test]
    fn a_segment_that_was_cut_between_two_steps_is_damage_at_the_record_that_is_missing() {
        let sim = SimStorage::new();
        let log = log(&sim);
        let mut place = ScrubPlace::of_segment(0);
        step(&log, &mut place, 72).expect("sound");
        assert_eq!(place.offset, 72, "two records");
        let file = sim.open("values-0", OpenMode::Existing).expect("it is there");
        file.set_len(500).expect("cut");
        let damage = (Some(72), "the segment ends before the record".to_owned());
        assert_eq!(found(step(&log, &mut place, 1 << 20)), damage);
    }

    #[test]
    fn a_step_that_cannot_read_is_repeated_from_the_same_place() {
        let sim = SimStorage::new();
        let log = log(&sim);
        let mut place = ScrubPlace::of_segment(0);
        step(&log, &mut place, 500).expect("sound");
        let offset = place.offset;
        let (operation, kind) = (coppice_env::Operation::Read, ErrorKind::TimedOut);
        sim.inject(coppice_env::Fault { operation, path_part: String::new(), skip: 0, kind });
        assert!(matches!(step(&log, &mut place, 500), Err(Error::Io { .. })));
        assert_eq!(place.offset, offset);
        while place.offset < END {
            step(&log, &mut place, 500).expect("sound");
        }
    }
}
