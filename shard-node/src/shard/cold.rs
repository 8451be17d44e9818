//! Moving old segments to the cold directory: on a thread, or, in a simulation, in place.

use std::thread::{Builder, JoinHandle};

use coppice_engine::{ColdStep, Engine};

use crate::{Error, error, replica::runner::Runner};

/// Moves the segments of one engine, a part at a time. It never outlives the state machine.
#[derive(Debug)]
pub(super) struct ColdMover {
    runner: Runner,
    thread: Option<JoinHandle<ColdStep>>,
}

impl ColdMover {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner, thread: None }
    }

    /// Whether [`Self::go_on`] has a part to end or to begin.
    pub(super) fn is_due(&self, engine: &Engine) -> bool {
        self.thread.as_ref().map_or_else(|| engine.cold_behind(), JoinHandle::is_finished)
    }

    /// Ends the part that was begun, and begins the next one.
    pub(super) fn go_on(&mut self, engine: &mut Engine, bytes: u64) -> Result<(), Error> {
        if let Some(thread) = self.thread.take() {
            engine.end_cold_step(thread.join().expect("copies break no invariant"))?;
        }
        let Some(mut step) = engine.begin_cold_step(bytes) else { return Ok(()) };
        let run = move || {
            step.run();
            step
        };
        match self.runner {
            Runner::Threads => {
                let thread = Builder::new().name("cold-move".to_owned()).spawn(run);
                self.thread = Some(thread.map_err(error::storage("start a thread"))?);
            }
            Runner::Inline(_) => engine.end_cold_step(run())?,
        }
        Ok(())
    }
}

impl Drop for ColdMover {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The next start finds the copy that the thread leaves.
            let _ = thread.join();
        }
    }
}
