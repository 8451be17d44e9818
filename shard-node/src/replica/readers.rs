//! A leader's look at the readers of its group: how far they are behind, and which have gone.
//!
//! Nothing waits for a reader. The log is cut whether or not a reader has its entries, and a
//! snapshot that only readers fetch is pinned for a limited time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use coppice_consensus::{Peer, RaftId, Status};

/// How long a learner must be silent until its group forgets it, if its node is not configured.
/// During a change of the configuration, a leader may not know yet that a reader is to come.
const GONE_AFTER: Duration = Duration::from_secs(600);
/// How long a snapshot may stay pinned for readers alone. Then the transfer begins again, with the
/// bytes that have arrived.
const PINNED_MAX: Duration = Duration::from_secs(600);
/// Size of the raft log at which such a snapshot is given up earlier: the log is kept from the
/// snapshot on.
const PINNED_LOG_BYTES_MAX: u64 = 1 << 30;

/// The readers of a group, as its leader sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readers {
    /// How many committed entries the slowest of them lacks.
    pub lag: u64,
    /// How many of them the leader has not heard from lately.
    pub silent: u64,
}

impl Readers {
    /// The readers among a leader's peers; `None` if there are none.
    pub fn among(raft: &Status, is_reader: impl Fn(RaftId) -> bool) -> Option<Self> {
        let readers = raft.peers.iter().filter(|peer| peer.learner && is_reader(peer.id));
        let seen = readers.map(|peer| (raft.commit.saturating_sub(peer.matched), u64::from(!peer.active)));
        seen.fold(None, |all: Option<Self>, (lag, silent)| {
            let all = all.unwrap_or_default();
            Some(Self { lag: all.lag.max(lag), silent: all.silent + silent })
        })
    }
}

/// Whether a snapshot that was pinned for so long, and is being sent to these peers alone, is given
/// up.
pub fn outstays<'a>(
    receiving: impl Iterator<Item = &'a Peer>,
    is_reader: impl Fn(RaftId) -> bool,
    pinned: Duration,
    log_bytes: u64,
) -> bool {
    let over = pinned > PINNED_MAX || log_bytes > PINNED_LOG_BYTES_MAX;
    let mut receiving = receiving.peekable();
    over && receiving.peek().is_some() && receiving.all(|peer| peer.learner && is_reader(peer.id))
}

/// Silent learners whose nodes are not configured, and since when.
#[derive(Debug, Default)]
pub struct Gone(BTreeMap<RaftId, Duration>);

impl Gone {
    /// Notes which of these learners are silent now. Returns one that has been for long.
    pub fn note(&mut self, silent: &BTreeSet<RaftId>, now: Duration) -> Option<RaftId> {
        self.0.retain(|id, _| silent.contains(id));
        for id in silent {
            self.0.entry(*id).or_insert(now);
        }
        self.0.iter().find(|(_, since)| now.saturating_sub(**since) >= GONE_AFTER).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use coppice_consensus::{Membership, Position, Role};

    use super::*;

    fn peer(ordinal: u32, learner: bool, matched: u64, active: bool) -> Peer {
        Peer { id: RaftId::new(ordinal, 1), learner, matched, active, snapshotting: true }
    }

    fn is_reader(id: RaftId) -> bool {
        id.ordinal() > 3
    }

    #[test]
    fn only_readers_count_as_readers_and_the_slowest_tells_the_lag() {
        let status = |peers: Vec<Peer>| Status {
            id: RaftId::new(3, 1),
            role: Role::Leader,
            leader: None,
            term: 1,
            commit: 100,
            applied: 100,
            base: Position::default(),
            last: Position::default(),
            log_bytes: 0,
            membership: Membership::default(),
            peers,
            quarantined: false,
        };
        let joining = peer(2, true, 0, false);
        assert_eq!(Readers::among(&status(vec![peer(1, false, 7, false), joining]), is_reader), None);
        let some = vec![joining, peer(4, true, 90, true), peer(5, true, 60, false), peer(6, true, 101, true)];
        assert_eq!(Readers::among(&status(some), is_reader), Some(Readers { lag: 40, silent: 1 }));
    }

    #[test]
    fn a_snapshot_for_readers_alone_is_given_up_in_time_and_one_for_a_voter_never() {
        let (reader, joining, voter) = (peer(4, true, 0, true), peer(3, true, 0, true), peer(2, false, 0, true));
        let over = |peers: &[Peer], pinned, log| outstays(peers.iter(), is_reader, pinned, log);
        let long = PINNED_MAX + Duration::from_millis(1);
        assert!(over(&[reader], long, 0) && over(&[reader], Duration::ZERO, PINNED_LOG_BYTES_MAX + 1));
        assert!(!over(&[reader], PINNED_MAX, PINNED_LOG_BYTES_MAX));
        assert!(!over(&[], long, u64::MAX), "it has not been offered yet");
        for other in [joining, voter] {
            assert!(!over(&[reader, other], long, u64::MAX), "{other:?}");
        }
    }

    #[test]
    fn a_learner_is_gone_only_after_a_long_silence_without_a_sign_of_life() {
        let (one, two) = (RaftId::new(4, 1), RaftId::new(5, 1));
        let mut gone = Gone::default();
        let mut at = |silent: &[RaftId], s| gone.note(&silent.iter().copied().collect(), Duration::from_secs(s));
        assert_eq!(at(&[one], 0), None);
        assert_eq!(at(&[one, two], 599), None);
        assert_eq!(at(&[one, two], 600), Some(one));
        assert_eq!(at(&[two], 1000), None, "the other one was removed, or heard");
        assert_eq!(at(&[one, two], 1199), Some(two));
    }
}
