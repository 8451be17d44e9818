//! The shard engine: a forest of copy-on-write Merkle B+-trees on location-addressed pages.
//!
//! One [`Engine`] owns the data directory of one shard. A *Prepare* is staged, and later settled or
//! aborted. A prune drops old versions, a rollback new ones. All of these change only memory; a
//! flush makes the whole state durable. A [`View`] reads one version and proves what it reads.
//!
//! Modules import only from those below them:
//!
//! ```text
//! engine    the owner: stage, settle, merge, flush, prune, roll back
//! snapshot  a flushed state, packed for another replica and received from one
//! check     offline check of a directory, and the scrubber     read   views, proofs, history
//! tree      walks, changes and merges of trees
//! store     nodes, values and filters by reference; data that waits for a flush
//! files     value log, meta log, superblocks, the directory
//! meta      the Meta table: versions, trees, free pages
//! cache     page caches, hash lists, and structures that speed up lookups
//! node      the bytes of a node, whole or as a patch
//! place     pages, free pages, references into the value log
//! api, error, counters
//! ```
//!
//! `docs/format.md` describes the files, `docs/verification.md` the rules that digests follow.

mod api;
mod counters;
mod error;

mod place;

mod node;

mod cache;

mod meta;

mod files;

mod store;

mod tree;

mod check;
mod read;

mod snapshot;

mod engine;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod testing;

pub use api::{
    DiskUsage, ErasureProgress, ForestShape, MergePace, MergeProgress, Options, StageRequest, Staged, StagedInfo,
};
pub use cache::lists::ACTIVE_HASH_BYTES;
pub use check::{Finding, Report, fsck};
pub use coppice_types::{MergeName, Position, PrepareId, ShardState};
pub use counters::Counters;
pub use engine::{Engine, journals::KeptJournal, writes::Writes};
pub use error::{Error, Result};
pub use files::{superblock::MACHINE_STATE_BYTES_MAX, values::tier::ColdStep};
pub use read::{
    footprint::Footprint,
    history::{DiffPage, HistoryPage, KeyChange},
    nodes::{NodePlace, TreePlace, WholeNode},
    three_way::{Conflict, MergePage},
    view::{RangePage, Record, View},
};
pub use snapshot::{Manifest, SnapshotReceiver};
