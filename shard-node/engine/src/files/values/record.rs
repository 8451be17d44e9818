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
    /// A block of the Meta table's rows.
    Rows = 6,
    /// A record that was [`Self::Named`], with zeroes in place of the value.
    Erased = 7,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::refs::record_bytes;

    const AT: ValueRef = ValueRef { segment: 3, offset: 40 };

    /// A record as it lies in its segment.
    fn record(kind: RecordKind, at: ValueRef, content: &[u8]) -> Vec<u8> {
        let mut rest = (content.len() as u32).to_le_bytes().to_vec();
        rest.extend_from_slice(&[kind as u8, 0, 0, 0]);
        rest.extend_from_slice(content);
        [checksum(at, &rest).to_le_bytes().to_vec(), rest].concat()
    }

    fn name(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut held = [5_u64.to_le_bytes(), 6_u64.to_le_bytes()].concat();
        held.extend_from_slice(&(key.len() as u16).to_le_bytes());
        [held, key.to_vec(), value.to_vec()].concat()
    }

    #[test]
    fn the_file_name_of_a_segment_has_its_number() {
        for segment in [0, 7, u32::MAX] {
            assert_eq!(file_number(&file_name(segment)), Some(segment));
        }
        for name in ["values-4294967296", "values-", "values--1", "values-1.new", "meta-1", "values1"] {
            assert_eq!(file_number(name), None, "{name}");
        }
    }

    #[test]
    fn a_record_is_checked_against_its_place_kind_and_length() {
        let blob = BlobRef { at: AT, len: 5 };
        let bytes = record(RecordKind::Value, AT, b"bytes");
        assert_eq!(bytes.len() as u64, record_bytes(5));
        assert_eq!(check(RecordKind::Value, blob, &bytes).expect("sound"), b"bytes");
        let damaged = |checked: Result<&[u8]>| matches!(checked, Err(Error::Corrupted { page: Some(_), .. }));
        assert!(damaged(check(RecordKind::Filter, blob, &bytes)), "another kind");
        assert!(damaged(check(RecordKind::Value, BlobRef { len: 4, ..blob }, &bytes)), "another length");
        let elsewhere = ValueRef { offset: 41, ..AT };
        assert!(damaged(check(RecordKind::Value, BlobRef { at: elsewhere, ..blob }, &bytes)), "another place");
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(damaged(check(RecordKind::Value, blob, &bytes)), "byte {at}");
        }
    }

    #[test]
    fn a_name_is_split_from_its_value_wherever_it_may_end() {
        let held = name(b"key", b"value");
        assert_eq!(split_name(&held), Some((Stamp::new(5, 6), &b"key"[..], 5)));
        let no_value = NAME_FIXED_BYTES + 3;
        assert_eq!(split_name(&held[..no_value]), Some((Stamp::new(5, 6), &b"key"[..], 0)));
        assert!((0..no_value).all(|end| split_name(&held[..end]).is_none()));
    }

    #[test]
    fn a_value_is_the_end_of_its_record() {
        let held = name(b"key", b"value");
        let value = StoredValue { len: 5, blob: BlobRef { at: AT, len: held.len() as u32 } };
        assert_eq!(
            (value.kind(), value.of(&held), value.taken_from(held.clone())),
            (RecordKind::Named, &b"value"[..], b"value".to_vec())
        );
        let plain = StoredValue { len: 5, blob: BlobRef { at: AT, len: 5 } };
        assert_eq!((plain.kind(), plain.of(b"value")), (RecordKind::Value, &b"value"[..]));
    }
}
