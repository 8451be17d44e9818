//! The log on disk: hash tiles and entry bundles of C2SP `tlog-tiles`.
//!
//! Each tile is one file under the name of the full tile, and grows in place. So a partial tile is
//! the beginning of its file, and a reader takes as much of it as the log had at its size.
//!
//! **Invariants.** Nothing here knows how much of the log is verified; [`crate::witness`] does.
//! Bytes behind the verified size may be anything: they were fetched and led to no signed root, or
//! a crash tore them. The next extension writes over them. Memory is that of one bundle and of one
//! tile of each level.

use std::{io::ErrorKind, sync::Arc};

use coppice_env::{File, OpenMode, Storage};
use coppice_types::{Digest, Sequence};
use coppice_verify::{
    hash::log_entry_hash,
    header::{Body, HEADER_BYTES_MAX, Header},
    keys::KeyChange,
    merkle,
    tile::{Content, TileName, WIDTH},
};

use crate::error::{Error, damaged, disk};

/// Most bytes of a bundle: each entry is behind its length.
pub const BUNDLE_BYTES_MAX: usize = WIDTH as usize * (HEADER_BYTES_MAX + 2);
const HASH_BYTES: usize = 32;
const TILE: u64 = WIDTH as u64;

/// The log of a folder.
#[derive(Clone, Debug)]
pub struct Mirror {
    storage: Arc<dyn Storage>,
}

impl Mirror {
    /// The log in this folder.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage }
    }

    /// The root of the first `size` entries.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror has fewer.
    pub fn root(&self, size: u64) -> Result<Digest, Error> {
        if size == 0 { Ok(merkle::empty_root()) } else { self.part(0, size) }
    }

    /// The consistency path from `old` to `size` entries.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn consistency(&self, old: u64, size: u64) -> Result<Vec<Digest>, Error> {
        merkle::consistency_path_with(size, old, |start, size| self.part(start, size))
    }

    /// The inclusion path of an entry among `size`.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, Error> {
        merkle::inclusion_path_with(size, index, |start, size| self.part(start, size))
    }

    /// The bytes of an entry.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn entry(&self, index: u64) -> Result<Vec<u8>, Error> {
        let width = u16::try_from(index % TILE + 1).expect("at most 256");
        let bundle = self.read(TileName { content: Content::Entries, number: index / TILE, width })?;
        let last = entries(&bundle, width).and_then(|found| found.last().map(|entry| entry.to_vec()));
        last.ok_or_else(|| torn(index))
    }

    /// Shows the entries of a range in order, each with its index, until one is refused. Returns
    /// whether none was.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn each(&self, from: u64, to: u64, mut see: impl FnMut(u64, &[u8]) -> bool) -> Result<bool, Error> {
        let mut at = from;
        while at < to {
            let (bundle, first) = self.bundle(at, to)?;
            let found = entries(&bundle, width_of(at, to)).ok_or_else(|| torn(at))?;
            for (index, entry) in (first..).zip(found).skip((at - first) as usize) {
                if !see(index, entry) {
                    return Ok(false);
                }
                at = index + 1;
            }
        }
        Ok(true)
    }

    /// Shows the entries of a log of `size` entries from the newest on, each with its index, until
    /// one is refused.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn each_back(&self, size: u64, mut see: impl FnMut(u64, &[u8]) -> bool) -> Result<(), Error> {
        let mut end = size;
        while let Some(last) = end.checked_sub(1) {
            let (bundle, first) = self.bundle(last, end)?;
            let found = entries(&bundle, width_of(last, end)).ok_or_else(|| torn(last))?;
            for (index, entry) in (first..).zip(found).collect::<Vec<_>>().into_iter().rev() {
                if !see(index, entry) {
                    return Ok(());
                }
            }
            end = first;
        }
        Ok(())
    }

    /// The bundle of an entry in a log of `size` entries, and the index of its first entry.
    fn bundle(&self, index: u64, size: u64) -> Result<(Vec<u8>, u64), Error> {
        let number = index / TILE;
        let bundle = self.read(TileName { content: Content::Entries, number, width: width_of(index, size) })?;
        Ok((bundle, number * TILE))
    }

    /// The key change at this entry.
    ///
    /// # Errors
    /// Like [`Mirror::root`], and if the entry is none.
    pub fn key_change(&self, index: u64) -> Result<KeyChange, Error> {
        let change = key_change(index, &self.entry(index)?);
        change.ok_or_else(|| damaged(format!("log: entry {index} is no key change")))
    }

    /// A tile or a bundle as it was when the log had as many entries.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror has fewer.
    pub fn read(&self, name: TileName) -> Result<Vec<u8>, Error> {
        let (path, short) = (path(name), || damaged(format!("log: {name} is missing or short")));
        let file = match self.storage.open(&path, OpenMode::Existing) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(short()),
            file => file.map_err(disk(&path))?,
        };
        let length = match name.content {
            Content::Hashes { .. } => usize::from(name.width) * HASH_BYTES,
            Content::Entries => usize::try_from(file.len().map_err(disk(&path))?).unwrap_or(usize::MAX),
        };
        let mut bytes = vec![0; length.min(BUNDLE_BYTES_MAX)];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(short()),
            read => read.map_err(disk(&path))?,
        }
        if name.content == Content::Entries {
            let found = entries(&bytes, name.width).ok_or_else(short)?;
            let length = found.iter().map(|entry| entry.len() + 2).sum();
            bytes.truncate(length);
        }
        Ok(bytes)
    }

    /// An extension of the log, from this size on.
    ///
    /// # Errors
    /// Like [`Mirror::root`].
    pub fn extension(&self, from: u64) -> Result<Extension, Error> {
        let mut extension =
            Extension { mirror: self.clone(), size: from, levels: Vec::new(), bundle_bytes: 0, changes: Vec::new() };
        for level in 0_u8.. {
            let hashes = from.checked_shr(8 * u32::from(level)).unwrap_or(0);
            if hashes == 0 {
                break;
            }
            let width = u16::try_from(hashes % TILE).expect("below 256");
            let number = hashes / TILE;
            let tile = match width {
                0 => Vec::new(),
                _ => self.read(TileName { content: Content::Hashes { level }, number, width })?,
            };
            extension.levels.push(tile.chunks_exact(HASH_BYTES).filter_map(Digest::from_slice).collect());
        }
        if let Some(width) = u16::try_from(from % TILE).ok().filter(|width| *width > 0) {
            let bundle = TileName { content: Content::Entries, number: from / TILE, width };
            extension.bundle_bytes = self.read(bundle)?.len() as u64;
        }
        Ok(extension)
    }

    /// The root of the part [`start`, `start + size`).
    fn part(&self, start: u64, size: u64) -> Result<Digest, Error> {
        merkle::subtree_root_with(start, size, &mut |level, index| self.subtree(level, index))
    }

    /// The root of a complete subtree of 2^level entries.
    fn subtree(&self, level: u32, index: u64) -> Result<Digest, Error> {
        let (tile_level, inside) = (level / 8, level % 8);
        let (first, count) = (index << inside, 1_u64 << inside);
        let (number, from) = (first / TILE, first % TILE);
        let level = u8::try_from(tile_level).expect("a log has fewer than 2^64 entries");
        let width = u16::try_from(from + count).expect("a subtree lies within its tile");
        let tile = self.read(TileName { content: Content::Hashes { level }, number, width })?;
        let hashes = tile.chunks_exact(HASH_BYTES).skip(from as usize).filter_map(Digest::from_slice);
        Ok(merkle::mth(&hashes.collect::<Vec<_>>()))
    }

    fn open(&self, name: TileName) -> Result<Arc<dyn File>, Error> {
        let path = path(name);
        let dir = path.rsplit_once('/').expect("a tile lies in a folder").0;
        match self.storage.open(&path, OpenMode::Existing) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            file => return file.map_err(disk(&path)),
        }
        self.storage.create_dir_all(dir).map_err(disk(dir))?;
        let file = self.storage.open(&path, OpenMode::OpenOrCreate).map_err(disk(&path))?;
        self.storage.sync_dir(dir).map_err(disk(dir))?;
        Ok(file)
    }
}

/// A growth of a log whose entries are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Size before.
    pub from: u64,
    /// Size after.
    pub to: u64,
    /// Indices of the key changes among the new entries, ascending.
    pub changes: Vec<u64>,
}

/// A log that grows, before anybody has verified its root.
#[derive(Debug)]
pub struct Extension {
    mirror: Mirror,
    size: u64,
    /// The hashes of the newest tile of each level that is not full.
    levels: Vec<Vec<Digest>>,
    /// Bytes of the newest bundle that is not full.
    bundle_bytes: u64,
    changes: Vec<(u64, KeyChange)>,
}

impl Extension {
    /// Number of entries so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The key changes among the new entries, each with its index.
    #[must_use]
    pub fn changes(&self) -> &[(u64, KeyChange)] {
        &self.changes
    }

    /// The growth so far, from this size on.
    #[must_use]
    pub fn grown(&self, from: u64) -> Grown {
        Grown { from, to: self.size, changes: self.changes.iter().map(|(index, _)| *index).collect() }
    }

    /// Adds entries of one bundle. They are durable when this returns.
    ///
    /// # Errors
    /// If the disk refuses. Then the extension is of no use any more.
    ///
    /// # Panics
    /// If the entries do not fit the bundle.
    pub fn push(&mut self, new: &[&[u8]]) -> Result<(), Error> {
        if new.is_empty() {
            return Ok(());
        }
        let number = self.size / TILE;
        assert!(self.size % TILE + new.len() as u64 <= TILE, "the entries are of one bundle");
        let bundle = TileName { content: Content::Entries, number, width: WIDTH };
        let mut framed = Vec::new();
        for entry in new {
            let length = u16::try_from(entry.len()).map_err(|_| Error::Refused("an entry is too long".to_owned()))?;
            framed.extend_from_slice(&length.to_be_bytes());
            framed.extend_from_slice(entry);
        }
        self.write(bundle, &framed, self.bundle_bytes)?;
        self.bundle_bytes += framed.len() as u64;
        for (index, entry) in (self.size..).zip(new) {
            self.changes.extend(key_change(index, entry).map(|change| (index, change)));
        }
        self.grow(0, number, new.iter().map(|entry| log_entry_hash(entry)).collect())?;
        self.size += new.len() as u64;
        if self.size.is_multiple_of(TILE) {
            self.bundle_bytes = 0;
        }
        Ok(())
    }

    /// Adds hashes to the newest tile of a level, and the tile's root to the level above if it is
    /// full then.
    fn grow(&mut self, level: u8, number: u64, new: Vec<Digest>) -> Result<(), Error> {
        let at = usize::from(level);
        if self.levels.len() == at {
            self.levels.push(Vec::new());
        }
        let bytes: Vec<u8> = new.iter().flat_map(|hash| hash.0).collect();
        let name = TileName { content: Content::Hashes { level }, number, width: WIDTH };
        self.write(name, &bytes, (self.levels[at].len() * HASH_BYTES) as u64)?;
        self.levels[at].extend(new);
        if self.levels[at].len() == usize::from(WIDTH) {
            let root = merkle::mth(&std::mem::take(&mut self.levels[at]));
            self.grow(level + 1, number / TILE, vec![root])?;
        }
        Ok(())
    }

    fn write(&self, name: TileName, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let (file, path) = (self.mirror.open(name)?, path(name));
        file.write_all_at(bytes, offset).and_then(|()| file.sync_data()).map_err(disk(&path))
    }
}

/// The width of the bundle of an entry in a log of `size` entries.
fn width_of(index: u64, size: u64) -> u16 {
    u16::try_from((size - index / TILE * TILE).min(TILE)).expect("at most 256")
}

fn torn(index: u64) -> Error {
    damaged(format!("log: the bundle of entry {index} is damaged"))
}

/// The file of a tile, partial or not.
fn path(name: TileName) -> String {
    TileName { width: WIDTH, ..name }.to_string()
}

/// The first entries of a bundle; `None` if it has fewer.
#[must_use]
pub fn entries(mut bundle: &[u8], count: u16) -> Option<Vec<&[u8]>> {
    let mut found = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (length, rest) = bundle.split_first_chunk()?;
        let (entry, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        found.push(entry);
        bundle = rest;
    }
    Some(found)
}

/// Whether an entry says that it changes the ledger's key: the second byte of a header is its kind
/// (`docs/verification.md` section 9).
#[must_use]
pub fn is_key_change(entry: &[u8]) -> bool {
    entry.get(1) == Some(&6)
}

/// The key change that an entry is, if it is one at its own place.
#[must_use]
pub fn key_change(index: u64, entry: &[u8]) -> Option<KeyChange> {
    match Header::decode(entry).ok().filter(|_| is_key_change(entry))? {
        Header { body: Body::Key(change), sequence: Sequence(at), .. } if at == index => Some(change),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{ClusterId, Params};
    use coppice_verify::{replay::Ledger, shard_map::ShardMap};

    use super::*;

    /// A log whose keys change at entries 3 and 300.
    fn ledger(size: u64) -> Ledger {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
        for at in 1..size {
            match at {
                3 => ledger.rotate(&[2; 32]),
                300 => ledger.rotate(&[3; 32]),
                _ => ledger.append_unknown(9, at.to_le_bytes().to_vec()),
            }
        }
        ledger
    }

    fn grow(mirror: &Mirror, from: u64, entries: &[Vec<u8>]) -> Extension {
        let mut extension = mirror.extension(from).expect("the mirror is sound");
        let mut left: Vec<&[u8]> = entries[from as usize..].iter().map(Vec::as_slice).collect();
        while !left.is_empty() {
            let room = (TILE - extension.size() % TILE) as usize;
            let behind = left.split_off(room.min(left.len()));
            extension.push(&left).expect("the disk is well");
            left = behind;
        }
        extension
    }

    #[test]
    fn any_steps_of_growth_give_the_roots_and_paths_of_the_log() {
        let log = ledger(600);
        let entries: Vec<Vec<u8>> = log.headers.iter().map(Header::encode).collect();
        let hashes: Vec<Digest> = log.headers.iter().map(Header::hash).collect();
        let mirror = Mirror::new(SimStorage::new().storage());
        let mut size = 0;
        for next in [1, 2, 255, 256, 257, 300, 301, 512, 600] {
            let grown = grow(&mirror, size, &entries[..next]);
            assert_eq!(grown.size(), next as u64);
            size = next as u64;
            for old in [1, 2, 128, 255, 256, 257, 300, 511, 512, 599].into_iter().filter(|old| *old <= size) {
                assert_eq!(mirror.root(old).expect("it is there"), merkle::mth(&hashes[..old as usize]));
                let path = mirror.consistency(old, size).expect("it is there");
                let (old_root, root) = (mirror.root(old).expect("there"), mirror.root(size).expect("there"));
                assert_eq!(merkle::verify_consistency(old, size, &old_root, &root, &path), Ok(()), "{old} to {size}");
                let path = mirror.inclusion(old - 1, size).expect("it is there");
                assert_eq!(merkle::verify_inclusion(old - 1, size, &hashes[old as usize - 1], &path, &root), Ok(()));
                assert_eq!(mirror.entry(old - 1).expect("it is there"), entries[old as usize - 1]);
            }
        }
        assert!(mirror.root(601).is_err() && mirror.entry(600).is_err());
    }

    #[test]
    fn key_changes_are_found_at_their_places_alone() {
        let log = ledger(600);
        let entries: Vec<Vec<u8>> = log.headers.iter().map(Header::encode).collect();
        let mirror = Mirror::new(SimStorage::new().storage());
        let grown = grow(&mirror, 0, &entries);
        assert_eq!(grown.changes().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [3, 300]);
        assert_eq!(mirror.key_change(300).expect("it is there"), grown.changes()[1].1);
        assert!(mirror.key_change(4).is_err());
        assert_eq!(key_change(4, &entries[3]), None, "a copy elsewhere");
    }

    #[test]
    fn what_was_fetched_in_vain_is_written_over() {
        let (log, mut other) = (ledger(300), ledger(2));
        while other.headers.len() < 400 {
            other.append_unknown(9, vec![7; 40]);
        }
        let [good, bad] = [&log, &other].map(|log| log.headers.iter().map(Header::encode).collect::<Vec<_>>());
        let mirror = Mirror::new(SimStorage::new().storage());
        grow(&mirror, 0, &good[..200]);
        grow(&mirror, 200, &bad);
        assert_eq!(mirror.root(200).expect("it stays"), log.checkpoint(200).root);
        grow(&mirror, 200, &good);
        for size in [200, 256, 300] {
            assert_eq!(mirror.root(size).expect("it is there"), log.checkpoint(size).root);
        }
        let partial = TileName { content: Content::Entries, number: 1, width: 44 };
        let bundle = mirror.read(partial).expect("it is there");
        assert_eq!(entries(&bundle, 44).expect("44 entries").concat(), good[256..].concat());
    }
}
