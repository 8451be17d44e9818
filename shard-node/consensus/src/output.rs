//! What a group hands to its caller.

use bytes::Bytes;
use coppice_env::Workers;

use crate::{Membership, Position, RaftId};

/// A read that waits for its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What a committed entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A proposal.
    Data(Bytes),
    /// Nothing: a new leader's first entry, or a change of membership that was refused.
    Empty,
    /// Who is in the group from here on. Raft knows already.
    Membership(Membership),
}

/// A committed entry, to be applied in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where it stands.
    pub position: Position,
    /// What it says.
    pub payload: Payload,
}

/// An answer to a read: it may be served once this much is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReady {
    /// Which read.
    pub id: ReadId,
    /// What must be applied first.
    pub index: u64,
}

/// A leader's snapshot. Its files are fetched, checked and made durable beside the present state, then
/// [`crate::Group::accept_snapshot`] or [`crate::Group::refuse_snapshot`] is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// What the snapshot covers.
    pub position: Position,
    /// Who offers it.
    pub from: RaftId,
    /// How to fetch it.
    pub manifest: Bytes,
}

/// The log was reset to an accepted snapshot, durably: the state machine must switch to it before it applies anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// What the snapshot covers; the machine's position from now on.
    pub position: Position,
    /// What was offered.
    pub manifest: Bytes,
    /// Who is in the group.
    pub membership: Membership,
}

/// What a replica does in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It orders the entries.
    Leader,
    /// It follows a leader, or waits for one.
    Follower,
    /// It asks for votes.
    Candidate,
}

/// A change of role or leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// This replica's role.
    pub role: Role,
    /// The leader, as far as known.
    pub leader: Option<RaftId>,
    /// The raft term.
    pub term: u64,
}

/// What goes on beside the writing of a large batch.
pub struct Beside<'b> {
    /// Who writes: one of them, or, if there are none, the caller's thread, after `meanwhile`.
    pub workers: Workers,
    /// What is done meanwhile.
    pub meanwhile: &'b mut dyn FnMut(&Writing<'_>),
    /// Called by who writes, for batches of any size: `false` before that, and `true` when the batch is durable or writing it has failed.
    pub writes: &'b (dyn Fn(bool) + Sync),
}

/// A batch that is being written: it may never be durable.
pub struct Writing<'w> {
    /// What was proposed, by index.
    pub commands: &'w [(u64, Bytes)],
    /// Whether the writing still goes on.
    pub goes_on: &'w dyn Fn() -> bool,
}

/// What one call of [`crate::Group::advance`] brought. To be handled in the order of the fields.
#[derive(Debug, Default)]
pub struct Output {
    /// The last change of role or leader.
    pub role: Option<RoleChange>,
    /// A snapshot to switch to, before `committed`.
    pub install: Option<Install>,
    /// Entries to apply.
    pub committed: Vec<Committed>,
    /// Reads that have an index.
    pub reads: Vec<ReadReady>,
    /// A snapshot to fetch.
    pub snapshot_offer: Option<SnapshotOffer>,
    /// An accepted snapshot that is not needed any more: its files can go.
    pub snapshot_discarded: Option<Position>,
    /// A follower needs a snapshot of at least this index: pin one and call [`crate::Group::set_snapshot`].
    pub snapshot_wanted: Option<u64>,
    /// This replica was removed from its group.
    pub removed: bool,
}

/// A leader's view of another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which one.
    pub id: RaftId,
    /// It has no vote.
    pub learner: bool,
    /// It is known to have the log up to here.
    pub matched: u64,
    /// It was heard of lately.
    pub active: bool,
    /// It is being sent a snapshot.
    pub snapshotting: bool,
}

/// The state of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who it is.
    pub id: RaftId,
    /// What it does.
    pub role: Role,
    /// Whom it follows.
    pub leader: Option<RaftId>,
    /// The raft term.
    pub term: u64,
    /// What is known to be committed.
    pub commit: u64,
    /// What the state machine has applied.
    pub applied: u64,
    /// The log holds entries after this.
    pub base: Position,
    /// Where the log ends.
    pub last: Position,
    /// What the log's files take on the disk.
    pub log_bytes: u64,
    /// Who is in the group.
    pub membership: Membership,
    /// On a leader, the others, by id.
    pub peers: Vec<Peer>,
    /// It does not trust itself.
    pub quarantined: bool,
}

/// What [`crate::Group::inspect`] found in a log that is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// The log holds entries after this.
    pub base: Position,
    /// Where it ends.
    pub last: Position,
    /// What it knows to be committed.
    pub commit: u64,
    /// Its files.
    pub segments: usize,
    /// Files that the next start removes.
    pub leftovers: usize,
    /// The last write was cut off by a crash; the next start removes what is left of it.
    pub torn: bool,
    /// The replica does not trust its state.
    pub quarantined: bool,
}
