//! The tail of a segment: the part that no superblock covers.

use std::sync::Arc;

use coppice_env::File;

use super::record::file_name;
use crate::{Error, Result};

/// A closed buffer of whole records, which can be written on another thread.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    bytes: Arc<Vec<u8>>,
}

impl Part {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The closed buffers of a segment that are to be written.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(super) segment: u32,
    pub(super) file: Arc<dyn File>,
    pub(super) parts: Vec<Part>,
}

/// Writes records in the order of the log and syncs each segment.
pub(crate) fn write_sealed(sealed: &[Sealed]) -> Result<()> {
    for Sealed { segment, file, parts } in sealed {
        let name = file_name(*segment);
        for part in parts {
            file.write_all_at(&part.bytes, part.start).map_err(Error::io("write", &name))?;
        }
        file.sync_data().map_err(Error::io("sync", &name))?;
    }
    Ok(())
}

/// The part of a segment that no superblock covers: written ahead, closed in memory, then open in
/// memory.
#[derive(Debug)]
pub(super) struct Tail {
    /// Offset in the segment at which the tail begins.
    pub(super) start: u64,
    /// End of the part that was written ahead. The rest is in memory.
    pub(super) ahead: u64,
    /// The closed buffers after that, without gaps.
    pub(super) sealed: Vec<Part>,
    /// Offset of `bytes`.
    open: u64,
    /// The open buffer.
    pub(super) bytes: Vec<u8>,
}

impl Tail {
    pub(super) fn new(start: u64) -> Self {
        Self { start, ahead: start, sealed: Vec::new(), open: start, bytes: Vec::new() }
    }

    pub(super) fn end(&self) -> u64 {
        self.open + self.bytes.len() as u64
    }

    /// Closes the open buffer.
    pub(super) fn close(&mut self) {
        if !self.bytes.is_empty() {
            let written = self.sealed.last().map_or(self.ahead, Part::end);
            assert_eq!(self.open, written, "buffers follow each other without gaps");
            let part = Part { start: self.open, bytes: Arc::new(std::mem::take(&mut self.bytes)) };
            self.open = part.end();
            self.sealed.push(part);
        }
    }

    /// Returns `size` bytes at an offset, if they lie in one buffer.
    pub(super) fn get(&self, offset: u64, size: usize) -> Option<&[u8]> {
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

#[cfg(test)]
mod tests {
    use coppice_env::{Fault, OpenMode, Operation, SimStorage, Storage};

    use super::*;

    /// A tail from offset 100 with two closed buffers and an open one, ten bytes each.
    fn tail() -> Tail {
        let mut tail = Tail::new(100);
        for byte in 0..3 {
            tail.close();
            tail.bytes = vec![byte; 10];
        }
        tail
    }

    #[test]
    fn a_new_tail_is_empty() {
        let mut tail = Tail::new(100);
        tail.close();
        assert_eq!((tail.start, tail.ahead, tail.end(), tail.sealed.len()), (100, 100, 100, 0));
    }

    #[test]
    fn closed_buffers_follow_each_other_without_gaps() {
        let tail = tail();
        let places: Vec<(u64, u64)> = tail.sealed.iter().map(|part| (part.start, part.end())).collect();
        assert_eq!((places, tail.open, tail.end()), (vec![(100, 110), (110, 120)], 120, 130));
    }

    #[test]
    fn bytes_are_read_from_one_buffer_and_never_across_two() {
        let tail = tail();
        for (offset, size, byte) in [(100, 10, 0), (109, 1, 0), (110, 10, 1), (120, 10, 2), (129, 1, 2)] {
            assert_eq!(tail.get(offset, size), Some(vec![byte; size].as_slice()), "{size} at {offset}");
        }
        for (offset, size) in [(109, 2), (119, 2), (120, 11), (130, 1), (129, usize::MAX)] {
            assert_eq!(tail.get(offset, size), None, "{size} at {offset}");
        }
        assert_eq!(tail.get(130, 0), Some(&[][..]));
    }

    #[test]
    fn sealed_parts_are_written_at_their_places_and_synced() {
        let sim = SimStorage::new();
        let file = sim.open("values-4", OpenMode::CreateNew).expect("a new file");
        sim.sync_dir("").expect("a sound disk");
        let sealed = [Sealed { segment: 4, file: file.clone(), parts: tail().sealed }];
        write_sealed(&sealed).expect("room");
        let mut bytes = [9; 20];
        let loss = sim.power_loss(1).open("values-4", OpenMode::Existing).expect("it is durable");
        loss.read_exact_at(&mut bytes, 100).expect("as long as written");
        assert_eq!(bytes, [[0; 10], [1; 10]].concat().as_slice());
        for operation in [Operation::Write, Operation::Sync] {
            sim.inject(Fault { operation, path_part: String::new(), skip: 0, kind: std::io::ErrorKind::TimedOut });
            assert!(matches!(write_sealed(&sealed), Err(Error::Io { file, .. }) if file == "values-4"));
        }
    }
}
