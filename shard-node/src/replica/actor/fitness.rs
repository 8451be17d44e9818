//! Whether a replica is fit to lead its group, and what follows if it is not.
//!
//! Unfit is who has a full disk or no more descriptors, who needs longer for a sync than followers wait for a sign of their leader, and a leader whose entries are not
//! acknowledged though it hears of the others: its links are slow. Every message to the other replicas says so. An unfit leader hands
//! over to a voter that is there and fit; if there is none, it goes on as well as it can. An unfit replica votes, but campaigns later than
//! the others. A replica in quarantine is unfit, too: it leads only where it alone has the end of the log, until another one has it.

use std::{collections::BTreeSet, time::Duration};

use coppice_consensus::{Peer, RaftId, Status};
use coppice_env::Shortage;

use super::Actor;
use crate::replica::machine::StateMachine;

/// A sync that takes so long keeps a leader silent for as long as its followers wait for it.
const SYNC_SLOW: Duration = Duration::from_millis(500);
/// A leader that waits so long for an entry to be committed has slow links.
const COMMIT_SLOW: Duration = Duration::from_millis(1200);
/// For how long a replica that was slow counts as slow.
const SLOW_KEPT: Duration = Duration::from_secs(10);
/// Ticks after which leadership that was not taken over is handed over again: raft gives a transfer 10.
const HAND_OVER_TICKS: u64 = 12;

const FULL: &str = "the disk is full";
const NO_HANDLES: &str = "file descriptors or memory ran out";
const SLOW: &str = "the disk or the links are slow";
const QUARANTINED: &str = "it is quarantined";
const BETWEEN: &str = "; ";

/// What a replica knows of its own fitness and that of the others.
#[derive(Debug, Default)]
pub(crate) struct Fitness {
    /// What the others are told: it is unfit.
    pub(super) told: bool,
    slow_until: Duration,
    /// An entry that a leader waits for, and since when.
    waits_for: Option<(u64, Duration)>,
    /// Replicas that said that they are unfit.
    others: BTreeSet<u64>,
    /// The tick from which leadership may be handed over again.
    next_try: u64,
    /// A transfer did not come about.
    tried: bool,
}

impl Fitness {
    /// Another replica said whether it is unfit.
    pub(super) fn note_other(&mut self, id: u64, unfit: bool) {
        if unfit {
            self.others.insert(id);
        } else {
            self.others.remove(&id);
        }
    }

    /// Whether a leader has waited too long for an entry to be committed.
    fn waits_too_long(&mut self, raft: &Status, now: Duration) -> bool {
        self.waits_for = self.waits_for.filter(|(index, _)| *index > raft.commit);
        if raft.last.index > raft.commit {
            let (_, since) = *self.waits_for.get_or_insert((raft.last.index, now));
            return now.saturating_sub(since) > COMMIT_SLOW;
        }
        false
    }
}

/// Who has the most of the log, of those that fit.
fn furthest(raft: &Status, fits: impl Fn(&Peer) -> bool) -> Option<RaftId> {
    raft.peers.iter().filter(|peer| fits(peer)).max_by_key(|peer| peer.matched).map(|peer| peer.id)
}

/// What a replica says of itself: `said`, with what holds now in place of what this function added before.
pub(super) fn note(said: &str, unfit: Option<&'static str>) -> String {
    let kept = [FULL, NO_HANDLES, SLOW].into_iter().find_map(|why| said.strip_suffix(why)).unwrap_or(said);
    let kept = kept.strip_suffix(BETWEEN).unwrap_or(kept);
    [kept, unfit.unwrap_or_default()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(BETWEEN)
}

/// What a replica that lacks something says.
pub(super) fn shortage(short_of: Shortage) -> &'static str {
    match short_of {
        Shortage::Space => FULL,
        Shortage::Handles => NO_HANDLES,
    }
}

impl<M: StateMachine> Actor<M> {
    /// Why this replica should not lead, if it should not.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        match (self.short_of, self.now() < self.fitness.slow_until) {
            (Some(short_of), _) => Some(shortage(short_of)),
            (None, true) => Some(SLOW),
            (None, false) => None,
        }
    }

    /// Notes how long it took to make something durable in the log.
    pub(super) fn note_pace(&mut self, took: Duration) {
        self.config.hosted.durations.persist.record(took.as_secs_f64(), &self.labels);
        if took > SYNC_SLOW {
            tracing::warn!(group = %self.config.identity.group, ?took, "the disk is slow");
            self.fitness.slow_until = self.now() + SLOW_KEPT;
        }
    }

    /// Called at every tick.
    pub(super) fn look_after_fitness(&mut self) {
        let now = self.now();
        let raft = self.group.status();
        if !self.leading {
            self.fitness.waits_for = None;
        } else if self.fitness.waits_too_long(&raft, now) && self.others_are_enough(&raft) {
            tracing::warn!(group = %self.config.identity.group, "no entry was committed for long: the links are slow");
            self.fitness.slow_until = now + SLOW_KEPT;
            // Nobody has caught up: a transfer would wait for that.
            self.fitness.tried = true;
        }
        let members = &self.members;
        self.fitness.others.retain(|id| members.contains(&RaftId(*id)));
    }

    /// The others could go on without this replica, as far as it hears of them.
    fn others_are_enough(&self, raft: &Status) -> bool {
        let enough = raft.membership.voters.len() / 2 + 1;
        raft.peers.iter().filter(|peer| self.could_lead(peer)).count() >= enough
    }

    fn could_lead(&self, peer: &Peer) -> bool {
        !peer.learner && peer.active && !peer.snapshotting && !self.fitness.others.contains(&peer.id.0)
    }

    /// The voter to hand leadership to.
    pub(super) fn heir(&self) -> Option<RaftId> {
        let raft = self.group.status();
        furthest(&raft, |peer| self.could_lead(peer) && !raft.membership.is_joint())
    }

    /// The same, if need be one who will hand it on.
    pub(super) fn any_heir(&self) -> Option<RaftId> {
        self.heir().or_else(|| furthest(&self.group.status(), |peer| !peer.learner && peer.active))
    }

    /// Hands leadership over, if this replica has it and should not, and there is someone who should.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_holds_now_beside_what_it_says_anyway() {
        for kept in ["", "waits for a snapshot", "two parts; of one note"] {
            let with = |why: &str| if kept.is_empty() { why.to_owned() } else { format!("{kept}; {why}") };
            let mut said = kept.to_owned();
            for unfit in [Some(FULL), Some(FULL), Some(NO_HANDLES), Some(SLOW), None, None, Some(SLOW)] {
                said = note(&said, unfit);
                assert_eq!(said, unfit.map_or(kept.to_owned(), with));
            }
        }
    }
}
