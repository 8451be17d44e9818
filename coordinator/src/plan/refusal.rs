//! A refusal: its reason for machines, its message for people.

use coppice_types::Reason;

/// The answer to a refused request, which has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for machines.
    pub reason: Reason,
    /// The message, for people.
    pub message: String,
}

impl Refusal {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The refusal of a field with a value that it may not have.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidArgument, message)
    }

    /// The refusal of a size above the limit with this name.
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
