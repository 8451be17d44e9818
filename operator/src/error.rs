//! Errors of reconciliations.

use crate::reconcile::validate::Invalid;

/// The reason why a step could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or doesn't answer; it is tried again.
    #[error("{action} failed")]
    Kube {
        /// The step that failed.
        action: String,
        source: Box<kube::Error>,
    },
    /// A user has to act first.
    #[error("{message}")]
    Blocked {
        /// A word in camel case, for conditions and events.
        reason: &'static str,
        /// The fault, and the remedy.
        message: String,
    },
    #[error(transparent)]
    Certificate(#[from] crate::certificates::Error),
}

impl Error {
    pub(crate) fn blocked(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Blocked { reason, message: message.into() }
    }

    /// A word for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kube { .. } => "ApiServerRefused",
            Self::Blocked { reason, .. } => reason,
            Self::Certificate(_) => "CertificateFailed",
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::blocked("InvalidSpecification", invalid.0)
    }
}

/// Adds the failed step to the error of a call.
pub(crate) trait Trying<T> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Trying<T> for Result<T, kube::Error> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Kube { action: action(), source: Box::new(source) })
    }
}
