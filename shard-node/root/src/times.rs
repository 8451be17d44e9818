//! The index of times: about which version was the newest at a time.
//!
//! The newest version at a time is a step function of the time. Lines approximate the function
//! within [`ERROR_MAX`] versions: a greedy walk extends each line while some slope fits all points
//! (a shrinking cone). [`newest_at`] then finds the exact version by reading few headers. A lost,
//! partial or wrong index costs time only, because the answer does not depend on it.
//!
//! The index is derived from headers and no part of the saved state. After a start, a snapshot or a
//! rollback it catches up, a bundle of headers with each command.

use coppice_types::Version;

/// Largest distance between a line and the version that it stands for.
pub(crate) const ERROR_MAX: u64 = 64;
/// Limit on the number of lines, of 24 bytes each. Behind them, versions are searched without the
/// index.
const SEGMENTS_MAX: usize = 1 << 18;
/// Binary digits of a slope behind the point. One version a minute is 2^-16 versions a millisecond,
/// so 16 digits would be too few.
const FRACTION_BITS: u32 = 32;

/// A line, from its first point on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    time_ms: u64,
    version: u64,
    /// Versions per millisecond, times 2^[`FRACTION_BITS`].
    slope: u64,
}

/// The growing line: all slopes from `low` to `high` fit its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cone {
    time_ms: u64,
    version: u64,
    low: u64,
    high: u64,
}

/// The index. It covers the versions below `next`.
#[derive(Debug, Default)]
pub(crate) struct Times {
    segments: Vec<Segment>,
    cone: Option<Cone>,
    next: u64,
    /// Time and version of the newest version covered. More versions of that time may follow.
    last: Option<(u64, u64)>,
}

/// Bytes of the index of versions with these times, which never fall, with its growing line.
#[must_use]
pub fn time_index_bytes(times_ms: impl IntoIterator<Item = u64>) -> usize {
    let mut times = Times::default();
    times_ms.into_iter().for_each(|time_ms| times.push(time_ms));
    times.bytes() + times.cone.map_or(0, |_| size_of::<Segment>())
}

impl Segment {
    fn at(&self, time_ms: u64) -> u64 {
        let rise = (u128::from(self.slope) * u128::from(time_ms - self.time_ms)) >> FRACTION_BITS;
        self.version.saturating_add(u64::try_from(rise).unwrap_or(u64::MAX))
    }
}

impl Cone {
    fn new(time_ms: u64, version: u64) -> Self {
        Self { time_ms, version, low: 0, high: u64::MAX }
    }

    /// The cone of all points so far and this later one; `None` if no slope fits them.
    fn with(self, time_ms: u64, version: u64) -> Option<Self> {
        // A rounded slope is at most one version too low.
        let error = ERROR_MAX - 1;
        let run = u128::from(time_ms - self.time_ms);
        let rise = version - self.version;
        let scaled = |versions: u64| u128::from(versions) << FRACTION_BITS;
        let low = u64::try_from(scaled(rise.saturating_sub(error)).div_ceil(run)).ok()?.max(self.low);
        let high = u64::try_from(scaled(rise.saturating_add(error)) / run).unwrap_or(u64::MAX).min(self.high);
        (low <= high).then_some(Self { low, high, ..self })
    }

    fn segment(self) -> Segment {
        // A cone of one point fits every slope.
        let slope = if self.high == u64::MAX { self.low } else { self.low + (self.high - self.low) / 2 };
        Segment { time_ms: self.time_ms, version: self.version, slope }
    }
}

impl Times {
    /// The first version that is not covered.
    pub(crate) fn next(&self) -> Version {
        Version(self.next)
    }

    /// Whether the index has no room for more lines.
    pub(crate) fn is_full(&self) -> bool {
        self.segments.len() >= SEGMENTS_MAX
    }

    /// Covers the next version, whose header has this time.
    pub(crate) fn push(&mut self, time_ms: u64) {
        let version = self.next;
        if let Some((before_ms, before)) = self.last.filter(|(before_ms, _)| *before_ms < time_ms) {
            self.point(before_ms, before);
            // The step function stays at that version until right before the next one.
            if time_ms - before_ms > 1 {
                self.point(time_ms - 1, before);
            }
        }
        self.last = Some((time_ms, version));
        self.next += 1;
    }

    fn point(&mut self, time_ms: u64, version: u64) {
        let Some(cone) = self.cone else {
            self.cone = Some(Cone::new(time_ms, version));
            return;
        };
        self.cone = cone.with(time_ms, version).or_else(|| {
            self.segments.push(cone.segment());
            Some(Cone::new(time_ms, version))
        });
    }

    /// Forgets the versions above `head`, after a rollback. If any was covered, `head` is to be
    /// pushed again: versions of its time may be gone.
    pub(crate) fn truncate(&mut self, head: Version) {
        if self.next <= head.0 + 1 {
            return;
        }
        self.segments.extend(self.cone.take().map(Cone::segment));
        let kept = self.segments.partition_point(|segment| segment.version < head.0);
        self.segments.truncate(kept);
        self.next = head.0;
        self.last = None;
    }

    /// About which version was the newest at a time; `None` if no version up to then is covered.
    pub(crate) fn guess(&self, time_ms: u64) -> Option<u64> {
        if let Some((_, version)) = self.last.filter(|(last_ms, _)| *last_ms <= time_ms) {
            return Some(version);
        }
        let open = self.cone.filter(|cone| cone.time_ms <= time_ms).map(Cone::segment);
        if let Some(segment) = open {
            return Some(segment.at(time_ms).min(self.next.saturating_sub(1)));
        }
        let after = self.segments.partition_point(|segment| segment.time_ms <= time_ms);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        // Between its last point and the next line, a line may rise too far.
        let begins = self.segments.get(after).map(|next| next.version).or(self.cone.map(|cone| cone.version));
        Some(segment.at(time_ms).min(begins.unwrap_or(self.next)))
    }

    fn bytes(&self) -> usize {
        self.segments.len() * size_of::<Segment>()
    }
}

/// The newest of the versions 0 to `head` that is not later than a time. Version 0 must not be
/// later. Reads the times of few versions if the guess is good, and of at most some 4 ·
/// log2(`head`) if not.
pub(crate) fn newest_at<E>(
    time_ms: u64,
    head: u64,
    guess: Option<u64>,
    mut time_of: impl FnMut(u64) -> Result<u64, E>,
) -> Result<u64, E> {
    // Version `low` is not later than the time, and `high` is later or above head.
    let (mut low, mut high) = (0, head + 1);
    if let Some(guess) = guess {
        let (mut below, mut above, mut step) = (guess.min(head), guess.min(head), ERROR_MAX + 1);
        loop {
            below = below.saturating_sub(step);
            if below == 0 || time_of(below)? <= time_ms {
                low = below;
                break;
            }
            (high, step) = (below, step.saturating_mul(2));
        }
        while high > head {
            above = above.saturating_add(step);
            if above > head {
                break;
            }
            if time_of(above)? > time_ms {
                high = above;
            } else {
                (low, step) = (above, step.saturating_mul(2));
            }
        }
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if time_of(middle)? <= time_ms {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn index(times: &[u64]) -> Times {
        let mut index = Times::default();
        times.iter().for_each(|time_ms| index.push(*time_ms));
        index
    }

    fn naive(times: &[u64], time_ms: u64) -> u64 {
        times.partition_point(|time| *time <= time_ms) as u64 - 1
    }

    /// Compares every answer with a naive search. Returns the number of headers read for the worst.
    fn check(times: &[u64], index: &Times, asked: impl Iterator<Item = u64>) -> usize {
        let mut worst = 0;
        for time_ms in asked {
            let (expected, guess) = (naive(times, time_ms), index.guess(time_ms));
            if index.next == times.len() as u64 {
                let guess = guess.expect("all versions are covered");
                assert!(guess.abs_diff(expected) <= ERROR_MAX, "{guess} for {expected} at {time_ms}");
            }
            let mut reads = 0;
            let time_of = |version: u64| {
                reads += 1;
                Ok::<_, Infallible>(times[version as usize])
            };
            let Ok(found) = newest_at(time_ms, times.len() as u64 - 1, guess, time_of);
            assert_eq!(found, expected, "at {time_ms}");
            worst = worst.max(reads);
        }
        worst
    }

    /// Steps between headers: ties, a regular beat, and pauses up to years.
    fn clocks() -> impl Strategy<Value = Vec<u64>> {
        let run = prop_oneof![
            (Just(0_u64..1), 1..300_usize),
            (Just(95..105), 1..300_usize),
            (Just(0..3), 1..300_usize),
            (Just(0..1 << 36), 1..4_usize),
        ];
        let steps = run.prop_flat_map(|(range, count)| prop::collection::vec(range, count));
        prop::collection::vec(steps, 1..8).prop_map(|runs| {
            let mut now = 1_700_000_000_000;
            let tick = |step: u64| {
                now += step;
                now
            };
            runs.into_iter().flatten().map(tick).collect()
        })
    }

    proptest! {
        #[test]
        fn the_index_and_the_search_agree_with_a_naive_search(
            times in clocks(), to in 0.0..1.0, more in clocks(), probe in any::<prop::sample::Index>(),
        ) {
            let mut times = times;
            let mut index = index(&times);
            let around = |at: &u64, first: u64| [*at, at + 1, (at - 1).max(first)];
            let asked = |times: &[u64]| times.iter().flat_map(|at| around(at, times[0])).collect::<Vec<_>>();
            check(&times, &index, asked(&times).into_iter());
            // A rollback, half a catch-up, and the rest of it.
            let head = (times.len() as f64 * to) as usize;
            index.truncate(Version(head as u64));
            times.truncate(head + 1);
            let late = *times.last().expect("genesis stays");
            times.extend(more.iter().map(|at| at - more[0] + late));
            let half = probe.index(times.len()).max(index.next as usize);
            while (index.next as usize) < half {
                index.push(times[index.next as usize]);
            }
            check(&times, &index, asked(&times).into_iter());
            while (index.next as usize) < times.len() {
                index.push(times[index.next as usize]);
            }
            check(&times, &index, asked(&times).into_iter());
        }
    }

    #[test]
    fn a_wrong_guess_costs_reads_and_no_answer() {
        let times: Vec<u64> = (0..5000).map(|version| version / 3 * 10).collect();
        for guess in [None, Some(0), Some(4999), Some(2500), Some(u64::MAX)] {
            for time_ms in (0..16_700).step_by(7) {
                let mut reads = 0;
                let time_of = |version: u64| {
                    reads += 1;
                    Ok::<_, Infallible>(times[version as usize])
                };
                let Ok(found) = newest_at(time_ms, 4999, guess, time_of);
                assert_eq!(found, naive(&times, time_ms));
                assert!(reads <= 4 * 13, "{reads} reads");
            }
        }
    }

    /// Returns the ms between a version and the next one. The second argument draws a random number
    /// below its argument.
    type Step = dyn FnMut(u64, &mut dyn FnMut(u64) -> u64) -> u64;

    /// Memory of a million versions, by the clock: regular with jitter, bursts with pauses, a clock
    /// that stands still for long, and one version a minute.
    #[test]
    fn memory_is_far_below_the_headers_on_any_clock() {
        let mut random = 1_u64;
        let mut draw = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut clock = |mut step: Box<Step>| -> Vec<u64> {
            let mut now = 1_700_000_000_000;
            let tick = |version| {
                now += step(version, &mut draw);
                now
            };
            (0..1_000_000).map(tick).collect()
        };
        let clocks = [
            ("regular", clock(Box::new(|_, draw| 95 + draw(11))), 2_400),
            ("bursty", clock(Box::new(|at, draw| if at % 1000 == 0 { draw(600_000) } else { draw(3) })), 96_000),
            ("stalled", clock(Box::new(|at, draw| if at % 5000 == 0 { 3_600_000 } else { draw(20) / 19 })), 48_000),
            ("slow", clock(Box::new(|_, draw| 59_000 + draw(2000))), 2_400),
        ];
        for (name, times, bytes_max) in clocks {
            let index = index(&times);
            let asked = times.iter().step_by(997).flat_map(|at| [*at, at + 1]);
            let reads = check(&times, &index, asked);
            println!("{name}: {} segments, {} bytes, at most {reads} reads", index.segments.len(), index.bytes());
            assert!(index.bytes() <= bytes_max, "{name}: {} bytes", index.bytes());
            assert!(reads <= 10, "{name}: {reads} reads");
        }
    }
}
