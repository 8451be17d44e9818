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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{
        config::Bootstrap,
        tests::{Parts, Rig, full},
    };

    /// A replica with old data to move, at this many bytes in a tick.
    fn scene(bytes_per_tick: u64) -> (Rig, Parts) {
        let tune = |tuning: &mut crate::Tuning| {
            tuning.tick = Duration::from_millis(100);
            tuning.cold_bytes_per_s = 10 * bytes_per_tick;
        };
        let rig = Rig::tuned(Bootstrap::Join, tune);
        let parts = rig.parts(1);
        rig.script.acts().cold_due = true;
        (rig, parts)
    }

    /// The bytes that are moved in each of some ticks.
    fn moved(cold: &mut Cold, (rig, parts): &(Rig, Parts), ticks: u32) -> Vec<String> {
        for _ in 0..ticks {
            cold.grant(&rig.config, &parts.shared);
            cold.go_on(&rig.config, &parts.shared);
        }
        rig.script.take_calls()
    }

    #[tokio::test]
    async fn shares_add_up_to_a_worthwhile_part_and_are_not_saved_beyond_it() {
        let scene = scene(PART_BYTES_MIN / 4);
        let mut cold = Cold::default();
        assert_eq!(moved(&mut cold, &scene, 3), Vec::<String>::new());
        assert_eq!(moved(&mut cold, &scene, 5), ["move_cold 1048576", "move_cold 1048576"]);
        scene.0.script.acts().cold_due = false;
        assert_eq!(moved(&mut cold, &scene, 50), Vec::<String>::new());
        scene.0.script.acts().cold_due = true;
        assert_eq!(moved(&mut cold, &scene, 1), ["move_cold 1048576"], "idle ticks were not saved up");
    }

    #[tokio::test]
    async fn a_share_that_is_larger_than_a_part_is_moved_at_every_tick() {
        assert_eq!(moved(&mut Cold::default(), &scene(3 << 20), 2), ["move_cold 3145728", "move_cold 3145728"]);
        assert_eq!(moved(&mut Cold::default(), &scene(0), 2), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_reader_delays_a_move_and_takes_nothing_of_its_share() {
        let scene = scene(PART_BYTES_MIN);
        let mut cold = Cold::default();
        let reader = scene.1.shared.read_machine();
        assert_eq!(moved(&mut cold, &scene, 3), Vec::<String>::new());
        drop(reader);
        cold.go_on(&scene.0.config, &scene.1.shared);
        assert_eq!(scene.0.script.take_calls(), ["move_cold 1048576"]);
        cold.go_on(&scene.0.config, &scene.1.shared);
        assert_eq!(scene.0.script.take_calls(), Vec::<String>::new(), "one grant is one move");
    }

    #[tokio::test]
    async fn a_failed_move_is_tried_again_after_a_pause() {
        let scene = scene(PART_BYTES_MIN);
        let mut cold = Cold::default();
        scene.0.script.fail("move_cold", full());
        assert_eq!(moved(&mut cold, &scene, 2).len(), 1);
        scene.0.clock.advance(RETRY_DELAY - Duration::from_millis(1));
        assert_eq!(moved(&mut cold, &scene, 2), Vec::<String>::new());
        scene.0.clock.advance(Duration::from_millis(1));
        assert_eq!(moved(&mut cold, &scene, 2).len(), 2);
    }
}
