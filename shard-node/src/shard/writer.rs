//! Writes of a shard's engine that run concurrently with it, for flushes and ahead of them. They
//! run on a thread, or in place in a simulation or if no thread can be started.

use std::thread::JoinHandle;

use coppice_engine::{Engine, Writes};
use coppice_types::Position;

use crate::{
    Error,
    replica::{maintain::Disk, runner::Runner},
};

/// Writes for one engine. It never outlives the state machine, so a directory that is opened again
/// has no other writer.
///
/// Data that will last is written as it comes, so that a flush has little left to write.
#[derive(Debug)]
pub(super) struct DiskWriter {
    runner: Runner,
    flush_bytes: u64,
    at_work: Option<AtWork>,
}

/// Writes that were begun.
#[derive(Debug)]
enum AtWork {
    Thread(JoinHandle<Writes>),
    /// The writes were done in place. They are ended later all the same, like those of a thread.
    Done(Box<Writes>),
}

impl DiskWriter {
    /// `flush_bytes_max` is the intended size of flushes.
    pub(super) fn new(runner: Runner, flush_bytes_max: u64) -> Self {
        Self { runner, flush_bytes: flush_bytes_max, at_work: None }
    }

    /// The state of the writes. Nothing is written ahead when a flush is due.
    pub(super) fn state(&self, engine: &Engine, flush_due: bool) -> Disk {
        match &self.at_work {
            Some(AtWork::Thread(thread)) if !thread.is_finished() => Disk::Busy,
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
        let run = move || {
            writes.run();
            writes
        };
        self.at_work = Some(match self.runner {
            Runner::Threads => match coppice_env::spawn_thread("disk-writer", run) {
                Ok(thread) => AtWork::Thread(thread),
                Err(run) => AtWork::Done(Box::new(run())),
            },
            Runner::Inline(_) => AtWork::Done(Box::new(run())),
        });
    }

    /// Waits for the writes that were begun. An error is that of a flush.
    pub(super) fn end(&mut self, engine: &mut Engine) -> Result<(), Error> {
        let writes = match self.at_work.take() {
            None => return Ok(()),
            Some(AtWork::Thread(thread)) => thread.join().expect("writes break no invariant"),
            Some(AtWork::Done(writes)) => *writes,
        };
        Ok(engine.end_writes(writes)?)
    }
}

impl Drop for DiskWriter {
    fn drop(&mut self) {
        if let Some(AtWork::Thread(thread)) = self.at_work.take() {
            // Data that was written ahead is useless by now. A finished flush is found when the
            // directory is opened.
            let _ = thread.join();
        }
    }
}
