//! The data directory as a whole: its lock, and which names in it are the engine's.

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

/// Files of a data directory that are numbered or paged: what a crashed create may leave.
pub(crate) fn is_ours(name: &str) -> bool {
    let paged = PageFile::ALL.iter().any(|file| file.name() == name);
    let numbered = meta_log::file_number(name).is_some() || values::file_number(name).is_some();
    paged || numbered || name == tier::MARKER_FILE
}
