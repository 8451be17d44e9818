//! A cache of bounded size that evicts by the clock algorithm.

use std::hint::black_box;

use crate::place::page::{Pid, PlaceMap};

/// Overhead of an item: its slot, its place in the map and the head of its allocation, including
/// unused capacity.
pub(crate) const ITEM_BYTES: usize = 144;

/// An item of a clock.
pub(crate) trait Cached {
    /// The bytes that count towards the clock's budget.
    fn size_bytes(&self) -> usize;
}

#[derive(Debug)]
struct Slot<T> {
    pid: Pid,
    checksum: u64,
    item: T,
    used: bool,
}

/// A cache with a bounded number of bytes. Items are found by place, and are valid only if their
/// node's checksum is the expected one, since places are reused.
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
        let slot = self.slots[*self.places.get(&pid)?].as_ref()?;
        (slot.checksum == checksum).then_some(&slot.item)
    }

    /// Loads the clocks' items at these places into the processor's caches. All places are looked
    /// up before the first slot is read, so the memory accesses overlap.
    pub(crate) fn load<'t>(wanted: impl Iterator<Item = (&'t Self, Pid)>)
    where
        T: 't,
    {
        let slot = |(clock, pid): (&'t Self, Pid)| Some(&clock.slots[*clock.places.get(&pid)?]);
        let slots: Vec<&Option<Slot<T>>> = wanted.filter_map(slot).collect();
        black_box(slots.into_iter().flatten().map(|slot| slot.item.size_bytes()).sum::<usize>());
    }

    /// Returns the item. An item of an older node at the same place is removed.
    pub(crate) fn get(&mut self, pid: Pid, checksum: u64) -> Option<&T> {
        let place = self.find(pid, checksum)?;
        self.used(place).map(|item| &*item)
    }

    /// The slot of the item. An item of an older node at the same place is removed.
    pub(crate) fn find(&mut self, pid: Pid, checksum: u64) -> Option<usize> {
        let place = *self.places.get(&pid)?;
        if self.slots[place].as_ref().is_some_and(|slot| slot.checksum != checksum) {
            self.remove(pid);
            return None;
        }
        Some(place)
    }

    /// Marks the item of a slot as used, and returns it. `None` if the slot is vacant.
    pub(crate) fn used(&mut self, place: usize) -> Option<&mut T> {
        let slot = self.slots[place].as_mut()?;
        slot.used = true;
        Some(&mut slot.item)
    }

    /// Removes and returns the item.
    pub(crate) fn take(&mut self, pid: Pid, checksum: u64) -> Option<T> {
        self.remove(pid).filter(|slot| slot.checksum == checksum).map(|slot| slot.item)
    }

    fn remove(&mut self, pid: Pid) -> Option<Slot<T>> {
        let place = self.places.remove(&pid)?;
        let slot = self.slots[place].take();
        assert!(slot.is_some(), "a place in the map holds an item");
        let slot = slot?;
        self.vacant.push(place);
        let len = slot.item.size_bytes() + ITEM_BYTES;
        assert!(self.bytes >= len, "the items of a cache are counted");
        self.bytes -= len;
        Some(slot)
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        self.remove(pid);
    }

    /// Whether an item fits without evicting another one.
    pub(crate) fn has_room(&self, item: &T) -> bool {
        self.bytes + item.size_bytes() + ITEM_BYTES <= self.bytes_max
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
        let before = self.places.insert(pid, place);
        assert!(before.is_none(), "{pid:?} is cached once");
        assert!(self.bytes <= self.bytes_max, "a cache stays within its budget");
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

    /// Changes the budget.
    pub(crate) fn bound(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        while self.bytes > bytes_max {
            self.evict_one();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::page::PageFile;

    #[derive(Debug, PartialEq, Eq)]
    struct Item(usize);

    impl Cached for Item {
        fn size_bytes(&self) -> usize {
            self.0
        }
    }

    fn pid(page: u64) -> Pid {
        Pid::new(PageFile::Data, page, 1)
    }

    /// A cache with room for this many items of 100 bytes, filled with them.
    fn full(items: u64) -> Clock<Item> {
        let mut clock = Clock::new(items as usize * (100 + ITEM_BYTES));
        (0..items).for_each(|page| clock.insert(pid(page), page, Item(100)));
        assert_eq!(clock.bytes(), clock.bytes_max);
        clock
    }

    fn pages(clock: &Clock<Item>) -> Vec<u64> {
        (0..20).filter(|page| clock.peek(pid(*page), *page).is_some()).collect()
    }

    #[test]
    fn an_item_of_an_older_node_at_its_place_is_removed_when_it_is_asked_for() {
        let mut clock = full(2);
        assert_eq!(clock.peek(pid(0), 99), None);
        assert_eq!(pages(&clock), [0, 1], "a peek changes nothing");
        assert_eq!(clock.get(pid(0), 99), None);
        assert_eq!((pages(&clock), clock.bytes()), (vec![1], 100 + ITEM_BYTES));
        assert_eq!((clock.take(pid(1), 99), clock.bytes()), (None, 0));
    }

    #[test]
    fn an_item_replaces_that_of_its_place() {
        let mut clock = full(2);
        clock.insert(pid(0), 7, Item(50));
        assert_eq!((clock.peek(pid(0), 0), clock.peek(pid(0), 7)), (None, Some(&Item(50))));
        assert_eq!(clock.bytes(), 150 + 2 * ITEM_BYTES);
    }

    #[test]
    fn an_item_above_the_budget_is_not_kept_and_evicts_nothing_else() {
        let mut clock = full(2);
        clock.insert(pid(5), 5, Item(clock.bytes_max + 1 - ITEM_BYTES));
        assert_eq!(pages(&clock), [0, 1]);
        clock.insert(pid(0), 0, Item(usize::MAX / 2));
        assert_eq!(pages(&clock), [1], "the item of its place is gone all the same");
        clock.insert(pid(5), 5, Item(clock.bytes_max - ITEM_BYTES));
        assert_eq!(pages(&clock), [5], "it takes all");
    }

    #[test]
    fn an_item_that_was_used_outlives_one_round_of_the_hand() {
        let mut clock = full(4);
        for page in [0, 1, 3] {
            assert!(clock.get(pid(page), page).is_some());
        }
        clock.insert(pid(10), 10, Item(100));
        assert_eq!(pages(&clock), [0, 1, 3, 10]);
        // The uses are spent after the hand has passed.
        (11..15).for_each(|page| clock.insert(pid(page), page, Item(100)));
        assert!(pages(&clock).iter().all(|page| *page >= 10), "{:?}", pages(&clock));
    }

    #[test]
    fn a_smaller_budget_evicts_at_once_and_a_budget_of_nothing_keeps_nothing() {
        let mut clock = full(4);
        assert!(!clock.has_room(&Item(1)));
        clock.bound(2 * (100 + ITEM_BYTES));
        assert_eq!(pages(&clock).len(), 2);
        clock.bound(0);
        assert_eq!((pages(&clock).len(), clock.bytes()), (0, 0));
        clock.insert(pid(0), 0, Item(0));
        assert_eq!(pages(&clock).len(), 0);
    }

    #[test]
    fn slots_of_forgotten_items_are_used_again() {
        let mut clock = full(3);
        for page in 0..100 {
            clock.forget(pid(page));
            clock.insert(pid(page + 3), page + 3, Item(100));
        }
        assert_eq!(clock.slots.len(), 3);
        clock.clear();
        assert_eq!((clock.bytes(), clock.slots.len()), (0, 0));
        clock.insert(pid(1), 1, Item(100));
        assert_eq!(pages(&clock), [1], "it keeps its budget");
    }
}
