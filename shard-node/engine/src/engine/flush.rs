//! Durability: the flush, and what it cleans up.

use std::{collections::BTreeSet, sync::Arc};

use super::{checkpoint::Checkpoint, writes::Writes};
use crate::{
    Engine, Error, RaftPosition, Result,
    files::{
        meta_log,
        superblock::{self, MACHINE_STATE_BYTES_MAX, Superblock},
    },
    meta::MetaOp,
    place::page::{PAGE_BYTES, PageFile},
    store::content::Content,
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
    /// If what [`Engine::begin_ahead`] or [`Engine::begin_flush`] gave was not given back.
    pub fn flush(&mut self, position: RaftPosition, machine_state: &[u8]) -> Result<()> {
        let mut writes = self.begin_flush(position, machine_state)?;
        writes.run();
        self.end_writes(writes)
    }

    /// A flush of the state of now, of which steps 1 to 4 are done beside the engine. What changes meanwhile comes with the next one.
    ///
    /// # Errors
    /// `Poisoned`, `Invalid`, or a failure to open files. Nothing has begun then.
    ///
    /// # Panics
    /// As [`Engine::flush`].
    pub fn begin_flush(&mut self, position: RaftPosition, machine_state: &[u8]) -> Result<Writes> {
        self.check_usable()?;
        if machine_state.len() > MACHINE_STATE_BYTES_MAX {
            return Err(Error::Invalid("machine state length"));
        }
        self.assert_no_writes();
        self.drop_lost_merges();
        assert!(position.index >= self.superblock.position.index, "raft positions never go back");
        let (content, names_changed) = self.store.begin_flush(self.options.workers)?;
        let generation = self.superblock.generation + 1;
        let segment_ends = self.store.values.unflushed_ends();
        let dead_segments = self.meta.dying_segments(&segment_ends, &self.store.values.taking());
        let is_long = self.log.is_long(self.options.meta_compaction_bytes_min);
        // A log that found no room grows by a quarter before that is tried again: others need what room there is.
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

    /// The end of a flush, with what its steps gave if they were run.
    pub(super) fn end_flush(
        &mut self,
        content: Content,
        checkpoint: Checkpoint,
        done: Option<Result<()>>,
    ) -> Result<()> {
        let Checkpoint { log, snapshot, operations, segment_ends, next, slot_touched, boundary, .. } = checkpoint;
        if !matches!(done, Some(Ok(()))) {
            // A slot of unknown content may name pages that memory would give away.
            self.poisoned |= slot_touched;
            self.meta.cancel_checkpoint();
            let later = std::mem::replace(&mut self.operations, operations);
            self.operations.append(&later);
            return done.unwrap_or(Ok(()));
        }
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
        self.copy_superblock();
        self.clean_up();
        self.flushed_boundaries = [self.flushed_boundaries[1], Some(boundary)];
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
        let (waiting, used) = self.meta.waiting_bytes(&self.store.values.unflushed_ends(), &self.store.values.taking());
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

    /// Deletes files that nothing refers to any more. What fails is left to the next `open`.
    pub(crate) fn clean_up(&mut self) {
        if self.poisoned {
            // A superblock that nobody knows of may need what looks free.
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
        for number in self.meta_files.difference(&named) {
            let _ = self.storage.remove(&meta_log::file_name(*number));
        }
        self.meta_files = named;
        self.discard_free_pages();
        self.forget_filters();
    }

    /// Where versions are kept, so are the filters of their trees; in memory are those that the next writes and reads need. Others are read again
    /// by who asks for them.
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
