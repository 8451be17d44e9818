//! The intervals and limits of a node's replicas.

use std::time::Duration;

use super::runner::Runner;

/// A share of the reserve grows in steps of 1/`SPARE_PARTS` of the spare bytes.
const SPARE_PARTS: u64 = 32;
/// A prune or rollback of a whole state writes at most 1/`KEPT_PART` of the state's bytes.
const KEPT_PART: u64 = 32;

/// Intervals and limits of a node's replicas.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Raft's unit of time. There is a heartbeat every 2 ticks, and an election after 10 to 20.
    pub tick: Duration,
    /// A group falls asleep when nothing has happened in it for this many ticks; 0 if never.
    pub quiet_ticks: u64,
    /// A state machine is flushed this long after the last flush.
    pub flush_interval: Duration,
    /// A state machine is also flushed after this many entries.
    pub flush_entries_max: u64,
    /// A state machine is also flushed when it has this many bytes to write.
    pub flush_bytes_max: u64,
    /// Size of a file of the raft log. Only whole files are cut off.
    pub log_segment_bytes: u64,
    /// Batches of at least this size are processed ahead while the raft log writes them.
    pub log_beside_bytes_min: usize,
    /// How much of its files each replica reads and checks in a second; 0 turns the check off.
    pub scrub_bytes_per_s: u64,
    /// How much each replica copies to its cold directory in a second, if there is one.
    pub cold_bytes_per_s: u64,
    /// The most that each replica keeps free on its disk for work that continues on a full disk:
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
            quiet_ticks: 40,
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
    /// A replica's share of its node's reserve: room to apply and flush `waiting` bytes, and to
    /// prune or roll back a state of `kept` bytes on the disk.
    ///
    /// Bytes in the log may become more bytes when they are applied, so what waits counts twice.
    /// The share doubles as it grows, so that it seldom does.
    #[must_use]
    pub fn share_bytes(&self, kept: u64, at_once: u64, waiting: u64) -> u64 {
        let part = self.spare_part();
        let least = self.spare_bytes.min(kept / KEPT_PART).max(part);
        let parts = least.saturating_add(waiting.saturating_mul(2)) / part;
        let wanted = parts.checked_next_power_of_two().unwrap_or(u64::MAX).saturating_mul(part);
        wanted.saturating_add(at_once / part * part).min(self.reserve_bytes(at_once))
    }

    /// The largest share of a replica.
    ///
    /// Before a prune frees anything on a full disk, three things must be written: the bytes at
    /// which a flush counts as late, those that are applied after that, and the `at_once` bytes
    /// that background work adds in one step.
    #[must_use]
    pub fn reserve_bytes(&self, at_once: u64) -> u64 {
        // The number is rounded down to whole parts, so that the reserve seldom grows. The spare
        // bytes cover the remainder.
        let part = self.spare_part();
        self.spare_bytes.saturating_add(self.late_bytes()).saturating_add(at_once / part * part)
    }

    fn spare_part(&self) -> u64 {
        (self.spare_bytes / SPARE_PARTS).max(1)
    }

    /// The number of unflushed bytes at which the disk counts as too slow, and the replica waits
    /// for it.
    pub(crate) fn late_bytes(&self) -> u64 {
        self.flush_bytes_max.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_covers_late_flushes_and_one_step_of_work_in_few_sizes() {
        let tuning = Tuning { spare_bytes: 3200, flush_bytes_max: 1000, ..Tuning::default() };
        assert_eq!(tuning.reserve_bytes(0), 3200 + 2000);
        // A reserve grows by whole parts of a hundred bytes. The spare bytes cover the rest.
        assert_eq!([99, 100, 199, 200].map(|at_once| tuning.reserve_bytes(at_once)), [5200, 5300, 5300, 5400]);
        let sizes: std::collections::BTreeSet<u64> = (0..3200).map(|at_once| tuning.reserve_bytes(at_once)).collect();
        assert_eq!(sizes.len(), 32);
    }

    #[test]
    fn a_share_follows_what_waits_and_what_is_kept_up_to_the_whole_reserve() {
        let tuning = Tuning { spare_bytes: 3200, flush_bytes_max: 1000, ..Tuning::default() };
        let waiting = [0, 40, 50, 100, 150, 1000, 5000].map(|waiting| tuning.share_bytes(0, 0, waiting));
        assert_eq!(waiting, [100, 100, 200, 400, 400, 3200, 5200]);
        let kept = [0, 3200, 6400, 1 << 30].map(|kept| tuning.share_bytes(kept, 0, 0));
        assert_eq!(kept, [100, 100, 200, 3200], "a prune writes no more than the spare bytes");
        assert_eq!(tuning.share_bytes(0, 250, 0), 300, "one step of work comes on top");
        for waiting in 0..3000 {
            assert!(tuning.share_bytes(0, 0, waiting) + 100 > (2 * waiting).min(5200));
        }
    }

    #[test]
    fn settings_at_the_ends_of_their_range_overflow_nothing() {
        let without = Tuning { spare_bytes: 0, flush_bytes_max: 0, ..Tuning::default() };
        assert_eq!([0, 7].map(|at_once| without.reserve_bytes(at_once)), [0, 7]);
        let most = Tuning { spare_bytes: u64::MAX, flush_bytes_max: u64::MAX, ..Tuning::default() };
        assert_eq!((most.late_bytes(), most.reserve_bytes(u64::MAX)), (u64::MAX, u64::MAX));
        assert_eq!(without.share_bytes(0, 0, u64::MAX), 0);
        assert_eq!(most.share_bytes(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
