//! Writes beside the engine: nodes, values, the meta log and the superblock go to disk on another thread while the engine goes on.
//!
//! A flush can be all of it, and most of its nodes and values may be written ahead of it.
//!
//! Invariants: one at a time. What is written ahead is in no state on disk, so a crash at any time leaves nothing but bytes that
//! nothing refers to; a node counts as written only if it is still the one at its place when the work has ended, and only after a sync.
//! What a flush names keeps its place until the flush has ended, whatever becomes free meanwhile; and what only older superblocks
//! name is given away after that.

use std::{fmt, sync::Arc};

use coppice_types::ErrorKind;

use super::checkpoint::Checkpoint;
use crate::{Engine, Result, store::content::Content};

/// Writes that may be done beside the engine, on another thread: [`Engine::begin_ahead`] and [`Engine::begin_flush`] give them,
/// [`Writes::run`] does them, [`Engine::end_writes`] takes them back.
#[must_use = "the engine waits for its end"]
pub struct Writes {
    content: Content,
    /// What makes it a flush.
    checkpoint: Option<Checkpoint>,
    /// None before it is run.
    done: Option<Result<()>>,
    /// The directory is nobody else's until it has ended.
    _lock: Arc<dyn Send + Sync>,
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_flush = self.checkpoint.is_some();
        f.debug_struct("Writes").field("is_flush", &is_flush).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Writes {
    /// Writes and syncs.
    pub fn run(&mut self) {
        let checkpoint = self.checkpoint.as_mut();
        // All that the meta log names is durable before.
        self.done = Some(self.content.write().and_then(|()| checkpoint.map_or(Ok(()), Checkpoint::write)));
    }
}

impl Engine {
    /// How many bytes could be written ahead of the next flush: values, and nodes that will last. Those that merges made do, and are left
    /// alone by a prune or rollback of some recent versions. Those of the active tree wait for the flush, since one that dies before it is
    /// never written; but not where no version was pruned since the flush before the last.
    #[must_use]
    pub fn behind_bytes(&self) -> u64 {
        self.store.behind_bytes(self.keeps_all())
    }

    /// How many bytes are worth a write ahead of a flush of so many. Where the active tree's nodes are among them, there are more, and none
    /// that may die.
    #[must_use]
    pub fn ahead_bytes_min(&self, flush_bytes: u64) -> u64 {
        flush_bytes / if self.keeps_all() { 4 } else { 16 }
    }

    /// Whether no version was pruned since the flush before the last.
    fn keeps_all(&self) -> bool {
        self.flushed_boundaries == [Some(self.meta.boundary); 2]
    }

    /// Writes ahead of a flush. If they fail, the flush writes again, and says what is wrong; only that the disk is full is said at once.
    ///
    /// # Panics
    /// If what was begun before was not given back.
    pub fn begin_ahead(&mut self) -> Writes {
        self.drop_lost_merges();
        let content = self.store.begin_ahead(self.keeps_all());
        self.begin_writes(content, None)
    }

    pub(super) fn begin_writes(&mut self, content: Content, checkpoint: Option<Checkpoint>) -> Writes {
        self.assert_no_writes();
        self.writing = true;
        Writes { content, checkpoint, done: None, _lock: Arc::clone(&self.lock) }
    }

    pub(super) fn assert_no_writes(&self) {
        assert!(!self.writing, "one at a time");
    }

    /// Takes back what [`Engine::begin_ahead`] or [`Engine::begin_flush`] gave. What was written ahead, the next flush need not write. What
    /// nobody has run is as if it had not begun.
    ///
    /// # Errors
    /// A failure of the storage in a flush, as [`Engine::flush`] has it; of what was written ahead, that the disk is full. The state is intact
    /// then.
    ///
    /// # Panics
    /// If it is not this engine's.
    pub fn end_writes(&mut self, writes: Writes) -> Result<()> {
        assert!(self.writing, "none was begun");
        self.writing = false;
        match (writes.checkpoint, writes.done) {
            (Some(checkpoint), done) => self.end_flush(writes.content, checkpoint, done),
            (None, Some(Ok(()))) => {
                self.store.end_ahead(&writes.content);
                Ok(())
            }
            (None, Some(Err(error))) if error.kind() == ErrorKind::Exhausted => Err(error),
            (None, _) => Ok(()),
        }
    }
}
