//! The manifest of a raft snapshot: which files the snapshot consists of.
//!
//! A manifest carries the superblock and the hash of the saved state, and the state lists all other
//! files. So a manifest is short however long the log is.

use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};

use crate::{
    Error, Position,
    journal::{End, journal_path},
    sealed::Sealed,
    superblock::{Superblock, state_path},
};

/// First byte of an encoded manifest.
const MANIFEST_VERSION: u8 = 2;

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Name in the directory.
    pub name: String,
    /// How many of the file's first bytes belong to the snapshot.
    pub len: u64,
    /// SHA-256 of those bytes; for a journal, the hash chain over its records.
    pub hash: Digest,
}

/// The data of a raft snapshot message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Names the pin at the sender.
    pub id: u64,
    /// The newest raft entry that the snapshot covers.
    pub position: Position,
    /// The files, in the order of sending. A decoded manifest has the first one only, the state,
    /// which lists the others.
    pub files: Vec<SnapshotFile>,
    /// The superblock. A directory with it and these files is a replica's directory.
    pub(crate) superblock: Vec<u8>,
}

impl Manifest {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.files.is_empty(), "a snapshot begins with the state");
        let state = &self.files[0];
        let mut out = Writer::new();
        out.u8(MANIFEST_VERSION);
        out.u64(self.id);
        out.str16(&self.superblock);
        out.u64(state.len);
        out.digest(&state.hash);
        out.into_bytes()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the bytes are not a manifest.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let mut decode = || -> Result<(u64, Vec<u8>, u64, Digest), codec::Error> {
            if input.u8()? != MANIFEST_VERSION {
                return Err(codec::Error::Malformed("version"));
            }
            let fields = (input.u64()?, input.str16()?.to_vec(), input.u64()?, input.digest()?);
            input.clone().finish()?;
            Ok(fields)
        };
        let damaged = |error: codec::Error| Error::corrupted("snapshot manifest", error.to_string());
        let (id, superblock, len, hash) = decode().map_err(damaged)?;
        let Superblock { position, saved, .. } = Superblock::from_file(&superblock)?;
        let state = SnapshotFile { name: state_path(saved), len, hash };
        Ok(Self { id, position, files: vec![state], superblock })
    }
}

/// The files of a snapshot besides the state: the sealed ones, and the growing journal.
pub(crate) fn listed<'s>(sealed: &'s [Sealed], journal: &End) -> impl Iterator<Item = SnapshotFile> + use<'s> {
    let sealed = sealed.iter().map(|sealed| SnapshotFile { name: sealed.name(), len: sealed.len, hash: sealed.hash });
    let growing = SnapshotFile { name: journal_path(journal.chunk), len: journal.len, hash: journal.chain };
    sealed.chain((journal.len > 0).then_some(growing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_carries_the_superblock_and_the_state_alone() {
        let superblock = Superblock { generation: 4, saved: 4, ..Superblock::new() };
        let file = |name: String| SnapshotFile { name, len: 9, hash: Digest([3; 32]) };
        let files = vec![file(state_path(4)), file(journal_path(0))];
        let manifest = Manifest { id: 4, position: superblock.position, files, superblock: superblock.file() };
        let decoded = Manifest::decode(&manifest.encode()).expect("its own bytes");
        assert_eq!(decoded.files, manifest.files[..1]);
        assert_eq!((decoded.id, decoded.superblock), (manifest.id, manifest.superblock));
    }
}
