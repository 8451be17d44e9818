//! Errors of the crate.

use coppice_types::{ErrorKind, Version};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A function of the vendor's library failed; the code is the library's.
    #[error("{call} failed with code {code}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// The library's number.
        code: i32,
    },
    /// The vendor's library can't be used.
    #[error("no {path}: {why}")]
    NoLibrary {
        /// The path or name that was given.
        path: String,
        /// What the dynamic linker says.
        why: String,
    },
    /// Bytes do not fit what they are said to be. The text says which.
    #[error("{0} is not as expected")]
    Mismatch(&'static str),
    /// A setting has a value that can't be used.
    #[error("setting: {0}")]
    Setting(&'static str),
    /// The version is not served here. `oldest` is the oldest one that is, if there is one.
    #[error("the version is not served here")]
    NotServed {
        /// The oldest served version.
        oldest: Option<Version>,
    },
    /// More work is waiting than the limits allow.
    #[error("too many queries are waiting")]
    Overloaded,
    /// The nodes of a version exceed the limit of the host's memory.
    #[error("the version has too many nodes for this reader")]
    TooLarge,
    /// The engine could not read a node.
    #[error("a node could not be read")]
    Engine(#[from] coppice_engine::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Call { .. } | Self::NoLibrary { .. } => ErrorKind::Unavailable,
            Self::Mismatch(_) => ErrorKind::Corrupted,
            Self::Setting(_) => ErrorKind::Invalid,
            Self::NotServed { .. } => ErrorKind::NotFound,
            Self::Overloaded | Self::TooLarge => ErrorKind::Unavailable,
            Self::Engine(error) => error.kind(),
        }
    }
}
