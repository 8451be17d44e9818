//! Paths in a ledger's list: its complete subtrees lie in tiles and in the edge of its head.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_types::{Digest, LedgerId};
use coppice_verify::{
    ledgers::{Edge, TILE_WIDTH, tile_key},
    merkle::{self, mth},
};
use tokio::time::Instant;
use tonic::Status;

use super::digest_at;
use crate::{
    groups::wire,
    read::reads::{Located, Reads},
};

/// Levels of a binary tree that a tile has.
const TILE_LEVELS: u32 = TILE_WIDTH.trailing_zeros();

/// Level and index of a tile.
type TilePlace = (u8, u64);

/// The paths that a proof of journals needs.
#[derive(Debug)]
pub struct Paths {
    /// The inclusion path of each leaf, in the order in which they were asked for.
    pub leaves: Vec<Vec<Digest>>,
    /// The known root, and the consistency path from there.
    pub known: Option<(Digest, Vec<Digest>)>,
}

/// The hashes of a list that has this edge.
struct Hashes<'h> {
    edge: &'h Edge,
    /// Full tiles, with their encoded hashes.
    tiles: BTreeMap<TilePlace, Bytes>,
}

/// The row of a complete subtree: the level of its tile, the index of its first hash there, and the
/// number of hashes.
fn row(level: u32, index: u64) -> (u8, u64, usize) {
    let tile_level = u8::try_from(level / TILE_LEVELS).expect("a list has at most 2^64 leaves");
    let above = level % TILE_LEVELS;
    (tile_level, index << above, 1 << above)
}

/// The tile that holds a hash, if it is full.
fn full_tile(edge: &Edge, level: u8, at: u64) -> Option<TilePlace> {
    let index = at / TILE_WIDTH as u64;
    let hashes = edge.size() >> (TILE_LEVELS * u32::from(level));
    (hashes / TILE_WIDTH as u64 > index).then_some((level, index))
}

impl Hashes<'_> {
    /// The root of a complete subtree.
    fn complete(&self, level: u32, index: u64) -> Result<Digest, Status> {
        let (level, first, count) = row(level, index);
        let begin = usize::try_from(first % TILE_WIDTH as u64).expect("it is small");
        let hashes: Option<Vec<Digest>> = match full_tile(self.edge, level, first) {
            Some(place) => {
                let tile = self.tiles.get(&place);
                (begin..begin + count).map(|at| digest_at(tile?, at)).collect()
            }
            None => self.edge.level(usize::from(level)).get(begin..begin + count).map(<[Digest]>::to_vec),
        };
        Ok(mth(&hashes.ok_or_else(|| wire::broken("tile of a ledger"))?))
    }
}

/// Makes the paths, and gives the part of a list to `complete` subtree by subtree.
fn paths<E>(
    size: u64,
    jsns: &[u64],
    known: Option<u64>,
    mut complete: impl FnMut(u32, u64) -> Result<Digest, E>,
) -> Result<Paths, E> {
    let mut part = |start, size| merkle::subtree_root_with(start, size, &mut complete);
    let leaves = jsns.iter().map(|jsn| merkle::inclusion_path_with(size, *jsn, &mut part)).collect::<Result<_, _>>()?;
    let known = match known {
        Some(0) => Some((merkle::empty_root(), Vec::new())),
        Some(known) => Some((part(0, known)?, merkle::consistency_path_with(size, known, &mut part)?)),
        None => None,
    };
    Ok(Paths { leaves, known })
}

/// The full tiles that the paths need.
fn wanted_tiles(edge: &Edge, jsns: &[u64], known: Option<u64>) -> BTreeSet<TilePlace> {
    let mut wanted = BTreeSet::new();
    let seen = paths(edge.size(), jsns, known, |level, index| {
        let (level, first, _) = row(level, index);
        wanted.extend(full_tile(edge, level, first));
        Ok::<_, std::convert::Infallible>(Digest::default())
    });
    match seen {
        Ok(_) => wanted,
        Err(never) => match never {},
    }
}

/// The inclusion paths of journals in a list with this edge, where only the tiles that are
/// `written` are known. `None` if others are needed.
pub fn paths_at_edge(
    (ledger, edge): (LedgerId, &Edge),
    written: &BTreeMap<Vec<u8>, Bytes>,
    jsns: &[u64],
) -> Option<Vec<Vec<Digest>>> {
    let tile = |place: TilePlace| Some((place, written.get(&tile_key(ledger, place.0, place.1))?.clone()));
    let tiles = wanted_tiles(edge, jsns, None).into_iter().map(tile).collect::<Option<_>>()?;
    let hashes = Hashes { edge, tiles };
    paths(edge.size(), jsns, None, |level, index| hashes.complete(level, index)).ok().map(|paths| paths.leaves)
}

impl Reads {
    /// The inclusion paths of these journals in a ledger's list, and the consistency path from a
    /// known size.
    ///
    /// # Errors
    /// Those of reads; `INTERNAL` if a tile is missing.
    pub(super) async fn ledger_paths(
        &self,
        located: &Located,
        (ledger, edge): (LedgerId, &Edge),
        jsns: &[u64],
        known: Option<u64>,
        deadline: Instant,
    ) -> Result<Paths, Status> {
        let wanted = wanted_tiles(edge, jsns, known);
        let hashes = self.hashes(located, (ledger, edge), wanted, deadline).await?;
        paths(edge.size(), jsns, known, |level, index| hashes.complete(level, index))
    }

    /// The roots of complete subtrees of a ledger's list, each by its level and index.
    ///
    /// # Errors
    /// Those of [`Reads::ledger_paths`].
    pub(super) async fn subtree_roots(
        &self,
        located: &Located,
        (ledger, edge): (LedgerId, &Edge),
        subtrees: &[(u32, u64)],
        deadline: Instant,
    ) -> Result<Vec<Digest>, Status> {
        let tile = |(level, index): &(u32, u64)| {
            let (level, first, _) = row(*level, *index);
            full_tile(edge, level, first)
        };
        let wanted = subtrees.iter().filter_map(tile).collect();
        let hashes = self.hashes(located, (ledger, edge), wanted, deadline).await?;
        subtrees.iter().map(|(level, index)| hashes.complete(*level, *index)).collect()
    }

    /// Reads full tiles.
    async fn hashes<'h>(
        &self,
        located: &Located,
        (ledger, edge): (LedgerId, &'h Edge),
        wanted: BTreeSet<TilePlace>,
        deadline: Instant,
    ) -> Result<Hashes<'h>, Status> {
        let keys: BTreeMap<Vec<u8>, TilePlace> =
            wanted.into_iter().map(|(level, index)| (tile_key(ledger, level, index), (level, index))).collect();
        let records = self.records(located, keys.keys().cloned(), deadline).await?;
        let tiles = records.into_iter().filter_map(|(key, record)| Some((*keys.get(&key[..])?, record.value)));
        Ok(Hashes { edge, tiles: tiles.collect() })
    }
}

#[cfg(test)]
mod tests {
    use coppice_verify::hash::sha256;

    use super::*;

    #[test]
    fn tiles_and_edge_give_the_paths_of_the_whole_list() {
        let (mut edge, mut tiles, mut leaves) = (Edge::default(), Vec::new(), Vec::new());
        for at in 0..600_u64 {
            leaves.push(sha256(&at.to_le_bytes()));
            edge.push(leaves[at as usize], &mut tiles);
            let size = at + 1;
            if size % 61 != 0 && ![1, 15, 16, 17, 255, 256, 257, 512].contains(&size) {
                continue;
            }
            let kept = tiles.iter().map(|tile| ((tile.level, tile.index), Bytes::from(tile.hashes.clone())));
            let hashes = Hashes { edge: &edge, tiles: kept.collect() };
            let jsns: Vec<u64> = (0..size).step_by(7).chain([at]).collect();
            for known in [None, Some(0), Some(1), Some(size / 3), Some(size)] {
                let made =
                    paths(size, &jsns, known, |level, index| hashes.complete(level, index)).expect("all is there");
                for (jsn, path) in jsns.iter().zip(&made.leaves) {
                    assert_eq!(*path, merkle::inclusion_path(&leaves, *jsn), "{jsn} of {size}");
                }
                let expected =
                    known.map(|known| (mth(&leaves[..known as usize]), merkle::consistency_path(&leaves, known)));
                assert_eq!(made.known, expected, "{known:?} of {size}");
            }
        }
    }

    #[test]
    fn a_missing_or_short_tile_is_an_error() {
        let (mut edge, mut tiles) = (Edge::default(), Vec::new());
        (0..40_u64).for_each(|at| edge.push(sha256(&at.to_le_bytes()), &mut tiles));
        let whole: BTreeMap<_, _> =
            tiles.iter().map(|tile| ((tile.level, tile.index), Bytes::from(tile.hashes.clone()))).collect();
        let with = |tiles| {
            let hashes = Hashes { edge: &edge, tiles };
            paths(40, &[3], None, |level, index| hashes.complete(level, index)).is_ok()
        };
        assert!(with(whole.clone()));
        let mut short = whole.clone();
        short.insert((0, 0), whole[&(0, 0)].slice(..511));
        assert!(!with(short));
        let mut missing = whole;
        missing.remove(&(0, 0));
        assert!(!with(missing));
    }
}
