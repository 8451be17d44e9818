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

/// Frames the stream of one batch, which is given in parts, a piece at a time.
pub(crate) struct Framer<'a, P: Iterator<Item = &'a [u8]>> {
    salt: u32,
    /// The batch's first block in the segment.
    first: u64,
    /// The next block in the batch.
    position: u32,
    parts: P,
    rest: &'a [u8],
}

impl<'a, P: Iterator<Item = &'a [u8]>> Framer<'a, P> {
    /// Of a batch that begins at block `first`.
    pub(crate) fn new(salt: u32, first: u64, parts: P) -> Self {
        let mut framer = Self { salt, first, position: 0, parts, rest: &[] };
        framer.take_part();
        framer
    }

    /// What is left of the stream begins with `rest`, unless nothing is.
    fn take_part(&mut self) {
        while self.rest.is_empty() {
            let Some(part) = self.parts.next() else { return };
            self.rest = part;
        }
    }

    /// Fills whole blocks with what comes next of the stream, and with zeroes behind its end.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        for block in out.chunks_exact_mut(BLOCK_BYTES) {
            if self.rest.is_empty() {
                block.fill(0);
                continue;
            }
            block[4..BLOCK_HEADER_BYTES].copy_from_slice(&self.position.to_le_bytes());
            let mut room = &mut block[BLOCK_HEADER_BYTES..];
            while !room.is_empty() && !self.rest.is_empty() {
                let (now, later) = self.rest.split_at(self.rest.len().min(room.len()));
                let (here, left) = room.split_at_mut(now.len());
                here.copy_from_slice(now);
                (room, self.rest) = (left, later);
                self.take_part();
            }
            room.fill(0);
            let crc = checksum(self.salt, self.first + u64::from(self.position), &block[4..]);
            block[..4].copy_from_slice(&crc.to_le_bytes());
            self.position += 1;
        }
    }
}
