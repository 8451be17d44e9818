//! The settings of a group.

use coppice_types::{ClusterId, GroupId};
use raft::{Config, ReadOnlyOption};

use crate::{
    RaftId,
    log::{Sizes, meta::Owner},
};

/// Names and limits of one replica of a group. The caller decides how long a tick is; the defaults
/// suit 50 ms.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub cluster: ClusterId,
    pub group: GroupId,
    /// The name of this replica.
    pub id: RaftId,
    /// A follower that hears nothing for this many ticks, or for up to twice as many, campaigns.
    pub election_ticks: usize,
    /// A leader sends a heartbeat each time this many ticks have passed.
    pub heartbeat_ticks: usize,
    /// A snapshot offer without a report for this many ticks counts as lost.
    pub snapshot_ticks_max: u64,
    /// Limit on the bytes of an entry.
    pub entry_bytes_max: usize,
    /// Limit on the bytes of entries in one message, unless a single entry is larger.
    pub message_bytes_max: usize,
    /// Limit on the number of messages under way to one replica.
    pub inflight_messages_max: usize,
    /// Limit on the bytes of proposals that are not committed yet.
    pub uncommitted_bytes_max: u64,
    /// Limit on the bytes of committed entries that one call of `advance` hands out, unless a
    /// single entry is larger.
    pub committed_bytes_max: u64,
    /// Limit on the number of reads that wait for a majority.
    pub reads_max: usize,
    /// A learner can be promoted if it is at most this many entries behind the commit index.
    pub promote_lag_max: u64,
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Segment files are filled with zeroes in steps of at most this size.
    pub fill_bytes: u64,
    /// Bytes of durable entries that are kept in memory.
    pub cache_bytes: usize,
    /// A smaller batch is written on the caller's thread, because another thread would start too
    /// late to help: see [`crate::Beside`].
    pub beside_bytes_min: usize,
}

impl Options {
    /// The defaults for a replica.
    #[must_use]
    pub fn new(cluster: ClusterId, group: GroupId, id: RaftId) -> Self {
        Self {
            cluster,
            group,
            id,
            election_ticks: 10,
            heartbeat_ticks: 2,
            snapshot_ticks_max: 1200,
            entry_bytes_max: 16 << 20,
            message_bytes_max: 1 << 20,
            inflight_messages_max: 64,
            uncommitted_bytes_max: 32 << 20,
            committed_bytes_max: 4 << 20,
            reads_max: 1024,
            promote_lag_max: 256,
            segment_bytes: 32 << 20,
            fill_bytes: 1 << 20,
            cache_bytes: 16 << 20,
            beside_bytes_min: 256 << 10,
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { cluster: self.cluster, group: self.group, id: self.id }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let Self { segment_bytes, fill_bytes, cache_bytes, beside_bytes_min, .. } = *self;
        Sizes { segment_bytes, fill_bytes, cache_bytes, beside_bytes_min }
    }

    pub(crate) fn raft(&self, applied: u64) -> Config {
        Config {
            id: self.id.0,
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.message_bytes_max as u64,
            max_inflight_msgs: self.inflight_messages_max,
            check_quorum: true,
            pre_vote: true,
            min_election_tick: self.election_ticks,
            // The timeout is drawn by `Group`, and is up to four times as long for a reluctant
            // replica: see `Group::set_reluctant`.
            max_election_tick: 4 * self.election_ticks,
            read_only_option: ReadOnlyOption::Safe,
            skip_bcast_commit: false,
            batch_append: true,
            priority: 0,
            max_uncommitted_size: self.uncommitted_bytes_max,
            max_committed_size_per_ready: self.committed_bytes_max,
        }
    }
}
