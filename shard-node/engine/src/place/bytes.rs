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
