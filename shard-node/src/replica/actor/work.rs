//! Background work of a replica: merges of its state machine, and the check of durable bytes.

use std::time::Duration;

use coppice_types::ErrorKind;

use super::Actor;
use crate::{
    Error,
    replica::{
        machine::StateMachine,
        maintain::{Backlog, Maintain, catch_up},
        tuning::Tuning,
    },
};

/// The pause after a step of background work that is not urgent, as a multiple of the step's
/// length. It is a tick at most. Readers have the state machine meanwhile.
const WORK_REST: u32 = 2;
/// The shortest such pause: a step may only have found that it waits for another thread.
const WORK_REST_MIN: Duration = Duration::from_micros(250);
/// Urgent work runs for 1/`CATCH_UP_PART` of a tick, if no input waits.
const CATCH_UP_PART: u32 = 4;
/// Urgent work runs for this long though inputs wait. Without it, a steady stream of commands would
/// delay the work more and more, until the commands have to wait for all of it.
const CATCH_UP_MIN: Duration = Duration::from_millis(1);

/// The shortest time between the ends of two checks of everything. A small state would otherwise be
/// read over and over.
const SCRUB_ROUND_MIN: Duration = Duration::from_secs(10);
/// A sleeping replica checks the share of this many ticks at a time.
const SCRUB_TICKS_ASLEEP: u32 = 20;

impl<M: StateMachine> Actor<M> {
    /// Does background work of the state machine if the replica is idle or the work is behind.
    /// Returns when the next step of it is due.
    pub(super) fn work(&mut self, idle: bool) -> Result<Option<Duration>, Error> {
        let backlog = self.shared.read_machine().as_ref().map_or(Backlog::None, Maintain::backlog);
        let (began, due) = (self.now(), self.work_at.unwrap_or_default());
        match backlog {
            Backlog::None => return Ok(None),
            // Work adds to the bytes that must be written. So only work that a command waits for is
            // done.
            Backlog::Waiting | Backlog::Some if self.flushing.short_of().is_some() => return Ok(None),
            // The work is done soon, if no input arrives.
            Backlog::Waiting | Backlog::Some if !idle || began < due => return Ok(Some(due)),
            Backlog::Waiting | Backlog::Some => {}
            Backlog::Behind => {
                if self.shared.try_machine().is_none() {
                    return Ok(None);
                }
                let until = began + self.config.site.tuning.tick / CATCH_UP_PART;
                let goes_on = || {
                    let now = self.now();
                    now < began + CATCH_UP_MIN || now < until && self.shared.mailbox.waiting() == (0, 0)
                };
                return match catch_up(&self.shared.machine, Backlog::Behind, &goes_on) {
                    Err(error) => self.work_failed(error).map(|()| None),
                    Ok(()) => Ok(Some(began)),
                };
            }
        }
        let worked = match self.shared.try_machine().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.work(),
            None => return Ok(None),
        };
        match worked {
            Err(error) => self.work_failed(error).map(|()| None),
            Ok(()) => {
                let now = self.now();
                let rest = (WORK_REST * (now - began)).max(WORK_REST_MIN).min(self.config.site.tuning.tick);
                Ok(Some(now + rest))
            }
        }
    }

    /// Handles a failure of background work: after a shortage, the work is postponed.
    pub(super) fn work_failed(&mut self, error: Error) -> Result<(), Error> {
        if error.kind() == ErrorKind::Exhausted { Ok(()) } else { self.failed(error) }
    }

    /// Checks a tick's share of the durable state, unless a reader has the state machine.
    pub(super) fn scrub(&mut self) -> Result<(), Error> {
        let tuning = &self.config.site.tuning;
        let bytes = u128::from(tuning.scrub_bytes_per_s) * tuning.tick.as_millis() / 1000;
        if bytes == 0 || self.now() < self.scrub_from {
            return Ok(());
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let scrubbed = match self.shared.machine.try_write().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.scrub(bytes),
            None => return Ok(()),
        };
        match scrubbed {
            Err(error) => self.failed(error),
            Ok(is_round) => {
                if is_round {
                    self.scrub_from = self.now() + SCRUB_ROUND_MIN;
                }
                Ok(())
            }
        }
    }

    /// Checks several ticks' share of the durable state while the replica sleeps.
    pub(super) fn scrub_asleep(&mut self) -> Result<(), Error> {
        if self.now() >= self.scrub_at {
            for _ in 0..SCRUB_TICKS_ASLEEP {
                self.scrub()?;
            }
            self.pace_scrub();
        }
        Ok(())
    }

    /// Sets the time at which a sleeping replica continues to check its state.
    pub(super) fn pace_scrub(&mut self) {
        let Tuning { tick, scrub_bytes_per_s, .. } = self.config.site.tuning;
        let next = self.scrub_from.max(self.now() + tick * SCRUB_TICKS_ASLEEP);
        self.scrub_at = if scrub_bytes_per_s == 0 { Duration::MAX } else { next };
    }
}
