//! Writes on another thread: nodes, values, the meta log and the superblock go to disk while the
//! engine keeps working.
//!
//! Such writes are either a whole flush, or nodes and values written ahead of one.
//!
//! Invariants: only one set of writes is in progress. Data that is written ahead belongs to no
//! state on disk, so a crash leaves only bytes that nothing refers to. A node counts as written
//! only after a sync, and only if its place still holds it when the writes end. Pages and records
//! that a flush names keep their places until the flush has ended, even if they are freed in the
//! meantime. Those that only older superblocks name are reused after that.

use std::{fmt, sync::Arc};

use coppice_types::ErrorKind;

use super::checkpoint::Checkpoint;
use crate::{Engine, Result, store::content::Content};

/// Writes that may run on another thread. [`Engine::begin_ahead`] and [`Engine::begin_flush`]
/// return them, [`Writes::run`] does the work, and [`Engine::end_writes`] takes them back.
#[must_use = "the engine waits for its end"]
pub struct Writes {
    content: Content,
    /// The further steps of a flush; `None` for writes ahead of one.
    checkpoint: Option<Checkpoint>,
    /// The outcome; `None` before the writes are run.
    done: Option<Result<()>>,
    /// Keeps the directory locked until the writes have ended.
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
        // Everything that the meta log names must be durable first.
        self.done = Some(self.content.write().and_then(|()| checkpoint.map_or(Ok(()), Checkpoint::write)));
    }
}

impl Engine {
    /// Bytes that could be written ahead of the next flush: values, and nodes that will last.
    ///
    /// Outputs of merges last: a prune or rollback of recent versions leaves them alone. Nodes of
    /// the active tree wait for the flush, since a node that dies before it is then never written.
    /// But if no version was pruned since the flush before the last, they count, too.
    #[must_use]
    pub fn behind_bytes(&self) -> u64 {
        self.store.behind_bytes(self.keeps_all())
    }

    /// The least number of bytes that is worth a write ahead, for flushes of `flush_bytes`. If
    /// nodes of the active tree count, the number is larger, and none of the nodes is likely to
    /// die.
    #[must_use]
    pub fn ahead_bytes_min(&self, flush_bytes: u64) -> u64 {
        flush_bytes / if self.keeps_all() { 4 } else { 16 }
    }

    /// Whether no version was pruned since the flush before the last.
    fn keeps_all(&self) -> bool {
        self.flushed_boundaries == [Some(self.meta.boundary); 2]
    }

    /// Begins writes ahead of a flush. If they fail, the flush writes again and reports the error;
    /// only a full disk is reported at once.
    ///
    /// # Panics
    /// If earlier writes were not given back.
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

    /// Takes back what [`Engine::begin_ahead`] or [`Engine::begin_flush`] returned. The next flush
    /// skips the data that was written ahead. Writes that were never run are discarded.
    ///
    /// # Errors
    /// For a flush, a failure of the storage, like [`Engine::flush`]. For writes ahead, only a full
    /// disk; the state is intact then.
    ///
    /// # Panics
    /// If the writes belong to another engine.
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
