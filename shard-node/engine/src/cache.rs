//! The dual page cache: a young cache for the active tree and an old one for frozen trees.
//!
//! - A page is in at most one of them; a read for a frozen tree moves it from young to old. So a
//!   scan of old data never evicts pages that commits need. The old cache may use the bytes that
//!   the young one leaves unused.
//! - Each is a clock: a page that was used since the last pass of the hand stays for one more
//!   round.
//! - Both are divided into parts by place, each with its own lock, so readers rarely wait for each
//!   other.
//! - A cached leaf that was searched for a key also has marks of its keys.
//! - Pages of shortcuts share the old cache. Each serves many more keys than a leaf, so the clock
//!   prefers them.
//! - Fences have their own clock within the old cache's budget. A byte of fences serves about a
//!   hundred times as many keys as a byte of leaves, so leaves get the rest of the budget.
//! - A leaf enters a full old cache only if it was also read recently. So a single read evicts
//!   nothing.

pub(crate) mod clock;
pub(crate) mod fences;
pub(crate) mod lists;
pub(crate) mod marks;
pub(crate) mod shortcuts;

use std::{
    hash::{BuildHasher, BuildHasherDefault},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    cache::{
        clock::{Cached, Clock},
        fences::Fences,
        marks::Marks,
        shortcuts::{Shortcut, ShortcutPage},
    },
    node::{Base, Child, LeafRecord, Node},
    place::{
        page::{PAGE_BYTES, Pid, PlaceHasher},
        refs::ValueRef,
    },
};

/// The purpose of a page read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The active tree.
    Young,
    /// A frozen tree.
    Old,
}

/// Memory for marks in a slot; it allows for vacant slots.
const MARKS_BYTES: usize = size_of::<Option<Marks>>() * 3 / 2;

/// A cached node.
#[derive(Debug)]
struct HeldNode {
    node: Node,
    /// Marks of a leaf's keys, made by the first search in it.
    marks: Option<Marks>,
}

impl HeldNode {
    /// Index of the leaf's record with this key.
    fn search(&mut self, key: &[u8]) -> Option<usize> {
        if self.marks.is_none() {
            self.marks = Marks::of(&self.node);
        }
        match &self.marks {
            Some(marks) => marks.search(&self.node, key),
            None => self.node.search(key).ok(),
        }
    }
}

/// The two kinds of cached page.
#[derive(Debug)]
enum Held {
    Node(HeldNode),
    Shortcuts(ShortcutPage),
}

impl Held {
    fn of(node: Node) -> Self {
        Self::Node(HeldNode { node, marks: None })
    }

    /// The node of a page that was looked up by a node's place.
    fn node(&mut self) -> &mut HeldNode {
        match self {
            Self::Node(held) => held,
            Self::Shortcuts(_) => unreachable!("no node has such a place"),
        }
    }

    /// Like [`Self::node`], by value.
    fn into_node(self) -> Node {
        match self {
            Self::Node(held) => held.node,
            Self::Shortcuts(_) => unreachable!("no node has such a place"),
        }
    }
}

impl Cached for Held {
    fn size_bytes(&self) -> usize {
        MARKS_BYTES
            + match self {
                Self::Node(held) => held.node.bytes().len() + held.node.base().map_or(0, Base::size_bytes),
                Self::Shortcuts(_) => PAGE_BYTES,
            }
    }
}

/// Limit on the number of recently read places that a part remembers.
const RECENT_MAX: usize = 1 << 20;

/// Places that were read recently. If two share a slot, only the later one is remembered.
#[derive(Debug)]
struct Recent {
    marks: Box<[u32]>,
}

impl Recent {
    /// About as many places as a cache of this size has pages, at most a million.
    fn new(bytes_max: usize) -> Self {
        let places = (bytes_max / PAGE_BYTES).clamp(1, RECENT_MAX);
        Self { marks: vec![0; places.next_power_of_two()].into() }
    }

    /// Notes a place, and returns whether it was noted already.
    fn note(&mut self, pid: Pid) -> bool {
        let hash = BuildHasherDefault::<PlaceHasher>::default().hash_one(pid);
        let (slot, mark) = ((hash >> 32) as usize & (self.marks.len() - 1), hash as u32);
        std::mem::replace(&mut self.marks[slot], mark) == mark
    }
}

/// Largest share of the old cache that fences may take, in sixteenths.
const FENCES_PART: usize = 15;

#[derive(Debug)]
struct Part {
    young: Clock<Held>,
    /// The other pages of frozen trees. Its budget is the rest that `young` and `fences` leave.
    old: Clock<Held>,
    fences: Clock<Fences>,
    bytes_max: usize,
    /// Leaves of frozen trees that were read recently.
    recent: Recent,
}

impl Part {
    fn new(young_bytes_max: usize, old_bytes_max: usize) -> Self {
        let bytes_max = young_bytes_max.saturating_add(old_bytes_max);
        let (young, old) = (Clock::new(young_bytes_max), Clock::new(bytes_max));
        let (fences, recent) = (Clock::new(old_bytes_max / 16 * FENCES_PART), Recent::new(bytes_max));
        Self { young, old, fences, bytes_max, recent }
    }

    /// Gives the rest of the budget to the old clock.
    fn share(&mut self) {
        let taken = self.young.bytes() + self.fences.bytes();
        assert!(taken <= self.bytes_max, "young pages and fences stay within their budgets");
        self.old.bound(self.bytes_max - taken);
    }

    /// Returns the page and the cache that had it; the one of its class is searched first. A read
    /// for a frozen tree moves the page to the old cache.
    fn get(&mut self, pid: Pid, checksum: u64, class: Class) -> Option<(&mut HeldNode, Class)> {
        let (held, found) = self.held(pid, checksum, class)?;
        Some((held.node(), found))
    }

    fn held(&mut self, pid: Pid, checksum: u64, class: Class) -> Option<(&mut Held, Class)> {
        if class == Class::Young
            && let Some(place) = self.young.find(pid, checksum)
        {
            return self.young.used(place).map(|held| (held, Class::Young));
        }
        if let Some(place) = self.old.find(pid, checksum) {
            return self.old.used(place).map(|held| (held, Class::Old));
        }
        if class == Class::Young {
            return None;
        }
        let held = self.young.take(pid, checksum)?;
        self.insert(pid, checksum, held, Class::Old);
        let place = self.old.find(pid, checksum)?;
        self.old.used(place).map(|held| (held, Class::Young))
    }

    /// Puts a page into the cache of its class, and removes it from the other.
    fn insert(&mut self, pid: Pid, checksum: u64, held: Held, class: Class) {
        match class {
            Class::Young => {
                self.old.forget(pid);
                self.young.insert(pid, checksum, held);
                self.share();
            }
            Class::Old => {
                self.young.forget(pid);
                self.share();
                self.old.insert(pid, checksum, held);
            }
        }
    }
}

/// The largest number of parts; a power of two.
const PARTS_MAX: usize = 16;
/// A part has at least this many bytes: its pages cannot use those of other parts.
const PART_BYTES_MIN: usize = 1 << 20;

/// The young and the old cache.
#[derive(Debug)]
pub(crate) struct DualCache {
    parts: Vec<Mutex<Part>>,
}

impl DualCache {
    pub(crate) fn new(young_bytes_max: usize, old_bytes_max: usize) -> Self {
        let mut parts = PARTS_MAX;
        while parts > 1 && young_bytes_max.min(old_bytes_max) / parts < PART_BYTES_MIN {
            parts /= 2;
        }
        assert!(parts.is_power_of_two(), "a place's bits choose a part");
        let part = |_| Mutex::new(Part::new(young_bytes_max / parts, old_bytes_max / parts));
        Self { parts: (0..parts).map(part).collect() }
    }

    fn part(&self, pid: Pid) -> MutexGuard<'_, Part> {
        self.part_of(pid.spread())
    }

    fn part_of(&self, place: u64) -> MutexGuard<'_, Part> {
        let part = &self.parts[place as usize & (self.parts.len() - 1)];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the page and the cache that had it. The parent's checksum distinguishes it from an
    /// older page of the same place.
    pub(crate) fn get(&self, pid: Pid, checksum: u64, class: Class) -> Option<(Node, Class)> {
        self.part(pid).get(pid, checksum, class).map(|(held, found)| (held.node.clone(), found))
    }

    /// Looks up a key in a cached leaf. Returns the result, and the cache that had the leaf.
    pub(crate) fn search<T>(
        &self,
        (pid, checksum): (Pid, u64),
        class: Class,
        key: &[u8],
        of: impl FnOnce(&LeafRecord<'_>) -> T,
    ) -> Option<(Option<T>, Class)> {
        let mut part = self.part(pid);
        let (held, found) = part.get(pid, checksum, class)?;
        let index = held.search(key);
        Some((index.map(|index| of(&held.node.record(index))), found))
    }

    pub(crate) fn insert(&self, pid: Pid, node: Node, class: Class) {
        self.part(pid).insert(pid, node.checksum(), Held::of(node), class);
    }

    /// Offers a leaf of a frozen tree that was just read. It is taken if there is room, or if it
    /// was read before, not long ago.
    pub(crate) fn offer(&self, pid: Pid, node: Node) {
        let part = &mut *self.part(pid);
        let (checksum, held) = (node.checksum(), Held::of(node));
        if part.old.has_room(&held) || part.recent.note(pid) {
            part.insert(pid, checksum, held, Class::Old);
        }
    }

    /// The child of a frozen tree's inner node that may hold a key, and whether that is certain.
    /// `None` if the node's fences are not cached.
    pub(crate) fn fenced(&self, inner: &Child, key: &[u8]) -> Option<(Child, bool)> {
        let mut part = self.part(inner.pid);
        part.fences.get(inner.pid, inner.checksum).map(|fences| fences.child_of(key))
    }

    pub(crate) fn insert_fences(&self, inner: &Child, fences: Fences) {
        let mut part = self.part(inner.pid);
        part.fences.insert(inner.pid, inner.checksum, fences);
        part.share();
    }

    /// The part for a page of shortcuts, and the page's key there.
    fn part_of_shortcuts(&self, at: ValueRef) -> (MutexGuard<'_, Part>, Pid) {
        (self.part_of(u64::from(at.offset) / PAGE_BYTES as u64), Pid::of_shortcuts(at))
    }

    /// Looks up a key in a page of shortcuts, if that is cached.
    pub(crate) fn shortcut(&self, at: ValueRef, remainder: u16) -> Option<Shortcut> {
        let (mut part, pid) = self.part_of_shortcuts(at);
        match part.old.get(pid, 0)? {
            Held::Shortcuts(page) => Some(page.find(remainder)),
            Held::Node(_) => unreachable!("no node has such a place"),
        }
    }

    pub(crate) fn insert_shortcuts(&self, at: ValueRef, page: ShortcutPage) {
        let (mut part, pid) = self.part_of_shortcuts(at);
        part.old.insert(pid, 0, Held::Shortcuts(page));
    }

    pub(crate) fn remove(&self, pid: Pid) {
        let part = &mut *self.part(pid);
        part.young.forget(pid);
        part.old.forget(pid);
        part.fences.forget(pid);
        part.share();
    }

    /// Loads nodes of the active tree into the processor's caches.
    pub(crate) fn load_young(&mut self, children: &[Child]) {
        let parts = self.parts.iter_mut().map(|part| &*part.get_mut().unwrap_or_else(PoisonError::into_inner));
        let parts: Vec<&Part> = parts.collect();
        let young = |pid: Pid| &parts[pid.spread() as usize & (parts.len() - 1)].young;
        Clock::load(children.iter().map(|child| (young(child.pid), child.pid)));
    }

    /// Removes and returns a node of the active tree.
    pub(crate) fn take_young(&self, pid: Pid, checksum: u64) -> Option<Node> {
        let part = &mut *self.part(pid);
        let held = part.young.take(pid, checksum);
        part.share();
        held.map(Held::into_node)
    }

    /// Bytes in the young and in the old cache; the latter includes fences.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = |part: &Mutex<Part>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            (part.young.bytes(), part.old.bytes() + part.fences.bytes())
        };
        self.parts.iter().map(bytes).fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::{Stamp, Version};

    use super::*;
    use crate::{
        cache::clock::ITEM_BYTES,
        node::{Body, ChildEntry, Draft, HashedRecord, LeafRecord},
        place::page::PageFile,
    };

    const PAGE: usize = 4096 + ITEM_BYTES + MARKS_BYTES;

    impl DualCache {
        /// Whether the page is cached. This does not count as a use.
        fn has(&self, pid: Pid, checksum: u64) -> bool {
            let part = self.part(pid);
            part.young.peek(pid, checksum).is_some() || part.old.peek(pid, checksum).is_some()
        }
    }

    fn page(first: u64) -> (Pid, Node, u64) {
        let key = first.to_be_bytes();
        let record = LeafRecord { key: &key, stamp: Stamp::new(0, 1), body: Body::Tombstone };
        let pid = Pid::new(PageFile::Data, first, 1);
        let (node, child) = Draft::all_new(Version(1), 0, &[HashedRecord::new(record)]).place(pid);
        (pid, node, child.checksum)
    }

    #[test]
    fn a_page_is_in_one_cache_only_and_a_frozen_read_moves_it() {
        let cache = DualCache::new(4 * PAGE, 4 * PAGE);
        let (pid, node, checksum) = page(1);
        cache.insert(pid, node, Class::Young);
        assert_eq!(cache.bytes(), (PAGE, 0));
        assert_eq!(cache.get(pid, checksum, Class::Old).map(|found| found.1), Some(Class::Young));
        assert_eq!(cache.bytes(), (0, PAGE));
        assert_eq!(cache.get(pid, checksum, Class::Young).map(|found| found.1), Some(Class::Old));
        assert_eq!(cache.bytes(), (0, PAGE));
        assert!(cache.get(pid, checksum + 1, Class::Young).is_none());
        assert_eq!(cache.bytes(), (0, 0));
    }

    #[test]
    fn a_search_in_a_leaf_finds_its_keys_and_no_others_and_is_a_use_like_any() {
        let cache = DualCache::new(4 * PAGE, 4 * PAGE);
        let (pid, node, checksum) = page(7);
        cache.insert(pid, node, Class::Young);
        let search = |checksum: u64, key: u64, class: Class| {
            cache.search((pid, checksum), class, &key.to_be_bytes(), |record| record.key.to_vec())
        };
        for class in [Class::Young, Class::Old] {
            assert_eq!(search(checksum, 7, class), Some((Some(7_u64.to_be_bytes().to_vec()), Class::Young)));
            assert_eq!(search(checksum, 8, class).map(|(found, _)| found), Some(None));
        }
        assert_eq!(cache.bytes(), (0, PAGE));
        assert_eq!(search(checksum + 1, 7, Class::Old), None);
        assert_eq!(cache.bytes(), (0, 0));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let cache = DualCache::new(4 * PAGE, 0);
        let (hot, node, checksum) = page(0);
        cache.insert(hot, node, Class::Young);
        for first in 1..50 {
            assert!(cache.get(hot, checksum, Class::Young).is_some());
            let (pid, node, _) = page(first);
            cache.insert(pid, node, Class::Young);
            assert!(cache.bytes().0 <= 4 * PAGE);
        }
    }

    #[test]
    fn a_full_cache_takes_in_what_is_read_again_and_nothing_that_is_read_once() {
        let cache = DualCache::new(0, 4 * PAGE);
        let offer = |first: u64| {
            let (pid, node, checksum) = page(first);
            cache.offer(pid, node);
            cache.has(pid, checksum)
        };
        assert!((0..4).all(offer), "there is room");
        assert!(!(4..50).any(offer));
        assert!((0..4).map(page).all(|(pid, _, checksum)| cache.get(pid, checksum, Class::Old).is_some()));
        assert!(!offer(50) && offer(50));
        assert_eq!(cache.bytes(), (0, 4 * PAGE));
    }

    #[test]
    fn leaves_get_the_room_that_fences_leave() {
        let inner = |first: u64| {
            let (pid, node, checksum) = page(first);
            let child = Child { pid, checksum, hash: node.hash() };
            let separators = [Vec::new(), (first + 1).to_be_bytes().to_vec()];
            let entries = separators.map(|separator| ChildEntry { separator, child });
            let draft = Draft::all_new(Version(1), 1, &entries);
            draft.place(Pid::new(PageFile::Index, first, 1))
        };
        let cache = DualCache::new(0, 4 * PAGE);
        for first in 0..100 {
            let (pid, node, _) = page(first);
            cache.insert(pid, node, Class::Old);
            let (node, child) = inner(first);
            cache.insert_fences(&child, Fences::of(&node).expect("they differ"));
            assert!(cache.bytes().1 <= 4 * PAGE);
            let (leaf, sure) = cache.fenced(&child, &(first + 1).to_be_bytes()).expect("it was just put there");
            assert_eq!((leaf.pid, sure), (page(first).0, true));
        }
        // Leaves were evicted first, then the fences that were no longer used.
        assert!(cache.bytes().1 > 3 * PAGE);
        assert!(!(0..100).map(page).any(|(pid, _, checksum)| cache.has(pid, checksum)));
        let (_, last) = inner(99);
        assert!(cache.fenced(&last, b"key").is_some());
        assert!(cache.fenced(&Child { checksum: last.checksum + 1, ..last }, b"key").is_none(), "of another node");
        (0..100).for_each(|first| cache.remove(inner(first).1.pid));
        assert_eq!(cache.bytes(), (0, 0));
        let (pid, node, checksum) = page(7);
        cache.insert(pid, node, Class::Old);
        assert!(cache.has(pid, checksum), "the room is theirs again");
    }

    #[test]
    fn a_removed_page_is_in_no_cache() {
        let cache = DualCache::new(4 * PAGE, 4 * PAGE);
        for class in [Class::Young, Class::Old] {
            let (pid, node, checksum) = page(1);
            cache.insert(pid, node, class);
            assert!(cache.has(pid, checksum));
            cache.remove(pid);
            assert!(!cache.has(pid, checksum) && cache.bytes() == (0, 0), "{class:?}");
        }
    }

    #[test]
    fn only_a_young_page_is_taken_out_and_its_room_goes_to_the_old_ones() {
        let cache = DualCache::new(2 * PAGE, 2 * PAGE);
        let (pid, node, checksum) = page(0);
        cache.insert(pid, node.clone(), Class::Old);
        assert!(cache.take_young(pid, checksum).is_none());
        cache.insert(pid, node, Class::Young);
        assert!(cache.take_young(pid, checksum + 1).is_none(), "of another node");
        assert!(!cache.has(pid, checksum), "its place has another node by now");
        (10..12).map(page).for_each(|(pid, node, _)| cache.insert(pid, node, Class::Young));
        for first in 20..24 {
            let (pid, node, _) = page(first);
            cache.insert(pid, node, Class::Old);
        }
        assert_eq!(cache.bytes(), (2 * PAGE, 2 * PAGE));
        let (pid, _, checksum) = page(10);
        assert_eq!(cache.take_young(pid, checksum).map(|node| node.pid()), Some(pid));
        let (pid, node, checksum) = page(30);
        cache.offer(pid, node);
        assert!(cache.has(pid, checksum), "there is room for a first read");
        assert_eq!(cache.bytes(), (PAGE, 3 * PAGE));
    }

    #[test]
    fn young_pages_take_back_room_that_old_pages_borrowed() {
        let cache = DualCache::new(2 * PAGE, 2 * PAGE);
        (0..4).map(page).for_each(|(pid, node, _)| cache.insert(pid, node, Class::Old));
        assert_eq!(cache.bytes(), (0, 4 * PAGE));
        (10..13).map(page).for_each(|(pid, node, _)| cache.insert(pid, node, Class::Young));
        assert_eq!(cache.bytes(), (2 * PAGE, 2 * PAGE));
    }

    #[test]
    fn a_large_cache_has_parts_and_a_small_one_is_whole() {
        let parts = |young, old| DualCache::new(young, old).parts.len();
        assert_eq!(parts(0, 1 << 30), 1);
        assert_eq!(parts((2 << 20) - 1, 2 << 20), 1);
        assert_eq!(parts(2 << 20, 2 << 20), 2);
        assert_eq!(parts(7 << 20, 1 << 30), 4);
        assert_eq!(parts(1 << 30, 1 << 30), PARTS_MAX);
        let cache = DualCache::new(64 << 20, 64 << 20);
        for first in 0..100 {
            let (pid, node, checksum) = page(first);
            cache.insert(pid, node, Class::Young);
            assert!(cache.get(pid, checksum, Class::Young).is_some());
        }
        assert_eq!(cache.bytes(), (100 * PAGE, 0));
    }

    #[test]
    fn a_place_is_recent_from_its_second_read_until_others_take_its_slot() {
        let mut recent = Recent::new(8 * PAGE_BYTES);
        assert_eq!(recent.marks.len(), 8);
        let pid = |first| Pid::new(PageFile::Data, first, 1);
        assert!(!recent.note(pid(1)) && recent.note(pid(1)) && recent.note(pid(1)));
        for first in 100..200 {
            recent.note(pid(first));
        }
        assert!(!recent.note(pid(1)));
        assert_eq!([0, 3 * PAGE_BYTES, usize::MAX].map(|bytes| Recent::new(bytes).marks.len()), [1, 4, RECENT_MAX]);
    }
}
