//! Failures of a command: an exit code, a message for people, and advice.

use coppice_client::Error;
use coppice_types::{ErrorKind, Reason};
use serde_json::{Value, json};

use crate::text;

/// Exit codes of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Success; used only if the reader of the command's output goes away before the end.
    Done = 0,
    /// Not found, a proof or an answer that does not hold, or a merge in conflict.
    NotFound = 1,
    /// Wrong usage.
    Usage = 2,
    /// Refused: conflict, limit, pruned, rolled back.
    Refused = 3,
    /// Unavailable.
    Unavailable = 4,
}

/// The reason why a command ended without doing its work.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    /// The machine-readable cause, if the cluster gave one.
    pub reason: Option<Reason>,
    /// A description of the failure. If it is empty, nothing is printed.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, reason: None, message: message.into(), hint: None }
    }

    /// A failure because the command line, or a file that it names, is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Adds advice for the user.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Puts the step that failed in front of the message.
    #[must_use]
    pub fn during(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Drops the message, because it was printed already. Only the exit code is left.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { message: String::new(), ..self }
    }

    /// A failure because a file could not be read or written.
    #[must_use]
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::usage(format!("{}: {error}", text::path(path)))
    }

    /// A failed write: the hint first says what is known of its outcome.
    #[must_use]
    pub fn of_write(error: Error) -> Self {
        let outcome = if error.outcome_unknown() {
            "The outcome is unknown: `coppice log` shows what was committed."
        } else {
            "Nothing was written."
        };
        Self::from(error).after(outcome)
    }

    /// A failure before a write, so that the write was not sent.
    #[must_use]
    pub fn before_write(error: Error) -> Self {
        Self::from(error).after("Nothing was written.")
    }

    /// Puts this sentence before the hint.
    fn after(self, outcome: &str) -> Self {
        let hint = self.hint.map_or_else(|| outcome.to_owned(), |hint| format!("{outcome} {hint}"));
        Self { hint: Some(hint), ..self }
    }

    /// The object that `--json` prints.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let error = json!({
            "code": self.code as u8,
            "reason": self.reason.map(Reason::name),
            "message": self.message,
            "hint": self.hint,
        });
        json!({ "error": error })
    }
}

/// For the processes of a cluster, which have the same exit codes.
impl From<coppice_process::Failure> for Failure {
    fn from(failure: coppice_process::Failure) -> Self {
        let code = match failure.code {
            coppice_process::Code::Usage => Code::Usage,
            coppice_process::Code::Refused => Code::Refused,
            coppice_process::Code::Unavailable => Code::Unavailable,
        };
        Self { code, reason: None, message: failure.message, hint: failure.hint }
    }
}

/// For reads, and for anything else that writes nothing.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let reason = error.reason();
        let code = match (&error, reason, error.kind()) {
            // Another attempt would not help: the server's proof or answer is wrong.
            (Error::Unproven(_) | Error::Untrusted(_) | Error::Malformed(_), _, _) => Code::NotFound,
            (_, Some(Reason::LimitExceeded | Reason::WrongCluster | Reason::BadSignature), _) => Code::Refused,
            (_, _, ErrorKind::Invalid) => Code::Usage,
            (_, _, ErrorKind::NotFound) => Code::NotFound,
            (_, _, ErrorKind::Denied | ErrorKind::Conflict | ErrorKind::Exhausted) => Code::Refused,
            (_, _, ErrorKind::Unavailable | ErrorKind::Fenced | ErrorKind::Corrupted | ErrorKind::Internal) => {
                Code::Unavailable
            }
        };
        let hint = reason.and_then(reason_hint).or_else(|| error_hint(&error)).map(str::to_owned);
        Self { code, reason, message: text::safe(&error.to_string()), hint }
    }
}

/// Advice for the user. Writes add whether something was written.
fn reason_hint(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::Denied => {
            "Use a certificate with the role: --client-cert and --client-key, or COPPICE_CLIENT_CERT and COPPICE_CLIENT_KEY."
        }
        Reason::NotYet => "`coppice head` shows the newest version.",
        Reason::Pruned => {
            "Older versions were dropped: `coppice head` shows the oldest that is left, `coppice log` who pruned and why."
        }
        Reason::Pinned => "`coppice pins` shows what is held until when; a pin ends by itself, or by `coppice unpin`.",
        Reason::LedgerFloor => "Roll back to that version or a later one; `coppice header --version` shows it.",
        Reason::Reserved => "Keys below 0x01 belong to the ledgers of members; give a range with `--low 0x01`.",
        Reason::BadSignature => "Is it the member's newest key? `coppice ledger members` lists the keys in force.",
        Reason::NotAMember => {
            "`coppice ledger members` lists them; a certificate names one by `urn:coppice:member:NAME`."
        }
        Reason::RoleMissing => {
            "`coppice ledger members` lists the roles; an owner gives them by `coppice ledger member roles`."
        }
        Reason::OrderIncomplete => {
            "`coppice order show` says who has signed; `coppice order sign` adds a member, and the author of `coppice order submit` counts, too."
        }
        Reason::Lane => {
            "Another request of this lane came first. `coppice ledger journals` shows whether it is this one; if not, try again, or use another --lane."
        }
        Reason::StaleView => "Compare your saved checkpoint by `coppice log check`; after a rollback, sign again.",
        Reason::LedgerChanged | Reason::ClueChanged => "Read the ledger again, and decide then.",
        Reason::NotPossible => "`coppice ledger list` and `coppice ledger members` say what there is.",
        Reason::PurgedJournal => "`coppice ledger purge status` says which purge took it.",
        Reason::RolledBack => "`coppice log` shows the rollback, who did it and why.",
        Reason::PreconditionFailed => "Read the key or the head again, and decide then.",
        Reason::LimitExceeded => "The ledger's limits are in its genesis header: `coppice header 0 --json`.",
        Reason::RequestExpired => "The session has gone on without this batch; use another --session to load it again.",
        Reason::SessionMismatch => "The session holds another input; name another one with --session.",
        Reason::UnknownSession => "The session has ended; name another one with --session.",
        Reason::ResourceExhausted => "The message says which limit is reached. Ask for less, or try again later.",
        Reason::DiskFull => "Free disk space, or prune: `coppice status` names the node.",
        Reason::QuotaExceeded => {
            "Wait until some of them end, or end those that are not needed: `coppice unpin` removes a pin, and sessions end by themselves."
        }
        Reason::Corrupted => "`coppice status` shows a damaged replica as quarantined; another one may answer later.",
        _ => return None,
    })
}

fn error_hint(error: &Error) -> Option<&'static str> {
    match error {
        Error::Unavailable { reason: Some(_), .. } => {
            Some("The cluster answers, but not all of it: `coppice status` shows which groups lack a majority.")
        }
        Error::Unavailable { endpoint, .. } if endpoint.starts_with("https://") => {
            Some("Is the cluster running, is this its endpoint, and does it ask for a certificate (--client-cert)?")
        }
        Error::Unavailable { .. } => Some("Is the cluster running, and is this its endpoint?"),
        Error::Unproven(_) | Error::Untrusted(_) => Some(
            "Is --trust the key of this ledger? If it is, the server is broken or lies: ask another coordinator, and tell its operator.",
        ),
        Error::Malformed(_) => Some("Is this a Coppice coordinator, of the same version as this command?"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use coppice_proto::status;

    use super::*;

    #[test]
    fn every_reason_has_its_exit_code() {
        for &reason in Reason::ALL {
            let failure = Failure::from(Error::from(status::refuse(reason, "no")));
            let expected = match reason {
                Reason::NotFound | Reason::PurgedJournal => Code::NotFound,
                Reason::InvalidArgument | Reason::Reserved => Code::Usage,
                reason
                    if matches!(
                        reason.kind(),
                        ErrorKind::Denied | ErrorKind::Conflict | ErrorKind::Exhausted | ErrorKind::Invalid
                    ) =>
                {
                    Code::Refused
                }
                _ => Code::Unavailable,
            };
            assert_eq!(failure.code, expected, "{reason}");
            assert_eq!(failure.to_json()["error"]["reason"], reason.name());
        }
    }
    #[test]
    fn an_answer_that_is_wrong_is_not_called_unavailable() {
        for error in [Error::Malformed("no record"), Error::Untrusted("it is of another key")] {
            assert_eq!(Failure::from(error).code, Code::NotFound);
        }
    }

    #[test]
    fn no_hint_speaks_of_disks_or_writes_that_were_not_asked_for() {
        for &reason in Reason::ALL {
            let failure = Failure::from(Error::from(status::refuse(reason, "no")));
            let hint = failure.hint.unwrap_or_default();
            assert_eq!(hint.contains("Free disk space"), reason == Reason::DiskFull, "{reason}: {hint}");
            assert!(!hint.contains("written"), "{reason}: {hint}");
            let write = Failure::of_write(Error::from(status::refuse(reason, "no")));
            assert!(write.hint.is_some_and(|hint| hint.starts_with("Nothing was written.")), "{reason}");
        }
    }

    #[test]
    fn what_a_server_says_forges_no_line() {
        let failure = Failure::from(Error::from(status::refuse(Reason::NotFound, "no\ncoppice: all is well\u{1b}[2J")));
        assert!(!failure.message.chars().any(coppice_types::text::is_control), "{:?}", failure.message);
    }
}
