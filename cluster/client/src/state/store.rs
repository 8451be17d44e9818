//! The values of keys by intervals of versions, within a bound of bytes.
//!
//! **Invariants.** Each interval was true of the lineage when it was added, and rollbacks cut what
//! they undo. An open interval holds up to the frontier. To keep that, each version that moves the
//! frontier closes the intervals of all keys that it wrote: those that it names, or all if they are
//! unknown.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_types::Stamp;

use super::{
    lineage::{Lineage, Place},
    metrics::{Counters, count},
    options::random,
    window::Window,
};

/// The writes of a version or batch: each key with its last value, or `None` if it is deleted.
pub type Writes = BTreeMap<Bytes, Option<Bytes>>;

/// The writes of a version, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Written<'a> {
    Unknown,
    /// The keys alone.
    Keys(&'a Writes),
    Values(&'a Writes),
}

impl<'a> Written<'a> {
    fn writes(self) -> Option<&'a Writes> {
        match self {
            Self::Unknown => None,
            Self::Keys(writes) | Self::Values(writes) => Some(writes),
        }
    }
}

/// Most intervals of one key. Beyond that, the oldest is dropped.
const INTERVALS_MAX: usize = 4;
/// Memory that an interval takes besides its key and value, in bytes: its part of the lists and
/// maps, and of what the allocator adds.
pub(super) const ENTRY_BYTES: usize = 384;

/// The end of an interval that holds up to the frontier, also when the frontier moves.
const OPEN: u64 = u64::MAX;

/// A key had a value in these versions of the present lineage. A value begins with the version of
/// its last change. The absence of one may have begun earlier.
#[derive(Clone, Debug)]
struct Interval {
    from: u64,
    to: u64,
    value: Option<Bytes>,
}

impl Interval {
    fn meets(&self, other: &Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    /// Whether both can be true, although they meet.
    fn agrees(&self, other: &Self) -> bool {
        self.value == other.value && (self.value.is_none() || self.from == other.from)
    }
}

/// The intervals of a key, in ascending order. No two meet.
#[derive(Debug)]
struct Holding {
    key: Bytes,
    /// When it was used last, in ticks of the store.
    used: u64,
    intervals: Vec<Interval>,
}

impl Holding {
    fn bytes(&self) -> usize {
        let value = |interval: &Interval| interval.value.as_ref().map_or(0, Bytes::len);
        self.intervals.iter().map(|interval| ENTRY_BYTES + self.key.len() + value(interval)).sum()
    }

    fn is_open(&self) -> bool {
        self.intervals.last().is_some_and(|last| last.to == OPEN)
    }
}

/// A deliberate bug, which a test puts in and must then find.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Answers from epochs that a rollback ended are admitted.
    DeadFills,
    /// The frontier moves over versions whose changes are unknown.
    SkippedFrontier,
    /// A rollback reopens intervals that ended below its base.
    ReopenedWrongly,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Store {
    line: Lineage,
    window: Window,
    held: Vec<Holding>,
    /// The places of keys in the list.
    places: HashMap<Bytes, usize>,
    /// All places, by the last use.
    recent: BTreeMap<u64, usize>,
    ticks: u64,
    bytes: usize,
    bytes_max: usize,
    /// Number of keys with an open interval.
    opened: usize,
    counts: Arc<Counters>,
    #[cfg(test)]
    pub planted: Option<Bug>,
}

impl Store {
    pub(super) fn new(bytes_max: usize, counts: Arc<Counters>) -> Self {
        Self {
            line: Lineage::default(),
            window: Window::default(),
            held: Vec::new(),
            places: HashMap::new(),
            recent: BTreeMap::new(),
            ticks: 0,
            bytes: 0,
            bytes_max,
            opened: 0,
            counts,
            #[cfg(test)]
            planted: None,
        }
    }

    #[cfg(test)]
    fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    pub(super) fn line(&self) -> &Lineage {
        &self.line
    }

    fn clear(&mut self) {
        self.held = Vec::new();
        self.places = HashMap::new();
        self.recent = BTreeMap::new();
        (self.bytes, self.opened) = (0, 0);
    }

    /// Drops everything, and begins at a version. Older views read through from then on.
    pub(super) fn begin(&mut self, at: Stamp, boundary: u64) {
        self.clear();
        self.line.begin(at, boundary);
        self.window.forget(at.version.0);
    }

    /// Drops everything.
    pub(super) fn end(&mut self) {
        self.clear();
        self.line.end();
        self.window.forget(0);
    }

    /// The value of a key in a version; `None` if it is unknown. The stamp must certainly name a
    /// version: the lineage knows it, or the ledger has confirmed it (see [`Lineage::confirms`]).
    pub(super) fn get(&mut self, key: &[u8], at: Place, confirmed: u64) -> Option<Option<Bytes>> {
        let index = *self.places.get(key)?;
        let certain = self.line.names(at.stamp) || self.line.confirms(at.stamp, confirmed);
        if !certain || !self.line.stands(at) {
            return None;
        }
        let version = at.stamp.version.0;
        let has = |interval: &&Interval| interval.from <= version && version <= interval.to;
        let value = self.held[index].intervals.iter().find(has)?.value.clone();
        self.touch(index);
        Some(value)
    }

    /// Adds what a read of a version gave: a value with the version of its last change, or `None`.
    /// Returns whether it is held. An answer about a version that does not stand, or that is above
    /// the frontier, is refused.
    ///
    /// # Errors
    /// Names the contradiction to what is held.
    pub(super) fn fill(
        &mut self,
        key: &[u8],
        at: Place,
        value: Option<Bytes>,
        changed: u64,
    ) -> Result<bool, &'static str> {
        #[cfg(test)]
        let at = self.revived(at);
        if !self.line.stands(at) {
            return Ok(false);
        }
        let version = at.stamp.version.0;
        let from = if value.is_some() { changed } else { version };
        if from > version {
            return Err("a value was changed after the version that has it");
        }
        let to = if self.window.is_untouched(key, version) { OPEN } else { version };
        self.put(key, Interval { from, to, value })?;
        Ok(true)
    }

    #[cfg(test)]
    fn revived(&self, mut at: Place) -> Place {
        if let Some(frontier) = self.line.frontier().filter(|_| self.has(Bug::DeadFills))
            && at == self.line.place(at.stamp)
            && at.stamp.version <= frontier.version
        {
            at.stamp.epoch = frontier.epoch;
        }
        at
    }

    /// Moves the frontier to a version. Returns whether it moved. A version that is not above it
    /// changes nothing. If versions lie between, it is taken only with `gaps`, and their changes
    /// are unknown.
    ///
    /// # Errors
    /// Names the contradiction to what is held.
    pub(super) fn commit(&mut self, at: Stamp, written: Written<'_>, gaps: bool) -> Result<bool, &'static str> {
        if !self.line.is_above(at) {
            return Ok(false);
        }
        let before = self.line.frontier();
        let next = before.is_some_and(|it| it.epoch == at.epoch && it.version.0.checked_add(1) == Some(at.version.0));
        match before {
            _ if !next && !gaps => return Ok(false),
            Some(before) if before.epoch == at.epoch => {
                if !next || written.writes().is_none() {
                    self.skip(before.version.0, at.version.0);
                }
            }
            _ => self.begin(at, self.line.boundary()),
        }
        self.line.advance(at);
        let Some(writes) = written.writes() else { return Ok(true) };
        if next {
            let keys: HashSet<Bytes> = writes.keys().map(|key| Bytes::copy_from_slice(key)).collect();
            self.window.add(at.version.0, keys);
        }
        for (key, value) in writes {
            if let Some(index) = self.places.get(key) {
                self.change_at(*index, |held| close(held, at.version.0 - 1));
            }
            if matches!(written, Written::Values(_)) {
                self.put(key, Interval { from: at.version.0, to: OPEN, value: copied(value) })?;
            }
        }
        Ok(true)
    }

    /// Adds the writes of a version that the frontier has reached. The stream may have brought only
    /// its keys.
    ///
    /// # Errors
    /// Names the contradiction to what is held.
    pub(super) fn late(&mut self, at: Stamp, writes: &Writes) -> Result<(), &'static str> {
        if !self.line.stands(self.line.place(at)) || !self.line.names(at) {
            return Ok(());
        }
        let version = at.version.0;
        for (key, value) in writes {
            let to = if self.window.is_untouched(key, version) { OPEN } else { version };
            self.put(key, Interval { from: version, to, value: copied(value) })?;
        }
        Ok(())
    }

    /// Ends all that is open at the frontier so far. It stays true up to there.
    fn skip(&mut self, before: u64, floor: u64) {
        #[cfg(test)]
        if self.has(Bug::SkippedFrontier) {
            return;
        }
        count(&self.counts.unknown, 1);
        self.window.forget(floor);
        if self.opened > 0 {
            self.change_all(|held| close(held, before));
        }
    }

    /// Follows a rollback: `head` is its base, in the epoch that begins. Intervals that hold at the
    /// base hold at head again, since everything that closed them is undone. Returns whether the
    /// frontier moved; a rollback that is known already changes nothing.
    pub(super) fn roll_back(&mut self, head: Stamp) -> bool {
        match self.line.frontier() {
            Some(frontier) if head.epoch <= frontier.epoch => return false,
            Some(frontier) if head.epoch == frontier.epoch.next() && head.version <= frontier.version => {}
            // Rollbacks or commits in between are unknown.
            _ => {
                self.begin(head, self.line.boundary());
                return true;
            }
        }
        self.line.roll_back(head);
        self.window.roll_back(head.version.0);
        #[cfg(test)]
        let wrongly = self.has(Bug::ReopenedWrongly);
        #[cfg(not(test))]
        let wrongly = false;
        self.change_all(|held| {
            held.retain(|interval| interval.from <= head.version.0);
            if let Some(last) = held.last_mut().filter(|last| last.to >= head.version.0 || wrongly) {
                last.to = OPEN;
            }
        });
        true
    }

    /// Follows a prune: versions below the boundary are no longer served.
    pub(super) fn prune(&mut self, boundary: u64) {
        self.line.prune(boundary);
        self.change_all(|held| held.retain(|interval| interval.to >= boundary));
    }

    /// Adds an interval to those of its key, and joins it with those that it meets.
    ///
    /// # Errors
    /// If it contradicts one of them.
    fn put(&mut self, key: &[u8], added: Interval) -> Result<(), &'static str> {
        let mut agree = true;
        let index = self.place_of(key);
        self.change_at(index, |held| {
            let mut joined = added;
            held.retain(|one| {
                if !one.meets(&joined) {
                    return true;
                }
                agree &= one.agrees(&joined);
                (joined.from, joined.to) = (joined.from.min(one.from), joined.to.max(one.to));
                false
            });
            held.insert(held.partition_point(|one| one.from < joined.from), joined);
            if held.len() > INTERVALS_MAX {
                held.remove(0);
            }
        });
        self.touch(index);
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.recent.first_key_value()
        {
            self.change_at(*oldest, Vec::clear);
        }
        if agree { Ok(()) } else { Err("a key has two values, or two last changes, in one version") }
    }

    /// The place of a key, which is added if it is not there.
    fn place_of(&mut self, key: &[u8]) -> usize {
        if let Some(index) = self.places.get(key) {
            return *index;
        }
        let (key, index) = (Bytes::copy_from_slice(key), self.held.len());
        self.ticks += 1;
        self.held.push(Holding { key: key.clone(), used: self.ticks, intervals: Vec::new() });
        self.places.insert(key, index);
        self.recent.insert(self.ticks, index);
        index
    }

    /// Notes that a key was used.
    fn touch(&mut self, index: usize) {
        self.ticks += 1;
        self.recent.remove(&self.held[index].used);
        self.held[index].used = self.ticks;
        self.recent.insert(self.ticks, index);
    }

    fn change_all(&mut self, mut to: impl FnMut(&mut Vec<Interval>)) {
        // If the key at a place is dropped, the last one takes the place.
        for index in (0..self.held.len()).rev() {
            self.change_at(index, &mut to);
        }
    }

    /// Changes the intervals of a key, and drops a key without any.
    fn change_at(&mut self, index: usize, to: impl FnOnce(&mut Vec<Interval>)) {
        let held = &mut self.held[index];
        self.bytes -= held.bytes();
        self.opened -= usize::from(held.is_open());
        to(&mut held.intervals);
        held.intervals.shrink_to_fit();
        self.bytes += held.bytes();
        self.opened += usize::from(held.is_open());
        if !held.intervals.is_empty() {
            return;
        }
        let gone = self.held.swap_remove(index);
        self.places.remove(&gone.key);
        self.recent.remove(&gone.used);
        if let Some(moved) = self.held.get(index) {
            self.places.insert(moved.key.clone(), index);
            self.recent.insert(moved.used, index);
        }
    }

    /// Picks keys at random, each as likely as any other, and gives those that are open, with their
    /// values at the frontier.
    pub(super) fn sample(&self, count: usize) -> Vec<(Bytes, Option<Bytes>)> {
        let (mut seen, mut picked) = (HashSet::new(), Vec::new());
        for _ in 0..4 * count {
            if picked.len() == count || seen.len() == self.held.len() {
                break;
            }
            let index = usize::try_from(random() % self.held.len() as u64).unwrap_or(0);
            let held = &self.held[index];
            if seen.insert(index) && held.is_open() {
                picked.extend(held.intervals.last().map(|last| (held.key.clone(), last.value.clone())));
            }
        }
        picked
    }

    /// The keys and bytes that are held.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.held.len(), self.bytes)
    }

    /// Drops a key.
    #[cfg(test)]
    pub(super) fn forget(&mut self, key: &[u8]) {
        if let Some(index) = self.places.get(key) {
            self.change_at(*index, Vec::clear);
        }
    }

    /// Checks that the lists agree with each other.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.held.len(), self.places.len());
        assert_eq!(self.held.len(), self.recent.len());
        assert_eq!(self.bytes, self.held.iter().map(Holding::bytes).sum::<usize>());
        assert_eq!(self.opened, self.held.iter().filter(|held| held.is_open()).count());
        assert!(self.bytes <= self.bytes_max);
        for (index, held) in self.held.iter().enumerate() {
            assert_eq!((self.places[&held.key], self.recent[&held.used]), (index, index));
            assert!(held.intervals.windows(2).all(|pair| pair[0].to < pair[1].from));
            assert!(!held.intervals.is_empty());
        }
    }
}

/// A slice would keep a whole message in memory.
fn copied(value: &Option<Bytes>) -> Option<Bytes> {
    value.as_deref().map(Bytes::copy_from_slice)
}

/// Ends the open interval with a version.
fn close(held: &mut [Interval], version: u64) {
    if let Some(last) = held.last_mut().filter(|last| last.to == OPEN) {
        last.to = version;
    }
}

#[cfg(test)]
mod tests;
