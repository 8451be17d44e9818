//! Ledgers in the shapes of the paper's three data sets, made from a seed, and queries to them.

use coppice_env::{Rng, SimRng};

/// Keywords that are asked for, as in the paper.
pub const KEYWORDS: usize = 10_000;
/// Objects of each keyword that single queries ask for. The paper does not say how many.
const OCCURRENCES: usize = 8;
/// Most blocks of a multi-query, as in the paper; the fewest are two.
const BLOCKS_MAX: u32 = 128;

/// A data set.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub blocks: u32,
    /// Records of a block: the fewest and the most, evenly distributed.
    pub records: (u32, u32),
    pub clock: Clock,
}

/// Times between blocks.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Slots of 12 s, two in a thousand of which stay empty.
    Slots,
    /// Exponential with this mean, in milliseconds.
    Exponential(f64),
    /// Each as long, in milliseconds.
    Even(u64),
}

/// The data sets of the paper. Numbers of blocks and records are the paper's, but for the number of
/// check-ins in a block of 4SQ, which it does not give.
#[must_use]
pub fn shapes() -> [Shape; 3] {
    [
        Shape { name: "ETH", blocks: 72_000, records: (78, 200), clock: Clock::Slots },
        Shape { name: "Bitcoin", blocks: 13_393, records: (2285, 4285), clock: Clock::Exponential(587_000.0) },
        Shape { name: "4SQ", blocks: 100_000, records: (1, 19), clock: Clock::Even(30_000) },
    ]
}

impl Shape {
    /// Records of an average block.
    #[must_use]
    pub fn mean_records(&self) -> u32 {
        u32::midpoint(self.records.0, self.records.1)
    }

    /// The times of all blocks, in milliseconds.
    #[must_use]
    pub fn times(&self, seed: u64) -> Vec<u64> {
        let mut rng = SimRng::new(seed);
        let mut now = 1_700_000_000_000;
        let mut next = || {
            now += match self.clock {
                Clock::Slots => 12_000 * (1 + u64::from(rng.chance(2))),
                Clock::Exponential(mean) => (-mean * (1.0 - unit(&mut rng)).ln()) as u64 + 1,
                Clock::Even(time) => time,
            };
            now
        };
        (0..self.blocks).map(|_| next()).collect()
    }

    /// The records of all blocks.
    #[must_use]
    pub fn block_records(&self, seed: u64) -> Vec<u32> {
        let mut rng = SimRng::new(seed ^ 1);
        let (least, most) = self.records;
        (0..self.blocks).map(|_| least + rng.below(u64::from(most - least) + 1) as u32).collect()
    }
}

/// A number from 0 to 1, without 1.
pub fn unit(rng: &mut SimRng) -> f64 {
    rng.below(1 << 52) as f64 / (1_u64 << 52) as f64
}

/// A lookup of a keyword in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    pub block: u32,
    pub keyword: u32,
}

/// Draws queries: keywords by Zipf's law.
#[derive(Debug)]
pub struct Queries {
    sums: Vec<f64>,
    places: Vec<[u32; OCCURRENCES]>,
    blocks: u32,
    rng: SimRng,
}

impl Queries {
    #[must_use]
    pub fn new(shape: &Shape, exponent: f64, seed: u64) -> Self {
        let mut rng = SimRng::new(seed ^ 2);
        let mut sum = 0.0;
        let weight = |rank: usize| {
            sum += (rank as f64).powf(-exponent);
            sum
        };
        let sums = (1..=KEYWORDS).map(weight).collect();
        let mut place = |_| rng.below(u64::from(shape.blocks)) as u32;
        let places = (0..KEYWORDS).map(|_| std::array::from_fn(&mut place)).collect();
        Self { sums, places, blocks: shape.blocks, rng }
    }

    fn keyword(&mut self) -> u32 {
        let at = unit(&mut self.rng) * self.sums[KEYWORDS - 1];
        self.sums.partition_point(|sum| *sum <= at) as u32
    }

    /// Single queries: each asks for one object.
    pub fn singles(&mut self, count: usize) -> Vec<Object> {
        let mut single = |_| {
            let keyword = self.keyword();
            let place = self.rng.below(OCCURRENCES as u64) as usize;
            Object { block: self.places[keyword as usize][place], keyword }
        };
        (0..count).map(&mut single).collect()
    }

    /// Multi-queries: each asks for a keyword in 2 to 128 blocks that follow each other.
    pub fn multiples(&mut self, count: usize) -> Vec<Object> {
        let mut all = Vec::with_capacity(count * BLOCKS_MAX as usize / 2);
        for _ in 0..count {
            let keyword = self.keyword();
            let blocks = 2 + self.rng.below(u64::from(BLOCKS_MAX) - 1) as u32;
            // Ranges begin at the keyword's places, so that hot ones are asked for again.
            let place = self.rng.below(OCCURRENCES as u64) as usize;
            let first = self.places[keyword as usize][place].min(self.blocks - blocks);
            all.extend((first..first + blocks).map(|block| Object { block, keyword }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_have_the_papers_numbers() {
        for (shape, records, hours) in [(0, 10.0e6, 240.0), (1, 44.0e6, 2184.0), (2, 1.0e6, 833.0)] {
            let shape = &shapes()[shape];
            let all: u64 = shape.block_records(7).into_iter().map(u64::from).sum();
            assert!((all as f64 / records - 1.0).abs() < 0.02, "{}: {all} records", shape.name);
            let times = shape.times(7);
            assert!(times.is_sorted() && times.len() == shape.blocks as usize);
            let took = (times[times.len() - 1] - times[0]) as f64 / 3.6e6;
            assert!((took / hours - 1.0).abs() < 0.03, "{}: {took} hours", shape.name);
        }
    }

    #[test]
    fn the_same_seed_asks_the_same_and_hot_keywords_are_asked_for_often() {
        let shape = &shapes()[0];
        let draw = || Queries::new(shape, 0.99, 3).singles(10_000);
        assert_eq!(draw(), draw());
        let hottest = draw().iter().filter(|object| object.keyword == 0).count();
        assert!((700..1500).contains(&hottest), "{hottest} of 10,000");
        let multi = Queries::new(shape, 0.99, 3).multiples(1000);
        assert!((60_000..70_000).contains(&multi.len()), "65 blocks on average: {}", multi.len());
        assert!(multi.iter().all(|object| object.block < shape.blocks));
    }
}
