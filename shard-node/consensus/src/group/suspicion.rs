//! Early elections: a leader whose connection broke is replaced before the election timeout.
//!
//! A broken connection to the leader's node alone proves nothing, and neither does a late
//! heartbeat. Together they mean most often that the process has ended. A follower that sees both
//! stops protecting the leader: it grants votes from then on. The voters campaign in turn, first
//! one of them, so that votes are not split. All of it begins with a pre-vote. If the leader lives
//! and a majority still hears it, the pre-vote fails, no term changes, and the leader's next
//! heartbeat ends the suspicion.
//!
//! Safety does not depend on any of this: reads ask a majority, and no lease is relied on.

use raft::StateRole;

use super::Group;
use crate::{RaftId, width::to_usize};

/// Ticks between the campaigns of two voters.
const TURN_TICKS: u64 = 4;
/// Limit on the early campaigns of one suspicion. The usual timeouts follow.
const CAMPAIGNS_MAX: u32 = 2;

/// A leader that may be gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    leader: RaftId,
    /// The leader's term. An election in another term ends the suspicion.
    term: u64,
    /// The early campaigns so far.
    campaigns: u32,
    /// The tick of the next one; `None` while heartbeats are not late.
    next: Option<u64>,
}

impl Group {
    /// Notes that a connection to the node of another replica broke. That matters if it leads.
    pub fn suspect(&mut self, id: RaftId) {
        let follows = self.raw.raft.state == StateRole::Follower && self.raw.raft.leader_id == id.0;
        if follows && self.suspicion.is_none_or(|suspicion| suspicion.leader != id) {
            self.suspicion = Some(Suspicion { leader: id, term: self.raw.raft.term, campaigns: 0, next: None });
        }
    }

    /// Notes a message of another replica: a leader that is heard is not suspected.
    pub(super) fn note_heard(&mut self, from: RaftId) {
        self.suspicion.take_if(|suspicion| suspicion.leader == from);
    }

    /// Acts on a suspicion after a tick.
    pub(super) fn hasten(&mut self) {
        let Some(mut suspicion) = self.suspicion.take() else { return };
        let raft = &self.raw.raft;
        if raft.term != suspicion.term || suspicion.campaigns >= CAMPAIGNS_MAX {
            return;
        }
        let order = self.order(suspicion.leader);
        match (suspicion.next, order) {
            (None, _) if raft.election_elapsed <= self.options.heartbeat_ticks => {}
            (None, order) => {
                self.end_lease();
                // A replica without a place only votes.
                let Some((place, _)) = order else { return };
                suspicion.next = Some(self.ticks + 1 + place * TURN_TICKS);
            }
            (Some(next), Some((_, voters))) if self.ticks >= next => {
                suspicion.campaigns += 1;
                suspicion.next = Some(self.ticks + voters * TURN_TICKS);
                if let Err(error) = self.campaign() {
                    tracing::debug!(%error, "no early campaign");
                }
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) => return,
        }
        self.suspicion = Some(suspicion);
    }

    /// From here on this replica grants votes. Its own timeout begins again.
    fn end_lease(&mut self) {
        let least = self.options.election_ticks;
        self.raw.raft.election_elapsed = self.raw.raft.election_elapsed.max(least);
        self.timeout_ticks = (self.timeout_ticks + least).min(4 * least - 1);
        self.raw.raft.set_randomized_election_timeout(self.timeout_ticks);
    }

    /// The place of this replica in the order in which the voters campaign, and the number of the
    /// voters; `None` if it lets the others campaign. The order differs between groups, so that the
    /// groups of a dead node spread over the other nodes.
    fn order(&self, leader: RaftId) -> Option<(u64, u64)> {
        if self.reluctant || self.quarantined().is_some() {
            return None;
        }
        let voters: Vec<RaftId> = self.membership.voters.iter().copied().filter(|id| *id != leader).collect();
        let place = voters.iter().position(|id| *id == self.options.id)?;
        let shifted = (place + to_usize(self.options.group.number().into())) % voters.len();
        Some((shifted as u64, voters.len() as u64))
    }
}
