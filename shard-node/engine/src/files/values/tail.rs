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
