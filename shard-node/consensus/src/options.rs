//! How a group is set up.

use coppice_types::{ClusterId, GroupId};
use raft::{Config, ReadOnlyOption};

use crate::{
    RaftId,
    log::{Sizes, meta::Owner},
};

/// Names and bounds of one replica of a group. A tick is what the caller makes of it; 50 ms suits the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The cluster.
    pub cluster: ClusterId,
    /// The group.
    pub group: GroupId,
    /// This replica.
    pub id: RaftId,
    /// A follower that hears nothing for this many ticks, or up to twice as many, campaigns.
    pub election_ticks: usize,
    /// A leader is heard of every so many ticks.
    pub heartbeat_ticks: usize,
    /// A snapshot that was offered and not reported on for this many ticks is offered again.
    pub snapshot_ticks_max: u64,
    /// Largest entry.
    pub entry_bytes_max: usize,
    /// Entries of one message, unless a single one is larger.
    pub message_bytes_max: usize,
    /// Messages under way to one replica.
    pub inflight_messages_max: usize,
    /// Proposals that are not committed yet.
    pub uncommitted_bytes_max: u64,
    /// Committed entries that one call of `advance` hands out, unless a single one is larger.
    pub committed_bytes_max: u64,
    /// Reads that wait for a majority.
    pub reads_max: usize,
    /// How far a learner may be behind the commit index to be promoted.
    pub promote_lag_max: u64,
    /// Size of a file of the log.
    pub segment_bytes: u64,
    /// The log's files are filled with zeroes in steps of this.
    pub fill_bytes: u64,
    /// Entries kept in memory though they are durable.
    pub cache_bytes: usize,
    /// A batch of fewer bytes is written before a thread for it would have begun: see [`crate::Beside`].
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
            // Drawn by us, and later by a replica that would rather not lead: see `Group::set_reluctant`.
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
