//! The errors of the root group's machine, and its reasons to refuse a command.

use std::io;

use coppice_env::Shortage;
use coppice_types::{Epoch, ErrorKind, PinId, Reason, Sequence, SessionId, ShardId, Stamp, Term, Version, codec};

use crate::{command::CommandError, pins::Pin};

/// The reason why a call failed. The call changed nothing that a later flush would write.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The storage failed.
    #[error("can't {operation} {file:?} of the root group")]
    Io {
        /// The file or directory.
        file: String,
        /// The attempted operation.
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    /// Another process, or another handle, has the directory.
    #[error("the root group's directory is in use")]
    InUse,
    /// Stored or received bytes differ from those that were written.
    #[error("{file:?} of the root group is damaged: {what}")]
    Corrupted {
        /// The file with the bytes.
        file: String,
        /// A description of the damage.
        what: String,
    },
    /// A raft entry is not a command that this code knows. The replica stops.
    #[error("raft entry {index} of the root group is not a known command")]
    Command {
        /// The entry's place in the raft log.
        index: u64,
        #[source]
        source: CommandError,
    },
    /// Raft entries were applied or flushed out of order.
    #[error("raft index {index} does not come after {applied}")]
    OutOfOrder {
        /// The index given.
        index: u64,
        /// The newest index applied.
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
        head: Stamp,
    },
    /// The time is before genesis.
    #[error("no version is as old as {time_ms} ms since 1970: the ledger began at {genesis_ms}")]
    BeforeGenesis {
        /// The time asked for.
        time_ms: u64,
        /// The time of genesis.
        genesis_ms: u64,
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
        /// The epoch asked for, if there was one.
        epoch: Option<Epoch>,
        /// The version asked for.
        version: Version,
    },
    /// The log has no such entry, or fewer entries than that.
    #[error("the root log has {size} entries, none for {asked}")]
    NoEntry {
        /// The index or size asked for.
        asked: u64,
        /// Entries in the log.
        size: u64,
    },
    /// The log has no such tile, or the tile has fewer hashes.
    #[error("the root log has {size} entries, no {width} hashes in tile {number} of level {level}")]
    NoTile {
        /// Level of the tile.
        level: usize,
        /// Number of the tile in its level.
        number: u64,
        /// Hashes asked for.
        width: usize,
        /// Entries in the log.
        size: u64,
    },
    /// The snapshot is not pinned, has no such file or offset, or too many snapshots are pinned.
    #[error("snapshot {id}: {what}")]
    Snapshot {
        /// The snapshot.
        id: u64,
        /// What is wrong.
        what: &'static str,
    },
}

impl Error {
    /// What the caller can do about the error.
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
            Self::NoEntry { .. } | Self::NoTile { .. } | Self::Snapshot { .. } | Self::BeforeGenesis { .. } => {
                Reason::NotFound
            }
        }
    }

    pub(crate) fn io(file: &str, operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { file: file.to_owned(), operation, source }
    }

    pub(crate) fn corrupted(file: &str, what: impl Into<String>) -> Self {
        Self::Corrupted { file: file.to_owned(), what: what.into() }
    }
}

/// The reason why a command was refused. It changed nothing, on any replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The log is empty, and the command brings no genesis header.
    #[error("the root log has no genesis yet")]
    NoGenesis,
    /// The header can't found a ledger.
    #[error("not a genesis header: {0}")]
    Genesis(&'static str),
    /// Another term has begun.
    #[error("term {given} is over, the current one is {current}")]
    StaleTerm {
        /// The term of the command.
        given: Term,
        current: Term,
    },
    /// The header can't be decoded.
    #[error("malformed header")]
    Header(#[source] codec::Error),
    /// The header belongs to another ledger.
    #[error("the header belongs to another cluster")]
    Cluster,
    /// The header does not follow the log's newest one.
    #[error("the header does not follow the newest one: {0}")]
    Follows(&'static str),
    /// A root or count in the header does not match the content that came with the header.
    #[error("the header's {0} does not fit what came with it")]
    Content(&'static str),
    /// A changed leaf does not fit.
    #[error("the changed leaf of shard {shard} does not fit: {what}")]
    Leaf {
        shard: ShardId,
        /// The property that is wrong.
        what: &'static str,
    },
    /// A journal entry can't be decoded, or is in the wrong place.
    #[error("journal entry {entry} does not fit: {what}")]
    Journal {
        /// The entry's place in the journal.
        entry: usize,
        /// The property that is wrong.
        what: &'static str,
    },
    /// The target or boundary lies above head.
    #[error("version {version} is above head {head}")]
    AboveHead { version: Version, head: Stamp },
    /// The target or boundary lies below the pruned boundary.
    #[error("version {version} is below the pruned boundary {boundary}")]
    Pruned {
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
    Expired { session: SessionId, number: u64 },
    /// The number was committed before.
    #[error("number {number} of session {session} was committed before, by header {sequence:?}")]
    Repeated {
        session: SessionId,
        number: u64,
        /// The header that committed it; `None` if it is this one.
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
    /// The rollback would take back journals of ledgers.
    #[error(
        "version {target} is below version {floor}, the newest with journals of a ledger: they can't be taken back"
    )]
    LedgerFloor {
        /// The target of the rollback.
        target: Version,
        /// The newest version that appended to a ledger.
        floor: Version,
    },
    /// The key change is not the next one, or does not start from the current key.
    #[error("the key can't be changed: {0}")]
    Key(&'static str),
    /// The anchor does not stamp a larger prefix of this log than the one before.
    #[error("the anchor is refused: {0}")]
    Anchor(&'static str),
    /// The pin holds another version, and a pin stays with its version.
    #[error("pin {pin} holds version {version}")]
    OtherPin {
        pin: PinId,
        /// The version that the pin holds.
        version: Version,
    },
    /// The pin's time is zero or too long.
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
            Self::LedgerFloor { .. } => Reason::LedgerFloor,
            Self::Key(_) | Self::Anchor(_) | Self::OtherPin { .. } | Self::PinTime(_) => Reason::InvalidArgument,
            Self::PinsFull(_) | Self::SessionsFull(_) => Reason::QuotaExceeded,
        }
    }

    /// What the caller can do about the refusal.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }
}
