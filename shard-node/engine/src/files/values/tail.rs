//! The end of a segment that no superblock covers.

use std::sync::Arc;

use coppice_env::File;

use super::record::file_name;
use crate::{Error, Result};

/// Whole records that no more are added to, so that they can be written beside the engine.
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

/// What is to be written of a segment.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(super) segment: u32,
    pub(super) file: Arc<dyn File>,
    pub(super) parts: Vec<Part>,
}

/// Writes records, in the order of the log, and syncs each segment.
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

/// What no superblock covers of a segment.
#[derive(Debug)]
pub(super) struct Tail {
    /// Where it begins.
    pub(super) start: u64,
    /// How far it was written ahead: the rest is in memory.
    pub(super) ahead: u64,
    /// What follows on that, without a gap.
    pub(super) sealed: Vec<Part>,
    /// Where `bytes` begin.
    open: u64,
    /// What comes last.
    pub(super) bytes: Vec<u8>,
}

impl Tail {
    pub(super) fn new(start: u64) -> Self {
        Self { start, ahead: start, sealed: Vec::new(), open: start, bytes: Vec::new() }
    }

    pub(super) fn end(&self) -> u64 {
        self.open + self.bytes.len() as u64
    }

    /// Closes what comes last.
    pub(super) fn close(&mut self) {
        if !self.bytes.is_empty() {
            let part = Part { start: self.open, bytes: Arc::new(std::mem::take(&mut self.bytes)) };
            self.open = part.end();
            self.sealed.push(part);
        }
    }

    /// `size` bytes at an offset, if they are in memory, within one part.
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
