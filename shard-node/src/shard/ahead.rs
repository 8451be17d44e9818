//! Writing ahead of flushes: on a thread, or, in a simulation, in place.

use std::thread::{Builder, JoinHandle};

use coppice_engine::{Engine, WriteAhead};

use crate::{Error, error, machine::Ahead, runner::Runner};

/// The part of a flush's bytes that is written ahead at once: less would cost a sync of each file too often.
const PARTS: u64 = 16;

/// Writes for one engine, and never outlives the machine: a directory that is opened anew has no other writer.
#[derive(Debug)]
pub(super) struct AheadWriter {
    runner: Runner,
    bytes_min: u64,
    /// What is written now, and by whom.
    thread: Option<JoinHandle<WriteAhead>>,
}

impl AheadWriter {
    /// `flush_bytes_max` is what flushes are to be about as large as.
    pub(super) fn new(runner: Runner, flush_bytes_max: u64) -> Self {
        Self { runner, bytes_min: flush_bytes_max / PARTS, thread: None }
    }

    /// How far it is.
    pub(super) fn state(&self, engine: &Engine) -> Ahead {
        match &self.thread {
            Some(thread) if thread.is_finished() => Ahead::Due,
            Some(_) => Ahead::Busy,
            None if engine.behind_bytes() > self.bytes_min => Ahead::Due,
            None => Ahead::Idle,
        }
    }

    /// Ends what was begun, and begins to write all that the engine has, if that is enough.
    pub(super) fn go_on(&mut self, engine: &mut Engine) -> Result<(), Error> {
        self.end(engine);
        if engine.behind_bytes() <= self.bytes_min {
            return Ok(());
        }
        let mut ahead = engine.begin_ahead();
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

    /// Waits for what was begun.
    pub(super) fn end(&mut self, engine: &mut Engine) {
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
