//! Durability: the flush, and the cleanup after it.

use std::{collections::BTreeSet, sync::Arc};

use super::{checkpoint::Checkpoint, writes::Writes};
use crate::{
    Engine, Error, Position, Result,
    files::{
        meta_log,
        superblock::{self, MACHINE_STATE_BYTES_MAX, Superblock},
    },
    meta::MetaOp,
    place::page::{PAGE_BYTES, PageFile},
    store::content::Content,
};

impl Engine {
    /// The last raft entry that need not be replayed after `open`.
    #[must_use]
    pub fn durable_position(&self) -> Position {
        self.superblock.position
    }

    /// The last raft entry that need not be replayed if the newest superblock is damaged.
    #[must_use]
    pub fn fallback_position(&self) -> Position {
        self.older.as_ref().unwrap_or(&self.superblock).position
    }

    /// The bytes that the caller stored with the state at [`Engine::durable_position`].
    #[must_use]
    pub fn machine_state(&self) -> &[u8] {
        &self.superblock.machine_state
    }

    /// Approximate number of bytes that the next flush would write.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.store.unflushed_bytes() + self.operations.bytes.len() as u64
    }

    /// Makes the whole state durable, as the result of the raft entries up to `position`.
    ///
    /// The steps, and what a crash after each leaves:
    ///
    /// 1. Nodes and values, unless they were written ahead, go to places that no superblock refers
    ///    to.
    /// 2. Operations go to the meta log, after the length that a superblock names.
    /// 3. The names of new files become durable. Up to here the old superblocks are in force, and
    ///    nothing that they refer to was changed.
    /// 4. The new superblock goes to the slot of the older one. If a crash tears it, the newer of
    ///    the old superblocks is in force. Once it is whole, the new one is.
    /// 5. If much space waits for it, a copy of the new superblock goes to the other slot.
    ///
    /// Then freed places are reused, and files that no superblock names are deleted. A crash before
    /// that leaves them to the next `open`.
    ///
    /// # Errors
    /// A failure of the storage, for example a full disk. Up to step 3 the state is intact and a
    /// later flush may succeed, perhaps after a prune. In step 4, the engine refuses further
    /// changes (`Poisoned`) until the directory is opened again.
    ///
    /// # Panics
    /// If writes begun by [`Engine::begin_ahead`] or [`Engine::begin_flush`] were not given back.
    pub fn flush(&mut self, position: Position, machine_state: &[u8]) -> Result<()> {
        let mut writes = self.begin_flush(position, machine_state)?;
        writes.run();
        self.end_writes(writes)
    }

    /// Begins a flush of the present state; steps 1 to 4 may run on another thread. Later changes
    /// belong to the next flush.
    ///
    /// # Errors
    /// `Poisoned`, `Invalid`, or a failure to open files. Nothing has begun then.
    ///
    /// # Panics
    /// Like [`Engine::flush`].
    pub fn begin_flush(&mut self, position: Position, machine_state: &[u8]) -> Result<Writes> {
        self.check_usable()?;
        if machine_state.len() > MACHINE_STATE_BYTES_MAX {
            return Err(Error::Invalid("machine state length"));
        }
        self.assert_no_writes();
        self.drop_lost_merges();
        self.fold_rows();
        assert!(position.index >= self.superblock.position.index, "raft positions never go back");
        assert_eq!(self.meta.generation, self.superblock.generation, "the table is that of the newest superblock");
        assert_eq!(self.log.number, self.superblock.meta_file, "the log is that of the newest superblock");
        assert_eq!(self.log.len, self.superblock.meta_len, "the log ends where the newest superblock says");
        let (content, names_changed) = self.store.begin_flush(self.options.workers)?;
        let generation = self.superblock.generation + 1;
        let segment_ends = self.store.values.unflushed_ends();
        let dead_segments = self.meta.dying_segments(&segment_ends, &self.store.values.taking());
        let is_long = self.log.is_long(self.options.meta_compaction_bytes_min);
        // A log whose rewrite found no room grows by a quarter before the next attempt. The
        // remaining room is needed for other writes.
        let tries = is_long && self.log.len >= self.log_tried_len / 4 * 5;
        let snapshot = tries.then(|| meta_log::snapshot(&self.meta));
        if tries {
            self.log_tried_len = self.log.len;
        }
        let begun = self.meta.begin_checkpoint(generation, &segment_ends, &dead_segments);
        assert_eq!(begun, Ok(()), "generations ascend, and what is dead has no live bytes");
        let checkpoint = Checkpoint {
            storage: Arc::clone(&self.storage),
            super_file: Arc::clone(&self.super_file),
            names_changed,
            log: self.log.clone(),
            snapshot,
            operations: std::mem::take(&mut self.operations),
            segment_ends,
            dead_segments,
            next: Superblock { generation, position, machine_state: machine_state.into(), ..self.superblock.clone() },
            slot_touched: false,
            boundary: self.meta.boundary,
        };
        Ok(self.begin_writes(content, Some(checkpoint)))
    }

    /// Ends a flush; `done` is the outcome of its steps, `None` if they were not run.
    pub(super) fn end_flush(
        &mut self,
        content: Content,
        checkpoint: Checkpoint,
        done: Option<Result<()>>,
    ) -> Result<()> {
        let Checkpoint { log, snapshot, operations, segment_ends, next, slot_touched, boundary, .. } = checkpoint;
        if !matches!(done, Some(Ok(()))) {
            // The slot may hold the new superblock. Without this flag, the engine would reuse its
            // pages.
            self.poisoned |= slot_touched;
            self.meta.cancel_checkpoint();
            assert_eq!(self.meta.generation, self.superblock.generation, "a failed flush leaves the generation");
            let later = std::mem::replace(&mut self.operations, operations);
            self.operations.append(&later);
            return done.unwrap_or(Ok(()));
        }
        assert_eq!(next.generation, self.superblock.generation + 1, "superblocks have consecutive generations");
        assert_eq!(next.generation, self.meta.generation, "a superblock covers the table of its generation");
        assert!(snapshot.is_some() || log.len > self.log.len, "a flush adds a block to the log");
        let log_bytes = if snapshot.is_some() { log.len } else { log.len - self.log.len };
        self.store.counters.meta_write_bytes.add(log_bytes + superblock::SLOT_BYTES as u64);
        if log.number != self.log.number {
            self.log_tried_len = 0;
        }
        self.meta_files.insert(log.number);
        self.log = log;
        self.older = Some(std::mem::replace(&mut self.superblock, next));
        let ended = self.meta.end_checkpoint(&segment_ends);
        assert_eq!(ended, Ok(()), "what waits is not free");
        self.store.end_flush(&content, &segment_ends, &self.meta);
        self.measure_waiting();
        self.store.counters.flushes.one();
        self.slot_unknown = false;
        if self.much_waits() {
            // Without the copy, the space still waits.
            let _ = self.copy_superblock();
        }
        self.clean_up();
        self.flushed_boundaries = [self.flushed_boundaries[1], Some(boundary)];
        Ok(())
    }

    /// Whether more than [`crate::Options::waiting_percent_max`] of the disk waits for a flush.
    /// Always `false` while a snapshot is pinned, as everything waits for that.
    #[must_use]
    pub fn much_waits(&self) -> bool {
        self.much_waits && !self.meta.is_pinned()
    }

    /// Computes how much space waits for a flush.
    pub(crate) fn measure_waiting(&mut self) {
        let (waiting, used) = self.meta.waiting_bytes(&self.store.values.unflushed_ends(), &self.store.values.taking());
        let percent = u64::from(self.options.waiting_percent_max);
        self.much_waits = waiting > self.options.free_bytes_kept_min && waiting > used / 100 * percent;
    }

    /// Copies the newest superblock to the other slot. Space that only the previous superblock
    /// needed is then free. After a crash before the copy is durable, or after a failure, the
    /// newest superblock is intact in its own slot.
    pub(super) fn copy_superblock(&mut self) -> Result<()> {
        assert!(!self.poisoned, "the superblock that is copied is durable");
        assert!(!self.writing, "no other superblock is being written");
        // From here on the slot's content is undefined.
        self.older = None;
        self.slot_unknown = true;
        let copied = superblock::write_copy(&*self.super_file, &self.superblock);
        copied.and_then(|()| self.super_file.sync_data()).map_err(Error::io("write", superblock::FILE))?;
        self.slot_unknown = false;
        self.store.counters.meta_write_bytes.add(superblock::SLOT_BYTES as u64);
        self.apply(MetaOp::Copied);
        Ok(())
    }

    /// Deletes files that nothing refers to. Failures are left to the next `open`.
    pub(crate) fn clean_up(&mut self) {
        if self.poisoned {
            // If it is unknown whether a superblock was written, that superblock may need files
            // that look free.
            return;
        }
        for dead in self.meta.take_dead_segments() {
            let _ = self.store.values.delete(dead.segment);
        }
        let named: BTreeSet<u64> = [self.superblock.meta_file]
            .into_iter()
            .chain(self.older.iter().map(|older| older.meta_file))
            .chain(self.pins.iter().map(|pin| pin.superblock.meta_file))
            .collect();
        assert!(named.contains(&self.log.number), "the log in use belongs to a superblock");
        for number in self.meta_files.difference(&named) {
            let _ = self.storage.remove(&meta_log::file_name(*number));
        }
        self.meta_files = named;
        self.discard_free_pages();
        self.forget_filters();
    }

    /// Drops filters that neither the head, stages nor merges need, if many are in memory. Filters
    /// of other retained versions are read again on demand.
    fn forget_filters(&mut self) {
        if self.store.filters_cached() <= self.options.filters_cached_max {
            return;
        }
        let staged = self.meta.staged.iter().map(|id| &self.meta.versions[id]);
        let trees = staged.chain([self.meta.tip()]).flat_map(|version| &version.trees);
        let ready = self.meta.merges.values().filter(|merge| merge.installed_by == 0).map(|merge| &merge.output);
        let places: BTreeSet<_> = trees.chain(ready).filter_map(|tree| tree.filter).map(|blob| blob.at).collect();
        self.store.retain_filters(|at| places.contains(at));
    }

    /// Gives free pages back to the file system. Neither superblock and no pin refers to them, so a
    /// crash may leave any content.
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

#[cfg(test)]
mod tests;
