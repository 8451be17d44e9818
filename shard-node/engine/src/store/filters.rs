//! Filters and shortcuts of frozen trees: how they are stored, cached and used.

use std::sync::{Arc, PoisonError, RwLockReadGuard};

use coppice_verify::rules::Filter;

use super::Store;
use crate::{
    Error, Result,
    cache::shortcuts::{self, Shortcut, ShortcutPage, Spot},
    files::values::{self, Named, RecordKind},
    meta::{Delta, Meta, Tree},
    place::{
        page::{PAGE_BYTES, PlaceMap},
        refs::{BlobRef, ValueRef},
    },
};

/// Filters that were read for gets are kept up to this many times the bytes of the largest small
/// filter. The trees of one version have fewer.
const READ_FILTERS_MAX: usize = 8;

impl Store {
    /// Stores the filter of a tree that is being frozen or that a merge made.
    pub(crate) fn add_filter(&mut self, meta: &mut Meta, delta: &mut Delta, filter: Filter) -> BlobRef {
        let bytes: Vec<u8> = filter.blocks().iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let blob = self.add_blob(meta, delta, RecordKind::Filter, &bytes);
        if self.is_small(blob) {
            self.keep_filter(blob, &Arc::new(filter));
        }
        blob
    }

    /// Returns the filter of a frozen tree. Only a small one stays in memory.
    pub(crate) fn filter(&self, tree: &Tree) -> Result<Arc<Filter>> {
        let blob = filter_of(tree);
        if let Some(filter) = self.filters().get(&blob.at) {
            return Ok(Arc::clone(filter));
        }
        let bytes = self.values.read(RecordKind::Filter, blob)?;
        let filter = decode_filter(&bytes).ok_or_else(|| {
            Error::corrupted(values::file_name(blob.at.segment), Some(u64::from(blob.at.offset)), "no filter")
        })?;
        let filter = Arc::new(filter);
        if self.is_small(blob) {
            self.keep_read_filter(blob, &filter);
        }
        Ok(filter)
    }

    fn filters(&self) -> RwLockReadGuard<'_, PlaceMap<ValueRef, Arc<Filter>>> {
        self.filters.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_filter(&self, blob: BlobRef, filter: &Arc<Filter>) {
        self.filters.write().unwrap_or_else(PoisonError::into_inner).insert(blob.at, Arc::clone(filter));
    }

    /// Keeps a filter that was read. Flushes drop filters, but between two of them reads of many
    /// old versions may need the filters of many trees. So all are dropped here first if they take
    /// too much memory.
    fn keep_read_filter(&self, blob: BlobRef, filter: &Arc<Filter>) {
        let mut filters = self.filters.write().unwrap_or_else(PoisonError::into_inner);
        if bytes_of(&filters) > READ_FILTERS_MAX * self.small_filter_bytes_max {
            filters.clear();
        }
        filters.insert(blob.at, Arc::clone(filter));
    }

    /// Whether a filter is kept in memory even if it is rarely needed.
    fn is_small(&self, filter: BlobRef) -> bool {
        filter.len as usize <= self.small_filter_bytes_max
    }

    /// Returns `false` only if the frozen tree has no record of a key with this filter hash. The
    /// filter stays in memory.
    pub(crate) fn admits(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<bool> {
        if let Some(filter) = self.filters().get(&filter_of(tree).at) {
            return Ok(filter.admits_hash(filter_hash));
        }
        let filter = self.filter(tree)?;
        self.keep_filter(filter_of(tree), &filter);
        Ok(filter.admits_hash(filter_hash))
    }

    /// Like [`Self::admits`], for a get in the oldest tree. Also returns `true` if that would take
    /// a large filter that is not in memory. Such a filter saves nothing for keys that have a
    /// record, and fences and leaves use the memory better.
    pub(crate) fn oldest_admits(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<bool> {
        let blob = filter_of(tree);
        let asks = self.is_small(blob) || self.filters().contains_key(&blob.at);
        if asks { self.admits(tree, filter_hash) } else { Ok(true) }
    }

    /// Whether a tree with this many records should have shortcuts.
    pub(crate) fn wants_shortcuts(&self, records: u64) -> bool {
        (self.shortcut_records_min..=shortcuts::RECORDS_MAX).contains(&records)
    }

    /// Stores the shortcuts of a merge's output.
    pub(crate) fn add_shortcuts(&mut self, meta: &mut Meta, delta: &mut Delta, mut pages: Vec<u8>) -> BlobRef {
        let at = self.values.next_place(pages.len() as u32);
        shortcuts::seal(&mut pages, at);
        let blob = self.add_blob(meta, delta, RecordKind::Shortcuts, &pages);
        assert_eq!(blob.at, at, "the log goes on where it said");
        blob
    }

    /// Looks up a key in a frozen tree's shortcuts.
    fn shortcut(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<Shortcut> {
        let Some(blob) = tree.shortcuts else { return Ok(Shortcut::Unknown) };
        let spot = Spot::new(filter_hash, shortcuts::pages(blob));
        let at = spot.place(blob);
        if let Some(found) = self.cache.shortcut(at, spot.remainder) {
            self.counters.shortcut_hits.one();
            return Ok(found);
        }
        if !self.values.in_memory(at) {
            self.counters.shortcut_reads.one();
        }
        let mut bytes = vec![0; PAGE_BYTES];
        match self.values.read_part(at, &mut bytes) {
            // The leaves may lie on a different disk than the value log.
            Err(Error::Io { .. }) => return Ok(Shortcut::Unknown),
            read => read?,
        }
        let page = ShortcutPage::check(bytes.into(), at).ok_or_else(|| {
            Error::corrupted(values::file_name(at.segment), Some(u64::from(at.offset)), "no page of shortcuts")
        })?;
        let found = page.find(spot.remainder);
        self.cache.insert_shortcuts(at, page);
        Ok(found)
    }

    /// Looks up a key and its value in a frozen tree by its shortcuts. `None` if a leaf must be
    /// read: the shortcuts have no answer, or the record cannot be read.
    pub(crate) fn named(&self, tree: &Tree, key: &[u8], filter_hash: (u64, u64)) -> Result<Option<Named>> {
        Ok(match self.shortcut(tree, filter_hash)? {
            Shortcut::Unknown => None,
            Shortcut::Absent => Some(Named::Other),
            Shortcut::Place { at, bytes, only } => {
                self.count_value_read(at);
                match self.values.read_named(at, bytes, key) {
                    Named::Other if !only => None,
                    named => Some(named).filter(|named| *named != Named::Unknown),
                }
            }
        })
    }

    /// Drops the filters whose places are not kept.
    pub(crate) fn retain_filters(&mut self, keep: impl Fn(&ValueRef) -> bool) {
        self.filters.get_mut().unwrap_or_else(PoisonError::into_inner).retain(|at, _| keep(at));
    }

    pub(crate) fn filters_cached(&self) -> usize {
        self.filters().len()
    }

    pub(crate) fn filter_bytes(&self) -> usize {
        bytes_of(&self.filters())
    }
}

fn bytes_of(filters: &PlaceMap<ValueRef, Arc<Filter>>) -> usize {
    filters.values().map(|filter| size_of_val(filter.blocks())).sum()
}

fn filter_of(tree: &Tree) -> BlobRef {
    tree.filter.expect("a frozen tree has a filter")
}

pub(crate) fn decode_filter(bytes: &[u8]) -> Option<Filter> {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let block = |bytes: &[u8; 64]| {
        let (words, _) = bytes.as_chunks::<8>();
        let mut block = [0; 8];
        block.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        block
    };
    if rest.is_empty() { Filter::from_blocks(blocks.iter().map(block).collect()) } else { None }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_verify::hash;

    use super::*;
    use crate::{
        Engine, Options,
        testing::{commit, create_with, flush, key, merge, options, puts, small},
    };

    /// A flushed engine that was opened again, with two frozen trees of even numbers below 16 and
    /// from 100 on, and a budget of this many bytes for the cache of frozen trees.
    fn engine(old_cache_bytes: usize) -> Engine {
        let sim = SimStorage::new();
        let options = Options { old_cache_bytes, ..options() };
        let mut engine = create_with(&sim, small(), options.clone());
        commit(&mut engine, 1, puts(0..16, 5).into_iter().step_by(2).collect());
        commit(&mut engine, 2, puts(100..108, 5));
        commit(&mut engine, 3, puts(200..201, 5));
        flush(&mut engine, 1);
        drop(engine);
        Engine::open(sim.storage(), options).expect("a sound directory")
    }

    fn tree(engine: &Engine, at: usize) -> Tree {
        engine.meta.tip().trees[at].clone()
    }

    fn hash_of(number: u32) -> (u64, u64) {
        hash::filter_hash(key(number).as_bytes())
    }

    #[test]
    fn bytes_that_are_not_whole_blocks_are_not_a_filter() {
        assert!(decode_filter(&[0; 64]).is_some());
        assert!([0, 1, 63, 65].into_iter().all(|len| decode_filter(&vec![0; len]).is_none()));
    }

    #[test]
    fn a_filter_admits_each_key_of_its_tree_after_a_restart() {
        let engine = engine(1 << 20);
        assert_eq!(engine.store.filters_cached(), 0);
        let oldest = tree(&engine, 2);
        assert!((0..8).all(|n| engine.store.admits(&oldest, hash_of(2 * n)).expect("readable")));
        let strangers = (1000..2000).filter(|n| engine.store.admits(&oldest, hash_of(*n)).expect("readable")).count();
        assert!(strangers < 300, "{strangers} of 1000");
        assert_eq!(engine.store.filters_cached(), 1);
        assert!(engine.store.filter_bytes() > 0);
    }

    #[test]
    fn a_tree_whose_filter_does_not_admit_a_key_is_not_read() {
        let engine = engine(1 << 20);
        let view = engine.view(&engine.decided()).expect("decided");
        let frozen_admit = |n| (1..3).any(|at| engine.store.admits(&tree(&engine, at), hash_of(n)).expect("readable"));
        let active_admits = |n| view.active_keys().is_none_or(|filter| filter.admits_hash(hash_of(n)));
        let absent = (1000..1100).find(|n| !frozen_admit(*n) && !active_admits(*n));
        let before = engine.counters();
        assert_eq!(view.get(key(absent.expect("most are")).as_bytes(), false).expect("sound pages"), None);
        let after = engine.counters();
        assert_eq!((after.span_reads, after.filter_skips), (before.span_reads, before.filter_skips + 3));
    }

    #[test]
    fn a_large_filter_of_the_oldest_tree_is_not_read_for_a_get() {
        let engine = engine(0);
        let oldest = tree(&engine, 2);
        assert!(engine.store.oldest_admits(&oldest, hash_of(1001)).expect("readable"));
        assert_eq!(engine.store.filters_cached(), 0);
        let admitted = engine.store.admits(&oldest, hash_of(1001)).expect("readable");
        assert_eq!(engine.store.filters_cached(), 1, "a delete needs it");
        assert_eq!(engine.store.oldest_admits(&oldest, hash_of(1001)).expect("readable"), admitted);
    }

    #[test]
    fn only_the_filters_to_keep_stay() {
        let mut engine = engine(1 << 20);
        let [one, other] = [1, 2].map(|at| tree(&engine, at));
        [&one, &other].into_iter().for_each(|tree| drop(engine.store.filter(tree).expect("readable")));
        assert_eq!(engine.store.filters_cached(), 2);
        let kept = filter_of(&one).at;
        engine.store.retain_filters(|at| *at == kept);
        assert_eq!(engine.store.filters_cached(), 1);
        assert!(engine.store.filters().contains_key(&kept));
    }

    #[test]
    fn a_damaged_filter_is_an_error_that_names_its_place() {
        let sim = SimStorage::new();
        let mut engine = create_with(&sim, small(), options());
        commit(&mut engine, 1, puts(0..8, 5));
        commit(&mut engine, 2, puts(8..9, 5));
        flush(&mut engine, 1);
        let at = filter_of(&tree(&engine, 1)).at;
        drop(engine);
        sim.flip_bit(&values::file_name(at.segment), u64::from(at.offset) + 20, 0);
        let engine = crate::testing::open(&sim);
        let found = engine.store.admits(&tree(&engine, 1), hash_of(0));
        assert!(matches!(found, Err(Error::Corrupted { page: Some(page), .. }) if page == u64::from(at.offset)));
    }

    #[test]
    fn shortcuts_are_for_trees_that_the_cache_does_not_hold() {
        let with =
            |old_cache_bytes| create_with(&SimStorage::new(), small(), Options { old_cache_bytes, ..options() }).store;
        assert!(with(0).wants_shortcuts(0) && with(0).wants_shortcuts(shortcuts::RECORDS_MAX));
        assert!(!with(0).wants_shortcuts(shortcuts::RECORDS_MAX + 1));
        let store = with(512 * 100);
        assert!(!store.wants_shortcuts(99) && store.wants_shortcuts(100));
    }

    #[test]
    fn a_get_by_shortcuts_gives_the_record_that_its_leaf_has() {
        let options = Options { old_cache_bytes: 0, ..options() };
        let mut engine = create_with(&SimStorage::new(), small(), options);
        for version in 1..4 {
            commit(&mut engine, version, puts(8 * version as u32..8 * version as u32 + 8, 1000));
        }
        merge(&mut engine);
        commit(&mut engine, 4, vec![]);
        let merged = tree(&engine, 1);
        assert!(merged.shortcuts.is_some());
        for number in 8..24 {
            let found = engine.store.named(&merged, key(number).as_bytes(), hash_of(number)).expect("readable");
            let stamp = coppice_types::Stamp::new(0, u64::from(number) / 8);
            assert!(found.is_none_or(|found| found == Named::This(stamp, vec![232; 1000])), "{number}");
            let view = engine.view(&engine.decided()).expect("decided");
            let record = view.get(key(number).as_bytes(), true).expect("sound pages").expect("it has a value");
            assert_eq!((record.stamp, record.value), (stamp, Some(vec![232; 1000])));
        }
    }
}
