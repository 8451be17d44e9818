//! Bytes and numbers in memory: arrays in slices, the bytes of a single owner, and lengths as
//! formats store them.

use std::sync::Arc;

/// The `N` bytes at an offset of bytes that are known to be long enough.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the length was checked")
}

/// A number of items or bytes in memory, as formats store it.
pub(crate) fn to_u32(number: u64) -> u32 {
    assert!(number <= u64::from(u32::MAX), "a length in memory takes at most 32 bits");
    number as u32
}

/// The bytes of their only owner.
pub(crate) fn own(bytes: &mut Arc<[u8]>) -> &mut [u8] {
    assert_eq!(Arc::strong_count(bytes), 1, "bytes that change have one owner");
    Arc::make_mut(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_cut_out_at_its_offset() {
        let bytes = [1, 2, 3, 4, 5];
        assert_eq!((array(&bytes, 0), array(&bytes, 3), array(&bytes, 5)), ([1, 2], [4, 5], []));
    }

    #[test]
    #[should_panic(expected = "the length was checked")]
    fn an_array_beyond_the_end_is_a_bug() {
        let _: [u8; 2] = array(&[1, 2, 3], 2);
    }

    #[test]
    fn the_largest_length_takes_32_bits() {
        assert_eq!(to_u32(u64::from(u32::MAX)), u32::MAX);
    }

    #[test]
    #[should_panic(expected = "a length in memory takes at most 32 bits")]
    fn a_longer_length_is_a_bug_and_is_not_cut() {
        to_u32(1 << 32);
    }

    #[test]
    fn the_only_owner_changes_bytes_where_they_are() {
        let mut bytes: Arc<[u8]> = Arc::from([1, 2]);
        let at = bytes.as_ptr();
        own(&mut bytes)[0] = 9;
        assert_eq!((&*bytes, bytes.as_ptr()), (&[9, 2][..], at));
    }

    #[test]
    #[should_panic(expected = "bytes that change have one owner")]
    fn bytes_of_two_owners_are_not_changed() {
        let mut bytes: Arc<[u8]> = Arc::from([1, 2]);
        let _other = Arc::clone(&bytes);
        own(&mut bytes);
    }
}
