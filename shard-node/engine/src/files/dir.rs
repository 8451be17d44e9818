//! The data directory: its lock, and the names of its files.

use coppice_env::Storage;

use super::{
    meta_log,
    values::{self, tier},
};
use crate::{Error, Result, place::page::PageFile};

const LOCK_FILE: &str = "lock";

pub(crate) fn lock(storage: &dyn Storage) -> Result<Box<dyn Send + Sync>> {
    match storage.lock(LOCK_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(Error::Locked),
        other => other.map_err(Error::io("lock", LOCK_FILE)),
    }
}

/// Whether a name is that of a page file, a numbered file or the cold marker. A crashed create may
/// leave such files.
pub(crate) fn is_ours(name: &str) -> bool {
    let paged = PageFile::ALL.iter().any(|file| file.name() == name);
    let numbered = meta_log::file_number(name).is_some() || values::file_number(name).is_some();
    paged || numbered || name == tier::MARKER_FILE
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use coppice_env::{Fault, Operation, SimStorage};

    use super::*;

    #[test]
    fn page_files_numbered_files_and_the_cold_marker_are_ours() {
        for name in ["index", "data", "patches", "meta-1", "values-0", "values-4294967295", "cold"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["", "lock", "superblock", "superblock.new", "snapshot", "meta", "meta-", "values-x", "data2"] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn a_lock_holds_until_it_is_dropped() {
        let sim = SimStorage::new();
        let guard = lock(&sim).expect("it is free");
        assert!(matches!(lock(&sim), Err(Error::Locked)));
        drop(guard);
        lock(&sim).expect("it is free again");
    }

    #[test]
    fn a_failure_to_lock_is_not_taken_for_a_lock() {
        let sim = SimStorage::new();
        let path_part = LOCK_FILE.to_owned();
        sim.inject(Fault { operation: Operation::Open, path_part, skip: 0, kind: ErrorKind::OutOfMemory });
        assert!(matches!(lock(&sim), Err(Error::Io { action: "lock", .. })));
    }
}
