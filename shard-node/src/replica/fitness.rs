//! Whether a replica is fit to lead its group.
//!
//! A replica is unfit if its disk is full, if file descriptors have run out, or if a sync takes
//! longer than followers wait for a message from their leader. A leader is also unfit if its
//! entries are not acknowledged although it hears from the others: its links are slow. Every
//! message to the other replicas says whether the sender is unfit. The consequences are in
//! `actor/leadership`.

use std::{collections::BTreeSet, time::Duration};

use coppice_consensus::{Peer, RaftId, Status};
use coppice_env::Shortage;

/// A sync of this length keeps a leader silent for as long as followers wait before they campaign.
pub(super) const SYNC_SLOW: Duration = Duration::from_millis(500);
/// A leader that waits this long for an entry to be committed has slow links.
const COMMIT_SLOW: Duration = Duration::from_millis(1200);
/// How long a replica that was slow counts as slow.
pub(super) const SLOW_KEPT: Duration = Duration::from_secs(10);

const FULL: &str = "the disk is full";
const NO_HANDLES: &str = "file descriptors or memory ran out";
pub(super) const SLOW: &str = "the disk or the links are slow";
const BETWEEN: &str = "; ";

/// A replica's knowledge of its own fitness and that of the others.
#[derive(Debug, Default)]
pub(super) struct Fitness {
    /// Whether the other replicas are told that this one is unfit.
    pub(super) told: bool,
    pub(super) slow_until: Duration,
    /// An entry that a leader waits for, and since when.
    pub(super) waits_for: Option<(u64, Duration)>,
    /// Replicas that said that they are unfit.
    pub(super) others: BTreeSet<RaftId>,
    /// The tick from which leadership may be handed over again.
    pub(super) next_try: u64,
    /// Whether a transfer of leadership has failed.
    pub(super) tried: bool,
}

impl Fitness {
    /// Notes whether another replica says that it is unfit.
    pub(super) fn note_other(&mut self, id: RaftId, unfit: bool) {
        if unfit {
            self.others.insert(id);
        } else {
            self.others.remove(&id);
        }
    }

    /// Whether a leader has waited too long for an entry to be committed.
    pub(super) fn waits_too_long(&mut self, raft: &Status, now: Duration) -> bool {
        self.waits_for = self.waits_for.filter(|(index, _)| *index > raft.commit);
        if raft.last.index > raft.commit {
            let (_, since) = *self.waits_for.get_or_insert((raft.last.index, now));
            return now.saturating_sub(since) > COMMIT_SLOW;
        }
        false
    }
}

/// The peer with the most of the log, of those that `fits` accepts.
pub(super) fn furthest(raft: &Status, fits: impl Fn(&Peer) -> bool) -> Option<RaftId> {
    raft.peers.iter().filter(|peer| fits(peer)).max_by_key(|peer| peer.matched).map(|peer| peer.id)
}

/// The note `said` with `unfit` at its end. An earlier addition by this function is replaced.
pub(super) fn note(said: &str, unfit: Option<&'static str>) -> String {
    let kept = [FULL, NO_HANDLES, SLOW].into_iter().find_map(|why| said.strip_suffix(why)).unwrap_or(said);
    let kept = kept.strip_suffix(BETWEEN).unwrap_or(kept);
    [kept, unfit.unwrap_or_default()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(BETWEEN)
}

/// The note of a replica that lacks a resource.
pub(super) fn shortage(short_of: Shortage) -> &'static str {
    match short_of {
        Shortage::Space => FULL,
        Shortage::Handles => NO_HANDLES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_holds_now_and_what_it_says_anyway() {
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
