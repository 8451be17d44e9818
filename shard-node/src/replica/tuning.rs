//! The intervals and limits of a node's replicas.

use std::time::Duration;

use super::runner::Runner;

/// A reserve grows in steps of 1/`SPARE_PARTS` of the spare bytes.
const SPARE_PARTS: u64 = 32;

/// Intervals and limits of a node's replicas.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Raft's unit of time. There is a heartbeat every 2 ticks, and an election after 10 to 20.
    pub tick: Duration,
    /// A state machine is flushed this long after the last flush.
    pub flush_interval: Duration,
    /// A state machine is also flushed after this many entries.
    pub flush_entries_max: u64,
    /// A state machine is also flushed when it has this many bytes to write.
    pub flush_bytes_max: u64,
    /// Size of a file of the raft log. Only whole files are cut off.
    pub log_segment_bytes: u64,
    /// Batches of at least this size are looked ahead at while the raft log writes them.
    pub log_beside_bytes_min: usize,
    /// How much of its files each replica reads and checks in a second; 0 turns the check off.
    pub scrub_bytes_per_s: u64,
    /// How much each replica copies to its cold directory in a second, if there is one.
    pub cold_bytes_per_s: u64,
    /// The bytes that each replica keeps free on its disk for work that continues on a full disk:
    /// entries that are in its log and not yet applied, and commands that make room. The bytes that
    /// may wait for a flush are kept free in addition.
    pub spare_bytes: u64,
    /// The engine of each shard.
    pub engine: coppice_engine::Options,
    /// Where replicas and their blocking jobs run.
    pub runner: Runner,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(50),
            flush_interval: Duration::from_secs(5),
            flush_entries_max: 2048,
            flush_bytes_max: 32 << 20,
            log_segment_bytes: 32 << 20,
            log_beside_bytes_min: 256 << 10,
            scrub_bytes_per_s: 1 << 20,
            cold_bytes_per_s: 16 << 20,
            spare_bytes: 40 << 20,
            engine: coppice_engine::Options::default(),
            runner: Runner::Threads,
        }
    }
}

impl Tuning {
    /// The size of a replica's reserve on its disk.
    ///
    /// Before a prune frees anything on a full disk, three things must be written: the bytes at
    /// which a flush counts as late, those that are applied after that, and the `at_once` bytes
    /// that background work adds in one step.
    #[must_use]
    pub fn reserve_bytes(&self, at_once: u64) -> u64 {
        // The number is rounded down to whole parts, so that the reserve seldom grows. The spare
        // bytes cover the remainder.
        let part = (self.spare_bytes / SPARE_PARTS).max(1);
        self.spare_bytes.saturating_add(self.late_bytes()).saturating_add(at_once / part * part)
    }

    /// The number of unflushed bytes at which the disk counts as too slow, and the replica waits
    /// for it.
    pub(crate) fn late_bytes(&self) -> u64 {
        self.flush_bytes_max.saturating_mul(2)
    }
}
