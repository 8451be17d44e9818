//! An answer that says no: why, for machines and for people.

use coppice_types::Reason;

/// Why a request was refused; nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For machines.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A refusal with a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A field has a value that it may not have.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidArgument, message)
    }

    /// Something is larger than the limit of this name.
    pub fn over_limit(limit: &str, allowed: u64, found: u64) -> Self {
        Self::new(Reason::LimitExceeded, format!("{limit} is {allowed}, found {found}"))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}
