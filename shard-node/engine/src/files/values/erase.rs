//! Erasing values in place: the one exception to the rule that a record is written once.
//!
//! A record with a name becomes a record of kind 7 with the same name and length, and zeroes in
//! place of the value. The value is overwritten first, and the header after a sync. A crash in
//! between leaves a wrong checksum, which is no damage at an erased key.

use std::{hash::Hasher, io::ErrorKind, ops::Range};

use coppice_env::{
    OpenMode,
    bug::{Bug, planted},
};
use coppice_types::Stamp;
use twox_hash::XxHash3_64;

use super::{
    StoredValue, ValueLog,
    record::{RecordKind, corrupted, file_name, split_name},
};
use crate::{
    Error, Result,
    place::refs::{RECORD_HEADER_BYTES, ValueRef, checksum, record_bytes, seed},
};

/// The bytes that a disk writes whole.
const SECTOR_BYTES: u64 = 512;
/// Limit on the bytes in one write of zeroes.
const ZEROES: usize = 64 << 10;

/// A record whose value is to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Residue {
    pub(crate) at: ValueRef,
    /// Length of the record's content.
    pub(super) len: u32,
    /// The first bytes of the content: stamp and key.
    pub(super) name: Vec<u8>,
    /// Whether the record's checksum is right.
    pub(crate) is_sound: bool,
}

impl Residue {
    /// The stamp and key of the record, and the length of its value. `None` if it has no such name.
    pub(crate) fn parts(&self) -> Option<(Stamp, &[u8], u32)> {
        let (stamp, key, _) = split_name(&self.name)?;
        Some((stamp, key, self.len.checked_sub(u32::try_from(self.name.len()).ok()?)?))
    }

    /// The place of the value in the segment.
    fn value(&self) -> Range<u64> {
        let start = u64::from(self.at.offset) + (RECORD_HEADER_BYTES + self.name.len()) as u64;
        start..u64::from(self.at.offset) + record_bytes(self.len)
    }

    /// The header of the record without its value.
    fn header(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut header = [0; RECORD_HEADER_BYTES];
        header[8..12].copy_from_slice(&self.len.to_le_bytes());
        header[12] = RecordKind::Erased as u8;
        let mut hash = XxHash3_64::with_seed(seed(self.at));
        hash.write(&header[8..]);
        hash.write(&self.name);
        self.each_zero(|_, zeroes| {
            hash.write(zeroes);
            Ok(())
        })
        .expect("a hash takes all bytes");
        header[..8].copy_from_slice(&hash.finish().to_le_bytes());
        header
    }

    /// Calls a function with the zeroes that replace the value, and their offsets in the segment.
    fn each_zero(&self, mut act: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let zeroes = [0; ZEROES];
        let Range { start: mut at, end } = self.value();
        while at < end {
            let len = (end - at).min(ZEROES as u64) as usize;
            act(at, &zeroes[..len])?;
            at += len as u64;
        }
        Ok(())
    }
}

impl ValueLog {
    /// Overwrites the values of records in files, durably.
    pub(crate) fn erase(&self, records: &[Residue]) -> Result<()> {
        if planted(Bug::OnlyHidden) {
            return Ok(());
        }
        for of_segment in records.chunk_by(|a, b| a.at.segment == b.at.segment) {
            let segment = of_segment[0].at.segment;
            let name = file_name(segment);
            let file = self.open(segment, OpenMode::Existing)?;
            for record in of_segment {
                assert!(!self.in_memory(record.at), "a record that was read from its file is in it");
                record.each_zero(|at, zeroes| file.write_all_at(zeroes, at).map_err(Error::io("write", &name)))?;
            }
            file.sync_data().map_err(Error::io("sync", &name))?;
            for record in of_segment {
                file.write_all_at(&record.header(), record.at.offset.into()).map_err(Error::io("write", &name))?;
            }
            file.sync_data().map_err(Error::io("sync", &name))?;
        }
        Ok(())
    }

    /// Whether a sector's part of the record's value is zero, as an overwriting that a crash cut
    /// off leaves it. Sectors are written whole or not at all.
    pub(crate) fn is_partly_zero(&self, record: &Residue) -> Result<bool> {
        let Range { start, end } = record.value();
        let name = file_name(record.at.segment);
        let file = self.open(record.at.segment, OpenMode::Existing)?;
        let (mut at, mut piece) = (start, [0; SECTOR_BYTES as usize]);
        while at < end {
            let stop = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
            let piece = &mut piece[..(stop - at) as usize];
            file.read_exact_at(piece, at).map_err(Error::io("read", &name))?;
            if piece.iter().all(|byte| *byte == 0) {
                return Ok(true);
            }
            at = stop;
        }
        Ok(start == end)
    }

    /// Checks the record of an erased key as far as it can be checked: its length and its name.
    /// Returns whether nothing of the value is left.
    pub(crate) fn is_erased(&self, value: StoredValue, key: &[u8], stamp: Stamp) -> Result<bool> {
        let StoredValue { len, blob } = value;
        if value.kind() != RecordKind::Named {
            return self.read_value(value).map(|_| false);
        }
        let mut record = self.read_unchecked(blob)?;
        let held = record.split_off(RECORD_HEADER_BYTES);
        let kind = record[12];
        let is_value = [RecordKind::Named as u8, RecordKind::Erased as u8].contains(&kind);
        if record[8..12] != blob.len.to_le_bytes() || !is_value || record[13..] != [0; 3] {
            return Err(corrupted(blob.at, "record header"));
        }
        if split_name(&held) != Some((stamp, key, len as usize)) {
            return Err(corrupted(blob.at, "the value has a different name than its record in the leaf"));
        }
        let is_sound = record[..8] == checksum(blob.at, &[&record[8..], &held].concat()).to_le_bytes();
        Ok(kind == RecordKind::Erased as u8 && is_sound && value.of(&held).iter().all(|byte| *byte == 0))
    }

    /// Whether the segment has a file.
    pub(crate) fn is_there(&self, segment: u32) -> Result<bool> {
        match self.open(segment, OpenMode::Existing) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(false),
            opened => opened.map(|_| true),
        }
    }

    /// Cuts a segment's file behind its last record, and makes all of the file durable. The bytes
    /// behind it are from writes that a crash cut off. Earlier erasures need the sync, because
    /// their process may have been killed before its own. Nothing may be writing to the file.
    pub(crate) fn trim(&self, segment: u32, end: u64) -> Result<()> {
        let name = file_name(segment);
        let file = self.open(segment, OpenMode::Existing)?;
        let end = self.tails.get(&segment).map_or(end, |tail| tail.ahead);
        if file.len().map_err(Error::io("read", &name))? > end {
            file.set_len(end).map_err(Error::io("truncate", &name))?;
        }
        file.sync_data().map_err(Error::io("sync", &name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use coppice_env::{SimStorage, Storage};

    use super::*;
    use crate::files::values::{ScrubPlace, write_sealed};

    const STAMP: Stamp = Stamp { epoch: coppice_types::Epoch(1), version: coppice_types::Version(2) };

    /// A log of three records in its file; the second one is long.
    fn log(sim: &SimStorage) -> (ValueLog, Vec<StoredValue>) {
        let mut log = ValueLog::new(sim.storage(), 1 << 20, &BTreeMap::new(), std::iter::empty());
        let lens = [50_u32, 200_000, 70];
        let values = lens.map(|len| StoredValue { len, blob: log.append_named(b"key", STAMP, &vec![7; len as usize]) });
        let sealed = log.seal();
        write_sealed(&sealed).expect("room");
        log.written(&sealed);
        (log, values.to_vec())
    }

    fn end(values: &[StoredValue]) -> u64 {
        values.iter().map(|value| record_bytes(value.blob.len)).sum()
    }

    /// Records with a value that a scrub finds, by steps of this size.
    fn found(log: &ValueLog, end: u64, bytes: u64) -> Result<Vec<Residue>> {
        let (mut place, mut found) = (ScrubPlace::of_segment(0), Vec::new());
        while place.offset < end {
            log.scrub(&mut place, end, bytes, &|key| key == b"key", &mut found)?;
        }
        Ok(found)
    }

    #[test]
    fn an_erased_record_keeps_its_name_and_length_and_has_a_right_checksum() {
        for bytes in [16, 100, 1 << 20] {
            let sim = SimStorage::new();
            let (log, values) = log(&sim);
            let all = found(&log, end(&values), bytes).expect("sound");
            assert_eq!(all.len(), 3);
            log.erase(&all[1..2]).expect("room");
            let clean = values.iter().map(|value| log.is_erased(*value, b"key", STAMP).expect("its name"));
            assert_eq!(clean.collect::<Vec<_>>(), [false, true, false]);
            assert_eq!(found(&log, end(&values), bytes).expect("sound"), [all[0].clone(), all[2].clone()]);
            assert!(log.read_of(values[1], b"key", STAMP).is_err(), "it is no value");
            assert_eq!(log.read_of(values[2], b"key", STAMP).expect("untouched"), [7; 70]);
            assert!(log.is_erased(values[1], b"kez", STAMP).is_err(), "another name");
        }
    }

    #[test]
    fn a_wrong_checksum_is_damage_unless_the_name_is_that_of_an_erased_key() {
        let sim = SimStorage::new();
        let (log, values) = log(&sim);
        let end = end(&values);
        let scrub = |erased: bool| {
            let (mut place, mut found) = (ScrubPlace::of_segment(0), Vec::new());
            while place.offset < end {
                log.scrub(&mut place, end, 1 << 20, &|_| erased, &mut found)?;
            }
            Ok::<_, Error>(found.len())
        };
        let residue = found(&log, end, 1 << 20).expect("sound").swap_remove(0);
        sim.flip_bit("values-0", 60, 1);
        assert!(scrub(false).is_err());
        assert_eq!(scrub(true).expect("erased"), 3);
        log.erase(&[residue]).expect("room");
        assert_eq!(scrub(true).expect("erased"), 2);
        assert!(scrub(false).is_err(), "a record without its value where the value is not erased");
        sim.flip_bit("values-0", 12, 6);
        assert!(scrub(true).is_err(), "a record of no kind");
    }

    #[test]
    fn what_lies_behind_the_last_record_is_cut_off() {
        let sim = SimStorage::new();
        let (mut log, values) = log(&sim);
        let (file, end) = (sim.open("values-0", OpenMode::Existing).expect("it is there"), end(&values));
        file.write_all_at(&[9; 100], end).expect("room");
        log.trim(0, 0).expect("room");
        assert_eq!(file.len().expect("readable"), end, "up to what is written ahead");
        let ends = log.unflushed_ends();
        log.flushed(&ends, &BTreeMap::new());
        file.write_all_at(&[9; 100], end).expect("room");
        log.trim(0, end).expect("room");
        assert_eq!(file.len().expect("readable"), end);
    }
}
