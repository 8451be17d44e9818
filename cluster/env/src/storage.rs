//! Files as the state machines need them: positioned reads and writes, explicit durability.
//!
//! Rules that both implementations keep:
//! - a write is durable only after `sync_data` on that file, and a new, renamed or removed name only after `sync_dir`
//!   on the directory that holds it; until then either may be lost, in part and in any order;
//! - a failed `sync_data` may have lost the writes that it should have covered for good: callers must not go on as if
//!   a later one made up for it;
//! - reads see all writes that were made before, synced or not;
//! - what ran out has a kind of its own, which [`crate::Shortage`] reads: `StorageFull` for room, `OutOfMemory` for
//!   descriptors and memory, at any call that opens something.

use std::fmt::Debug;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

/// What [`Storage::open`] does about a file that exists, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist: `NotFound` otherwise.
    Existing,
    /// An empty file is made if there is none.
    OpenOrCreate,
    /// The file must not exist: `AlreadyExists` otherwise.
    CreateNew,
}

/// A tree of directories and files. Paths are relative to its root and separated by `/`; the root itself is `""`.
pub trait Storage: Send + Sync + Debug {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As [`OpenMode`] says; `NotFound` if the directory is missing.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// The same for a file that is hardly read from the system's cache, since nobody reads it or its readers have a cache of their own:
    /// where the system can, whole sectors go to the disk past its cache, those of a [`DirectBuffer`] as they are, and others by one if
    /// they are many and the file grows by them.
    ///
    /// # Errors
    /// As there.
    fn open_direct(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.open(path, mode)
    }

    /// Removes a file. Open handles stay usable.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Renames a file or directory within this storage, replacing a file in one atomic step.
    ///
    /// # Errors
    /// `NotFound` if `from` does not exist.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Names of the files and directories in a directory, sorted.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Makes a directory and its missing parents. They are durable when this returns.
    ///
    /// # Errors
    /// If one can't be made.
    fn create_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Makes the names in a directory durable: those made, renamed to and removed.
    ///
    /// # Errors
    /// If it can't be synced.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// How many bytes the disk has room for, as far as the system says: others use it, too, and there may be quotas.
    ///
    /// # Errors
    /// If it can't be asked.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Removes a directory with all that it holds; one that is missing is no error.
    ///
    /// # Errors
    /// If something in it can't be removed.
    fn remove_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Takes an exclusive lock by the name of a file (made if needed) until the guard is dropped or the process ends.
    ///
    /// # Errors
    /// `WouldBlock` if it is held.
    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>>;

    /// The same storage seen from a directory, which need not exist yet.
    ///
    /// # Errors
    /// If the path is not a legal one.
    fn subdir(&self, dir: &str) -> io::Result<Arc<dyn Storage>>;

    /// The second storage beside this one, on a cheaper disk, if there is one: see [`crate::TieredStorage`].
    fn cold(&self) -> Option<Arc<dyn Storage>> {
        None
    }
}

/// An open file. Calls may come from several threads.
pub trait File: Send + Sync + Debug {
    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, with zeroes between the present end and there.
    ///
    /// # Errors
    /// `StorageFull` on a full disk; a part may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// [`File::write_all_at`] of parts that follow on each other.
    ///
    /// # Errors
    /// As there.
    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_all_at(&parts.concat(), offset)
    }

    /// Extends the file with zeroes to `len` bytes, unless it has as many: later writes there do not fail for want of space.
    ///
    /// # Errors
    /// `StorageFull` on a full disk.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Gives back the space of bytes that nobody needs, where the file system can. The file keeps its length; the bytes are
    /// zeroes or as they were, and after a loss of power any mixture of both.
    ///
    /// # Errors
    /// If it can't be done; nothing is lost but the space.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// If it can't be asked.
    fn len(&self) -> io::Result<u64>;

    /// The file has no bytes.
    ///
    /// # Errors
    /// If it can't be asked.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it with zeroes.
    ///
    /// # Errors
    /// `StorageFull` on a full disk.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all earlier writes to this file, and its length, durable.
    ///
    /// # Errors
    /// If that is not certain.
    fn sync_data(&self) -> io::Result<()>;
}

/// What place in the file, length and place in memory must be multiples of for a write past the system's cache: a sector.
pub(crate) const SECTOR_BYTES: usize = 512;

/// What a processor can map as one page, where it and the system can (x86-64, and ARM with pages of 4 KiB).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroes to begin with, at a place in memory that a disk can read from.
///
/// A large one lies in huge pages where the system has them: a disk is given one piece of memory after the other, and for 2 MiB it makes
/// much of the time of a write whether they are one piece or 512.
#[derive(Debug)]
pub struct DirectBuffer {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl DirectBuffer {
    /// So many bytes.
    ///
    /// # Panics
    /// If there is no memory left.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let huge = len >= HUGE_PAGE_BYTES;
        let align = if huge { HUGE_PAGE_BYTES } else { SECTOR_BYTES };
        let map = MmapMut::map_anon(len + align).expect("memory for a buffer");
        if huge {
            // Without them it is slower, and as good.
            let _ = map.advise(Advice::HugePage);
        }
        let start = map.as_ptr().align_offset(align);
        Self { map, start, len }
    }
}

impl Deref for DirectBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl DerefMut for DirectBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

/// Checks a path and splits it: no empty parts, no `.` or `..`, nothing absolute. The root gives no parts.
pub(crate) fn parts(path: &str) -> io::Result<Vec<&str>> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = path.split('/').collect();
    let legal = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains(['\\', '\0']);
    if parts.iter().all(legal) {
        Ok(parts)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("illegal path {path:?}")))
    }
}

/// Joins two checked paths, either of which may be the root.
pub(crate) fn join(dir: &str, path: &str) -> String {
    match (dir.is_empty(), path.is_empty()) {
        (true, _) => path.to_owned(),
        (_, true) => dir.to_owned(),
        _ => format!("{dir}/{path}"),
    }
}
