//! Pins of flushed states, and reads of their files.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::OpenMode;

use crate::{
    Engine, Error, Manifest, Result,
    check::check_superblock,
    files::{meta_log, values},
    place::{page::PageFile, refs::Segment},
    snapshot::Pin,
};

impl Engine {
    /// Pins the state of the newest superblock until [`Engine::unpin_snapshot`].
    ///
    /// # Errors
    /// If the storage fails.
    pub fn pin_snapshot(&mut self) -> Result<Manifest> {
        let mut files = BTreeMap::new();
        for file in PageFile::ALL {
            files.insert(file.name().to_owned(), self.store.page_file_bytes(file)?);
        }
        files.insert(meta_log::file_name(self.superblock.meta_file), self.superblock.meta_len);
        // A dead segment is still in the table, but its file may be deleted at any time. It is
        // needed only if the flush in progress is the first without it.
        let generation = self.superblock.generation;
        let needed = |segment: &Segment| segment.end > 0 && segment.dead_at.is_none_or(|at| at > generation);
        for (id, segment) in self.meta.segments.iter().filter(|(_, segment)| needed(segment)) {
            files.insert(values::file_name(*id), segment.end);
        }
        let id = self.next_pin();
        let superblock = self.superblock.clone();
        assert!(self.pins.iter().all(|pin| pin.id < id), "numbers of snapshots ascend");
        self.meta.pin(superblock.generation, id);
        let manifest = Manifest {
            id,
            position: superblock.position,
            files: files.iter().map(|(name, len)| (name.clone(), *len)).collect(),
            superblock: superblock.clone(),
        };
        self.pins.push(Pin { id, superblock, files });
        Ok(manifest)
    }

    /// Up to `len` bytes of a pinned file that begin at an offset; none at the file's end.
    ///
    /// # Errors
    /// `SnapshotMissing`, or a failure of the storage.
    pub fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let missing = || Error::SnapshotMissing { id, file: file.to_owned() };
        let pin = self.pins.iter().find(|pin| pin.id == id).ok_or_else(missing)?;
        let end = *pin.files.get(file).ok_or_else(missing)?;
        let len = end.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        if len > 0 {
            let handle = match values::file_number(file) {
                Some(segment) => self.store.values.open(segment, OpenMode::Existing)?,
                None => self.storage.open(file, OpenMode::Existing).map_err(Error::io("open", file))?,
            };
            handle.read_exact_at(&mut bytes, offset).map_err(Error::io("read", file))?;
        }
        Ok(bytes)
    }

    /// Returns a function that checks every hash of a pinned snapshot, as its receiver does; it may
    /// run on another thread. The snapshot must stay pinned until then. The function returns
    /// `Corrupted` for damage.
    ///
    /// # Errors
    /// `SnapshotMissing`.
    pub fn check_of_snapshot(&self, id: u64) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let pin = self.pins.iter().find(|pin| pin.id == id);
        let pin = pin.ok_or_else(|| Error::SnapshotMissing { id, file: String::new() })?;
        let (storage, superblock) = (Arc::clone(&self.storage), pin.superblock.clone());
        Ok(move || check_superblock(&storage, &superblock).verdict())
    }

    /// Releases the pages and files of a snapshot.
    pub fn unpin_snapshot(&mut self, id: u64) {
        self.pins.retain(|pin| pin.id != id);
        self.meta.unpin(id);
        self.clean_up();
    }
}
