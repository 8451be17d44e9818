//! Errors of a node.

use std::io;

use coppice_env::Shortage;
use coppice_types::{ErrorKind, GroupId, codec::Error as CodecError};

use crate::refusal::Refusal;

/// An error of a node or of one of its replicas.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the engine failed")]
    Engine(#[from] coppice_engine::Error),
    #[error("the root state machine failed")]
    Root(#[from] coppice_root::Error),
    #[error("consensus failed")]
    Consensus(#[from] coppice_consensus::Error),
    /// A file of the replica's directory could not be read or written.
    #[error("cannot {what}")]
    Storage {
        /// The attempted action.
        what: &'static str,
        source: io::Error,
    },
    #[error("the directory is in use by another process")]
    InUse,
    /// The directory belongs to another cluster, group or replica.
    #[error("the directory is not this replica's: {0}")]
    Identity(String),
    #[error("the protocol state in the superblock cannot be read")]
    MachineState(#[source] CodecError),
    /// A committed command has a version or kind that this replica does not know, so it can't
    /// continue.
    #[error("a committed command cannot be read")]
    UnknownCommand(#[source] CodecError),
    /// Another version of the software wrote the directory.
    #[error(
        "{file} has format {found}, and this build reads format {known} alone: use the build that wrote the directory (docs/operations.md, \"Ledgers of older builds\")"
    )]
    OtherFormat {
        file: &'static str,
        /// The file's format.
        found: u8,
        /// This build's format.
        known: u8,
    },
    #[error("{file} is damaged: {what}")]
    Damaged { file: &'static str, what: String },
    #[error("no replica of {0} runs here")]
    NoReplica(GroupId),
    #[error("a replica of {0} runs here already")]
    ReplicaRuns(GroupId),
    /// A member of the cluster refused.
    #[error("refused: {} ({})", .0.message, .0.reason)]
    Refused(Refusal),
    #[error("a call to another node failed")]
    Call(#[from] Box<tonic::Status>),
    #[error("{0} did not happen in time")]
    Overdue(&'static str),
}

impl Error {
    /// The kind of the error, which tells the caller what to do.
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

    /// What ran out, if that caused the error.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        Shortage::behind(self)
    }

    /// Whether the error passes: the directory is as after a crash, and can be opened again once
    /// the missing resource is back.
    pub(crate) fn passes(&self) -> bool {
        // An engine is unusable after a superblock could not be written. When it is opened again,
        // it finds out which superblock is valid.
        self.shortage().is_some() || matches!(self, Self::Engine(coppice_engine::Error::Poisoned))
    }

    /// The error and all its causes, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        coppice_types::chain(self)
    }
}

/// The error that no thread could be started. It passes, like other shortages.
pub(crate) fn no_thread(error: io::Error) -> Error {
    Error::Storage { what: "start a thread", source: io::Error::new(io::ErrorKind::OutOfMemory, error) }
}

/// Wraps the error of a storage call with the attempted action.
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
