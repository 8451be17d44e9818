//! What can go wrong in the engine, and what the caller can do about it.

use std::{io, sync::Arc};

use coppice_env::Shortage;
use coppice_types::{Digest, Epoch, ErrorKind, Reason, ShardId, Version};

use crate::ShardState;

/// Result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the engine refused, or could not do, what it was asked.
///
/// No error has changed the state, except where a variant says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed. A flush can be tried again when the cause (often a full disk) is gone.
    #[error("cannot {action} {file}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Name of the file in the data directory.
        file: String,
        /// What the storage said.
        source: Arc<io::Error>,
    },
    /// Stored bytes are not what was written.
    #[error("{file}{} is damaged: {what}", .page.map(|page| format!(" page {page}")).unwrap_or_default())]
    Corrupted {
        /// Name of the file in the data directory.
        file: String,
        /// First page of the span, where the file has pages; otherwise the offset, where there is one.
        page: Option<u64>,
        /// What does not hold.
        what: String,
    },
    /// A segment is in the cold directory, which was not given, or is an empty one.
    #[error(
        "{file} lies in the cold directory, which is missing: no directory was given, or the disk in its place is another one"
    )]
    ColdMissing {
        /// Name of the segment's file.
        file: String,
    },
    /// Another version of the software wrote the directory.
    #[error(
        "the directory has format {found}, and this build reads format {known} alone: use the build that wrote it (docs/OPERATIONS.md, \"Ledgers of older builds\")"
    )]
    OtherFormat {
        /// The directory's.
        found: u32,
        /// This build's.
        known: u32,
    },
    /// A data directory exists here already.
    #[error("the directory holds an engine already")]
    AlreadyExists,
    /// No data directory was completed here.
    #[error("the directory holds no engine")]
    Missing,
    /// Another process or engine has the directory open.
    #[error("the directory is locked by another process")]
    Locked,
    /// A superblock was written with unknown outcome: open the directory anew. Reads go on.
    #[error("a superblock write failed, open the directory anew")]
    Poisoned,
    /// The base is neither the decided state nor a staged one.
    #[error("version {} with digest {} is no base: decided is version {}", .base.version, .base.digest, .decided.version)]
    BaseMismatch {
        /// What the request named.
        base: ShardState,
        /// The newest decided state.
        decided: ShardState,
    },
    /// A version is staged under this name already.
    #[error("version {version} is staged under this prepare id already")]
    AlreadyStaged {
        /// The version.
        version: Version,
    },
    /// The stamp does not follow on the base's, or its epoch is over.
    #[error("the stamp does not follow on its base (epoch {epoch})")]
    StampMismatch {
        /// The epoch that stamps must have at least.
        epoch: Epoch,
    },
    /// No decided or staged version has this name.
    #[error("version {} with digest {} is not here", .0.version, .0.digest)]
    StateMissing(ShardState),
    /// The version is below the pruned boundary.
    #[error("versions below {boundary} are pruned")]
    Pruned {
        /// Oldest version that is kept.
        boundary: Version,
    },
    /// The request breaks a limit or an order.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// One more tree than the genesis header allows.
    #[error("the forest has its {limit} trees; a merge must be installed first")]
    TreeLimit {
        /// The limit.
        limit: u8,
    },
    /// A merge's inputs are not neighbouring frozen trees of the base.
    #[error("the merge's inputs are not frozen neighbours in the forest")]
    MergeInputs,
    /// The merge gives another tree here than the request says.
    #[error("the merge gives tree {found}, not {expected}")]
    MergeOutput {
        /// What the request says.
        expected: Digest,
        /// What the inputs give.
        found: Digest,
    },
    /// The two versions are not of one line.
    #[error("version {from} is no ancestor of version {to}")]
    NotAncestor {
        /// The older version of a diff.
        from: Version,
        /// The newer version of a diff.
        to: Version,
    },
    /// The snapshot is not pinned, or a file is not in it.
    #[error("snapshot {id} has no file {file:?} here")]
    SnapshotMissing {
        /// Number of the snapshot.
        id: u64,
        /// Name of the file.
        file: String,
    },
    /// The storage failed while a snapshot was checked: it may be sound.
    #[error("a snapshot could not be checked: {0}")]
    Unchecked(String),
    /// A received snapshot is of another shard, or it is not complete.
    #[error("snapshot refused: {0}")]
    SnapshotRefused(String),
    /// The directory belongs to another shard.
    #[error("the directory belongs to shard {0}")]
    WrongShard(ShardId),
}

impl Error {
    /// What now?
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
            // Another replica may have what this one lacks.
            Self::Io { source, .. } if Shortage::of(source) == Some(Shortage::Handles) => Reason::Unavailable,
            _ => match self.kind() {
                ErrorKind::Invalid => Reason::InvalidArgument,
                ErrorKind::NotFound => Reason::NotFound,
                ErrorKind::Conflict => Reason::PreconditionFailed,
                ErrorKind::Exhausted => Reason::ResourceExhausted,
                ErrorKind::Unavailable => Reason::Unavailable,
                ErrorKind::Fenced => Reason::BaseMismatch,
                ErrorKind::Corrupted => Reason::Corrupted,
                // Nothing in here asks who calls.
                ErrorKind::Denied | ErrorKind::Internal => Reason::Internal,
            },
        }
    }

    /// For `map_err` on a storage call.
    pub(crate) fn io<'a>(action: &'static str, file: &'a str) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, file: file.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn corrupted(file: impl Into<String>, page: Option<u64>, what: impl Into<String>) -> Self {
        Self::Corrupted { file: file.into(), page, what: what.into() }
    }
}
