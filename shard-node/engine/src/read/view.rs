//! Lookups and ranges in one version.

use coppice_types::{Digest, Stamp, Version};
use coppice_verify::{hash, rules::Filter};

use crate::{
    Result, ShardState,
    files::values::StoredValue,
    meta::{Meta, Tree, VersionRecord},
    store::Store,
    tree::{
        self,
        active::ActiveKeys,
        cursor::ForestCursor,
        found::{Found, FoundBody},
    },
};

/// One state, decided or staged. It reads pages on demand and checks each one.
#[derive(Clone, Copy)]
pub struct View<'e> {
    pub(crate) meta: &'e Meta,
    pub(crate) store: &'e Store,
    pub(crate) active: &'e ActiveKeys,
    pub(crate) record: &'e VersionRecord,
}

/// A key that has a value.
#[derive(Clone)]
pub struct Record {
    pub key: Vec<u8>,
    /// Stamp of the commit that wrote the record.
    pub stamp: Stamp,
    /// Length of the value in bytes.
    pub value_len: u32,
    /// SHA-256 of the value; `None` if only the value was read.
    known_hash: Option<Digest>,
    /// The value, if the caller wanted it.
    pub value: Option<Vec<u8>>,
}

impl Record {
    /// SHA-256 of the value.
    ///
    /// # Panics
    /// If the value was taken out of the record, and its hash was not read from a leaf.
    #[must_use]
    pub fn value_hash(&self) -> Digest {
        let of_value =
            || hash::sha256(self.value.as_deref().expect("what was found without its hash was found with its value"));
        self.known_hash.unwrap_or_else(of_value)
    }
}

// The source of the hash makes no difference.
impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        let of = |record: &Self| (record.stamp, record.value_len, record.value_hash());
        self.key == other.key && of(self) == of(other) && self.value == other.value
    }
}

impl Eq for Record {}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key)
            .field("stamp", &self.stamp)
            .field("value_hash", &self.value_hash())
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangePage {
    /// The records, in key order.
    pub records: Vec<Record>,
    /// Whether a limit cut the range short.
    pub more: bool,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl<'e> View<'e> {
    /// The state that the view reads.
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

    /// A Bloom filter that covers every key of the active tree.
    pub(crate) fn active_keys(&self) -> Option<&'e Filter> {
        self.active.filter(self.record)
    }

    /// The record of a key that has a value.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn get(&self, key: &[u8], want_value: bool) -> Result<Option<Record>> {
        let get = if want_value { tree::get_with_value } else { tree::get };
        let found = get(self.store, self.trees(), self.active_keys(), key)?;
        found.map_or(Ok(None), |found| self.live(found, want_value))
    }

    /// The records of keys with values in `low <= key < high`, at most `limit` of them.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn range(&self, low: &[u8], high: Option<&[u8]>, limit: usize, want_values: bool) -> Result<RangePage> {
        self.range_part(low, high, limit, usize::MAX, want_values)
    }

    /// Like [`range`](Self::range), with at most `bytes_max` bytes of keys and wanted values; the
    /// first record may exceed that. Only values that are returned are read.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn range_part(
        &self,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
        bytes_max: usize,
        want_values: bool,
    ) -> Result<RangePage> {
        let store = self.store;
        let mut cursor = ForestCursor::seek(store, self.trees(), low)?;
        let mut page = RangePage::default();
        let mut bytes = 0_usize;
        // Values in the value log, and the indices of their records. They are read at the end, when
        // neighbours are known.
        let (mut stored, mut owners) = (Vec::new(), Vec::new());
        while let Some(newest) = cursor.next_newest(store, high)? {
            let Some((record, elsewhere)) = shown(newest) else { continue };
            bytes += record.key.len() + if want_values { record.value_len as usize } else { 0 };
            if page.records.len() == limit || (bytes > bytes_max && !page.records.is_empty()) {
                page.more = true;
                break;
            }
            if let Some(value) = elsewhere.filter(|_| want_values) {
                stored.push(value);
                owners.push(page.records.len());
            }
            let value = record.value.filter(|_| want_values);
            page.records.push(Record { value, ..record });
        }
        store.values(&stored, |number, value| page.records[owners[number]].value = Some(value))?;
        Ok(page)
    }

    /// The record with its value; `None` for a tombstone.
    pub(crate) fn live(&self, found: Found, want_value: bool) -> Result<Option<Record>> {
        let Some((mut record, elsewhere)) = shown(found) else { return Ok(None) };
        record.value = match elsewhere {
            _ if !want_value => None,
            Some(stored) => Some(self.store.value(stored)?),
            None => record.value,
        };
        Ok(Some(record))
    }

    /// The newest version below `version` on the line of this view: its staged ancestors, then the
    /// decided versions.
    pub(crate) fn before(&self, version: Version) -> Option<View<'e>> {
        let meta = self.meta;
        let mut record = self.record;
        while record.stamp.version >= version && !record.decided {
            record = &meta.versions[&record.parent];
        }
        if record.decided {
            let below = version.0.checked_sub(1)?;
            record = meta.decided_at(Version(below.min(record.stamp.version.0)))?;
        }
        Some(Self { record, ..*self })
    }
}

/// The record, with its value if that lies in the leaf, and otherwise the value's place. `None` for
/// a tombstone.
fn shown(found: Found) -> Option<(Record, Option<StoredValue>)> {
    let Found { key, stamp, body } = found;
    let (known_hash, value_len, value, elsewhere) = match body {
        FoundBody::Tombstone => return None,
        FoundBody::Inline { hash, value } => (Some(hash), value.len() as u32, Some(value), None),
        FoundBody::Stored { hash, value } => (Some(hash), value.len, None, Some(value)),
        FoundBody::Named { value } => (None, value.len() as u32, Some(value), None),
    };
    Some((Record { key, stamp, value_len, known_hash, value }, elsewhere))
}
