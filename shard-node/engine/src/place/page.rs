//! Pages, spans and their names.
//!
//! A node lies in a span of 1 to 4 pages of 4 KiB, or as a patch of such a node in a slot of a
//! shared page. Its [`Pid`] is its place: file, first page, and length or slot in one number. So a
//! read needs no table. A page is written once and not changed while anything refers to it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use super::refs::ValueRef;

pub(crate) const PAGE_BYTES: usize = 4096;
/// The longest span, in pages.
pub(crate) const SPAN_PAGES_MAX: usize = 4;

static ZEROES: [u8; SPAN_PAGES_MAX * PAGE_BYTES] = [0; SPAN_PAGES_MAX * PAGE_BYTES];

/// Zeroed bytes for a span, to be filled by their only owner.
pub(crate) fn zeroed(len_bytes: usize) -> Arc<[u8]> {
    Arc::from(&ZEROES[..len_bytes])
}

/// A file of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PageFile {
    /// Whole inner nodes.
    Index,
    /// Whole leaves.
    Data,
    /// Nodes of both kinds, stored as patches of other nodes, and small whole ones.
    Patches,
}

impl PageFile {
    pub(crate) const ALL: [Self; 3] = [Self::Index, Self::Data, Self::Patches];

    /// Name in the data directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Data => "data",
            Self::Patches => "patches",
        }
    }

    /// The file of whole nodes of a level. Inner nodes and leaves lie apart because they are read
    /// at different rates.
    pub(crate) fn of_level(level: u8) -> Self {
        if level == 0 { Self::Data } else { Self::Index }
    }

    fn number(self) -> u64 {
        match self {
            Self::Index => 1,
            Self::Data => 2,
            Self::Patches => 3,
        }
    }
}

/// Name and place of a node: `file (8 bits) | pages, or slot (8) | first page (48)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pid(u64);

impl Pid {
    /// # Panics
    /// If the length is not 1 to 4 pages, or the page is 2^48 or more.
    pub(crate) fn new(file: PageFile, first: u64, pages: usize) -> Self {
        assert!((1..=SPAN_PAGES_MAX).contains(&pages));
        assert!(first < 1 << 48);
        Self(file.number() << 56 | (pages as u64) << 48 | first)
    }

    /// The place of a node that is stored as a patch.
    ///
    /// # Panics
    /// If the page is 2^48 or more.
    pub(crate) fn of_patch(page: u64, slot: u8) -> Self {
        assert!(page < 1 << 48);
        Self(PageFile::Patches.number() << 56 | u64::from(slot) << 48 | page)
    }

    /// The cache key of a page of shortcuts. No two pages share one, and nothing else has such a
    /// number.
    pub(crate) fn of_shortcuts(at: ValueRef) -> Self {
        const _: () = assert!(PAGE_BYTES >= 1 << 8);
        Self(4 << 56 | u64::from(at.segment) << 24 | u64::from(at.offset) >> 8)
    }

    /// Reads a stored number. `None` if no place has it.
    pub(crate) fn from_u64(number: u64) -> Option<Self> {
        let pages = number >> 48 & 0xff;
        let span = matches!(number >> 56, 1 | 2) && (1..=SPAN_PAGES_MAX as u64).contains(&pages);
        let valid = span || number >> 56 == PageFile::Patches.number();
        valid.then_some(Self(number))
    }

    /// Reads a number that was checked to be a place.
    pub(crate) fn known(number: u64) -> Self {
        Self::from_u64(number).expect("the number of a place was checked")
    }

    pub(crate) fn to_u64(self) -> u64 {
        self.0
    }

    pub(crate) fn file(self) -> PageFile {
        match self.0 >> 56 {
            1 => PageFile::Index,
            2 => PageFile::Data,
            _ => PageFile::Patches,
        }
    }

    pub(crate) fn is_patch(self) -> bool {
        self.file() == PageFile::Patches
    }

    /// First page.
    pub(crate) fn first(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// Number of pages that a read of the node takes.
    pub(crate) fn pages(self) -> u64 {
        if self.is_patch() { 1 } else { self.0 >> 48 & 0xff }
    }

    /// The patch's slot in its page; `None` for a whole node.
    pub(crate) fn slot(self) -> Option<u8> {
        self.is_patch().then_some((self.0 >> 48) as u8)
    }

    /// A number that distributes places over parts. Its lowest bits differ between neighbouring
    /// spans and between the patches of a page, so they spread evenly.
    pub(crate) fn spread(self) -> u64 {
        self.first() + u64::from(self.slot().unwrap_or(0))
    }

    pub(crate) fn len_bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }

    pub(crate) fn offset_bytes(self) -> u64 {
        self.first() * PAGE_BYTES as u64
    }
}

/// A set of places with a few bits for each page. It takes little memory for places that lie near
/// each other.
#[derive(Debug, Default)]
pub(crate) struct PidSet {
    /// The bits, by file and part of the file.
    parts: BTreeMap<(PageFile, u64), Box<[u64; PART_WORDS]>>,
}

const PART_WORDS: usize = 64;
const PART_BITS: u64 = PART_WORDS as u64 * 64;
const SPAN_BITS: u32 = SPAN_PAGES_MAX.ilog2();
const SLOT_BITS: u32 = u8::BITS;

/// Consecutive pages that one or more places of a set take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) pages: u64,
    /// Places of the set in these pages; only patches share a page.
    pub(crate) places: u64,
}

impl PidSet {
    /// The part that covers the place, and the bit in it.
    fn bit(pid: Pid) -> ((PageFile, u64), usize) {
        let number = match pid.slot() {
            Some(slot) => pid.first() << SLOT_BITS | u64::from(slot),
            None => pid.first() << SPAN_BITS | (pid.pages() - 1),
        };
        ((pid.file(), number / PART_BITS), (number % PART_BITS) as usize)
    }

    pub(crate) fn has(&self, pid: Pid) -> bool {
        let (part, bit) = Self::bit(pid);
        self.parts.get(&part).is_some_and(|words| words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// Returns `false` if the set had the place already.
    pub(crate) fn insert(&mut self, pid: Pid) -> bool {
        let (part, bit) = Self::bit(pid);
        let word = &mut self.parts.entry(part).or_insert_with(|| Box::new([0; PART_WORDS]))[bit / 64];
        let before = *word;
        *word |= 1 << (bit % 64);
        *word != before
    }

    pub(crate) fn unite(&mut self, other: Self) {
        for (part, words) in other.parts {
            let own = self.parts.entry(part).or_insert_with(|| Box::new([0; PART_WORDS]));
            own.iter_mut().zip(*words).for_each(|(own, word)| *own |= word);
        }
    }

    /// The places in a file, in order.
    fn of(&self, file: PageFile) -> impl Iterator<Item = Pid> {
        let pid = move |number: u64| match file {
            PageFile::Patches => Pid::of_patch(number >> SLOT_BITS, number as u8),
            PageFile::Index | PageFile::Data => {
                let pages = number % SPAN_PAGES_MAX as u64 + 1;
                Pid::new(file, number >> SPAN_BITS, pages as usize)
            }
        };
        let parts = self.parts.range((file, 0)..=(file, u64::MAX));
        parts.flat_map(move |((_, part), words)| {
            let bits = (0..PART_BITS).filter(|bit| words[*bit as usize / 64] >> (bit % 64) & 1 == 1);
            bits.map(move |bit| pid(part * PART_BITS + bit))
        })
    }

    /// The pages that the set's places in a file take, in order.
    pub(crate) fn spans(&self, file: PageFile) -> impl Iterator<Item = Span> {
        let mut pids = self.of(file).peekable();
        std::iter::from_fn(move || {
            let pid = pids.next()?;
            let mut places = 1;
            while pids.next_if(|other| other.is_patch() && other.first() == pid.first()).is_some() {
                places += 1;
            }
            Some(Span { first: pid.first(), pages: pid.pages(), places })
        })
    }
}

/// A map by places. The engine chooses these numbers itself, so no attacker can force collisions.
pub(crate) type PlaceMap<K, V> = HashMap<K, V, BuildHasherDefault<PlaceHasher>>;
/// A set of places, with the same hasher.
pub(crate) type PlaceSet<K> = HashSet<K, BuildHasherDefault<PlaceHasher>>;

/// A hasher that spreads a place's bits by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The map uses the highest and the lowest bits.
        self.0 ^ self.0 >> 32
    }
}

impl fmt::Debug for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}+{}", self.file().name(), self.first(), self.0 >> 48 & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_its_place() {
        let pid = Pid::new(PageFile::Data, 77, 3);
        assert_eq!((pid.file(), pid.first(), pid.pages()), (PageFile::Data, 77, 3));
        assert_eq!(Pid::from_u64(pid.to_u64()), Some(pid));
        assert_eq!((pid.len_bytes(), pid.offset_bytes()), (12_288, 77 * 4096));
        let pid = Pid::of_patch(77, 0);
        assert_eq!((pid.file(), pid.first(), pid.pages(), pid.slot()), (PageFile::Patches, 77, 1, Some(0)));
        assert_eq!(Pid::from_u64(pid.to_u64()), Some(pid));
    }

    #[test]
    fn numbers_that_are_not_places_are_refused() {
        for number in [0, 1 << 56, 1 << 56 | 5 << 48, 4 << 56 | 1 << 48] {
            assert_eq!(Pid::from_u64(number), None);
        }
    }

    #[test]
    fn a_set_of_places_gives_what_they_take_in_order() {
        let mut set = PidSet::default();
        let far = (1 << 48) - 1;
        let places = [
            Pid::new(PageFile::Data, far, 1),
            Pid::new(PageFile::Data, 3, 4),
            Pid::new(PageFile::Data, 3, 2),
            Pid::new(PageFile::Index, 3, 1),
            Pid::of_patch(9, 255),
            Pid::of_patch(9, 0),
            Pid::of_patch(far, 7),
        ];
        for (at, pid) in places.iter().enumerate() {
            assert!(!set.has(*pid) && set.insert(*pid) && !set.insert(*pid));
            assert!(places.iter().enumerate().all(|(other, pid)| set.has(*pid) == (other <= at)));
        }
        let mut other = PidSet::default();
        other.insert(Pid::of_patch(9, 1));
        set.unite(other);
        let spans = |file| set.spans(file).map(|span| (span.first, span.pages, span.places)).collect::<Vec<_>>();
        assert_eq!(spans(PageFile::Index), [(3, 1, 1)]);
        assert_eq!(spans(PageFile::Data), [(3, 2, 1), (3, 4, 1), (far, 1, 1)]);
        assert_eq!(spans(PageFile::Patches), [(9, 1, 3), (far, 1, 1)]);
    }

    #[test]
    #[should_panic(expected = "contains(&pages)")]
    fn a_span_has_at_most_four_pages() {
        Pid::new(PageFile::Index, 1, 5);
    }

    #[test]
    fn the_file_of_a_whole_node_is_that_of_its_level() {
        assert_eq!([0, 1, 9].map(PageFile::of_level), [PageFile::Data, PageFile::Index, PageFile::Index]);
        assert_eq!(PageFile::ALL.map(PageFile::name), ["index", "data", "patches"]);
    }

    #[test]
    fn a_page_of_shortcuts_has_a_key_that_no_node_and_no_other_page_has() {
        let mut keys = PlaceSet::default();
        for segment in [0, 1, u32::MAX] {
            for page in [0, 1, 2, 1 << 19] {
                let key = Pid::of_shortcuts(ValueRef { segment, offset: 16 + page * PAGE_BYTES as u32 });
                assert!(keys.insert(key), "{segment} {page}");
                assert_eq!(Pid::from_u64(key.to_u64()), None);
            }
        }
    }

    #[test]
    fn neighbouring_places_spread_over_parts() {
        let spans = (0..8).map(|first| Pid::new(PageFile::Data, first, 1));
        let slots = (0..8).map(|slot| Pid::of_patch(9, slot));
        for pids in [spans.collect::<Vec<_>>(), slots.collect()] {
            let mut parts: Vec<u64> = pids.iter().map(|pid| pid.spread() % 8).collect();
            parts.sort_unstable();
            assert_eq!(parts, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn a_place_is_told_by_its_file_page_and_length() {
        assert_eq!(format!("{:?} {:?}", Pid::new(PageFile::Data, 77, 3), Pid::of_patch(5, 9)), "data:77+3 patches:5+9");
    }
}
