//! Records, batches and keys to read. Everything follows from a seed, so all systems see the same
//! data.

use coppice_env::{Rng, SimRng};
use coppice_verify::hash::sha256;

/// Bytes of a key: NOMT supports no other length.
pub const KEY_BYTES: usize = 32;
/// Random bytes that values are cut from.
const POOL_BYTES: usize = 16 << 20;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// 32 evenly distributed bytes.
    pub key: Vec<u8>,
    /// Bytes that don't compress.
    pub value: Vec<u8>,
}

/// The key of a number: its hash, so that consecutive numbers lie far apart.
#[must_use]
pub fn key(number: u64) -> Vec<u8> {
    sha256(&number.to_le_bytes()).0.to_vec()
}

/// Draws numbers below a bound, evenly or by Zipf's law: number `n` has the weight `(n + 1) ^
/// -skew`.
#[derive(Clone, Debug)]
pub struct Draw {
    bound: u64,
    skew: f64,
    /// The sum of all weights.
    total: f64,
}

impl Draw {
    /// A source of numbers below `bound`.
    ///
    /// # Panics
    /// If `bound` is zero, or `skew` is not in `0.0..1.0`.
    #[must_use]
    pub fn new(bound: u64, skew: f64) -> Self {
        assert!(bound > 0, "nothing is below zero");
        assert!((0.0..1.0).contains(&skew), "a skew of 0 is even, and 1 is out of reach");
        let total = if skew == 0.0 { 0.0 } else { (1..=bound).map(|n| (n as f64).powf(-skew)).sum() };
        Self { bound, skew, total }
    }

    /// Draws a number by Gray's method, as YCSB does: exact for the first two numbers, and
    /// approximate for the others.
    pub fn next(&self, rng: &mut SimRng) -> u64 {
        if self.skew == 0.0 {
            return rng.below(self.bound);
        }
        let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let second = 1.0 + 0.5_f64.powf(self.skew);
        let scaled = uniform * self.total;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < second {
            return 1.min(self.bound - 1);
        }
        let (bound, alpha) = (self.bound as f64, 1.0 / (1.0 - self.skew));
        let eta = (1.0 - (2.0 / bound).powf(1.0 - self.skew)) / (1.0 - second / self.total);
        let number = bound * (eta * uniform - eta + 1.0).powf(alpha);
        (number as u64).min(self.bound - 1)
    }
}

/// Makes the records of a run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Numbers below this have records after the load.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    draw: Draw,
    rng: SimRng,
    pool: Vec<u8>,
}

impl Workload {
    /// A run over `records` records.
    ///
    /// # Panics
    /// If a value is longer than 1 MiB.
    #[must_use]
    pub fn new(records: u64, value_bytes: usize, skew: f64, seed: u64) -> Self {
        assert!(value_bytes <= 1 << 20, "values are cut from a pool");
        let mut rng = SimRng::new(seed);
        let mut pool = vec![0; POOL_BYTES];
        rng.fill(&mut pool);
        Self { records, value_bytes, draw: Draw::new(records, skew), rng, pool }
    }

    /// Makes a record with a fresh value.
    pub fn record(&mut self, number: u64) -> Record {
        let from = self.rng.below((POOL_BYTES - self.value_bytes) as u64) as usize;
        Record { key: key(number), value: self.pool[from..from + self.value_bytes].to_vec() }
    }

    /// The numbers of all records, in the order of their keys or shuffled.
    #[must_use]
    pub fn order(&self, sorted: bool) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..self.records).collect();
        if sorted {
            numbers.sort_by_cached_key(|number| sha256(&number.to_le_bytes()).0);
        }
        numbers
    }

    /// A batch of these records.
    pub fn batch(&mut self, numbers: &[u64]) -> Vec<Record> {
        numbers.iter().map(|number| self.record(*number)).collect()
    }

    /// A batch that updates random records, each at most once.
    ///
    /// # Panics
    /// If there are fewer than `count` records.
    pub fn updates(&mut self, count: usize) -> Vec<Record> {
        assert!(count as u64 <= self.records, "a batch updates no record twice");
        let mut numbers = std::collections::BTreeSet::new();
        while numbers.len() < count {
            numbers.insert(self.draw.next(&mut self.rng));
        }
        // The batch is unsorted: a store that needs sorted keys has to sort them.
        let mut numbers: Vec<u64> = numbers.into_iter().collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        self.batch(&numbers)
    }

    /// Random keys to read.
    pub fn keys(&mut self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| key(self.draw.next(&mut self.rng))).collect()
    }

    /// Keys that have no record.
    pub fn absent_keys(&mut self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| key(self.records + self.rng.below(u64::MAX - self.records))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_records() {
        let run = |seed| Workload::new(100, 50, 0.9, seed).updates(20);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_sorted_order_has_all_records_by_ascending_keys() {
        let workload = Workload::new(500, 8, 0.0, 1);
        let order = workload.order(true);
        assert!(order.is_sorted_by(|a, b| key(*a) < key(*b)));
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>().len(), 500);
        assert!(!workload.order(false).is_sorted_by(|a, b| key(*a) < key(*b)));
    }

    #[test]
    fn updates_change_distinct_records_in_no_order() {
        let mut workload = Workload::new(64, 8, 0.99, 1);
        let all: BTreeSet<Vec<u8>> = (0..64).map(key).collect();
        let batch = workload.updates(64);
        assert_eq!(batch.iter().map(|record| record.key.clone()).collect::<BTreeSet<_>>(), all);
        assert!(!batch.is_sorted_by(|a, b| a.key < b.key));
    }

    #[test]
    fn absent_keys_have_no_record() {
        let mut workload = Workload::new(1000, 8, 0.0, 1);
        let all: BTreeSet<Vec<u8>> = (0..1000).map(key).collect();
        assert!(workload.absent_keys(1000).iter().all(|key| !all.contains(key)));
    }

    #[test]
    fn draws_follow_their_law() {
        let shares = |skew: f64| {
            let (draw, mut rng, mut counts) = (Draw::new(1000, skew), SimRng::new(3), vec![0_u32; 1000]);
            (0..200_000).for_each(|_| counts[draw.next(&mut rng) as usize] += 1);
            counts.into_iter().map(|count| f64::from(count) / 200_000.0).collect::<Vec<f64>>()
        };
        let even = shares(0.0);
        assert!(even.iter().all(|share| (0.0005..0.0015).contains(share)));
        let skewed = shares(0.99);
        let total: f64 = (1..=1000).map(|n| f64::from(n).powf(-0.99)).sum();
        for number in [0_u32, 1] {
            let expected = f64::from(number + 1).powf(-0.99) / total;
            assert!((skewed[number as usize] / expected - 1.0).abs() < 0.05, "{number}: {}", skewed[number as usize]);
        }
        let half: f64 = skewed[..32].iter().sum();
        let expected: f64 = (1..=32).map(|n| f64::from(n).powf(-0.99)).sum::<f64>() / total;
        assert!((half / expected - 1.0).abs() < 0.1, "{half} of {expected}");
    }

    #[test]
    fn a_single_record_is_drawn_by_every_law() {
        let mut rng = SimRng::new(1);
        assert_eq!(Draw::new(1, 0.5).next(&mut rng), 0);
        assert_eq!(Draw::new(1, 0.0).next(&mut rng), 0);
    }
}
