//! What can go wrong in a node.

use std::io;

use coppice_env::Shortage;
use coppice_types::{ErrorKind, GroupId, codec::Error as CodecError};

use crate::refusal::Refusal;

/// An error of a node or of one of its replicas.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine of a shard failed.
    #[error("the engine failed")]
    Engine(#[from] coppice_engine::Error),
    /// The root group's state machine failed.
    #[error("the root state machine failed")]
    Root(#[from] coppice_root::Error),
    /// Raft or its log failed.
    #[error("consensus failed")]
    Consensus(#[from] coppice_consensus::Error),
    /// A file of the replica's directory could not be read or written.
    #[error("cannot {what}")]
    Storage {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Another process holds the directory.
    #[error("the directory is in use by another process")]
    InUse,
    /// The directory belongs to another cluster, group or replica.
    #[error("the directory is not this replica's: {0}")]
    Identity(String),
    /// The protocol state of the superblock cannot be read.
    #[error("the protocol state in the superblock cannot be read")]
    MachineState(#[source] CodecError),
    /// A committed command is of a version or kind that this replica does not know, so it cannot go on.
    #[error("a committed command cannot be read")]
    UnknownCommand(#[source] CodecError),
    /// Another version of the software wrote the directory.
    #[error(
        "{file} has format {found}, and this build reads format {known} alone: use the build that wrote the directory (docs/OPERATIONS.md, \"Ledgers of older builds\")"
    )]
    OtherFormat {
        /// Which file.
        file: &'static str,
        /// The file's.
        found: u8,
        /// This build's.
        known: u8,
    },
    /// A file of the replica's directory is damaged.
    #[error("{file} is damaged: {what}")]
    Damaged {
        /// Which file.
        file: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The node hosts no running replica of the group.
    #[error("no replica of {0} runs here")]
    NoReplica(GroupId),
    /// The node hosts a running replica of the group already.
    #[error("a replica of {0} runs here already")]
    ReplicaRuns(GroupId),
    /// A member of the cluster refused.
    #[error("refused: {} ({})", .0.message, .0.reason)]
    Refused(Refusal),
    /// A call to another node failed.
    #[error("a call to another node failed")]
    Call(#[from] Box<tonic::Status>),
    /// Something did not happen in time.
    #[error("{0} did not happen in time")]
    Overdue(&'static str),
}

impl Error {
    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Engine(error) => error.kind(),
            Self::Root(error) => error.kind(),
            Self::Consensus(error) => error.kind(),
            Self::Storage { source, .. } if Shortage::of(source).is_some() => ErrorKind::Exhausted,
            Self::Storage { .. } => ErrorKind::Internal,
            Self::InUse | Self::NoReplica(_) | Self::Overdue(_) => ErrorKind::Unavailable,
            Self::Identity(_) | Self::UnknownCommand(_) => ErrorKind::Invalid,
            Self::MachineState(_) | Self::Damaged { .. } => ErrorKind::Corrupted,
            Self::ReplicaRuns(_) | Self::OtherFormat { .. } => ErrorKind::Conflict,
            Self::Refused(refusal) => refusal.reason.kind(),
            Self::Call(status) => coppice_proto::status::kind(status),
        }
    }

    /// What ran out, if that is why it failed.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        Shortage::behind(self)
    }

    /// The directory is as after a crash, and can be opened again when what ran out is there.
    pub(crate) fn passes(&self) -> bool {
        // An engine is unusable after a superblock could not be written. Opened again, it knows which one holds.
        self.shortage().is_some() || matches!(self, Self::Engine(coppice_engine::Error::Poisoned))
    }

    /// The error with all that caused it, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        coppice_types::chain(self)
    }
}

/// No thread could be started. That passes, as other shortages do.
pub(crate) fn no_thread(error: io::Error) -> Error {
    Error::Storage { what: "start a thread", source: io::Error::new(io::ErrorKind::OutOfMemory, error) }
}

/// Names what was tried when a storage call failed.
pub(crate) fn storage(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| match source.kind() {
        io::ErrorKind::WouldBlock => Error::InUse,
        _ => Error::Storage { what, source },
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Call(Box::new(status))
    }
}
