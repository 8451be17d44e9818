//! The root log as C2SP tiles: the growing tiles, which are in memory, and the names of full ones.
//!
//! ```text
//!  level 1          [ r0 r1 r2 .. ]                    r0 = root of the 256 hashes of tile 0
//!                    /     \
//!  level 0   [ h0 .. h255 ] [ h256 .. h511 ] ..        h  = hash of an entry
//!  entries   [ e0 .. e255 ] [ e256 .. e511 ] ..        bundles
//! ```
//!
//! Tile *n* of level *l* holds the roots of 256 neighbouring subtrees of 256^l entries each. A tile
//! becomes a file once it is full, and never changes again. The growing tile of each level is in
//! memory, so the root of the log needs no file.

use coppice_types::{
    Digest,
    codec::{Error, Reader, Writer},
};
use coppice_verify::{hash, merkle, tile};

use crate::codec::to_usize;
pub(crate) use tile::number_path;

/// Number of entries of a full tile or bundle.
pub(crate) const TILE_WIDTH: usize = 256;
/// Bytes of a full tile.
pub(crate) const TILE_BYTES: usize = TILE_WIDTH * 32;
/// Number of levels that 2^64 entries fill.
const LEVELS_MAX: usize = 8;

// The size in docs/format.md.
const _: () = assert!(TILE_BYTES == 8192);

/// The number of the tile, bundle or chunk that holds entry `index`, and the entry's place in it.
pub(crate) fn split_index(index: u64) -> (u64, usize) {
    (index / TILE_WIDTH as u64, (index % TILE_WIDTH as u64) as usize)
}

/// Name of a full tile's file.
pub(crate) fn tile_path(level: usize, number: u64) -> String {
    format!("tile/{level}/{}", number_path(number))
}

/// Name of a full entry bundle's file.
pub(crate) fn bundle_path(number: u64) -> String {
    format!("tile/entries/{}", number_path(number))
}

/// A tile that has just become full.
#[derive(Debug)]
pub(crate) struct FullTile {
    pub(crate) level: u8,
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The growing tiles of all levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frontier {
    size: u64,
    levels: Vec<Vec<Digest>>,
    /// Roots of the complete subtrees that the log consists of, largest first: one for each bit of
    /// its size.
    peaks: Vec<Digest>,
}

impl Frontier {
    /// Entries in the log.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// How many tiles of a level are full.
    pub(crate) fn full_tiles(&self, level: usize) -> u64 {
        let bits = 8 * (level + 1);
        if bits >= 64 { 0 } else { self.size >> bits }
    }

    /// The growing tile of a level, possibly empty.
    pub(crate) fn growing(&self, level: usize) -> &[Digest] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }

    /// Appends the hash of an entry. Returns the tiles that it fills, lowest level first.
    pub(crate) fn push(&mut self, hash: Digest) -> Vec<FullTile> {
        assert!(self.size < u64::MAX, "a log never has 2^64 entries");
        let mut full = Vec::new();
        let mut carry = hash;
        self.push_peak(hash);
        self.size += 1;
        for level in 0_u8.. {
            let at = usize::from(level);
            if self.levels.len() == at {
                self.levels.push(Vec::new());
            }
            let growing = &mut self.levels[at];
            assert!(growing.len() < TILE_WIDTH, "a full tile does not grow");
            growing.push(carry);
            if growing.len() < TILE_WIDTH {
                break;
            }
            carry = merkle::mth(growing);
            let bytes: Vec<u8> = growing.drain(..).flat_map(|hash| hash.0).collect();
            assert_eq!(bytes.len(), TILE_BYTES, "a full tile has 256 hashes");
            full.push(FullTile { level, number: self.full_tiles(at) - 1, bytes });
        }
        assert!(self.levels.len() <= LEVELS_MAX, "2^64 entries fill 8 levels");
        full
    }

    fn push_peak(&mut self, hash: Digest) {
        assert_eq!(self.peaks.len(), to_usize(self.size.count_ones()), "every bit of the size has a peak");
        let merged = self.peaks.len() - to_usize(self.size.trailing_ones());
        let peak = self.peaks.drain(merged..).rev().fold(hash, |right, left| hash::list_node_hash(&left, &right));
        self.peaks.push(peak);
    }

    /// The RFC 9162 path of the next entry, as the last one of its log: the present peaks, smallest
    /// first.
    pub(crate) fn path_of_next(&self) -> Vec<Digest> {
        self.peaks.iter().rev().copied().collect()
    }

    /// Root of the whole log, from the growing tiles alone.
    pub(crate) fn root(&self) -> Digest {
        let root = self.peaks.iter().copied().rev().reduce(|right, left| hash::list_node_hash(&left, &right));
        root.unwrap_or_else(merkle::empty_root)
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
        out.u8(self.levels.len() as u8);
        for growing in &self.levels {
            growing.iter().for_each(|hash| out.digest(hash));
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let size = input.u64()?;
        let count = usize::from(input.u8()?);
        if count > LEVELS_MAX {
            return Err(Error::Malformed("tile levels"));
        }
        let mut levels: Vec<Vec<Digest>> = Vec::new();
        for level in 0..count {
            let growing = (size >> (8 * level)) % TILE_WIDTH as u64;
            levels.push((0..growing).map(|_| input.digest()).collect::<Result<_, _>>()?);
        }
        let peaks: Vec<Digest> = levels.iter().rev().flat_map(|growing| peaks_of(growing)).collect();
        if peaks.len() != to_usize(size.count_ones()) {
            return Err(Error::Malformed("tile levels"));
        }
        Ok(Self { size, levels, peaks })
    }
}

/// Roots of the complete subtrees that a row of equally large subtrees forms, largest first.
fn peaks_of(mut subtrees: &[Digest]) -> Vec<Digest> {
    let mut peaks = Vec::new();
    while !subtrees.is_empty() {
        let (largest, rest) = subtrees.split_at(1 << subtrees.len().ilog2());
        peaks.push(merkle::mth(largest));
        subtrees = rest;
    }
    peaks
}

/// The hashes of a full tile.
pub(crate) fn tile_hashes(bytes: &[u8]) -> Option<Vec<Digest>> {
    if bytes.len() == TILE_BYTES { bytes.chunks_exact(32).map(Digest::from_slice).collect() } else { None }
}

/// The bytes of an entry bundle: each entry follows its length, a big-endian `u16`.
pub(crate) fn bundle_bytes(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let len = u16::try_from(entry.len()).expect("entries are below 65,535 bytes");
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(entry);
    }
    bytes
}

/// The entries of a bundle.
pub(crate) fn bundle_entries(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let (entry, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        entries.push(entry);
        bytes = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontier(size: u64) -> Frontier {
        let mut frontier = Frontier::default();
        (0..size).for_each(|entry| drop(frontier.push(Digest([entry as u8; 32]))));
        frontier
    }

    #[test]
    fn the_growing_tiles_survive_encoding_with_their_peaks() {
        for size in [0, 1, 255, 256, 257, 1000] {
            let frontier = frontier(size);
            let mut out = Writer::new();
            frontier.encode(&mut out);
            assert_eq!(Frontier::decode(&mut Reader::new(&out.into_bytes())), Ok(frontier), "{size} entries");
        }
    }

    #[test]
    fn a_size_whose_levels_are_missing_is_malformed() {
        let mut out = Writer::new();
        out.u64(256);
        out.u8(1);
        assert_eq!(Frontier::decode(&mut Reader::new(&out.into_bytes())), Err(Error::Malformed("tile levels")));
    }

    #[test]
    fn a_bundle_gives_its_entries_back() {
        let entries = [vec![1; 300], Vec::new(), vec![2]];
        let bytes = bundle_bytes(&entries);
        assert_eq!(bundle_entries(&bytes), Some(entries.iter().map(Vec::as_slice).collect()));
        assert_eq!(bundle_entries(&bytes[..bytes.len() - 1]), None);
    }
}
