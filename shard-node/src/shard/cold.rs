//! Moving old segments to the cold directory, concurrently with the state machine.

use coppice_engine::{ColdStep, Engine};

use crate::{
    Error,
    replica::runner::{Job, Runner},
};

/// Moves the segments of one engine, a part at a time.
#[derive(Debug)]
pub(super) struct ColdMover {
    runner: Runner,
    step: Option<Job<ColdStep>>,
}

impl ColdMover {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner, step: None }
    }

    /// Whether [`Self::go_on`] has a part to end or to begin.
    pub(super) fn is_due(&self, engine: &Engine) -> bool {
        self.step.as_ref().map_or_else(|| engine.cold_behind(), Job::is_done)
    }

    /// Ends the part that was begun, and begins the next one.
    pub(super) fn go_on(&mut self, engine: &mut Engine, bytes: u64) -> Result<(), Error> {
        if let Some(step) = self.step.take() {
            engine.end_cold_step(step.end())?;
        }
        let Some(mut step) = engine.begin_cold_step(bytes) else { return Ok(()) };
        self.step = Some(self.runner.begin("cold-move", move || {
            step.run();
            step
        }));
        Ok(())
    }
}
