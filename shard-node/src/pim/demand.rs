//! Whether queries come so fast that a batch of them is worth a launch.
//!
//! A lonely query would wait for a batch in vain. So queries are counted in windows as long as a
//! batch collects, and a query is taken only if its window or the one before reaches the break-even
//! point.

use std::time::Duration;

/// Counts queries in windows of time.
#[derive(Debug)]
pub struct Demand {
    window: Duration,
    /// Start of the present window.
    start: Duration,
    present: u64,
    /// Queries of the window before.
    last: u64,
}

impl Demand {
    pub fn new(window: Duration) -> Self {
        Self { window, start: Duration::ZERO, present: 0, last: 0 }
    }

    /// Counts queries that come at a time of a clock that never goes back. Returns whether enough
    /// come for batches of at least `least`.
    pub fn note(&mut self, queries: u64, least: u64, now: Duration) -> bool {
        let age = now.saturating_sub(self.start);
        if age >= self.window {
            // A window without queries has passed if the present one is older than two.
            self.last = if age < self.window * 2 { self.present } else { 0 };
            (self.start, self.present) = (now, 0);
        }
        self.present += queries;
        self.present.max(self.last) >= least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_taken_from_the_break_even_point_on_and_until_a_window_is_quiet() {
        let ms = Duration::from_millis;
        let mut demand = Demand::new(ms(2));
        assert!(!demand.note(1, 3, ms(10)) && !demand.note(1, 3, ms(11)));
        assert!(demand.note(1, 3, ms(11)), "the third one of the window");
        assert!(demand.note(1, 3, ms(13)), "the window before had enough");
        assert!(!demand.note(1, 3, ms(15)), "it has not any more");
        assert!(demand.note(2, 3, ms(15)));
        assert!(!demand.note(1, 3, ms(19)), "a whole window was quiet");
        assert!(demand.note(1, 1, ms(90)), "a single query is enough");
        assert!(!demand.note(1, u64::MAX, ms(90)), "no number is enough");
    }
}
