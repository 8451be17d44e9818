//! Pace of the moves to the cold directory. They never delay a commit, and one that fails costs nothing but a later try.

use std::time::Duration;

use super::Actor;
use crate::replica::machine::StateMachine;

/// Less is not worth a thread and a sync.
const PART_BYTES_MIN: u64 = 1 << 20;
/// Pause after a failure, a full cold disk most likely.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// How far the moves are.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// Bytes that may be moved now.
    credit: u64,
    /// There is something to begin or to end.
    due: bool,
    /// Not before this time.
    not_before: Duration,
}

impl<M: StateMachine> Actor<M> {
    /// Grants a tick's share.
    pub(super) fn grant_cold(&mut self) {
        let tuning = &self.config.hosted.tuning;
        let share = u128::from(tuning.cold_bytes_per_s) * tuning.tick.as_millis() / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        // What was not used is not saved up.
        self.cold.credit = self.cold.credit.saturating_add(share).min(share.max(PART_BYTES_MIN));
        let ready = self.cold.credit >= PART_BYTES_MIN && self.now() >= self.cold.not_before;
        self.cold.due = ready && self.read_machine().as_ref().is_some_and(StateMachine::cold_due);
    }

    /// Begins and ends moves, once the readers leave room for that.
    pub(super) fn move_cold(&mut self) {
        if !self.cold.due {
            return;
        }
        let moved = match self.try_machine().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.move_cold(self.cold.credit),
            None => return,
        };
        (self.cold.credit, self.cold.due) = (0, false);
        if let Err(error) = moved {
            let group = self.config.identity.group;
            tracing::error!(%group, error = error.chain(), "a segment could not be moved to the cold directory");
            self.cold.not_before = self.now() + RETRY_DELAY;
        }
    }
}
