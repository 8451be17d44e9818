//! Shortcuts: places of values by the hashes of their keys, so that a get finds a value without its
//! leaf.
//!
//! All that a get needs from a leaf is the place of a value, which takes a small part of the leaf's
//! memory. So a merge writes shortcuts next to its output. For each value-log record that carries
//! its key, a page of shortcuts has an entry: 16 bits of the key's hash, and the record's place. A
//! page holds as many entries as fit. All these places belong to the tree. So if the record there
//! carries the key, it is the tree's record of that key. Otherwise the shortcut says nothing about
//! the key. `docs/format.md` section "Shortcuts" has the bytes.

use crate::{
    node::Body,
    place::{
        bytes::array,
        page::PAGE_BYTES,
        refs::{BlobRef, RECORD_HEADER_BYTES, ValueRef, checksum, record_bytes},
    },
};

/// Header of a page: checksum, segment and size bases, widths, count, and whether all keys are
/// here.
const HEADER_BYTES: usize = 24;
const REMAINDER_BYTES: usize = 2;
/// Limit on the bits of a place, which is read as eight bytes at any bit offset.
const PLACE_BITS_MAX: u32 = 56;
const SIZE_BITS_MAX: u32 = 4;
/// With this limit, a get reads less than a kilobyte more than the record. Records that are much
/// longer than the shortest have no shortcuts: compared with such a record, reading its leaf costs
/// little.
const SIZE_SHIFT_MAX: u32 = 10;
/// Larger trees have no shortcuts: the pages would not fit into one record of the value log.
pub(crate) const RECORDS_MAX: u64 = 100_000_000;
/// Pages are planned to be this full, in sixteenths, as keys do not spread evenly. Keys beyond a
/// page's capacity are looked up in leaves.
const FILL: usize = 15;
/// Limit on the bytes for one key, its share of the free space included.
pub(crate) const RECORD_BYTES_MAX: u64 = PAGE_BYTES.div_ceil(entries_max(PLACE_BITS_MAX) * FILL / 16) as u64;

/// Limit on the number of places in one page.
const fn entries_max(place_bits: u32) -> usize {
    (PAGE_BYTES - HEADER_BYTES - 8) * 8 / (8 * REMAINDER_BYTES + place_bits as usize)
}

/// The answer of shortcuts about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortcut {
    /// If the tree has the key, its record may be at this place; if `only`, it is nowhere else. The
    /// record lies within `bytes` from the place.
    Place { at: ValueRef, bytes: usize, only: bool },
    /// The tree does not have the key.
    Absent,
    /// Only the leaves have the answer.
    Unknown,
}

/// The place where a key is looked up: a page, and the bits that distinguish keys in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    page: usize,
    pub(crate) remainder: u16,
}

impl Spot {
    /// The spot of a key with this filter hash, among this many pages.
    pub(crate) fn new(filter_hash: (u64, u64), pages: usize) -> Self {
        Self::of_sorted(filter_hash.0 >> 16, pages)
    }

    /// Like [`Self::new`], for the upper 48 bits of the hash. Pages and remainders follow their
    /// order.
    fn of_sorted(hash: u64, pages: usize) -> Self {
        let product = u128::from(hash) * pages as u128;
        Self { page: (product >> 48) as usize, remainder: (product >> 32) as u16 }
    }

    /// The place of the page.
    pub(crate) fn place(self, blob: BlobRef) -> ValueRef {
        ValueRef { offset: blob.at.offset + (RECORD_HEADER_BYTES + self.page * PAGE_BYTES) as u32, ..blob.at }
    }
}

/// Number of pages in a record of the value log.
pub(crate) fn pages(blob: BlobRef) -> usize {
    blob.len as usize / PAGE_BYTES
}

/// Whether a record has the size and place that shortcuts need.
pub(crate) fn is_sound(blob: BlobRef) -> bool {
    let whole = blob.len > 0 && (blob.len as usize).is_multiple_of(PAGE_BYTES);
    whole && u64::from(blob.at.offset) + record_bytes(blob.len) <= u64::from(u32::MAX)
}

/// Places gathered in any order, of records that carry their key and are not too long.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    entries: Vec<Entry>,
}

/// The upper 48 bits of the key's hash with the record's size below, and the record's place.
pub(crate) type Entry = (u64, ValueRef);

impl Gathered {
    pub(crate) fn with_room(records: usize) -> Self {
        Self { entries: Vec::with_capacity(records) }
    }

    /// The entry of a leaf's record; `None` if its value has no name or is too long.
    pub(crate) fn entry(filter_hash: (u64, u64), body: &Body<'_>) -> Option<Entry> {
        let Body::Stored { len, blob, .. } = body else { return None };
        let size = u16::try_from(record_bytes(blob.len)).ok().filter(|_| blob.len != *len)?;
        Some((filter_hash.0 & !0xffff | u64::from(size), blob.at))
    }

    pub(crate) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        self.entries.extend(entries);
    }

    /// Makes the pages, one after the other, still without checksums. `None` if they would be
    /// empty, or if places are too far apart. `filter_hashes` are those of all keys of the tree.
    pub(crate) fn pages(mut self, filter_hashes: &[(u64, u64)]) -> Option<Vec<u8>> {
        let widths = Widths::of(&self.entries)?;
        self.entries.sort_unstable();
        let pages = self.entries.len().div_ceil(widths.entries_max() * FILL / 16);
        let bytes_max = usize::try_from(u32::MAX).ok()? / 4;
        let mut bytes = vec![0; pages.checked_mul(PAGE_BYTES).filter(|bytes| *bytes <= bytes_max)?];
        let mut keys = vec![0_usize; pages];
        filter_hashes.iter().for_each(|hash| keys[Spot::new(*hash, pages).page] += 1);
        let mut rest = self.entries.iter().peekable();
        let (mut places, spot) = (Vec::new(), |entry: &Entry| Spot::of_sorted(entry.0 >> 16, pages));
        for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            places.clear();
            while let Some(entry) = rest.next_if(|entry| spot(entry).page == number) {
                if widths.hold(entry) && places.len() < widths.entries_max() {
                    places.push((spot(entry).remainder, *entry));
                }
            }
            widths.write(page, &places, places.len() == keys[number]);
        }
        Some(bytes)
    }
}

fn size(entry: &Entry) -> u16 {
    entry.0 as u16
}

/// The encoding of places: relative to the first segment and the shortest record, in as few bits as
/// possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Widths {
    segment: u32,
    shortest: u16,
    segment_bits: u32,
    offset_bits: u32,
    /// Sizes above the shortest are rounded up to multiples of `1 << size_shift`.
    size_bits: u32,
    size_shift: u32,
}

impl Widths {
    /// The widths that these entries need; `None` if a place would take too many bits.
    fn of(entries: &[Entry]) -> Option<Self> {
        let (mut segments, mut sizes, mut offset_max) = ((u32::MAX, 0), (u16::MAX, 0), 0);
        for entry in entries {
            let ValueRef { segment, offset } = entry.1;
            segments = (segment.min(segments.0), segment.max(segments.1));
            sizes = (size(entry).min(sizes.0), size(entry).max(sizes.1));
            offset_max = offset.max(offset_max);
        }
        if entries.is_empty() {
            return None;
        }
        let bits = |most: u32| u32::BITS - most.leading_zeros();
        let more = u32::from(sizes.1 - sizes.0).min(((1 << SIZE_BITS_MAX) - 1) << SIZE_SHIFT_MAX);
        let size_shift = bits(more).saturating_sub(SIZE_BITS_MAX - 1).min(SIZE_SHIFT_MAX);
        let widths = Self {
            segment: segments.0,
            shortest: sizes.0,
            segment_bits: bits(segments.1 - segments.0),
            offset_bits: bits(offset_max),
            size_bits: bits(more.div_ceil(1 << size_shift)),
            size_shift,
        };
        (widths.place_bits() <= PLACE_BITS_MAX).then_some(widths)
    }

    /// Whether the encoding can hold an entry.
    fn hold(&self, entry: &Entry) -> bool {
        let most = u32::from(self.shortest) + (((1 << self.size_bits) - 1) << self.size_shift);
        u32::from(size(entry)) <= most
    }

    fn place_bits(&self) -> u32 {
        self.segment_bits + self.offset_bits + self.size_bits
    }

    /// Limit on the number of places in one page.
    fn entries_max(&self) -> usize {
        entries_max(self.place_bits())
    }

    /// Fills a page. `all` says that the tree has no other keys that belong to the page.
    fn write(&self, page: &mut [u8], places: &[(u16, Entry)], all: bool) {
        let count = places.len();
        page[8..12].copy_from_slice(&self.segment.to_le_bytes());
        page[12..14].copy_from_slice(&self.shortest.to_le_bytes());
        let widths = [self.segment_bits, self.offset_bits, self.size_bits, self.size_shift];
        page[14..18].copy_from_slice(&widths.map(|width| width as u8));
        page[18..20].copy_from_slice(&(count as u16).to_le_bytes());
        page[20] = u8::from(all);
        let (remainders, bits) = page[HEADER_BYTES..].split_at_mut(count * REMAINDER_BYTES);
        for (index, (remainder, entry)) in places.iter().enumerate() {
            remainders[2 * index..2 * index + 2].copy_from_slice(&remainder.to_le_bytes());
            let steps = u32::from(size(entry) - self.shortest).div_ceil(1 << self.size_shift);
            let place = u64::from(entry.1.segment - self.segment) << self.offset_bits | u64::from(entry.1.offset);
            let first = index * self.place_bits() as usize;
            let word = &mut bits[first / 8..first / 8 + 8];
            let shifted = (place << self.size_bits | u64::from(steps)) << (first % 8);
            let before = u64::from_le_bytes(array(word, 0));
            word.copy_from_slice(&(before | shifted).to_le_bytes());
        }
    }
}

/// Writes the checksums of pages that the record at this place will hold.
pub(crate) fn seal(pages: &mut [u8], record: ValueRef) {
    let first = record.offset + RECORD_HEADER_BYTES as u32;
    for (number, page) in pages.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let at = ValueRef { offset: first + (number * PAGE_BYTES) as u32, ..record };
        let checksum = checksum(at, &page[8..]);
        page[..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// A page whose bytes were checked.
#[derive(Debug)]
pub(crate) struct ShortcutPage {
    bytes: Box<[u8]>,
    widths: Widths,
    count: usize,
    all: bool,
}

impl ShortcutPage {
    /// Checks the bytes of the page at a place; `None` if they are not a page of shortcuts.
    pub(crate) fn check(bytes: Box<[u8]>, at: ValueRef) -> Option<Self> {
        if bytes.len() != PAGE_BYTES || bytes[..8] != checksum(at, &bytes[8..]).to_le_bytes() {
            return None;
        }
        let widths = Widths {
            segment: u32::from_le_bytes(*bytes[8..].first_chunk()?),
            shortest: u16::from_le_bytes(*bytes[12..].first_chunk()?),
            segment_bits: bytes[14].into(),
            offset_bits: bytes[15].into(),
            size_bits: bytes[16].into(),
            size_shift: bytes[17].into(),
        };
        let count = usize::from(u16::from_le_bytes(*bytes[18..].first_chunk()?));
        let bits = [widths.segment_bits, widths.offset_bits, widths.size_bits, widths.size_shift];
        let fits = bits.iter().zip([32, 32, SIZE_BITS_MAX, SIZE_SHIFT_MAX]).all(|(bits, most)| *bits <= most);
        let sound = fits && widths.place_bits() <= PLACE_BITS_MAX && count <= widths.entries_max() && bytes[20] <= 1;
        sound.then_some(Self { widths, count, all: bytes[20] == 1, bytes })
    }

    /// Looks up the key with this remainder.
    pub(crate) fn find(&self, remainder: u16) -> Shortcut {
        let at = |index: usize| {
            let at = HEADER_BYTES + index * REMAINDER_BYTES;
            u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
        };
        // Remainders ascend and spread evenly, so the search starts near the target.
        let mut index = (usize::from(remainder) * self.count) >> 16;
        while index > 0 && at(index - 1) >= remainder {
            index -= 1;
        }
        while index < self.count && at(index) < remainder {
            index += 1;
        }
        if index == self.count || at(index) != remainder {
            return if self.all { Shortcut::Absent } else { Shortcut::Unknown };
        }
        if index + 1 < self.count && at(index + 1) == remainder {
            return Shortcut::Unknown;
        }
        self.place(index)
    }

    fn place(&self, index: usize) -> Shortcut {
        let Widths { segment, shortest, offset_bits, size_bits, size_shift, .. } = self.widths;
        let first = index * self.widths.place_bits() as usize;
        let at = HEADER_BYTES + self.count * REMAINDER_BYTES + first / 8;
        let word = u64::from_le_bytes(array(&self.bytes, at)) >> (first % 8);
        let low = |word: u64, bits: u32| word & ((1 << bits) - 1);
        let (steps, word) = (low(word, size_bits) as usize, word >> size_bits);
        let offset = low(word, offset_bits) as u32;
        let segment = segment.wrapping_add(low(word >> offset_bits, self.widths.segment_bits) as u32);
        let bytes = usize::from(shortest) + (steps << size_shift);
        Shortcut::Place { at: ValueRef { segment, offset }, bytes, only: self.all }
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng};
    use coppice_types::Digest;
    use coppice_verify::hash;

    use super::*;

    const FIRST: ValueRef = ValueRef { segment: 9, offset: 116 };

    fn key(number: u64) -> Vec<u8> {
        format!("key/{number}").into_bytes()
    }

    /// A record of the value log, named if it holds more than the value.
    fn stored(at: ValueRef, len: u32, name_bytes: u32) -> Body<'static> {
        Body::Stored { hash: Digest::default(), len, blob: BlobRef { at, len: len + name_bytes } }
    }

    fn gather(bodies: &[Body<'_>]) -> Option<Vec<u8>> {
        let hashes: Vec<(u64, u64)> = (0..bodies.len() as u64).map(|number| hash::filter_hash(&key(number))).collect();
        let mut gathered = Gathered::default();
        gathered.extend(hashes.iter().zip(bodies).filter_map(|(hash, body)| Gathered::entry(*hash, body)));
        gathered.pages(&hashes)
    }

    fn look(bytes: &[u8], key: &[u8]) -> Shortcut {
        let blob = BlobRef { at: FIRST, len: bytes.len() as u32 };
        assert!(is_sound(blob));
        let spot = Spot::new(hash::filter_hash(key), pages(blob));
        let (at, from) = (spot.place(blob), spot.page * PAGE_BYTES);
        let page = ShortcutPage::check(bytes[from..from + PAGE_BYTES].into(), at);
        page.expect("it is whole").find(spot.remainder)
    }

    fn sealed(bodies: &[Body<'_>]) -> Vec<u8> {
        let mut bytes = gather(bodies).expect("some are named");
        seal(&mut bytes, FIRST);
        bytes
    }

    /// The place of the first page, if its record lies at `FIRST`.
    fn first_page() -> ValueRef {
        Spot { page: 0, remainder: 0 }.place(BlobRef { at: FIRST, len: PAGE_BYTES as u32 })
    }

    #[test]
    fn a_key_leads_to_its_place_and_hardly_any_other_key_to_one() {
        let mut rng = SimRng::new(5);
        for (count, sizes) in [(1, 1), (7, 1), (3000, 1), (3000, 14_000), (20_000, 300)] {
            let place = |number: u64| ValueRef { segment: 70 + (number % 9) as u32, offset: number as u32 * 2000 };
            let bodies: Vec<Body<'_>> =
                (0..count).map(|number| stored(place(number), 1000 + rng.below(sizes) as u32, 30)).collect();
            let bytes = sealed(&bodies);
            assert!(bytes.len() <= PAGE_BYTES + count as usize * 8, "{} bytes for {count}", bytes.len());
            let mut unknown = 0;
            for (number, body) in (0..count).zip(&bodies) {
                let Body::Stored { blob, .. } = body else { unreachable!("all are") };
                match look(&bytes, &key(number)) {
                    Shortcut::Place { at, bytes, only } => {
                        assert_eq!(at, blob.at);
                        let needed = record_bytes(blob.len) as usize;
                        assert!(bytes >= needed && (sizes > 1 || bytes == needed) && bytes < needed + 1024);
                        assert!(only || count > 1000, "a page of few has room for all");
                    }
                    Shortcut::Unknown => unknown += 1,
                    Shortcut::Absent => panic!("key {number} is there"),
                }
            }
            assert!(unknown <= count / 50, "{unknown} of {count} share their remainder or found no room");
            let others = (count..count + 20_000).filter(|number| look(&bytes, &key(*number)) != Shortcut::Absent);
            assert!(others.count() < 20_000 / 50 + 20_000 / 5);
        }
    }

    #[test]
    fn a_page_that_lacks_a_record_says_nothing_of_keys_that_it_lacks() {
        let place = |number: u64| ValueRef { segment: 1, offset: number as u32 * 100 };
        for odd in
            [Body::Tombstone, stored(place(3), 1000, 0), stored(place(3), 60_000, 30), stored(place(3), 1 << 20, 30)]
        {
            let mut bodies: Vec<Body<'_>> = (0..10).map(|number| stored(place(number), 1000, 30)).collect();
            bodies[3] = odd;
            let bytes = sealed(&bodies);
            assert_eq!(look(&bytes, &key(3)), Shortcut::Unknown);
            assert_eq!(look(&bytes, &key(99)), Shortcut::Unknown);
            assert!(matches!(look(&bytes, &key(4)), Shortcut::Place { at, only: false, .. } if at == place(4)));
        }
        assert_eq!(gather(&[Body::Tombstone, stored(place(1), 1000, 0)]), None);
        assert_eq!(gather(&[]), None);
    }

    #[test]
    fn keys_with_the_same_remainder_and_pages_that_are_too_full_are_left_to_leaves() {
        let gather = |hashes: &[u64]| {
            let entry = |hash: &u64| (hash << 16 | 1050, ValueRef { segment: 0, offset: *hash as u32 });
            let keys: Vec<(u64, u64)> = hashes.iter().map(|hash| (hash << 16, 0)).collect();
            Gathered { entries: hashes.iter().map(entry).collect() }.pages(&keys).expect("named")
        };
        let bytes = gather(&[1 << 40, (1 << 40) + 1, 1 << 41]);
        let page = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            seal(&mut bytes, FIRST);
            ShortcutPage::check(bytes.into(), first_page()).expect("sealed")
        };
        assert_eq!(page(&bytes).find(1 << 8), Shortcut::Unknown);
        assert!(matches!(page(&bytes).find(1 << 9), Shortcut::Place { only: true, .. }));
        assert_eq!(page(&bytes).find(7), Shortcut::Absent);

        // All keys fall into the first page.
        let bytes = gather(&(0..4000).map(|number| number << 24).collect::<Vec<u64>>());
        assert!(bytes.len() > PAGE_BYTES);
        let (first, last) = (page(&bytes[..PAGE_BYTES]), page(&bytes[bytes.len() - PAGE_BYTES..]));
        assert!(!first.all && first.count == first.widths.entries_max());
        assert!(last.all && last.count == 0);
    }

    #[test]
    fn places_that_are_too_far_apart_have_none() {
        let far = |segment| ValueRef { segment, offset: u32::MAX };
        assert_eq!(gather(&[stored(far(0), 1000, 30), stored(far(1 << 24), 1000, 30)]), None);
        let bytes = sealed(&[stored(far(0), 1000, 30), stored(far((1 << 20) - 1), 16_000, 30)]);
        for (number, segment) in [(0, 0), (1, (1 << 20) - 1)] {
            assert!(matches!(look(&bytes, &key(number)), Shortcut::Place { at, .. } if at == far(segment)));
        }
    }

    #[test]
    fn a_page_with_a_flipped_bit_or_of_another_place_is_refused() {
        let bodies: Vec<Body<'_>> =
            (0..100).map(|number| stored(ValueRef { segment: 0, offset: number * 1100 }, 1000, 30)).collect();
        let bytes = sealed(&bodies);
        let at = first_page();
        assert!(ShortcutPage::check(bytes.clone().into(), at).is_some());
        assert!(ShortcutPage::check(bytes.clone().into(), ValueRef { segment: 8, ..at }).is_none());
        for bit in 0..8 * PAGE_BYTES {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(ShortcutPage::check(damaged.into(), at).is_none(), "bit {bit}");
        }
    }
}
