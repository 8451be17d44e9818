//! The pace of moves to the cold directory.
//!
//! A move never delays a commit. One that fails loses nothing and is tried again later.

use std::time::Duration;

use super::{config::Config, machine::StateMachine, maintain::Maintain, shared::Shared};

/// A smaller part is not worth a thread and a sync.
const PART_BYTES_MIN: u64 = 1 << 20;
/// Pause after a failure, most likely a full cold disk.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The number of bytes that a replica may move now.
#[derive(Debug, Default)]
pub(super) struct Cold {
    /// Bytes that may be moved.
    credit: u64,
    /// Whether a move is to begin or to end.
    due: bool,
    /// The time before which nothing is moved.
    not_before: Duration,
}

impl Cold {
    /// Grants a tick's share of bytes.
    pub(super) fn grant<M: StateMachine>(&mut self, config: &Config<M>, shared: &Shared<M>) {
        let tuning = &config.site.tuning;
        let share = u128::from(tuning.cold_bytes_per_s) * tuning.tick.as_millis() / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        // Shares that were not used are not saved up.
        self.credit = self.credit.saturating_add(share).min(share.max(PART_BYTES_MIN));
        let ready = self.credit >= PART_BYTES_MIN && config.site.clock.now() >= self.not_before;
        self.due = ready && shared.read_machine().as_ref().is_some_and(Maintain::cold_due);
    }

    /// Ends and begins moves, unless a reader has the state machine.
    pub(super) fn go_on<M: StateMachine>(&mut self, config: &Config<M>, shared: &Shared<M>) {
        if !self.due {
            return;
        }
        let moved = match shared.try_machine().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.move_cold(self.credit),
            None => return,
        };
        (self.credit, self.due) = (0, false);
        if let Err(error) = moved {
            let group = config.identity.group;
            tracing::error!(%group, error = error.chain(), "a segment could not be moved to the cold directory");
            self.not_before = config.site.clock.now() + RETRY_DELAY;
        }
    }
}
