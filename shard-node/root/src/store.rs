//! The files of the root group's directory that are written once: full tiles, bundles and indexes.
//!
//! They stay in memory until a flush. The flush writes each under a temporary name, syncs it, and
//! renames it into place, so a reader of the directory never sees a part of a file. A crash leaves
//! some of the files, each whole, and possibly the temporary one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::Arc,
};

use coppice_env::{File, OpenMode, Storage};

use crate::Error;

/// Name of a file that is not complete yet.
const TEMPORARY: &str = "incoming";

/// The file whose lock keeps other processes out of the directory.
const LOCK: &str = "lock";

/// The directory's lock, held until this value is dropped.
pub(crate) struct Lock {
    _guard: Box<dyn Send + Sync>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Takes the directory's lock.
pub(crate) fn lock(storage: &dyn Storage) -> Result<Lock, Error> {
    let guard = storage.lock(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::InUse,
        _ => Error::io(LOCK, "lock")(error),
    })?;
    Ok(Lock { _guard: guard })
}

/// Whether a file with this name is removed if nothing refers to it. The superblock and the lock
/// are not.
pub(crate) fn is_ours(name: &str) -> bool {
    name == TEMPORARY || ["tile/", "index/", "journal/", "state/"].iter().any(|prefix| name.starts_with(prefix))
}

/// The directory, and the files that are not written to it yet.
#[derive(Debug)]
pub(crate) struct Store {
    storage: Arc<dyn Storage>,
    pending: BTreeMap<String, Arc<[u8]>>,
}

impl Store {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, pending: BTreeMap::new() }
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// The directory, for work outside this machine.
    pub(crate) fn shared(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.storage)
    }

    /// Bytes that the next flush writes.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Adds a complete file.
    pub(crate) fn add(&mut self, name: String, bytes: Vec<u8>) {
        let before = self.pending.insert(name, bytes.into());
        assert!(before.is_none(), "a sealed file is made once");
    }

    /// Takes the files that a flush would write.
    pub(crate) fn take_pending(&mut self) -> BTreeMap<String, Arc<[u8]>> {
        std::mem::take(&mut self.pending)
    }

    /// All bytes of a file.
    pub(crate) fn read(&self, name: &str) -> Result<Arc<[u8]>, Error> {
        match self.pending.get(name) {
            Some(bytes) => Ok(Arc::clone(bytes)),
            None => read_file(self.storage(), name).map(Arc::from),
        }
    }

    /// The added files, for a flush to write.
    pub(crate) fn pending(&self) -> &BTreeMap<String, Arc<[u8]>> {
        &self.pending
    }

    /// Forgets files that are durable now.
    pub(crate) fn note_written(&mut self, files: &BTreeMap<String, Arc<[u8]>>) {
        self.pending.retain(|name, _| !files.contains_key(name));
    }
}

/// Makes every file durable under its name.
pub(crate) fn write_files(storage: &dyn Storage, files: &BTreeMap<String, Arc<[u8]>>) -> Result<(), Error> {
    for (name, bytes) in files {
        write_file(storage, name, bytes)?;
    }
    sync_parents(storage, files.keys().map(String::as_str))
}

/// Opens a file for writing. Creates it and its directories if they are missing.
pub(crate) fn open_or_create(storage: &dyn Storage, name: &str) -> Result<Arc<dyn File>, Error> {
    if let Some((parent, _)) = name.rsplit_once('/') {
        storage.create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    storage.open(name, OpenMode::OpenOrCreate).map_err(Error::io(name, "open"))
}

/// Writes a file under the temporary name, syncs it and renames it. [`sync_parents`] makes the name
/// durable.
pub(crate) fn write_file(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Result<(), Error> {
    assert_ne!(name, TEMPORARY, "a file gets a name of its own");
    if let Some((parent, _)) = name.rsplit_once('/') {
        storage.create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    let file = create_temporary(storage).map_err(Error::io(TEMPORARY, "create"))?;
    file.write_all_at(bytes, 0).map_err(Error::io(TEMPORARY, "write"))?;
    file.sync_data().map_err(Error::io(TEMPORARY, "sync"))?;
    drop(file);
    storage.rename(TEMPORARY, name).map_err(Error::io(name, "rename"))
}

/// Creates a new temporary file. A file whose sync failed before can't be trusted to keep new
/// bytes.
fn create_temporary(storage: &dyn Storage) -> io::Result<Arc<dyn File>> {
    match storage.open(TEMPORARY, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            storage.remove(TEMPORARY)?;
            storage.open(TEMPORARY, OpenMode::CreateNew)
        }
        other => other,
    }
}

/// Makes the names of these files durable.
pub(crate) fn sync_parents<'a>(storage: &dyn Storage, names: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let parents: BTreeSet<&str> = names.map(|name| name.rsplit_once('/').map_or("", |(parent, _)| parent)).collect();
    parents.iter().try_for_each(|parent| storage.sync_dir(parent).map_err(Error::io(parent, "sync")))
}

/// All bytes of a file on disk.
pub(crate) fn read_file(storage: &dyn Storage, name: &str) -> Result<Vec<u8>, Error> {
    let file = open_existing(storage, name)?;
    let len = file.len().map_err(Error::io(name, "measure"))?;
    let len = usize::try_from(len).map_err(|_| Error::corrupted(name, "too long for memory"))?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).map_err(Error::io(name, "read"))?;
    Ok(bytes)
}

/// Opens a file that must exist.
pub(crate) fn open_existing(storage: &dyn Storage, name: &str) -> Result<Arc<dyn File>, Error> {
    storage.open(name, OpenMode::Existing).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::corrupted(name, "missing"),
        _ => Error::io(name, "open")(error),
    })
}

/// Part of a file on disk. A file that ends before the part does is corrupted.
pub(crate) fn read_part(storage: &dyn Storage, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let file = open_existing(storage, name)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupted(name, "ends early"),
        _ => Error::io(name, "read")(error),
    })?;
    Ok(bytes)
}

/// The full names of all files below a directory, ascending.
pub(crate) fn walk(storage: &dyn Storage, directory: &str) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    for name in list(storage, directory)? {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        match storage.open(&path, OpenMode::Existing) {
            Ok(_) => files.push(path),
            Err(_) => files.extend(walk(storage, &path)?),
        }
    }
    Ok(files)
}

/// The names in a directory; none if the directory does not exist.
fn list(storage: &dyn Storage, directory: &str) -> Result<Vec<String>, Error> {
    match storage.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(Error::io(directory, "list")),
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    #[test]
    fn an_added_file_is_readable_before_and_after_the_flush() {
        let disk = SimStorage::new();
        let mut store = Store::new(disk.storage());
        store.add("tile/0/000".to_owned(), vec![1, 2, 3]);
        assert_eq!((store.pending_bytes(), &*store.read("tile/0/000").expect("pending")), (3, &[1, 2, 3][..]));
        assert!(disk.files().is_empty(), "nothing is written before the flush");
        let files = store.pending().clone();
        write_files(store.storage(), &files).expect("the disk works");
        store.add("tile/0/001".to_owned(), vec![4]);
        store.note_written(&files);
        assert_eq!(&*store.read("tile/0/000").expect("on disk"), &[1, 2, 3]);
        assert_eq!(store.pending_bytes(), 1, "a file that was added meanwhile waits for the next flush");
        assert_eq!(walk(&disk, "").expect("lists"), ["tile/0/000"]);
    }

    #[test]
    fn a_temporary_file_that_a_crash_left_is_replaced() {
        let disk = SimStorage::new();
        let left = disk.open(TEMPORARY, OpenMode::CreateNew).expect("is new");
        left.write_all_at(&[9; 100], 0).expect("writes");
        write_file(&disk, "superblock", &[1]).expect("writes");
        assert_eq!(read_file(&disk, "superblock").expect("reads"), [1]);
    }

    #[test]
    fn a_part_beyond_the_end_is_damage() {
        let disk = SimStorage::new();
        write_file(&disk, "superblock", &[1, 2]).expect("writes");
        assert_eq!(read_part(&disk, "superblock", 1, 1).expect("reads"), [2]);
        assert!(matches!(read_part(&disk, "superblock", 1, 2), Err(Error::Corrupted { .. })));
        assert!(matches!(read_file(&disk, "state/1"), Err(Error::Corrupted { .. })));
    }
}
