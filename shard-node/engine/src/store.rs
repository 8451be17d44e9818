//! Nodes, values and filters by reference: the layer below trees.
//!
//! A node is looked up among the dirty ones, then in the caches, then in its file, where it is
//! checked against its parent's checksum. New nodes stay dirty until a flush; nodes that will last
//! may be written ahead of it. Nodes that are dropped before that are never written. If a node is
//! stored as a patch, its page of patches is dirty, not the node.

mod blocks;
pub(crate) mod content;
mod dirty;
pub(crate) mod filters;
pub(crate) mod line;

use std::{
    io::ErrorKind,
    sync::{Arc, RwLock},
};

use coppice_env::{
    File, OpenMode, Storage,
    bug::{Bug, planted},
};
use coppice_types::{Digest, Stamp};
use coppice_verify::{ledgers::RESERVED_END, rules::Filter};

use blocks::BlockCache;
use dirty::{Dirty, DirtyBytes, DirtyPatches};

use crate::{
    Error, Options, Result,
    cache::{
        Class, DualCache,
        fences::Fences,
        lists::{Known, Lists},
    },
    counters::Live,
    files::values::{RecordKind, StoredValue, ValueLog},
    meta::{Delta, Meta},
    node::{Base, Child, LeafRecord, Node, patch_in},
    place::{
        bytes::own,
        page::{PAGE_BYTES, PageFile, Pid, PlaceMap, zeroed},
        refs::{BlobRef, ValueRef, name_bytes, record_bytes},
    },
};

/// A tree has shortcuts if its leaves would take at least 1/`CACHE_PARTS` of the cache of frozen
/// trees.
const CACHE_PARTS: usize = 4;
/// A record's approximate size in its leaf.
const LEAF_RECORD_BYTES: usize = 128;

/// The page files, the value log, and the parts of them that are in memory.
#[derive(Debug)]
pub(crate) struct Store {
    /// The page files, indexed by [`PageFile`].
    files: [Arc<dyn File>; 3],
    dirty: PlaceMap<Pid, Dirty>,
    patches: PlaceMap<u64, DirtyPatches>,
    /// Pages of patches that are being filled, over several versions. They are not written yet.
    filling: Vec<u64>,
    dirty_bytes: DirtyBytes,
    cache: DualCache,
    /// Hashes of nodes' entries. Missing ones are computed.
    lists: Lists,
    pub(crate) values: ValueLog,
    filters: RwLock<PlaceMap<ValueRef, Arc<Filter>>>,
    blocks: BlockCache,
    name_percent_max: u32,
    /// Smaller trees have no shortcuts: their leaves are in the old cache anyway, and they are soon
    /// merged again.
    shortcut_records_min: u64,
    /// Larger filters stay in memory only if deletes, or gets of keys in older trees, need them.
    small_filter_bytes_max: usize,
    pub(crate) counters: Live,
}

impl Store {
    pub(crate) fn open(storage: &Arc<dyn Storage>, options: &Options, meta: &Meta, mode: OpenMode) -> Result<Self> {
        let open = |file: PageFile| match storage.open_direct(file.name(), mode) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::corrupted(file.name(), None, "the file is missing"))
            }
            opened => opened.map_err(Error::io("open", file.name())),
        };
        Ok(Self {
            files: [open(PageFile::Index)?, open(PageFile::Data)?, open(PageFile::Patches)?],
            dirty: PlaceMap::default(),
            patches: PlaceMap::default(),
            filling: Vec::new(),
            dirty_bytes: DirtyBytes::default(),
            cache: DualCache::new(options.young_cache_bytes, options.old_cache_bytes),
            lists: Lists::new(options.hash_cache_bytes, meta.params.capacity),
            values: ValueLog::new(
                Arc::clone(storage),
                options.segment_bytes_max,
                &meta.segments,
                meta.journals.values().chain(meta.blocks.values().map(|block| &block.at)).map(|blob| blob.at.segment),
            ),
            filters: RwLock::default(),
            blocks: BlockCache::default(),
            name_percent_max: options.name_percent_max,
            shortcut_records_min: (options.old_cache_bytes / CACHE_PARTS / LEAF_RECORD_BYTES) as u64,
            small_filter_bytes_max: options.old_cache_bytes,
            counters: Live::default(),
        })
    }

    /// Returns the node, checked.
    pub(crate) fn node(&self, child: &Child, level: u8, class: Class) -> Result<Node> {
        match self.node_in_memory(child, class) {
            Some(node) => Ok(node),
            None => self.node_into_cache(child, level, class),
        }
    }

    fn node_into_cache(&self, child: &Child, level: u8, class: Class) -> Result<Node> {
        let node = self.node_of_file(child, level, class)?;
        match (class, level) {
            (Class::Old, 0) => self.cache.offer(child.pid, node.clone()),
            _ => self.cache.insert(child.pid, node.clone(), class),
        }
        Ok(node)
    }

    /// Returns a node of the active tree that is about to be replaced. If it is stored as a patch,
    /// it leaves the cache: older versions are rarely read, and each would take as much cache as
    /// the new one.
    pub(crate) fn node_to_replace(&mut self, child: &Child, level: u8) -> Result<Node> {
        if !child.pid.is_patch() {
            return self.node(child, level, Class::Young);
        }
        match self.cache.take_young(child.pid, child.checksum) {
            Some(node) => {
                self.count_hit(Class::Young);
                Ok(node)
            }
            None => self.node_of_file(child, level, Class::Young),
        }
    }

    /// Loads the parts of these nodes that [`Self::node_to_replace`] and [`Self::take_known`] need
    /// into the processor's caches.
    pub(crate) fn load_to_replace(&mut self, children: &[Child]) {
        self.cache.load_young(children);
        self.lists.load_active(children);
    }

    /// The whole node at a place that waits for a flush. Patches wait in their pages.
    fn dirty_at(&self, pid: Pid) -> Option<&Node> {
        if pid.is_patch() {
            return None;
        }
        self.dirty.get(&pid).map(|dirty| &dirty.node)
    }

    /// Like [`Self::dirty_at`], for a reference in a checked node or in the Meta table. The
    /// reference is trusted, so a different checksum is a bug.
    fn dirty_node(&self, child: &Child) -> Option<&Node> {
        let node = self.dirty_at(child.pid)?;
        assert_eq!(node.checksum(), child.checksum, "{:?} has two owners", child.pid);
        Some(node)
    }

    fn node_in_memory(&self, child: &Child, class: Class) -> Option<Node> {
        if let Some(node) = self.dirty_node(child) {
            self.counters.node_dirty_hits.one();
            return Some(node.clone());
        }
        let (node, found) = self.cache.get(child.pid, child.checksum, class)?;
        self.count_hit(found);
        Some(node)
    }

    fn node_of_file(&self, child: &Child, level: u8, class: Class) -> Result<Node> {
        match child.pid.slot() {
            Some(slot) => self.patched((child, slot), level, |base| self.base(base, level, class)),
            None => self.counted_read(child, level),
        }
    }

    /// The leaf of a frozen tree that may hold a key, and whether that is certain. If it is not,
    /// the key may be in the leaf before.
    pub(crate) fn leaf_of(&self, root: &Child, root_level: u8, key: &[u8]) -> Result<(Child, bool)> {
        let (mut child, mut all_sure) = (*root, true);
        for level in (1..=root_level).rev() {
            let (next, sure) = match self.cache.fenced(&child, key) {
                Some(fenced) => {
                    self.count_hit(Class::Old);
                    fenced
                }
                None => (self.fence(&child, level, key)?, true),
            };
            (child, all_sure) = (next, all_sure && sure);
        }
        Ok((child, all_sure))
    }

    /// The child of an inner node that may hold a key. The cache keeps the node's fences, or the
    /// whole node if it has none.
    fn fence(&self, inner: &Child, level: u8, key: &[u8]) -> Result<Child> {
        let node = match self.node_in_memory(inner, Class::Old) {
            Some(node) => node,
            None => self.node_of_file(inner, level, Class::Old)?,
        };
        match Fences::of(&node) {
            Some(fences) => self.cache.insert_fences(inner, fences),
            None => self.cache.insert(inner.pid, node.clone(), Class::Old),
        }
        Ok(node.child(node.child_of(key)))
    }

    fn count_hit(&self, found: Class) {
        match found {
            Class::Young => self.counters.node_young_hits.one(),
            Class::Old => self.counters.node_old_hits.one(),
        }
    }

    /// Looks up a key in a leaf.
    pub(crate) fn search<T>(
        &self,
        child: &Child,
        class: Class,
        key: &[u8],
        of: impl Fn(&LeafRecord<'_>) -> T,
    ) -> Result<Option<T>> {
        if self.dirty_node(child).is_none()
            && let Some((record, found)) = self.cache.search((child.pid, child.checksum), class, key, &of)
        {
            self.count_hit(found);
            return Ok(record);
        }
        let leaf = self.node(child, 0, class)?;
        Ok(leaf.search(key).ok().map(|index| of(&leaf.record(index))))
    }

    /// The base of a patch. A base in the active tree enters the cache, since it serves several
    /// versions.
    fn base(&self, base: &Child, level: u8, class: Class) -> Result<Node> {
        if let Some(node) = self.dirty_at(base.pid) {
            // The patch's reference to its base has not been checked.
            if node.checksum() != base.checksum {
                let (file, page) = (base.pid.file().name(), Some(base.pid.first()));
                return Err(Error::corrupted(file, page, "a patch rests on another node"));
            }
            return Ok(node.clone());
        }
        if let Some((node, _)) = self.cache.get(base.pid, base.checksum, Class::Young) {
            return Ok(node);
        }
        let node = match base.pid.slot() {
            Some(slot) => self.patched((base, slot), level, |_| Err(chain(base.pid)))?,
            None => self.counted_read(base, level)?,
        };
        if class == Class::Young {
            self.cache.insert(base.pid, node.clone(), class);
        }
        Ok(node)
    }

    fn counted_read(&self, child: &Child, level: u8) -> Result<Node> {
        self.count_read(child.pid);
        self.read_node(child, level)
    }

    fn count_read(&self, pid: Pid) {
        self.counters.span_reads.one();
        self.counters.span_read_bytes.add(pid.len_bytes() as u64);
        match pid.file() {
            PageFile::Index => self.counters.inner_reads.one(),
            PageFile::Patches => self.counters.patch_reads.one(),
            PageFile::Data => {}
        }
    }

    /// Whether the node may be missing in its file.
    pub(crate) fn is_dirty(&self, pid: Pid) -> bool {
        if pid.is_patch() { self.patches.contains_key(&pid.first()) } else { self.dirty.contains_key(&pid) }
    }

    /// A leaf for a walk through all leaves. `None` if it is stored whole and is not in memory. The
    /// walk then reads it without the caches, and the read is counted here.
    pub(crate) fn leaf_at_hand(&self, child: &Child, class: Class) -> Result<Option<Node>> {
        match self.node_in_memory(child, class) {
            None if child.pid.file() == PageFile::Data => {
                self.count_read(child.pid);
                Ok(None)
            }
            None => self.node_into_cache(child, 0, class).map(Some),
            here => Ok(here),
        }
    }

    pub(crate) fn file(&self, file: PageFile) -> &Arc<dyn File> {
        &self.files[file as usize]
    }

    /// Reads a node that is stored as a patch in a slot of a page. `base` returns its base.
    fn patched(
        &self,
        (child, slot): (&Child, u8),
        level: u8,
        base: impl FnOnce(&Child) -> Result<Node>,
    ) -> Result<Node> {
        let name = PageFile::Patches.name();
        let corrupted = |what: &str| Error::corrupted(name, Some(child.pid.first()), what);
        let mut read = [0; PAGE_BYTES];
        let page = match self.patches.get(&child.pid.first()) {
            Some(dirty) => dirty.page.bytes(),
            None => {
                self.count_read(child.pid);
                let file = self.file(PageFile::Patches);
                file.read_exact_at(&mut read, child.pid.offset_bytes()).map_err(unread(child.pid))?;
                read.as_slice()
            }
        };
        let patch = patch_in(page, slot).ok_or_else(|| corrupted("it has no such patch"))?;
        let on = Base::of(patch).ok_or_else(|| corrupted("a patch that is none"))?;
        let base = on.map(|on| base(&on.child())).transpose()?;
        Node::patched(patch, base.as_ref(), child, level).map_err(corrupted)
    }

    /// Reads the node from its file, without dirty nodes and caches.
    pub(crate) fn read_node(&self, child: &Child, level: u8) -> Result<Node> {
        let whole = |child: &Child| read_span(&**self.file(child.pid.file()), child, level);
        let Some(slot) = child.pid.slot() else { return whole(child) };
        self.patched((child, slot), level, |base| match base.pid.slot() {
            Some(slot) => self.patched((base, slot), level, |_| Err(chain(base.pid))),
            None => whole(base),
        })
    }

    /// Appends a filter, shortcuts or a journal.
    pub(crate) fn add_blob(&mut self, meta: &mut Meta, delta: &mut Delta, kind: RecordKind, bytes: &[u8]) -> BlobRef {
        let blob = self.values.append(kind, bytes);
        Self::own_blob(meta, delta, blob)
    }

    /// Appends a value, with its name if that is small compared with it. A value that may be erased
    /// always has its name, by which all copies of it are found.
    pub(crate) fn add_value(
        &mut self,
        meta: &mut Meta,
        delta: &mut Delta,
        (key, stamp): (&[u8], Stamp),
        value: &[u8],
    ) -> BlobRef {
        let (name_bytes, value_bytes) = (u64::from(name_bytes(key)), value.len() as u64);
        let is_named = match key < RESERVED_END {
            true => !planted(Bug::NameLost),
            false => name_bytes * 100 <= value_bytes * u64::from(self.name_percent_max),
        };
        let blob = match is_named {
            true => self.values.append_named(key, stamp, value),
            false => self.values.append(RecordKind::Value, value),
        };
        Self::own_blob(meta, delta, blob)
    }

    fn own_blob(meta: &mut Meta, delta: &mut Delta, blob: BlobRef) -> BlobRef {
        meta.reserve_value(blob.at.segment, record_bytes(blob.len));
        delta.allocate_value(blob.at.segment, record_bytes(blob.len));
        blob
    }

    /// Appends what is left of an erased value.
    pub(crate) fn add_erased(
        &mut self,
        meta: &mut Meta,
        delta: &mut Delta,
        (key, stamp): (&[u8], Stamp),
        len: u32,
    ) -> BlobRef {
        let blob = self.values.append_erased(key, stamp, len);
        Self::own_blob(meta, delta, blob)
    }

    pub(crate) fn value(&self, value: StoredValue) -> Result<Vec<u8>> {
        self.count_value_read(value.blob.at);
        self.values.read_value(value)
    }

    fn count_value_read(&self, at: ValueRef) {
        self.counters.value_reads.one();
        if !self.values.in_memory(at) {
            self.counters.value_file_reads.one();
        }
    }

    /// Reads many values, neighbouring ones at once. `give` gets each value with its index.
    pub(crate) fn values(&self, values: &[StoredValue], give: impl FnMut(usize, Vec<u8>)) -> Result<()> {
        self.counters.value_reads.add(values.len() as u64);
        self.counters.value_file_reads.add(self.values.read_many(values, give)?);
        Ok(())
    }

    /// Removes and returns the data about an active node's entries, from which its successor's data
    /// is derived.
    pub(crate) fn take_known(&mut self, child: &Child) -> Option<Known> {
        self.lists.take(child)
    }

    /// Keeps the data about an active node's entries.
    pub(crate) fn keep_known(&mut self, child: &Child, known: Known) {
        self.lists.keep(child, known);
    }

    /// The proof of a node's entries, given by ascending indices.
    pub(crate) fn list_proof(&self, child: &Child, node: &Node, indices: &[u64]) -> Vec<Digest> {
        self.lists.proof(child, node, indices)
    }

    /// Forgets the hashes of active nodes, since a new active tree begins.
    pub(crate) fn drop_lists(&mut self) {
        self.lists.drop_active();
    }

    /// Gives the space of unreferenced pages back to the file system. A failure does no harm.
    pub(crate) fn discard(&self, file: PageFile, first: u64, pages: u64) {
        let [offset, len] = [first, pages].map(|pages| pages * PAGE_BYTES as u64);
        if self.file(file).discard(offset, len).is_ok() {
            self.counters.discarded_bytes.add(len);
        }
    }

    /// Length of a page file.
    pub(crate) fn page_file_bytes(&self, file: PageFile) -> Result<u64> {
        self.file(file).len().map_err(Error::io("read", file.name()))
    }

    pub(crate) fn list_bytes(&self) -> usize {
        self.lists.bytes()
    }

    pub(crate) fn cache_bytes(&self) -> (usize, usize) {
        self.cache.bytes()
    }
}

fn chain(pid: Pid) -> Error {
    Error::corrupted(pid.file().name(), Some(pid.first()), "a patch of a patch")
}

fn unread(pid: Pid) -> impl FnOnce(std::io::Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Error::corrupted(pid.file().name(), Some(pid.first()), "the file ends before the span")
        }
        _ => Error::io("read", pid.file().name())(error),
    }
}

/// Reads a whole node from its file.
pub(crate) fn read_span(file: &dyn File, child: &Child, level: u8) -> Result<Node> {
    let mut bytes = zeroed(child.pid.len_bytes());
    file.read_exact_at(own(&mut bytes), child.pid.offset_bytes()).map_err(unread(child.pid))?;
    check_node(bytes, child, level)
}

/// Checks bytes of a file of whole nodes.
pub(crate) fn check_node(bytes: Arc<[u8]>, child: &Child, level: u8) -> Result<Node> {
    let corrupted = |what: &str| Error::corrupted(child.pid.file().name(), Some(child.pid.first()), what);
    if PageFile::of_level(level) != child.pid.file() {
        return Err(corrupted("a node of this level lies in the other file"));
    }
    Node::check(bytes, child, level).map_err(corrupted)
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Change, ErrorKind, Operation, Params, ShardId, Version};

    use super::*;
    use crate::{Engine, Options, Position, testing};

    fn commit(engine: &mut Engine, version: u64, numbers: std::ops::Range<u64>) {
        let put =
            |n: u64| Operation { key: format!("{n:04}").into_bytes().into(), change: Change::Put(vec![1; 9].into()) };
        testing::commit(engine, version, numbers.map(put).collect());
    }

    /// A page of patches has no checksum. After a lost write, a stale one may name a place where
    /// another node waits for a flush.
    #[test]
    fn a_patch_that_names_a_node_that_waits_for_a_flush_is_damage() {
        let sim = SimStorage::new();
        let mut engine = Engine::create(sim.storage(), ShardId(0), Params::default(), Options::default())
            .expect("an empty directory");
        commit(&mut engine, 1, 0..100);
        engine.flush(Position { index: 1, term: 1 }, b"").expect("room");
        commit(&mut engine, 2, 0..1);
        engine.flush(Position { index: 2, term: 1 }, b"").expect("room");
        drop(engine);
        let mut engine = Engine::open(sim.storage(), Options::default()).expect("a directory");
        let tree = engine.meta.tip().trees[0].clone();
        let root = engine.store.node(&tree.root.expect("it has records"), tree.level, Class::Young);
        let leaf = root.expect("sound pages").child(0);
        assert_eq!(leaf.pid.slot(), Some(0), "the page's first patch is the leaf's");
        commit(&mut engine, 3, 0..1000);
        let other = *engine.store.dirty.keys().find(|pid| pid.file() == PageFile::Data).expect("a whole leaf");
        let file = sim.storage().open(PageFile::Patches.name(), OpenMode::Existing).expect("it is there");
        let base_at = leaf.pid.offset_bytes() + 2;
        let mut base = [0; 8];
        file.read_exact_at(&mut base, base_at).expect("a patch");
        assert!(Pid::from_u64(u64::from_le_bytes(base)).is_some(), "the place of its base");
        file.write_all_at(&other.to_u64().to_le_bytes(), base_at).expect("room");
        engine.store.cache = DualCache::new(0, 0);
        let view = engine.view_at(Version(2)).expect("it is kept");
        let error = view.get(b"0000", false).expect_err("its leaf is none");
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        assert!(error.to_string().contains("rests on another node"), "{error}");
    }

    /// An engine without caches, with a flushed tree of whole nodes in version 1.
    fn without_caches(sim: &SimStorage) -> Engine {
        let options = Options { young_cache_bytes: 0, old_cache_bytes: 0, ..testing::options() };
        let mut engine = testing::create_with(sim, Params::default(), options);
        commit(&mut engine, 1, 0..1000);
        testing::flush(&mut engine, 1);
        engine
    }

    /// The first leaf of the active tree.
    fn first_leaf(engine: &Engine) -> Child {
        let tree = &engine.meta.tip().trees[0];
        let mut first = tree.root.expect("it has records");
        for level in (1..=tree.level).rev() {
            first = engine.store.node(&first, level, Class::Young).expect("sound pages").child(0);
        }
        assert_eq!(first.pid.file(), PageFile::Data, "it is stored whole");
        first
    }

    #[test]
    fn a_directory_without_one_of_its_page_files_is_damaged() {
        for missing in PageFile::ALL {
            let sim = SimStorage::new();
            drop(without_caches(&sim));
            sim.storage().remove(missing.name()).expect("it is there");
            let opened = Engine::open(sim.storage(), testing::options());
            assert!(matches!(opened, Err(Error::Corrupted { file, .. }) if file == missing.name()));
        }
    }

    #[test]
    fn a_node_is_read_once_and_then_cached() {
        let mut engine = without_caches(&SimStorage::new());
        let leaf = first_leaf(&engine);
        engine.store.cache = DualCache::new(1 << 20, 1 << 20);
        let read = |class| {
            let before = engine.counters();
            engine.store.node(&leaf, 0, class).expect("sound pages");
            let after = engine.counters();
            [after.span_reads - before.span_reads, after.node_young_hits - before.node_young_hits]
        };
        assert_eq!([read(Class::Young), read(Class::Young)], [[1, 0], [0, 1]]);
        let before = engine.counters().span_reads;
        engine.store.read_node(&leaf, 0).expect("sound pages");
        assert_eq!(engine.counters().span_reads, before, "the check of a node neither uses caches nor counts");
    }

    #[test]
    fn a_walk_reads_whole_leaves_itself_and_gets_those_in_memory() {
        let mut engine = without_caches(&SimStorage::new());
        let leaf = first_leaf(&engine);
        engine.store.cache = DualCache::new(1 << 20, 1 << 20);
        let before = engine.counters();
        for _ in 0..2 {
            assert!(engine.store.leaf_at_hand(&leaf, Class::Old).expect("sound pages").is_none());
        }
        let walked = engine.counters();
        let bytes = 2 * leaf.pid.len_bytes() as u64;
        assert_eq!(walked.span_reads - before.span_reads, 2, "the reads to come are counted");
        assert_eq!(walked.span_read_bytes - before.span_read_bytes, bytes);
        engine.store.node(&leaf, 0, Class::Old).expect("sound pages");
        let found = engine.store.leaf_at_hand(&leaf, Class::Old).expect("sound pages");
        assert_eq!(found.map(|node| node.pid()), Some(leaf.pid));
        assert_eq!(engine.counters().span_reads - walked.span_reads, 1);
    }

    #[test]
    fn an_unflushed_node_is_read_from_memory() {
        let mut engine = testing::create(&SimStorage::new(), Params::default());
        commit(&mut engine, 1, 0..1000);
        let leaf = first_leaf(&engine);
        assert!(engine.store.is_dirty(leaf.pid));
        assert!(engine.store.read_node(&leaf, 0).is_err(), "its file does not have it");
        let before = engine.counters();
        assert_eq!(engine.store.node(&leaf, 0, Class::Young).expect("in memory").pid(), leaf.pid);
        let after = engine.counters();
        assert_eq!((after.node_dirty_hits - before.node_dirty_hits, after.span_reads), (1, before.span_reads));
        testing::flush(&mut engine, 1);
        assert!(!engine.store.is_dirty(leaf.pid));
        engine.store.read_node(&leaf, 0).expect("it was written");
    }

    #[test]
    fn a_node_that_is_damaged_cut_off_or_of_another_level_names_its_page() {
        let sim = SimStorage::new();
        let engine = without_caches(&sim);
        let leaf = first_leaf(&engine);
        let damaged = |level| match engine.store.node(&leaf, level, Class::Young) {
            Err(Error::Corrupted { file, page, what }) => {
                assert_eq!((file.as_str(), page), ("data", Some(leaf.pid.first())));
                what
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(damaged(1), "a node of this level lies in the other file");
        sim.flip_bit("data", leaf.pid.offset_bytes() + 100, 1);
        assert_eq!(damaged(0), "checksum");
        let data = sim.open("data", OpenMode::Existing).expect("it is there");
        data.set_len(leaf.pid.offset_bytes() + 10).expect("cut");
        assert_eq!(damaged(0), "the file ends before the span");
    }

    #[test]
    fn a_read_that_fails_is_not_taken_for_damage() {
        let sim = SimStorage::new();
        let engine = without_caches(&sim);
        let leaf = first_leaf(&engine);
        let (operation, kind) = (coppice_env::Operation::Read, std::io::ErrorKind::TimedOut);
        sim.inject(coppice_env::Fault { operation, path_part: "data".to_owned(), skip: 0, kind });
        let read = engine.store.node(&leaf, 0, Class::Young);
        assert!(matches!(read, Err(Error::Io { action: "read", file, .. }) if file == "data"));
        engine.store.node(&leaf, 0, Class::Young).expect("it was not cached as failed");
    }

    #[test]
    fn a_value_carries_its_name_only_if_the_name_is_much_smaller() {
        let stamp = Stamp::new(0, 1);
        // The name of a key of 12 bytes has 30.
        assert_eq!(name_bytes(b"twelve bytes"), 30);
        for (percent, len, named) in
            [(0, 9999, false), (6, 499, false), (6, 500, true), (100, 29, false), (100, 30, true)]
        {
            let options = Options { name_percent_max: percent, ..testing::options() };
            let mut engine = testing::create_with(&SimStorage::new(), Params::default(), options);
            let (meta, mut delta) = (&mut engine.meta, Delta::default());
            let blob = engine.store.add_value(meta, &mut delta, (b"twelve bytes", stamp), &vec![7; len]);
            assert_eq!(blob.len as usize, if named { len + 30 } else { len }, "{percent} percent of {len}");
            let owned: u64 = delta.values_allocated.values().sum();
            assert_eq!(owned, record_bytes(blob.len), "the whole record is owned");
            let value = StoredValue { len: len as u32, blob };
            assert_eq!(engine.store.value(value).expect("in memory"), vec![7; len]);
        }
    }
}
