//! The pauses between attempts: each is twice the previous one, up to a maximum.
//!
//! A `Backoff` only computes. It has no clock, no randomness and no deadline of its own. The loop
//! that holds it checks its deadline, spreads the pause if many callers might fail at once,
//! and sleeps:
//!
//! ```
//! # use core::time::Duration;
//! # use coppice_types::Backoff;
//! let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
//! let pauses: Vec<u128> = (0..6).map(|_| backoff.next_pause().as_millis()).collect();
//! assert_eq!(pauses, [20, 40, 80, 160, 320, 500]);
//! ```

use core::time::Duration;

/// A pause that doubles from attempt to attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Starts with the pause `first`, and never exceeds `max`.
    ///
    /// # Panics
    /// If `first` is zero, so that the pause could never grow, or longer than `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        assert!(!first.is_zero(), "a pause of zero stays zero when it is doubled");
        assert!(first.as_nanos() <= max.as_nanos(), "the first pause is not longer than the largest");
        Self { first, next: first, max }
    }

    /// Returns the pause before the next attempt, and doubles the one that follows it.
    #[must_use]
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    /// Starts over with the first pause, because an attempt succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_pause_doubles_up_to_the_largest() {
        let mut backoff = Backoff::new(ms(5), ms(35));
        assert_eq!([(); 6].map(|()| backoff.next_pause()), [5, 10, 20, 35, 35, 35].map(ms));
    }

    #[test]
    fn a_success_starts_the_pauses_over() {
        let mut backoff = Backoff::new(ms(50), ms(1000));
        assert_eq!([(); 3].map(|()| backoff.next_pause()), [50, 100, 200].map(ms));
        backoff.reset();
        assert_eq!(backoff, Backoff::new(ms(50), ms(1000)));
        assert_eq!([(); 2].map(|()| backoff.next_pause()), [50, 100].map(ms));
    }

    #[test]
    fn a_constant_pause_stays_and_the_longest_does_not_overflow() {
        let mut constant = Backoff::new(ms(10), ms(10));
        assert_eq!([(); 3].map(|()| constant.next_pause()), [ms(10); 3]);
        let mut longest = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([(); 2].map(|()| longest.next_pause()), [Duration::MAX; 2]);
    }
}
