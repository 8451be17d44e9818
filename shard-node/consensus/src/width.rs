//! Conversions between the widths of numbers in files or messages and those in memory.

/// An index or a length of something in memory.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("what is in memory can be addressed")
}

/// A length or count whose limit is far below 4 GiB.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths were compared with their limits")
}

/// A count whose limit is far below 256.
pub(crate) fn len8(len: usize) -> u8 {
    u8::try_from(len).expect("counts were compared with their limits")
}
