//! Lookups and ranges in one version.

use coppice_types::{Digest, Stamp, Version};
use coppice_verify::{hash, rules::Filter};

use crate::{
    Result, ShardState,
    files::values::StoredValue,
    meta::{Tree, rows::Row},
    store::{Store, line::Line},
    tree::{
        self,
        active::ActiveKeys,
        backward::BackwardForest,
        cursor::ForestCursor,
        found::{Found, FoundBody},
    },
};

/// One state, decided or staged. It reads pages on demand and checks each one.
#[derive(Clone)]
pub struct View<'e> {
    pub(crate) line: Line<'e>,
    pub(crate) active: &'e ActiveKeys,
    pub(crate) row: Row<'e>,
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
    /// The value, if the caller wanted it and it is not erased.
    pub value: Option<Vec<u8>>,
    /// Whether the value is erased. Its length and hash stay.
    pub erased: bool,
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
        self.key == other.key && of(self) == of(other) && self.value == other.value && self.erased == other.erased
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
        self.row.state()
    }

    /// Epoch and version of the state.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.row.stamp
    }

    pub(crate) fn trees(&self) -> &[Tree] {
        &self.row.trees
    }

    pub(crate) fn store(&self) -> &'e Store {
        self.line.store
    }

    /// A Bloom filter that covers every key of the active tree.
    pub(crate) fn active_keys(&self) -> Option<&'e Filter> {
        self.active.filter(&self.row)
    }

    /// The record of a key that has a value.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn get(&self, key: &[u8], want_value: bool) -> Result<Option<Record>> {
        // A value that is found by shortcuts comes without its hash, which is computed from the
        // value.
        let get = if want_value && !self.is_erased(key) { tree::get_with_value } else { tree::get };
        let found = get(self.store(), self.trees(), self.active_keys(), key)?;
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
        let store = self.store();
        let mut cursor = ForestCursor::seek(store, self.trees(), low)?;
        self.page((limit, bytes_max), want_values, || cursor.next_newest(store, high))
    }

    /// Like [`range_part`](Self::range_part), from the largest key to the smallest.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn range_back(
        &self,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
        bytes_max: usize,
        want_values: bool,
    ) -> Result<RangePage> {
        let store = self.store();
        let mut cursor = BackwardForest::seek(store, self.trees(), high)?;
        self.page((limit, bytes_max), want_values, || cursor.next_newest(store, low))
    }

    fn page(
        &self,
        (limit, bytes_max): (usize, usize),
        want_values: bool,
        mut next: impl FnMut() -> Result<Option<Found>>,
    ) -> Result<RangePage> {
        let mut page = RangePage::default();
        let mut bytes = 0_usize;
        // Values in the value log, and the indices of their records. They are read at the end, when
        // neighbours are known.
        let (mut stored, mut owners) = (Vec::new(), Vec::new());
        while let Some(newest) = next()? {
            let Some((record, elsewhere)) = self.shown(newest) else { continue };
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
        self.store().values(&stored, |number, value| page.records[owners[number]].value = Some(value))?;
        Ok(page)
    }

    fn is_erased(&self, key: &[u8]) -> bool {
        self.line.meta.erasures.has(key)
    }

    /// The record, with its value if that lies in the leaf, and otherwise the value's place. `None`
    /// for a tombstone.
    fn shown(&self, found: Found) -> Option<(Record, Option<StoredValue>)> {
        let (record, elsewhere) = shown(found)?;
        if !self.is_erased(&record.key) {
            return Some((record, elsewhere));
        }
        Some((Record { value: None, erased: true, ..record }, None))
    }

    /// The record with its value; `None` for a tombstone.
    pub(crate) fn live(&self, found: Found, want_value: bool) -> Result<Option<Record>> {
        let Some((mut record, elsewhere)) = self.shown(found) else { return Ok(None) };
        record.value = match elsewhere {
            _ if !want_value => None,
            Some(stored) => Some(self.store().value(stored)?),
            None => record.value,
        };
        Ok(Some(record))
    }

    /// The newest version below `version` on the line of this view: its staged ancestors, then the
    /// decided versions.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub(crate) fn before(&self, version: Version) -> Result<Option<Self>> {
        let mut row = self.row.clone();
        while row.stamp.version >= version && !row.decided {
            // A staged version and its base are in the table.
            row = Row::Held(&self.line.meta.versions[&row.parent]);
        }
        if row.decided {
            let Some(below) = version.0.checked_sub(1) else { return Ok(None) };
            let Some(found) = self.line.decided_at(Version(below.min(row.stamp.version.0)))? else { return Ok(None) };
            row = found;
        }
        Ok(Some(Self { row, ..self.clone() }))
    }
}

/// Like [`View::shown`], for a key that is not erased.
fn shown(found: Found) -> Option<(Record, Option<StoredValue>)> {
    let Found { key, stamp, body } = found;
    let (known_hash, value_len, value, elsewhere) = match body {
        FoundBody::Tombstone => return None,
        FoundBody::Inline { hash, value } => (Some(hash), value.len() as u32, Some(value), None),
        FoundBody::Stored { hash, value } => (Some(hash), value.len, None, Some(value)),
        FoundBody::Named { value } => (None, value.len() as u32, Some(value), None),
    };
    Some((Record { key, stamp, value_len, known_hash, value, erased: false }, elsewhere))
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;
    use crate::{
        Engine,
        testing::{commit, create, delete, key, put, puts, small, stage_on},
    };

    /// Keys 0 to 7 lie in a frozen tree with long values, 4 to 9 in the active one with short ones.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..8, 100));
        commit(&mut engine, 2, puts(4..10, 5));
        engine
    }

    fn view(engine: &Engine) -> View<'_> {
        engine.view(&engine.decided()).expect("decided")
    }

    fn keys(page: &RangePage) -> Vec<String> {
        page.records.iter().map(|record| String::from_utf8_lossy(&record.key).into_owned()).collect()
    }

    fn numbered(numbers: std::ops::Range<u32>) -> Vec<String> {
        numbers.map(key).collect()
    }

    #[test]
    fn a_get_has_the_newest_record_and_its_value_only_if_wanted() {
        let engine = engine();
        for (number, version, len) in [(0, 1, 100), (4, 2, 5), (9, 2, 5)] {
            for wanted in [false, true] {
                let found = view(&engine).get(key(number).as_bytes(), wanted).expect("sound pages");
                let record = found.expect("it has a value");
                let value = vec![len as u8; len];
                assert_eq!((record.stamp, record.value_len as usize), (Stamp::new(0, version), len));
                assert_eq!(record.value_hash(), hash::sha256(&value));
                assert_eq!(record.value, wanted.then_some(value));
            }
        }
        assert_eq!(view(&engine).get(b"absent", true).expect("sound pages"), None);
        assert_eq!(view(&engine).get(b"", true).expect("sound pages"), None);
    }

    #[test]
    fn a_deleted_key_has_no_record_though_an_older_tree_has_one() {
        let mut engine = engine();
        commit(&mut engine, 3, vec![delete(&key(0)), delete(&key(9))]);
        assert_eq!(view(&engine).get(key(0).as_bytes(), false).expect("sound pages"), None);
        let page = view(&engine).range(b"", None, 99, false).expect("sound pages");
        assert_eq!(keys(&page), numbered(1..9));
        let before = engine.view_at(Version(2)).expect("decided").range(b"", None, 99, false).expect("sound pages");
        assert_eq!(keys(&before), numbered(0..10));
    }

    #[test]
    fn a_range_goes_from_its_low_key_up_to_but_without_its_high_key() {
        let engine = engine();
        let range = |low: &str, high: Option<&str>| {
            let page = view(&engine).range(low.as_bytes(), high.map(str::as_bytes), 99, false);
            keys(&page.expect("sound pages"))
        };
        assert_eq!(range("0002", Some("0006")), numbered(2..6));
        assert_eq!(range("00015", Some("00055")), numbered(2..6), "bounds that are not keys");
        assert_eq!(range("0008", None), numbered(8..10));
        assert_eq!(range("0002", Some("0002")), numbered(0..0));
        assert_eq!(range("0006", Some("0002")), numbered(0..0));
        assert_eq!(range("1", None), numbered(0..0));
    }

    #[test]
    fn a_limit_says_whether_there_is_more() {
        let engine = engine();
        let range = |low: &str, limit| view(&engine).range(low.as_bytes(), None, limit, true).expect("sound pages");
        for (limit, count, more) in [(0, 0, true), (1, 1, true), (9, 9, true), (10, 10, false), (11, 10, false)] {
            let page = range("", limit);
            assert_eq!((page.records.len(), page.more), (count, more), "limit {limit}");
        }
        assert_eq!(range("1", 0), RangePage::default(), "an empty range has no more");
    }

    #[test]
    fn values_of_leaves_and_of_the_log_come_with_their_keys() {
        let engine = engine();
        let page = view(&engine).range(b"", None, 99, true).expect("sound pages");
        let lens: Vec<usize> = page.records.iter().map(|it| it.value.as_ref().map_or(0, Vec::len)).collect();
        assert_eq!(lens, [100, 100, 100, 100, 5, 5, 5, 5, 5, 5]);
    }

    #[test]
    fn a_part_ends_by_its_bytes_but_has_at_least_one_record() {
        let engine = engine();
        let part = |bytes_max, values| {
            let page = view(&engine).range_part(b"", None, 99, bytes_max, values).expect("sound pages");
            assert_eq!(page.more, page.records.len() < 10);
            page.records.len()
        };
        // A key has 4 bytes, the first values 100.
        assert_eq!([part(0, true), part(104, true), part(207, true), part(208, true)], [1, 1, 1, 2]);
        assert_eq!([part(0, false), part(39, false), part(40, false)], [1, 9, 10]);
    }

    #[test]
    fn a_view_of_an_unknown_or_pruned_version_is_refused() {
        let mut engine = engine();
        let unknown = ShardState { digest: Digest([9; 32]), ..engine.decided() };
        assert!(engine.view(&unknown).is_err());
        engine.prune(Version(2)).expect("usable");
        assert!(engine.view_at(Version(1)).is_err());
        assert_eq!(engine.view_at(Version(9)).expect("the newest").state(), engine.decided());
    }

    #[test]
    fn the_previous_version_is_on_the_views_own_line() {
        let mut engine = engine();
        let base = engine.decided();
        let child = stage_on(&mut engine, base, 5, 1, &[put("a", 5)]).expect("it follows");
        let sibling = stage_on(&mut engine, base, 6, 2, &[put("b", 5)]).expect("it follows");
        let grandchild = stage_on(&mut engine, child, 8, 3, &[put("c", 5)]).expect("it follows");
        let before = |state, version| {
            let before = engine.view(state).expect("here").before(Version(version)).expect("readable");
            before.map(|it| it.stamp().version.0)
        };
        assert_eq!(
            [9, 8, 6, 5, 2].map(|version| before(&grandchild, version)),
            [Some(8), Some(5), Some(5), Some(2), Some(1)]
        );
        assert_eq!([7, 6].map(|version| before(&sibling, version)), [Some(6), Some(2)]);
        assert_eq!([9, 2, 1, 0].map(|version| before(&base, version)), [Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn there_is_no_version_before_the_oldest_that_is_kept() {
        let mut engine = engine();
        engine.prune(Version(2)).expect("usable");
        assert!(view(&engine).before(Version(2)).expect("readable").is_none());
    }

    #[test]
    fn records_are_equal_whichever_way_their_hash_is_known() {
        let known = Record {
            key: b"k".to_vec(),
            stamp: Stamp::new(0, 1),
            value_len: 3,
            known_hash: Some(hash::sha256(b"abc")),
            value: Some(b"abc".to_vec()),
            erased: false,
        };
        let computed = Record { known_hash: None, ..known.clone() };
        assert_eq!(known, computed);
        assert_ne!(known, Record { value: None, ..known.clone() });
        assert_ne!(known, Record { stamp: Stamp::new(1, 1), ..known.clone() });
    }
}
