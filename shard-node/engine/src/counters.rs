//! What the engine counts. Plain atomics: only binaries know a metrics library.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of the counters, all since the engine was opened.
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
    /// Keys looked up, by reads and by deletes that ask whether there is something to delete.
    gets,
    /// Trees that a filter excluded from a lookup.
    filter_skips,
    /// Nodes found among those that are not flushed yet.
    node_dirty_hits,
    /// Nodes found in the young cache.
    node_young_hits,
    /// Nodes found in the old cache.
    node_old_hits,
    /// Spans that lookups, merges and stages read from a file.
    span_reads,
    /// Bytes of them.
    span_read_bytes,
    /// Of these spans, inner nodes.
    inner_reads,
    /// And of the file of patches: these, each of which takes a second read if its base is in no cache, and small whole nodes.
    patch_reads,
    /// Spans written.
    span_writes,
    /// Bytes of them.
    span_write_bytes,
    /// Of these, patches of nodes of active trees.
    patch_write_bytes,
    /// Of these, what merges made.
    merge_write_bytes,
    /// Of these, whole inner nodes of active trees.
    inner_write_bytes,
    /// Nodes made, flushed or not.
    nodes_made,
    /// Values read from the value log, in memory or not.
    value_reads,
    /// Reads of files for them, one for neighbours that a range reads: with `span_reads` and `shortcut_reads`, the physical reads.
    value_file_reads,
    /// Lookups of shortcuts in the cache.
    shortcut_hits,
    /// Pages of shortcuts that were read from a file.
    shortcut_reads,
    /// Bytes of keys and values that stages were given: the base of write amplification.
    user_bytes,
    /// Bytes written to the value log.
    value_write_bytes,
    /// Bytes of values that merges moved out of sparse segments, and that are written again therefore.
    value_moved_bytes,
    /// Bytes written to the meta log and the superblocks.
    meta_write_bytes,
    /// Bytes of segments that were copied to the cold directory.
    cold_write_bytes,
    /// Segments that went there.
    cold_segments,
    /// Attempts to move a segment there that failed.
    cold_failures,
    /// Bytes of free pages that were given back to the file system.
    discarded_bytes,
    /// Bytes that the scrubber has read and found sound.
    scrubbed_bytes,
    /// Times that it has read everything.
    scrubs,
    /// Flushes that ended well.
    flushes,
    /// Versions staged.
    stages,
    /// Records that merges have read.
    merge_records,
    /// Merges completed.
    merges_built,
}

/// One counter.
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
