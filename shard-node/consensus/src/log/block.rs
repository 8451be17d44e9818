//! The framing of a segment file: 512-byte blocks, each with its own checksum.
//!
//! A sector of a disk is written wholly or not at all, and before a segment is written to, its file holds zeroes, or blocks of
//! segments that were dropped, which bear their number. So a block that was cut off by a power failure is as it was before, and one
//! that is neither zero nor valid was damaged after it was written: the two are never confused, not even in the last batch. No block of a
//! segment is ever rewritten with other content.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a block, the unit that a disk writes wholly or not at all.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Where the block's number within its batch lies, after the checksum of all that follows.
const POSITION_AT: usize = 4;
/// Where the low half of the segment's number lies.
const SEGMENT_AT: usize = 8;
/// Bytes of a block before its payload.
const HEADER_BYTES: usize = 12;
/// Bytes of a block that carry the stream.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;

const _: () = assert!(SEGMENT_AT + size_of::<u32>() == HEADER_BYTES);
const _: () = assert!(PAYLOAD_BYTES == 500);

/// What a block is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block<'a> {
    /// Not written since the file became this segment.
    Unwritten,
    /// The `position`-th block of a batch.
    Valid { position: u32, payload: &'a [u8] },
    /// Neither.
    Damaged,
}

/// How the blocks of one segment are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    salt: u32,
    segment: u64,
}

/// How many blocks a stream of this length takes.
pub(crate) fn count(stream_bytes: usize) -> u64 {
    stream_bytes.div_ceil(PAYLOAD_BYTES) as u64
}

/// CRC-32C (RFC 3720, section 12.1) of what comes in parts behind bytes that have the checksum `before`: 0 is that of none.
pub(crate) fn crc32c(before: u32, parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!before).into());
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

impl Framing {
    /// The framing of a segment's blocks. Their checksums start from `salt`, which names the owner.
    pub(crate) fn new(salt: u32, segment: u64) -> Self {
        Self { salt, segment }
    }

    /// Of the `number`-th block of a segment.
    fn checksum(self, segment: u64, number: u64, content: &[u8]) -> u32 {
        crc32c(self.salt, &[&segment.to_le_bytes(), &number.to_le_bytes(), content])
    }

    /// Looks at the block at `number`.
    pub(crate) fn inspect(self, number: u64, block: &[u8]) -> Block<'_> {
        assert_eq!(block.len(), BLOCK_BYTES, "a file is looked at in whole blocks");
        if block.iter().all(|byte| *byte == 0) {
            return Block::Unwritten;
        }
        // How many segments ago the block was written.
        let age = (self.segment as u32).wrapping_sub(word(block, SEGMENT_AT));
        let sound = |segment| word(block, 0) == self.checksum(segment, number, &block[POSITION_AT..]);
        match self.segment.checked_sub(age.into()) {
            Some(segment) if !sound(segment) => Block::Damaged,
            Some(segment) if segment < self.segment => Block::Unwritten,
            Some(_) => Block::Valid { position: word(block, POSITION_AT), payload: &block[HEADER_BYTES..] },
            None => Block::Damaged,
        }
    }
}

/// Frames the stream of one batch, which is given in parts, a piece at a time.
pub(crate) struct Framer<'a, P: Iterator<Item = &'a [u8]>> {
    framing: Framing,
    /// The batch's first block in the segment.
    first: u64,
    /// The next block in the batch.
    position: u32,
    parts: P,
    rest: &'a [u8],
}

impl<'a, P: Iterator<Item = &'a [u8]>> Framer<'a, P> {
    /// Of a batch that begins at block `first`.
    pub(crate) fn new(framing: Framing, first: u64, parts: P) -> Self {
        let mut framer = Self { framing, first, position: 0, parts, rest: &[] };
        framer.take_part();
        framer
    }

    /// How many blocks the stream has taken so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.position.into()
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
        assert_eq!(out.len() % BLOCK_BYTES, 0, "only whole blocks are written");
        for block in out.chunks_exact_mut(BLOCK_BYTES) {
            if self.rest.is_empty() {
                block.fill(0);
                continue;
            }
            block[POSITION_AT..SEGMENT_AT].copy_from_slice(&self.position.to_le_bytes());
            block[SEGMENT_AT..HEADER_BYTES].copy_from_slice(&(self.framing.segment as u32).to_le_bytes());
            let mut room = &mut block[HEADER_BYTES..];
            while !room.is_empty() && !self.rest.is_empty() {
                let (now, later) = self.rest.split_at(self.rest.len().min(room.len()));
                let (here, left) = room.split_at_mut(now.len());
                here.copy_from_slice(now);
                (room, self.rest) = (left, later);
                self.take_part();
            }
            room.fill(0);
            let number = self.first + u64::from(self.position);
            let crc = self.framing.checksum(self.framing.segment, number, &block[POSITION_AT..]);
            block[..POSITION_AT].copy_from_slice(&crc.to_le_bytes());
            self.position += 1;
        }
    }
}
