//! The root log: entries, their Merkle tree, proofs.
//!
//! What is read from a file is checked before it is believed: an entry against its hash in its tile, a tile against the
//! hash in the tile above, and so up to what is growing, which is in memory.

use std::sync::Arc;

use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};
use coppice_verify::{hash, merkle};

use crate::{
    Error,
    cache::Cache,
    chunk::{Kind, Sealed},
    command::{len32, list},
    store::Store,
    tiles::{Frontier, bundle_bytes, bundle_entries, bundle_path, split_index, tile_hashes, tile_path},
};

/// Tiles that are kept in memory, of 8 KiB each.
const TILES_CACHED_MAX: usize = 64;

/// The root log.
#[derive(Debug)]
pub(crate) struct Log {
    frontier: Frontier,
    root: Digest,
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
        Self { frontier, root, tail, tiles: Cache::new(TILES_CACHED_MAX) }
    }

    pub(crate) fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// Root of the whole log.
    pub(crate) fn root(&self) -> Digest {
        self.root
    }

    /// Appends an entry; tiles and the bundle that it fills go to the store.
    pub(crate) fn push(&mut self, entry: &[u8], store: &mut Store, sealed: &mut Vec<Sealed>) {
        let (number, at) = split_index(self.size());
        assert_eq!(at, self.tail.len(), "the tail is the growing bundle");
        self.tail.push(entry.to_vec());
        for tile in self.frontier.push(hash::log_entry_hash(entry)) {
            let kind = Kind::Tile(u8::try_from(tile.level).expect("a log has at most 8 levels"));
            seal(store, sealed, kind, tile.number, tile.bytes);
        }
        self.root = self.frontier.root();
        if split_index(self.size()).0 > number {
            let bytes = bundle_bytes(&self.tail);
            self.tail.clear();
            seal(store, sealed, Kind::Bundle, number, bytes);
        }
    }

    /// Entry `index`.
    pub(crate) fn entry(&self, index: u64, store: &Store) -> Result<Vec<u8>, Error> {
        let mut entries = self.entries(index, 1, store)?;
        entries.pop().ok_or(Error::NoEntry { asked: index, size: self.size() })
    }

    /// Up to `count` entries of one bundle, from `index` on; none from the log's end on.
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
                false => Err(Error::corrupted(&name, format!("entry {at} has another hash than in its tile"))),
            })
            .collect()
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

    /// RFC 9162 path that shows the first `old` entries to be a prefix of the first `size`.
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
        let (level, inner) = (bits / 8, bits % 8);
        let level = usize::try_from(level).expect("at most 8 levels");
        let (number, at) = split_index(index << inner);
        let width = 1_usize << inner;
        if number == self.frontier.full_tiles(level) {
            return Ok(merkle::mth(&self.frontier.growing(level)[at..at + width]));
        }
        let tile = self.tile(level, number, store)?;
        Ok(merkle::mth(&tile[at..at + width]))
    }

    /// The hashes of a full tile, checked up to what is in memory.
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
                false => Err(Error::corrupted(&name, "another root than in the tile above")),
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

/// Gives a complete file to the store, and notes its hash.
pub(crate) fn seal(store: &mut Store, sealed: &mut Vec<Sealed>, kind: Kind, number: u64, bytes: Vec<u8>) {
    let file = Sealed { kind, number, len: bytes.len() as u64, hash: hash::sha256(&bytes) };
    store.add(file.name(), bytes);
    sealed.push(file);
}
