//! The engine's errors, and what a caller can do about each.

use std::{io, sync::Arc};

use coppice_env::Shortage;
use coppice_types::{Digest, Epoch, ErrorKind, Reason, ShardId, Version};

use crate::ShardState;

pub type Result<T> = std::result::Result<T, Error>;

/// The reason why the engine refused a request or failed to carry it out.
///
/// An error leaves the state unchanged, except where a variant says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed. A flush can be repeated when the cause (often a full disk) is gone.
    #[error("cannot {action} {file}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// Name of the file in the data directory.
        file: String,
        source: Arc<io::Error>,
    },
    /// Stored bytes differ from what was written.
    #[error("{file}{} is damaged: {what}", .page.map(|page| format!(" page {page}")).unwrap_or_default())]
    Corrupted {
        /// Name of the file in the data directory.
        file: String,
        /// The first page of the span in a file of pages; elsewhere the offset, if known.
        page: Option<u64>,
        /// The check that failed.
        what: String,
    },
    /// A segment lies in the cold directory, but that directory was not given or is an empty one.
    #[error(
        "{file} lies in the cold directory, which is missing: no directory was given, or the disk in its place is another one"
    )]
    ColdMissing {
        /// Name of the segment's file.
        file: String,
    },
    /// The directory has a different format than this build reads.
    #[error(
        "the directory has format {found}, and this build reads only format {known}: use the build that wrote it (docs/operations.md, \"Ledgers of older builds\")"
    )]
    OtherFormat { found: u32, known: u32 },
    /// The directory holds an engine already.
    #[error("the directory holds an engine already")]
    AlreadyExists,
    /// The directory holds no completed engine.
    #[error("the directory holds no engine")]
    Missing,
    /// Another process or engine has the directory open.
    #[error("the directory is locked by another process")]
    Locked,
    /// The outcome of a superblock write is unknown. Reads still work; changes need the directory
    /// to be opened again.
    #[error("a superblock write failed, open the directory again")]
    Poisoned,
    /// The base is neither the decided state nor a staged one.
    #[error("version {} with digest {} can't be a base: the decided version is {}", .base.version, .base.digest, .decided.version)]
    BaseMismatch {
        /// The base that the request named.
        base: ShardState,
        /// The newest decided state.
        decided: ShardState,
    },
    /// A version is staged under this number and prepare id already.
    #[error("version {version} is staged under this prepare id already")]
    AlreadyStaged { version: Version },
    /// The stamp does not follow the base's, or its epoch has ended.
    #[error("the stamp does not follow its base (epoch {epoch})")]
    StampMismatch {
        /// The lowest epoch that stamps may have.
        epoch: Epoch,
    },
    /// No decided or staged version has this name.
    #[error("version {} with digest {} is not here", .0.version, .0.digest)]
    StateMissing(ShardState),
    /// The version lies below the prune boundary.
    #[error("versions below {boundary} are pruned")]
    Pruned {
        /// Oldest version that is kept.
        boundary: Version,
    },
    /// The request violates a limit or an order.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// Another tree would exceed the limit in the genesis header.
    #[error("the forest has its {limit} trees; a merge must be installed first")]
    TreeLimit { limit: u8 },
    /// The merge's inputs are not adjacent frozen trees of the base.
    #[error("the merge's inputs are not frozen neighbours in the forest")]
    MergeInputs,
    /// The merge produces a different tree here than the request names.
    #[error("the merge gives tree {found}, not {expected}")]
    MergeOutput {
        /// The tree that the request names.
        expected: Digest,
        /// The tree that the inputs produce.
        found: Digest,
    },
    /// Neither version descends from the other.
    #[error("version {from} is not an ancestor of version {to}")]
    NotAncestor {
        /// The older version of a diff.
        from: Version,
        /// The newer version of a diff.
        to: Version,
    },
    /// The snapshot is not pinned, or it has no such file.
    #[error("snapshot {id} has no file {file:?} here")]
    SnapshotMissing {
        /// Number of the snapshot.
        id: u64,
        file: String,
    },
    /// The storage failed during the check of a snapshot, which may still be sound.
    #[error("a snapshot could not be checked: {0}")]
    Unchecked(String),
    /// A received snapshot belongs to another shard or is incomplete.
    #[error("snapshot refused: {0}")]
    SnapshotRefused(String),
    /// The directory belongs to another shard.
    #[error("the directory belongs to shard {0}")]
    WrongShard(ShardId),
}

impl Error {
    /// The kind of the error: what the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } if Shortage::of(source).is_some() => ErrorKind::Exhausted,
            Self::Io { .. } | Self::Poisoned | Self::MergeInputs | Self::Unchecked(_) | Self::SnapshotRefused(_) => {
                ErrorKind::Internal
            }
            Self::MergeOutput { .. } | Self::Corrupted { .. } => ErrorKind::Corrupted,
            Self::Missing | Self::SnapshotMissing { .. } => ErrorKind::NotFound,
            Self::AlreadyExists | Self::AlreadyStaged { .. } | Self::NotAncestor { .. } | Self::WrongShard(_) => {
                ErrorKind::Conflict
            }
            Self::Pruned { .. } | Self::OtherFormat { .. } => ErrorKind::Conflict,
            Self::Locked | Self::ColdMissing { .. } | Self::StateMissing(_) => ErrorKind::Unavailable,
            Self::BaseMismatch { .. } | Self::StampMismatch { .. } => ErrorKind::Fenced,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::TreeLimit { .. } => ErrorKind::Exhausted,
        }
    }

    /// The machine-readable cause.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::BaseMismatch { .. } | Self::StampMismatch { .. } => Reason::BaseMismatch,
            Self::StateMissing(_) => Reason::StateMissing,
            Self::Pruned { .. } => Reason::Pruned,
            // Another replica may have free file handles.
            Self::Io { source, .. } if Shortage::of(source) == Some(Shortage::Handles) => Reason::Unavailable,
            _ => match self.kind() {
                ErrorKind::Invalid => Reason::InvalidArgument,
                ErrorKind::NotFound => Reason::NotFound,
                ErrorKind::Conflict => Reason::PreconditionFailed,
                ErrorKind::Exhausted => Reason::ResourceExhausted,
                ErrorKind::Unavailable => Reason::Unavailable,
                ErrorKind::Fenced => Reason::BaseMismatch,
                ErrorKind::Corrupted => Reason::Corrupted,
                // The engine never checks the caller's identity.
                ErrorKind::Denied | ErrorKind::Internal => Reason::Internal,
            },
        }
    }

    /// Returns a function for `map_err` that wraps the error of a storage call.
    pub(crate) fn io<'a>(action: &'static str, file: &'a str) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, file: file.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn corrupted(file: impl Into<String>, page: Option<u64>, what: impl Into<String>) -> Self {
        Self::Corrupted { file: file.into(), page, what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: io::ErrorKind) -> Error {
        Error::io("write", "data")(kind.into())
    }

    fn told(error: &Error) -> (ErrorKind, Reason) {
        (error.kind(), error.reason())
    }

    /// Callers wait for room on this replica, and turn to another for file handles.
    #[test]
    fn a_shortage_is_told_from_other_failures_of_the_storage() {
        assert_eq!(told(&failed(io::ErrorKind::StorageFull)), (ErrorKind::Exhausted, Reason::ResourceExhausted));
        assert_eq!(told(&failed(io::ErrorKind::OutOfMemory)), (ErrorKind::Exhausted, Reason::Unavailable));
        assert_eq!(told(&failed(io::ErrorKind::TimedOut)), (ErrorKind::Internal, Reason::Internal));
    }

    #[test]
    fn a_base_that_was_not_decided_is_fenced_and_a_missing_one_unavailable() {
        let state = ShardState { version: Version(1), digest: Digest::default() };
        let fenced = (ErrorKind::Fenced, Reason::BaseMismatch);
        assert_eq!(told(&Error::BaseMismatch { base: state, decided: state }), fenced);
        assert_eq!(told(&Error::StampMismatch { epoch: Epoch(1) }), fenced);
        assert_eq!(told(&Error::StateMissing(state)), (ErrorKind::Unavailable, Reason::StateMissing));
        assert_eq!(told(&Error::Pruned { boundary: Version(1) }), (ErrorKind::Conflict, Reason::Pruned));
    }

    #[test]
    fn damage_is_told_from_a_check_that_could_not_be_made() {
        assert_eq!(told(&Error::corrupted("data", Some(1), "checksum")), (ErrorKind::Corrupted, Reason::Corrupted));
        assert_eq!(Error::Unchecked("data".to_owned()).kind(), ErrorKind::Internal);
        let cold = Error::ColdMissing { file: "values-0".to_owned() };
        assert_eq!(told(&cold), (ErrorKind::Unavailable, Reason::Unavailable));
    }

    #[test]
    fn a_message_names_the_file_and_the_page_if_it_is_known() {
        assert_eq!(Error::corrupted("data", Some(7), "checksum").to_string(), "data page 7 is damaged: checksum");
        assert_eq!(Error::corrupted("meta-1", None, "header").to_string(), "meta-1 is damaged: header");
        assert_eq!(failed(io::ErrorKind::TimedOut).to_string(), "cannot write data");
    }
}
