//! The errors of a client.

use std::time::Duration;

use coppice_proto::status;
use coppice_types::{ErrorKind, Reason, causes};
use coppice_verify::check::{Cause, Failure, Step};

use crate::bounds::RANGE_BYTES_MAX;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint is malformed, or does not fit the TLS settings.
    #[error("`{endpoint}` is not an endpoint: {message}")]
    Endpoint {
        /// The endpoint, as it was given.
        endpoint: String,
        /// The reason why it is refused.
        message: String,
    },
    /// Authorities, certificates or keys are unreadable, or do not fit each other.
    #[error("certificates: {0}")]
    Tls(String),
    /// The cluster refused the request, and said why.
    #[error("{message}")]
    Refused {
        /// The machine-readable cause; `None` if the server gave none.
        reason: Option<Reason>,
        /// The kind of the error, which says what the caller can do.
        kind: ErrorKind,
        /// The cluster's words.
        message: String,
        /// Whether the request may have had its effect, or may still have it. Either an earlier
        /// attempt had no answer, or the proof of a commit is missing.
        outcome_unknown: bool,
    },
    /// No coordinator answered within the client's patience.
    #[error("no answer from {endpoint} after {}: {message}", tries(.attempts))]
    Unavailable {
        /// The endpoint of the last attempt.
        endpoint: String,
        /// Number of attempts.
        attempts: u32,
        /// How the last attempt failed.
        message: String,
        /// The machine-readable cause of the last failure, if the cluster gave one.
        reason: Option<Reason>,
        /// Whether the request may have had its effect, or may still have it.
        outcome_unknown: bool,
    },
    /// The proof in the answer does not hold.
    #[error("the proof that came with the answer does not hold, at step {0}")]
    Unproven(Failure),
    /// The proof holds, but it does not prove the answer.
    #[error("the answer can't be trusted: {0}")]
    Untrusted(&'static str),
    /// No ledger gives such an answer.
    #[error("the server's answer makes no sense: {0}")]
    Malformed(&'static str),
}

fn tries(attempts: &u32) -> String {
    format!("{attempts} attempt{}", if *attempts == 1 { "" } else { "s" })
}

impl Error {
    /// The cluster says that it committed an unnumbered batch, but could not prove it at that
    /// moment.
    pub(crate) fn unproven_commit() -> Self {
        Self::Refused {
            reason: Some(Reason::Unavailable),
            kind: ErrorKind::Unavailable,
            message: "the cluster sent no receipt: the batch may be committed".to_owned(),
            outcome_unknown: true,
        }
    }

    /// Nothing has proven for a long time that the log only grew. The answer at hand was proven.
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

    /// A range has more than a client collects.
    pub(crate) fn range_too_large() -> Self {
        let message = format!(
            "the range has more than the {} MiB that are read at once: read it in parts, with a limit",
            RANGE_BYTES_MAX >> 20
        );
        Self::Refused { reason: None, kind: ErrorKind::Invalid, message, outcome_unknown: false }
    }

    /// The cluster's refusal. `outcome_unknown` says whether an earlier attempt may have had its
    /// effect.
    pub(crate) fn refused(status: &tonic::Status, outcome_unknown: bool) -> Self {
        let (reason, kind, message) = (status::reason(status), status::kind(status), describe(status));
        // A refusal because of the batch's number holds for every attempt.
        let outcome_unknown = outcome_unknown && !matches!(reason, Some(Reason::RolledBack | Reason::SessionMismatch));
        Self::Refused { reason, kind, message, outcome_unknown }
    }

    /// An error in proving a commit that was answered: the batch may well be committed.
    pub(crate) fn after_commit(mut self) -> Self {
        if let Self::Refused { outcome_unknown, .. } | Self::Unavailable { outcome_unknown, .. } = &mut self {
            *outcome_unknown = true;
        }
        self
    }

    /// Whether the request may have had its effect, or may still have it. A numbered batch can be
    /// sent again to find out.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Refused { outcome_unknown, .. } | Self::Unavailable { outcome_unknown, .. } => *outcome_unknown,
            Self::Endpoint { .. } | Self::Tls(_) => false,
            Self::Unproven(_) | Self::Untrusted(_) | Self::Malformed(_) => true,
        }
    }

    /// The kind of the error, which says what the caller can do: for instance try again or change
    /// the request.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Endpoint { .. } | Self::Tls(_) => ErrorKind::Invalid,
            Self::Refused { kind, .. } => *kind,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Malformed(_) | Self::Unproven(_) | Self::Untrusted(_) => ErrorKind::Corrupted,
        }
    }

    /// The machine-readable cause, if the cluster gave one.
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
            // The proof holds, but it proves something else.
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

/// The status in words, with its sources, which say what went wrong in the transport.
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

#[cfg(test)]
mod tests {
    use coppice_types::codec;
    use tonic::{Code, Status};

    use super::*;

    fn refused(reason: Reason, unknown: bool) -> Error {
        Error::refused(&status::refuse(reason, "no"), unknown)
    }

    fn unproven(step: Step) -> Error {
        Error::from(Failure { step, cause: Cause::Rule("it is of another key") })
    }

    #[test]
    fn a_proof_of_something_else_is_untrusted_and_a_broken_one_unproven() {
        assert!(matches!(unproven(Step::Question), Error::Untrusted("it is of another key")));
        assert!(matches!(unproven(Step::Format), Error::Unproven(_)));
        let codec = Failure { step: Step::Question, cause: Cause::Codec(codec::Error::Malformed("key")) };
        assert!(matches!(Error::from(codec), Error::Unproven(_)));
    }

    #[test]
    fn an_answer_that_lies_is_corrupted_and_leaves_the_outcome_open() {
        for error in [unproven(Step::Question), unproven(Step::Format), Error::Malformed("no record")] {
            assert_eq!((error.kind(), error.outcome_unknown()), (ErrorKind::Corrupted, true), "{error}");
            assert_eq!(error.reason(), None);
        }
        let endpoint = Error::Endpoint { endpoint: "x".to_owned(), message: "it has no port".to_owned() };
        for error in [endpoint, Error::Tls("no certificate".to_owned())] {
            assert_eq!((error.kind(), error.outcome_unknown()), (ErrorKind::Invalid, false), "{error}");
        }
    }

    #[test]
    fn what_is_said_of_a_number_holds_for_earlier_attempts_too() {
        for &reason in Reason::ALL {
            let settles = matches!(reason, Reason::RolledBack | Reason::SessionMismatch);
            assert_eq!(refused(reason, true).outcome_unknown(), !settles, "{reason}");
            assert!(!refused(reason, false).outcome_unknown(), "{reason}");
            assert_eq!((refused(reason, false).reason(), refused(reason, false).kind()), (Some(reason), reason.kind()));
        }
    }

    #[test]
    fn a_failure_after_a_commit_leaves_its_outcome_open() {
        assert!(refused(Reason::Denied, false).after_commit().outcome_unknown());
        let unavailable = Error::Unavailable {
            endpoint: "http://a:1".to_owned(),
            attempts: 1,
            message: "gone".to_owned(),
            reason: None,
            outcome_unknown: false,
        };
        assert_eq!(unavailable.to_string(), "no answer from http://a:1 after 1 attempt: gone");
        assert!(unavailable.after_commit().outcome_unknown());
    }

    #[test]
    fn a_status_without_a_message_is_still_described() {
        assert_eq!(describe(&Status::unavailable("gone")), "gone");
        assert_eq!(describe(&Status::new(Code::Unavailable, "")), Code::Unavailable.description());
    }
}
