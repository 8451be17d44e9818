//! How long batches are gathered before the next version is formed.
//!
//! A version costs the same for few batches as for many, and the clients of one that is being
//! decided will soon send their next batches.

use std::time::Duration;

use tokio::time::Instant;

/// How long batches are gathered for a version while the one before is being decided.
const TIME: Duration = Duration::from_millis(1);
/// Batches are gathered only if the previous version has at least this many, so that a few clients
/// that wait for each other's versions never wait longer.
const BATCHES_MIN: usize = 4;
/// Bytes of waiting batches that make a version worth its cost.
const BYTES: u64 = 256 << 10;

/// The gathering for the next version.
#[derive(Debug, Default)]
pub(super) struct Gather {
    until: Option<Instant>,
}

impl Gather {
    /// The time until which more batches are waited for. `None` if none waits, since their clients
    /// may have gone, or if the next version is to be formed now.
    pub(super) fn until(
        &mut self,
        now: Instant,
        in_flight: usize,
        waiting: usize,
        bytes: impl FnOnce() -> u64,
    ) -> Option<Instant> {
        if waiting == 0 || in_flight < BATCHES_MIN || bytes() >= BYTES {
            self.until = None;
            return None;
        }
        let until = *self.until.get_or_insert(now + TIME);
        if until <= now {
            self.until = None;
        }
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_gathered_for_a_while_unless_there_are_enough_or_few() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        let end = now + TIME;
        assert_eq!(gather.until(now, 4, 1, || 1), Some(end));
        assert_eq!(gather.until(now + TIME / 2, 4, 2, || 2), Some(end), "the time does not begin again");
        assert_eq!(gather.until(end, 4, 2, || 2), None);
        assert_eq!(gather.until(end, 4, 1, || 1), Some(end + TIME), "this is for the next version");
        assert_eq!(gather.until(end, 4, 1, || BYTES), None);
        assert_eq!(gather.until(end, 3, 1, || 1), None);
    }

    #[test]
    fn batches_whose_clients_have_gone_leave_no_time_behind() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        assert_eq!(gather.until(now, 4, 1, || 1), Some(now + TIME));
        let later = now + 3 * TIME;
        assert_eq!(gather.until(later, 4, 0, || 0), None, "a time that has passed would wake the task for ever");
        assert_eq!(gather.until(later, 4, 1, || 1), Some(later + TIME));
    }
}
