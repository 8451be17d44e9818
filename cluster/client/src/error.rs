//! What can go wrong between a client and its ledger.

use std::time::Duration;

use coppice_proto::status;
use coppice_types::{ErrorKind, Reason, causes};
use coppice_verify::check::{Cause, Failure, Step};

use crate::RANGE_BYTES_MAX;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not one.
    #[error("`{endpoint}` is no endpoint: {message}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        message: String,
    },
    /// Authorities, certificates or keys can't be read, or do not fit each other.
    #[error("certificates: {0}")]
    Tls(String),
    /// The cluster refused, and said why.
    #[error("{message}")]
    Refused {
        /// The machine-readable cause; `None` from a server that gives none.
        reason: Option<Reason>,
        /// What the caller can do.
        kind: ErrorKind,
        /// The cluster's words.
        message: String,
        /// An earlier attempt had no answer, or its proof can't be had: the request may have had its effect, or have it yet.
        outcome_unknown: bool,
    },
    /// Nothing answered within the patience of the client.
    #[error("no answer from {endpoint} after {}: {message}", tries(.attempts))]
    Unavailable {
        /// Who was asked.
        endpoint: String,
        /// How often.
        attempts: u32,
        /// What the last attempt ended with.
        message: String,
        /// The machine-readable cause of the last attempt, if the cluster gave one.
        reason: Option<Reason>,
        /// The request may have had its effect, or have it yet.
        outcome_unknown: bool,
    },
    /// The proof that came with the answer does not hold.
    #[error("the proof that came with the answer does not hold, at step {0}")]
    Unproven(Failure),
    /// The proof holds, but it does not prove the answer.
    #[error("the answer is not to be believed: {0}")]
    Untrusted(&'static str),
    /// The answer is not one that a ledger gives.
    #[error("the server's answer makes no sense: {0}")]
    Malformed(&'static str),
}

fn tries(attempts: &u32) -> String {
    format!("{attempts} attempt{}", if *attempts == 1 { "" } else { "s" })
}

impl Error {
    /// The cluster says that a batch without a number was committed, and could not prove it at that moment.
    pub(crate) fn unproven_commit() -> Self {
        Self::Refused {
            reason: Some(Reason::Unavailable),
            kind: ErrorKind::Unavailable,
            message: "the cluster made no receipt: it may have committed the batch".to_owned(),
            outcome_unknown: true,
        }
    }

    /// Nothing has shown for long that the log only grew. What it comes with was proven.
    pub(crate) fn unproven_growth() -> Self {
        Self::Refused {
            reason: Some(Reason::Unavailable),
            kind: ErrorKind::Unavailable,
            message: "the cluster does not prove that its newest log extends the one that was proven last".to_owned(),
            outcome_unknown: true,
        }
    }

    /// A stream brought nothing in time.
    pub(crate) fn silent(limit: Duration) -> Self {
        Self::Refused {
            reason: None,
            kind: ErrorKind::Unavailable,
            message: format!("the server sent nothing for {} s", limit.as_secs()),
            outcome_unknown: false,
        }
    }

    /// More than is collected.
    pub(crate) fn range_too_large() -> Self {
        let message = format!(
            "the range has more than the {} MiB that are taken at once: read it in parts, with a limit",
            RANGE_BYTES_MAX >> 20
        );
        Self::Refused { reason: None, kind: ErrorKind::Invalid, message, outcome_unknown: false }
    }

    /// What the cluster refused, after attempts of which one may have had its effect.
    pub(crate) fn refused(status: &tonic::Status, outcome_unknown: bool) -> Self {
        let (reason, kind, message) = (status::reason(status), status::kind(status), describe(status));
        // What the cluster says of the number itself holds for every attempt.
        let outcome_unknown = outcome_unknown && !matches!(reason, Some(Reason::RolledBack | Reason::SessionMismatch));
        Self::Refused { reason, kind, message, outcome_unknown }
    }

    /// It failed after a commit was answered, when the answer was to be proven: the batch may well be committed.
    pub(crate) fn after_commit(mut self) -> Self {
        if let Self::Refused { outcome_unknown, .. } | Self::Unavailable { outcome_unknown, .. } = &mut self {
            *outcome_unknown = true;
        }
        self
    }

    /// The request may have had its effect, or have it yet. A numbered batch can be sent again to find out.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Refused { outcome_unknown, .. } | Self::Unavailable { outcome_unknown, .. } => *outcome_unknown,
            Self::Endpoint { .. } | Self::Tls(_) => false,
            Self::Unproven(_) | Self::Untrusted(_) | Self::Malformed(_) => true,
        }
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Endpoint { .. } | Self::Tls(_) => ErrorKind::Invalid,
            Self::Refused { kind, .. } => *kind,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Malformed(_) | Self::Unproven(_) | Self::Untrusted(_) => ErrorKind::Corrupted,
        }
    }

    /// The machine-readable cause, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { reason, .. } | Self::Unavailable { reason, .. } => *reason,
            Self::Endpoint { .. } | Self::Tls(_) | Self::Malformed(_) | Self::Unproven(_) | Self::Untrusted(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            // The proof holds: it is that of something else.
            Failure { step: Step::Question, cause: Cause::Rule(rule) } => Self::Untrusted(rule),
            failure => Self::Unproven(failure),
        }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::refused(&status, false)
    }
}

/// The status' own words, with those of its sources, which say what the transport met.
pub(crate) fn describe(status: &tonic::Status) -> String {
    let mut words =
        if status.message().is_empty() { status.code().description().to_owned() } else { status.message().to_owned() };
    for cause in causes(status).skip(1).map(ToString::to_string) {
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}
