//! The settings of a cache.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use super::error::Error;

/// Most keys that one call reads.
pub(super) const PART_KEYS: usize = 256;

/// How much of the ledger's word is checked. Headers lie under signed checkpoints at every level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// Each read comes with a proof, and each version on the stream with its whole journal.
    Proofs,
    /// The ledger is believed. This part of the reads, from 0 to 1, is repeated with a proof, and
    /// cached keys are proven for each version: see `Options::samples`.
    Sample(f64),
    /// The ledger is believed about reads and changes.
    Trusted,
}

impl Level {
    /// Whether a read carries a proof from the first.
    pub(super) fn proves(self) -> bool {
        self == Self::Proofs
    }

    /// Whether a read that was believed is repeated with a proof.
    pub(super) fn picks(self) -> bool {
        // The ledger must not foresee it.
        let chance = random() as f64 / u64::MAX as f64;
        matches!(self, Self::Sample(part) if chance < part)
    }
}

/// A number that nobody foresees: a keyed hash with a fresh key.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The settings of a cache.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is checked. Default: [`Level::Proofs`].
    pub level: Level,
    /// Number of cached keys that are proven at head for each version. Default: 2 with
    /// [`Level::Sample`], and otherwise none.
    pub samples: Option<usize>,
    /// The stream brings the keys of changes without their values. The writes of other programs
    /// are then dropped instead of kept, and are read again when they are needed. Default: false.
    pub keys_only: bool,
    /// Bound on the memory for values, keys and their administration. Default: 256 MiB.
    pub bytes: usize,
    /// Longest wait of a read above the frontier for the stream. Default: 5 ms.
    pub wait: Duration,
    /// Longest time for one read of the ledger, and for the wait for the first header. Default:
    /// 30 s.
    pub timeout: Duration,
    /// Longest time for which [`Cache::head`](super::Cache::head) trusts the frontier while the
    /// stream is broken. After that, it asks the ledger. Default: 5 s.
    pub stale_max: Duration,
    /// Most reads of the ledger that are under way at one time. Default: 8.
    pub parallel: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            level: Level::Proofs,
            samples: None,
            keys_only: false,
            bytes: 256 << 20,
            wait: Duration::from_millis(5),
            timeout: Duration::from_secs(30),
            stale_max: Duration::from_secs(5),
            parallel: 8,
        }
    }
}

impl Options {
    /// # Errors
    /// [`Error::Options`] if a setting makes no sense.
    pub(super) fn check(&self) -> Result<(), Error> {
        let part = if let Level::Sample(part) = self.level { part } else { 0.0 };
        if !(0.0..=1.0).contains(&part) {
            return Err(Error::Options("the sampled part of the reads is between 0 and 1"));
        }
        if self.samples() > PART_KEYS {
            return Err(Error::Options("more samples for each version than one read proves"));
        }
        if self.parallel == 0 || self.timeout.is_zero() || self.stale_max.is_zero() {
            return Err(Error::Options("a limit is zero"));
        }
        Ok(())
    }

    /// Number of cached keys that are proven for each version.
    pub(super) fn samples(&self) -> usize {
        self.samples.unwrap_or(if matches!(self.level, Level::Sample(_)) { 2 } else { 0 })
    }
}
