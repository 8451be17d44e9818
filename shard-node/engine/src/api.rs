//! The plain data that callers pass in and get back: options, names and shapes.

use coppice_env::Workers;
use coppice_types::{MergeName, Operation, PrepareId, ShardState, Stamp, Version};

/// An engine's use of memory and disk. Digests do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Budget of the cache for nodes of active trees, in bytes.
    pub young_cache_bytes: usize,
    /// Budget of the cache for nodes of frozen trees, in bytes. It also gets the bytes that the
    /// cache of active trees does not use.
    pub old_cache_bytes: usize,
    /// Budget for entry hashes that proofs have computed, in bytes; an entry takes about 64. The
    /// active tree's own hashes are extra: [`ACTIVE_HASH_BYTES`](crate::ACTIVE_HASH_BYTES) for each
    /// record of its capacity. They keep the hashing cost of a change low.
    pub hash_cache_bytes: usize,
    /// A segment of the value log is closed before it outgrows this, unless it holds one record.
    /// Segments of a small log are smaller.
    pub segment_bytes_max: u32,
    /// A meta log is not rewritten before its operations take this many bytes.
    pub meta_compaction_bytes_min: u64,
    /// At least this many of the newest versions have their rows in memory, so that a rollback of
    /// them reads nothing. Rows of older versions are read from the value log.
    pub rows_held_min: usize,
    /// When more filters than this are in memory, a flush keeps only those of trees that the head,
    /// stages and merges use.
    pub filters_cached_max: usize,
    /// Free pages up to this many bytes always stay in their files. If there are more, free pages
    /// that are not likely to be reused soon go back to the file system.
    pub free_bytes_kept_min: u64,
    /// If there is a cold directory, the oldest segments of the value log move there when the hot
    /// segments exceed this many bytes.
    pub hot_value_bytes_max: u64,
    /// A flush is due when the bytes that wait for one to become free exceed this percentage of the
    /// bytes in use. A lower value takes less space and writes more.
    pub waiting_percent_max: u32,
    /// A record of the value log carries its key and stamp if these take at most this percentage of
    /// the value. A merge can then create shortcuts, which lead a get to the value without reading
    /// its leaf. If this is 0, only records of reserved keys carry them.
    pub name_percent_max: u32,
    /// Threads that hash and encode large batches, and that read, merge and build leaves.
    pub workers: Workers,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            young_cache_bytes: 64 << 20,
            old_cache_bytes: 64 << 20,
            hash_cache_bytes: 10 << 20,
            segment_bytes_max: 64 << 20,
            meta_compaction_bytes_min: 4 << 20,
            rows_held_min: 4096,
            filters_cached_max: 16,
            free_bytes_kept_min: 4 << 20,
            hot_value_bytes_max: u64::MAX,
            waiting_percent_max: 25,
            name_percent_max: 6,
            workers: Workers::of_this_machine(),
        }
    }
}

/// The data that a leader needs to plan merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForestShape {
    /// Number of entries of each tree: the active one first, then the frozen ones from youngest to
    /// oldest.
    pub entries: Vec<u64>,
    /// Merges that are built on this replica and can be installed on this state.
    pub ready: Vec<MergeName>,
    /// Number of keys that further versions may erase.
    pub erasures_left: u64,
}

/// A request to stage a version: the engine's part of a Prepare.
#[derive(Clone, Copy, Debug)]
pub struct StageRequest<'a> {
    pub stamp: Stamp,
    pub prepare_id: PrepareId,
    /// The state to build on: the decided one or a staged one.
    pub base: ShardState,
    /// Merges to install first, in order.
    pub merges: &'a [MergeName],
    /// The writes, folded: keys ascend, each occurs once.
    pub operations: &'a [Operation],
    /// Keys whose values the version erases once it is decided: ascending, and reserved ones.
    pub erases: &'a [Vec<u8>],
}

/// A version that was just staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    pub state: ShardState,
    pub shape: ForestShape,
}

/// One of the staged versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedInfo {
    pub stamp: Stamp,
    pub prepare_id: PrepareId,
    /// The state that it builds on.
    pub base: ShardState,
    pub state: ShardState,
}

/// How far the erasures of decided versions have come on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasureProgress {
    /// Number of keys whose values may still be there.
    pub open: usize,
    /// Erasures by versions up to this one are done. It is the newest decided version if none is
    /// open.
    pub through: Version,
}

/// How merges keep up with writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergePace {
    /// There is nothing to merge.
    Idle,
    /// The rest of the merge is running on another thread.
    Waiting,
    /// There is something to merge, and it can wait for idle time.
    Going,
    /// Merges are behind: this many records should be merged now.
    Behind(u64),
}

/// The result of one step of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeProgress {
    /// The tier rule asks for no merge, or the output that it asks for is built.
    Idle,
    /// There is more to do.
    Working,
    /// An output is complete.
    Built(MergeName),
}

/// Bytes by file kind, and how many of them are free or cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub index_bytes: u64,
    pub index_free_bytes: u64,
    pub data_bytes: u64,
    pub data_free_bytes: u64,
    pub patch_bytes: u64,
    pub patch_free_bytes: u64,
    /// Free bytes that a superblock on disk still refers to.
    pub waiting_bytes: u64,
    pub value_bytes: u64,
    pub value_live_bytes: u64,
    pub cold_value_bytes: u64,
    pub meta_bytes: u64,
    pub young_cache_bytes: u64,
    pub old_cache_bytes: u64,
    pub hash_cache_bytes: u64,
    pub filter_bytes: u64,
    pub versions: u64,
}
