//! The file that says how far an audit is, so that a restart goes on from there.
//!
//! What it says is believed as the cosigner's record is: whoever can write it can also sign. A file
//! that is missing or does not check makes more work and nothing else: the audit begins at genesis.

use std::io::ErrorKind;

use coppice_env::Storage;
use coppice_types::{
    Version,
    codec::{self, Reader, Writer},
};
use coppice_verify::hash::sha256;

use super::standing::Place;
use crate::{
    error::{Error, disk},
    files,
};

const FILE: &str = "progress";
const MAGIC: &[u8; 8] = b"CPCAUDT1";
const BYTES_MAX: usize = 256;

/// How far an audit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The version that was replayed last; `None` for genesis.
    pub at: Option<Place>,
    /// Size of the log whose vanished versions are counted.
    pub counted: u64,
    /// Number of versions that were rolled back before they were replayed.
    pub vanished: u64,
}

impl Progress {
    /// Reads the file of a folder.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn read(storage: &dyn Storage) -> Result<Self, Error> {
        match files::get(storage, FILE, BYTES_MAX) {
            Ok(bytes) => Ok(Self::decode(&bytes).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => Ok(Self::default()),
            Err(error) => Err(disk(FILE)(error)),
        }
    }

    /// Writes the file. It is durable when this returns.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&self, storage: &dyn Storage) -> Result<(), Error> {
        files::put(storage, "", FILE, &self.encode()).map_err(disk(FILE))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.flag(self.at.is_some());
        if let Some(place) = &self.at {
            out.u64(place.sequence);
            out.u64(place.version.0);
            out.raw(place.hash.as_bytes());
        }
        out.u64(self.counted);
        out.u64(self.vanished);
        let mut bytes = out.into_bytes();
        let checksum = sha256(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
        if sha256(body).as_bytes()[..] != *checksum || !body.starts_with(MAGIC) {
            return None;
        }
        let read = |input: &mut Reader<'_>| -> Result<Self, codec::Error> {
            let at = match input.flag("at")? {
                true => Some(Place { sequence: input.u64()?, version: Version(input.u64()?), hash: input.digest()? }),
                false => None,
            };
            Ok(Self { at, counted: input.u64()?, vanished: input.u64()? })
        };
        let mut input = Reader::new(&body[MAGIC.len()..]);
        let progress = read(&mut input).ok()?;
        input.finish().ok()?;
        Some(progress)
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Digest;

    use super::*;

    #[test]
    fn a_file_that_does_not_check_is_a_new_beginning() {
        let disk = SimStorage::new();
        assert_eq!(Progress::read(&disk).expect("no file"), Progress::default());
        let at = Some(Place { sequence: 9, version: Version(7), hash: Digest([3; 32]) });
        let progress = Progress { at, counted: 11, vanished: 2 };
        progress.write(&disk).expect("the disk is well");
        assert_eq!(Progress::read(&disk).expect("it is there"), progress);
        for at in 0..progress.encode().len() as u64 {
            let copy = disk.process_loss();
            copy.flip_bit(FILE, at, 2);
            assert_eq!(Progress::read(&copy).expect("it can be read"), Progress::default(), "byte {at}");
        }
    }
}
