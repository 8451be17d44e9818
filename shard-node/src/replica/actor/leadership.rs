//! The handover of leadership by an unfit leader.
//!
//! An unfit leader hands over to a voter that is active and fit. If there is none, it keeps leading
//! as well as it can. An unfit replica votes, but campaigns later than the others. A quarantined
//! replica is unfit, too: it leads only until another replica also has the end of the log.

use std::time::Duration;

use coppice_consensus::{Peer, RaftId, Status};

use super::Actor;
use crate::replica::{
    fitness::{SLOW, SLOW_KEPT, SYNC_SLOW, furthest, shortage},
    machine::StateMachine,
};

/// Ticks after which a handover that did not happen is tried again. Raft gives a transfer up after
/// 10.
const HAND_OVER_TICKS: u64 = 12;

const QUARANTINED: &str = "it is quarantined";

impl<M: StateMachine> Actor<M> {
    /// The reason why this replica should not lead; `None` if it may.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        match (self.flushing.short_of(), self.now() < self.fitness.slow_until) {
            (Some(short_of), _) => Some(shortage(short_of)),
            (None, true) => Some(SLOW),
            (None, false) => None,
        }
    }

    /// Records how long a write to the log took. A slow one makes this replica unfit for a while.
    pub(super) fn note_pace(&mut self, took: Duration) {
        self.config.site.durations.persist.record(took.as_secs_f64(), &self.labels);
        if took > SYNC_SLOW {
            tracing::warn!(group = %self.config.identity.group, ?took, "the disk is slow");
            self.fitness.slow_until = self.now() + SLOW_KEPT;
        }
    }

    /// Looks for slow links, and forgets replicas that have left. Called at every tick.
    pub(super) fn look_after_fitness(&mut self) {
        let now = self.now();
        let raft = self.group.status();
        if !self.leading {
            self.fitness.waits_for = None;
        } else if self.fitness.waits_too_long(&raft, now) && self.others_are_enough(&raft) {
            tracing::warn!(group = %self.config.identity.group, "no entry was committed for a long time: the links are slow");
            self.fitness.slow_until = now + SLOW_KEPT;
            // No other replica has caught up, and a transfer would wait for that.
            self.fitness.tried = true;
        }
        let members = &self.members;
        self.fitness.others.retain(|id| members.contains(id));
    }

    /// Whether the replicas that this one hears from are enough to lead the group without it.
    fn others_are_enough(&self, raft: &Status) -> bool {
        let enough = raft.membership.voters.len() / 2 + 1;
        raft.peers.iter().filter(|peer| self.could_lead(peer)).count() >= enough
    }

    fn could_lead(&self, peer: &Peer) -> bool {
        !peer.learner && peer.active && !peer.snapshotting && !self.fitness.others.contains(&peer.id)
    }

    /// The fit voter to hand leadership to.
    pub(super) fn heir(&self) -> Option<RaftId> {
        let raft = self.group.status();
        furthest(&raft, |peer| self.could_lead(peer) && !raft.membership.is_joint())
    }

    /// Like [`heir`](Self::heir), but falls back to any active voter, which will hand leadership
    /// on.
    pub(super) fn any_heir(&self) -> Option<RaftId> {
        self.heir().or_else(|| furthest(&self.group.status(), |peer| !peer.learner && peer.active))
    }

    /// Hands leadership over if this replica has it, is unfit, and has an heir.
    pub(super) fn hand_over_if_unfit(&mut self) {
        let unfit = self.unfit().or(self.group.quarantined().map(|_| QUARANTINED));
        if self.fitness.told != unfit.is_some() {
            self.fitness.told = unfit.is_some();
            self.group.set_reluctant(self.fitness.told);
        }
        let Some(why) = unfit.filter(|_| self.leading) else {
            (self.fitness.tried, self.fitness.next_try) = (false, 0);
            return;
        };
        if self.ticks < self.fitness.next_try || self.retiring.is_some() {
            return;
        }
        let Some(heir) = self.heir() else { return };
        tracing::warn!(group = %self.config.identity.group, why, %heir, "leadership is handed over");
        let handed = if self.fitness.tried { self.group.resign_to(heir) } else { self.group.transfer_leader(heir) };
        if let Err(error) = handed {
            tracing::debug!(%error, "leadership could not be handed over");
        }
        self.fitness.tried = true;
        self.fitness.next_try = self.ticks + HAND_OVER_TICKS;
    }
}
