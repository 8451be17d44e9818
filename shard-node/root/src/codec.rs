//! Parts that the encodings of this crate share: counts, lists, and the checksum at the end of a
//! file.

use coppice_types::codec::{Error, Reader};
use twox_hash::XxHash3_64;

/// Bytes of the checksum at the end of a file.
const CHECKSUM_BYTES: usize = 8;

const _: () = assert!(usize::BITS >= u32::BITS, "a length of 32 bits is a length in memory");

/// The encoding of a length or count, which was compared with its limit before.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("counts were compared with their limits")
}

/// A length of 32 bits as a length in memory.
pub(crate) fn to_usize(value: u32) -> usize {
    value as usize
}

/// Reads a counted list. Memory grows with the bytes at hand, and not with the count.
pub(crate) fn list<T>(
    input: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let count = input.u32()?;
    (0..count).map(|_| item(input)).collect()
}

/// Appends the bytes' checksum to them.
pub(crate) fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The bytes before the checksum; `None` if the checksum differs.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    (XxHash3_64::oneshot(body).to_le_bytes() == *checksum).then_some(body)
}

#[cfg(test)]
mod tests {
    use coppice_types::codec::Writer;

    use super::*;

    #[test]
    fn a_checksum_fits_its_bytes_alone() {
        let bytes = with_checksum(b"content".to_vec());
        assert_eq!(checked(&bytes), Some(&b"content"[..]));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(checked(&damaged), None, "byte {at}");
            assert_eq!(checked(&bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_list_ends_with_its_bytes_whatever_its_count_says() {
        let mut out = Writer::new();
        out.u32(u32::MAX);
        out.u64(7);
        let items = list(&mut Reader::new(&out.into_bytes()), |input| input.u64());
        assert_eq!(items, Err(Error::Truncated));
    }
}
