//! Physical snapshots: the files of a flushed state, pinned by the sender and adopted by the
//! receiver.
//!
//! A pin holds the superblock of one generation, and keeps its pages and files from being reused.
//! Other pages change during the transfer, so files are not compared as a whole. Instead, the
//! receiver checks every hash that the superblock leads to before it publishes the directory. A
//! crash of the receiver leaves an unpublished directory. Its contents, from this transfer or an
//! earlier one, are not trusted. But bytes that equal the sender's need not be sent again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use coppice_env::{
    File, OpenMode, Storage,
    bug::{Bug, planted},
};
use coppice_types::codec::{Error as CodecError, Reader, Writer};

use crate::{
    Error, Position, Result,
    check::check_state,
    files::{
        dir::{is_ours, lock},
        meta_log,
        superblock::{self, MACHINE_STATE_BYTES_MAX, Superblock},
        values::{self, tier},
    },
    place::{
        bytes::to_u32,
        page::{PAGE_BYTES, PageFile},
    },
};

const FORMAT: u8 = 1;
/// The manifest of the snapshot that is being received.
pub(crate) const MANIFEST_FILE: &str = "snapshot";
/// Limit for the files of a snapshot, since a manifest comes from a peer.
const FILES_MAX: usize = 1 << 20;

/// The contents of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Number of the sender's pin.
    pub id: u64,
    /// The last raft entry in the snapshot.
    pub position: Position,
    /// Names and lengths in bytes.
    pub files: Vec<(String, u64)>,
    pub(crate) superblock: Superblock,
}

/// A pinned snapshot.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) id: u64,
    pub(crate) superblock: Superblock,
    pub(crate) files: BTreeMap<String, u64>,
}

impl Manifest {
    /// Bytes in all files.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|(_, len)| len).fold(0, |sum, len| sum.saturating_add(*len))
    }

    /// The bytes that the caller stored with the flush.
    #[must_use]
    pub fn machine_state(&self) -> &[u8] {
        &self.superblock.machine_state
    }

    /// The segments that go to the cold directory. The newest ones stay, with at most
    /// `hot_value_bytes_max` bytes.
    fn cold(&self, hot_value_bytes_max: u64) -> BTreeSet<String> {
        let segment = |(name, len): &(String, u64)| values::file_number(name).map(|number| (number, *len));
        let segments: BTreeMap<u32, u64> = self.files.iter().filter_map(segment).collect();
        let mut hot = 0_u64;
        let older = segments.iter().rev().enumerate().skip_while(|(age, (_, len))| {
            hot = hot.saturating_add(**len);
            *age == 0 || hot <= hot_value_bytes_max
        });
        older.map(|(_, (id, _))| values::file_name(*id)).collect()
    }

    /// Encodes the manifest for a peer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(FORMAT);
        out.u64(self.id);
        out.u64(self.superblock.generation);
        out.u64(self.position.index);
        out.u64(self.position.term);
        out.u64(self.superblock.meta_file);
        out.u64(self.superblock.meta_len);
        out.u64(self.superblock.meta_chain);
        out.str32(&self.superblock.machine_state);
        out.u32(to_u32(self.files.len() as u64));
        for (name, len) in &self.files {
            out.str16(name.as_bytes());
            out.u64(*len);
        }
        out.into_bytes()
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    /// If the bytes are not a manifest, or name files that no snapshot has.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode(bytes).map_err(|error| Error::SnapshotRefused(format!("manifest: {error}")))
    }
}

fn decode(bytes: &[u8]) -> std::result::Result<Manifest, CodecError> {
    let mut input = Reader::new(bytes);
    if input.u8()? != FORMAT {
        return Err(CodecError::Malformed("format"));
    }
    let id = input.u64()?;
    let generation = input.u64()?;
    let position = Position { index: input.u64()?, term: input.u64()? };
    let superblock = Superblock {
        generation,
        position,
        meta_file: input.u64()?,
        meta_len: input.u64()?,
        meta_chain: input.u64()?,
        machine_state: input.str32()?.into(),
    };
    if superblock.machine_state.len() > MACHINE_STATE_BYTES_MAX || generation == 0 || generation == u64::MAX {
        return Err(CodecError::Malformed("superblock"));
    }
    let mut files = Vec::new();
    for _ in 0..input.u32()? {
        let name = std::str::from_utf8(input.str16()?).map_err(|_| CodecError::Malformed("file name"))?;
        let paged = PageFile::ALL.iter().any(|file| file.name() == name);
        let canonical = |expected: Option<String>| expected.is_some_and(|expected| expected == name);
        let meta = canonical(meta_log::file_number(name).map(meta_log::file_name));
        let segment = canonical(values::file_number(name).map(values::file_name));
        if files.len() == FILES_MAX || !(paged || meta || segment) {
            return Err(CodecError::Malformed("file name"));
        }
        files.push((name.to_owned(), input.u64()?));
    }
    input.finish()?;
    if !files.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(CodecError::Malformed("file order"));
    }
    Ok(Manifest { id, position, files, superblock })
}

/// Receives a snapshot into a directory that holds no engine.
pub struct SnapshotReceiver {
    storage: Arc<dyn Storage>,
    manifest: Manifest,
    files: Vec<Incoming>,
    _lock: Box<dyn Send + Sync>,
}

/// A file that is being received.
struct Incoming {
    file: Arc<dyn File>,
    /// Number of first bytes that equal those of the sender's file.
    have: u64,
    /// Length of the file that an earlier transfer left.
    held: u64,
}

impl std::fmt::Debug for SnapshotReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReceiver").field("id", &self.manifest.id).finish_non_exhaustive()
    }
}

impl SnapshotReceiver {
    /// Begins a transfer. Files of an earlier transfer are kept, see [`Self::held`]. If there is a
    /// cold directory, old segments are received there: all but the newest ones with up to
    /// `hot_value_bytes_max` bytes.
    ///
    /// # Errors
    /// `AlreadyExists`, `Locked`, or a failure of the storage.
    pub fn new(storage: Arc<dyn Storage>, manifest: Manifest, hot_value_bytes_max: u64) -> Result<Self> {
        storage.create_dir_all("").map_err(Error::io("create", "the directory"))?;
        let guard = lock(&*storage)?;
        if superblock::exists(&*storage)? {
            return Err(Error::AlreadyExists);
        }
        let encoded = manifest.encode();
        let cold_storage = storage.cold();
        let cold = if cold_storage.is_some() { manifest.cold(hot_value_bytes_max) } else { BTreeSet::new() };
        let wanted = |name: &str, of_cold: bool| {
            let known = manifest.files.binary_search_by(|(file, _)| file.as_str().cmp(name)).is_ok();
            known && cold.contains(name) == of_cold
        };
        for name in storage.list("").map_err(Error::io("list", "the directory"))? {
            if is_ours(&name) && !wanted(&name, false) {
                storage.remove(&name).map_err(Error::io("remove", &name))?;
            }
        }
        tier::clear(&*storage, |name| wanted(name, true))?;
        if let Some(there) = cold_storage.as_ref().filter(|_| !cold.is_empty()) {
            tier::begin(&*storage, &**there)?;
        }
        if !holds(&*storage, &encoded)? {
            let file =
                storage.open(MANIFEST_FILE, OpenMode::OpenOrCreate).map_err(Error::io("create", MANIFEST_FILE))?;
            file.set_len(0).map_err(Error::io("write", MANIFEST_FILE))?;
            file.write_all_at(&encoded, 0).map_err(Error::io("write", MANIFEST_FILE))?;
            file.sync_data().map_err(Error::io("sync", MANIFEST_FILE))?;
            storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        }
        let mut files = Vec::new();
        for (name, len) in &manifest.files {
            let place = cold_storage.as_ref().filter(|_| cold.contains(name)).unwrap_or(&storage);
            let file = place.open(name, OpenMode::OpenOrCreate).map_err(Error::io("create", name))?;
            let held = file.len().map_err(Error::io("read", name))?;
            if held > *len {
                file.set_len(*len).map_err(Error::io("write", name))?;
            }
            files.push(Incoming { file, have: 0, held: held.min(*len) });
        }
        Ok(Self { storage, manifest, files, _lock: guard })
    }

    /// The next incomplete file and the offset at which to continue; `None` if all are complete.
    #[must_use]
    pub fn next(&self) -> Option<(&str, u64)> {
        let pairs = self.manifest.files.iter().zip(&self.files);
        let missing = pairs.into_iter().find(|((_, len), file)| file.have < *len);
        missing.map(|((name, _), file)| (name.as_str(), file.have))
    }

    /// Up to `len` bytes that an earlier transfer left at a place. If the sender has the same bytes
    /// there, they may be passed to [`Self::write`].
    ///
    /// # Errors
    /// A failure of the storage.
    pub fn held(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let at = self.manifest.files.iter().position(|(name, _)| name == file);
        let Some(incoming) = at.map(|at| &self.files[at]) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; incoming.held.saturating_sub(offset).min(len as u64) as usize];
        incoming.file.read_exact_at(&mut bytes, offset).map_err(Error::io("read", file))?;
        Ok(bytes)
    }

    /// Takes bytes for the file and offset that [`Self::next`] returned.
    ///
    /// # Errors
    /// `SnapshotRefused` for any other file or offset, or a failure of the storage.
    pub fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let refused = |what: &str| Error::SnapshotRefused(format!("{file}: {what}"));
        let at = self.manifest.files.iter().position(|(name, _)| name == file).ok_or(refused("not in the manifest"))?;
        let Incoming { file: handle, have, .. } = &mut self.files[at];
        let left = self.manifest.files[at].1 - *have;
        if offset != *have || bytes.len() as u64 > left {
            return Err(refused("not the next bytes"));
        }
        let cut = planted(Bug::SnapshotCutShort) && file == "data" && bytes.len() as u64 == left;
        let kept = if cut { bytes.len().saturating_sub(PAGE_BYTES) } else { bytes.len() };
        handle.write_all_at(&bytes[..kept], offset).map_err(Error::io("write", file))?;
        handle.write_all_at(&vec![0; bytes.len() - kept], offset + kept as u64).map_err(Error::io("write", file))?;
        *have += bytes.len() as u64;
        Ok(())
    }

    /// Checks every hash, then publishes the directory. [`crate::Engine::open`] opens it in the
    /// state of the manifest. For the key of an erased value, `reason` gives the key of the record
    /// that must be there for it, or `None` if none must.
    ///
    /// # Errors
    /// `SnapshotRefused` if a file is incomplete, or a failure of the storage. `Corrupted` if a
    /// hash does not match; the files are then deleted. `Unchecked` if the storage failed during
    /// the check; the files stay, since they may be sound, and the next transfer may take their
    /// bytes.
    pub fn finish(self, reason: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<()> {
        if let Some((name, _)) = self.next() {
            return Err(Error::SnapshotRefused(format!("{name} is not complete")));
        }
        for ((name, _), incoming) in self.manifest.files.iter().zip(&self.files) {
            incoming.file.sync_data().map_err(Error::io("sync", name))?;
        }
        if let Err(error) = check_state(&self.storage, &self.manifest.superblock, &reason).verdict()
            && !planted(Bug::SnapshotCutShort)
        {
            if matches!(error, Error::Corrupted { .. }) {
                wipe(&*self.storage)?;
            }
            return Err(error);
        }
        if let Some(cold) = self.storage.cold()
            && tier::list(&*cold)?.is_some()
        {
            cold.sync_dir("").map_err(Error::io("sync", "the cold directory"))?;
        }
        self.storage.remove(MANIFEST_FILE).map_err(Error::io("remove", MANIFEST_FILE))?;
        self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        superblock::publish(&*self.storage, &self.manifest.superblock)
    }
}

fn holds(storage: &dyn Storage, encoded: &[u8]) -> Result<bool> {
    let file = match storage.open(MANIFEST_FILE, OpenMode::Existing) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("open", MANIFEST_FILE)(error)),
    };
    if file.len().map_err(Error::io("read", MANIFEST_FILE))? != encoded.len() as u64 {
        return Ok(false);
    }
    let mut bytes = vec![0; encoded.len()];
    file.read_exact_at(&mut bytes, 0).map_err(Error::io("read", MANIFEST_FILE))?;
    Ok(bytes == encoded)
}

/// Deletes the files of an unpublished directory, the manifest last.
fn wipe(storage: &dyn Storage) -> Result<()> {
    tier::clear(storage, |_| false)?;
    let mut names = storage.list("").map_err(Error::io("list", "the directory"))?;
    names.sort_by_key(|name| name == MANIFEST_FILE);
    for name in names {
        if name == MANIFEST_FILE || is_ours(&name) {
            storage.remove(&name).map_err(Error::io("remove", &name))?;
        }
    }
    storage.sync_dir("").map_err(Error::io("sync", "the directory"))
}

#[cfg(test)]
mod tests;
