//! The errors of a group.

use std::io;

use bytes::Bytes;
use coppice_env::Shortage;
use coppice_types::ErrorKind;

use crate::{Position, RaftId};

/// The reason why a group did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The storage failed. After this error of [`crate::Group::advance`] the group can't be used
    /// again.
    #[error("the raft log can't {action}")]
    Io {
        /// The attempted action.
        action: &'static str,
        source: io::Error,
    },
    /// Stored bytes differ from those that were written.
    #[error("{file}, block {block}: {detail}")]
    Corrupted {
        /// The file in the log's directory.
        file: String,
        /// The 512-byte block in the file.
        block: u64,
        /// What is wrong.
        detail: &'static str,
    },
    /// A build with another format wrote the log.
    #[error("the raft log has format {found}, and this build reads only format {known}: use the build that wrote it")]
    OtherFormat {
        /// The log's format.
        found: u8,
        /// The format of this build.
        known: u8,
    },
    /// The directory holds another replica's log.
    #[error("the raft log belongs to {found}, not to {expected}")]
    WrongOwner {
        /// The replica that opens the log.
        expected: String,
        /// The replica that wrote it.
        found: String,
    },
    /// The directory already holds a log, or holds none.
    #[error("{0}")]
    Existence(&'static str),
    /// The state machine and the log contradict each other.
    #[error("the state machine is at {machine}, the raft log goes from {first} to {last}: {detail}")]
    StateMismatch {
        /// The machine's durable position.
        machine: Position,
        /// The position after which the log holds entries.
        first: Position,
        /// The position of the log's last entry.
        last: Position,
        /// What is wrong.
        detail: &'static str,
    },
    /// A snapshot was accepted, and its installation was cut off. Finish the installation, then
    /// open the group again.
    #[error("the snapshot at {position} is not installed yet")]
    InstallPending {
        /// The last entry that the snapshot covers.
        position: Position,
        /// The manifest of its offer.
        manifest: Bytes,
    },
    /// Only the leader can do this.
    #[error("not the leader")]
    NotLeader {
        /// The leader; `None` if it is unknown.
        leader: Option<RaftId>,
    },
    /// The request is not possible now; it may be later.
    #[error("{0}")]
    Unavailable(&'static str),
    /// A bounded resource is used up.
    #[error("{0}")]
    Exhausted(&'static str),
    /// The entry exceeds the limit.
    #[error("an entry of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// A message was dropped. The group is unharmed.
    #[error("message refused: {0}")]
    Refused(&'static str),
    /// The request is wrong.
    #[error("{0}")]
    Invalid(&'static str),
    /// Raft itself reported an error that should never occur.
    #[error("raft failed: {0}")]
    Raft(String),
}

impl Error {
    /// What the caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } if Shortage::of(source).is_some() => ErrorKind::Exhausted,
            Self::Io { .. } | Self::Raft(_) => ErrorKind::Internal,
            Self::Corrupted { .. } | Self::StateMismatch { .. } => ErrorKind::Corrupted,
            Self::OtherFormat { .. }
            | Self::WrongOwner { .. }
            | Self::TooLarge { .. }
            | Self::Invalid(_)
            | Self::Refused(_) => ErrorKind::Invalid,
            Self::Existence(_) | Self::InstallPending { .. } => ErrorKind::Conflict,
            Self::NotLeader { .. } | Self::Unavailable(_) => ErrorKind::Unavailable,
            Self::Exhausted(_) => ErrorKind::Exhausted,
        }
    }

    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

pub type Result<T> = std::result::Result<T, Error>;
