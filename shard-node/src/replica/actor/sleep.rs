//! Falling asleep and waking up. `replica/sleep` has the rules.

use std::time::Duration;

use coppice_consensus::{Heartbeat, RaftId};
use coppice_proto::v1::{PeerMessage, Sleep, peer_message::Body};

use super::Actor;
use crate::replica::{
    input::Input,
    machine::StateMachine,
    maintain::{Backlog, Disk},
    rest::beat,
    sleep::SILENT_TICKS,
};

/// Ticks after which a leader whose group did not fall asleep tries again: the members may flush at
/// different times.
const RETRY_TICKS: u64 = 200;

impl<M: StateMachine> Actor<M> {
    /// Notes that an input arrives, and wakes a sleeping replica. Answers to heartbeats were under
    /// way when the leader fell asleep.
    pub(super) fn stir(&mut self, input: &Input<M>) {
        self.rest.note(input);
        let late = |message: &PeerMessage| beat(message) == Some(Heartbeat::Answer);
        match input {
            Input::Wake(silence) => self.wake(*silence),
            Input::Peer(message, _) if late(message) => {}
            _ => self.wake(Duration::ZERO),
        }
    }

    /// Continues to tick. The `silence` of another member's node counts for the election timeout.
    pub(super) fn wake(&mut self, silence: Duration) {
        if !std::mem::take(&mut self.rest.asleep) {
            return;
        }
        let (site, group) = (&self.config.site, self.config.identity.group);
        tracing::debug!(%group, ?silence, "the group wakes");
        site.sleepers.wake(group);
        self.rest.quiet_ticks = 0;
        self.rest.next_try = self.ticks + RETRY_TICKS;
        self.next_tick = self.now() + site.tuning.tick;
        let missed = silence.as_nanos() / site.tuning.tick.as_nanos().max(1);
        // This process may have been the one that stood still.
        for _ in 0..missed.min(u128::from(SILENT_TICKS)) {
            self.group.tick();
        }
        self.group.ping();
    }

    /// Whether nothing is under way that a tick would go on with.
    fn is_quiet(&self) -> bool {
        let idle = |machine: &M| {
            machine.backlog() == Backlog::None && machine.disk(false) == Disk::Idle && !machine.cold_due()
        };
        self.group.is_settled()
            && self.backlog.is_empty()
            && self.retiring.is_none()
            && self.unfit().is_none()
            && self.fitness.others.is_empty()
            && self.reads.is_empty()
            && self.waiters.is_empty()
            && self.agreements.is_settled()
            && self.snapshots.is_idle()
            && self.flushing.is_idle()
            && !self.has_copies()
            && self.shared.read_machine().as_ref().is_some_and(idle)
    }

    /// The nodes of the other members; `None` if one is not known.
    fn other_nodes(&self) -> Option<Vec<String>> {
        let others = self.members.iter().filter(|id| **id != self.config.identity.raft_id);
        others.map(|id| self.config.site.node_of(*id)).collect()
    }

    /// Puts the group to sleep if this replica leads it and it has been quiet for a while.
    pub(super) fn rest_if_quiet(&mut self) {
        let after = self.config.site.tuning.quiet_ticks;
        self.rest.quiet_ticks += 1;
        if after == 0 || !self.leading || self.rest.quiet_ticks < after || self.ticks < self.rest.next_try {
            return;
        }
        if self.is_quiet() {
            let raft = self.group.status();
            let sleep = Sleep { term: raft.term, last: raft.last.index };
            self.broadcast(&Body::Sleep(sleep));
            self.fall_asleep(raft.term);
        }
    }

    /// Handles the leader's word that the group sleeps. A replica that has something to do stays
    /// awake, and so wakes the others.
    pub(super) fn rest_with(&mut self, from: RaftId, sleep: Sleep) {
        let raft = self.group.status();
        let agrees = raft.leader == Some(from) && raft.term == sleep.term && raft.last.index == sleep.last;
        if agrees && !self.leading && self.is_quiet() {
            self.fall_asleep(raft.term);
        }
    }

    fn fall_asleep(&mut self, term: u64) {
        let (site, group) = (&self.config.site, self.config.identity.group);
        let Some(others) = self.other_nodes().filter(|_| site.ordinal().is_some()) else { return };
        tracing::debug!(%group, "the group sleeps");
        site.sleepers.fall_asleep(group, term, others, site.clock.now());
        self.rest.asleep = true;
        self.pace_scrub();
        if let Err(error) = self.flushing.lower_share() {
            tracing::warn!(%group, error = error.chain(), "its share of the reserve stays as large as it is");
        }
    }
}

impl<M: StateMachine> Drop for Actor<M> {
    fn drop(&mut self) {
        self.config.site.sleepers.wake(self.config.identity.group);
    }
}
