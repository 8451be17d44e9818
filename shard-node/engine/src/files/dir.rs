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
