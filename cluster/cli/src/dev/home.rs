//! The data directory of a development cluster.
//!
//! ```text
//! DIR/lock          held while a process uses the directory
//!     ledger.key    the signing key, C2SP private key text, mode 0600; its name is the log's
//!                   origin and ends in the cluster id
//!     ledger.vkey   the public key
//!     next.key      a second key of the same name, if the user put one there: the ledger's key
//!                   can be changed to it
//!     shape.json    the choices of the first start
//!     formed        the groups were formed once: an empty replica directory is a lost one now
//!     metadata/     the embedded metadata store
//!     node-<n>/     the replicas of one node
//! ```
//!
//! Everything except the public key is readable only by its owner. Every file is written under a
//! different name, synced and renamed. Files are made in the order above, each one only when the
//! earlier ones are there. So a crash at any step of the first start leaves a directory whose next
//! start goes on with the same key. Nothing is served before all files are durable.
//!
//! A key is made only for a directory without a ledger. A ledger without its key, or with the key
//! of another ledger, is refused. `ledger.vkey` stays unchanged until the ledger has shown that
//! another key is in force.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use coppice_env::{DiskStorage, Rng, Storage, read_secret};
use coppice_types::ClusterId;
use coppice_verify::{
    checkpoint,
    note::{SignerKey, VerifierKey},
};
use zeroize::Zeroizing;

use super::shape::{Shape, Wanted};
use crate::{
    failure::{Code, Failure},
    files, text,
};

/// The part of an origin before the cluster id.
pub const ORIGIN_PREFIX: &str = "coppice";

/// An opened and locked data directory.
pub struct Home {
    dir: PathBuf,
    shape: Shape,
    key: SignerKey,
    next_key: Option<SignerKey>,
    /// Whether `ledger.vkey` is a different key of the same name: the ledger's key may have been
    /// changed.
    vkey_differs: bool,
    _lock: Box<dyn Send + Sync>,
}

impl Home {
    /// Opens a data directory, or makes it.
    ///
    /// # Errors
    /// If another process uses the directory, if its shape is not the wanted one, if its files are
    /// damaged, or if its key is missing.
    pub fn open(dir: &Path, wanted: &Wanted, rng: &mut dyn Rng) -> Result<Self, Failure> {
        let file = |error: io::Error| Failure::file(dir, &error);
        let fresh = !dir.join("shape.json").exists();
        if fresh {
            // Options are checked before anything is made, so that a wrong one leaves no trace.
            wanted.shape()?;
            refuse_foreign(dir)?;
        }
        DiskStorage::new(dir).create_dir_all("").map_err(file)?;
        let dir = dir.canonicalize().map_err(file)?;
        let lock = lock(&dir, "lock")?;
        let vkey = read_vkey(&dir.join("ledger.vkey"))?;
        let key = open_key(&dir, vkey.as_ref(), fresh, rng)?;
        if vkey.is_none() {
            write_vkey(&dir, key.verifier())?;
        }
        let vkey_differs = vkey.is_some_and(|vkey| vkey != *key.verifier());
        let next_key = open_next_key(&dir.join("next.key"), &key)?;
        let shape = open_shape(&dir.join("shape.json"), wanted)?;
        Ok(Self { dir, shape, key, next_key, vkey_differs, _lock: lock })
    }

    /// Notes that the ledger has led with this key, so the key is in force: `ledger.vkey` becomes
    /// its public half.
    pub fn key_is_in_force(&self) -> Result<(), Failure> {
        if self.vkey_differs { write_vkey(&self.dir, self.key.verifier()) } else { Ok(()) }
    }

    /// Adds to the failure of a start that its key may be the wrong one.
    #[must_use]
    pub fn explain(&self, failure: Failure) -> Failure {
        if !self.vkey_differs {
            return failure;
        }
        let hint = "ledger.key is not the key of ledger.vkey. If the ledger's key was not changed to it, put the former ledger.key back.";
        failure.hint(format!("{}: {hint}", self.dir.display()))
    }

    /// The choices of the first start.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Copies of the signing key, and of the second key if there is one.
    pub fn keys(&self) -> Result<(SignerKey, Option<SignerKey>), Failure> {
        let again = |key: &SignerKey| parse_key(&key.to_private_text(), &self.dir);
        Ok((again(&self.key)?, self.next_key.as_ref().map(again).transpose()?))
    }

    /// The public key as text.
    #[must_use]
    pub fn vkey(&self) -> String {
        self.key.verifier().to_string()
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory as the code below sees it.
    #[must_use]
    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(DiskStorage::new(&self.dir))
    }
}

/// Takes the lock of a data directory.
///
/// # Errors
/// [`Code::Refused`] if another process holds it.
pub fn lock(dir: &Path, file: &str) -> Result<Box<dyn Send + Sync>, Failure> {
    DiskStorage::new(dir).lock(file).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            Failure::new(Code::Refused, format!("{}: in use by another process", dir.display()))
                .hint("Stop the process that uses it, or name another directory.")
        }
        _ => Failure::file(dir, &error),
    })
}

/// Refuses a directory that holds something else.
fn refuse_foreign(dir: &Path) -> Result<(), Failure> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::file(dir, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| Failure::file(dir, &error))?.file_name();
        let ours = ["lock", "ledger.key", "ledger.vkey", "lost+found"].iter().any(|ours| name == *ours)
            || name.to_string_lossy().ends_with(files::ASIDE);
        if !ours {
            let message = format!("{}: has `{}` in it, and no shape.json", dir.display(), name.to_string_lossy());
            return Err(Failure::usage(message)
                .hint("It is not a data directory of `coppice dev`: name an empty or a new one."));
        }
    }
    Ok(())
}

/// The signing key; a new one if the directory is new and holds no ledger.
fn open_key(dir: &Path, vkey: Option<&VerifierKey>, fresh: bool, rng: &mut dyn Rng) -> Result<SignerKey, Failure> {
    let path = dir.join("ledger.key");
    match (read_key(&path)?, vkey) {
        (Some(key), Some(vkey)) if key.name() != vkey.name() => {
            let (path, name) = (path.display(), key.name());
            let message = format!("{path}: this is the key of {name}, but the ledger's name is {}", vkey.name());
            Err(Failure::new(Code::Refused, message).hint(format!("Restore the key of {} to {path}.", vkey.name())))
        }
        (Some(key), _) => Ok(key),
        (None, None) if fresh => {
            let key = new_key(None, rng)?;
            write_key(&path, &key)?;
            Ok(key)
        }
        (None, vkey) => Err(missing_key(dir, vkey)),
    }
}

/// The failure for a ledger without its signing key.
fn missing_key(dir: &Path, vkey: Option<&VerifierKey>) -> Failure {
    let (path, next) = (dir.join("ledger.key"), dir.join("next.key"));
    let whose = vkey.map_or_else(String::new, |vkey| format!(" of {}", vkey.name()));
    let failure = Failure::new(Code::Refused, format!("{}: the signing key{whose} is missing", path.display()));
    let hint = format!("Restore it to {}; another key can't sign for this ledger.", path.display());
    if next.exists() {
        let moved = format!("If the ledger's key was changed to {}, rename that to ledger.key.", next.display());
        return failure.hint(format!("{hint} {moved}"));
    }
    failure.hint(hint)
}

/// The second key, if the user put one there.
fn open_next_key(path: &Path, key: &SignerKey) -> Result<Option<SignerKey>, Failure> {
    let Some(next) = read_key(path)? else { return Ok(None) };
    if next.name() != key.name() {
        let failure = Failure::usage(format!("{}: its name is {}, not {}", path.display(), next.name(), key.name()));
        return Err(failure.hint(format!("`coppice keygen --out {} --name {}`", path.display(), key.name())));
    }
    Ok(Some(next))
}

/// Writes the private key to a new file, readable only by its owner. An existing file is not
/// replaced.
pub fn write_key(path: &Path, key: &SignerKey) -> Result<(), Failure> {
    let line = Zeroizing::new([key.to_private_text().as_str(), "\n"].concat());
    files::create(path, line.as_bytes(), files::PRIVATE)
}

/// The private key in a file; `None` if there is no file.
fn read_key(path: &Path) -> Result<Option<SignerKey>, Failure> {
    match read_secret(path).map(Zeroizing::new) {
        Ok(text) => parse_key(text.trim_end_matches('\n'), path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::file(path, &error)),
    }
}

/// The private key in a file that must be there.
///
/// # Errors
/// If there is no file, others may read it, or it holds no private key.
pub fn secret_key(path: &Path) -> Result<SignerKey, Failure> {
    read_key(path)?.ok_or_else(|| {
        let failure = Failure::usage(format!("{}: there is no such file", text::path(path)));
        failure.hint("`coppice keygen --name NAME --out FILE` makes a private key.")
    })
}

/// The public key in a file; `None` if there is no file.
fn read_vkey(path: &Path) -> Result<Option<VerifierKey>, Failure> {
    let wrong = |error| {
        let failure = Failure::usage(format!("{}: {error}", path.display()));
        failure.hint("It holds the ledger's public key. If it is damaged, remove it: it is made again from ledger.key.")
    };
    match fs::read_to_string(path) {
        Ok(text) => VerifierKey::parse(text.trim()).map(Some).map_err(wrong),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::file(path, &error)),
    }
}

fn write_vkey(dir: &Path, vkey: &VerifierKey) -> Result<(), Failure> {
    files::replace(&dir.join("ledger.vkey"), format!("{vkey}\n").as_bytes(), files::PUBLIC)
}

fn parse_key(text: &str, path: &Path) -> Result<SignerKey, Failure> {
    SignerKey::parse(text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A new key with this name, or with a name that ends in a new cluster id.
///
/// # Errors
/// If the text can't be a name.
pub fn new_key(name: Option<&str>, rng: &mut dyn Rng) -> Result<SignerKey, Failure> {
    let (mut cluster, mut seed) = ([0; 16], Zeroizing::new([0; 32]));
    rng.fill(&mut cluster);
    rng.fill(&mut *seed);
    let name = name.map_or_else(|| checkpoint::origin(ORIGIN_PREFIX, &ClusterId(cluster)), str::to_owned);
    SignerKey::from_seed(&name, &seed).map_err(|error| Failure::usage(format!("key name `{name}`: {error}")))
}

fn open_shape(path: &Path, wanted: &Wanted) -> Result<Shape, Failure> {
    if !path.exists() {
        let shape = wanted.shape()?;
        let text = serde_json::to_string_pretty(&shape).map_err(|error| Failure::usage(error.to_string()))?;
        files::replace(path, format!("{text}\n").as_bytes(), files::PRIVATE)?;
        return Ok(shape);
    }
    let shape = read_shape(path)?;
    wanted.check(&shape)?;
    Ok(shape)
}

/// Reads the choices of the first start.
///
/// # Errors
/// If the file is unreadable, or a newer version wrote it.
pub fn read_shape(path: &Path) -> Result<Shape, Failure> {
    let bytes = fs::read(path).map_err(|error| Failure::file(path, &error))?;
    let shape: Shape =
        serde_json::from_slice(&bytes).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    if shape.format != 1 {
        return Err(Failure::usage(format!("{}: written by a newer coppice", path.display())));
    }
    Ok(shape)
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
            // The file of an earlier attempt may be there.
            let _ = fs::remove_file(dir.path().join("next.key"));
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
    fn a_ledger_without_its_key_is_refused_and_keeps_its_public_key() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (data, key) = (dir.path().join("data"), dir.path().join("data/ledger.key"));
        let vkey = open(&data, 1).expect("an empty directory").vkey();
        let aside = dir.path().join("aside");
        fs::rename(&key, &aside).expect("it was made");
        let stays = |failure: Failure| {
            assert_eq!(failure.code, Code::Refused, "{failure:?}");
            assert!(failure.hint.as_ref().is_some_and(|hint| hint.contains("ledger.key")), "{failure:?}");
            assert_eq!(fs::read_to_string(data.join("ledger.vkey")).expect("it stays"), format!("{vkey}\n"));
        };
        stays(open(&data, 2).err().expect("the key is missing"));
        assert!(!key.exists(), "no other key is made");
        fs::remove_file(data.join("shape.json")).expect("it was made");
        stays(open(&data, 2).err().expect("the key of a first start that was cut off is missing"));
        assert!(!key.exists(), "no other key is made");
        write_key(&key, &new_key(None, &mut SimRng::new(3)).expect("a key")).expect("a file can be written");
        stays(open(&data, 2).err().expect("the key is another ledger's"));
        fs::rename(&aside, &key).expect("it is there");
        assert_eq!(open(&data, 2).expect("the key is back").vkey(), vkey);
    }

    #[test]
    fn the_public_key_is_replaced_only_once_another_key_is_in_force() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = open(dir.path(), 1).expect("an empty directory");
        let (former, name) = (first.vkey(), first.key.name().to_owned());
        drop(first);
        fs::remove_file(dir.path().join("ledger.key")).expect("it was made");
        let next = new_key(Some(&name), &mut SimRng::new(7)).expect("a key");
        write_key(&dir.path().join("ledger.key"), &next).expect("a file can be written");
        let published = || fs::read_to_string(dir.path().join("ledger.vkey")).expect("it is there");
        let home = open(dir.path(), 2).expect("the key may have been changed");
        assert_eq!(published(), format!("{former}\n"));
        assert!(home.explain(Failure::usage("no leader")).hint.is_some_and(|hint| hint.contains("ledger.vkey")));
        home.key_is_in_force().expect("a file can be written");
        assert_eq!(published(), format!("{}\n", next.verifier()));
    }

    #[test]
    fn a_key_that_everybody_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        drop(open(dir.path(), 1).expect("an empty directory"));
        let mode = |mode| {
            fs::set_permissions(dir.path().join("ledger.key"), fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        mode(0o644);
        let failure = open(dir.path(), 1).err().expect("it is not a secret");
        assert!(failure.message.contains("chmod 600"), "{failure:?}");
        mode(0o640);
        assert!(open(dir.path(), 1).is_ok());
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let held = open(dir.path(), 1).expect("an empty directory");
        let failure = open(dir.path(), 1).err().expect("it is held");
        assert_eq!(failure.code, Code::Refused);
        drop(held);
        // A process that another test is just starting also has the lock, until it runs its own
        // program.
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
