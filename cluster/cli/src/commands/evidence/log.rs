//! A log as C2SP tiles, in a folder or over HTTP.
//!
//! Nothing that is read here is trusted: hashes lead to a signed root or not, and key changes carry
//! their signatures.

use std::{collections::BTreeMap, error::Error, fs, io, path::PathBuf, time::Duration};

use coppice_types::Digest;
use coppice_verify::{
    checkpoint::Checkpoint,
    header::{HEADER_BYTES_MAX, Header},
    keys::KEY_CHANGES_MAX,
    merkle,
    tile::{Content, TileName, WIDTH},
};
use reqwest::{Client, StatusCode, redirect};

use crate::{
    failure::{Code, Failure},
    text::safe,
};

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of a bundle: each entry is behind its length.
const BUNDLE_BYTES_MAX: usize = WIDTH as usize * (HEADER_BYTES_MAX + 2);
const HASH_BYTES: usize = 32;

/// A log of tiles, and the hashes that were read of it.
pub struct TileLog {
    source: Source,
    hashes: BTreeMap<TileName, Vec<u8>>,
}

enum Source {
    Folder(PathBuf),
    Web { client: Client, base: String },
}

impl TileLog {
    /// The log in a folder or at a URL.
    ///
    /// # Errors
    /// If the HTTP client can't be made.
    pub fn open(from: &str) -> Result<Self, Failure> {
        let source = if from.starts_with("http://") || from.starts_with("https://") {
            let client = Client::builder().redirect(redirect::Policy::none()).timeout(REQUEST_TIMEOUT).build();
            let client = client.map_err(|error| Failure::new(Code::Unavailable, told(error)))?;
            Source::Web { client, base: from.trim_end_matches('/').to_owned() }
        } else {
            Source::Folder(PathBuf::from(from))
        };
        Ok(Self { source, hashes: BTreeMap::new() })
    }

    /// The root of the first `size` entries; `None` if the log has fewer.
    pub async fn root(&mut self, size: u64) -> Result<Option<Digest>, Failure> {
        if size == 0 {
            return Ok(Some(merkle::empty_root()));
        }
        self.compute(size, |part| part(0, size)).await
    }

    /// The consistency path from `old` to `size`.
    pub async fn consistency(&mut self, old: u64, size: u64) -> Result<Option<Vec<Digest>>, Failure> {
        self.compute(size, |part| merkle::consistency_path_with(size, old, part)).await
    }

    /// The inclusion path of an entry at `size`.
    pub async fn inclusion(&mut self, index: u64, size: u64) -> Result<Option<Vec<Digest>>, Failure> {
        self.compute(size, |part| merkle::inclusion_path_with(size, index, part)).await
    }

    /// Computes something from the roots of parts of the log of `size` entries, and reads the tiles
    /// that it asks for. `None` if the log has not got one of them.
    async fn compute<T>(
        &mut self,
        size: u64,
        compute: impl Fn(&mut dyn FnMut(u64, u64) -> Result<Digest, TileName>) -> Result<T, TileName>,
    ) -> Result<Option<T>, Failure> {
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
    pub async fn headers_of_keys(&self, size: u64) -> Result<Vec<Header>, Failure> {
        let mut found = Vec::new();
        let mut changes = KEY_CHANGES_MAX;
        for first in (0..size).step_by(WIDTH.into()) {
            let width = u16::try_from(size - first).unwrap_or(WIDTH).min(WIDTH);
            let name = TileName { content: Content::Entries, number: first / u64::from(WIDTH), width };
            let bundle = self.tile(name, BUNDLE_BYTES_MAX).await?;
            let bundle = bundle.ok_or_else(|| self.lacks(&name.to_string()))?;
            let entries = entries(&bundle, width).ok_or_else(|| self.malformed(name))?;
            for (sequence, entry) in (first..).zip(entries) {
                // The kind is the second byte of a header (`docs/verification.md` section 9).
                let is_key = entry.get(1) == Some(&6);
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
    async fn tile(&self, name: TileName, most: usize) -> Result<Option<Vec<u8>>, Failure> {
        for width in [name.width, WIDTH] {
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

    async fn get(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, Failure> {
        match &self.source {
            Source::Folder(folder) => {
                let file = folder.join(path);
                match fs::metadata(&file).map(|about| about.len()) {
                    Ok(length) if length <= most as u64 => {
                        fs::read(&file).map(Some).map_err(|error| Failure::file(&file, &error))
                    }
                    Ok(_) => Err(self.wrong(path, "is too long")),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(Failure::file(&file, &error)),
                }
            }
            Source::Web { client, base } => {
                let unavailable = |error| Failure::new(Code::Unavailable, format!("{path}: {}", told(error)));
                let mut response = client.get(format!("{base}/{path}")).send().await.map_err(unavailable)?;
                match response.status() {
                    StatusCode::OK => {}
                    StatusCode::NOT_FOUND => return Ok(None),
                    status => return Err(Failure::new(Code::Unavailable, format!("{path}: the server says {status}"))),
                }
                let mut body = Vec::new();
                while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
                    if body.len() + chunk.len() > most {
                        return Err(self.wrong(path, "is too long"));
                    }
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(body))
            }
        }
    }

    fn malformed(&self, name: TileName) -> Failure {
        self.wrong(&name.to_string(), "is malformed")
    }

    /// A failure because the log has not got this.
    pub fn lacks(&self, what: &str) -> Failure {
        self.wrong(what, "is missing")
    }

    fn wrong(&self, what: &str, how: &str) -> Failure {
        Failure::new(Code::NotFound, format!("the log of --from: {} {how}", safe(what)))
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

/// The first entries of a bundle; `None` if it has fewer.
fn entries(mut bundle: &[u8], count: u16) -> Option<Vec<&[u8]>> {
    let mut found = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (length, rest) = bundle.split_first_chunk()?;
        let (entry, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        found.push(entry);
        bundle = rest;
    }
    Some(found)
}

/// The header, if it is at its own place.
fn at(header: Header, sequence: u64) -> Result<Header, ()> {
    if header.sequence.0 == sequence { Ok(header) } else { Err(()) }
}

/// Whether a checkpoint is of the log.
pub async fn has(log: &mut TileLog, checkpoint: &Checkpoint) -> Result<bool, Failure> {
    Ok(log.root(checkpoint.size).await? == Some(checkpoint.root))
}

/// An error with its causes, and without the address, which may have a password.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let (mut told, mut cause) = (error.to_string(), error.source());
    while let Some(inner) = cause {
        told = format!("{told}: {inner}");
        cause = inner.source();
    }
    safe(&told)
}
