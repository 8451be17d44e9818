//! A log as C2SP tiles, in a folder or over HTTP.
//!
//! Nothing that is read here is trusted: hashes lead to a signed root or not, and key changes carry
//! their signatures.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    header::Header,
    keys::KEY_CHANGES_MAX,
    merkle,
    tile::{Content, TileName, WIDTH},
};

use crate::{
    error::Error,
    fetch::Web,
    mirror::{BUNDLE_BYTES_MAX, entries, is_key_change},
};

const HASH_BYTES: usize = 32;

/// A log of tiles, and the hashes that were read of it.
pub struct TileLog {
    source: Source,
    hashes: BTreeMap<TileName, Vec<u8>>,
}

enum Source {
    Folder(PathBuf),
    Web { web: Web, base: String },
}

impl TileLog {
    /// The log in a folder or at a URL.
    ///
    /// # Errors
    /// If the HTTP client can't be made.
    pub fn open(from: &str) -> Result<Self, Error> {
        if from.starts_with("http://") || from.starts_with("https://") {
            return Ok(Self::at(Web::new(None)?, from));
        }
        Ok(Self { source: Source::Folder(PathBuf::from(from)), hashes: BTreeMap::new() })
    }

    /// The log at a URL.
    #[must_use]
    pub fn at(web: Web, base: &str) -> Self {
        Self { source: Source::Web { web, base: base.to_owned() }, hashes: BTreeMap::new() }
    }

    /// The root of the first `size` entries; `None` if the log has fewer.
    ///
    /// # Errors
    /// If the log can't be read, or a tile is malformed.
    pub async fn root(&mut self, size: u64) -> Result<Option<Digest>, Error> {
        if size == 0 {
            return Ok(Some(merkle::empty_root()));
        }
        self.compute(size, |part| part(0, size)).await
    }

    /// Whether a checkpoint is of the log.
    ///
    /// # Errors
    /// If the log can't be read, or a tile is malformed.
    pub async fn has(&mut self, checkpoint: &Checkpoint) -> Result<bool, Error> {
        Ok(self.root(checkpoint.size).await? == Some(checkpoint.root))
    }

    /// The consistency path from `old` to `size`.
    ///
    /// # Errors
    /// If the log can't be read, or a tile is malformed.
    pub async fn consistency(&mut self, old: u64, size: u64) -> Result<Option<Vec<Digest>>, Error> {
        self.compute(size, |part| merkle::consistency_path_with(size, old, part)).await
    }

    /// The inclusion path of an entry at `size`.
    ///
    /// # Errors
    /// If the log can't be read, or a tile is malformed.
    pub async fn inclusion(&mut self, index: u64, size: u64) -> Result<Option<Vec<Digest>>, Error> {
        self.compute(size, |part| merkle::inclusion_path_with(size, index, part)).await
    }

    /// Computes something from the roots of parts of the log of `size` entries, and reads the tiles
    /// that it asks for. `None` if the log has not got one of them.
    async fn compute<T>(
        &mut self,
        size: u64,
        compute: impl Fn(&mut dyn FnMut(u64, u64) -> Result<Digest, TileName>) -> Result<T, TileName>,
    ) -> Result<Option<T>, Error> {
        loop {
            let hashes = &self.hashes;
            let mut complete = |level, index| subtree(hashes, size, level, index);
            let mut part = |start, size| merkle::subtree_root_with(start, size, &mut complete);
            let missing = match compute(&mut part) {
                Ok(computed) => return Ok(Some(computed)),
                Err(missing) => missing,
            };
            let bytes = usize::from(missing.width) * HASH_BYTES;
            let Some(tile) = self.tile(missing, usize::from(WIDTH) * HASH_BYTES).await? else { return Ok(None) };
            let tile = tile.get(..bytes).ok_or_else(|| self.malformed(missing))?.to_vec();
            self.hashes.insert(missing, tile);
        }
    }

    /// Genesis, and all headers of the kind `key` among the first `size` entries.
    ///
    /// # Errors
    /// If the log can't be read, or lacks a bundle.
    pub async fn headers_of_keys(&self, size: u64) -> Result<Vec<Header>, Error> {
        let mut found = Vec::new();
        let mut changes = KEY_CHANGES_MAX;
        for first in (0..size).step_by(WIDTH.into()) {
            let width = u16::try_from(size - first).unwrap_or(WIDTH).min(WIDTH);
            let name = TileName { content: Content::Entries, number: first / u64::from(WIDTH), width };
            let bundle = self.tile(name, BUNDLE_BYTES_MAX).await?;
            let bundle = bundle.ok_or_else(|| self.lacks(&name.to_string()))?;
            let entries = entries(&bundle, width).ok_or_else(|| self.malformed(name))?;
            for (sequence, entry) in (first..).zip(entries) {
                let is_key = is_key_change(entry);
                if sequence > 0 && (!is_key || changes == 0) {
                    continue;
                }
                if let Ok(header) = Header::decode(entry).map_err(drop).and_then(|header| at(header, sequence)) {
                    changes -= usize::from(is_key);
                    found.push(header);
                }
            }
        }
        Ok(found)
    }

    /// A tile with at least as many hashes or entries as named.
    pub(crate) async fn tile(&self, name: TileName, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let full = Some(WIDTH).filter(|full| *full != name.width);
        for width in [name.width].into_iter().chain(full) {
            if let Some(tile) = self.get(&TileName { width, ..name }.to_string(), most).await? {
                return Ok(Some(tile));
            }
        }
        match (&self.source, self.wider(name)) {
            (Source::Folder(_), Some(width)) => self.get(&TileName { width, ..name }.to_string(), most).await,
            _ => Ok(None),
        }
    }

    /// The narrowest partial tile of a folder that has all of this one.
    fn wider(&self, name: TileName) -> Option<u16> {
        let Source::Folder(folder) = &self.source else { return None };
        let partial = folder.join(TileName { width: 1, ..name }.to_string());
        let names =
            fs::read_dir(partial.parent()?).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).filter(|width| (name.width..WIDTH).contains(width)).min()
    }

    async fn get(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        match &self.source {
            Source::Folder(folder) => {
                let file = folder.join(path);
                let failed = |error: io::Error| failed(&file, &error);
                match fs::metadata(&file).map(|about| about.len()) {
                    Ok(length) if length <= most as u64 => fs::read(&file).map(Some).map_err(failed),
                    Ok(_) => Err(self.wrong(path, "is too long")),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            }
            Source::Web { web, base } => web.get(base, path, most).await,
        }
    }

    fn malformed(&self, name: TileName) -> Error {
        self.wrong(&name.to_string(), "is malformed")
    }

    /// The error that the log has not got this.
    #[must_use]
    pub fn lacks(&self, what: &str) -> Error {
        self.wrong(what, "is missing")
    }

    fn wrong(&self, what: &str, how: &str) -> Error {
        Error::Refused(format!("the log: {what} {how}"))
    }
}

/// The root of a complete subtree of 2^level entries, or the tile that has it.
fn subtree(hashes: &BTreeMap<TileName, Vec<u8>>, size: u64, level: u32, index: u64) -> Result<Digest, TileName> {
    let (tile_level, inside) = (level / 8, level % 8);
    let first = index << inside;
    let number = first / u64::from(WIDTH);
    let behind = (size >> (8 * tile_level)) - number * u64::from(WIDTH);
    let level = u8::try_from(tile_level).expect("a log has fewer than 2^64 entries");
    let width = u16::try_from(behind).unwrap_or(WIDTH).min(WIDTH);
    let name = TileName { content: Content::Hashes { level }, number, width };
    let tile = hashes.get(&name).ok_or(name)?;
    let (from, count) = ((first % u64::from(WIDTH)) as usize, 1_usize << inside);
    let leaves = tile.chunks_exact(HASH_BYTES).skip(from).take(count).filter_map(Digest::from_slice);
    Ok(merkle::mth(&leaves.collect::<Vec<_>>()))
}

/// The header, if it is at its own place.
fn at(header: Header, sequence: u64) -> Result<Header, ()> {
    if header.sequence.0 == sequence { Ok(header) } else { Err(()) }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Disk(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
