//! The reasons why a replay ends: an error, or a version that is wrong.

use coppice_types::{ErrorKind, ShardId, Stamp};

use crate::Error;

/// Most times in a row that a broken stream is resumed without progress.
pub(super) const RESUMES_MAX: u32 = 5;

/// A version whose state does not follow from its batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The version.
    pub stamp: Stamp,
    /// The shard that differs, if it is known.
    pub shard: Option<ShardId>,
    /// A description of the difference.
    pub what: String,
}

/// The reason why a replay stops.
#[derive(Debug)]
pub enum Stop {
    /// The ledger did not tell what was asked for. Nothing is known to be wrong.
    Failed(Error),
    /// A version is wrong.
    Differs(Difference),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) fn may_resume(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced | ErrorKind::Conflict)
}
