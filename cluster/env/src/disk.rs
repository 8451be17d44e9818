//! The real file system below one directory.
//!
//! Directories and files are accessible only to their owner, even if the umask allows more, because
//! a ledger's data is private.

use std::{
    fs,
    io::{self, IoSlice},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock, statvfs},
    io::{Errno, pwritev, retry_on_intr},
};

use crate::{
    shortage,
    storage::{DirectBuffer, File, OpenMode, SECTOR_BYTES, Storage, parts},
};

/// Most parts in one system call. The kernel accepts 1024.
const IO_PARTS_MAX: usize = 512;

/// Least bytes to copy into a buffer for a write past the system's cache. Smaller writes go through
/// the cache, which joins them with others: alone, each would wait for the disk. So do unaligned
/// overwrites of any size, since the cache may already hold their pages, and only new pages are
/// expensive.
const BY_BUFFER_BYTES_MIN: usize = 64 << 10;
/// Most bytes of one write from a buffer.
const BUFFER_BYTES: usize = 2 << 20;
/// Mode of new directories.
const DIRECTORY_MODE: u32 = 0o700;
/// Mode of new files.
const FILE_MODE: u32 = 0o600;

/// A directory of the real file system.
#[derive(Clone, Debug)]
pub struct DiskStorage {
    root: PathBuf,
}

impl DiskStorage {
    /// The storage below `root`. The directory need not exist yet: it is created with the first
    /// directory in it.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        parts(path)?;
        Ok(if path.is_empty() { self.root.clone() } else { self.root.join(path) })
    }

    fn open_file(&self, path: &str, mode: OpenMode) -> io::Result<(PathBuf, fs::File)> {
        let path = self.resolve(path)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).mode(FILE_MODE);
        match mode {
            OpenMode::Existing => {}
            OpenMode::OpenOrCreate => {
                options.create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.create_new(true);
            }
        }
        let file = name(options.open(&path), &path)?;
        Ok((path, file))
    }
}

/// Adds the path to an error. The error keeps its kind, unless something ran out ([`shortage`]).
fn name<T>(result: io::Result<T>, path: &Path) -> io::Result<T> {
    result.map_err(|error| io::Error::new(shortage::kind(&error), format!("{}: {error}", path.display())))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    name(fs::File::open(path).and_then(|dir| dir.sync_all()), path)
}

/// Creates a directory and its missing parents, and syncs the parent of each new one.
fn create_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_durably(parent)?;
    match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(_) if path.is_dir() => {}
        result => name(result, path)?,
    }
    sync_directory(parent)
}

impl Storage for DiskStorage {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (path, file) = self.open_file(path, mode)?;
        Ok(Arc::new(DiskFile { file, direct: None, written: AtomicU64::new(0), path }))
    }

    fn open_direct(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (path, file) = self.open_file(path, mode)?;
        let past_the_cache = OFlags::DIRECT.bits().cast_signed();
        let direct = fs::OpenOptions::new().write(true).custom_flags(past_the_cache).open(&path);
        let direct = match direct {
            // Not every file system supports this.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => None,
            direct => Some(name(direct, &path)?),
        };
        let written = AtomicU64::new(name(file.metadata(), &path)?.len());
        Ok(Arc::new(DiskFile { file, direct, written, path }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.resolve(path)?;
        name(fs::remove_file(&path), &path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let from = self.resolve(from)?;
        name(fs::rename(&from, self.resolve(to)?), &from)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let dir = self.resolve(dir)?;
        let mut names = Vec::new();
        for entry in name(fs::read_dir(&dir), &dir)? {
            let found = name(entry, &dir)?.file_name().into_string();
            names.push(found.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a file name is not UTF-8"))?);
        }
        names.sort();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        create_durably(&self.resolve(dir)?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_directory(&self.resolve(dir)?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let disk = name(retry_on_intr(|| statvfs(&self.root)).map_err(io::Error::from), &self.root)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn remove_dir_all(&self, dir: &str) -> io::Result<()> {
        let dir = self.resolve(dir)?;
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => name(result, &dir),
        }
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn Send + Sync>> {
        let path = self.resolve(path)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = name(options.open(&path), &path)?;
        let locked = retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive));
        name(locked.map_err(io::Error::from), &path)?;
        Ok(Box::new(file))
    }

    fn subdir(&self, dir: &str) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Self { root: self.resolve(dir)? }))
    }
}

/// Whether `len` bytes at `offset` are whole sectors of the file.
fn is_whole_sectors(len: usize, offset: u64) -> bool {
    len.is_multiple_of(SECTOR_BYTES) && offset.is_multiple_of(SECTOR_BYTES as u64)
}

#[derive(Debug)]
struct DiskFile {
    file: fs::File,
    /// A second handle to the file, for writes past the system's cache.
    direct: Option<fs::File>,
    /// The offset from which on the file was never written. Used only for writes past the cache.
    written: AtomicU64,
    path: PathBuf,
}

impl DiskFile {
    /// Writes whole sectors from memory that is aligned for a disk.
    fn write_sectors(&self, direct: &fs::File, sectors: &[u8], offset: u64) -> io::Result<()> {
        match direct.write_all_at(sectors, offset) {
            // This disk has larger sectors, or it requires a different alignment in memory.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.file.write_all_at(sectors, offset),
            written => written,
        }
    }

    /// Writes parts past the system's cache, through an aligned buffer. Together, the parts are
    /// whole sectors.
    fn write_by_buffer(&self, direct: &fs::File, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
        with_buffer(|buffer| {
            let mut filled = 0;
            for mut part in parts.iter().copied() {
                while let Some(here) =
                    part.split_off(..part.len().min(buffer.len() - filled)).filter(|here| !here.is_empty())
                {
                    buffer[filled..filled + here.len()].copy_from_slice(here);
                    filled += here.len();
                    if filled == buffer.len() {
                        self.write_sectors(direct, buffer, offset)?;
                        offset += filled as u64;
                        filled = 0;
                    }
                }
            }
            self.write_sectors(direct, &buffer[..filled], offset)
        })
    }
}

/// Lends a buffer. There are as many buffers as were ever in use at once: memory that is reused
/// causes no page faults.
fn with_buffer<T>(write: impl FnOnce(&mut DirectBuffer) -> T) -> T {
    static IDLE: Mutex<Vec<DirectBuffer>> = Mutex::new(Vec::new());
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut buffer = idle().pop().unwrap_or_else(|| DirectBuffer::zeroed(BUFFER_BYTES));
    let written = write(&mut buffer);
    idle().push(buffer);
    written
}

fn len_of(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// Writes consecutive parts through the system's cache.
fn write_parts(file: &fs::File, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
    let parts = parts.iter().filter(|part| !part.is_empty());
    let mut slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let batch = left.len().min(IO_PARTS_MAX);
        let written = match pwritev(file, &left[..batch], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => continue,
            written => written?,
        };
        IoSlice::advance_slices(&mut left, written);
        offset += written as u64;
    }
    Ok(())
}

impl File for DiskFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        name(self.file.read_exact_at(buf, offset), &self.path)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_parts_at(&[bytes], offset)
    }

    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        let len = len_of(parts);
        let direct = self.direct.as_ref().filter(|_| is_whole_sectors(len, offset));
        let is_new = self.written.fetch_max(offset + len as u64, Ordering::Relaxed) <= offset;
        let written = match (direct, parts) {
            (Some(direct), [bytes]) if bytes.as_ptr().align_offset(SECTOR_BYTES) == 0 => {
                self.write_sectors(direct, bytes, offset)
            }
            (Some(direct), parts) if is_new && len >= BY_BUFFER_BYTES_MIN => {
                self.write_by_buffer(direct, parts, offset)
            }
            (_, parts) => write_parts(&self.file, parts, offset),
        };
        name(written, &self.path)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let present = self.len()?;
        if len <= present {
            return Ok(());
        }
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), present, len - present)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeroes = usize::try_from(len - present).map_err(|_| io::ErrorKind::FileTooLarge)?;
                self.write_all_at(&vec![0; zeroes], present)
            }
            done => name(done.map_err(io::Error::from), &self.path),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let discarded = retry_on_intr(|| fallocate(&self.file, flags, offset, len));
        name(discarded.map_err(io::Error::from), &self.path)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(name(self.file.metadata(), &self.path)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        name(self.file.set_len(len), &self.path)
    }

    fn sync_data(&self) -> io::Result<()> {
        name(self.file.sync_data(), &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_made_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let storage = DiskStorage::new(dir.path().join("new/data"));
        storage.create_dir_all("inner").expect("directories can be made");
        storage.open("file", OpenMode::CreateNew).expect("a file can be made");
        storage.open_direct("inner/direct", OpenMode::OpenOrCreate).expect("a file can be made");
        drop(storage.lock("lock").expect("nobody has it"));
        let mode = |path: &str| {
            let found = fs::metadata(dir.path().join("new").join(path)).expect("it was made");
            found.permissions().mode() & 0o777
        };
        for made in ["", "data", "data/inner"] {
            assert_eq!(mode(made), 0o700, "{made}");
        }
        for made in ["data/file", "data/inner/direct", "data/lock"] {
            assert_eq!(mode(made), 0o600, "{made}");
        }
    }
}
