//! How a process fails: an exit code, words for people, what to do next.

use std::{fmt, path::Path};

use coppice_proto::live::Unreadable;

/// Exit codes of the processes; those of the `coppice` command where both have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration is wrong.
    Usage = 2,
    /// Refused: a directory that is in use, or another's.
    Refused = 3,
    /// Something that is needed is not there, or broke.
    Unavailable = 4,
}

/// Why a process ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// A file could not be read or written.
    #[must_use]
    pub fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::usage(format!("{}: {error}", path.display()))
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl From<Unreadable> for Failure {
    fn from(file: Unreadable) -> Self {
        let failure = Self::usage(file.to_string());
        failure.hint("scripts/certificates.sh makes certificates; docs/OPERATIONS.md says which.")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}
