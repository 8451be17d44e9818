//! The Merkle list of a ledger, of which only the right edge is needed to append (section 18, *The
//! list of a ledger*).
//!
//! Sixteen neighbours make a tile, which is kept once it is full, and whose root is one hash of the
//! level above. The edge holds the hashes that no full tile holds.
//!
//! Invariant of [`Edge`]: level `l` has as many hashes as the digit `l` of the size in base 16, and
//! the top level is not empty.

use alloc::vec::Vec;

use coppice_types::{
    Digest,
    codec::{Error, Reader, Writer},
};

use crate::merkle::{empty_root, mth};

/// Number of hashes in a tile.
pub const TILE_WIDTH: usize = 16;
/// Most levels of an edge: 16^16 is beyond a `u64`.
const LEVELS_MAX: usize = 16;

/// A full tile: neighbouring hashes of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// 0 for leaf hashes; level `l` holds roots of subtrees of 16^l leaves.
    pub level: u8,
    /// Index of the tile in its level.
    pub index: u64,
    /// The hashes, one behind the other.
    pub hashes: Vec<u8>,
}

/// The right edge of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    size: u64,
    levels: Vec<Vec<Digest>>,
}

/// Number of the hashes at a level in the edge of a list.
fn digit(size: u64, level: usize) -> usize {
    (size >> (4 * level)) as usize & (TILE_WIDTH - 1)
}

/// Level and index of the tile, full or not, at the right edge of each level of a list.
pub fn tiles_at(size: u64) -> impl Iterator<Item = (u8, u64)> {
    let levels = (u64::BITS - size.leading_zeros()).div_ceil(4) as u8;
    (0..levels).map(move |level| (level, size.checked_shr(4 * (u32::from(level) + 1)).unwrap_or(0)))
}

impl Edge {
    /// Number of leaves in the list.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends a leaf hash, and the tiles that it fills to `tiles`.
    ///
    /// # Panics
    /// If the list has 2^64 leaves.
    pub fn push(&mut self, leaf: Digest, tiles: &mut Vec<Tile>) {
        self.size = self.size.checked_add(1).expect("a ledger has fewer than 2^64 journals");
        let mut hash = leaf;
        for level in 0..LEVELS_MAX {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let hashes = &mut self.levels[level];
            hashes.push(hash);
            if hashes.len() < TILE_WIDTH {
                return;
            }
            hash = mth(hashes);
            let full = core::mem::take(hashes);
            let index = (self.size >> (4 * (level + 1))) - 1;
            let hashes = full.iter().flat_map(|hash| hash.0).collect();
            tiles.push(Tile { level: level as u8, index, hashes });
        }
    }

    /// Root of the list.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut right = None;
        for hashes in &self.levels {
            // The part to the right is smaller than any subtree of this level, so it takes the
            // place of one more hash.
            let row: Vec<Digest> = hashes.iter().copied().chain(right).collect();
            right = (!row.is_empty()).then(|| mth(&row));
        }
        right.unwrap_or_else(empty_root)
    }

    /// The edge that the list had with `size` leaves, of which it has at least as many now. `tile`
    /// gives the hashes of a tile that is full now, by level and index. `None` if one is missing.
    #[must_use]
    pub fn before(&self, size: u64, tile: impl Fn(u8, u64) -> Option<Vec<u8>>) -> Option<Self> {
        let mut levels = Vec::new();
        for (level, index) in tiles_at(size) {
            let hashes = if self.size.checked_shr(4 * (u32::from(level) + 1)).unwrap_or(0) == index {
                self.levels.get(usize::from(level))?.clone()
            } else {
                let bytes = tile(level, index)?;
                bytes.chunks_exact(32).map(|hash| Digest(hash.try_into().expect("32 bytes"))).collect()
            };
            levels.push(hashes.get(..digit(size, level.into()))?.to_vec());
        }
        Some(Self { size, levels })
    }

    /// The hashes at a level, from left to right.
    #[must_use]
    pub fn level(&self, level: usize) -> &[Digest] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.size);
        self.levels.iter().flatten().for_each(|hash| out.digest(hash));
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let size = input.u64()?;
        let used = (u64::BITS - size.leading_zeros()).div_ceil(4) as usize;
        let mut levels = Vec::new();
        for level in 0..used {
            let mut hashes = Vec::new();
            for _ in 0..digit(size, level) {
                hashes.push(input.digest()?);
            }
            levels.push(hashes);
        }
        Ok(Self { size, levels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256;

    fn leaf(at: u64) -> Digest {
        sha256(&at.to_le_bytes())
    }

    #[test]
    fn the_edge_has_the_root_of_the_whole_list_at_every_size() {
        let (mut edge, mut leaves, mut tiles) = (Edge::default(), Vec::new(), Vec::new());
        assert_eq!(edge.root(), mth(&[]));
        for at in 0..4500 {
            edge.push(leaf(at), &mut tiles);
            leaves.push(leaf(at));
            if at < 300 || at % 37 == 0 || (4090..4100).contains(&at) {
                assert_eq!(edge.root(), mth(&leaves), "{} leaves", at + 1);
                let mut out = Writer::new();
                edge.encode(&mut out);
                let bytes = out.into_bytes();
                let mut input = Reader::new(&bytes);
                assert_eq!(Edge::decode(&mut input), Ok(edge.clone()));
                assert_eq!(input.remaining(), 0);
            }
        }
        assert_eq!(tiles.iter().filter(|tile| tile.level == 0).count(), 4500 / 16);
        assert_eq!(tiles.iter().filter(|tile| tile.level == 1).count(), 4500 / 256);
        assert_eq!(tiles.iter().filter(|tile| tile.level == 2).count(), 4500 / 4096);
        let full = |level: u8, index: u64| {
            let of = |tile: &&Tile| (tile.level, tile.index) == (level, index);
            tiles.iter().find(of).map(|tile| tile.hashes.clone())
        };
        for size in [0, 1, 15, 16, 17, 255, 256, 300, 4095, 4096, 4111, 4400, 4499, 4500] {
            let before = edge.before(size, full).expect("all tiles are there");
            assert_eq!((before.size(), before.root()), (size, mth(&leaves[..size as usize])));
        }
        assert_eq!(edge.before(300, |_, _| None), None);
        for tile in tiles {
            let below = 1 << (4 * tile.level);
            let first = tile.index as usize * below * TILE_WIDTH;
            let hashes = leaves[first..][..below * TILE_WIDTH].chunks(below).flat_map(|part| mth(part).0);
            assert!(hashes.eq(tile.hashes.iter().copied()), "tile {} of level {}", tile.index, tile.level);
        }
    }
}
