//! The part of a flush after the pages: the meta log and the superblock.

use std::sync::Arc;

use coppice_env::{File, Storage};
use coppice_types::{ErrorKind, Version};

use crate::{
    Error, Result,
    files::{
        meta_log::{self, MetaLog, Operations},
        superblock::{self, Superblock},
    },
    meta::MetaOp,
};

/// What follows in a flush when nodes and values are durable.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) super_file: Arc<dyn File>,
    /// New files need a sync of the directory.
    pub(super) names_changed: bool,
    /// The log to append to, or the one that was begun.
    pub(super) log: MetaLog,
    /// What a new log begins with, if there is to be one and it has room.
    pub(super) snapshot: Option<Vec<u8>>,
    /// Since the last flush.
    pub(super) operations: Operations,
    /// Where the segments end that have grown.
    pub(super) segment_ends: Vec<(u32, u64)>,
    pub(super) dead_segments: Vec<u32>,
    /// Without the place of the meta log.
    pub(super) next: Superblock,
    /// The slot of the older superblock has an unknown content.
    pub(super) slot_touched: bool,
    pub(super) boundary: Version,
}

impl Checkpoint {
    /// Steps 2 to 4 of a flush.
    pub(super) fn write(&mut self) -> Result<()> {
        let begun = match self.begin_log() {
            Some(Err(error)) if error.kind() == ErrorKind::Exhausted => {
                // There may be room for what is new: the log becomes longer than it should.
                let _ = self.storage.remove(&meta_log::file_name(self.next.generation));
                self.snapshot = None;
                None
            }
            begun => begun.transpose()?,
        };
        self.log = match begun {
            Some(log) => log,
            None => self.append_to(self.log.clone(), self.operations.clone())?,
        };
        if self.names_changed || self.snapshot.is_some() {
            self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        }
        let MetaLog { number, len, chain, .. } = self.log;
        (self.next.meta_file, self.next.meta_len, self.next.meta_chain) = (number, len, chain);
        self.slot_touched = true;
        let written = superblock::write_slot(&*self.super_file, &self.next);
        written.and_then(|()| self.super_file.sync_data()).map_err(Error::io("write", superblock::FILE))
    }

    /// A new log, if there is to be one.
    fn begin_log(&self) -> Option<Result<MetaLog>> {
        let snapshot = self.snapshot.as_ref()?;
        let log = MetaLog::create(&*self.storage, self.next.generation, snapshot);
        Some(log.and_then(|log| self.append_to(log, Operations::default())))
    }

    /// Adds operations and the checkpoint, durably.
    fn append_to(&self, mut log: MetaLog, mut operations: Operations) -> Result<MetaLog> {
        operations.push(&MetaOp::Checkpoint {
            generation: self.next.generation,
            segment_ends: self.segment_ends.clone(),
            dead_segments: self.dead_segments.clone(),
        });
        let end = log.append_operations(&operations)?;
        log.sync()?;
        log.advance(end);
        Ok(log)
    }
}
