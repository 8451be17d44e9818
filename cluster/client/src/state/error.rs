//! The errors of a cache.

use std::sync::Arc;

use bytes::Bytes;
use coppice_types::{ErrorKind, Reason, Stamp};

/// The reason why a read failed, or following the ledger ended. Reads that share a call share its
/// error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The ledger refused a call or did not answer it, or its answer is not proven.
    #[error("{0}")]
    Ledger(Arc<crate::Error>),
    /// The ledger contradicts itself or its signature. Everything was dropped.
    #[error("{0}")]
    Evidence(Arc<Evidence>),
    /// The staged batch of the view was dropped: see [`View::discard`](super::View::discard).
    #[error("the staged batch of the view was dropped")]
    Dropped,
    /// The cache follows the ledger already.
    #[error("the cache follows the ledger already")]
    Following,
    /// The time limit of a call is over.
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// The stream of headers broke, or stays behind the log.
    #[error("the stream of headers: {0}")]
    Stream(&'static str),
    /// The call that other reads share was given up.
    #[error("a read at {0} was given up")]
    GivenUp(Stamp),
    /// A setting makes no sense.
    #[error("{0}")]
    Options(&'static str),
}

impl Error {
    /// The machine-readable cause, if the cluster gave one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Ledger(error) => error.reason(),
            _ => None,
        }
    }

    /// Whether an answer is larger than a coordinator may send. A question for fewer keys may
    /// succeed. The error is that of the coordinator's limits or of its transport.
    pub(super) fn is_too_large(&self) -> bool {
        let Self::Ledger(error) = self else { return false };
        match &**error {
            crate::Error::Refused { reason: Some(reason), .. } => *reason == Reason::LimitExceeded,
            crate::Error::Refused { reason: None, kind, .. } => *kind == ErrorKind::Invalid,
            _ => false,
        }
    }

    /// Whether the ledger's answer can't be believed. [`Error::Evidence`] is one such case, and a
    /// proof that does not hold another.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        use crate::Error as Call;
        match self {
            Self::Evidence(_) => true,
            Self::Ledger(error) => {
                matches!(**error, Call::Unproven(_) | Call::Untrusted(_) | Call::Malformed(_))
            }
            _ => false,
        }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Ledger(Arc::new(error))
    }
}

impl From<Evidence> for Error {
    fn from(evidence: Evidence) -> Self {
        Self::Evidence(Arc::new(evidence))
    }
}

/// Shows that the ledger, or a coordinator of it, contradicts itself or its signature. Keep it:
/// only a holder of the ledger's keys can have made what is signed in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Evidence {
    /// The contradiction in words.
    pub why: String,
    /// The newest checkpoint that the cache knew, as a proof file. Empty if the cache has followed
    /// no log.
    pub known: Bytes,
    /// The bytes that contradict it: a proof file, or a header.
    pub shown: Bytes,
}

impl Evidence {
    pub(super) fn new(why: impl Into<String>, shown: &[u8]) -> Self {
        Self { why: why.into(), known: Bytes::new(), shown: Bytes::copy_from_slice(shown) }
    }
}
