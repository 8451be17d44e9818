//! Errors of a cosigner's folder and of the logs that it reads.

use std::io;

/// The reason why the cosigner could not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk refused.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// A file of the folder is damaged or missing; says which, and what to do.
    #[error("{0}")]
    Damaged(String),
    /// What was asked for is wrong or not possible now.
    #[error("{0}")]
    Refused(String),
    /// A server did not give what was asked for.
    #[error("{0}")]
    Unavailable(String),
}

/// The error that a file of the mirror does not hold what it must.
pub(crate) fn damaged(what: impl Into<String>) -> Error {
    Error::Damaged(what.into())
}

/// Makes an error of what the disk said, with what was tried.
pub(crate) fn disk(what: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::Disk(io::Error::new(error.kind(), format!("{what}: {error}")))
}
