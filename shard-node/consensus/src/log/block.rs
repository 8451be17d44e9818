//! The framing of a segment file: 512-byte blocks, each with its own checksum.
//!
//! A disk writes a sector wholly or not at all. Before a batch is written, its place in the file
//! holds zeroes, or blocks of dropped segments, which bear their old segment's number. So a block
//! whose write was cut off by a power failure has its previous content. A block that is neither
//! unwritten nor valid was damaged after it was written. The two are never confused, even in the
//! last batch. No block of a segment is ever rewritten with other content.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a block, the unit that a disk writes wholly or not at all.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Offset of the block's number within its batch. The checksum of all that follows comes before it.
const POSITION_AT: usize = 4;
/// Offset of the low half of the segment's number.
const SEGMENT_AT: usize = 8;
/// Bytes of a block before its payload.
const HEADER_BYTES: usize = 12;
/// Bytes of a block that carry the stream.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;

const _: () = assert!(SEGMENT_AT + size_of::<u32>() == HEADER_BYTES);
const _: () = assert!(PAYLOAD_BYTES == 500);

/// The state in which a block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block<'a> {
    /// The block was not written since the file became this segment's.
    Unwritten,
    /// The `position`-th block of a batch.
    Valid { position: u32, payload: &'a [u8] },
    /// The block is neither unwritten nor valid.
    Damaged,
}

/// The framing of one segment's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    salt: u32,
    segment: u64,
}

/// How many blocks a stream of this length takes.
pub(crate) fn count(stream_bytes: usize) -> u64 {
    stream_bytes.div_ceil(PAYLOAD_BYTES) as u64
}

/// CRC-32C (RFC 3720, section 12.1) of `parts`, appended to bytes whose checksum is `before`. It is
/// 0 if there are none.
pub(crate) fn crc32c(before: u32, parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!before).into());
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

impl Framing {
    /// The framing of a segment's blocks. Their checksums start from `salt`, which names the log's
    /// owner.
    pub(crate) fn new(salt: u32, segment: u64) -> Self {
        Self { salt, segment }
    }

    /// The checksum of the `number`-th block of a segment.
    fn checksum(self, segment: u64, number: u64, content: &[u8]) -> u32 {
        crc32c(self.salt, &[&segment.to_le_bytes(), &number.to_le_bytes(), content])
    }

    /// Inspects the block at `number`.
    pub(crate) fn inspect(self, number: u64, block: &[u8]) -> Block<'_> {
        assert_eq!(block.len(), BLOCK_BYTES, "a file is looked at in whole blocks");
        if block.iter().all(|byte| *byte == 0) {
            return Block::Unwritten;
        }
        // The number of segments since the block was written.
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

/// Frames the stream of one batch piece by piece. The stream is given in parts.
pub(crate) struct Framer<'a, P: Iterator<Item = &'a [u8]>> {
    framing: Framing,
    /// The batch's first block in the segment.
    first: u64,
    /// The number of the next block within the batch.
    position: u32,
    parts: P,
    rest: &'a [u8],
}

impl<'a, P: Iterator<Item = &'a [u8]>> Framer<'a, P> {
    /// Frames a batch that begins at block `first`.
    pub(crate) fn new(framing: Framing, first: u64, parts: P) -> Self {
        let mut framer = Self { framing, first, position: 0, parts, rest: &[] };
        framer.take_part();
        framer
    }

    /// How many blocks the stream has taken so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.position.into()
    }

    /// Moves on to the next part that is not empty, unless the stream has ended.
    fn take_part(&mut self) {
        while self.rest.is_empty() {
            let Some(part) = self.parts.next() else { return };
            self.rest = part;
        }
    }

    /// Fills whole blocks with the next part of the stream, and with zeroes after its end.
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

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const SALT: u32 = 5;

    /// The first block of a batch at block 3 of a segment.
    fn block(segment: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        Framer::new(Framing::new(SALT, segment), 3, iter::once(&b"stream"[..])).fill(&mut block);
        block
    }

    #[test]
    fn a_framed_block_gives_its_payload_back() {
        let block = block(9);
        let Block::Valid { position: 0, payload } = Framing::new(SALT, 9).inspect(3, &block) else { panic!("valid") };
        assert_eq!((&payload[..6], payload.len()), (&b"stream"[..], PAYLOAD_BYTES));
    }

    #[test]
    fn a_block_of_a_dropped_segment_is_unwritten_and_one_of_a_later_segment_is_damaged() {
        assert_eq!(Framing::new(SALT, 9).inspect(3, &block(8)), Block::Unwritten);
        assert_eq!(Framing::new(SALT, 9).inspect(3, &[0; BLOCK_BYTES]), Block::Unwritten);
        assert_eq!(Framing::new(SALT, 9).inspect(3, &block(10)), Block::Damaged);
    }

    #[test]
    fn a_block_of_another_owner_or_place_is_damaged() {
        assert_eq!(Framing::new(SALT + 1, 9).inspect(3, &block(9)), Block::Damaged);
        assert_eq!(Framing::new(SALT, 9).inspect(4, &block(9)), Block::Damaged);
    }

    #[test]
    fn a_stream_in_parts_is_framed_like_one_in_a_piece() {
        let stream: Vec<u8> = (0..1200).map(|at| at as u8).collect();
        let frame = |parts: Vec<&[u8]>| {
            let mut out = vec![1; 4 * BLOCK_BYTES];
            let mut framer = Framer::new(Framing::new(SALT, 1), 0, parts.into_iter());
            out.chunks_mut(BLOCK_BYTES).for_each(|piece| framer.fill(piece));
            assert_eq!(framer.blocks(), count(stream.len()));
            out
        };
        let whole = frame(vec![&stream]);
        assert_eq!(frame(stream.chunks(7).chain(iter::once(&[][..])).collect()), whole);
        assert_eq!(whole[3 * BLOCK_BYTES..], [0; BLOCK_BYTES], "zeroes follow the stream");
    }
}
