//! Reads of one version: lookups and ranges.

use coppice_types::{Digest, Stamp, Version};

use crate::{
    Engine, Result, ShardState,
    meta::{Tree, VersionRecord},
    tree::{self, Found, FoundBody, cursor::ForestCursor},
};

/// One state, decided or staged. It reads pages as it goes; every page is checked first.
#[derive(Clone, Copy, Debug)]
pub struct View<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) record: &'e VersionRecord,
}

/// A key that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The commit that wrote it last.
    pub stamp: Stamp,
    /// Length of the value in bytes.
    pub value_len: u32,
    /// SHA-256 of the value.
    pub value_hash: Digest,
    /// The value, if it was asked for.
    pub value: Option<Vec<u8>>,
}

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangePage {
    /// In order of keys.
    pub records: Vec<Record>,
    /// The limit cut the range short.
    pub more: bool,
}

impl<'e> View<'e> {
    pub(crate) fn new(engine: &'e Engine, record: &'e VersionRecord) -> Self {
        Self { engine, record }
    }

    /// What is read.
    #[must_use]
    pub fn state(&self) -> ShardState {
        self.record.state()
    }

    /// Epoch and version of the state.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.record.stamp
    }

    pub(crate) fn trees(&self) -> &'e [Tree] {
        &self.record.trees
    }

    /// The key's record, if it has a value.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn get(&self, key: &[u8], want_value: bool) -> Result<Option<Record>> {
        let found = tree::get(&self.engine.store, self.trees(), key)?;
        found.map_or(Ok(None), |found| self.live(found, want_value))
    }

    /// The keys of `low <= key < high` that have values, at most `limit` of them.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn range(&self, low: &[u8], high: Option<&[u8]>, limit: usize, want_values: bool) -> Result<RangePage> {
        let store = &self.engine.store;
        let mut cursor = ForestCursor::seek(store, self.trees(), low)?;
        let mut page = RangePage::default();
        while cursor.key().is_some_and(|key| high.is_none_or(|high| key < high)) {
            let newest = cursor.next(store)?.swap_remove(0);
            if newest.is_tombstone() {
                continue;
            }
            if page.records.len() == limit {
                page.more = true;
                break;
            }
            page.records.extend(self.live(newest, want_values)?);
        }
        Ok(page)
    }

    /// The record with its value; none for a tombstone.
    pub(crate) fn live(&self, found: Found, want_value: bool) -> Result<Option<Record>> {
        let (value_hash, value_len, value) = match found.body {
            FoundBody::Tombstone => return Ok(None),
            FoundBody::Inline { hash, value } => (hash, value.len() as u32, want_value.then_some(value)),
            FoundBody::Stored { hash, len, at } => {
                let value = if want_value { Some(self.engine.store.value(at, len)?) } else { None };
                (hash, len, value)
            }
        };
        Ok(Some(Record { key: found.key, stamp: found.stamp, value_len, value_hash, value }))
    }

    /// The newest version below `version` on the line of this view: its staged ancestors, then the decided versions.
    pub(crate) fn before(&self, version: Version) -> Option<View<'e>> {
        let meta = &self.engine.meta;
        let mut record = self.record;
        while record.stamp.version >= version && !record.decided {
            record = &meta.versions[&record.parent];
        }
        if record.decided {
            let below = version.0.checked_sub(1)?;
            record = meta.decided_at(Version(below.min(record.stamp.version.0)))?;
        }
        Some(Self { engine: self.engine, record })
    }
}
