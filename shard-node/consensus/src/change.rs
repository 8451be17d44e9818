//! Changes of a group's membership, as they are encoded in the log.

use coppice_types::codec::{Error as DecodeError, Reader, Writer};
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2};

use crate::{
    Membership, RaftId,
    error::{Error, Result},
    ids::is_legal,
    width::len8,
};

const FORMAT: u8 = 1;
/// Limit on the number of changes in one entry.
const CHANGES_MAX: usize = 16;

/// One change of a group's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a new replica, which gets the log but has no vote.
    AddLearner(RaftId),
    /// Gives a vote to a learner that has caught up.
    Promote(RaftId),
    /// Removes a replica for good.
    Remove(RaftId),
}

impl Change {
    /// The replica that is changed.
    #[must_use]
    pub fn id(self) -> RaftId {
        match self {
            Self::AddLearner(id) | Self::Promote(id) | Self::Remove(id) => id,
        }
    }

    fn raft_type(self) -> ConfChangeType {
        match self {
            Self::AddLearner(_) => ConfChangeType::AddLearnerNode,
            Self::Promote(_) => ConfChangeType::AddNode,
            Self::Remove(_) => ConfChangeType::RemoveNode,
        }
    }
}

/// Encodes changes. The encoding of no changes, which ends a joint membership, is empty.
pub(crate) fn encode(changes: &[Change]) -> Vec<u8> {
    if changes.is_empty() {
        return Vec::new();
    }
    assert!(changes.len() <= CHANGES_MAX, "more changes can't be read again");
    let mut writer = Writer::new();
    writer.u8(FORMAT);
    writer.u8(len8(changes.len()));
    for change in changes {
        let kind = match change {
            Change::AddLearner(_) => 1,
            Change::Promote(_) => 2,
            Change::Remove(_) => 3,
        };
        writer.u8(kind);
        writer.u64(change.id().0);
    }
    writer.into_bytes()
}

pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Vec<Change>, DecodeError> {
    let mut changes = Vec::new();
    if bytes.is_empty() {
        return Ok(changes);
    }
    let mut reader = Reader::new(bytes);
    if reader.u8()? != FORMAT {
        return Err(DecodeError::Malformed("change format"));
    }
    for _ in 0..reader.u8()? {
        let kind = reader.u8()?;
        let id = RaftId(reader.u64()?);
        changes.push(match kind {
            1 => Change::AddLearner(id),
            2 => Change::Promote(id),
            3 => Change::Remove(id),
            _ => return Err(DecodeError::Malformed("change kind")),
        });
    }
    reader.finish()?;
    if changes.is_empty() || changes.len() > CHANGES_MAX || changes.iter().any(|change| !is_legal(change.id())) {
        return Err(DecodeError::Malformed("changes"));
    }
    Ok(changes)
}

/// Raft's form of changes. A single change is simple; several go through a joint membership that
/// ends by itself.
pub(crate) fn to_raft(changes: &[Change]) -> ConfChangeV2 {
    let mut raft = ConfChangeV2::default();
    for change in changes {
        let mut single = ConfChangeSingle { node_id: change.id().0, ..Default::default() };
        single.set_change_type(change.raft_type());
        raft.mut_changes().push(single);
    }
    raft
}

/// Checks that changes make sense for a membership.
pub(crate) fn check(changes: &[Change], membership: &Membership, leader: RaftId) -> Result<()> {
    if changes.is_empty() || changes.len() > CHANGES_MAX {
        return Err(Error::Invalid("a change of membership must have 1 to 16 parts"));
    }
    for (at, change) in changes.iter().enumerate() {
        let id = change.id();
        if !is_legal(id) || changes[..at].iter().any(|before| before.id() == id) {
            return Err(Error::Invalid("each replica may be changed only once"));
        }
        match change {
            Change::AddLearner(_) if membership.contains(id) => {
                return Err(Error::Invalid("the replica is in the group already"));
            }
            Change::Promote(_) if !membership.learners.contains(&id) => {
                return Err(Error::Invalid("only a learner can be promoted"));
            }
            Change::Remove(_) if !membership.contains(id) => {
                return Err(Error::Invalid("the replica is not in the group"));
            }
            Change::Remove(_) if id == leader => {
                return Err(Error::Invalid("the leader can't remove itself: transfer the leadership first"));
            }
            _ => {}
        }
    }
    if !membership.has_room_for(changes.iter().map(|change| change.id())) {
        return Err(Error::Invalid("a group can have at most 64 replicas: remove one first"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_encoding_and_nothing_else_decodes() {
        let changes = [Change::AddLearner(RaftId::new(1, 2)), Change::Promote(RaftId(9)), Change::Remove(RaftId(3))];
        let bytes = encode(&changes);
        assert_eq!(decode(&bytes), Ok(changes.to_vec()));
        assert_eq!(decode(&encode(&[])), Ok(vec![]));
        for len in 1..bytes.len() {
            assert!(decode(&bytes[..len]).is_err());
        }
        assert!(decode(&[1, 0]).is_err(), "no changes are said by no bytes");
        assert!(decode(&[1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "nobody has the id zero");
    }
}
