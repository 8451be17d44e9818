//! The framing of a segment file: 512-byte blocks, each with its own checksum.
//!
//! A sector of a disk is written wholly or not at all, and a segment is filled with zeroes before use. So a block that
//! was cut off by a power failure is all zeroes, and one that is neither zero nor valid was damaged after it was
//! written: the two are never confused, not even in the last batch. No block is ever rewritten with other content.

/// Bytes of a block, the unit that a disk writes wholly or not at all.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Checksum, then the block's number within its batch.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// Bytes of a block that carry the stream.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK_BYTES - BLOCK_HEADER_BYTES;

const _: () = assert!(PAYLOAD_BYTES == 504);

/// What a block is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block<'a> {
    /// Never written.
    Zero,
    /// The `position`-th block of a batch.
    Valid { position: u32, payload: &'a [u8] },
    /// Neither.
    Damaged,
}

fn checksum(salt: u32, number: u64, content: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(salt, &number.to_le_bytes());
    crc32c::crc32c_append(crc, content)
}

/// Looks at the block at `number` of the segment that `salt` belongs to.
pub(crate) fn inspect(salt: u32, number: u64, block: &[u8]) -> Block<'_> {
    assert_eq!(block.len(), BLOCK_BYTES);
    if block.iter().all(|byte| *byte == 0) {
        return Block::Zero;
    }
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    if word(0) != checksum(salt, number, &block[4..]) {
        return Block::Damaged;
    }
    Block::Valid { position: word(4), payload: &block[BLOCK_HEADER_BYTES..] }
}

/// How many blocks a stream of this length takes.
pub(crate) fn count(stream_bytes: usize) -> u64 {
    stream_bytes.div_ceil(PAYLOAD_BYTES) as u64
}

/// The blocks of one batch's stream, given in parts, to be written at block `first`. There is room for so many bytes at least.
pub(crate) fn frame<'a>(salt: u32, first: u64, parts: impl Iterator<Item = &'a [u8]>, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(room);
    let mut parts = parts.filter(|part| !part.is_empty()).peekable();
    let mut rest: &[u8] = &[];
    for position in 0_u32.. {
        if rest.is_empty() && parts.peek().is_none() {
            break;
        }
        let start = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&position.to_le_bytes());
        while bytes.len() < start + BLOCK_BYTES {
            if rest.is_empty() {
                let Some(part) = parts.next() else { break };
                rest = part;
            }
            let (now, later) = rest.split_at(rest.len().min(start + BLOCK_BYTES - bytes.len()));
            bytes.extend_from_slice(now);
            rest = later;
        }
        bytes.resize(start + BLOCK_BYTES, 0);
        let crc = checksum(salt, first + u64::from(position), &bytes[start + 4..]);
        bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}
