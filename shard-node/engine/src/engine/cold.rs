//! Moves of old segments to the cold directory, see `files::values::tier`.

use std::sync::Arc;

use crate::{ColdStep, Engine, Error, Result, files::values::tier::is_live};

impl Engine {
    /// Bytes of the segments in the cold directory.
    pub(crate) fn cold_bytes(&self) -> u64 {
        let Some(tier) = self.store.values.tier() else { return 0 };
        self.meta.segments.iter().filter(|(id, _)| tier.has(**id)).map(|(_, segment)| segment.end).sum()
    }

    /// Whether a segment should move to the cold directory and no step is in progress.
    #[must_use]
    pub fn cold_behind(&self) -> bool {
        self.next_cold().is_some()
    }

    /// The next segment to move, its end, and the length copied so far.
    fn next_cold(&self) -> Option<(u32, u64, u64)> {
        let tier = self.store.values.tier()?;
        // A move would copy what is being erased, and erasures would wait behind a backlog.
        if self.erasing.is_some() || self.meta.erasures.is_open() {
            return None;
        }
        if let Some(moving) = tier.moving() {
            return (!moving.out).then_some((moving.segment, moving.end, moving.at));
        }
        let taking = self.store.values.taking();
        let mut here = self.meta.segments.iter().filter(|(id, _)| !tier.has(**id));
        let bytes: u64 = here.clone().map(|(_, segment)| segment.end).sum();
        let sealed = |id: u32| !taking.contains(&id) && !self.store.values.has_tail(id);
        let (id, segment) = here.find(|(id, segment)| is_live(segment) && sealed(**id))?;
        (bytes > self.options.hot_value_bytes_max).then_some((*id, segment.end, 0))
    }

    /// Begins the next step of a segment's move, of about `bytes` bytes. `None` if nothing is to be
    /// moved or a step is in progress. A step changes nothing that a flush, a snapshot or a read
    /// depends on.
    pub fn begin_cold_step(&mut self, bytes: u64) -> Option<ColdStep> {
        let next = self.next_cold()?;
        let hot = Arc::clone(&self.storage);
        Some(self.store.values.tier_mut()?.begin(hot, next, bytes))
    }

    /// Takes back a step that [`Engine::begin_cold_step`] returned.
    ///
    /// # Errors
    /// `Invalid` if no move is in progress: the step is then of another engine. Otherwise the
    /// step's own failure. Nothing is lost: the segment stays where it was, and the next step
    /// begins the move again.
    ///
    /// # Panics
    /// If a move is in progress, and the step is not of that move.
    pub fn end_cold_step(&mut self, step: ColdStep) -> Result<()> {
        let (segment, bytes) = (step.segment(), step.written_bytes());
        let Some(tier) = self.store.values.tier_mut() else {
            return Err(Error::Invalid("a step of a move without a cold directory"));
        };
        let ended = tier.end(step);
        // The next read opens the file at its present place.
        self.store.values.close(segment);
        let counters = &self.store.counters;
        match ended {
            Ok(moved) => {
                counters.cold_write_bytes.add(bytes);
                counters.cold_segments.add(moved.into());
                Ok(())
            }
            Err(error) => {
                counters.cold_failures.one();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use coppice_env::{Fault, Operation, SimStorage, Storage, TieredStorage};
    use coppice_types::{ShardId, Version};

    use super::*;
    use crate::{
        Options, fsck,
        testing::{commit, create, flush, options, put, small},
    };

    /// A storage in two directories of a simulated one.
    fn tiered(sim: &SimStorage) -> Arc<dyn Storage> {
        let dir = |name| sim.subdir(name).expect("a path");
        Arc::new(TieredStorage::new(dir("hot"), dir("cold")))
    }

    fn eager() -> Options {
        Options { segment_bytes_max: 200, hot_value_bytes_max: 0, ..options() }
    }

    /// Three flushed values of 100 bytes, each in a segment of its own. No segment may stay but the
    /// one that takes new records.
    fn engine(sim: &SimStorage) -> Engine {
        let mut engine = Engine::create(tiered(sim), ShardId(3), small(), eager()).expect("an empty directory");
        commit(&mut engine, 1, vec![put("a", 100), put("b", 100), put("c", 100)]);
        flush(&mut engine, 1);
        engine
    }

    /// The segments in the directories.
    fn segments(sim: &SimStorage) -> Vec<String> {
        sim.files().into_iter().filter(|name| name.contains("values-")).collect()
    }

    fn run(engine: &mut Engine, bytes: u64) -> Result<()> {
        let mut step = engine.begin_cold_step(bytes).expect("there is something to move");
        step.run();
        engine.end_cold_step(step)
    }

    fn assert_readable(engine: &Engine) {
        let page = engine.view_at(Version(1)).expect("decided").range(b"", None, 9, true).expect("readable");
        assert!(page.records.len() == 3 && page.records.iter().all(|it| it.value == Some(vec![100; 100])));
    }

    #[test]
    fn all_segments_move_but_the_one_that_takes_records() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        while engine.cold_behind() {
            run(&mut engine, 1000).expect("room");
        }
        assert_eq!(segments(&sim), ["cold/values-0", "cold/values-1", "hot/values-2"]);
        assert_eq!((engine.cold_bytes(), engine.counters().cold_segments), (2 * 116, 2));
        assert_eq!(engine.counters().cold_write_bytes, 2 * 116);
        assert_readable(&engine);
        drop(engine);
        assert_readable(&Engine::open(tiered(&sim), eager()).expect("a sound directory"));
    }

    #[test]
    fn segments_move_while_those_that_stay_exceed_the_limit() {
        for (hot_value_bytes_max, moved) in [(3 * 116, 0), (3 * 116 - 1, 1), (2 * 116, 1), (2 * 116 - 1, 2)] {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            engine.options.hot_value_bytes_max = hot_value_bytes_max;
            while engine.cold_behind() {
                run(&mut engine, 1000).expect("room");
            }
            assert_eq!(engine.counters().cold_segments, moved, "{hot_value_bytes_max} bytes may stay");
        }
    }

    #[test]
    fn a_segment_with_unflushed_records_stays() {
        let sim = SimStorage::new();
        let mut engine = Engine::create(tiered(&sim), ShardId(3), small(), eager()).expect("an empty directory");
        commit(&mut engine, 1, vec![put("a", 100), put("b", 100), put("c", 100)]);
        assert!(!engine.cold_behind());
        flush(&mut engine, 1);
        assert!(engine.cold_behind());
    }

    #[test]
    fn no_second_step_begins_while_one_is_out() {
        let mut engine = engine(&SimStorage::new());
        let step = engine.begin_cold_step(10).expect("there is something to move");
        assert!(!engine.cold_behind() && engine.begin_cold_step(10).is_none());
        engine.end_cold_step(step).expect("it was not run");
        assert!(engine.cold_behind());
    }

    #[test]
    fn a_step_that_was_not_run_is_begun_again_from_the_same_place() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        run(&mut engine, 50).expect("room");
        let step = engine.begin_cold_step(50).expect("there is more");
        assert_eq!(step.segment(), 0);
        engine.end_cold_step(step).expect("it was not run");
        assert_eq!(engine.counters().cold_write_bytes, 50, "only the first step has written");
        run(&mut engine, 50).expect("room");
        run(&mut engine, 50).expect("room");
        assert_eq!(segments(&sim)[0], "cold/values-0");
        assert_eq!(engine.counters().cold_write_bytes, 116);
        assert_readable(&engine);
    }

    #[test]
    fn a_failed_step_leaves_the_segment_where_it_was_and_no_copy() {
        let faults = [(Operation::Write, "cold/"), (Operation::Sync, "cold/"), (Operation::SyncDir, "cold")];
        for (operation, path) in faults {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            sim.inject(Fault { operation, path_part: path.to_owned(), skip: 0, kind: ErrorKind::StorageFull });
            assert!(run(&mut engine, 1000).is_err(), "{operation:?}");
            assert_eq!(segments(&sim), ["hot/values-0", "hot/values-1", "hot/values-2"], "{operation:?}");
            assert_eq!((engine.counters().cold_failures, engine.cold_bytes()), (1, 0));
            assert_eq!(engine.counters().cold_write_bytes, 0, "a failed copy does not count");
            assert!(engine.cold_behind());
            assert_readable(&engine);
            run(&mut engine, 1000).expect("room");
            assert_readable(&engine);
        }
    }

    #[test]
    fn a_step_without_a_move_in_progress_is_refused() {
        let mut other = engine(&SimStorage::new());
        let (mut moving, mut idle) = (engine(&SimStorage::new()), create(&SimStorage::new(), small()));
        let step = moving.begin_cold_step(50).expect("there is something to move");
        assert!(matches!(other.end_cold_step(step), Err(Error::Invalid(_))));
        assert!(other.cold_behind());
        let step = other.begin_cold_step(50).expect("there is something to move");
        assert!(matches!(idle.end_cold_step(step), Err(Error::Invalid(_))), "it has no cold directory");
    }

    #[test]
    fn a_segment_that_dies_while_it_moves_is_gone_from_both_directories() {
        for run_it in [false, true] {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            run(&mut engine, 50).expect("room");
            let mut step = engine.begin_cold_step(50).expect("there is more");
            if run_it {
                step.run();
            }
            commit(&mut engine, 2, vec![put("a", 101)]);
            engine.prune(Version(2)).expect("usable");
            (2..=3).for_each(|index| flush(&mut engine, index));
            engine.end_cold_step(step).expect("nothing needs it");
            let written = if run_it { 100 } else { 50 };
            assert_eq!(engine.counters().cold_write_bytes, written, "the second step was run: {run_it}");
            assert_eq!(segments(&sim), ["hot/values-1", "hot/values-2", "hot/values-3"]);
            drop(engine);
            let report = fsck(tiered(&sim)).expect("a directory");
            assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
        }
    }
}
