//! How a command fails: an exit code, words for people, what to do next.

use coppice_client::Error;
use coppice_types::{ErrorKind, Reason};
use serde_json::{Value, json};

/// Exit codes of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Done: only for a command whose reader has gone away before the end.
    Done = 0,
    /// Not found, verification failed, or a merge in conflict.
    NotFound = 1,
    /// Wrong usage.
    Usage = 2,
    /// Refused: conflict, limit, pruned, rolled back.
    Refused = 3,
    /// Unavailable.
    Unavailable = 4,
}

/// Why a command ended without doing what it was asked for.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// Machine-readable cause, if the cluster gave one.
    pub reason: Option<Reason>,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, reason: None, message: message.into(), hint: None }
    }

    /// The command line, or a file that it names, is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Says first what was being done.
    #[must_use]
    pub fn during(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Has been told already: only the exit code is left.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { message: String::new(), ..self }
    }

    /// A file could not be read or written.
    #[must_use]
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::usage(format!("{}: {error}", path.display()))
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

    /// Prints the failure to standard error.
    pub fn print(&self, json: bool) {
        if self.message.is_empty() {
            return;
        }
        if json {
            eprintln!("{}", self.to_json());
            return;
        }
        match self.reason {
            Some(reason) => eprintln!("coppice: {} ({reason})", self.message),
            None => eprintln!("coppice: {}", self.message),
        }
        if let Some(hint) = &self.hint {
            eprintln!("  {hint}");
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let reason = error.reason();
        let code = match (reason, error.kind()) {
            (Some(Reason::LimitExceeded | Reason::WrongCluster), _) => Code::Refused,
            (_, ErrorKind::Invalid) => Code::Usage,
            (_, ErrorKind::NotFound) => Code::NotFound,
            (_, ErrorKind::Denied | ErrorKind::Conflict | ErrorKind::Exhausted) => Code::Refused,
            (_, ErrorKind::Unavailable | ErrorKind::Fenced | ErrorKind::Corrupted | ErrorKind::Internal) => {
                Code::Unavailable
            }
        };
        let open = error.outcome_unknown();
        let hint =
            reason.and_then(|reason| reason_hint(reason, open)).or_else(|| error_hint(&error)).map(str::to_owned);
        Self { code, reason, message: error.to_string(), hint }
    }
}

/// What to do next; `open`: an attempt before this refusal had no answer.
fn reason_hint(reason: Reason, open: bool) -> Option<&'static str> {
    Some(match reason {
        Reason::PreconditionFailed | Reason::LimitExceeded | Reason::ResourceExhausted if open => {
            "An earlier attempt had no answer: a write may or may not have been applied. Read the key, and decide anew."
        }
        Reason::Denied => {
            "Nothing was done. Use a certificate with the role: --client-cert and --client-key, or COPPICE_CLIENT_CERT and COPPICE_CLIENT_KEY."
        }
        Reason::NotYet => "`coppice head` shows the newest version.",
        Reason::Pruned => {
            "Older versions were dropped; `coppice head --json` shows the oldest that is left, `coppice log` who pruned and why."
        }
        Reason::Pinned => "`coppice pins` shows who holds what; a pin ends by itself, or by `coppice unpin`.",
        Reason::RolledBack => "`coppice log` shows the rollback, who did it and why.",
        Reason::PreconditionFailed => "Nothing was written. Read the key or the head again, and decide anew.",
        Reason::LimitExceeded => {
            "Nothing was written. The limits stand in the genesis header: `coppice header 0 --json`."
        }
        Reason::RequestExpired => "The session has gone on without this batch; use another --session to load it again.",
        Reason::SessionMismatch => "The session holds another input; name another one with --session.",
        Reason::UnknownSession => "The session has ended; name another one with --session.",
        Reason::ResourceExhausted => "Nothing was written. Free disk space, prune, or try again later.",
        _ => return None,
    })
}

fn error_hint(error: &Error) -> Option<&'static str> {
    match error {
        Error::Unavailable { endpoint, outcome_unknown, .. } if endpoint.starts_with("https://") => {
            Some(if *outcome_unknown {
                "Is the cluster running, is this its endpoint, and does it ask for a certificate (--client-cert)? A write may or may not have been applied."
            } else {
                "Is the cluster running, is this its endpoint, and does it ask for a certificate (--client-cert)? Nothing was written."
            })
        }
        Error::Unavailable { outcome_unknown: true, .. } => {
            Some("Is the cluster running, and is this its endpoint? A write may or may not have been applied.")
        }
        Error::Unavailable { .. } => Some("Is the cluster running, and is this its endpoint? Nothing was written."),
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
                Reason::NotFound => Code::NotFound,
                Reason::InvalidArgument => Code::Usage,
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
}
