//! The index from times to blocks: lines, a hash table, and the root group's own index.
//!
//! Bytes are exact: those of the structures that the code holds. Times of a lookup are measured on
//! this machine.

use std::{collections::HashMap, hint::black_box};

use coppice_env::{Clock, Rng, SimRng};

/// A line: blocks near `block + (time - time_ms) * slope`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    time_ms: u64,
    block: u32,
    slope: f64,
}

/// Lines that miss no block by more than a bound, made by a shrinking cone as in the paper.
#[derive(Debug)]
pub struct Lines {
    lines: Vec<Line>,
    error_max: u32,
}

impl Lines {
    #[must_use]
    pub fn new(times: &[u64], error_max: u32) -> Self {
        let error = f64::from(error_max);
        let mut lines = Vec::new();
        let mut first = 0;
        while first < times.len() {
            let (mut low, mut high) = (0.0_f64, f64::INFINITY);
            let mut next = first + 1;
            while next < times.len() {
                let (run, rise) = ((times[next] - times[first]) as f64, (next - first) as f64);
                let (below, above) = (low.max((rise - error) / run), high.min((rise + error) / run));
                if below > above {
                    break;
                }
                (low, high) = (below, above);
                next += 1;
            }
            let slope = if high.is_finite() { f64::midpoint(low, high) } else { low };
            lines.push(Line { time_ms: times[first], block: first as u32, slope });
            first = next;
        }
        Self { lines, error_max }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// The newest block at a time. The times of blocks near the line decide.
    #[must_use]
    pub fn find(&self, times: &[u64], time_ms: u64) -> Option<u32> {
        let number = self.lines.partition_point(|line| line.time_ms <= time_ms).checked_sub(1)?;
        let line = self.lines[number];
        let guess = f64::from(line.block) + (time_ms - line.time_ms) as f64 * line.slope;
        let last = self.lines.get(number + 1).map_or(times.len() as u32, |next| next.block) - 1;
        // A time between two blocks lies above the older one's point.
        let reach = self.error_max + 2;
        let low = (guess as u32).saturating_sub(reach).clamp(line.block, last);
        let high = (guess as u32).saturating_add(reach).clamp(line.block, last);
        let near = &times[low as usize..=high as usize];
        match near.partition_point(|time| *time <= time_ms) as u32 {
            0 => Some(times[..low as usize].partition_point(|time| *time <= time_ms) as u32 - 1),
            // All are older: the block lies behind a gap that the line does not follow.
            found if found as usize == near.len() && high < last => {
                let rest = &times[high as usize..=last as usize];
                Some(high + rest.partition_point(|time| *time <= time_ms) as u32 - 1)
            }
            found => Some(low + found - 1),
        }
    }
}

/// A hash table from times to blocks.
#[must_use]
pub fn table(times: &[u64]) -> HashMap<u64, u32> {
    times.iter().zip(0..).map(|(time, block)| (*time, block)).collect()
}

/// Bytes of a hash table of the standard library: slots of 16 bytes with a byte of control each,
/// and 16 more of these.
#[must_use]
pub fn table_bytes(table: &HashMap<u64, u32>) -> usize {
    let slots = (table.capacity() * 8).div_ceil(7).next_power_of_two();
    slots * (size_of::<(u64, u32)>() + 1) + 16
}

/// Nanoseconds of one lookup by lines, and by the hash table, on this machine.
#[must_use]
pub fn lookup_ns(times: &[u64], lookups: usize, clock: &dyn Clock) -> (f64, f64) {
    let (lines, table) = (Lines::new(times, 1), table(times));
    let mut rng = SimRng::new(9);
    let asked: Vec<u64> = (0..lookups).map(|_| times[rng.below(times.len() as u64) as usize]).collect();
    let time = |find: &dyn Fn(u64) -> Option<u32>| {
        let start = clock.now();
        for time in &asked {
            let _: Option<u32> = black_box(find(*time));
        }
        (clock.now() - start).as_secs_f64() * 1e9 / lookups as f64
    };
    (time(&|at| lines.find(times, at)), time(&|at| table.get(&at).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::shapes;

    #[test]
    fn lines_find_what_the_table_finds_and_the_newest_block_before_any_time() {
        for shape in shapes() {
            let times = shape.times(5);
            let table = table(&times);
            for error_max in [1, 4, 32] {
                let lines = Lines::new(&times, error_max);
                for (block, time) in times.iter().enumerate().step_by(7) {
                    assert_eq!(lines.find(&times, *time), table.get(time).copied(), "{}", shape.name);
                    let after = times.partition_point(|other| *other <= time + 3) as u32 - 1;
                    assert_eq!(lines.find(&times, time + 3), Some(after), "{} block {block}", shape.name);
                }
                assert_eq!(lines.find(&times, times[0] - 1), None);
            }
            assert!(table_bytes(&table) > times.len() * 16);
        }
    }

    #[test]
    fn lines_take_less_than_a_table_and_fewer_with_a_larger_error_where_blocks_come_unevenly() {
        let [eth, bitcoin, check_ins] = shapes().map(|shape| shape.times(5));
        assert_eq!(Lines::new(&check_ins, 1).len(), 1, "even times are one line");
        let lengths = [1, 2, 4, 8, 16, 32].map(|error| Lines::new(&bitcoin, error).len());
        assert!(lengths.is_sorted_by(|a, b| a > b) && lengths[0] > 1000, "{lengths:?}");
        for (times, factor) in [(&eth, 100), (&bitcoin, 3), (&check_ins, 1000)] {
            assert!(Lines::new(times, 1).bytes() * factor < table_bytes(&table(times)));
        }
    }
}
