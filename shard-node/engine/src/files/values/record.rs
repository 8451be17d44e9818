//! Records of the value log: kinds, file names and checks.

use coppice_types::{Epoch, Stamp, Version};

use crate::{
    Error, Result,
    place::refs::{BlobRef, NAME_FIXED_BYTES, RECORD_HEADER_BYTES, ValueRef, checksum},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Value = 1,
    Filter = 2,
    Journal = 3,
    /// A value that follows its stamp and key.
    Named = 4,
    Shortcuts = 5,
}

/// A value in the log: the last `len` bytes of a record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredValue {
    pub(crate) len: u32,
    pub(crate) blob: BlobRef,
}

impl StoredValue {
    pub(super) fn kind(&self) -> RecordKind {
        if self.blob.len == self.len { RecordKind::Value } else { RecordKind::Named }
    }

    /// Bytes before the value in the record's content.
    fn name_bytes(&self) -> usize {
        (self.blob.len - self.len) as usize
    }

    /// The value in its record's content.
    pub(super) fn of<'r>(&self, held: &'r [u8]) -> &'r [u8] {
        &held[self.name_bytes()..]
    }

    /// The value, taken out of the buffer with its record's content.
    pub(super) fn taken_from(&self, mut held: Vec<u8>) -> Vec<u8> {
        held.drain(..self.name_bytes());
        held
    }
}

/// The result of a look at a record that may carry a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The record carries the key; its stamp and value.
    This(Stamp, Vec<u8>),
    /// The record carries another key.
    Other,
    /// The record cannot be read.
    Unknown,
}

/// Name of a segment file.
pub(crate) fn file_name(segment: u32) -> String {
    format!("values-{segment}")
}

/// Number in the name of a segment file.
pub(crate) fn file_number(name: &str) -> Option<u32> {
    name.strip_prefix("values-")?.parse().ok()
}

/// Stamp, key and value length in the content of a named record.
pub(super) fn split_name(held: &[u8]) -> Option<(Stamp, &[u8], usize)> {
    let (fixed, rest) = held.split_first_chunk::<NAME_FIXED_BYTES>()?;
    let [epoch, version] = [0, 8].map(|at| fixed[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
    let (key, value) = rest.split_at_checked(u16::from_le_bytes([fixed[16], fixed[17]]).into())?;
    Some((Stamp { epoch: Epoch(epoch), version: Version(version) }, key, value.len()))
}

pub(super) fn corrupted(at: ValueRef, what: &str) -> Error {
    Error::corrupted(file_name(at.segment), Some(at.offset.into()), what)
}

/// Checks a record against its reference and returns its content.
pub(super) fn check(kind: RecordKind, blob: BlobRef, record: &[u8]) -> Result<&[u8]> {
    let mut rest = [0; 8];
    rest[..4].copy_from_slice(&blob.len.to_le_bytes());
    rest[4] = kind as u8;
    if record[..8] != checksum(blob.at, &record[8..]).to_le_bytes() {
        return Err(corrupted(blob.at, "checksum"));
    }
    if record[8..RECORD_HEADER_BYTES] != rest {
        return Err(corrupted(blob.at, "record header"));
    }
    Ok(&record[RECORD_HEADER_BYTES..])
}
