//! The free map of one page file: which pages are free, and which will be.
//!
//! Invariants: each page is either *used*, *free* or in *limbo*. When a page that a durable
//! superblock refers to is freed, it goes to limbo, with the generation of the first superblock
//! that no longer refers to it. It becomes free when the superblock after that one, or a copy of
//! that one, is durable too. So the state in either slot can always be opened. A page that no
//! superblock referred to is free at once.
//!
//! ```text
//! allocate ──► used ──► limbo (a durable superblock refers to it) ──► free ──► allocate
//!                └────────── no superblock ever referred to it ───────► free
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use coppice_env::bug::{Bug, planted};

/// Shorter ranges are not given back to the file system.
const DISCARD_PAGES_MIN: u64 = 16;
/// Free pages up to 1/`KEPT_SHARE` of the used pages are kept for reuse.
const KEPT_SHARE: u64 = 16;

/// Free pages as maximal ranges, indexed by place and by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeRanges {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl FreeRanges {
    /// Adds a range and joins it with its neighbours. Returns `false`, and adds nothing, if one of
    /// its pages is free already.
    #[must_use]
    pub(crate) fn insert(&mut self, start: u64, len: u64) -> bool {
        let Some(mut end) = start.checked_add(len).filter(|end| *end > start) else { return false };
        let mut start = start;
        if let Some((&before, &before_len)) = self.by_start.range(..end).next_back() {
            if before + before_len > start {
                return false;
            }
            if before + before_len == start {
                self.remove_range(before, before_len);
                start = before;
            }
        }
        if let Some(&after_len) = self.by_start.get(&end) {
            self.remove_range(end, after_len);
            end += after_len;
        }
        self.add_range(start, end - start);
        true
    }

    /// Removes a given range. Returns `false` if part of it is not free.
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some((&before, &before_len)) = self.by_start.range(..=start).next_back() else { return false };
        let (end, before_end) = (start + len, before + before_len);
        if before_end < end {
            return false;
        }
        self.remove_range(before, before_len);
        if before < start {
            self.add_range(before, start - before);
        }
        if end < before_end {
            self.add_range(end, before_end - end);
        }
        true
    }

    /// Takes `len` pages from the shortest range that holds them, the lowest of several.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove_range(start, found);
        if found > len {
            self.add_range(start + len, found - len);
        }
        Some(start)
    }

    /// Keeps only the pages that are also in `other`.
    pub(crate) fn keep_common(&mut self, other: &Self) {
        let mut common = Self::default();
        for (start, len) in std::mem::take(&mut self.by_start) {
            let end = start + len;
            let first = other.by_start.range(..=start).next_back().map_or(start, |(first, _)| *first);
            for (&from, &len) in other.by_start.range(first..end) {
                let (from, to) = (from.max(start), (from + len).min(end));
                if from < to {
                    common.add_range(from, to - from);
                }
            }
        }
        *self = common;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    pub(crate) fn pages(&self) -> u64 {
        self.by_start.values().sum()
    }

    fn add_range(&mut self, start: u64, len: u64) {
        let before = self.by_start.insert(start, len);
        assert!(before.is_none(), "two free ranges begin at page {start}");
        let new = self.by_len.insert((len, start));
        assert!(new, "a free range is indexed by place and by length");
    }

    fn remove_range(&mut self, start: u64, len: u64) {
        let known = self.by_start.remove(&start);
        assert_eq!(known, Some(len), "a range that is taken is free as a whole");
        let known = self.by_len.remove(&(len, start));
        assert!(known, "a free range is indexed by place and by length");
    }
}

/// The largest file, in pages. A place has room for one more bit.
pub(crate) const PAGES_MAX: u64 = 1 << 47;

/// Pages that become free with the superblock after `generation`, or with a copy of that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limbo {
    /// Generation of the first superblock that does not refer to them.
    pub(crate) generation: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// The pages of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// One above the highest page that was ever allocated.
    pub(crate) high: u64,
    pub(crate) free: FreeRanges,
    pub(crate) limbo: VecDeque<Limbo>,
    limbo_pages: u64,
}

impl Space {
    /// A file of this many pages, all used.
    pub(crate) fn used(high: u64) -> Self {
        Self { high, ..Self::default() }
    }

    /// Takes `len` consecutive pages, at the end of the file if no gap is large enough.
    pub(crate) fn allocate(&mut self, len: u64) -> u64 {
        assert!(len > 0, "an allocation takes pages");
        self.free.take(len).unwrap_or_else(|| {
            let start = self.high;
            self.high += len;
            start
        })
    }

    /// Takes the given pages, as a replay does. Returns `false` if one is in use.
    pub(crate) fn claim(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|end| *end <= PAGES_MAX) else { return false };
        if end > self.high {
            let from = self.high;
            self.high = end;
            if !self.free.insert(from, end - from) {
                return false;
            }
        }
        self.free.take_at(start, len)
    }

    /// Frees pages that no superblock refers to. Returns `false` if one is free already.
    #[must_use]
    pub(crate) fn release(&mut self, start: u64, len: u64) -> bool {
        self.free.insert(start, len)
    }

    /// Puts pages that superblocks below `generation` refer to into limbo.
    pub(crate) fn retire(&mut self, start: u64, len: u64, generation: u64) {
        self.limbo.push_back(Limbo { generation, start, len });
        self.limbo_pages += len;
    }

    /// Reassigns pages after a failed superblock. Those freed since it was begun now wait for
    /// `generation`, the number that the next attempt takes.
    pub(crate) fn reopen(&mut self, generation: u64) {
        let last = self.limbo.back().map_or(0, |last| last.generation);
        assert!(last <= generation + 1, "no page waits for a later superblock than the next");
        let later = self.limbo.iter_mut().rev().take_while(|limbo| limbo.generation > generation);
        later.for_each(|limbo| limbo.generation = generation);
    }

    /// Frees the pages in limbo that neither the superblock `oldest` nor a later one refers to.
    /// Pinned superblocks count, too. Returns `false` if one is free already.
    #[must_use]
    pub(crate) fn settle_limbo(&mut self, oldest: u64) -> bool {
        let mut sound = true;
        while let Some(first) = self
            .limbo
            .front()
            .copied()
            .filter(|first| first.generation <= oldest + u64::from(planted(Bug::PageReusedEarly)))
        {
            self.limbo.pop_front();
            assert!(first.len <= self.limbo_pages, "the pages in limbo are counted");
            self.limbo_pages -= first.len;
            sound &= self.free.insert(first.start, first.len);
        }
        assert!(self.limbo_pages == 0 || !self.limbo.is_empty(), "only pages in limbo are counted as such");
        sound
    }

    /// Chooses free ranges to give back to the file system, highest first. `discarded` has the
    /// ranges given back before and takes the new ones. Short ranges stay, and so do pages that are
    /// likely to be reused soon: a share of the used pages ([`KEPT_SHARE`]), but at least
    /// `kept_min`.
    pub(crate) fn to_discard(&self, discarded: &mut FreeRanges, kept_min: u64) -> Vec<(u64, u64)> {
        discarded.keep_common(&self.free);
        let (free, used) = (self.free.pages(), self.used_pages());
        let excess = (free - discarded.pages()).saturating_sub((used / KEPT_SHARE).max(kept_min));
        let (mut found, mut pages) = (Vec::new(), 0);
        for (&start, &len) in self.free.by_start.iter().rev().filter(|(_, len)| **len >= DISCARD_PAGES_MIN) {
            if pages >= excess {
                break;
            }
            let known: u64 = discarded.by_start.range(start..start + len).map(|(_, len)| len).sum();
            if known < len {
                pages += len - known;
                found.push((start, len));
            }
        }
        for (start, len) in &found {
            let within: Vec<(u64, u64)> =
                discarded.by_start.range(start..&(start + len)).map(|(s, l)| (*s, *l)).collect();
            within.iter().for_each(|(start, len)| discarded.remove_range(*start, *len));
            discarded.add_range(*start, *len);
        }
        found
    }

    /// Whether an engine can reach this state before the superblock after `generation`.
    pub(crate) fn is_sound(&self, generation: u64) -> bool {
        let waits = self.limbo.iter().map(|limbo| limbo.generation);
        let held = self.free.pages().checked_add(self.limbo_pages);
        waits.is_sorted()
            && self.limbo.back().is_none_or(|last| last.generation <= generation + 1)
            && held.is_some_and(|held| held <= self.high)
            && self.high <= PAGES_MAX
    }

    pub(crate) fn limbo_pages(&self) -> u64 {
        self.limbo_pages
    }

    pub(crate) fn used_pages(&self) -> u64 {
        self.high - self.free.pages() - self.limbo_pages()
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng};

    use super::*;

    #[test]
    fn neighbours_join_and_the_best_fit_is_taken() {
        let mut free = FreeRanges::default();
        assert!(free.insert(0, 4) && free.insert(10, 2) && free.insert(6, 4));
        assert_eq!(free.iter().collect::<Vec<_>>(), [(0, 4), (6, 6)]);
        assert_eq!(free.take(3), Some(0));
        assert_eq!(free.take(3), Some(6));
        assert_eq!(free.take(4), None);
        assert_eq!(free.iter().collect::<Vec<_>>(), [(3, 1), (9, 3)]);
        assert!(free.take_at(10, 1));
        assert!(!free.take_at(10, 1));
        assert!(!free.take_at(9, 2));
        assert_eq!(free.iter().collect::<Vec<_>>(), [(3, 1), (9, 1), (11, 1)]);
    }

    #[test]
    fn what_is_free_in_excess_is_discarded_once_until_it_was_used_again() {
        let mut space = Space::default();
        assert_eq!(space.allocate(1000), 0);
        assert!(space.release(100, 900) && space.release(10, 15) && space.release(40, 20));
        let mut discarded = FreeRanges::default();
        assert_eq!(space.to_discard(&mut discarded, 5000), []);
        // A sixteenth of the 65 pages in use is kept; whole ranges are discarded.
        assert_eq!(space.to_discard(&mut discarded, 0), [(100, 900), (40, 20)]);
        assert_eq!(space.to_discard(&mut discarded, 0), []);
        assert_eq!((space.allocate(10), space.allocate(300)), (10, 100));
        assert_eq!(space.to_discard(&mut discarded, 0), []);
        assert!(space.release(100, 300));
        assert_eq!(space.to_discard(&mut discarded, 0), [(100, 900)]);
        assert_eq!(discarded.pages(), 920);
    }

    #[test]
    fn a_double_free_is_refused() {
        let mut free = FreeRanges::default();
        assert!(free.insert(4, 4));
        for (start, len) in [(6, 1), (4, 4), (0, 5), (7, 9), (9, 0), (u64::MAX, 1)] {
            assert!(!free.insert(start, len), "{start} {len}");
        }
        assert_eq!(free.iter().collect::<Vec<_>>(), [(4, 4)]);
    }

    #[test]
    fn retired_pages_wait_for_the_superblock_after() {
        let mut space = Space::default();
        assert_eq!((space.allocate(2), space.allocate(1)), (0, 2));
        space.retire(0, 2, 5);
        assert!(space.settle_limbo(4));
        assert_eq!(space.allocate(1), 3);
        assert!(space.settle_limbo(5));
        assert_eq!(space.allocate(1), 0);
    }

    #[test]
    fn claims_repeat_what_allocations_did() {
        let mut space = Space::default();
        assert!(space.claim(5, 2));
        assert_eq!(space.high, 7);
        assert!(!space.claim(6, 1));
        assert!(space.claim(0, 5));
        assert!(space.claim(7, 1));
    }

    #[test]
    fn pages_freed_during_a_failed_superblock_wait_for_its_next_attempt() {
        let mut space = Space::default();
        assert_eq!(space.allocate(3), 0);
        space.retire(0, 1, 5);
        space.retire(1, 1, 6);
        space.retire(2, 1, 6);
        // The superblock 5 failed and is written again; the later two pages are free with it, too.
        space.reopen(5);
        assert!(space.limbo.iter().all(|limbo| limbo.generation == 5));
        assert!(space.settle_limbo(5));
        assert_eq!((space.limbo_pages(), space.used_pages()), (0, 0));
    }

    #[test]
    fn pages_beyond_the_largest_file_are_not_claimed() {
        let mut space = Space::default();
        assert!(!space.claim(PAGES_MAX, 1) && !space.claim(PAGES_MAX - 1, 2) && !space.claim(u64::MAX, 1));
        assert_eq!(space, Space::default());
        assert!(space.claim(PAGES_MAX - 1, 1));
    }

    #[test]
    fn common_pages_are_those_of_both_sets() {
        let ranges = |ranges: &[(u64, u64)]| {
            let mut free = FreeRanges::default();
            assert!(ranges.iter().all(|(start, len)| free.insert(*start, *len)));
            free
        };
        let mut common = ranges(&[(0, 10), (20, 5), (40, 1)]);
        common.keep_common(&ranges(&[(2, 3), (8, 14), (24, 10)]));
        assert_eq!(common.iter().collect::<Vec<_>>(), [(2, 3), (8, 2), (20, 2), (24, 1)]);
        common.keep_common(&FreeRanges::default());
        assert_eq!(common, FreeRanges::default());
    }

    #[test]
    fn a_space_with_more_unused_pages_than_it_has_is_unsound() {
        let mut space = Space::used(4);
        assert!(space.release(0, 2));
        space.retire(2, 2, 7);
        assert!(space.is_sound(6) && !space.is_sound(5), "it waits for the superblock after the last at most");
        space.retire(3, 1, 7);
        assert!(!space.is_sound(6));
    }

    /// Random calls on ranges and on a plain set of pages.
    #[test]
    fn ranges_have_the_pages_of_a_plain_set() {
        for seed in 1..=30 {
            let mut rng = SimRng::new(seed);
            let (mut ranges, mut pages) = (FreeRanges::default(), BTreeSet::new());
            for _ in 0..200 {
                let (start, len) = (rng.below(60), 1 + rng.below(6));
                let these = start..start + len;
                match rng.below(4) {
                    0 | 1 => {
                        let fits = these.clone().all(|page| !pages.contains(&page));
                        assert_eq!(ranges.insert(start, len), fits);
                        pages.extend(these.filter(|_| fits));
                    }
                    2 => {
                        let are_free = these.clone().all(|page| pages.contains(&page));
                        assert_eq!(ranges.take_at(start, len), are_free);
                        pages.retain(|page| !(are_free && these.contains(page)));
                    }
                    _ => {
                        let taken = ranges.take(len);
                        let some = |first: &u64| (*first..*first + len).all(|page| pages.contains(&page));
                        assert_eq!(taken.is_some(), pages.iter().any(some));
                        let taken = taken.map_or(0..0, |first| first..first + len);
                        assert!(taken.clone().all(|page| pages.remove(&page)), "they were free");
                    }
                }
                let listed: Vec<u64> = ranges.iter().flat_map(|(start, len)| start..start + len).collect();
                assert!(listed.iter().eq(&pages), "seed {seed}: {listed:?}, not {pages:?}");
                assert_eq!(ranges.pages(), pages.len() as u64);
                let ends: Vec<(u64, u64)> = ranges.iter().map(|(start, len)| (start, start + len)).collect();
                assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "neighbours are joined: {ends:?}");
                let by_len: Vec<(u64, u64)> = ranges.by_len.iter().map(|(len, start)| (*start, *len)).collect();
                assert!(by_len.len() == ends.len() && by_len.iter().all(|pair| ranges.iter().any(|it| it == *pair)));
            }
        }
    }

    #[test]
    fn ranges_beyond_the_last_number_and_of_no_page_are_refused() {
        let mut free = FreeRanges::default();
        assert!(!free.insert(5, 0) && !free.insert(u64::MAX, 1) && !free.insert(1, u64::MAX));
        assert_eq!((free.pages(), free.take(1)), (0, None));
        assert!(!free.take_at(0, 1));
    }
}
