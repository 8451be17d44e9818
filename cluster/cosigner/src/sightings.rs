//! What this cosigner saw of others: for each peer, the largest checkpoint with a line of its key.
//!
//! A peer whose state was set back asks for it before it signs again.

use std::{collections::BTreeMap, io::ErrorKind, sync::Arc};

use coppice_env::Storage;
use coppice_verify::{checkpoint::Checkpoint, cosignature::WitnessKey, note::NOTE_BYTES_MAX};

use crate::{
    config::key_hash,
    error::{Error, disk},
    files, lines,
};

/// Folder of the notes.
const PEERS: &str = "peers";

/// The notes, in memory and on disk.
#[derive(Debug)]
pub struct Sightings {
    storage: Arc<dyn Storage>,
    peers: Vec<WitnessKey>,
    /// By the hash of the key.
    seen: BTreeMap<String, (u64, Vec<u8>)>,
}

impl Sightings {
    /// Reads what was seen of these peers.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(storage: Arc<dyn Storage>, peers: Vec<WitnessKey>) -> Result<Self, Error> {
        let mut sightings = Self { storage, peers, seen: BTreeMap::new() };
        for key in sightings.peers.clone() {
            let hash = key_hash(key.key_bytes());
            let path = path(&hash);
            let note = match files::get(&*sightings.storage, &path, NOTE_BYTES_MAX) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                note => note.map_err(disk(&path))?,
            };
            // A file that a crash tore has no sound line.
            if let Some(size) = size_under(&note, &key) {
                sightings.seen.insert(hash, (size, note));
            }
        }
        Ok(sightings)
    }

    /// Looks for lines of peers on a note that the ledger signed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn look(&mut self, note: &[u8]) -> Result<(), Error> {
        for key in &self.peers {
            let Some(size) = size_under(note, key) else { continue };
            let hash = key_hash(key.key_bytes());
            if self.seen.get(&hash).is_none_or(|(seen, _)| size > *seen) {
                let path = path(&hash);
                files::put(&*self.storage, PEERS, &path, note).map_err(disk(&path))?;
                self.seen.insert(hash, (size, note.to_vec()));
            }
        }
        Ok(())
    }

    /// The largest checkpoint with a line of the key with this hash; `None` for a key that is no
    /// peer's, and an empty one if none was seen.
    #[must_use]
    pub fn of(&self, hash: &str) -> Option<Vec<u8>> {
        let known = self.peers.iter().any(|peer| key_hash(peer.key_bytes()) == hash);
        known.then(|| self.seen.get(hash).map(|(_, note)| note.clone()).unwrap_or_default())
    }
}

fn path(hash: &str) -> String {
    format!("{PEERS}/{hash}")
}

fn size_under(note: &[u8], key: &WitnessKey) -> Option<u64> {
    lines::cosignature(note, key)?;
    Some(Checkpoint::claimed(note).ok()?.size)
}
