//! The status of a replica: its role, its progress, and its group's members.

use std::fmt;

use coppice_types::RaftId;

use super::readers::Readers;

/// A replica's part in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// The replica has not taken its first step.
    #[default]
    Unknown,
    Leader,
    /// A voter that does not lead.
    Follower,
    /// A voter that stands for election.
    Candidate,
    /// A copy without a vote.
    Learner,
    /// The replica's state diverged or is damaged; it waits for a snapshot.
    Quarantined,
    /// The replica does not run, for good or until a shortage ends.
    Stopped,
}

impl Role {
    /// The role's name in messages and metrics; empty for [`Role::Unknown`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Quarantined => "quarantined",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub raft_id: RaftId,
    /// The node that hosts the member.
    pub node: String,
}

/// A replica's current status.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub role: Role,
    /// Raft's term.
    pub term: u64,
    /// `None` if unknown.
    pub leader: Option<RaftId>,
    /// The leader's node, empty if unknown.
    pub leader_node: String,
    /// The last applied entry.
    pub applied: u64,
    /// The last entry that is known to be committed.
    pub committed: u64,
    /// The last entry of the log.
    pub last: u64,
    /// Number of entries in the log.
    pub log_entries: u64,
    /// Space that the log takes on the disk.
    pub log_bytes: u64,
    /// Whether new versions are refused because the disk is full.
    pub full: bool,
    /// Whether the replica stopped for good: only a restart of the process may bring it back.
    pub broken: bool,
    pub voters: Vec<Member>,
    pub learners: Vec<Member>,
    /// On a leader, its view of the group's readers; `None` without any.
    pub readers: Option<Readers>,
    /// The reason why the replica does not serve; empty if it does.
    pub note: String,
}
