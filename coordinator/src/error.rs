//! Errors of a coordinator as a whole. The refusal of a request is a status.

use coppice_types::{ErrorKind, InvalidParams};

/// The reason why a coordinator could not be made, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options contradict each other or are incomplete.
    #[error("coordinator options: {0}")]
    Options(String),
    /// The parameters can't found a ledger.
    #[error("coordinator options: genesis parameters")]
    Params(#[source] InvalidParams),
    /// The listener failed.
    #[error("the transport failed")]
    Transport(#[source] tonic::transport::Error),
}

impl Error {
    /// The kind of the error, which says what the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Options(_) | Self::Params(_) => ErrorKind::Invalid,
            Self::Transport(_) => ErrorKind::Unavailable,
        }
    }
}
