//! The engine's counters. They are plain atomics: only binaries know a metrics library.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of the counters since the engine was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Live {
            $(pub(crate) $name: Count,)*
        }

        impl Live {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.get(),)* }
            }
        }

        impl Counters {
            /// Name and value of each counter.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Keys looked up, by reads and by deletes that check for a live value.
    gets,
    /// Trees that a filter excluded from a lookup.
    filter_skips,
    /// Nodes found among those not flushed yet.
    node_dirty_hits,
    /// Nodes found in the young cache.
    node_young_hits,
    /// Nodes found in the old cache.
    node_old_hits,
    /// Spans that lookups, merges and stages read from a file.
    span_reads,
    /// Bytes of the spans read.
    span_read_bytes,
    /// Spans read that hold an inner node.
    inner_reads,
    /// Reads of the file of patches: patches and small whole nodes. A patch takes a second read if
    /// its base is not cached.
    patch_reads,
    /// Spans written.
    span_writes,
    /// Bytes of the spans written.
    span_write_bytes,
    /// Bytes of the spans written that hold patches of active trees' nodes.
    patch_write_bytes,
    /// Bytes of the spans written that merges made.
    merge_write_bytes,
    /// Bytes of the spans written that hold whole inner nodes of active trees.
    inner_write_bytes,
    /// Nodes made, flushed or not.
    nodes_made,
    /// Values read from the value log, in memory or from a file.
    value_reads,
    /// File reads for values; a range reads neighbouring values at once. Together with `span_reads`
    /// and `shortcut_reads`, these are the physical reads.
    value_file_reads,
    /// Lookups of shortcuts that the cache answered.
    shortcut_hits,
    /// Pages of shortcuts read from a file.
    shortcut_reads,
    /// Bytes of keys and values given to stages: the base of write amplification.
    user_bytes,
    /// Bytes written to the value log.
    value_write_bytes,
    /// Bytes of values that merges rewrote to empty sparse segments.
    value_moved_bytes,
    /// Bytes written to the meta log and the superblocks.
    meta_write_bytes,
    /// Bytes of segments copied to the cold directory.
    cold_write_bytes,
    /// Segments moved to the cold directory.
    cold_segments,
    /// Failed attempts to move a segment to the cold directory.
    cold_failures,
    /// Bytes of free pages given back to the file system.
    discarded_bytes,
    /// Bytes that the scrubber read and found sound.
    scrubbed_bytes,
    /// Complete rounds of the scrubber.
    scrubs,
    /// Flushes that succeeded.
    flushes,
    /// Versions staged.
    stages,
    /// Records that merges have read.
    merge_records,
    /// Merges completed.
    merges_built,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_counter_is_named_once_with_its_own_count() {
        let live = Live::default();
        live.gets.add(3);
        live.gets.one();
        live.merges_built.one();
        let named = live.snapshot().named();
        let counted: Vec<(&str, u64)> = named.iter().copied().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("gets", 4), ("merges_built", 1)]);
        let names: BTreeSet<&str> = named.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), named.len());
    }

    #[test]
    fn a_snapshot_of_the_counters_does_not_change() {
        let live = Live::default();
        let before = live.snapshot();
        live.gets.one();
        assert_eq!((before, live.snapshot()), (Counters::default(), Counters { gets: 1, ..Counters::default() }));
    }
}
