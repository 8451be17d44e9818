//! Raft snapshots: pinned files of one flush, sent as they are, and checked by the receiver before
//! they are believed.
//!
//! A snapshot consists of the state saved at the snapshot's position, the sealed files that the
//! state lists, and the growing journal up to a length. The superblock that names state and journal
//! travels in the manifest. The state comes first, because it lists the other files.
//!
//! A pin costs no copy: sealed files never change, the journal only grows, and the pin keeps the
//! saved state from being removed. A receiver that crashed continues where it was. It writes the
//! superblock last, so until then its directory is that of a new replica.

use std::{collections::HashSet, io, sync::Arc};

use coppice_env::{OpenMode, Storage};
use coppice_types::Digest;
use coppice_verify::hash;

use crate::{
    Error, Manifest, Position, Root, SnapshotFile, fsck, journal,
    manifest::listed,
    state::State,
    store::{self, is_ours},
    superblock::{SUPERBLOCK, Superblock, state_path},
};

/// Limit on the number of snapshots that are pinned at once.
pub const PINS_MAX: usize = 4;
/// Limit on the bytes of one read of a snapshot.
const READ_BYTES_MAX: usize = 4 << 20;
impl Root {
    /// Flushes up to `position`, and keeps the durable state of that moment readable until it is
    /// unpinned.
    ///
    /// # Errors
    /// Those of [`Root::flush`]; [`Error::Snapshot`] if too many are pinned.
    pub fn pin_snapshot(&mut self, position: Position) -> Result<Manifest, Error> {
        if self.durable.pins.len() >= PINS_MAX {
            return Err(Error::Snapshot { id: 0, what: "too many are pinned" });
        }
        self.flush_and_save(position, true)?;
        let superblock = &self.durable.superblock;
        assert_eq!(superblock.saved, superblock.generation, "a snapshot has a saved state of its own");
        let name = state_path(superblock.saved);
        let state = self.store.read(&name)?;
        let mut files = vec![SnapshotFile { name, len: state.len() as u64, hash: hash::sha256(&state) }];
        files.extend(listed(&self.state.sealed, &superblock.journal));
        let manifest = Manifest { id: superblock.saved, position, files, superblock: superblock.file() };
        let before = self.durable.pins.insert(manifest.id, manifest.clone());
        assert!(before.is_none(), "a pin has a name of its own");
        Ok(manifest)
    }

    /// Bytes of a pinned snapshot's file that begin at `offset`: at most `len`, and at least one
    /// before the file's end.
    ///
    /// # Errors
    /// If the snapshot is not pinned, or has no such file.
    pub fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let manifest = self.durable.pins.get(&id).ok_or(Error::Snapshot { id, what: "not pinned" })?;
        let file = manifest.files.iter().find(|other| other.name == file);
        let file = file.ok_or(Error::Snapshot { id, what: "no such file" })?;
        let rest = file.len.checked_sub(offset).ok_or(Error::Snapshot { id, what: "offset beyond the file" })?;
        let len = usize::try_from(rest).unwrap_or(usize::MAX).min(len).min(READ_BYTES_MAX);
        store::read_part(self.store.storage(), &file.name, offset, len)
    }

    /// Returns a function that checks a pinned snapshot as its receiver does. It may run on another
    /// thread, and the snapshot must stay pinned until it ends. It returns [`Error::Corrupted`] for
    /// damage.
    ///
    /// # Errors
    /// If the snapshot is not pinned.
    pub fn check_of_snapshot(&self, id: u64) -> Result<impl FnOnce() -> Result<(), Error> + Send + use<>, Error> {
        let manifest = self.durable.pins.get(&id).ok_or(Error::Snapshot { id, what: "not pinned" })?;
        let (storage, superblock) = (self.store.shared(), Superblock::from_file(&manifest.superblock)?);
        Ok(move || fsck::check(&storage, &superblock)?.verdict())
    }

    /// Ends the pin of a snapshot.
    pub fn unpin_snapshot(&mut self, id: u64) {
        if self.durable.pins.remove(&id).is_some() {
            self.remove_saved(id);
        }
    }
}

/// Receives a snapshot into a directory that is empty or has parts of a snapshot. Files that are
/// complete already are not fetched again.
#[derive(Debug)]
pub struct SnapshotReceiver {
    storage: Arc<dyn Storage>,
    manifest: Manifest,
    /// The index of the next file in the manifest.
    at: usize,
    /// The number of that file's bytes that are here.
    offset: u64,
}

impl SnapshotReceiver {
    /// Begins a transfer, or continues an earlier one.
    ///
    /// # Errors
    /// If the directory holds a replica, or the storage fails.
    pub fn new(storage: Arc<dyn Storage>, manifest: Manifest) -> Result<Self, Error> {
        let id = manifest.id;
        storage.create_dir_all("").map_err(Error::io("", "create"))?;
        let mut receiver = Self { storage, manifest, at: 0, offset: 0 };
        if receiver.len_of(SUPERBLOCK)?.is_some() {
            return Err(Error::Snapshot { id, what: "the directory holds a replica" });
        }
        if receiver.is_whole(&receiver.manifest.files[0])? {
            receiver.list_files()?;
        }
        Ok(receiver)
    }

    /// Reads the list of files from the state, which is complete. Files that an earlier transfer
    /// completed are not requested again, and files of other snapshots are removed.
    fn list_files(&mut self) -> Result<(), Error> {
        let name = self.manifest.files[0].name.clone();
        let journal = Superblock::from_file(&self.manifest.superblock)?.journal;
        let (state, end) = State::from_file(&name, &store::read_file(&*self.storage, &name)?)?;
        if end != journal {
            return Err(Error::corrupted(&name, "not the state of its superblock"));
        }
        assert_eq!(self.at, 0, "the state comes first");
        self.manifest.files.truncate(1);
        self.manifest.files.extend(listed(&state.sealed, &journal));
        let names: HashSet<&str> = self.manifest.files.iter().map(|file| file.name.as_str()).collect();
        if names.len() != self.manifest.files.len() {
            return Err(Error::corrupted(&name, "it lists a file twice"));
        }
        for stranger in store::walk(&*self.storage, "")? {
            if is_ours(&stranger) && !names.contains(stranger.as_str()) {
                self.storage.remove(&stranger).map_err(Error::io(&stranger, "remove"))?;
            }
        }
        self.at = 1;
        while let Some(file) = self.manifest.files.get(self.at)
            && self.is_whole(file)?
        {
            self.at += 1;
        }
        Ok(())
    }

    fn is_whole(&self, file: &SnapshotFile) -> Result<bool, Error> {
        Ok(self.len_of(&file.name)? == Some(file.len) && self.check(file).is_ok())
    }

    /// The file to ask for, and the offset to start from; `None` once every file is complete.
    #[must_use]
    pub fn next(&self) -> Option<(&str, u64)> {
        self.manifest.files.get(self.at).map(|file| (file.name.as_str(), self.offset))
    }

    /// Up to `len` bytes that an earlier transfer left at a place. They may be kept if the sender
    /// has the same bytes there.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn held(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let there = self.len_of(name)?.unwrap_or(0).saturating_sub(offset);
        let len = usize::try_from(there).unwrap_or(usize::MAX).min(len);
        if len == 0 { Ok(Vec::new()) } else { store::read_part(&*self.storage, name, offset, len) }
    }

    /// Writes bytes of the file that [`SnapshotReceiver::next`] names, at its offset.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if other bytes are expected. [`Error::Corrupted`] if the file is
    /// complete and differs from the manifest; the file then begins again.
    pub fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let refuse = |what| Error::Snapshot { id: self.manifest.id, what };
        let file = self.manifest.files.get(self.at).ok_or_else(|| refuse("nothing is missing"))?.clone();
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= file.len);
        let (true, Some(end)) = (file.name == name && self.offset == offset, end) else {
            return Err(refuse("not the bytes that come next"));
        };
        let handle = store::open_or_create(&*self.storage, name)?;
        handle.write_all_at(bytes, offset).map_err(Error::io(name, "write"))?;
        self.offset = end;
        if end < file.len {
            return Ok(());
        }
        // An earlier transfer may have left bytes beyond the end.
        handle.set_len(end).map_err(Error::io(name, "cut"))?;
        handle.sync_data().map_err(Error::io(name, "sync"))?;
        assert_eq!(end, file.len, "a file ends where the manifest says");
        self.offset = 0;
        self.check(&file)?;
        if self.at == 0 {
            return self.list_files();
        }
        self.at += 1;
        Ok(())
    }

    /// Checks everything in the directory and turns it into a replica's, which [`Root::open`]
    /// opens.
    ///
    /// # Errors
    /// If files are missing, or do not belong together.
    pub fn finish(self) -> Result<Position, Error> {
        if self.next().is_some() {
            return Err(Error::Snapshot { id: self.manifest.id, what: "files are missing" });
        }
        let storage = &*self.storage;
        fsck::check(&self.storage, &Superblock::from_file(&self.manifest.superblock)?)?.verdict()?;
        store::sync_parents(storage, self.manifest.files.iter().map(|file| file.name.as_str()))?;
        store::write_file(storage, SUPERBLOCK, &self.manifest.superblock)?;
        store::sync_parents(storage, [SUPERBLOCK].into_iter())?;
        Ok(self.manifest.position)
    }

    fn len_of(&self, name: &str) -> Result<Option<u64>, Error> {
        match self.storage.open(name, OpenMode::Existing) {
            Ok(file) => file.len().map(Some).map_err(Error::io(name, "measure")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(name, "open")(error)),
        }
    }

    fn check(&self, file: &SnapshotFile) -> Result<(), Error> {
        let bytes = store::read_file(&*self.storage, &file.name)?;
        let hash = match file.name.starts_with("journal/") {
            true => journal_chain(&bytes),
            false => Some(hash::sha256(&bytes)),
        };
        if hash == Some(file.hash) {
            Ok(())
        } else {
            Err(Error::corrupted(&file.name, "a different hash than the manifest's"))
        }
    }
}

/// The hash chain over the records of a journal file; `None` if a record is cut off. `fsck` checks
/// the records' checksums.
fn journal_chain(mut bytes: &[u8]) -> Option<Digest> {
    let mut chain = Digest::default();
    while !bytes.is_empty() {
        let (record, rest) = bytes.split_at_checked(journal::record_len(bytes)?)?;
        chain = journal::chain(&chain, record);
        bytes = rest;
    }
    Some(chain)
}
