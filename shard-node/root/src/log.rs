//! The root log: entries, their Merkle tree, and proofs.
//!
//! Everything read from a file is checked before it is believed: an entry against its hash in its
//! tile, and a tile against its hash in the tile above. The chain of checks ends at the growing
//! tiles, which are in memory.

use std::sync::Arc;

use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};
use coppice_verify::{hash, merkle};

use crate::{
    Error,
    cache::Cache,
    codec::{len32, list, to_usize},
    sealed::{Kind, Sealed, seal},
    store::Store,
    tiles::{Frontier, TILE_WIDTH, bundle_bytes, bundle_entries, bundle_path, split_index, tile_hashes, tile_path},
};

/// Limit on the number of tiles, of 8 KiB each, that are kept in memory.
const TILES_CACHED_MAX: usize = 256;

/// The root log.
#[derive(Debug)]
pub(crate) struct Log {
    frontier: Frontier,
    root: Digest,
    /// The path of the newest entry; `None` until an entry is appended after a start.
    newest_path: Option<Vec<Digest>>,
    /// The entries of the growing bundle.
    tail: Vec<Vec<u8>>,
    tiles: Cache<(usize, u64), Vec<Digest>>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self::from_parts(Frontier::default(), Vec::new())
    }

    fn from_parts(frontier: Frontier, tail: Vec<Vec<u8>>) -> Self {
        let root = frontier.root();
        Self { frontier, root, newest_path: None, tail, tiles: Cache::new(TILES_CACHED_MAX) }
    }

    pub(crate) fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// Root of the whole log.
    pub(crate) fn root(&self) -> Digest {
        self.root
    }

    /// The path of the next entry, as the last one of its log.
    pub(crate) fn path_of_next(&self) -> Vec<Digest> {
        self.frontier.path_of_next()
    }

    /// The path of the newest entry. Only a log that did not grow since the start computes it.
    pub(crate) fn newest_path(&self, store: &Store) -> Result<Vec<Digest>, Error> {
        match &self.newest_path {
            Some(path) => Ok(path.clone()),
            None => self.inclusion(self.size().saturating_sub(1), self.size(), store),
        }
    }

    /// Appends an entry. The tiles and the bundle that it fills go to the store.
    pub(crate) fn push(&mut self, entry: &[u8], store: &mut Store, sealed: &mut Vec<Sealed>) {
        let (number, at) = split_index(self.size());
        assert_eq!(at, self.tail.len(), "the tail is the growing bundle");
        self.tail.push(entry.to_vec());
        self.newest_path = Some(self.path_of_next());
        for tile in self.frontier.push(hash::log_entry_hash(entry)) {
            seal(store, sealed, Kind::Tile(tile.level), tile.number, tile.bytes);
        }
        self.root = self.frontier.root();
        if split_index(self.size()).0 > number {
            assert_eq!(self.tail.len(), TILE_WIDTH, "a bundle is sealed when it is full");
            let bytes = bundle_bytes(&self.tail);
            self.tail.clear();
            seal(store, sealed, Kind::Bundle, number, bytes);
        }
    }

    pub(crate) fn entry(&self, index: u64, store: &Store) -> Result<Vec<u8>, Error> {
        let mut entries = self.entries(index, 1, store)?;
        entries.pop().ok_or(Error::NoEntry { asked: index, size: self.size() })
    }

    /// Up to `count` entries of one bundle, beginning at `index`; none at the log's end.
    pub(crate) fn entries(&self, index: u64, count: usize, store: &Store) -> Result<Vec<Vec<u8>>, Error> {
        if index >= self.size() {
            return Ok(Vec::new());
        }
        let (number, at) = split_index(index);
        if number == self.frontier.full_tiles(0) {
            return Ok(self.tail.iter().skip(at).take(count).cloned().collect());
        }
        let name = bundle_path(number);
        let bytes = store.read(&name)?;
        let entries = bundle_entries(&bytes).ok_or_else(|| Error::corrupted(&name, "malformed"))?;
        let hashes = self.tile(0, number, store)?;
        if entries.len() != hashes.len() {
            return Err(Error::corrupted(&name, "not a full bundle"));
        }
        let wanted = entries.into_iter().zip(hashes.iter()).enumerate().skip(at).take(count);
        wanted
            .map(|(at, (entry, hash))| match hash::log_entry_hash(entry) == *hash {
                true => Ok(entry.to_vec()),
                false => Err(Error::corrupted(&name, format!("entry {at} has a different hash than in its tile"))),
            })
            .collect()
    }

    /// The first `width` hashes of a tile, 1 to 256. They are the whole tile in a log that ends
    /// there.
    pub(crate) fn tile_prefix(&self, level: usize, number: u64, width: usize, store: &Store) -> Result<Vec<u8>, Error> {
        let full = self.frontier.full_tiles(level);
        if number < full && width <= TILE_WIDTH {
            let tile = self.tile(level, number, store)?;
            return Ok(tile[..width].iter().flat_map(|hash| hash.0).collect());
        }
        let growing = if number == full { self.frontier.growing(level) } else { &[] };
        match growing.get(..width) {
            Some(hashes) => Ok(hashes.iter().flat_map(|hash| hash.0).collect()),
            None => Err(Error::NoTile { level, number, width, size: self.size() }),
        }
    }

    /// Root of the first `size` entries.
    pub(crate) fn root_at(&self, size: u64, store: &Store) -> Result<Digest, Error> {
        self.check_size(size)?;
        match size {
            0 => Ok(merkle::empty_root()),
            _ if size == self.size() => Ok(self.root),
            _ => self.subtree(0, size, store),
        }
    }

    /// RFC 9162 path of entry `index` in the first `size` entries.
    pub(crate) fn inclusion(&self, index: u64, size: u64, store: &Store) -> Result<Vec<Digest>, Error> {
        self.check_size(size)?;
        if index >= size {
            return Err(Error::NoEntry { asked: index, size });
        }
        merkle::inclusion_path_with(size, index, |start, size| self.subtree(start, size, store))
    }

    /// RFC 9162 path which shows that the first `old` entries are a prefix of the first `size`.
    pub(crate) fn consistency(&self, old: u64, size: u64, store: &Store) -> Result<Vec<Digest>, Error> {
        self.check_size(size)?;
        if old > size {
            return Err(Error::NoEntry { asked: old, size });
        }
        merkle::consistency_path_with(size, old, |start, size| self.subtree(start, size, store))
    }

    fn check_size(&self, size: u64) -> Result<(), Error> {
        if size > self.size() { Err(Error::NoEntry { asked: size, size: self.size() }) } else { Ok(()) }
    }

    fn subtree(&self, start: u64, size: u64, store: &Store) -> Result<Digest, Error> {
        merkle::subtree_root_with(start, size, &mut |level, index| self.complete(level, index, store))
    }

    /// Root of the entries [`index << bits`, `(index + 1) << bits`), which the log has.
    fn complete(&self, bits: u32, index: u64, store: &Store) -> Result<Digest, Error> {
        let (level, inner) = (to_usize(bits / 8), bits % 8);
        let (number, at) = split_index(index << inner);
        let width = 1_usize << inner;
        if number == self.frontier.full_tiles(level) {
            return Ok(merkle::mth(&self.frontier.growing(level)[at..at + width]));
        }
        let tile = self.tile(level, number, store)?;
        Ok(merkle::mth(&tile[at..at + width]))
    }

    /// The hashes of a full tile, checked up to the tiles in memory.
    fn tile(&self, level: usize, number: u64, store: &Store) -> Result<Arc<Vec<Digest>>, Error> {
        self.tiles.get_or((level, number), || {
            let name = tile_path(level, number);
            let hashes = tile_hashes(&store.read(&name)?).ok_or_else(|| Error::corrupted(&name, "wrong length"))?;
            let (above, at) = split_index(number);
            let expected = if above == self.frontier.full_tiles(level + 1) {
                self.frontier.growing(level + 1)[at]
            } else {
                self.tile(level + 1, above, store)?[at]
            };
            match merkle::mth(&hashes) == expected {
                true => Ok(hashes),
                false => Err(Error::corrupted(&name, "a different root than in the tile above")),
            }
        })
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        self.frontier.encode(out);
        out.u32(len32(self.tail.len()));
        self.tail.iter().for_each(|entry| out.str16(entry));
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let frontier = Frontier::decode(input)?;
        let tail = list(input, |input| Ok(input.str16()?.to_vec()))?;
        if tail.len() != split_index(frontier.size()).1 {
            return Err(codec::Error::Malformed("tail of the log"));
        }
        Ok(Self::from_parts(frontier, tail))
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng, SimStorage};

    use super::*;

    fn hex(digest: &Digest) -> String {
        digest.to_string()
    }

    fn entry(index: u64) -> Vec<u8> {
        format!("entry {index}").into_bytes()
    }

    /// A log of `size` entries in memory, and the hash of each file that it filled.
    fn log(size: u64) -> (Log, Store, Vec<(String, String)>) {
        let (mut log, mut store, mut sealed) = (Log::new(), Store::new(SimStorage::new().storage()), Vec::new());
        (0..size).for_each(|index| log.push(&entry(index), &mut store, &mut sealed));
        let files = sealed.iter().map(|file| (file.name(), hex(&file.hash))).collect();
        (log, store, files)
    }

    fn growing(log: &Log, level: usize) -> String {
        let bytes: Vec<u8> = log.frontier.growing(level).iter().flat_map(|hash| hash.0).collect();
        hex(&hash::sha256(&bytes))
    }

    /// The expected values are those of C2SP's packages for Go, for a log of `entry 0`, `entry 1`,
    /// ...
    #[test]
    fn tiles_and_bundles_are_those_of_c2sp() {
        let (log, _, files) = log(70_000);
        let mut out = Writer::new();
        log.encode(&mut out);
        let decoded = Log::decode(&mut Reader::new(&out.into_bytes())).expect("decodes");
        assert_eq!((&decoded.frontier, decoded.root()), (&log.frontier, log.root()));
        let full = |name: &str| files.iter().find(|(other, _)| other == name).map(|(_, hash)| hash.as_str());
        for (name, hash) in [
            ("tile/0/000", "b0f6ca2ff42508faf8c6bb4ea8bb9c74243b19d4174fdc4fd17bdad9099e605e"),
            ("tile/0/001", "5b4af7f8c276af63acf25814d12ef3d04d3ed33d10431e9f8535876604e53acf"),
            ("tile/1/000", "44f879be76da41edaf37c0d67303fbd25f2ea44be93285b320561fbaaaaabbfa"),
            ("tile/entries/000", "c378282cb2167eb29f7e0c483ef2ce284728c12286469737cf8c3dc71e412ff1"),
            ("tile/entries/001", "763577dddb4ea347cde84a890db17d3f534baf4de625a511bba7985b3c4217bc"),
        ] {
            assert_eq!(full(name), Some(hash), "{name}");
        }
        assert_eq!(files.len(), 273 + 273 + 1);
        assert_eq!(growing(&log, 0), "e31da4e768fc0d0f1f1f0046a1c4b68d71326b04a07951a7d3dcefef0de9b8cd");
        assert_eq!(growing(&log, 1), "5a8eb2fe63c90ddf7fd813d165c04fa79d6eca48534b61bd312fcd2d1cf0aef3");
        assert_eq!(growing(&log, 2), "7e27fb89709243536fe26030f273fc9f7a73443f5e7ec296b3053aa520623e76");
        assert_eq!(
            hash::sha256(&bundle_bytes(&log.tail)).to_string(),
            "2ae1ce51fa31c2573335899beb5220aff9cd57b708ff07f4a04327914567f883"
        );
        assert_eq!(hex(&log.root()), "a3920fba7f239a071a9bd10721f1341addefbaededb41c7e24437a9d16bdf00a");
    }

    /// A tile of a small log, at every width, is the beginning of the same tile of a larger log.
    #[test]
    fn a_tile_only_grows_at_its_end() {
        let (small, small_store, _) = log(600);
        let (large, large_store, _) = log(1500);
        for (level, number, width) in [(0, 0, 256), (0, 2, 88), (0, 2, 1), (1, 0, 2)] {
            let then = small.tile_prefix(level, number, width, &small_store).expect("the log has it");
            assert_eq!(then.len(), width * 32);
            assert_eq!(large.tile_prefix(level, number, width, &large_store).ok(), Some(then));
        }
        for (level, number, width) in [(0, 2, 89), (0, 3, 1), (1, 0, 3), (2, 0, 1), (8, 0, 1), (63, u64::MAX, 256)] {
            let missing = small.tile_prefix(level, number, width, &small_store);
            assert!(matches!(missing, Err(Error::NoTile { .. })), "{level} {number} {width}");
        }
    }

    #[test]
    fn paths_are_spelt_as_c2sp_says() {
        assert_eq!(tile_path(0, 999), "tile/0/999");
        assert_eq!(tile_path(0, 1000), "tile/0/x001/000");
        assert_eq!(tile_path(5, 1_000_000), "tile/5/x001/x000/000");
        assert_eq!(tile_path(3, 123_456_789), "tile/3/x123/x456/789");
        assert_eq!(bundle_path(0), "tile/entries/000");
        assert_eq!(bundle_path(1_234_067), "tile/entries/x001/x234/067");
    }

    #[test]
    fn a_log_of_three_levels_proves_any_entry_at_any_size() {
        let (log, store, _) = log(70_000);
        let hashes: Vec<_> = (0..log.size()).map(|index| hash::log_entry_hash(&entry(index))).collect();
        let mut rng = SimRng::new(1);
        let edges = [1, 2, 255, 256, 257, 511, 512, 65_535, 65_536, 65_537, 69_999, 70_000];
        let random = (0..15).map(|_| 1 + rng.below(log.size()));
        let sizes: Vec<u64> = edges.into_iter().chain(random).collect();
        for size in &sizes {
            let root = log.root_at(*size, &store).expect("in memory");
            assert_eq!(root, merkle::mth(&hashes[..*size as usize]));
            for index in [0, *size / 2, *size - 1] {
                let path = log.inclusion(index, *size, &store).expect("in memory");
                let leaf = &hashes[index as usize];
                assert_eq!(merkle::verify_inclusion(index, *size, leaf, &path, &root), Ok(()));
            }
            for old in sizes.iter().filter(|old| *old <= size) {
                let old_root = log.root_at(*old, &store).expect("in memory");
                let path = log.consistency(*old, *size, &store).expect("in memory");
                assert_eq!(merkle::verify_consistency(*old, *size, &old_root, &root, &path), Ok(()));
            }
        }
        for index in [0, 255, 256, 65_535, 65_536, 69_999] {
            assert_eq!(log.entry(index, &store).expect("in memory"), entry(index));
        }
    }

    /// The path is kept as the log grows, and made from the tiles after a start.
    #[test]
    fn the_newest_path_proves_the_newest_entry() {
        let (mut log, mut store, mut sealed) = (Log::new(), Store::new(SimStorage::new().storage()), Vec::new());
        for index in 0..600 {
            log.push(&entry(index), &mut store, &mut sealed);
            let path = log.newest_path(&store).expect("in memory");
            let hash = hash::log_entry_hash(&entry(index));
            assert_eq!(merkle::verify_inclusion(index, index + 1, &hash, &path, &log.root()), Ok(()));
            let mut out = Writer::new();
            log.encode(&mut out);
            let started = Log::decode(&mut Reader::new(&out.into_bytes())).expect("decodes");
            assert_eq!(started.newest_path(&store).expect("in memory"), path);
        }
    }

    #[test]
    fn checkpoints_of_any_two_sizes_are_consistent() {
        let (log, store, _) = log(300);
        let roots: Vec<_> = (0..=300).map(|size| log.root_at(size, &store).expect("in memory")).collect();
        for new in 0..=300 {
            for old in 0..=new {
                let path = log.consistency(old, new, &store).expect("in memory");
                let (old_root, new_root) = (&roots[old as usize], &roots[new as usize]);
                assert_eq!(merkle::verify_consistency(old, new, old_root, new_root, &path), Ok(()), "{old} to {new}");
            }
        }
    }
}
