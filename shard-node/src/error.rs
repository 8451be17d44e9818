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
        "{file} has format {found}, and this build reads only format {known}: use the build that wrote the directory (docs/operations.md, \"Ledgers of older builds\")"
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

#[cfg(test)]
mod tests {
    use coppice_types::Reason;

    use super::*;

    fn io(kind: io::ErrorKind) -> Error {
        storage("write")(kind.into())
    }

    #[test]
    fn a_lock_that_is_held_is_no_failure_of_the_disk() {
        assert!(matches!(io(io::ErrorKind::WouldBlock), Error::InUse));
        assert_eq!(io(io::ErrorKind::WouldBlock).kind(), ErrorKind::Unavailable);
        assert_eq!(io(io::ErrorKind::PermissionDenied).kind(), ErrorKind::Internal);
    }

    #[test]
    fn shortages_pass_and_damage_does_not_wherever_they_come_from() {
        let log = |kind: io::ErrorKind| coppice_consensus::Error::Io { action: "append", source: kind.into() };
        let passing = [
            io(io::ErrorKind::StorageFull),
            io(io::ErrorKind::QuotaExceeded),
            log(io::ErrorKind::StorageFull).into(),
            no_thread(io::ErrorKind::WouldBlock.into()),
            coppice_engine::Error::Poisoned.into(),
        ];
        for error in passing {
            assert!(error.passes(), "{error:?}");
        }
        let lasting = [
            io(io::ErrorKind::PermissionDenied),
            log(io::ErrorKind::UnexpectedEof).into(),
            Error::InUse,
            Error::Identity("another's".to_owned()),
            Error::Damaged { file: "floor", what: "short".to_owned() },
            Error::UnknownCommand(CodecError::Trailing),
        ];
        for error in lasting {
            assert!(!error.passes(), "{error:?}");
        }
        assert_eq!(no_thread(io::ErrorKind::WouldBlock.into()).shortage(), Some(Shortage::Handles));
    }

    #[test]
    fn an_error_tells_its_causes_once_and_keeps_the_kind_of_a_refusal() {
        let error = io(io::ErrorKind::StorageFull);
        assert_eq!(error.chain(), format!("cannot write: {}", io::Error::from(io::ErrorKind::StorageFull)));
        for reason in Reason::ALL {
            let refusal = Refusal::new(*reason, "why");
            assert_eq!(Error::from(tonic::Status::from(refusal.clone())).kind(), reason.kind());
            assert_eq!(Error::Refused(refusal).kind(), reason.kind());
        }
    }
}
