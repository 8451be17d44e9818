//! The values that a group hands to its caller.

use bytes::Bytes;
use coppice_env::Workers;

use crate::{Membership, Position, RaftId};

/// A read that waits for its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// The content of a committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A proposal.
    Data(Bytes),
    /// No content: a new leader's first entry, or a change of membership that was refused.
    Empty,
    /// The group's members after this entry. Raft already uses them.
    Membership(Membership),
}

/// A committed entry. Entries are applied in the order in which they are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub position: Position,
    pub payload: Payload,
}

/// The answer to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReady {
    pub id: ReadId,
    /// The read may be served once this entry is applied.
    pub index: u64,
}

/// A leader's snapshot. The caller fetches its files, checks them and makes them durable next to
/// the present state. Then it calls [`crate::Group::accept_snapshot`] or
/// [`crate::Group::refuse_snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The last entry that the snapshot covers.
    pub position: Position,
    /// The replica that offers it.
    pub from: RaftId,
    /// The manifest, which tells the state machine which files to fetch.
    pub manifest: Bytes,
}

/// An accepted snapshot to which the log was durably reset. The state machine must switch to it
/// before it applies anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// The last entry that the snapshot covers: the machine's position from now on.
    pub position: Position,
    /// The manifest of the offer.
    pub manifest: Bytes,
    /// The group's members at that position.
    pub membership: Membership,
}

/// A replica's role in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica orders the entries.
    Leader,
    /// The replica follows a leader, or waits for one.
    Follower,
    /// The replica asks for votes.
    Candidate,
}

/// A change of role or leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// This replica's role.
    pub role: Role,
    /// The leader; `None` if it is unknown.
    pub leader: Option<RaftId>,
    /// The raft term.
    pub term: u64,
}

/// Work to do while a large batch is being written.
pub struct Beside<'b> {
    /// The threads that may write the batch. Without threads, the caller's thread writes it after
    /// `meanwhile`.
    pub workers: Workers,
    /// Called while the batch is being written.
    pub meanwhile: &'b mut dyn FnMut(&Writing<'_>),
    /// Called by the writing thread, for batches of any size: with `false` before the write, and
    /// with `true` when the batch is durable or the write has failed.
    pub writes: &'b (dyn Fn(bool) + Sync),
}

impl Beside<'_> {
    /// Calls a function with nothing to do beside a write.
    pub(crate) fn alone<T>(act: impl FnOnce(&mut Beside<'_>) -> T) -> T {
        act(&mut Beside { workers: Workers::Inline, meanwhile: &mut |_| {}, writes: &|_| {} })
    }
}

/// A batch that is being written. It may never become durable.
pub struct Writing<'w> {
    /// The proposals in the batch, by index.
    pub commands: &'w [(u64, Bytes)],
    /// Whether the write is still running.
    pub goes_on: &'w dyn Fn() -> bool,
}

/// The results of one call of [`crate::Group::advance`], to be handled in the order of the fields.
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
    /// An accepted snapshot that is not needed any more. Its files can be removed.
    pub snapshot_discarded: Option<Position>,
    /// A follower needs a snapshot of at least this index. The caller pins one and calls
    /// [`crate::Group::set_snapshot`].
    pub snapshot_wanted: Option<u64>,
    /// Whether this replica was removed from its group.
    pub removed: bool,
}

/// A leader's view of another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub id: RaftId,
    /// Whether the replica has no vote.
    pub learner: bool,
    /// The last entry that the replica is known to have.
    pub matched: u64,
    /// Whether the leader heard from the replica lately.
    pub active: bool,
    /// Whether the replica is being sent a snapshot.
    pub snapshotting: bool,
}

/// The state of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub id: RaftId,
    pub role: Role,
    /// The leader; `None` if it is unknown.
    pub leader: Option<RaftId>,
    /// The raft term.
    pub term: u64,
    /// The last entry known to be committed.
    pub commit: u64,
    /// The last entry that the state machine has applied.
    pub applied: u64,
    /// The position after which the log holds entries.
    pub base: Position,
    /// The position of the log's last entry.
    pub last: Position,
    /// Bytes that the log's files take on the disk.
    pub log_bytes: u64,
    pub membership: Membership,
    /// On a leader, the other replicas, by id; otherwise empty.
    pub peers: Vec<Peer>,
    /// Whether this replica does not trust its own state.
    pub quarantined: bool,
}

/// The content of a sound log, as [`crate::Group::inspect`] found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// The position after which the log holds entries.
    pub base: Position,
    /// The position of the log's last entry.
    pub last: Position,
    /// The last entry that the log knows to be committed.
    pub commit: u64,
    /// How many segment files count.
    pub segments: usize,
    /// How many files the next start removes.
    pub leftovers: usize,
    /// Whether a crash cut off the last write. The next start removes the rest of that write.
    pub torn: bool,
    /// Whether the replica does not trust its own state.
    pub quarantined: bool,
}
