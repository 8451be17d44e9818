//! Writing ahead of flushes: on a thread, or, in a simulation, in place.

use std::thread::{Builder, JoinHandle};

use coppice_engine::{AheadScope, Engine, WriteAhead};

use crate::{Error, error, machine::Ahead, runner::Runner};

/// Writes for one engine, and never outlives the machine: a directory that is opened anew has no other writer.
///
/// What lasts is written as it comes. When a flush is due, the rest is, once, so that the flush has left what came meanwhile.
#[derive(Debug)]
pub(super) struct AheadWriter {
    runner: Runner,
    flush_bytes: u64,
    /// What is written now, and by whom.
    thread: Option<JoinHandle<WriteAhead>>,
    /// All of it was written since the last flush, or is now.
    all: bool,
}

impl AheadWriter {
    /// `flush_bytes_max` is what flushes are to be about as large as.
    pub(super) fn new(runner: Runner, flush_bytes_max: u64) -> Self {
        Self { runner, flush_bytes: flush_bytes_max, thread: None, all: false }
    }

    fn scope(&self, flush_due: bool) -> AheadScope {
        if flush_due && !self.all { AheadScope::All } else { AheadScope::Lasting }
    }

    /// How far it is.
    pub(super) fn state(&self, engine: &Engine, flush_due: bool) -> Ahead {
        match &self.thread {
            Some(thread) if thread.is_finished() => Ahead::Due,
            Some(_) => Ahead::Busy,
            None if flush_due && self.all => Ahead::Idle,
            None if engine.behind_bytes(self.scope(flush_due)) > engine.ahead_bytes_min(self.flush_bytes) => Ahead::Due,
            None => Ahead::Idle,
        }
    }

    /// Ends what was begun, and begins to write what is to be written, if that is enough.
    pub(super) fn go_on(&mut self, engine: &mut Engine, flush_due: bool) -> Result<(), Error> {
        self.end(engine);
        let scope = self.scope(flush_due);
        if engine.behind_bytes(scope) <= engine.ahead_bytes_min(self.flush_bytes) || (flush_due && self.all) {
            return Ok(());
        }
        self.all |= scope == AheadScope::All;
        let mut ahead = engine.begin_ahead(scope);
        let run = move || {
            ahead.run();
            ahead
        };
        match self.runner {
            Runner::Threads => {
                let thread = Builder::new().name("write-ahead".to_owned()).spawn(run);
                self.thread = Some(thread.map_err(error::storage("start a thread"))?);
            }
            Runner::Inline(_) => engine.end_ahead(run()),
        }
        Ok(())
    }

    /// A flush begins: waits for what was begun.
    pub(super) fn end_for_flush(&mut self, engine: &mut Engine) {
        self.end(engine);
        self.all = false;
    }

    /// Waits for what was begun.
    fn end(&mut self, engine: &mut Engine) {
        if let Some(thread) = self.thread.take() {
            engine.end_ahead(thread.join().expect("writes break no invariant"));
        }
    }
}

impl Drop for AheadWriter {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What it wrote is of no use any more.
            let _ = thread.join();
        }
    }
}
