//! The data directory of a development cluster.
//!
//! ```text
//! DIR/lock          held while a process uses the directory
//!     ledger.key    the signing key, C2SP private key text, mode 0600; its name is the log's origin and ends in the cluster id
//!     ledger.vkey   the public key
//!     next.key      a second key of the same name, if the user put one there: the ledger's key can be changed to it
//!     shape.json    what was chosen at the first start
//!     formed        the groups were formed once: from now on an empty replica directory is a lost one
//!     metadata/     the embedded metadata store
//!     node-<n>/     the replicas of one node
//! ```
//!
//! Every file is written aside, synced and renamed. They are made in the order above, and a later one is made only when the
//! earlier ones are there; so a crash at any step of the first start leaves a directory whose next start goes on with the
//! same key. Nothing is served before all of them are durable.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use coppice_env::{DiskStorage, Rng, Storage};
use coppice_types::ClusterId;
use coppice_verify::{checkpoint, note::SignerKey};
use zeroize::Zeroizing;

use super::shape::{Shape, Wanted};
use crate::failure::{Code, Failure};

/// The part of an origin before the cluster id.
pub const ORIGIN_PREFIX: &str = "coppice";

/// An opened and locked data directory.
pub struct Home {
    dir: PathBuf,
    shape: Shape,
    key: SignerKey,
    next_key: Option<SignerKey>,
    _lock: Box<dyn Send + Sync>,
}

impl Home {
    /// Opens a data directory, or makes it.
    ///
    /// # Errors
    /// If another process uses it, its shape is another one, or its files are damaged.
    pub fn open(dir: &Path, wanted: &Wanted, rng: &mut dyn Rng) -> Result<Self, Failure> {
        let file = |error: io::Error| Failure::file(dir, &error);
        let fresh = !dir.join("shape.json").exists();
        if fresh {
            // Before anything is made: a wrong option leaves no trace.
            wanted.shape()?;
            refuse_foreign(dir)?;
        }
        fs::create_dir_all(dir).map_err(file)?;
        let dir = dir.canonicalize().map_err(file)?;
        let lock = lock(&dir, "lock")?;
        let key = open_key(&dir.join("ledger.key"), rng)?;
        write_file(&dir.join("ledger.vkey"), format!("{}\n", key.verifier()).as_bytes(), 0o644)?;
        let next_key = open_next_key(&dir.join("next.key"), &key)?;
        let shape = open_shape(&dir.join("shape.json"), wanted)?;
        Ok(Self { dir, shape, key, next_key, _lock: lock })
    }

    /// What was chosen at the first start.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Gives up the signing key, and the second one if there is one.
    ///
    /// # Errors
    /// If they cannot be read again.
    pub fn keys(&self) -> Result<(SignerKey, Option<SignerKey>), Failure> {
        let again = |key: &SignerKey| parse_key(&key.to_private_text(), &self.dir);
        Ok((again(&self.key)?, self.next_key.as_ref().map(again).transpose()?))
    }

    /// The public key as text.
    #[must_use]
    pub fn vkey(&self) -> String {
        self.key.verifier().to_string()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory as the seams see it.
    #[must_use]
    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(DiskStorage::new(&self.dir))
    }
}

/// Takes the lock of a data directory.
///
/// # Errors
/// If another process holds it.
pub fn lock(dir: &Path, file: &str) -> Result<Box<dyn Send + Sync>, Failure> {
    DiskStorage::new(dir).lock(file).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            Failure::new(Code::Refused, format!("{}: in use by another process", dir.display()))
                .hint("Stop the process that uses it, or name another directory.")
        }
        _ => Failure::file(dir, &error),
    })
}

/// A directory that holds something else is left alone.
fn refuse_foreign(dir: &Path) -> Result<(), Failure> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::file(dir, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Failure::file(dir, &error))?.file_name();
        let ours = ["lock", "ledger.key", "ledger.vkey", "lost+found"].iter().any(|ours| name == *ours)
            || name.to_string_lossy().ends_with(".new");
        if !ours {
            let message = format!("{}: has `{}` in it, and no shape.json", dir.display(), name.to_string_lossy());
            return Err(
                Failure::usage(message).hint("It is no data directory of `coppice dev`: name an empty or a new one.")
            );
        }
    }
    Ok(())
}

fn open_key(path: &Path, rng: &mut dyn Rng) -> Result<SignerKey, Failure> {
    match fs::read_to_string(path).map(Zeroizing::new) {
        Ok(text) => parse_key(text.trim_end_matches('\n'), path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = new_key(None, rng)?;
            write_key(path, &key)?;
            Ok(key)
        }
        Err(error) => Err(Failure::file(path, &error)),
    }
}

/// The second key, if somebody put one there.
fn open_next_key(path: &Path, key: &SignerKey) -> Result<Option<SignerKey>, Failure> {
    let text = match fs::read_to_string(path).map(Zeroizing::new) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::file(path, &error)),
    };
    let next = parse_key(text.trim_end_matches('\n'), path)?;
    if next.name() != key.name() {
        let failure = Failure::usage(format!("{}: its name is {}, not {}", path.display(), next.name(), key.name()));
        return Err(failure.hint(format!("`coppice keygen --out {} --name {}`", path.display(), key.name())));
    }
    Ok(Some(next))
}

/// Writes the private key, for its user alone.
///
/// # Errors
/// If it cannot be written.
pub fn write_key(path: &Path, key: &SignerKey) -> Result<(), Failure> {
    let line = Zeroizing::new([key.to_private_text().as_str(), "\n"].concat());
    write_file(path, line.as_bytes(), 0o600)
}

fn parse_key(text: &str, path: &Path) -> Result<SignerKey, Failure> {
    SignerKey::parse(text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A new key, under a name that is given or that ends in a new cluster id.
///
/// # Errors
/// If the name cannot be one.
pub fn new_key(name: Option<&str>, rng: &mut dyn Rng) -> Result<SignerKey, Failure> {
    let (mut cluster, mut seed) = ([0; 16], Zeroizing::new([0; 32]));
    rng.fill(&mut cluster);
    rng.fill(&mut *seed);
    let name = name.map_or_else(|| checkpoint::origin(ORIGIN_PREFIX, &ClusterId(cluster)), str::to_owned);
    SignerKey::from_seed(&name, &seed).map_err(|error| Failure::usage(format!("key name `{name}`: {error}")))
}

fn open_shape(path: &Path, wanted: &Wanted) -> Result<Shape, Failure> {
    match fs::read(path) {
        Ok(bytes) => {
            let shape: Shape = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            if shape.format != 1 {
                return Err(Failure::usage(format!("{}: written by a newer coppice", path.display())));
            }
            wanted.check(&shape)?;
            Ok(shape)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let shape = wanted.shape()?;
            let text = serde_json::to_string_pretty(&shape).map_err(|error| Failure::usage(error.to_string()))?;
            write_file(path, format!("{text}\n").as_bytes(), 0o644)?;
            Ok(shape)
        }
        Err(error) => Err(Failure::file(path, &error)),
    }
}

/// Writes a small file so that a crash leaves the old one, none, or all of the new one.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let aside = path.with_extension("new");
    let write = || {
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    };
    write().map_err(|error| Failure::file(path, &error))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    use coppice_env::{Clock, SimRng, SystemClock};

    use super::*;

    fn open(dir: &Path, seed: u64) -> Result<Home, Failure> {
        Home::open(dir, &Wanted::default(), &mut SimRng::new(seed))
    }

    #[test]
    fn a_directory_keeps_its_key_and_shape() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let dir = dir.path().join("new/data");
        let first = open(&dir, 1).expect("a new directory");
        let vkey = first.vkey();
        drop(first);
        assert_eq!(open(&dir, 2).expect("the same directory").vkey(), vkey);
        assert_eq!(fs::read_to_string(dir.join("ledger.vkey")).expect("the public key"), format!("{vkey}\n"));
        let mode = fs::metadata(dir.join("ledger.key")).expect("the key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_first_start_that_was_cut_off_goes_on_with_its_key() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let vkey = open(dir.path(), 1).expect("an empty directory").vkey();
        for file in ["shape.json", "ledger.vkey"] {
            fs::remove_file(dir.path().join(file)).expect("it was made");
            fs::write(dir.path().join("shape.new"), b"{").expect("a torn file");
            assert_eq!(open(dir.path(), 2).expect("what is left is enough").vkey(), vkey);
        }
    }

    #[test]
    fn a_second_key_is_taken_if_it_has_the_name_of_the_first() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (first, none) = open(dir.path(), 1).expect("an empty directory").keys().expect("they are read again");
        assert!(none.is_none());
        let put = |name: Option<&str>| {
            let next = new_key(name, &mut SimRng::new(7)).expect("a key");
            write_key(&dir.path().join("next.key"), &next).expect("a file can be written");
            next.verifier().to_string()
        };
        put(None);
        let failure = open(dir.path(), 1).err().expect("it is the key of another ledger");
        assert!(failure.message.contains(first.name()), "{failure:?}");
        let vkey = put(Some(first.name()));
        let (same, next) = open(dir.path(), 1).expect("two keys").keys().expect("they are read again");
        assert_eq!(same.verifier(), first.verifier());
        assert_eq!(next.map(|next| next.verifier().to_string()), Some(vkey));
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let held = open(dir.path(), 1).expect("an empty directory");
        let failure = open(dir.path(), 1).err().expect("it is held");
        assert_eq!(failure.code, Code::Refused);
        drop(held);
        // A process that another test is just starting has the lock, too, until it runs its own program.
        let clock = SystemClock::new();
        while let Err(failure) = open(dir.path(), 1) {
            assert!(failure.code == Code::Refused && clock.now() < Duration::from_secs(10), "{failure:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn foreign_directories_and_damaged_files_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("letter.txt"), b"dear").expect("a file can be written");
        assert!(open(dir.path(), 1).is_err());
        assert!(!dir.path().join("ledger.key").exists(), "nothing is made in a foreign directory");
        let dir = tempfile::tempdir().expect("a temporary directory");
        drop(open(dir.path(), 1).expect("an empty directory"));
        for (file, bytes) in [("shape.json", "{\"format\":1}"), ("shape.json", "{}"), ("ledger.key", "PRIVATE+KEY+no")]
        {
            let good = fs::read(dir.path().join(file)).expect("it is there");
            fs::write(dir.path().join(file), bytes).expect("a file can be written");
            assert_eq!(open(dir.path(), 1).err().map(|failure| failure.code), Some(Code::Usage), "{file}: {bytes}");
            fs::write(dir.path().join(file), good).expect("a file can be written");
        }
        assert!(open(dir.path(), 1).is_ok());
    }
}
