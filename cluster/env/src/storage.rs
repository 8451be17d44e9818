//! Files as the state machines need them: positioned reads and writes, and explicit durability.
//!
//! All implementations keep these rules:
//!
//! - A write is durable only after `sync_data` on its file. A new, renamed or removed name is
//!   durable only after `sync_dir` on its directory. Until then, either may be lost, in part and in
//!   any order.
//! - A failed `sync_data` may permanently lose the writes that it should have covered. A later sync
//!   does not make up for it, so callers must not continue as if it did.
//! - Reads see all earlier writes, synced or not.
//! - Shortages have error kinds of their own, which [`crate::Shortage`] reads: `StorageFull` for
//!   disk space, and `OutOfMemory` for descriptors and memory, from any call that opens something.

use std::{
    fmt::Debug,
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use memmap2::{Advice, MmapMut};

/// The treatment by [`Storage::open`] of a file that exists, or does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist; otherwise `NotFound`.
    Existing,
    /// An empty file is created if there is none.
    OpenOrCreate,
    /// The file must not exist; otherwise `AlreadyExists`.
    CreateNew,
}

/// A tree of directories and files. Paths are relative to its root and separated by `/`. The root
/// itself is `""`.
pub trait Storage: Send + Sync + Debug {
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// The errors of the [`OpenMode`], and `NotFound` if the directory is missing.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Opens a file whose pages are not worth keeping in the system's cache, because it is hardly
    /// read or because its readers have a cache of their own.
    ///
    /// Where the system supports it, whole sectors are written past that cache. Those in a
    /// [`DirectBuffer`] are written directly. Others are copied into one, if they are many and are
    /// new at the file's end.
    ///
    /// # Errors
    /// Like [`Storage::open`].
    fn open_direct(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.open(path, mode)
    }

    /// Removes a file. Open handles stay usable.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Renames a file or directory within this storage. A file of the new name is replaced
    /// atomically.
    ///
    /// # Errors
    /// `NotFound` if `from` does not exist.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// The names of the files and directories in a directory, sorted.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Creates a directory and its missing parents. They are durable when this returns.
    ///
    /// # Errors
    /// If one can't be created.
    fn create_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Makes the changes of names in a directory durable: new, renamed and removed ones.
    ///
    /// # Errors
    /// If the sync fails.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// The free space of the disk in bytes, as the system reports it. Others may take it, and
    /// quotas may limit it further.
    ///
    /// # Errors
    /// If the system can't tell.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Removes a directory with everything in it. A missing directory is not an error.
    ///
    /// # Errors
    /// If something in it can't be removed.
    fn remove_dir_all(&self, dir: &str) -> io::Result<()>;

    /// Takes an exclusive lock on a file, which is created if needed. The lock lasts until the
    /// guard is dropped or the process ends.
    ///
    /// # Errors
    /// `WouldBlock` if it is taken.
    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>>;

    /// This storage as seen from a directory, which need not exist yet.
    ///
    /// # Errors
    /// If the path is not legal.
    fn subdir(&self, dir: &str) -> io::Result<Arc<dyn Storage>>;

    /// The second storage on a cheaper disk, if there is one. See [`crate::TieredStorage`].
    fn cold(&self) -> Option<Arc<dyn Storage>> {
        None
    }
}

/// An open file. Calls may come from several threads.
pub trait File: Send + Sync + Debug {
    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends earlier.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`. A gap after the present end is filled with zeroes.
    ///
    /// # Errors
    /// `StorageFull` on a full disk. A part may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes consecutive parts like [`File::write_all_at`].
    ///
    /// # Errors
    /// Like [`File::write_all_at`].
    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_all_at(&parts.concat(), offset)
    }

    /// Extends the file with zeroes to `len` bytes, unless it is that long already. Later writes
    /// there don't fail for lack of space.
    ///
    /// # Errors
    /// `StorageFull` on a full disk.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Gives back the space of unneeded bytes, where the file system supports it. The file keeps
    /// its length. The bytes become zeroes or keep their content. After a loss of power, they are
    /// any mixture of both.
    ///
    /// # Errors
    /// If the space can't be given back. The data is not affected.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// If the system can't tell.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// Like [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it with zeroes.
    ///
    /// # Errors
    /// `StorageFull` on a full disk.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all earlier writes to this file durable, and its length.
    ///
    /// # Errors
    /// If their durability is not certain.
    fn sync_data(&self) -> io::Result<()>;
}

/// A disk's sector. For a write past the system's cache, the offset, the length and the address in
/// memory must be multiples of it.
pub(crate) const SECTOR_BYTES: usize = 512;

/// Size of a huge page, if the processor and the system support it (x86-64, and ARM with pages of 4
/// KiB).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that a disk can read from directly. It begins as zeroes.
///
/// A large buffer uses huge pages where the system has them. A disk is given a write as a list of
/// contiguous pieces of memory. For a write of 2 MiB, the time differs much between 1 and 512
/// pieces.
#[derive(Debug)]
pub struct DirectBuffer {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl DirectBuffer {
    /// A buffer of `len` zeroes.
    ///
    /// # Panics
    /// If there is no memory left.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let huge = len >= HUGE_PAGE_BYTES;
        let align = if huge { HUGE_PAGE_BYTES } else { SECTOR_BYTES };
        let map = MmapMut::map_anon(len + align).expect("memory for a buffer");
        if huge {
            // Without huge pages, the buffer is slower but correct.
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

/// Checks a path and splits it: no empty parts, no `.` or `..`, nothing absolute. The root has no
/// parts.
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
