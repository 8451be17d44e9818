//! A file system in memory that loses power on demand.
//!
//! [`SimStorage::power_loss`] decides by its seed what happens to changes that were not synced:
//!
//! - Each 512-byte sector of each write is kept or lost on its own, so that writes are torn, lost
//!   and reordered. A file may have grown (with zeroes) although its bytes are lost.
//! - A discard is kept or lost sector by sector, like a write of zeroes.
//! - A truncation is kept or lost. A new, renamed or removed name is kept or lost on its own, and a
//!   rename as a whole.
//!
//! Synced changes stay. A `sync_data` that was made to fail loses the writes that it should have
//! covered for good. They can be read until the power fails, and no later sync saves them.

mod fault;
mod inode;
mod model;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use self::{inode::InodeId, model::Disk};
use crate::storage::{File, OpenMode, Storage, join};

pub use self::fault::{Fault, Operation};

/// A file system in memory. Clones and subdirectories share it. See the module's head.
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

    /// Number of changing calls so far: writes, syncs and changes of names.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.disk().io_count()
    }

    /// Crashes after `n_ios` more changing calls. The next changing call fails, though it may have
    /// reached the medium, and then every call fails.
    pub fn crash_after(&self, n_ios: u64) {
        self.disk().crash_after(n_ios);
    }

    /// Cancels [`crash_after`](Self::crash_after), if the crash has not happened yet.
    pub fn disarm(&self) {
        self.disk().disarm();
    }

    /// Crashes now: every call fails from here on.
    pub fn halt(&self) {
        self.disk().halt();
    }

    /// Sets how long each change and each sync takes. No call waits here. The driver of the
    /// simulation asks [`take_took`](Self::take_took) how much time has to pass.
    pub fn set_pace(&self, change: Duration, sync: Duration) {
        self.disk().set_pace(change, sync);
    }

    /// The time that calls took since this was last asked.
    #[must_use]
    pub fn take_took(&self) -> Duration {
        self.disk().take_took()
    }

    /// Whether the crash has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.disk().crashed()
    }

    /// The file system that a machine finds after a power failure at this moment. This file system
    /// does not change, so several outcomes of one moment can be tried. The new one has no faults,
    /// no locks and no open files.
    #[must_use]
    pub fn power_loss(&self, seed: u64) -> Self {
        Self::of(self.disk().power_loss(seed))
    }

    /// The file system that a new process finds after this one was killed: all changes, synced or
    /// not. They are as durable as before.
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

    /// Limits the total bytes of all files. Calls beyond it fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().set_capacity(bytes);
    }

    /// Limits how many more files and directories can be opened, as if the process had no
    /// descriptors left after that. `None` ends the shortage. Open files stay usable.
    pub fn set_opens_left(&self, opens: Option<u64>) {
        self.disk().set_opens_left(opens);
    }

    /// Total bytes of all files.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.disk().used_bytes()
    }

    /// Makes one later call fail.
    pub fn inject(&self, fault: Fault) {
        self.disk().inject(fault);
    }

    /// Drops all injected faults that have not happened yet.
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
