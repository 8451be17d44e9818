//! Pages, spans and their names.
//!
//! A node lies in a span of 1 to 4 pages of 4 KiB, or, as what sets it apart from such a node, in a slot of a page that it
//! shares with others. Its [`Pid`] is its place: file, first page and length or slot in one number,
//! so that reading it needs no table. A page is written once and never changed while anything refers to it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use crate::node::ValueRef;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Most pages of one span.
pub(crate) const SPAN_PAGES_MAX: usize = 4;

static ZEROES: [u8; SPAN_PAGES_MAX * PAGE_BYTES] = [0; SPAN_PAGES_MAX * PAGE_BYTES];

/// Bytes for a span, to be filled by their one owner.
pub(crate) fn zeroed(len_bytes: usize) -> Arc<[u8]> {
    Arc::from(&ZEROES[..len_bytes])
}

/// A file of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PageFile {
    /// Inner nodes.
    Index,
    /// Leaf nodes.
    Data,
    /// Nodes of both kinds, as patches of others.
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

    /// Whole inner nodes and leaves lie in separate files, since they are read at different rates.
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
    /// If the length is not 1 to 4 pages, or the page beyond 2^48.
    pub(crate) fn new(file: PageFile, first: u64, pages: usize) -> Self {
        assert!((1..=SPAN_PAGES_MAX).contains(&pages));
        assert!(first < 1 << 48);
        Self(file.number() << 56 | (pages as u64) << 48 | first)
    }

    /// The place of a node that is stored as a patch.
    ///
    /// # Panics
    /// If the page is beyond 2^48.
    pub(crate) fn of_patch(page: u64, slot: u8) -> Self {
        assert!(page < 1 << 48);
        Self(PageFile::Patches.number() << 56 | u64::from(slot) << 48 | page)
    }

    /// What a cache knows a page of shortcuts by: no two overlap, and nothing else has such a number.
    pub(crate) fn of_shortcuts(at: ValueRef) -> Self {
        const _: () = assert!(PAGE_BYTES >= 1 << 8);
        Self(4 << 56 | u64::from(at.segment) << 24 | u64::from(at.offset) >> 8)
    }

    /// Reads a stored number.
    pub(crate) fn from_u64(number: u64) -> Option<Self> {
        let pages = number >> 48 & 0xff;
        let span = matches!(number >> 56, 1 | 2) && (1..=SPAN_PAGES_MAX as u64).contains(&pages);
        let valid = span || number >> 56 == PageFile::Patches.number();
        valid.then_some(Self(number))
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

    /// How many pages are read for it.
    pub(crate) fn pages(self) -> u64 {
        if self.is_patch() { 1 } else { self.0 >> 48 & 0xff }
    }

    /// Of a patch: which one of its page.
    pub(crate) fn slot(self) -> Option<u8> {
        self.is_patch().then_some((self.0 >> 48) as u8)
    }

    /// A number for what is kept in parts: spans are neighbours, and patches of a page, so its lowest bits spread them.
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

/// A map by places. They are numbers of our own making, so no attacker chooses which of them meet.
pub(crate) type PlaceMap<K, V> = HashMap<K, V, BuildHasherDefault<PlaceHasher>>;
/// A set of places.
pub(crate) type PlaceSet<K> = HashSet<K, BuildHasherDefault<PlaceHasher>>;

/// Spreads the bits of a place by one multiplication.
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
        // The map takes the highest bits and the lowest ones.
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
    fn numbers_that_are_no_place_are_refused() {
        for number in [0, 1 << 56, 1 << 56 | 5 << 48, 4 << 56 | 1 << 48] {
            assert_eq!(Pid::from_u64(number), None);
        }
    }
}
