//! Counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Counts since the cache was made, and what it holds now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64,)*
            /// Number of keys that are held now.
            pub keys: usize,
            /// Memory that they take now, in bytes.
            pub bytes: usize,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            /// The counts now, with the size of what is held.
            pub(super) fn read(&self, (keys, bytes): (usize, usize)) -> Metrics {
                Metrics { $($name: self.$name.load(Ordering::Relaxed),)* keys, bytes }
            }
        }
    };
}

counts! {
    /// Reads of views that the cache answered.
    hits;
    /// Reads of views that the ledger answered.
    misses;
    /// Answers that were kept.
    fills;
    /// Answers about versions that do not stand, or lie above the frontier.
    refused_fills;
    /// Reads that waited for the frontier.
    waits;
    /// Versions that moved the frontier.
    versions;
    /// Versions whose changes were unknown, so that open intervals ended.
    unknown;
    /// Rollbacks in the log.
    rollbacks;
    /// Prunes in the log.
    prunes;
    /// Streams that broke.
    cuts;
    /// Times that everything was dropped.
    drops;
    /// Keys that were read with a proof.
    proven;
    /// Calls that read keys.
    reads;
    /// Samples that the ledger did not prove.
    sample_failures;
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
