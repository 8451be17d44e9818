//! The dual page cache: a young one for the active partition, an old one for the frozen ones.
//!
//! A page is in one of them at most: a read of a frozen tree moves it from young to old. So a scan of old data never
//! drives out what commits need. Each is a clock: a page that was used since the hand came by last stays for one more
//! round.

use std::collections::HashMap;

use crate::{node::Node, page::Pid};

/// What a page is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The active tree.
    Young,
    /// A frozen tree.
    Old,
}

#[derive(Debug)]
struct Slot {
    pid: Pid,
    node: Node,
    used: bool,
}

/// One clock.
#[derive(Debug, Default)]
struct Clock {
    bytes_max: usize,
    bytes: usize,
    slots: Vec<Option<Slot>>,
    vacant: Vec<usize>,
    places: HashMap<Pid, usize>,
    hand: usize,
}

impl Clock {
    fn get(&mut self, pid: Pid) -> Option<Node> {
        let slot = self.slots[*self.places.get(&pid)?].as_mut().expect("a place holds a page");
        slot.used = true;
        Some(slot.node.clone())
    }

    fn remove(&mut self, pid: Pid) -> Option<Node> {
        let place = self.places.remove(&pid)?;
        let slot = self.slots[place].take().expect("a place holds a page");
        self.vacant.push(place);
        self.bytes -= slot.node.bytes().len();
        Some(slot.node)
    }

    fn insert(&mut self, pid: Pid, node: Node) {
        self.remove(pid);
        let len = node.bytes().len();
        if len > self.bytes_max {
            return;
        }
        while self.bytes + len > self.bytes_max {
            self.evict_one();
        }
        self.bytes += len;
        let slot = Some(Slot { pid, node, used: false });
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
}

/// Both caches.
#[derive(Debug)]
pub(crate) struct DualCache {
    young: Clock,
    old: Clock,
}

impl DualCache {
    pub(crate) fn new(young_bytes_max: usize, old_bytes_max: usize) -> Self {
        let clock = |bytes_max| Clock { bytes_max, ..Clock::default() };
        Self { young: clock(young_bytes_max), old: clock(old_bytes_max) }
    }

    /// The page, and where it was. The parent's checksum tells it from an older page of the same place.
    pub(crate) fn get(&mut self, pid: Pid, checksum: u64, class: Class) -> Option<(Node, Class)> {
        let (node, found) = match self.young.get(pid) {
            Some(node) => (node, Class::Young),
            None => (self.old.get(pid)?, Class::Old),
        };
        if node.checksum() != checksum {
            self.remove(pid);
            return None;
        }
        if (found, class) == (Class::Young, Class::Old) {
            self.young.remove(pid);
            self.old.insert(pid, node.clone());
        }
        Some((node, found))
    }

    pub(crate) fn insert(&mut self, pid: Pid, node: Node, class: Class) {
        let (this, other) = match class {
            Class::Young => (&mut self.young, &mut self.old),
            Class::Old => (&mut self.old, &mut self.young),
        };
        other.remove(pid);
        this.insert(pid, node);
    }

    pub(crate) fn remove(&mut self, pid: Pid) {
        self.young.remove(pid);
        self.old.remove(pid);
    }

    /// Bytes in the young and in the old cache.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.young.bytes, self.old.bytes)
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::{Stamp, Version};

    use super::*;
    use crate::{
        node::{Body, Draft, LeafRecord},
        page::PageFile,
    };

    fn page(first: u64) -> (Pid, Node, u64) {
        let key = first.to_be_bytes();
        let record = LeafRecord { key: &key, stamp: Stamp::new(0, 1), body: Body::Tombstone };
        let pid = Pid::new(PageFile::Data, first, 1);
        let (node, child) = Draft::leaf(Version(1), &[record]).place(pid);
        (pid, node, child.checksum)
    }

    #[test]
    fn a_page_is_in_one_cache_only_and_a_frozen_read_moves_it() {
        let mut cache = DualCache::new(4 * 4096, 4 * 4096);
        let (pid, node, checksum) = page(1);
        cache.insert(pid, node, Class::Young);
        assert_eq!(cache.bytes(), (4096, 0));
        assert_eq!(cache.get(pid, checksum, Class::Old).map(|found| found.1), Some(Class::Young));
        assert_eq!(cache.bytes(), (0, 4096));
        assert_eq!(cache.get(pid, checksum, Class::Young).map(|found| found.1), Some(Class::Old));
        assert_eq!(cache.bytes(), (0, 4096));
        assert!(cache.get(pid, checksum + 1, Class::Young).is_none());
        assert_eq!(cache.bytes(), (0, 0));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let mut cache = DualCache::new(4 * 4096, 0);
        let (hot, node, checksum) = page(0);
        cache.insert(hot, node, Class::Young);
        for first in 1..50 {
            assert!(cache.get(hot, checksum, Class::Young).is_some());
            let (pid, node, _) = page(first);
            cache.insert(pid, node, Class::Young);
            assert!(cache.bytes().0 <= 4 * 4096);
        }
    }
}
