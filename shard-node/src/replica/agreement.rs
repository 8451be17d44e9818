//! The comparison of entries' outcomes between replicas (protocol.md 5.2, 5.3).
//!
//! Every replica tells all others the digest of each entry's outcome, after the fsync that covers
//! the entry. A proposer is answered only when a majority of the voters reports the same digest;
//! while the members change, a majority of both configurations. A replica that finds a majority for
//! a different digest than its own has diverged.
//!
//! Invariants: this replica's digests are noted in ascending order of index. At most
//! [`AGREEMENTS_MAX`] entries are compared at a time, and the oldest are forgotten. Reports may be
//! lost, repeated or late: [`Agreements::overdue`] returns those to send again.

use std::collections::BTreeMap;

use coppice_env::bug::{Bug, planted};
use coppice_types::{Digest, RaftId};

use crate::limits::AGREEMENTS_MAX;

/// How often a digest without a majority is sent again.
const REPEATS_MAX: u8 = 100;

/// The voters of a group; the second list is empty unless the configuration is joint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voters {
    /// Voters of the present configuration, or of the next one while members change.
    pub incoming: Vec<RaftId>,
    /// Voters of the configuration that is being left.
    pub outgoing: Vec<RaftId>,
}

impl Voters {
    /// Whether `holds` accepts a majority of each configuration.
    pub fn majority(&self, holds: impl Fn(RaftId) -> bool) -> bool {
        let of = |voters: &[RaftId]| voters.iter().filter(|&&id| holds(id)).count() * 2 > voters.len();
        !self.incoming.is_empty() && of(&self.incoming) && (self.outgoing.is_empty() || of(&self.outgoing))
    }
}

/// The result of comparing one entry so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No majority is known yet.
    Open,
    /// A majority has this replica's digest.
    Agreed,
    /// A majority has this other digest.
    Diverged(Digest),
}

#[derive(Debug, Default)]
struct Votes {
    own: Option<Digest>,
    reports: BTreeMap<RaftId, Digest>,
    agreed: bool,
    repeats: u8,
}

/// The comparisons in progress of one replica.
#[derive(Debug)]
pub struct Agreements {
    own_id: RaftId,
    entries: BTreeMap<u64, Votes>,
}

impl Agreements {
    /// An empty set of comparisons.
    #[must_use]
    pub fn new(own_id: RaftId) -> Self {
        Self { own_id, entries: BTreeMap::new() }
    }

    fn votes(&mut self, index: u64) -> &mut Votes {
        while self.entries.len() >= AGREEMENTS_MAX && !self.entries.contains_key(&index) {
            self.entries.pop_first();
        }
        self.entries.entry(index).or_default()
    }

    /// Notes this replica's digest of an entry.
    pub fn note_own(&mut self, index: u64, digest: Digest) {
        let own_id = self.own_id;
        let votes = self.votes(index);
        votes.own = Some(digest);
        votes.reports.insert(own_id, digest);
    }

    /// Notes another replica's digest of an entry. Reports for entries far from the compared ones
    /// are dropped.
    pub fn note_report(&mut self, from: RaftId, index: u64, digest: Digest) {
        let full = self.entries.len() >= AGREEMENTS_MAX;
        let newest_own =
            self.entries.iter().rev().find(|(_, votes)| votes.own.is_some()).map_or(0, |(&index, _)| index);
        let too_old = self.entries.first_key_value().is_some_and(|(&oldest, _)| full && index < oldest);
        let too_new = index > newest_own.saturating_add(AGREEMENTS_MAX as u64) && newest_own > 0;
        if from == self.own_id || too_old || too_new {
            return;
        }
        self.votes(index).reports.insert(from, digest);
    }

    /// The result of comparing an entry so far.
    pub fn verdict(&mut self, index: u64, voters: &Voters) -> Verdict {
        let Some(votes) = self.entries.get_mut(&index) else { return Verdict::Open };
        let Some(own) = votes.own else { return Verdict::Open };
        let has = |digest: Digest, id: RaftId| votes.reports.get(&id) == Some(&digest);
        if planted(Bug::OneDigestBelieved) || voters.majority(|id| has(own, id)) {
            votes.agreed = true;
            return Verdict::Agreed;
        }
        let other = votes.reports.values().find(|&&digest| digest != own && voters.majority(|id| has(digest, id)));
        other.map_or(Verdict::Open, |&digest| Verdict::Diverged(digest))
    }

    /// This replica's newest digests that no majority is known to share, at most `max` of them.
    /// They are sent again, with a request for the receivers' digests. Each is returned at most
    /// `REPEATS_MAX` times: others may have forgotten the entry, or be gone.
    pub fn overdue(&mut self, max: usize) -> Vec<(u64, Digest)> {
        let open = self.entries.iter_mut().rev().filter(|(_, votes)| !votes.agreed && votes.repeats < REPEATS_MAX);
        let with_own = open.filter_map(|(&index, votes)| votes.own.map(|own| (index, own, votes)));
        with_own
            .take(max)
            .map(|(index, own, votes)| {
                votes.repeats += 1;
                (index, own)
            })
            .collect()
    }

    /// Whether none of this replica's digests is to be sent again.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.entries.values().all(|votes| votes.agreed || votes.own.is_none() || votes.repeats >= REPEATS_MAX)
    }

    /// This replica's digest of an entry, if the entry is still being compared.
    #[must_use]
    pub fn own(&self, index: u64) -> Option<Digest> {
        self.entries.get(&index).and_then(|votes| votes.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Digest = Digest([1; 32]);
    const B: Digest = Digest([2; 32]);

    fn three() -> Voters {
        Voters { incoming: [1, 2, 3].map(RaftId).to_vec(), outgoing: vec![] }
    }

    #[test]
    fn an_answer_needs_a_majority_that_includes_this_replicas_digest() {
        let mut agreements = Agreements::new(RaftId(1));
        agreements.note_report(RaftId(2), 5, A);
        agreements.note_report(RaftId(3), 5, A);
        assert_eq!(agreements.verdict(5, &three()), Verdict::Open);
        agreements.note_own(5, A);
        assert_eq!(agreements.verdict(5, &three()), Verdict::Agreed);
        agreements.note_own(6, A);
        assert_eq!(agreements.verdict(6, &three()), Verdict::Open);
        agreements.note_report(RaftId(2), 6, B);
        assert_eq!(agreements.verdict(6, &three()), Verdict::Open);
        agreements.note_report(RaftId(3), 6, B);
        assert_eq!(agreements.verdict(6, &three()), Verdict::Diverged(B));
        assert_eq!(agreements.overdue(9), vec![(6, A)]);
    }

    #[test]
    fn learners_do_not_count() {
        let mut agreements = Agreements::new(RaftId(1));
        agreements.note_own(5, A);
        agreements.note_report(RaftId(4), 5, A);
        agreements.note_report(RaftId(5), 5, A);
        assert_eq!(agreements.verdict(5, &three()), Verdict::Open);
        agreements.note_report(RaftId(2), 5, A);
        assert_eq!(agreements.verdict(5, &three()), Verdict::Agreed);
    }

    #[test]
    fn a_joint_configuration_needs_both_majorities() {
        let voters = Voters { incoming: [1, 2, 4].map(RaftId).to_vec(), outgoing: [1, 2, 3].map(RaftId).to_vec() };
        let mut agreements = Agreements::new(RaftId(1));
        agreements.note_own(5, A);
        agreements.note_report(RaftId(4), 5, A);
        assert_eq!(agreements.verdict(5, &voters), Verdict::Open);
        agreements.note_report(RaftId(3), 5, A);
        assert_eq!(agreements.verdict(5, &voters), Verdict::Agreed);
    }

    #[test]
    fn a_single_voter_agrees_with_itself_and_an_empty_group_with_nobody() {
        let mut agreements = Agreements::new(RaftId(1));
        agreements.note_own(5, A);
        assert_eq!(
            agreements.verdict(5, &Voters { incoming: [1].map(RaftId).to_vec(), outgoing: vec![] }),
            Verdict::Agreed
        );
        assert_eq!(agreements.verdict(5, &Voters::default()), Verdict::Open);
    }

    #[test]
    fn memory_is_bounded_whatever_is_reported() {
        let mut agreements = Agreements::new(RaftId(1));
        (1..=5000).for_each(|index| agreements.note_own(index, A));
        (0..10_000).for_each(|index| agreements.note_report(RaftId(2), index * 7, B));
        assert!(agreements.entries.len() <= AGREEMENTS_MAX);
        agreements.note_report(RaftId(2), u64::MAX, B);
        assert_eq!(agreements.own(5000), Some(A));
    }
}
