//! Blocks of rows that were read last.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{meta::VersionRecord, place::refs::BlobRef};

/// Limit on the blocks that stay in memory after a read. Walks go from row to row.
const BLOCKS_CACHED_MAX: usize = 32;

pub(super) type Rows = Arc<[VersionRecord]>;

/// Rows of the blocks read last, the latest at the end. The value log gives no place twice while it
/// is open, so the place names the block.
#[derive(Debug, Default)]
pub(crate) struct BlockCache(Mutex<Vec<(BlobRef, Rows)>>);

impl BlockCache {
    pub(super) fn get(&self, at: BlobRef) -> Option<Rows> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cached.iter().rposition(|(known, _)| *known == at)?;
        let found = cached.remove(found);
        let rows = Arc::clone(&found.1);
        cached.push(found);
        Some(rows)
    }

    pub(super) fn insert(&self, at: BlobRef, rows: Rows) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= BLOCKS_CACHED_MAX {
            cached.remove(0);
        }
        cached.push((at, rows));
    }
}
