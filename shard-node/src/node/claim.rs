//! The claim on a node's directory: one process locks it, and it belongs to one cluster, node and
//! ledger for good.
//!
//! ```text
//! LOCK            held while a process uses the directory
//! node            cluster, node, ordinal, digest of the genesis parameters and first shards
//! group-<n>/      the replicas
//! ```
//!
//! The file `node` is written before anything else and never changed. A crash before that leaves an
//! empty directory. A cold directory has the same two files, and the cold files of the replicas. It
//! is useless without the data directory: files of replicas that are not in that directory are
//! removed.

use std::fmt;

use coppice_env::Storage;
use coppice_types::{
    ClusterId, Digest,
    codec::{Error as CodecError, Reader, Writer},
};

use crate::{Error, error::storage as failed, replica::home};

/// The file's name.
const FILE: &str = "node";
/// Longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// The owner of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub cluster: ClusterId,
    /// The node's name.
    pub node: String,
    /// The node's place in the cluster.
    pub ordinal: u32,
    /// Digest of the genesis parameters and the first shards, which all other digests depend on.
    pub ledger: Digest,
}

/// A node's directories, held by this process alone.
pub struct Claim {
    _locks: Vec<Box<dyn Send + Sync>>,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").finish_non_exhaustive()
    }
}

impl Claim {
    /// Locks a node's directory and its cold directory, and binds them to their owner if they are
    /// empty.
    ///
    /// # Errors
    /// If another process has one of them, or one belongs to another owner, or holds other files.
    pub fn take(storage: &dyn Storage, owner: &Owner) -> Result<Self, Error> {
        let mut locks = vec![lock(storage)?];
        // A directory that can't be read is refused before the cold one is bound to this node.
        home::read(storage, FILE)?;
        if let Some(cold) = storage.cold() {
            let of_cold = |error| match error {
                Error::Identity(what) => Error::Identity(format!("the cold directory: {what}")),
                other => other,
            };
            locks.push(lock(&*cold)?);
            bind(&*cold, owner).map_err(of_cold)?;
        }
        bind(storage, owner)?;
        Ok(Self { _locks: locks })
    }
}

fn lock(storage: &dyn Storage) -> Result<Box<dyn Send + Sync>, Error> {
    storage.create_dir_all("").map_err(failed("make the data directory"))?;
    storage.lock("LOCK").map_err(failed("lock the data directory"))
}

fn bind(storage: &dyn Storage, owner: &Owner) -> Result<(), Error> {
    if let Some(bytes) = home::read(storage, FILE)? {
        let found = parse(&bytes).map_err(|error| Error::Damaged { file: FILE, what: error.to_string() })?;
        return check(&found, owner);
    }
    let names = storage.list("").map_err(failed("list the data directory"))?;
    if let Some(foreign) = names.iter().find(|name| !expected(name)) {
        let what = format!("it has `{foreign}` in it and no file `{FILE}`");
        return Err(Error::Identity(what));
    }
    home::write(storage, FILE, &bytes_of(owner))
}

/// Whether a file or directory with this name may be in a directory that is not bound yet.
fn expected(name: &str) -> bool {
    matches!(name, "LOCK" | "node.new" | "lost+found")
}

fn check(found: &Owner, owner: &Owner) -> Result<(), Error> {
    let refuse = |what: &str, found: String, owner: String| {
        Err(Error::Identity(format!("it belongs to {what} {found}, and this process is {what} {owner}")))
    };
    if found.cluster != owner.cluster {
        return refuse("cluster", found.cluster.to_string(), owner.cluster.to_string());
    }
    if (&found.node, found.ordinal) != (&owner.node, owner.ordinal) {
        let name = |owner: &Owner| format!("{} (ordinal {})", owner.node, owner.ordinal);
        return refuse("node", name(found), name(owner));
    }
    if found.ledger != owner.ledger {
        let what =
            "the [ledger] of the configuration is not the one that the directory was made with; it never changes";
        return Err(Error::Identity(what.to_owned()));
    }
    Ok(())
}

fn bytes_of(owner: &Owner) -> Vec<u8> {
    assert!(owner.node.len() <= NAME_BYTES_MAX, "names are checked with the configuration");
    let mut out = Writer::new();
    out.raw(owner.cluster.as_bytes());
    out.u32(owner.ordinal);
    out.str32(owner.node.as_bytes());
    out.digest(&owner.ledger);
    out.into_bytes()
}

fn parse(bytes: &[u8]) -> Result<Owner, CodecError> {
    let mut input = Reader::new(bytes);
    let cluster = ClusterId(input.bytes16()?);
    let ordinal = input.u32()?;
    let node = String::from_utf8(input.str32()?.to_vec()).map_err(|_| CodecError::Malformed("name of the node"))?;
    Ok(Owner { cluster, node, ordinal, ledger: input.digest()? })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_env::{OpenMode, SimStorage, TieredStorage};

    use super::*;

    fn owner() -> Owner {
        Owner { cluster: ClusterId([1; 16]), node: "node-1".to_owned(), ordinal: 1, ledger: Digest([7; 32]) }
    }

    #[test]
    fn a_directory_is_held_by_one_process_and_bound_to_its_first_owner() {
        let storage = SimStorage::new().storage();
        let held = Claim::take(storage.as_ref(), &owner()).expect("it is empty");
        assert!(matches!(Claim::take(storage.as_ref(), &owner()), Err(Error::InUse)));
        drop(held);
        let others = [
            (Owner { cluster: ClusterId([2; 16]), ..owner() }, "cluster"),
            (Owner { node: "node-2".to_owned(), ..owner() }, "node-1"),
            (Owner { ordinal: 2, ..owner() }, "ordinal"),
            (Owner { ledger: Digest([8; 32]), ..owner() }, "[ledger]"),
        ];
        for (other, word) in others {
            let error = Claim::take(storage.as_ref(), &other).expect_err("it is another's").to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(Claim::take(storage.as_ref(), &owner()).is_ok());
    }

    #[test]
    fn a_cold_directory_is_bound_like_the_other_and_kept_with_an_empty_one() {
        let (hot, cold) = (SimStorage::new(), SimStorage::new());
        let with = |hot: &SimStorage| TieredStorage::new(hot.storage(), cold.storage());
        let held = Claim::take(&with(&hot), &owner()).expect("both are empty");
        assert!(matches!(Claim::take(&with(&SimStorage::new()), &owner()), Err(Error::InUse)), "the cold one is held");
        drop(held);
        hot.create_dir_all("group-1/state-1").expect("a directory");
        cold.create_dir_all("group-1/state-1").expect("a directory");
        cold.open("group-1/state-1/values-0", OpenMode::CreateNew).expect("a file");
        drop(Claim::take(&with(&hot), &owner()).expect("it is the same node's"));
        assert!(cold.files().contains(&"group-1/state-1/values-0".to_owned()));
        let other = Owner { node: "node-2".to_owned(), ordinal: 2, ..owner() };
        let error = Claim::take(&with(&SimStorage::new()), &other).expect_err("it is another's").to_string();
        assert!(error.contains("the cold directory: it belongs to node node-1"), "{error}");
        // The other disk may be lost, or not be mounted yet.
        drop(Claim::take(&with(&SimStorage::new()), &owner()).expect("it is the same node's"));
        assert!(cold.files().contains(&"group-1/state-1/values-0".to_owned()));
        // Another disk is mounted there.
        let foreign = SimStorage::new();
        foreign.create_dir_all("photos").expect("a directory");
        let storage = Arc::new(TieredStorage::new(hot.storage(), foreign.storage()));
        let error = Claim::take(storage.as_ref(), &owner()).expect_err("it is not a cold directory").to_string();
        assert!(error.contains("the cold directory: it has `photos` in it"), "{error}");
    }

    #[test]
    fn a_directory_with_something_else_in_it_is_left_alone() {
        let storage = SimStorage::new().storage();
        storage.create_dir_all("group-0").expect("a directory");
        storage.open("group-0/identity", OpenMode::CreateNew).expect("a file");
        assert!(matches!(Claim::take(storage.as_ref(), &owner()), Err(Error::Identity(_))));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let disk = SimStorage::new();
        drop(Claim::take(disk.storage().as_ref(), &owner()).expect("it is empty"));
        disk.flip_bit("node", 20, 1);
        assert!(matches!(Claim::take(disk.storage().as_ref(), &owner()), Err(Error::Damaged { .. })));
    }
}
