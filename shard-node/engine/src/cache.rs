//! The dual page cache: a young one for the active partition, an old one for the frozen ones.
//!
//! A page is in one of them at most: a read of a frozen tree moves it from young to old. So a scan of old data never
//! drives out what commits need. Each is a clock: a page that was used since the hand came by last stays for one more
//! round. Both are cut into parts by place, each behind a lock of its own, so that readers seldom wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    list::MerkleList,
    node::{Base, Node},
    page::{Pid, PlaceMap},
};

/// What a page is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The active tree.
    Young,
    /// A frozen tree.
    Old,
}

/// What an item takes beside its bytes: its slot, its place in the map, the head of its allocation, and what of these is vacant.
const ITEM_BYTES: usize = 144;

/// What a clock keeps.
pub(crate) trait Cached {
    /// Bytes of it that count in the clock's budget.
    fn size_bytes(&self) -> usize;
}

impl Cached for Node {
    fn size_bytes(&self) -> usize {
        self.bytes().len() + self.base().map_or(0, Base::size_bytes)
    }
}

impl Cached for MerkleList {
    fn size_bytes(&self) -> usize {
        Self::size_bytes(self)
    }
}

#[derive(Debug)]
struct Slot<T> {
    pid: Pid,
    checksum: u64,
    item: T,
    used: bool,
}

/// A cache of a bounded number of bytes. Items are found by place, and are believed if the checksum of the node there
/// is the expected one: the place may have had another.
#[derive(Debug)]
pub(crate) struct Clock<T> {
    bytes_max: usize,
    bytes: usize,
    slots: Vec<Option<Slot<T>>>,
    vacant: Vec<usize>,
    places: PlaceMap<Pid, usize>,
    hand: usize,
}

impl<T: Cached> Clock<T> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (slots, vacant) = (Vec::new(), Vec::new());
        Self { bytes_max, bytes: 0, slots, vacant, places: PlaceMap::default(), hand: 0 }
    }

    pub(crate) fn peek(&self, pid: Pid, checksum: u64) -> Option<&T> {
        let slot = self.slots[*self.places.get(&pid)?].as_ref().expect("a place holds an item");
        (slot.checksum == checksum).then_some(&slot.item)
    }

    /// The item. One of an older node of the same place is removed.
    fn get(&mut self, pid: Pid, checksum: u64) -> Option<&T> {
        let place = *self.places.get(&pid)?;
        if self.slots[place].as_ref().is_some_and(|slot| slot.checksum != checksum) {
            self.remove(pid);
            return None;
        }
        let slot = self.slots[place].as_mut().expect("a place holds an item");
        slot.used = true;
        Some(&slot.item)
    }

    /// Takes the item out.
    pub(crate) fn take(&mut self, pid: Pid, checksum: u64) -> Option<T> {
        self.remove(pid).filter(|slot| slot.checksum == checksum).map(|slot| slot.item)
    }

    fn remove(&mut self, pid: Pid) -> Option<Slot<T>> {
        let place = self.places.remove(&pid)?;
        let slot = self.slots[place].take().expect("a place holds an item");
        self.vacant.push(place);
        self.bytes -= slot.item.size_bytes() + ITEM_BYTES;
        Some(slot)
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        self.remove(pid);
    }

    pub(crate) fn insert(&mut self, pid: Pid, checksum: u64, item: T) {
        self.remove(pid);
        let len = item.size_bytes() + ITEM_BYTES;
        if len > self.bytes_max {
            return;
        }
        while self.bytes + len > self.bytes_max {
            self.evict_one();
        }
        self.bytes += len;
        let slot = Some(Slot { pid, checksum, item, used: false });
        let place = match self.vacant.pop() {
            Some(place) => {
                self.slots[place] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.places.insert(pid, place);
    }

    fn evict_one(&mut self) {
        assert!(self.bytes > 0, "an empty cache has room");
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[self.hand] {
                Some(slot) if slot.used => slot.used = false,
                Some(slot) => {
                    let pid = slot.pid;
                    self.remove(pid);
                    return;
                }
                None => {}
            }
        }
    }

    /// Bytes of all items.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }
}

#[derive(Debug)]
struct Part {
    young: Clock<Node>,
    old: Clock<Node>,
}

/// Most parts; a power of two.
const PARTS_MAX: usize = 16;
/// Less than this is not cut: pages of a part compete for its bytes alone.
const PART_BYTES_MIN: usize = 1 << 20;

/// Both caches.
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
        let part = |_| Part { young: Clock::new(young_bytes_max / parts), old: Clock::new(old_bytes_max / parts) };
        Self { parts: (0..parts).map(part).map(Mutex::new).collect() }
    }

    fn part(&self, pid: Pid) -> MutexGuard<'_, Part> {
        // Spans are neighbours, and patches of a page, so the lowest bits of their places spread them.
        let place = pid.first() + u64::from(pid.slot().unwrap_or(0));
        let part = &self.parts[place as usize & (self.parts.len() - 1)];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page, and where it was. The parent's checksum tells it from an older page of the same place.
    pub(crate) fn get(&self, pid: Pid, checksum: u64, class: Class) -> Option<(Node, Class)> {
        let part = &mut *self.part(pid);
        if let Some(node) = part.old.get(pid, checksum) {
            return Some((node.clone(), Class::Old));
        }
        let node = part.young.get(pid, checksum)?.clone();
        if class == Class::Old {
            part.young.remove(pid);
            part.old.insert(pid, checksum, node.clone());
        }
        Some((node, Class::Young))
    }

    pub(crate) fn insert(&self, pid: Pid, node: Node, class: Class) {
        let part = &mut *self.part(pid);
        let (this, other) = match class {
            Class::Young => (&mut part.young, &mut part.old),
            Class::Old => (&mut part.old, &mut part.young),
        };
        other.remove(pid);
        this.insert(pid, node.checksum(), node);
    }

    pub(crate) fn remove(&self, pid: Pid) {
        let part = &mut *self.part(pid);
        part.young.remove(pid);
        part.old.remove(pid);
    }

    /// Removes a page of the active tree that later versions of it seldom need.
    pub(crate) fn remove_young(&self, pid: Pid) {
        self.part(pid).young.remove(pid);
    }

    /// Bytes in the young and in the old cache.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = |part: &Mutex<Part>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            (part.young.bytes, part.old.bytes)
        };
        self.parts.iter().map(bytes).fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::{Stamp, Version};

    use super::*;
    use crate::{
        node::{Body, Draft, HashedRecord, LeafRecord},
        page::PageFile,
    };

    const PAGE: usize = 4096 + ITEM_BYTES;

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
}
