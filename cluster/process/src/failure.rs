//! Failures of a process: an exit code, a message for people, and a hint what to do.

use std::{fmt, path::Path};

use coppice_proto::live::Unreadable;

/// The exit codes of the processes. The `coppice` command uses the same ones for the same failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration is wrong.
    Usage = 2,
    /// Refused: the directory is in use, or belongs to another process.
    Refused = 3,
    /// Something that the process needs is missing or broke.
    Unavailable = 4,
}

/// The reason why a process ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// A file can't be read or written.
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
        failure.hint("scripts/certificates.sh makes certificates; docs/operations.md says which.")
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
