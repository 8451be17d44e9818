//! Random numbers: from the operating system, or from a seed.

use std::fmt::Debug;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

/// A source of random bits.
pub trait Rng: Send + Debug {
    fn fill(&mut self, bytes: &mut [u8]);

    /// 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// A number below `bound`. It is spread evenly enough for delays and tests.
    ///
    /// # Panics
    /// If `bound` is zero.
    fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        self.next_u64() % bound
    }

    /// Returns true in `per_mille` of a thousand calls.
    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// The operating system's random numbers, which are fit for keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    fn fill(&mut self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives random bytes");
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Random numbers that follow from a seed.
#[derive(Clone, Debug)]
pub struct SimRng(ChaCha8Rng);

impl SimRng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl Rng for SimRng {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
