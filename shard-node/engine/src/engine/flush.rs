//! Durability: the flush, and what it cleans up.

use std::collections::BTreeSet;

use crate::{
    Engine, Error, RaftPosition, Result,
    meta::MetaOp,
    meta_log::{self, MetaLog, Operations},
    page::{PAGE_BYTES, PageFile},
    superblock::{self, MACHINE_STATE_BYTES_MAX, Superblock},
};

impl Engine {
    /// Raft entries up to here need not be replayed after `open`.
    #[must_use]
    pub fn durable_position(&self) -> RaftPosition {
        self.superblock.position
    }

    /// Raft entries above here are needed if the newest superblock is damaged.
    #[must_use]
    pub fn fallback_position(&self) -> RaftPosition {
        self.older.as_ref().unwrap_or(&self.superblock).position
    }

    /// The caller's bytes as of [`Engine::durable_position`].
    #[must_use]
    pub fn machine_state(&self) -> &[u8] {
        &self.superblock.machine_state
    }

    /// How much the next flush would write, roughly.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.store.unflushed_bytes() + self.operations.bytes.len() as u64
    }

    /// Makes the whole state durable, as what follows from raft entries up to `position`.
    ///
    /// Order, and what a crash after each step leaves: (1) nodes and values, but for those that were written ahead, in
    /// places that no superblock refers to, (2)
    /// the meta log behind the length that a superblock names, (3) names of new files: until here the old superblocks
    /// hold and nothing they refer to was touched; (4) the slot of the older superblock: torn, the newer one holds;
    /// whole, the new state; (5) where much waits for it, a copy in the other slot. Then what became free is reused and files that
    /// no superblock names are deleted; a crash before leaves them to the next `open`.
    ///
    /// # Errors
    /// A failure of the storage (a full disk, say). Up to step 3 the state is intact and a later flush may succeed,
    /// after a prune perhaps; in step 4 the engine becomes unusable for changes (`Poisoned`) until it is opened anew.
    ///
    /// # Panics
    /// If what [`Engine::begin_ahead`] gave was not given back.
    pub fn flush(&mut self, position: RaftPosition, machine_state: &[u8]) -> Result<()> {
        self.check_usable()?;
        if machine_state.len() > MACHINE_STATE_BYTES_MAX {
            return Err(Error::Invalid("machine state length"));
        }
        assert!(!self.ahead, "a place is written by one at a time");
        assert!(position.index >= self.superblock.position.index, "raft positions never go back");
        let generation = self.superblock.generation + 1;
        let segment_ends = self.store.values.unflushed_ends();
        let dead_segments = self.meta.dying_segments(&segment_ends);
        let mut names_changed = self.store.write(self.options.workers)?;
        let checkpoint = MetaOp::Checkpoint { generation, segment_ends, dead_segments };
        let new_log = self.write_meta(&checkpoint)?;
        names_changed |= new_log.0.is_some();
        if names_changed {
            self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        }
        let (file, end) = new_log;
        let meta_file = file.as_ref().map_or(self.log.number, |log| log.number);
        let next = Superblock {
            generation,
            position,
            meta_file,
            meta_len: end.0,
            meta_chain: end.1,
            machine_state: machine_state.into(),
        };
        self.write_superblock(&next)?;
        if let Some(log) = file {
            self.meta_files.insert(log.number);
            self.log = log;
        }
        self.log.advance(end);
        self.operations = Operations::default();
        self.older = Some(std::mem::replace(&mut self.superblock, next));
        self.store.flushed(&self.meta);
        self.meta.apply(checkpoint).expect("generations ascend");
        self.measure_waiting();
        self.store.counters.flushes.one();
        self.copy_superblock();
        self.clean_up();
        self.flushed_boundaries = [self.flushed_boundaries[1], Some(self.meta.boundary)];
        Ok(())
    }

    /// Whether more than [`crate::Options::waiting_percent_max`] of the disk waits for a flush. Not while a snapshot is pinned, for which
    /// everything waits.
    #[must_use]
    pub fn much_waits(&self) -> bool {
        self.much_waits && !self.meta.is_pinned()
    }

    /// Finds how much waits after a change.
    pub(crate) fn measure_waiting(&mut self) {
        let (waiting, used) = self.meta.waiting_bytes(&self.store.values.unflushed_ends());
        let percent = u64::from(self.options.waiting_percent_max);
        self.much_waits = waiting > self.options.free_bytes_kept_min && waiting > used / 100 * percent;
    }

    /// Where much waits for the superblock after the newest, a copy of the newest takes the other slot instead: all that only the one
    /// before needed is free then. A crash before the copy is durable leaves the newest in its own slot, and so does a failure, after
    /// which everything waits as it did.
    fn copy_superblock(&mut self) {
        if !self.much_waits() {
            return;
        }
        // Of whatever is in the slot from here on, nothing is expected.
        self.older = None;
        let copied = superblock::write_copy(&*self.super_file, &self.superblock);
        if copied.and_then(|()| self.super_file.sync_data()).is_ok() {
            self.store.counters.meta_write_bytes.add(superblock::SLOT_BYTES as u64);
            self.apply(MetaOp::Copied);
        }
    }

    /// Step 2 of a flush: appends to the log, or begins a new one. Gives the new log and where it ends.
    fn write_meta(&mut self, checkpoint: &MetaOp) -> Result<(Option<MetaLog>, (u64, u64))> {
        let generation = self.superblock.generation + 1;
        if self.log.is_long(self.options.meta_compaction_bytes_min) {
            let log = MetaLog::create(&*self.storage, generation, &self.meta)?;
            let mut operations = Operations::default();
            operations.push(checkpoint);
            let end = log.append_operations(&operations)?;
            log.sync()?;
            self.store.counters.meta_write_bytes.add(end.0);
            return Ok((Some(log), end));
        }
        let mut operations = self.operations.clone();
        operations.push(checkpoint);
        let end = self.log.append_operations(&operations)?;
        self.log.sync()?;
        self.store.counters.meta_write_bytes.add(end.0 - self.log.len);
        Ok((None, end))
    }

    /// Step 4 of a flush. A slot of unknown content may name pages that memory would give away, so a failure is final.
    fn write_superblock(&mut self, next: &Superblock) -> Result<()> {
        let written = superblock::write_slot(&*self.super_file, next).and_then(|()| self.super_file.sync_data());
        self.store.counters.meta_write_bytes.add(superblock::SLOT_BYTES as u64);
        written.map_err(|error| {
            self.poisoned = true;
            Error::io("write", superblock::FILE)(error)
        })
    }

    /// Deletes files that nothing refers to any more. What fails is left to the next `open`.
    pub(crate) fn clean_up(&mut self) {
        for dead in self.meta.take_dead_segments() {
            let _ = self.store.values.delete(dead.segment);
        }
        let named: BTreeSet<u64> = [self.superblock.meta_file]
            .into_iter()
            .chain(self.older.iter().map(|older| older.meta_file))
            .chain(self.pins.iter().map(|pin| pin.superblock.meta_file))
            .collect();
        for number in self.meta_files.difference(&named) {
            let _ = self.storage.remove(&meta_log::file_name(*number));
        }
        self.meta_files = named;
        self.discard_free_pages();
        if self.store.filters_cached() > self.options.filters_cached_max {
            let trees = self.meta.versions.values().flat_map(|version| &version.trees);
            let outputs = self.meta.merges.values().map(|merge| &merge.output);
            let places: BTreeSet<_> = trees.chain(outputs).filter_map(|tree| tree.filter).map(|blob| blob.at).collect();
            self.store.retain_filters(|at| places.contains(at));
        }
    }

    /// Gives free pages back to the file system. Nothing refers to them, neither superblock and no pin: whatever a crash leaves of
    /// it is right.
    fn discard_free_pages(&mut self) {
        let kept_min = self.options.free_bytes_kept_min / PAGE_BYTES as u64;
        for file in PageFile::ALL {
            let discarded = &mut self.discarded[file as usize];
            for (start, len) in self.meta.space(file).to_discard(discarded, kept_min) {
                self.store.discard(file, start, len);
            }
        }
    }
}
