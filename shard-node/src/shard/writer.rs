//! Writes of a shard's engine that run concurrently with it, for flushes and ahead of them.

use coppice_engine::{Engine, Writes};
use coppice_types::Position;

use crate::{
    Error,
    replica::{
        maintain::Disk,
        runner::{Job, Runner},
    },
};

/// Writes for one engine.
///
/// Data that will last is written as it comes, so that a flush has little left to write.
#[derive(Debug)]
pub(super) struct DiskWriter {
    runner: Runner,
    flush_bytes: u64,
    at_work: Option<Job<Writes>>,
}

impl DiskWriter {
    /// `flush_bytes_max` is the intended size of flushes.
    pub(super) fn new(runner: Runner, flush_bytes_max: u64) -> Self {
        Self { runner, flush_bytes: flush_bytes_max, at_work: None }
    }

    /// The state of the writes. Nothing is written ahead when a flush is due.
    pub(super) fn state(&self, engine: &Engine, flush_due: bool) -> Disk {
        match &self.at_work {
            Some(job) if !job.is_done() => Disk::Busy,
            Some(_) => Disk::Due,
            None if !flush_due && self.is_behind(engine) => Disk::Due,
            None => Disk::Idle,
        }
    }

    fn is_behind(&self, engine: &Engine) -> bool {
        engine.behind_bytes() > engine.ahead_bytes_min(self.flush_bytes)
    }

    /// Ends the writes that were begun, and begins to write ahead if that is worth it.
    pub(super) fn go_on(&mut self, engine: &mut Engine, flush_due: bool) -> Result<(), Error> {
        self.end(engine)?;
        if flush_due || !self.is_behind(engine) {
            return Ok(());
        }
        self.begin(engine.begin_ahead());
        Ok(())
    }

    /// Ends the writes that were begun, and begins a flush.
    pub(super) fn begin_flush(
        &mut self,
        engine: &mut Engine,
        position: Position,
        machine_state: &[u8],
    ) -> Result<(), Error> {
        self.end(engine)?;
        self.begin(engine.begin_flush(position, machine_state)?);
        Ok(())
    }

    fn begin(&mut self, mut writes: Writes) {
        self.at_work = Some(self.runner.begin("disk-writer", move || {
            writes.run();
            writes
        }));
    }

    /// Waits for the writes that were begun. An error is that of a flush.
    pub(super) fn end(&mut self, engine: &mut Engine) -> Result<(), Error> {
        match self.at_work.take() {
            Some(job) => Ok(engine.end_writes(job.end())?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use coppice_env::{Fault, Operation, SimStorage};
    use coppice_types::{Params, ShardId};

    use super::*;

    fn engine(disk: &SimStorage) -> Engine {
        let params = Params { capacity: 8, ..Params::default() };
        Engine::create(disk.storage(), ShardId(0), params, coppice_engine::Options::default()).expect("it is new")
    }

    fn inline() -> DiskWriter {
        DiskWriter::new(Runner::Inline(Arc::new(|| Duration::ZERO)), 1 << 20)
    }

    const AT: Position = Position { index: 5, term: 1 };

    #[test]
    fn a_flush_that_was_begun_counts_only_when_it_is_ended() {
        let disk = SimStorage::new();
        let (mut engine, mut writer) = (engine(&disk), inline());
        assert_eq!(writer.state(&engine, true), Disk::Idle);
        writer.begin_flush(&mut engine, AT, b"state").expect("there is room");
        assert_eq!(writer.state(&engine, false), Disk::Due, "its end is due, also in place");
        assert_ne!(engine.durable_position(), AT);
        writer.go_on(&mut engine, true).expect("there is room");
        assert_eq!((engine.durable_position(), writer.state(&engine, true)), (AT, Disk::Idle));
        writer.end(&mut engine).expect("there is nothing to end");
    }

    #[test]
    fn a_flush_that_failed_is_reported_when_it_is_ended() {
        let disk = SimStorage::new();
        let (mut engine, mut writer) = (engine(&disk), inline());
        let kind = std::io::ErrorKind::StorageFull;
        disk.inject(Fault { operation: Operation::Sync, path_part: String::new(), skip: 0, kind });
        let begun = writer.begin_flush(&mut engine, AT, b"state");
        let ended = begun.and_then(|()| writer.end(&mut engine));
        assert!(ended.is_err_and(|error| error.passes()));
        assert_ne!(engine.durable_position(), AT);
    }

    #[test]
    fn a_writer_that_is_dropped_waits_for_its_thread() {
        let disk = SimStorage::new();
        let (mut engine, mut writer) = (engine(&disk), DiskWriter::new(Runner::Threads, 1 << 20));
        writer.begin_flush(&mut engine, AT, b"state").expect("there is room");
        drop((writer, engine));
        let found = Engine::open(disk.storage(), coppice_engine::Options::default()).expect("no other writer is there");
        assert_eq!(found.durable_position(), AT, "a finished flush is found");
    }
}
