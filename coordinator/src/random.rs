//! The coordinator's one source of randomness: stage ids, and the jitter of pauses.

use std::sync::Mutex;

use coppice_env::Rng;

use crate::lock::held;

/// A random number generator that all parts share, so that a simulation can repeat its draws.
#[derive(Debug)]
pub struct Random(Mutex<Box<dyn Rng>>);

impl Random {
    /// Draws from this generator.
    pub fn new(rng: Box<dyn Rng>) -> Self {
        Self(Mutex::new(rng))
    }

    /// Returns 16 random bytes.
    pub fn id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        held(&self.0).fill(&mut id);
        id
    }

    /// Returns a number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        held(&self.0).below(bound)
    }
}
