//! Nodes, values and filters by reference: what trees are built on.
//!
//! A node is looked for among the dirty ones, then in the caches, then in its file, where it is checked against its
//! parent's checksum before anyone sees it. New nodes stay dirty until a flush, or until they were written ahead if they will
//! last; those that die before are never written. Of a node that lies as a patch of another one, the patch stays dirty and not the node.

use std::{
    io::ErrorKind,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use coppice_env::{File, OpenMode, Storage, Workers};
use coppice_types::{Digest, Stamp};
use coppice_verify::{hash, rules::Filter};

use crate::{
    Error, Options, Result,
    cache::{Class, DualCache},
    counters::Live,
    lists::{Known, Lists},
    meta::{BlobRef, Delta, Meta, Tree},
    node::{Base, Child, Draft, Fences, LeafRecord, Node, PatchPage, ValueRef, patch_in},
    page::{PAGE_BYTES, PageFile, Pid, PlaceMap, zeroed},
    shortcuts::{self, Shortcut, ShortcutPage, Spot},
    values::{self, Named, RecordKind, StoredValue, ValueLog},
    writes::Content,
};

/// Most bytes of one write of neighbouring spans.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Pages that patches are put into, so that large ones find room, too.
const FILLING_PAGES_MAX: usize = 4;

/// Flushes of less are not worth a thread.
const SHARED_WRITE_BYTES_MIN: u64 = 1 << 20;

/// A tree has shortcuts if its leaves would take one of so many parts of the cache of frozen trees, or more:
const CACHE_PARTS: usize = 4;
/// of each record about so much.
const LEAF_RECORD_BYTES: usize = 128;

/// Filters that were read for gets are in memory up to so many of the largest that are kept: more than the trees of one version have.
const READ_FILTERS_MAX: usize = 8;

/// A node that no superblock covers and that is in no file, unless it is of the active tree and was written ahead.
#[derive(Debug)]
struct Dirty {
    node: Node,
    class: Class,
    /// Its bytes are durable at its place.
    ahead: bool,
    /// The flush that began last names it.
    flushing: bool,
}

/// A page of patches that no superblock covers.
#[derive(Debug)]
struct DirtyPatches {
    page: PatchPage,
    /// Patches that were not given up.
    live: u16,
    ahead: bool,
    flushing: bool,
}

/// Pages as they go to their file: a whole node, or patches by the first one.
pub(crate) type Span = (Pid, Class, Arc<[u8]>);

/// Everything that lies in files but the meta log and the superblocks.
#[derive(Debug)]
pub(crate) struct Store {
    /// A directory of the first version of the format has no patches, until it is opened to be changed.
    files: [Option<Arc<dyn File>>; 3],
    dirty: PlaceMap<Pid, Dirty>,
    patches: PlaceMap<u64, DirtyPatches>,
    /// Pages of patches that fill, over several versions. Nobody writes them yet.
    filling: Vec<u64>,
    dirty_bytes: u64,
    /// Bytes of those that were not written ahead, of active and of frozen trees.
    behind_bytes: [u64; 2],
    cache: DualCache,
    /// Hashes of the entries of nodes. What is missing is computed.
    lists: Lists,
    pub(crate) values: ValueLog,
    filters: RwLock<PlaceMap<ValueRef, Arc<Filter>>>,
    name_percent_max: u32,
    /// Leaves of fewer records are in the old cache anyway, and are soon merged again.
    shortcut_records_min: u64,
    /// Larger filters are in memory only if deletes, or gets of what is in older trees, ask for them.
    small_filter_bytes_max: usize,
    pub(crate) counters: Live,
}

impl Store {
    pub(crate) fn open(storage: &Arc<dyn Storage>, options: &Options, meta: &Meta, mode: OpenMode) -> Result<Self> {
        let open = |file: PageFile| match storage.open_direct(file.name(), mode) {
            Err(error) if error.kind() == ErrorKind::NotFound && file == PageFile::Patches => Ok(None),
            opened => opened.map(Some).map_err(Error::io("open", file.name())),
        };
        Ok(Self {
            files: [open(PageFile::Index)?, open(PageFile::Data)?, open(PageFile::Patches)?],
            dirty: PlaceMap::default(),
            patches: PlaceMap::default(),
            filling: Vec::new(),
            dirty_bytes: 0,
            behind_bytes: [0; 2],
            cache: DualCache::new(options.young_cache_bytes, options.old_cache_bytes),
            lists: Lists::new(options.hash_cache_bytes, meta.params.capacity),
            values: ValueLog::new(
                Arc::clone(storage),
                options.segment_bytes_max,
                &meta.segments,
                meta.journals.values().map(|journal| journal.at.segment),
            ),
            filters: RwLock::default(),
            name_percent_max: options.name_percent_max,
            shortcut_records_min: (options.old_cache_bytes / CACHE_PARTS / LEAF_RECORD_BYTES) as u64,
            small_filter_bytes_max: options.old_cache_bytes,
            counters: Live::default(),
        })
    }

    /// The node, checked.
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

    /// A node of the active tree whose successor is about to be made. If it lies as a patch, it leaves the cache: older versions are seldom
    /// read, and each would take as much of the cache as this one.
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

    /// Brings what [`Self::node_to_replace`] and [`Self::take_known`] look up of these near the processor.
    pub(crate) fn load_to_replace(&mut self, children: &[Child]) {
        self.cache.load_young(children);
        self.lists.load_active(children);
    }

    /// The node that lies whole at a place, and waits for a flush. Patches wait in their pages.
    fn dirty_at(&self, pid: Pid) -> Option<&Node> {
        if pid.is_patch() {
            return None;
        }
        self.dirty.get(&pid).map(|dirty| &dirty.node)
    }

    /// The same of a place that a checked node or the Meta table names.
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
        match child.pid.is_patch() {
            true => self.patched(child, level, |base| self.base(base, level, class)),
            false => self.counted_read(child, level),
        }
    }

    /// The leaf of a frozen tree where a key belongs, and whether that is sure: if it is not, the key may be in the leaf before.
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

    /// The child of an inner node where a key belongs. Its fences are kept and not the node, if it has any.
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

    /// What a leaf has of a key.
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

    /// The node that a patch rests on. Of the active tree, more than one version is read with it.
    fn base(&self, base: &Child, level: u8, class: Class) -> Result<Node> {
        if let Some(node) = self.dirty_at(base.pid) {
            // Nothing has checked yet what the patch says of it.
            if node.checksum() != base.checksum {
                let (file, page) = (base.pid.file().name(), Some(base.pid.first()));
                return Err(Error::corrupted(file, page, "a patch rests on another node"));
            }
            return Ok(node.clone());
        }
        if let Some((node, _)) = self.cache.get(base.pid, base.checksum, Class::Young) {
            return Ok(node);
        }
        let node = match base.pid.is_patch() {
            true => self.patched(base, level, |_| Err(chain(base.pid)))?,
            false => self.counted_read(base, level)?,
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

    /// Whether the node's file may not have it.
    pub(crate) fn is_dirty(&self, pid: Pid) -> bool {
        if pid.is_patch() { self.patches.contains_key(&pid.first()) } else { self.dirty.contains_key(&pid) }
    }

    /// A leaf for a walk through all of them; none if it is in its file alone, and whole there: others read it past the caches, which is
    /// counted here.
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

    pub(crate) fn file(&self, file: PageFile) -> Result<&Arc<dyn File>> {
        self.files[file as usize].as_ref().ok_or_else(|| missing(file))
    }

    /// The node that lies as a patch of another one.
    fn patched(&self, child: &Child, level: u8, base: impl FnOnce(&Child) -> Result<Node>) -> Result<Node> {
        let slot = child.pid.slot().expect("the place of a patch");
        let name = PageFile::Patches.name();
        let corrupted = |what: &str| Error::corrupted(name, Some(child.pid.first()), what);
        let mut read = [0; PAGE_BYTES];
        let page = match self.patches.get(&child.pid.first()) {
            Some(dirty) => dirty.page.bytes(),
            None => {
                self.count_read(child.pid);
                let file = self.file(PageFile::Patches)?;
                file.read_exact_at(&mut read, child.pid.offset_bytes()).map_err(unread(child.pid))?;
                read.as_slice()
            }
        };
        let patch = patch_in(page, slot).ok_or_else(|| corrupted("it has no such patch"))?;
        let on = Base::of(patch).ok_or_else(|| corrupted("a patch that is none"))?;
        let base = on.map(|on| base(&on.child())).transpose()?;
        Node::patched(patch, base.as_ref(), child, level).map_err(corrupted)
    }

    /// The node from its file, past dirty ones and caches.
    pub(crate) fn read_node(&self, child: &Child, level: u8) -> Result<Node> {
        if child.pid.is_patch() {
            return self.patched(child, level, |base| match base.pid.is_patch() {
                true => self.patched(base, level, |_| Err(chain(base.pid))),
                false => self.read_node(base, level),
            });
        }
        read_span(&**self.file(child.pid.file())?, child, level)
    }

    /// Gives a node its place.
    pub(crate) fn add_node(&mut self, meta: &mut Meta, delta: &mut Delta, draft: Draft, class: Class) -> Child {
        let pid = match &draft.patch {
            Some(patch) => self.add_patch(meta, &patch.bytes),
            None => meta.allocate(PageFile::of_level(draft.level), draft.pages()),
        };
        delta.allocated.push(pid);
        let (node, child) = draft.place(pid);
        self.add_placed(&child, node, class);
        child
    }

    /// Takes in a new node at its place. A patch replaces what the cache has of the place: its checksum does not say on what it rests.
    pub(crate) fn add_placed(&mut self, child: &Child, node: Node, class: Class) {
        self.counters.nodes_made.one();
        let pid = child.pid;
        if pid.is_patch() {
            self.cache.insert(pid, node, class);
            return;
        }
        let len = node.bytes().len() as u64;
        self.dirty_bytes += len;
        self.behind_bytes[class as usize] += len;
        let before = self.dirty.insert(pid, Dirty { node, class, ahead: false, flushing: false });
        assert!(before.is_none(), "{pid:?} has two owners");
    }

    /// Gives a patch its place, in the first page that fills and has room.
    fn add_patch(&mut self, meta: &mut Meta, patch: &[u8]) -> Pid {
        for page in &self.filling {
            let dirty = self.patches.get_mut(page).expect("a page that fills is dirty");
            if let Some(slot) = dirty.page.push(patch) {
                dirty.live += 1;
                return meta.allocate_patch(Some((*page, slot)));
            }
        }
        let pid = meta.allocate_patch(None);
        let mut page = PatchPage::new();
        page.push(patch).expect("a page has room for the largest patch");
        let before = self.patches.insert(pid.first(), DirtyPatches { page, live: 1, ahead: false, flushing: false });
        assert!(before.is_none(), "{pid:?} has two owners");
        self.dirty_bytes += PAGE_BYTES as u64;
        self.behind_bytes[Class::Young as usize] += PAGE_BYTES as u64;
        if self.filling.len() == FILLING_PAGES_MAX {
            self.filling.remove(0);
        }
        self.filling.push(pid.first());
        pid
    }

    /// Forgets a patch that was given up, and its page with the last one.
    fn forget_patch(&mut self, pid: Pid) {
        let page = pid.first();
        let Some(dirty) = self.patches.get_mut(&page) else { return };
        dirty.live -= 1;
        if dirty.live > 0 {
            return;
        }
        self.dirty_bytes -= PAGE_BYTES as u64;
        self.behind_bytes[Class::Young as usize] -= if dirty.ahead { 0 } else { PAGE_BYTES as u64 };
        self.patches.remove(&page);
        self.filling.retain(|filling| *filling != page);
    }

    /// Appends a filter, shortcuts or a journal.
    pub(crate) fn add_blob(&mut self, meta: &mut Meta, delta: &mut Delta, kind: RecordKind, bytes: &[u8]) -> BlobRef {
        let blob = self.values.append(kind, bytes);
        Self::own_blob(meta, delta, blob)
    }

    /// Appends a value, named if that takes little of it.
    pub(crate) fn add_value(
        &mut self,
        meta: &mut Meta,
        delta: &mut Delta,
        (key, stamp): (&[u8], Stamp),
        value: &[u8],
    ) -> BlobRef {
        let (name_bytes, value_bytes) = (u64::from(values::name_bytes(key)), value.len() as u64);
        let blob = match name_bytes * 100 <= value_bytes * u64::from(self.name_percent_max) {
            true => self.values.append_named(key, stamp, value),
            false => self.values.append(RecordKind::Value, value),
        };
        Self::own_blob(meta, delta, blob)
    }

    fn own_blob(meta: &mut Meta, delta: &mut Delta, blob: BlobRef) -> BlobRef {
        meta.reserve_value(blob.at.segment, values::record_bytes(blob.len));
        delta.allocate_value(blob.at.segment, values::record_bytes(blob.len));
        blob
    }

    /// Reads a value.
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

    /// Reads many values, those that are neighbours at once, and gives each away with its number.
    pub(crate) fn values(&self, values: &[StoredValue], give: impl FnMut(usize, Vec<u8>)) -> Result<()> {
        self.counters.value_reads.add(values.len() as u64);
        self.counters.value_file_reads.add(self.values.read_many(values, give)?);
        Ok(())
    }

    /// Stores the filter of a tree that is being frozen or was made by a merge.
    pub(crate) fn add_filter(&mut self, meta: &mut Meta, delta: &mut Delta, filter: Filter) -> BlobRef {
        let bytes: Vec<u8> = filter.blocks().iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let blob = self.add_blob(meta, delta, RecordKind::Filter, &bytes);
        if self.is_small(blob) {
            self.keep_filter(blob, &Arc::new(filter));
        }
        blob
    }

    /// The filter of a frozen tree, for as long as it is used.
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

    /// Keeps a filter that was read. Reads of many old versions ask for those of many trees, between flushes, which forget them.
    fn keep_read_filter(&self, blob: BlobRef, filter: &Arc<Filter>) {
        let mut filters = self.filters.write().unwrap_or_else(PoisonError::into_inner);
        if bytes_of(&filters) > READ_FILTERS_MAX * self.small_filter_bytes_max {
            filters.clear();
        }
        filters.insert(blob.at, Arc::clone(filter));
    }

    /// Whether a filter is in memory even if few ask for it.
    fn is_small(&self, filter: BlobRef) -> bool {
        filter.len as usize <= self.small_filter_bytes_max
    }

    /// False only if the frozen tree holds no record of a key with this filter hash. The filter is in memory from then on.
    pub(crate) fn admits(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<bool> {
        if let Some(filter) = self.filters().get(&filter_of(tree).at) {
            return Ok(filter.admits_hash(filter_hash));
        }
        let filter = self.filter(tree)?;
        self.keep_filter(filter_of(tree), &filter);
        Ok(filter.admits_hash(filter_hash))
    }

    /// The same of the oldest tree, for a get: true as well where only a large filter would know that is not in memory.
    /// It would save nothing for keys that have a record, and the memory holds fences and leaves for them.
    pub(crate) fn oldest_admits(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<bool> {
        let blob = filter_of(tree);
        let asks = self.is_small(blob) || self.filters().contains_key(&blob.at);
        if asks { self.admits(tree, filter_hash) } else { Ok(true) }
    }

    /// Whether a tree of so many records should have shortcuts.
    pub(crate) fn wants_shortcuts(&self, records: u64) -> bool {
        (self.shortcut_records_min..=shortcuts::RECORDS_MAX).contains(&records)
    }

    /// Stores the shortcuts of a tree that a merge made.
    pub(crate) fn add_shortcuts(&mut self, meta: &mut Meta, delta: &mut Delta, mut pages: Vec<u8>) -> BlobRef {
        let at = self.values.next_place(pages.len() as u32);
        shortcuts::seal(&mut pages, at);
        let blob = self.add_blob(meta, delta, RecordKind::Shortcuts, &pages);
        assert_eq!(blob.at, at, "the log goes on where it said");
        blob
    }

    /// What a frozen tree's shortcuts say of a key.
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
            // Leaves may lie on another disk than the value log.
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

    /// What a frozen tree has of a key, with the value, by its shortcuts. Where they don't know, or lead to something that can't be
    /// read, only leaves say.
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

    /// Forgets freed pages, everywhere. Filters of dead trees are forgotten when none of the given trees has them.
    pub(crate) fn forget(&mut self, pids: &[Pid]) {
        for pid in pids {
            if !self.forget_outside_caches(*pid) {
                self.cache.remove(*pid);
            }
        }
    }

    /// [`Store::forget`] but in the page caches, where they are scattered in memory: to look for each takes longer than all else. Others take
    /// their room in time. What comes to their places has another checksum, or replaces them there, as each new patch does.
    pub(crate) fn forget_all_outside_caches(&mut self, pids: &[Pid]) {
        pids.iter().for_each(|pid| {
            self.forget_outside_caches(*pid);
        });
    }

    /// Forgets a freed page and what is known of its entries. Whether it waited for the flush: such pages are not in the caches.
    fn forget_outside_caches(&mut self, pid: Pid) -> bool {
        let dirty = self.dirty.remove(&pid);
        if let Some(dirty) = &dirty {
            let len = dirty.node.bytes().len() as u64;
            self.dirty_bytes -= len;
            self.behind_bytes[dirty.class as usize] -= if dirty.ahead { 0 } else { len };
        }
        if pid.is_patch() {
            self.forget_patch(pid);
        }
        self.lists.forget(pid);
        dirty.is_some()
    }

    /// Takes what is known of an active node's entries: what is known of its successor's follows from it.
    pub(crate) fn take_known(&mut self, child: &Child) -> Option<Known> {
        self.lists.take(child)
    }

    /// Keeps what is known of an active node's entries.
    pub(crate) fn keep_known(&mut self, child: &Child, known: Known) {
        self.lists.keep(child, known);
    }

    /// The hashes that show entries of a node, whose indices ascend.
    pub(crate) fn list_proof(&self, child: &Child, node: &Node, indices: &[u64]) -> Vec<Digest> {
        self.lists.proof(child, node, indices)
    }

    /// Forgets the hashes of active nodes: there is a new active tree.
    pub(crate) fn drop_lists(&mut self) {
        self.lists.drop_active();
    }

    /// Keeps only the filters that these places name.
    pub(crate) fn retain_filters(&mut self, keep: impl Fn(&ValueRef) -> bool) {
        self.filters.get_mut().unwrap_or_else(PoisonError::into_inner).retain(|at, _| keep(at));
    }

    pub(crate) fn filters_cached(&self) -> usize {
        self.filters().len()
    }

    /// Bytes of pages and values that are in memory until the flush, or until they are written ahead.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.dirty_bytes + self.values.behind_bytes()
    }

    /// Those of them that were not written ahead; of the active tree's nodes if `young`.
    pub(crate) fn behind_bytes(&self, young: bool) -> u64 {
        let [young_bytes, old_bytes] = self.behind_bytes;
        old_bytes + if young { young_bytes } else { 0 } + self.values.behind_bytes()
    }

    /// Dirty spans that were not written ahead, in order of place, a page of patches by its first one; of the active tree's nodes if
    /// `young`: no patch comes to these pages any more.
    fn take_behind(&mut self, young: bool) -> Vec<Span> {
        let wanted = |dirty: &Dirty| !dirty.ahead && (young || dirty.class == Class::Old);
        let behind = self.dirty.iter().filter(|(_, dirty)| wanted(dirty));
        let mut spans: Vec<Span> =
            behind.map(|(pid, dirty)| (*pid, dirty.class, Arc::clone(dirty.node.bytes()))).collect();
        if young {
            self.filling.clear();
            let behind = self.patches.iter().filter(|(_, dirty)| !dirty.ahead);
            let span = |(page, dirty): (&u64, &DirtyPatches)| {
                (Pid::of_patch(*page, 0), Class::Young, Arc::clone(dirty.page.bytes()))
            };
            spans.extend(behind.map(span));
        }
        spans.sort_unstable_by_key(|(pid, ..)| (pid.file() as usize, pid.first()));
        spans
    }

    /// What is to be written ahead, for the caller to write.
    pub(crate) fn begin_ahead(&mut self, young: bool) -> Content {
        let values = self.values.seal();
        let spans = self.take_behind(young);
        Content { files: self.files.clone(), spans, values, workers: Workers::Inline }
    }

    /// Notes what was written, unless something else came to the places meanwhile.
    pub(crate) fn end_ahead(&mut self, written: &Content) {
        for span in &written.spans {
            self.count_write(span);
            let (pid, _, bytes) = span;
            let dirty = match self.patches.get_mut(&pid.first()).filter(|_| pid.is_patch()) {
                Some(dirty) => Some((dirty.page.bytes(), Class::Young, &mut dirty.ahead)),
                None => self.dirty.get_mut(pid).map(|dirty| (dirty.node.bytes(), dirty.class, &mut dirty.ahead)),
            };
            let Some((still, class, ahead)) = dirty else { continue };
            if !Arc::ptr_eq(still, bytes) {
                continue;
            }
            *ahead = true;
            self.behind_bytes[class as usize] -= bytes.len() as u64;
            // What a merge made lasts, so nothing is gained by its memory.
            if class == Class::Old
                && let Some(Dirty { node, .. }) = self.dirty.remove(pid)
            {
                self.dirty_bytes -= bytes.len() as u64;
                self.cache.insert(*pid, node, class);
            }
        }
        self.counters.value_write_bytes.add(self.values.written(&written.values));
    }

    fn count_write(&self, (pid, class, bytes): &Span) {
        let bytes = bytes.len() as u64;
        self.counters.span_writes.one();
        self.counters.span_write_bytes.add(bytes);
        match (pid.file(), class) {
            (PageFile::Patches, _) => self.counters.patch_write_bytes.add(bytes),
            (_, Class::Old) => self.counters.merge_write_bytes.add(bytes),
            (PageFile::Index, Class::Young) => self.counters.inner_write_bytes.add(bytes),
            (PageFile::Data, Class::Young) => {}
        }
    }

    /// Every dirty node and value that was not written ahead, for the caller to write, and whether names changed. All of them stay dirty
    /// until [`Self::end_flush`], so that a failed flush can be repeated: what a failed sync has lost, no later sync would save.
    pub(crate) fn begin_flush(&mut self, workers: Workers) -> Result<(Content, bool)> {
        let workers = if self.behind_bytes(true) < SHARED_WRITE_BYTES_MIN { Workers::Inline } else { workers };
        let (values, names_changed) = self.values.seal_to_write()?;
        let spans = self.take_behind(true);
        self.dirty.values_mut().for_each(|dirty| dirty.flushing = true);
        self.patches.values_mut().for_each(|dirty| dirty.flushing = true);
        Ok((Content { files: self.files.clone(), spans, values, workers }, names_changed))
    }

    /// A superblock covers what was dirty when the flush began, and the segments up to these ends.
    pub(crate) fn end_flush(&mut self, written: &Content, segment_ends: &[(u32, u64)], meta: &Meta) {
        written.spans.iter().for_each(|span| self.count_write(span));
        let mut forget = |class: Class, ahead: bool, len: u64| {
            self.dirty_bytes -= len;
            self.behind_bytes[class as usize] -= if ahead { 0 } else { len };
        };
        for (pid, Dirty { node, class, ahead, .. }) in self.dirty.extract_if(|_, dirty| dirty.flushing) {
            forget(class, ahead, node.bytes().len() as u64);
            self.cache.insert(pid, node, class);
        }
        for (_, dirty) in self.patches.extract_if(|_, dirty| dirty.flushing) {
            forget(Class::Young, dirty.ahead, PAGE_BYTES as u64);
        }
        self.counters.value_write_bytes.add(self.values.written(&written.values));
        self.values.flushed(segment_ends, &meta.segments);
    }

    /// Gives back the space of pages that nothing refers to. What fails is no loss.
    pub(crate) fn discard(&self, file: PageFile, first: u64, pages: u64) {
        let [offset, len] = [first, pages].map(|pages| pages * PAGE_BYTES as u64);
        if self.file(file).is_ok_and(|file| file.discard(offset, len).is_ok()) {
            self.counters.discarded_bytes.add(len);
        }
    }

    /// Lengths of the page files.
    pub(crate) fn page_file_bytes(&self, file: PageFile) -> Result<u64> {
        self.files[file as usize].as_ref().map_or(Ok(0), |handle| handle.len()).map_err(Error::io("read", file.name()))
    }

    /// Bytes of the filters in memory.
    pub(crate) fn filter_bytes(&self) -> usize {
        bytes_of(&self.filters())
    }

    /// Bytes of the lists of hashes in memory.
    pub(crate) fn list_bytes(&self) -> usize {
        self.lists.bytes()
    }

    pub(crate) fn cache_bytes(&self) -> (usize, usize) {
        self.cache.bytes()
    }
}

fn bytes_of(filters: &PlaceMap<ValueRef, Arc<Filter>>) -> usize {
    filters.values().map(|filter| size_of_val(filter.blocks())).sum()
}

fn filter_of(tree: &Tree) -> BlobRef {
    tree.filter.expect("a frozen tree has a filter")
}

fn chain(pid: Pid) -> Error {
    Error::corrupted(pid.file().name(), Some(pid.first()), "a patch of a patch")
}

fn missing(file: PageFile) -> Error {
    Error::corrupted(file.name(), None, "the file is missing")
}

fn unread(pid: Pid) -> impl FnOnce(std::io::Error) -> Error {
    move |error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            Error::corrupted(pid.file().name(), Some(pid.first()), "the file ends before the span")
        }
        _ => Error::io("read", pid.file().name())(error),
    }
}

/// The node that lies whole in its file.
pub(crate) fn read_span(file: &dyn File, child: &Child, level: u8) -> Result<Node> {
    let mut bytes = zeroed(child.pid.len_bytes());
    let buffer = Arc::get_mut(&mut bytes).expect("it was made here");
    file.read_exact_at(buffer, child.pid.offset_bytes()).map_err(unread(child.pid))?;
    check_node(bytes, child, level)
}

/// The node of these bytes of its file.
pub(crate) fn check_node(bytes: Arc<[u8]>, child: &Child, level: u8) -> Result<Node> {
    let corrupted = |what: &str| Error::corrupted(child.pid.file().name(), Some(child.pid.first()), what);
    if PageFile::of_level(level) != child.pid.file() {
        return Err(corrupted("a node of this level lies in the other file"));
    }
    Node::check(bytes, child, level).map_err(corrupted)
}

/// Writes the spans of one file, which are in order of place, neighbours in one write; and syncs, if there are any.
pub(crate) fn write_spans(files: &[Option<Arc<dyn File>>; 3], file: PageFile, spans: &[Span]) -> Result<()> {
    let mut spans = spans.iter().filter(|(pid, ..)| pid.file() == file).peekable();
    if spans.peek().is_none() {
        return Ok(());
    }
    let handle = files[file as usize].as_deref().ok_or_else(|| missing(file))?;
    let write = |run: &[&[u8]], at: u64| handle.write_parts_at(run, at).map_err(Error::io("write", file.name()));
    let mut run: Vec<&[u8]> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (pid, _, bytes) in spans {
        let at = pid.offset_bytes();
        let more = (end - start) as usize + bytes.len();
        if !run.is_empty() && (end != at || more > WRITE_BYTES_MAX) {
            write(&run, start)?;
            run.clear();
        }
        if run.is_empty() {
            start = at;
        }
        run.push(bytes);
        end = at + bytes.len() as u64;
    }
    write(&run, start)?;
    handle.sync_data().map_err(Error::io("sync", file.name()))
}

/// Hash of a tree's root node.
pub(crate) fn root_hash(tree: &Tree) -> Digest {
    tree.root.map_or_else(hash::empty_root_hash, |root| root.hash)
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
    use coppice_types::{Change, ErrorKind, Operation, Params, ShardId, Version};

    use super::*;
    use crate::{Engine, Options, RaftPosition, testing};

    fn commit(engine: &mut Engine, version: u64, numbers: std::ops::Range<u64>) {
        let put = |n: u64| Operation { key: format!("{n:04}").into_bytes(), change: Change::Put(vec![1; 9]) };
        testing::commit(engine, version, numbers.map(put).collect());
    }

    /// A page of patches has no checksum of its own: one that was lost may name a place where something else waits for a flush by now.
    #[test]
    fn a_patch_that_names_a_node_that_waits_for_a_flush_is_damage() {
        let sim = SimStorage::new();
        let mut engine = Engine::create(sim.storage(), ShardId(0), Params::default(), Options::default())
            .expect("an empty directory");
        commit(&mut engine, 1, 0..100);
        engine.flush(RaftPosition { index: 1, term: 1 }, b"").expect("room");
        commit(&mut engine, 2, 0..1);
        engine.flush(RaftPosition { index: 2, term: 1 }, b"").expect("room");
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
}
