//! Dirty nodes: new nodes that no superblock covers, and how they are written.
//!
//! Nodes of the active tree stay dirty until a flush has ended, even if they were written ahead: a
//! flush that fails can then be repeated. Nodes of frozen trees, which merges make, go to the cache
//! as soon as they are written.

use std::sync::Arc;

use coppice_env::Workers;

use super::{
    Store,
    content::{Content, Span},
};
use crate::{
    Result,
    cache::Class,
    meta::{Delta, Meta},
    node::{Child, Draft, Node, PatchPage},
    place::page::{PAGE_BYTES, PageFile, Pid},
};

/// The number of pages of patches that are filled at the same time, so that large patches find
/// room, too.
const FILLING_PAGES_MAX: usize = 4;

/// Smaller flushes are not worth a thread.
const SHARED_WRITE_BYTES_MIN: u64 = 1 << 20;

/// A node that no superblock covers. No file has it, unless it belongs to the active tree and was
/// written ahead.
#[derive(Debug)]
pub(super) struct Dirty {
    pub(super) node: Node,
    class: Class,
    /// Whether the bytes are durable at their place.
    ahead: bool,
    /// Whether the flush in progress writes or covers the node.
    flushing: bool,
}

/// A page of patches that no superblock covers.
#[derive(Debug)]
pub(super) struct DirtyPatches {
    pub(super) page: PatchPage,
    /// Number of patches that are still in use.
    live: u16,
    ahead: bool,
    flushing: bool,
}

/// Bytes of dirty pages: the sums over all dirty nodes and pages of patches.
#[derive(Debug, Default)]
pub(super) struct DirtyBytes {
    all: u64,
    /// Bytes that were not written ahead, for active and for frozen trees.
    behind: [u64; 2],
}

impl DirtyBytes {
    fn add(&mut self, class: Class, bytes: usize) {
        self.all += bytes as u64;
        self.behind[class as usize] += bytes as u64;
    }

    /// Notes that a page was written ahead.
    fn write_ahead(&mut self, class: Class, bytes: usize) {
        let behind = &mut self.behind[class as usize];
        assert!(*behind >= bytes as u64, "a page that is written ahead was counted as behind");
        *behind -= bytes as u64;
    }

    /// Notes that a page is no longer dirty; `ahead` if it was written ahead.
    fn remove(&mut self, class: Class, ahead: bool, bytes: usize) {
        if !ahead {
            self.write_ahead(class, bytes);
        }
        assert!(self.all >= bytes as u64, "a dirty page was counted");
        self.all -= bytes as u64;
    }
}

impl Store {
    /// Allocates a place for a new node and adds the node.
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

    /// Adds a new node at its place. A patch replaces the cached node of its place, since its
    /// checksum does not determine its base.
    pub(crate) fn add_placed(&mut self, child: &Child, node: Node, class: Class) {
        self.counters.nodes_made.one();
        let pid = child.pid;
        if pid.is_patch() {
            self.cache.insert(pid, node, class);
            return;
        }
        self.dirty_bytes.add(class, node.bytes().len());
        let before = self.dirty.insert(pid, Dirty { node, class, ahead: false, flushing: false });
        assert!(before.is_none(), "{pid:?} has two owners");
    }

    /// Puts a patch into the first page being filled that has room.
    fn add_patch(&mut self, meta: &mut Meta, patch: &[u8]) -> Pid {
        for page in &self.filling {
            let dirty = self.patches.get_mut(page);
            assert!(dirty.is_some(), "a page that fills is dirty");
            if let Some(dirty) = dirty
                && let Some(slot) = dirty.page.push(patch)
            {
                dirty.live += 1;
                return meta.allocate_patch(Some((*page, slot)));
            }
        }
        let pid = meta.allocate_patch(None);
        let mut page = PatchPage::new();
        assert_eq!(page.push(patch), pid.slot(), "an empty page has room for the largest patch");
        let before = self.patches.insert(pid.first(), DirtyPatches { page, live: 1, ahead: false, flushing: false });
        assert!(before.is_none(), "{pid:?} has two owners");
        self.dirty_bytes.add(Class::Young, PAGE_BYTES);
        if self.filling.len() == FILLING_PAGES_MAX {
            self.filling.remove(0);
        }
        self.filling.push(pid.first());
        assert!(self.filling.len() <= FILLING_PAGES_MAX, "few pages fill at the same time");
        pid
    }

    /// Forgets a freed patch, and also its page if this was the last patch.
    fn forget_patch(&mut self, pid: Pid) {
        let page = pid.first();
        let Some(dirty) = self.patches.get_mut(&page) else { return };
        assert!(dirty.live > 0, "a dirty page has a patch in use");
        dirty.live -= 1;
        if dirty.live > 0 {
            return;
        }
        self.dirty_bytes.remove(Class::Young, dirty.ahead, PAGE_BYTES);
        self.patches.remove(&page);
        self.filling.retain(|filling| *filling != page);
    }

    /// Forgets freed places, in the caches too.
    pub(crate) fn forget(&mut self, pids: &[Pid]) {
        for pid in pids {
            if !self.forget_outside_caches(*pid) {
                self.cache.remove(*pid);
            }
        }
    }

    /// Like [`Store::forget`], but leaves the page caches alone. Their items are scattered in
    /// memory, and finding each would take longer than everything else. They are evicted in time. A
    /// new node at such a place has another checksum or, if it is a patch, replaces the item.
    pub(crate) fn forget_all_outside_caches(&mut self, pids: &[Pid]) {
        pids.iter().for_each(|pid| {
            self.forget_outside_caches(*pid);
        });
    }

    /// Forgets a freed place, and the data about its entries. Returns `true` if the node was dirty;
    /// dirty nodes are not in the caches.
    fn forget_outside_caches(&mut self, pid: Pid) -> bool {
        let dirty = self.dirty.remove(&pid);
        if let Some(Dirty { node, class, ahead, .. }) = &dirty {
            self.dirty_bytes.remove(*class, *ahead, node.bytes().len());
        }
        if pid.is_patch() {
            self.forget_patch(pid);
        }
        self.lists.forget(pid);
        dirty.is_some()
    }

    /// Bytes of pages and values that wait for a flush.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.dirty_bytes.all + self.values.behind_bytes()
    }

    /// Bytes of these that were not written ahead. Those of the active tree count only if `young`.
    pub(crate) fn behind_bytes(&self, young: bool) -> u64 {
        let [young_bytes, old_bytes] = self.dirty_bytes.behind;
        old_bytes + if young { young_bytes } else { 0 } + self.values.behind_bytes()
    }

    /// Dirty spans that were not written ahead, sorted by place; a page of patches has the place of
    /// its first patch. Spans of the active tree are included only if `young`; its pages then take
    /// no more patches.
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

    /// Returns the content that can be written ahead. The caller writes it.
    pub(crate) fn begin_ahead(&mut self, young: bool) -> Content {
        let values = self.values.seal();
        let spans = self.take_behind(young);
        Content { files: self.files.clone(), spans, values, workers: Workers::Inline }
    }

    /// Notes the places that were written ahead, except for those that hold another node by now.
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
            assert!(!*ahead, "a page is written ahead once");
            *ahead = true;
            self.dirty_bytes.write_ahead(class, bytes.len());
            // Merge outputs last, so keeping them in memory has no use.
            if class == Class::Old
                && let Some(Dirty { node, .. }) = self.dirty.remove(pid)
            {
                self.dirty_bytes.remove(class, true, bytes.len());
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

    /// Returns all dirty nodes and values that were not written ahead, for the caller to write, and
    /// whether file names have changed. All of them stay dirty until [`Self::end_flush`], so that a
    /// failed flush can be repeated. A later sync would not save data that a failed sync lost.
    pub(crate) fn begin_flush(&mut self, workers: Workers) -> Result<(Content, bool)> {
        let workers = if self.behind_bytes(true) < SHARED_WRITE_BYTES_MIN { Workers::Inline } else { workers };
        let (values, names_changed) = self.values.seal_to_write()?;
        let spans = self.take_behind(true);
        self.dirty.values_mut().for_each(|dirty| dirty.flushing = true);
        self.patches.values_mut().for_each(|dirty| dirty.flushing = true);
        Ok((Content { files: self.files.clone(), spans, values, workers }, names_changed))
    }

    /// Ends a flush: a superblock covers the nodes that were dirty when it began, and the segments
    /// up to these ends.
    pub(crate) fn end_flush(&mut self, written: &Content, segment_ends: &[(u32, u64)], meta: &Meta) {
        written.spans.iter().for_each(|span| self.count_write(span));
        for (pid, Dirty { node, class, ahead, .. }) in self.dirty.extract_if(|_, dirty| dirty.flushing) {
            self.dirty_bytes.remove(class, ahead, node.bytes().len());
            self.cache.insert(pid, node, class);
        }
        for (_, dirty) in self.patches.extract_if(|_, dirty| dirty.flushing) {
            self.dirty_bytes.remove(Class::Young, dirty.ahead, PAGE_BYTES);
        }
        let is_clean = self.dirty.is_empty() && self.patches.is_empty();
        assert_eq!(self.dirty_bytes.all == 0, is_clean, "bytes are dirty if and only if pages are");
        self.counters.value_write_bytes.add(self.values.written(&written.values));
        self.values.flushed(segment_ends, &meta.segments);
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Params;

    use super::*;
    use crate::{
        Engine,
        testing::{commit, create, flush, puts, stage},
    };

    /// A flushed engine with whole nodes.
    fn engine(sim: &SimStorage) -> Engine {
        let mut engine = create(sim, Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        flush(&mut engine, 1);
        assert_eq!((engine.store.unflushed_bytes(), engine.store.behind_bytes(true)), (0, 0));
        engine
    }

    #[test]
    fn nodes_that_die_before_a_flush_are_never_written() {
        let mut engine = engine(&SimStorage::new());
        stage(&mut engine, 2, puts(0..1000, 8));
        assert!(engine.store.unflushed_bytes() > 0);
        engine.abort_all_staged();
        assert_eq!((engine.store.unflushed_bytes(), engine.store.behind_bytes(true)), (0, 0));
        assert!(engine.store.dirty.is_empty() && engine.store.patches.is_empty() && engine.store.filling.is_empty());
        let written = engine.counters().span_write_bytes;
        flush(&mut engine, 2);
        assert_eq!(engine.counters().span_write_bytes, written);
    }

    #[test]
    fn a_node_written_ahead_stays_dirty_until_the_flush_but_is_not_written_again() {
        let mut engine = engine(&SimStorage::new());
        commit(&mut engine, 2, puts(0..1000, 8));
        let content = engine.store.begin_ahead(true);
        content.write().expect("room");
        engine.store.end_ahead(&content);
        assert_eq!(engine.store.behind_bytes(true), 0);
        assert!(engine.store.unflushed_bytes() > 0);
        let written = engine.counters().span_write_bytes;
        flush(&mut engine, 2);
        assert_eq!((engine.counters().span_write_bytes, engine.store.unflushed_bytes()), (written, 0));
    }

    #[test]
    fn nodes_freed_while_they_are_written_ahead_are_not_counted() {
        let mut engine = engine(&SimStorage::new());
        stage(&mut engine, 2, puts(0..1000, 8));
        let content = engine.store.begin_ahead(true);
        engine.abort_all_staged();
        content.write().expect("room");
        engine.store.end_ahead(&content);
        assert_eq!((engine.store.unflushed_bytes(), engine.store.behind_bytes(true)), (0, 0));
    }

    #[test]
    fn a_place_that_holds_another_node_by_then_is_still_behind() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        stage(&mut engine, 2, puts(0..1000, 8));
        let content = engine.store.begin_ahead(true);
        engine.abort_all_staged();
        // Other nodes come to the same places.
        commit(&mut engine, 2, puts(0..1000, 7));
        let behind = engine.store.behind_bytes(true);
        content.write().expect("room");
        engine.store.end_ahead(&content);
        assert_eq!(engine.store.behind_bytes(true), behind);
        flush(&mut engine, 2);
        let decided = engine.decided();
        drop(engine);
        assert!(crate::fsck(sim.storage()).expect("a directory").is_clean());
        assert_eq!(crate::testing::open(&sim).decided(), decided);
    }

    #[test]
    fn a_flush_covers_what_was_dirty_when_it_began() {
        let mut engine = engine(&SimStorage::new());
        commit(&mut engine, 2, puts(0..500, 8));
        let (content, _) = engine.store.begin_flush(Workers::Inline).expect("no new files");
        commit(&mut engine, 3, puts(500..1000, 7));
        let later =
            engine.store.dirty.values().filter(|dirty| !dirty.flushing).map(|dirty| dirty.node.bytes().len() as u64);
        let later = later.sum::<u64>()
            + engine.store.patches.values().filter(|it| !it.flushing).count() as u64 * PAGE_BYTES as u64;
        assert!(later > 0);
        content.write().expect("room");
        engine.store.end_flush(&content, &[], &engine.meta);
        assert_eq!((engine.store.unflushed_bytes(), engine.store.behind_bytes(true)), (later, later));
    }
}
