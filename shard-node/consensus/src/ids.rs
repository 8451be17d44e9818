//! Names of replicas, positions in the log, and memberships.

use coppice_types::{
    Position, RaftId,
    codec::{Error as DecodeError, Reader, Writer},
};
use raft::eraftpb::ConfState;

use crate::width::len8;

/// The largest number in a message or on disk. Sums of a few such numbers never overflow.
pub(crate) const NUMBER_MAX: u64 = u64::MAX >> 2;

/// Limit on the number of replicas that one list of a membership may name.
const REPLICAS_MAX: usize = 64;

/// Whether raft accepts the id: it has no use for zero.
pub(crate) fn is_legal(id: RaftId) -> bool {
    id.0 != 0
}

/// Appends a position: 16 bytes.
pub(crate) fn put_position(writer: &mut Writer, position: Position) {
    writer.u64(position.index);
    writer.u64(position.term);
}

/// Reads a position, whose numbers are small enough to be added to others.
pub(crate) fn take_position(reader: &mut Reader<'_>) -> Result<Position, DecodeError> {
    Ok(Position { index: number(reader)?, term: number(reader)? })
}

/// Reads a number that is small enough to be added to others.
pub(crate) fn number(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let value = reader.u64()?;
    if value > NUMBER_MAX { Err(DecodeError::Malformed("number")) } else { Ok(value) }
}

/// The members of a group. All lists are sorted and have no duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The replicas that vote; in a joint membership, the new ones.
    pub voters: Vec<RaftId>,
    /// The replicas that get the log but do not vote.
    pub learners: Vec<RaftId>,
    /// In a joint membership, the previous voters: a decision needs a majority of both sets.
    /// Otherwise empty.
    pub voters_outgoing: Vec<RaftId>,
    /// In a joint membership, the outgoing voters that become learners.
    pub learners_next: Vec<RaftId>,
    /// Whether the joint membership ends by itself.
    pub auto_leave: bool,
}

impl Membership {
    /// A membership of voters only.
    #[must_use]
    pub fn of_voters(voters: &[RaftId]) -> Self {
        let mut voters = voters.to_vec();
        voters.sort();
        Self { voters, ..Self::default() }
    }

    /// Whether two sets of voters are in force at the same time.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// Whether the replica has a vote in at least one set.
    #[must_use]
    pub fn is_voter(&self, id: RaftId) -> bool {
        self.voters.contains(&id) || self.voters_outgoing.contains(&id)
    }

    /// Whether the replica gets the log.
    #[must_use]
    pub fn contains(&self, id: RaftId) -> bool {
        self.is_voter(id) || self.learners.contains(&id)
    }

    /// How many replicas are members.
    fn count(&self) -> usize {
        let outgoing = self.voters_outgoing.iter().filter(|id| !self.voters.contains(id));
        self.voters.len() + self.learners.len() + outgoing.count()
    }

    /// Whether a log and a message can name all members together with `ids`.
    pub(crate) fn has_room_for(&self, ids: impl Iterator<Item = RaftId>) -> bool {
        self.count() + ids.filter(|id| !self.contains(*id)).count() <= REPLICAS_MAX
    }

    /// Whether there are no members: the replica has not joined its group yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether `ids` hold a majority of each set, so that the other replicas can't decide anything.
    #[must_use]
    pub fn is_quorum(&self, ids: &[RaftId]) -> bool {
        let majority = |voters: &[RaftId]| {
            let have = voters.iter().filter(|id| ids.contains(id)).count();
            voters.is_empty() || have > voters.len() / 2
        };
        !self.voters.is_empty() && majority(&self.voters) && majority(&self.voters_outgoing)
    }

    /// Checks that raft accepts the membership: it could have come from legal changes.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        let disjoint = |a: &[RaftId], b: &[RaftId]| a.iter().all(|id| !b.contains(id));
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        let sorted = lists.iter().all(|list| list.windows(2).all(|pair| pair[0] < pair[1]));
        let legal = lists.iter().all(|list| list.len() <= REPLICAS_MAX && list.iter().all(|id| is_legal(*id)));
        let ok = sorted
            && legal
            && !self.voters.is_empty()
            && disjoint(&self.learners, &self.voters)
            && disjoint(&self.learners, &self.voters_outgoing)
            && disjoint(&self.learners_next, &self.voters)
            && self.learners_next.iter().all(|id| self.voters_outgoing.contains(id))
            && (self.is_joint() || !self.auto_leave);
        if ok || self.is_empty() { Ok(()) } else { Err(DecodeError::Malformed("membership")) }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            assert!(list.len() <= REPLICAS_MAX, "a longer list can't be read again");
            writer.u8(len8(list.len()));
            list.iter().for_each(|id| writer.u64(id.0));
        }
        writer.flag(self.auto_leave);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut lists: [Vec<RaftId>; 4] = Default::default();
        for list in &mut lists {
            let count = reader.u8()?;
            for _ in 0..count {
                list.push(RaftId(reader.u64()?));
            }
        }
        let [voters, learners, voters_outgoing, learners_next] = lists;
        let auto_leave = reader.flag("auto leave")?;
        let membership = Self { voters, learners, voters_outgoing, learners_next, auto_leave };
        membership.check()?;
        Ok(membership)
    }

    pub(crate) fn from_raft(state: &ConfState) -> Self {
        let sorted = |ids: &[u64]| {
            let mut ids: Vec<RaftId> = ids.iter().map(|id| RaftId(*id)).collect();
            ids.sort();
            ids
        };
        Self {
            voters: sorted(&state.voters),
            learners: sorted(&state.learners),
            voters_outgoing: sorted(&state.voters_outgoing),
            learners_next: sorted(&state.learners_next),
            auto_leave: state.auto_leave,
        }
    }

    pub(crate) fn to_raft(&self) -> ConfState {
        let raw = |ids: &[RaftId]| ids.iter().map(|id| id.0).collect::<Vec<u64>>();
        let mut state = ConfState::default();
        state.set_voters(raw(&self.voters));
        state.set_learners(raw(&self.learners));
        state.set_voters_outgoing(raw(&self.voters_outgoing));
        state.set_learners_next(raw(&self.learners_next));
        state.set_auto_leave(self.auto_leave);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<RaftId> {
        numbers.iter().map(|number| RaftId(*number)).collect()
    }

    fn joint() -> Membership {
        Membership {
            voters: ids(&[1, 2, 3]),
            learners: ids(&[6]),
            voters_outgoing: ids(&[3, 4, 5]),
            learners_next: ids(&[5]),
            auto_leave: true,
        }
    }

    #[test]
    fn a_joint_membership_decides_by_a_majority_of_both_sets() {
        let membership = joint();
        assert_eq!(membership.check(), Ok(()));
        assert!(membership.is_quorum(&ids(&[2, 3, 4])));
        assert!(!membership.is_quorum(&ids(&[1, 2, 3])), "one of the outgoing voters");
        assert!(!membership.is_quorum(&ids(&[3, 4, 5])), "one of the new voters");
        assert!(!Membership::default().is_quorum(&ids(&[1])), "nobody votes");
    }

    #[test]
    fn a_membership_that_raft_would_refuse_is_malformed() {
        let cases: [fn(&mut Membership); 6] = [
            |it| it.voters.reverse(),
            |it| it.voters.clear(),
            |it| it.learners = ids(&[1]),
            |it| it.learners_next = ids(&[6]),
            |it| it.voters = (0..65).map(RaftId).collect(),
            |it| (it.voters_outgoing, it.learners_next) = (Vec::new(), Vec::new()),
        ];
        for (number, spoil) in cases.iter().enumerate() {
            let mut membership = joint();
            spoil(&mut membership);
            assert_eq!(membership.check(), Err(DecodeError::Malformed("membership")), "case {number}");
        }
    }

    #[test]
    fn an_id_holds_ordinal_and_incarnation() {
        let id = RaftId::new(7, 3);
        assert_eq!((id.ordinal(), id.incarnation(), id.to_string()), (7, 3, "7.3".to_owned()));
    }
}
