//! Times of the parts of one step of a loop, for the log row of a step that took long.
//!
//! A loop that others wait for should never be busy for long. One row a long step says which part
//! it was, which sums and histograms cannot.

use std::{fmt::Write as _, time::Duration};

/// A step longer than this is worth a row.
const LONG: Duration = Duration::from_millis(3);

/// A stopwatch over the parts of one step.
#[derive(Clone, Debug)]
pub struct Laps {
    began: Duration,
    at: Duration,
    parts: Vec<(&'static str, Duration)>,
}

impl Laps {
    /// The target of the rows, for a log's filter: `coppice::steps=debug`.
    pub const TARGET: &'static str = "coppice::steps";

    /// A step that begins now.
    #[must_use]
    pub fn begin(now: Duration) -> Self {
        Self { began: now, at: now, parts: Vec::new() }
    }

    /// Starts over with the next step.
    pub fn restart(&mut self, now: Duration) {
        (self.began, self.at) = (now, now);
        self.parts.clear();
    }

    /// Ends a part. Parts of the same name are summed.
    pub fn lap(&mut self, part: &'static str, now: Duration) {
        let took = now.saturating_sub(self.at);
        self.at = now;
        match self.parts.iter_mut().find(|(name, _)| *name == part) {
            Some((_, sum)) => *sum += took,
            None => self.parts.push((part, took)),
        }
    }

    /// The parts in ms, in the order in which they first ended, without those below 0.1 ms; `None`
    /// if the step was short.
    #[must_use]
    pub fn long(&self, now: Duration) -> Option<String> {
        let took = now.saturating_sub(self.began);
        if took < LONG {
            return None;
        }
        let mut row = format!("{:.1} ms:", took.as_secs_f64() * 1e3);
        for (part, took) in self.parts.iter().filter(|(_, took)| took.as_micros() >= 100) {
            let _ = write!(row, " {part} {:.1}", took.as_secs_f64() * 1e3);
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_lists_its_parts_and_a_short_one_is_not_told() {
        let ms = Duration::from_millis;
        let mut laps = Laps::begin(ms(10));
        laps.lap("log", ms(12));
        assert_eq!(laps.long(ms(12)), None, "2 ms are short");
        laps.lap("apply", ms(12));
        laps.lap("log", ms(15));
        assert_eq!(laps.long(ms(15)).as_deref(), Some("5.0 ms: log 5.0"), "a part of no length is left out");
        laps.restart(ms(20));
        assert_eq!(laps.long(ms(22)), None, "the next step begins with no time");
        laps.lap("flush", ms(30));
        assert_eq!(laps.long(ms(30)).as_deref(), Some("10.0 ms: flush 10.0"));
    }
}
