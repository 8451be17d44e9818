//! Small files that the command writes, completely or not at all.
//!
//! A file is written under a random name, which no other process can have, synced, and renamed. A
//! crash before the rename leaves the old file, and perhaps the new one under its random name,
//! which nobody reads.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::{Builder, NamedTempFile, TempDir};

use crate::{
    failure::{Code, Failure},
    input, text,
};

/// Mode of a file that only its owner may read.
pub const PRIVATE: u32 = 0o600;
/// Mode of a file that everybody may read.
pub const PUBLIC: u32 = 0o644;
/// Suffix of the random name under which a file is written first.
pub const ASIDE: &str = ".new";

/// Makes a temporary directory whose names only its owner sees.
///
/// # Errors
/// If the disk refuses.
pub fn private_dir() -> io::Result<TempDir> {
    Builder::new().permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Writes a new file. An existing one stays unchanged, even if it is made at the same moment.
///
/// # Errors
/// [`Code::Refused`] if there is such a file; otherwise if it can't be written.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let write = || aside(path, bytes, mode)?.persist_noclobber(path).map(drop).map_err(|error| error.error);
    match write().and_then(|()| sync_parent(path)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(there_already(path)),
        written => written.map_err(|error| Failure::file(path, &error)),
    }
}

/// Writes a file, and replaces an existing one.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let write = || aside(path, bytes, mode)?.persist(path).map(drop).map_err(|error| error.error);
    write().and_then(|()| sync_parent(path)).map_err(|error| Failure::file(path, &error))
}

/// The failure for a file that exists and must not be replaced.
#[must_use]
pub fn there_already(path: &Path) -> Failure {
    let failure = Failure::new(Code::Refused, format!("{}: there already", text::path(path)));
    failure.hint("It is not replaced: name another file.")
}

/// A file that was found to be writable before the command did the work whose result goes there.
#[derive(Debug)]
pub struct Prepared {
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A file that is renamed once it is complete.
    Aside(NamedTempFile),
    /// A pipe or a device, written directly.
    Open(File),
    /// `-`: standard output.
    Standard,
}

impl Prepared {
    /// Checks that a file can be written. Its content stays unchanged until [`Prepared::write`].
    pub fn new(path: &Path) -> Result<Self, Failure> {
        if input::is_standard(path) {
            return Ok(Self { path: path.to_owned(), to: To::Standard });
        }
        let prepare = || match fs::canonicalize(path) {
            // The target of a link is replaced, so the link stays a link.
            Ok(real) if !fs::metadata(&real)?.is_file() => {
                Ok(Self { path: path.to_owned(), to: To::Open(OpenOptions::new().write(true).open(path)?) })
            }
            Ok(real) => Ok(Self { to: To::Aside(aside(&real, &[], PUBLIC)?), path: real }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { to: To::Aside(aside(path, &[], PUBLIC)?), path: path.to_owned() })
            }
            Err(error) => Err(error),
        };
        prepare().map_err(|error: io::Error| Failure::file(path, &error))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If that fails after all, for instance on a full disk.
    pub fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let Self { path, to } = self;
        let write = || match to {
            To::Standard => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
            To::Open(mut file) => file.write_all(bytes),
            To::Aside(mut file) => {
                file.write_all(bytes)?;
                file.as_file().sync_all()?;
                file.persist(&path).map_err(|error| error.error)?;
                sync_parent(&path)
            }
        };
        write().map_err(|error| Failure::file(&path, &error))
    }
}

/// Writes and syncs a file with a random name in the directory of `path`.
fn aside(path: &Path, bytes: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::IsADirectory, "not the name of a file"))?;
    let prefix = format!(".{}.", name.to_string_lossy());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(ASIDE).permissions(Permissions::from_mode(mode));
    let mut file = builder.tempfile_in(parent(path))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_replaces_none_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, other) = (dir.path().join("a"), dir.path().join("a.new"));
        fs::write(&other, "of somebody else").expect("a file can be written");
        create(&path, b"first", PRIVATE).expect("there is none");
        assert_eq!(create(&path, b"second", PRIVATE).expect_err("there is one").code, Code::Refused);
        assert_eq!(fs::read(&path).expect("it was made"), b"first");
        assert_eq!(fs::metadata(&path).expect("it was made").permissions().mode() & 0o777, PRIVATE);
        replace(&path, b"third", PUBLIC).expect("it may be replaced");
        assert_eq!(fs::read(&path).expect("it was made"), b"third");
        assert_eq!(fs::read(&other).expect("it stays"), b"of somebody else");
        assert_eq!(names(dir.path()), ["a", "a.new"]);
    }

    #[test]
    fn a_prepared_file_changes_nothing_before_it_is_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, link) = (dir.path().join("receipt"), dir.path().join("link"));
        assert!(Prepared::new(&dir.path().join("nowhere/receipt")).is_err());
        assert!(Prepared::new(dir.path()).is_err(), "a directory is not a file");
        drop(Prepared::new(&path).expect("it can be written"));
        assert!(names(dir.path()).is_empty());
        fs::write(&path, "old").expect("a file can be written");
        std::os::unix::fs::symlink(&path, &link).expect("a link can be made");
        let prepared = Prepared::new(&link).expect("it can be written");
        assert_eq!(fs::read(&path).expect("it stays"), b"old");
        prepared.write(b"new").expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"new");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        Prepared::new(Path::new("/dev/null")).expect("a device").write(b"gone").expect("it takes everything");
    }
}
