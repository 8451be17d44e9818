//! Names of what raft groups replicate: positions in logs, states of shards, merges, and batches of
//! sessions.

use alloc::vec::Vec;
use core::fmt;

use crate::{
    Digest, Epoch, Sequence, SessionId, Term, Version,
    codec::{Error, Reader, Writer},
};

/// The name of one replica of a group: the node's ordinal, and how often the node has come back
/// without its disk. An id whose directory is lost is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RaftId(pub u64);

impl RaftId {
    /// Returns the id of an ordinal and an incarnation, which counts from 1.
    #[must_use]
    pub const fn new(ordinal: u32, incarnation: u32) -> Self {
        Self((ordinal as u64) << 32 | incarnation as u64)
    }

    /// The node's ordinal.
    #[must_use]
    pub const fn ordinal(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The node's incarnation, from 1.
    #[must_use]
    pub const fn incarnation(self) -> u32 {
        self.0 as u32
    }

    /// Returns the id that raft calls `raw`; `None` if it is zero, raft's word for nobody.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }
}

/// `ORDINAL.INCARNATION`
impl fmt::Display for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.ordinal(), self.incarnation())
    }
}

/// A place in a group's raft log. Entries at the same position are equal on all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Index of the entry. The first entry of a new group has index 2.
    pub index: u64,
    /// Raft's term in which the entry was proposed; not the [`Term`] of a coordinator.
    pub term: u64,
}

impl Position {
    /// Where the state machine of a new group starts, before any entry.
    pub const START: Self = Self { index: 1, term: 1 };
}

/// `INDEX@TERM`
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index, self.term)
    }
}

/// The exact name of one state of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardState {
    /// The newest version that touched the shard.
    pub version: Version,
    /// The shard digest at that version: it commits to the shard's forest.
    pub digest: Digest,
}

impl ShardState {
    /// Appends the version, then the digest: 40 bytes.
    pub fn encode(&self, out: &mut Writer) {
        out.u64(self.version.0);
        out.digest(&self.digest);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// `Truncated` if fewer than 40 bytes are left.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { version: Version(input.u64()?), digest: input.digest()? })
    }
}

/// The name of one attempt to prepare a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrepareId {
    /// The leading coordinator's term.
    pub term: Term,
    /// The number of the attempt in that term.
    pub attempt: u64,
}

/// The name of a merge: the trees that go into it, and the tree that comes out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MergeName {
    /// Digests of neighbouring frozen trees, youngest first.
    pub inputs: Vec<Digest>,
    /// Digest of the tree that replaces them.
    pub output: Digest,
}

/// A rollback or a prune, as one shard executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOperation {
    /// Drops all versions above the target.
    Rollback {
        /// The newest version that stays.
        to: Version,
        /// The epoch that begins.
        epoch: Epoch,
    },
    /// Drops what only versions below the boundary need.
    Prune {
        /// The oldest version that stays readable.
        before: Version,
    },
}

/// A session's batch, as the leader commits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCommit {
    /// The session.
    pub session: SessionId,
    /// The batch's number in the session, from 1.
    pub number: u64,
    /// Identity of the request.
    pub batch_hash: Digest,
    /// The batch's place in its version's journal.
    pub journal_index: u32,
}

/// A session's batch, as the root group remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionBatch {
    /// The batch's number in the session, from 1.
    pub number: u64,
    /// Identity of the request.
    pub batch_hash: Digest,
    /// The header that committed the batch.
    pub sequence: Sequence,
    /// The batch's place in that header's journal.
    pub journal_index: u32,
    /// The version has been rolled back; the batch is never applied again.
    pub rolled_back: bool,
}
