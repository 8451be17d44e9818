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

#[cfg(test)]
mod tests {
    use std::io;

    use coppice_env::{Fault, Operation, SimStorage};
    use coppice_types::{Params, Version};

    use super::*;
    use crate::{
        Error, Position, fsck,
        testing::{commit, create, flush, open, prepare_id, put, puts, small, stage},
    };

    const SECOND: Position = Position { index: 2, term: 1 };

    /// A flushed version 1, and a version 2 after it, both with values in the log.
    fn engine(sim: &SimStorage) -> Engine {
        let mut engine = create(sim, small());
        commit(&mut engine, 1, puts(0..4, 100));
        flush(&mut engine, 1);
        commit(&mut engine, 2, puts(2..6, 100));
        engine
    }

    fn run(mut writes: Writes) -> Writes {
        writes.run();
        writes
    }

    /// Version that a machine finds after a power failure now; its directory is sound.
    fn durable(sim: &SimStorage) -> Version {
        let loss = sim.power_loss(7);
        assert!(fsck(loss.storage()).expect("a directory").is_clean());
        open(&loss).decided().version
    }

    #[test]
    fn a_flush_that_was_never_run_is_as_if_not_begun() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        let writes = engine.begin_flush(SECOND, b"").expect("usable");
        engine.end_writes(writes).expect("nothing was done");
        assert_eq!((engine.durable_position().index, durable(&sim)), (1, Version(1)));
        assert!(engine.unflushed_bytes() > 0);
        flush(&mut engine, 2);
        assert_eq!(durable(&sim), Version(2));
    }

    #[test]
    fn a_flush_counts_only_once_it_has_ended_but_is_durable_once_it_was_run() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        let writes = run(engine.begin_flush(SECOND, b"state").expect("usable"));
        assert_eq!((engine.durable_position().index, durable(&sim)), (1, Version(2)));
        engine.end_writes(writes).expect("room");
        assert_eq!((engine.durable_position(), engine.machine_state()), (SECOND, &b"state"[..]));
    }

    #[test]
    fn changes_after_the_begin_of_a_flush_belong_to_the_next_one() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        let writes = engine.begin_flush(SECOND, b"").expect("usable");
        commit(&mut engine, 3, puts(0..6, 50));
        engine.prune(Version(3)).expect("usable");
        engine.end_writes(run(writes)).expect("room");
        assert_eq!(durable(&sim), Version(2));
        flush(&mut engine, 3);
        assert_eq!(durable(&sim), Version(3));
    }

    #[test]
    fn what_was_written_ahead_is_not_behind_and_belongs_to_no_state() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        // The four values; nodes of the active tree wait for the flush.
        assert_eq!(engine.behind_bytes(), 4 * 116);
        let writes = run(engine.begin_ahead());
        engine.end_writes(writes).expect("room");
        assert_eq!((engine.behind_bytes(), durable(&sim)), (0, Version(1)));
        assert!(engine.unflushed_bytes() > 0, "the nodes");
        flush(&mut engine, 2);
        assert_eq!((engine.unflushed_bytes(), durable(&sim)), (0, Version(2)));
    }

    #[test]
    fn a_failed_write_ahead_reports_only_a_full_disk_and_the_flush_writes_again() {
        for (kind, reported) in [(io::ErrorKind::StorageFull, true), (io::ErrorKind::TimedOut, false)] {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            sim.inject(Fault { operation: Operation::Write, path_part: "values".to_owned(), skip: 0, kind });
            let writes = run(engine.begin_ahead());
            let ended = engine.end_writes(writes);
            assert_eq!(ended.map_err(|error| error.kind()), if reported { Err(ErrorKind::Exhausted) } else { Ok(()) });
            assert_eq!(engine.behind_bytes(), 4 * 116);
            flush(&mut engine, 2);
            assert_eq!(durable(&sim), Version(2));
        }
    }

    #[test]
    fn a_version_aborted_while_it_is_written_leaves_nothing_to_write() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        flush(&mut engine, 2);
        let (decided, used) = (engine.decided(), crate::testing::used(&engine));
        stage(&mut engine, 3, puts(0..4, 100));
        let writes = engine.begin_flush(Position { index: 3, term: 1 }, b"").expect("usable");
        engine.abort(Version(3), prepare_id(3));
        engine.end_writes(run(writes)).expect("room");
        assert_eq!((engine.decided(), crate::testing::used(&engine)), (decided, used));
        flush(&mut engine, 4);
        drop(engine);
        assert!(fsck(sim.storage()).expect("a directory").is_clean());
        assert!(open(&sim).staged().is_empty());
    }

    #[test]
    fn nodes_of_the_active_tree_are_behind_once_nothing_was_pruned_for_two_flushes() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params::default());
        (1..=2).for_each(|index| flush(&mut engine, index));
        commit(&mut engine, 1, puts(0..1000, 9));
        assert!(engine.behind_bytes() > 0);
        assert_eq!(engine.ahead_bytes_min(1600), 400);
        engine.prune(Version(1)).expect("usable");
        assert_eq!((engine.behind_bytes(), engine.ahead_bytes_min(1600)), (0, 100));
    }

    #[test]
    fn the_directory_stays_locked_until_its_writes_are_gone() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        let writes = engine.begin_ahead();
        drop(engine);
        let locked = Engine::open(sim.storage(), crate::testing::options());
        assert!(matches!(locked, Err(Error::Locked)));
        drop(writes);
        assert_eq!(open(&sim).decided().version, Version(1));
    }

    #[test]
    #[should_panic(expected = "one at a time")]
    fn two_sets_of_writes_at_once_are_a_bug() {
        let mut engine = create(&SimStorage::new(), small());
        let _first = engine.begin_ahead();
        let _second = engine.begin_ahead();
    }

    #[test]
    #[should_panic(expected = "none was begun")]
    fn writes_that_are_given_back_to_another_engine_are_a_bug() {
        let [mut one, mut other] = [(); 2].map(|()| create(&SimStorage::new(), small()));
        let writes = one.begin_ahead();
        drop(other.end_writes(writes));
    }

    #[test]
    fn a_short_put_lies_in_its_leaf_and_is_not_behind() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 8)]);
        assert_eq!(engine.behind_bytes(), 0);
    }
}
