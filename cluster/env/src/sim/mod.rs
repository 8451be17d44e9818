//! A file system in memory that loses power on demand.
//!
//! What [`SimStorage::power_loss`] may do, by its seed, to what was not synced:
//! - each 512-byte sector of each write is kept or lost on its own, so that writes are torn, lost and reordered; a file
//!   may have grown (with zeroes) though the bytes are lost;
//! - a discard is kept or lost sector by sector, as zeroes that were written are;
//! - a truncation is kept or lost; a new, renamed or removed name is kept or lost on its own, a rename as a whole.
//!
//! What was synced stays. A `sync_data` that was made to fail loses the writes it should have covered for good: they
//! are read back until the power goes, and no later sync saves them.

mod model;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::storage::{File, OpenMode, Storage, join};
use model::{Disk, InodeId};

/// A kind of call, for counting and for injected errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_exact_at`.
    Read,
    /// `write_all_at`, `discard` and `set_len`.
    Write,
    /// `sync_data`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `open` of a file.
    Open,
    /// What changes names: a file made by `open`, `remove`, `rename`, `create_dir_all`, `remove_dir_all`.
    Name,
}

/// An error that one call will answer.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which calls.
    pub operation: Operation,
    /// Only paths that contain this.
    pub path_part: String,
    /// How many matching calls go well before.
    pub skip: u64,
    /// The error.
    pub kind: io::ErrorKind,
}

/// A file system in memory. Clones and subdirectories share it; see the module's head for what it does.
#[derive(Clone, Debug)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
    prefix: String,
}

impl Default for SimStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl SimStorage {
    /// An empty file system without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Disk::new())
    }

    fn of(disk: Disk) -> Self {
        Self { disk: Arc::new(Mutex::new(disk)), prefix: String::new() }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole file system as an `Arc<dyn Storage>`.
    #[must_use]
    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// How many calls that change anything were made: writes, syncs and changes of names.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.disk().io_count()
    }

    /// Lets `n_ios` more changing calls go well; the next one fails (and may still have reached the medium), and then
    /// every call does.
    pub fn crash_after(&self, n_ios: u64) {
        self.disk().crash_after(n_ios);
    }

    /// Takes back what [`crash_after`](Self::crash_after) asked for, if it has not happened.
    pub fn disarm(&self) {
        self.disk().disarm();
    }

    /// Crashes now: every call fails from here on.
    pub fn halt(&self) {
        self.disk().halt();
    }

    /// How long each change and each sync will take. Nobody waits here: [`take_took`](Self::take_took) tells whoever drives the
    /// simulation how much time is to pass.
    pub fn set_pace(&self, change: Duration, sync: Duration) {
        self.disk().set_pace(change, sync);
    }

    /// How long the calls took since this was asked last.
    #[must_use]
    pub fn take_took(&self) -> Duration {
        self.disk().take_took()
    }

    /// The crash that was asked for has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.disk().crashed()
    }

    /// What a machine finds after its power failed now. This file system is not changed, so that several outcomes of
    /// one moment can be tried; the new one has no faults, no locks and no open files.
    #[must_use]
    pub fn power_loss(&self, seed: u64) -> Self {
        Self::of(self.disk().power_loss(seed))
    }

    /// What a new process finds after this one was killed: everything, synced or not, though not more durable.
    #[must_use]
    pub fn process_loss(&self) -> Self {
        Self::of(self.disk().process_loss())
    }

    /// Inverts one bit of a file, on the medium and in what is read.
    ///
    /// # Panics
    /// If the file or the byte does not exist: tests name what they damage.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) {
        let path = join(&self.prefix, path);
        self.disk().flip_bit(&path, offset, bit);
    }

    /// Limits the bytes in all files; `StorageFull` beyond it.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().set_capacity(bytes);
    }

    /// Lets only so many more files and directories be opened, as if the process had no descriptors left then; `None`
    /// ends the shortage. Files that are open stay usable.
    pub fn set_opens_left(&self, opens: Option<u64>) {
        self.disk().set_opens_left(opens);
    }

    /// Bytes in all files.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.disk().used_bytes()
    }

    /// Makes one later call fail.
    pub fn inject(&self, fault: Fault) {
        self.disk().inject(fault);
    }

    /// Drops all injected faults that have not happened.
    pub fn clear_faults(&self) {
        self.disk().clear_faults();
    }

    /// Paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.disk().files(&self.prefix)
    }
}

impl Storage for SimStorage {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = join(&self.prefix, path);
        let inode = self.disk().open(&path, mode)?;
        Ok(Arc::new(SimFile { storage: self.clone(), path, inode }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk().remove(&join(&self.prefix, path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk().rename(&join(&self.prefix, from), &join(&self.prefix, to))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk().list(&join(&self.prefix, dir))
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk().create_dir_all(&join(&self.prefix, dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk().sync_dir(&join(&self.prefix, dir))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk().free_bytes())
    }

    fn remove_dir_all(&self, dir: &str) -> io::Result<()> {
        self.disk().remove_dir_all(&join(&self.prefix, dir))
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        self.open(path, OpenMode::OpenOrCreate)?;
        let path = join(&self.prefix, path);
        self.disk().take_lock(&path)?;
        Ok(Box::new(Lock { storage: self.clone(), path }))
    }

    fn subdir(&self, dir: &str) -> io::Result<Arc<dyn Storage>> {
        crate::storage::parts(dir)?;
        Ok(Arc::new(Self { disk: Arc::clone(&self.disk), prefix: join(&self.prefix, dir) }))
    }
}

struct Lock {
    storage: SimStorage,
    path: String,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.storage.disk().release_lock(&self.path);
    }
}

#[derive(Debug)]
struct SimFile {
    storage: SimStorage,
    path: String,
    inode: InodeId,
}

impl File for SimFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.storage.disk().read(self.inode, &self.path, buf, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.disk().write(self.inode, &self.path, bytes, offset)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len > self.len()? { self.set_len(len) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.disk().discard(self.inode, &self.path, offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.storage.disk().len(self.inode)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.disk().set_len(self.inode, &self.path, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.storage.disk().sync(self.inode, &self.path)
    }
}

#[cfg(test)]
mod tests;
