//! The steps of a flush after nodes and values are durable: the meta log, file names and the
//! superblock.
//!
//! The comment of [`crate::Engine::flush`] says what a crash at each step leaves.

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

/// The input of these steps.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) super_file: Arc<dyn File>,
    /// Whether new files need a sync of the directory.
    pub(super) names_changed: bool,
    /// The log to append to; afterwards the log in use.
    pub(super) log: MetaLog,
    /// The first block of a new log, if one is to be written and there is room.
    pub(super) snapshot: Option<Vec<u8>>,
    /// Operations since the last flush.
    pub(super) operations: Operations,
    /// Segments that have grown, and their ends.
    pub(super) segment_ends: Vec<(u32, u64)>,
    pub(super) dead_segments: Vec<u32>,
    /// The next superblock; its reference to the meta log is set in [`Self::write`].
    pub(super) next: Superblock,
    /// Whether the content of the older superblock's slot is unknown.
    pub(super) slot_touched: bool,
    pub(super) boundary: Version,
}

impl Checkpoint {
    /// Runs steps 2 to 4 of a flush.
    pub(super) fn write(&mut self) -> Result<()> {
        let begun = match self.begin_log() {
            Some(Err(error)) if error.kind() == ErrorKind::Exhausted => {
                // There may still be room for the new operations. The log then becomes longer than
                // it should be.
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

    /// Begins a new log, if there is to be one.
    fn begin_log(&self) -> Option<Result<MetaLog>> {
        let snapshot = self.snapshot.as_ref()?;
        let log = MetaLog::create(&*self.storage, self.next.generation, snapshot);
        Some(log.and_then(|log| self.append_to(log, Operations::default())))
    }

    /// Appends the operations and the checkpoint, durably.
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
