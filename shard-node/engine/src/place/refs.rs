//! References into the value log, and the sizes and checksums that follow from them.

use coppice_types::codec::{Error, Reader, Writer};
use twox_hash::XxHash3_64;

/// Header of a record: checksum, length, kind and zeroes.
pub(crate) const RECORD_HEADER_BYTES: usize = 16;

/// Fixed part of a record's name: stamp and key length.
pub(crate) const NAME_FIXED_BYTES: usize = 16 + 2;

/// Place of a value in the value log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ValueRef {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
}

/// A record of the value log: its place and the length of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlobRef {
    pub(crate) at: ValueRef,
    pub(crate) len: u32,
}

/// A segment of the value log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Length in bytes as of the last superblock.
    pub(crate) end: u64,
    /// Bytes that versions and merges refer to, record headers included.
    pub(crate) live: u64,
    /// Generation of the first superblock that needs nothing in the segment.
    pub(crate) dead_at: Option<u64>,
}

impl BlobRef {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u32(self.at.segment);
        out.u32(self.at.offset);
        out.u32(self.len);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let at = ValueRef { segment: input.u32()?, offset: input.u32()? };
        Ok(Self { at, len: input.u32()? })
    }
}

/// Bytes that a record with content of this length takes.
pub(crate) fn record_bytes(len: u32) -> u64 {
    RECORD_HEADER_BYTES as u64 + u64::from(len)
}

/// Bytes before the value in a record that carries this key.
pub(crate) fn name_bytes(key: &[u8]) -> u32 {
    (NAME_FIXED_BYTES + key.len()) as u32
}

/// The checksum of the bytes that follow it at a place.
pub(crate) fn checksum(at: ValueRef, rest: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed(at), rest)
}

/// The hash seed for bytes at a place.
pub(crate) fn seed(at: ValueRef) -> u64 {
    u64::from(at.segment) << 32 | u64::from(at.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_back_and_no_prefix_of_it_is_one() {
        let blob = BlobRef { at: ValueRef { segment: 7, offset: u32::MAX }, len: 9 };
        let mut out = Writer::new();
        blob.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(BlobRef::decode(&mut Reader::new(&bytes)), Ok(blob));
        assert!((0..bytes.len()).all(|end| BlobRef::decode(&mut Reader::new(&bytes[..end])).is_err()));
    }

    #[test]
    fn the_longest_record_and_its_header_do_not_overflow() {
        assert_eq!(record_bytes(0), RECORD_HEADER_BYTES as u64);
        assert_eq!(record_bytes(u32::MAX), RECORD_HEADER_BYTES as u64 + u64::from(u32::MAX));
    }

    #[test]
    fn a_checksum_is_that_of_bytes_at_one_place() {
        let at = ValueRef { segment: 1, offset: 2 };
        let others = [ValueRef { segment: 2, offset: 1 }, ValueRef { offset: 3, ..at }, ValueRef { segment: 0, ..at }];
        assert!(others.into_iter().all(|other| checksum(other, b"bytes") != checksum(at, b"bytes")));
        assert_ne!(checksum(at, b"byte"), checksum(at, b"bytes"));
    }

    #[test]
    fn places_are_in_the_order_of_the_log() {
        let at = |segment, offset| ValueRef { segment, offset };
        assert!(at(0, u32::MAX) < at(1, 0) && at(1, 0) < at(1, 1));
    }
}
