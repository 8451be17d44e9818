//! The superblock: the file that names the newest durable state.
//!
//! Every flush replaces it as a whole, after everything that it names is durable. A crash leaves
//! the old or the new one.

use std::io;

use coppice_env::{OpenMode, Storage};
use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};

use crate::{
    Error, Position,
    codec::{checked, with_checksum},
    journal::End,
    store,
};

/// Name of the file.
pub(crate) const SUPERBLOCK: &str = "superblock";
/// First bytes of the file.
const MAGIC: &[u8; 8] = b"copsup01";
/// Length of the file.
const SUPERBLOCK_BYTES: usize = 8 + 8 + 16 + 8 + 48 + 40 + 8;

// The size in docs/format.md.
const _: () = assert!(SUPERBLOCK_BYTES == 136);

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Counts flushes from 1; 0 in a new directory.
    pub(crate) generation: u64,
    /// The newest raft entry that the state covers.
    pub(crate) position: Position,
    /// Generation of the newest saved state; 0 if none was saved.
    pub(crate) saved: u64,
    pub(crate) journal: End,
    pub(crate) log_size: u64,
    pub(crate) log_root: Digest,
}

/// Name of the file with the state that was saved by the flush of a generation.
pub(crate) fn state_path(generation: u64) -> String {
    format!("state/{generation:020}")
}

impl Superblock {
    /// The superblock of a new directory, which has no file yet.
    pub(crate) fn new() -> Self {
        Self {
            generation: 0,
            position: Position::default(),
            saved: 0,
            journal: End::of_chunk(0),
            log_size: 0,
            log_root: coppice_verify::merkle::empty_root(),
        }
    }

    /// The bytes of the file.
    pub(crate) fn file(&self) -> Vec<u8> {
        assert!(self.saved <= self.generation, "a flush saves the state under its own generation");
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u64(self.generation);
        out.u64(self.position.index);
        out.u64(self.position.term);
        out.u64(self.saved);
        out.u64(self.journal.chunk);
        out.u64(self.journal.len);
        out.digest(&self.journal.chain);
        out.u64(self.log_size);
        out.digest(&self.log_root);
        let bytes = with_checksum(out.into_bytes());
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "the superblock has a fixed length");
        bytes
    }

    /// Reads the bytes of the file.
    pub(crate) fn from_file(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |what: &str| Error::corrupted(SUPERBLOCK, what);
        let body = checked(bytes).ok_or_else(|| damaged("the checksum differs"))?;
        Self::decode(body).map_err(|error| damaged(&error.to_string()))
    }

    fn decode(body: &[u8]) -> Result<Self, codec::Error> {
        let mut input = Reader::new(body);
        if input.take(MAGIC.len())? != MAGIC {
            return Err(codec::Error::Malformed("magic"));
        }
        let superblock = Self {
            generation: input.u64()?,
            position: Position { index: input.u64()?, term: input.u64()? },
            saved: input.u64()?,
            journal: End { chunk: input.u64()?, len: input.u64()?, chain: input.digest()? },
            log_size: input.u64()?,
            log_root: input.digest()?,
        };
        input.finish()?;
        if superblock.saved > superblock.generation {
            return Err(codec::Error::Malformed("generation of the saved state"));
        }
        Ok(superblock)
    }

    /// Reads the superblock of a directory. A directory without the file is a new one.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Self, Error> {
        match storage.open(SUPERBLOCK, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::new()),
            _ => Self::from_file(&store::read_file(storage, SUPERBLOCK)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(generation: u64, saved: u64) -> Superblock {
        let position = Position { index: 9, term: 2 };
        Superblock { generation, saved, position, ..Superblock::new() }
    }

    #[test]
    fn a_superblock_survives_its_file() {
        let superblock = superblock(5, 3);
        assert_eq!(Superblock::from_file(&superblock.file()).expect("its own bytes"), superblock);
    }

    #[test]
    fn a_saved_state_of_a_later_flush_is_damage() {
        let mut body = superblock(5, 5).file();
        body.truncate(SUPERBLOCK_BYTES - 8);
        body[8] = 4;
        let error = Superblock::from_file(&with_checksum(body)).expect_err("saved by flush 5 of 4");
        assert!(error.to_string().contains("generation of the saved state"), "{error}");
    }
}
