//! Why the root group's machine can't go on, or refuses.

use std::io;

use coppice_env::Shortage;
use coppice_types::{Epoch, ErrorKind, PinId, Reason, Sequence, SessionId, ShardId, Stamp, Term, Version, codec};

use crate::{command::CommandError, pins::Pin};

/// Why a call failed. It changed nothing that a later flush would write.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The storage failed.
    #[error("can't {operation} {file:?} of the root group")]
    Io {
        /// What it failed at.
        file: String,
        /// What it was asked to do.
        operation: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// Another process, or another handle, has the directory.
    #[error("the root group's directory is in use")]
    InUse,
    /// Stored or received bytes are not what was written.
    #[error("{file:?} of the root group is damaged: {what}")]
    Corrupted {
        /// Where they are.
        file: String,
        /// What is wrong with them.
        what: String,
    },
    /// A committed entry is not a command that this code knows: the replica stops.
    #[error("raft entry {index} of the root group is not a known command")]
    Command {
        /// The entry's place in the raft log.
        index: u64,
        /// What is wrong with it.
        #[source]
        source: CommandError,
    },
    /// Raft entries were applied, or flushed, out of order.
    #[error("raft index {index} does not come after {applied}")]
    OutOfOrder {
        /// The index given.
        index: u64,
        /// The newest one applied.
        applied: u64,
    },
    /// The log is empty: no ledger was founded yet.
    #[error("the root log has no genesis yet")]
    NoGenesis,
    /// The version is above head.
    #[error("version {version} is above head {head}")]
    NotYet {
        /// The version asked for.
        version: Version,
        /// The head.
        head: Stamp,
    },
    /// The version is below the pruned boundary.
    #[error("version {version} is below the pruned boundary {boundary}")]
    Pruned {
        /// The version asked for.
        version: Version,
        /// The oldest version kept.
        boundary: Version,
    },
    /// The version was rolled back.
    #[error("version {version}{} was rolled back", .epoch.map(|epoch| format!(" of epoch {epoch}")).unwrap_or_default())]
    RolledBack {
        /// The epoch asked for, if one was.
        epoch: Option<Epoch>,
        /// The version asked for.
        version: Version,
    },
    /// The log has no such entry, or not so many.
    #[error("the root log has {size} entries, none for {asked}")]
    NoEntry {
        /// The index or size asked for.
        asked: u64,
        /// Entries in the log.
        size: u64,
    },
    /// The log has no such tile, or not so much of it.
    #[error("the root log has {size} entries, no {width} hashes in tile {number} of level {level}")]
    NoTile {
        /// Level of the tile.
        level: usize,
        /// Its number.
        number: u64,
        /// Hashes asked for.
        width: usize,
        /// Entries in the log.
        size: u64,
    },
    /// The snapshot is not pinned, or has no such file or offset, or too many are pinned.
    #[error("snapshot {id}: {what}")]
    Snapshot {
        /// The snapshot.
        id: u64,
        /// What is wrong.
        what: &'static str,
    },
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }

    /// The reason on the wire.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Io { source, .. } if Shortage::of(source).is_some() => Reason::ResourceExhausted,
            Self::Io { .. } | Self::OutOfOrder { .. } | Self::Command { .. } => Reason::Internal,
            Self::Corrupted { .. } => Reason::Corrupted,
            Self::NoGenesis | Self::InUse => Reason::Unavailable,
            Self::NotYet { .. } => Reason::NotYet,
            Self::Pruned { .. } => Reason::Pruned,
            Self::RolledBack { .. } => Reason::RolledBack,
            Self::NoEntry { .. } | Self::NoTile { .. } | Self::Snapshot { .. } => Reason::NotFound,
        }
    }

    pub(crate) fn io(file: &str, operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { file: file.to_owned(), operation, source }
    }

    pub(crate) fn corrupted(file: &str, what: impl Into<String>) -> Self {
        Self::Corrupted { file: file.to_owned(), what: what.into() }
    }
}

/// Why a command was not accepted. It changed nothing, on any replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The log is empty, and the command brings no genesis header.
    #[error("the root log has no genesis yet")]
    NoGenesis,
    /// The header that should found the ledger does not.
    #[error("not a genesis header: {0}")]
    Genesis(&'static str),
    /// Another term began.
    #[error("term {given} is over, the current one is {current}")]
    StaleTerm {
        /// The term given.
        given: Term,
        /// The current term.
        current: Term,
    },
    /// The header can't be read.
    #[error("malformed header")]
    Header(#[source] codec::Error),
    /// The header belongs to another ledger.
    #[error("the header belongs to another cluster")]
    Cluster,
    /// The header does not follow on the log's newest.
    #[error("the header does not follow on the log: {0}")]
    Follows(&'static str),
    /// What the header commits to is not what came with it.
    #[error("the header's {0} is not that of what came with it")]
    Content(&'static str),
    /// A changed leaf does not fit.
    #[error("the changed leaf of shard {shard} does not fit: {what}")]
    Leaf {
        /// The shard.
        shard: ShardId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A journal entry can't be read, or is in the wrong place.
    #[error("journal entry {entry} does not fit: {what}")]
    Journal {
        /// Its place.
        entry: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The target or boundary lies above head.
    #[error("version {version} is above head {head}")]
    AboveHead {
        /// The version.
        version: Version,
        /// The head.
        head: Stamp,
    },
    /// The target or boundary lies below the pruned boundary.
    #[error("version {version} is below the pruned boundary {boundary}")]
    Pruned {
        /// The version.
        version: Version,
        /// The oldest version kept.
        boundary: Version,
    },
    /// The target does not stand.
    #[error("version {0} was rolled back")]
    RolledBack(Stamp),
    /// The session was never opened, or has ended.
    #[error("session {0} is not known")]
    UnknownSession(SessionId),
    /// The number is below the session's window.
    #[error("number {number} of session {session} is below its window")]
    Expired {
        /// The session.
        session: SessionId,
        /// The number.
        number: u64,
    },
    /// The number was committed before.
    #[error("number {number} of session {session} was committed before, by header {sequence:?}")]
    Repeated {
        /// The session.
        session: SessionId,
        /// The number.
        number: u64,
        /// The header, unless it is this one.
        sequence: Option<Sequence>,
    },
    /// The prune would drop a version that a living pin holds.
    #[error("version {} is pinned by {} until {} ms: nothing below {version} can be pruned", .pin.version, .pin.id, .pin.expires_ms)]
    Pinned {
        /// The boundary asked for.
        version: Version,
        /// The pin of the oldest version.
        pin: Pin,
    },
    /// The key change is not the next one, or from another key than the current.
    #[error("the key can't be changed so: {0}")]
    Key(&'static str),
    /// A pin stays with its version.
    #[error("pin {pin} holds version {version}")]
    OtherPin {
        /// The pin.
        pin: PinId,
        /// What it holds.
        version: Version,
    },
    /// The pin's time is none.
    #[error("a pin lives for 1 to {0} ms")]
    PinTime(u64),
    /// No version can be pinned until a pin ends.
    #[error("there are {0} pins already")]
    PinsFull(usize),
    /// No session can be opened until one is idle.
    #[error("all {0} sessions are in use")]
    SessionsFull(usize),
}

impl Refusal {
    /// The reason on the wire.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoGenesis => Reason::Unavailable,
            Self::StaleTerm { .. } => Reason::StaleTerm,
            Self::Cluster => Reason::WrongCluster,
            Self::Follows(_) => Reason::BaseMismatch,
            Self::Genesis(_) | Self::Header(_) | Self::Content(_) | Self::Leaf { .. } | Self::Journal { .. } => {
                Reason::InvalidArgument
            }
            Self::AboveHead { .. } => Reason::NotYet,
            Self::Pruned { .. } => Reason::Pruned,
            Self::RolledBack(_) => Reason::RolledBack,
            Self::UnknownSession(_) => Reason::UnknownSession,
            Self::Expired { .. } => Reason::RequestExpired,
            Self::Repeated { .. } => Reason::SessionMismatch,
            Self::Pinned { .. } => Reason::Pinned,
            Self::Key(_) | Self::OtherPin { .. } | Self::PinTime(_) => Reason::InvalidArgument,
            Self::PinsFull(_) | Self::SessionsFull(_) => Reason::QuotaExceeded,
        }
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }
}
