//! What callers hand in and get back: options, names, and shapes. Plain data.

use coppice_env::Workers;
use coppice_types::{Digest, Operation, Stamp, Version};

/// How an engine uses memory and disk. Digests do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of cached nodes of active trees.
    pub young_cache_bytes: usize,
    /// Bytes of cached nodes of frozen trees, beside what those of active trees leave of theirs.
    pub old_cache_bytes: usize,
    /// Bytes of hashes of nodes' entries that proofs have computed, about 64 an entry. Beside them the active tree has those of its own, so that
    /// changes hash little: [`ACTIVE_HASH_BYTES`](crate::ACTIVE_HASH_BYTES) for each record of its capacity.
    pub hash_cache_bytes: usize,
    /// A segment of the value log is closed before it grows beyond this, unless it is one record. Those of a small log are smaller.
    pub segment_bytes_max: u32,
    /// A meta log is never rewritten before its operations have this many bytes.
    pub meta_compaction_bytes_min: u64,
    /// When more filters than this are in memory, a flush leaves there only those of the trees that head, stages and merges have.
    pub filters_cached_max: usize,
    /// Up to here free pages stay with their files in any case; beyond, those that are not soon used again go back to the file system.
    pub free_bytes_kept_min: u64,
    /// With a cold directory beside this one, the oldest segments of the value log go there when those that are here have more bytes.
    pub hot_value_bytes_max: u64,
    /// A flush is due when more than this part of the bytes on disk, in percent of those that something needs, waits for one to be free. Less
    /// of it takes less space, and writes more.
    pub waiting_percent_max: u32,
    /// A value's record in the value log bears its key and stamp if these take no more than so many percent of it: then a merge can lead
    /// gets straight to it, past the leaf. 0: none does.
    pub name_percent_max: u32,
    /// Who hashes and encodes what a large batch changes, and who reads, merges and makes leaves.
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
            filters_cached_max: 16,
            free_bytes_kept_min: 4 << 20,
            hot_value_bytes_max: u64::MAX,
            waiting_percent_max: 25,
            name_percent_max: 6,
            workers: Workers::of_this_machine(),
        }
    }
}

/// Names one state of a shard exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardState {
    /// The shard version.
    pub version: Version,
    /// The shard digest.
    pub digest: Digest,
}

/// Names one attempt to prepare a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrepareId {
    /// Term of the leader.
    pub term: u64,
    /// Its attempt.
    pub attempt: u64,
}

/// An entry of the raft log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RaftPosition {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// Names a merge by what it merges and what it gives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MergeName {
    /// Digests of neighbouring frozen trees, youngest first.
    pub inputs: Vec<Digest>,
    /// Digest of the output.
    pub output: Digest,
}

/// What a leader plans by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForestShape {
    /// Entries of the trees, the active one first, then the frozen ones from youngest to oldest.
    pub entries: Vec<u64>,
    /// Merges that are built here and can be installed on this state.
    pub ready: Vec<MergeName>,
}

/// A Prepare.
#[derive(Clone, Copy, Debug)]
pub struct StageRequest<'a> {
    /// Epoch and version of the new state.
    pub stamp: Stamp,
    /// Names the attempt.
    pub prepare_id: PrepareId,
    /// The state to build on: the decided one or a staged one.
    pub base: ShardState,
    /// Merges to install first, in order.
    pub merges: &'a [MergeName],
    /// The writes, folded: ascending keys, each once.
    pub operations: &'a [Operation],
}

/// A version that was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Its name.
    pub state: ShardState,
    /// Its forest.
    pub shape: ForestShape,
}

/// A staged version among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedInfo {
    /// Its stamp.
    pub stamp: Stamp,
    /// Its attempt.
    pub prepare_id: PrepareId,
    /// What it builds on.
    pub base: ShardState,
    /// Its name.
    pub state: ShardState,
}

/// How merges keep up with writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergePace {
    /// There is nothing to merge.
    Idle,
    /// Another thread is at what is left.
    Waiting,
    /// There is, when there is time.
    Going,
    /// There is, and so many records of it should not wait.
    Behind(u64),
}

/// What a step of merging came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeProgress {
    /// The tier rule asks for nothing, or what it asks for is built.
    Idle,
    /// There is more to do.
    Working,
    /// An output is complete.
    Built(MergeName),
}

/// Bytes by file kind, and how much of them is free or cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub index_bytes: u64,
    pub index_free_bytes: u64,
    pub data_bytes: u64,
    pub data_free_bytes: u64,
    pub patch_bytes: u64,
    pub patch_free_bytes: u64,
    /// Of the free bytes, those that a superblock on disk still refers to.
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
