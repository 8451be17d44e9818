//! One segment file: consecutive batches, followed by zeroes or by the file's content as an earlier
//! segment.

use std::{iter, sync::Arc};

use bytes::Bytes;
use coppice_env::{
    DirectBuffer, File, OpenMode, Storage,
    bug::{Bug, planted},
};
use coppice_types::{ErrorKind, codec::Reader};

use super::{
    batch::BATCH_HEADER_BYTES,
    block::{self, BLOCK_BYTES, Block, Framer, Framing, PAYLOAD_BYTES},
    meta::Meta,
};
use crate::{
    error::{Error, Result},
    width::{len32, to_usize},
};

const SUFFIX: &str = ".log";
/// A batch is large if it is more than 1/LARGE_BATCH_SHARE of a filling step.
const LARGE_BATCH_SHARE: u64 = 8;
/// After a large batch, only 1/LARGE_BATCH_FILL_SHARE of a step is filled.
const LARGE_BATCH_FILL_SHARE: u64 = 16;

/// The place where an entry's item begins, in bytes of a segment's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: u64,
    pub offset: u64,
}

/// A complete batch that was found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundBatch {
    pub sequence: u64,
    /// The durable length of the file when the batch was written.
    pub synced_blocks: u64,
    /// Where in the segment's stream `items` begin.
    pub offset: u64,
    pub items: Vec<u8>,
}

/// The content that was found in a segment.
#[derive(Debug)]
pub(crate) struct Scan {
    pub batches: Vec<FoundBatch>,
    /// The block after the last complete batch.
    pub end_block: u64,
    /// The block after the last written one. It is larger than `end_block` if the last batch was
    /// cut off.
    pub written_blocks: u64,
    /// The first block of the last complete batch, and that batch's bytes in the file.
    last_batch: (u64, Vec<u8>),
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub id: u64,
    framing: Framing,
    name: String,
    file: Arc<dyn File>,
    /// The block at which the next batch begins.
    pub end_block: u64,
    /// The file has space on the disk up to this block.
    pub filled_blocks: u64,
    /// Blocks below this number have been written, in this segment or in an earlier one. Writing
    /// them again changes only their bytes, so the sync of a small batch need not wait for the file
    /// system's own records.
    written_blocks: u64,
    /// The filled part that is durable. Every batch records it, so a shorter file was not cut by a
    /// power failure.
    synced_blocks: u64,
}

/// The name of a segment's file.
pub(crate) fn file_name(id: u64) -> String {
    format!("{id:016x}{SUFFIX}")
}

/// The segment number in a file name.
pub(crate) fn file_id(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    (file_name(id) == name).then_some(id)
}

/// The offset in a segment's stream at which the items of a batch begin, if the batch starts at
/// block `first`.
fn items_offset(first: u64) -> u64 {
    first * PAYLOAD_BYTES as u64 + BATCH_HEADER_BYTES as u64
}

fn bytes_of(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Segment {
    /// Opens or creates the file of a segment. Nothing is read or synced.
    pub(crate) fn open(storage: &dyn Storage, meta: &Meta, id: u64, mode: OpenMode) -> Result<Self> {
        let name = file_name(id);
        let file = storage.open_direct(&name, mode).map_err(Error::io("open a segment"))?;
        let len = file.len().map_err(Error::io("measure a segment"))?;
        Ok(Self {
            id,
            framing: Framing::new(meta.owner.salt(), id),
            name,
            file,
            end_block: 0,
            filled_blocks: len / BLOCK_BYTES as u64,
            written_blocks: len / BLOCK_BYTES as u64,
            synced_blocks: 0,
        })
    }

    /// Turns the file into that of a new segment, durably once the directory is synced. After an
    /// error the file may have either name.
    pub(crate) fn reuse(&self, storage: &dyn Storage, meta: &Meta, id: u64) -> Result<Self> {
        storage.rename(&self.name, &file_name(id)).map_err(Error::io("rename a segment"))?;
        Ok(Self { written_blocks: self.written_blocks, ..Self::open(storage, meta, id, OpenMode::Existing)? })
    }

    /// The error for a damaged item that begins at `offset` in the stream.
    pub(crate) fn corrupted_at(&self, offset: u64, detail: &'static str) -> Error {
        self.corrupted(offset / PAYLOAD_BYTES as u64, detail)
    }

    fn corrupted(&self, block: u64, detail: &'static str) -> Error {
        Error::Corrupted { file: self.name.clone(), block, detail }
    }

    /// Extends the file to at least `blocks` blocks: to a multiple of `step`, or only as far as is
    /// needed if the disk has no room for that.
    pub(crate) fn fill_by(&mut self, blocks: u64, step: u64) -> Result<()> {
        if blocks <= self.filled_blocks {
            return Ok(());
        }
        match self.fill(blocks.next_multiple_of(step)) {
            Err(error) if error.kind() == ErrorKind::Exhausted => self.fill(blocks),
            filled => filled,
        }
    }

    /// Extends the file to `blocks` blocks.
    pub(crate) fn fill(&mut self, blocks: u64) -> Result<()> {
        if blocks > self.filled_blocks {
            self.file.allocate(bytes_of(blocks)).map_err(Error::io("fill a segment"))?;
            self.filled_blocks = blocks;
        }
        Ok(())
    }

    /// Writes one batch after the last one and makes it durable. The items are given in parts, and
    /// `buffer` holds the bytes of one write. Returns where the items begin in the stream.
    pub(crate) fn append(
        &mut self,
        sequence: u64,
        items: &[Bytes],
        fill_blocks: u64,
        buffer: &mut DirectBuffer,
    ) -> Result<u64> {
        let len: usize = items.iter().map(Bytes::len).sum();
        let mut header = Vec::with_capacity(BATCH_HEADER_BYTES);
        header.extend_from_slice(&sequence.to_le_bytes());
        header.extend_from_slice(&len32(len).to_le_bytes());
        let synced = u32::try_from(self.synced_blocks).expect("a segment is smaller than 2 TiB");
        header.extend_from_slice(&synced.to_le_bytes());
        assert!(self.synced_blocks <= self.filled_blocks, "only what is there is durable");
        assert!(self.written_blocks <= self.filled_blocks, "what was written takes space");
        let first = self.end_block;
        let end = first + block::count(BATCH_HEADER_BYTES + len);
        let mut written = end;
        if end > self.written_blocks {
            // One sync covers the batch and the zeroes after it: many zeroes after a small batch,
            // for others to come, and few after a large batch.
            let large = (end - first) * LARGE_BATCH_SHARE > fill_blocks;
            let step = if large { (fill_blocks / LARGE_BATCH_FILL_SHARE).max(1) } else { fill_blocks };
            written = end.next_multiple_of(step);
            self.written_blocks = written;
            self.filled_blocks = self.filled_blocks.max(written);
        }
        let stream = iter::once(&header[..]).chain(items.iter().map(|part| &part[..]));
        let mut framer = Framer::new(self.framing, first, stream);
        let (mut at, end_at) = (bytes_of(first), bytes_of(written));
        while at < end_at {
            let len = usize::try_from(end_at - at).unwrap_or(usize::MAX).min(buffer.len());
            framer.fill(&mut buffer[..len]);
            self.file.write_all_at(&buffer[..len], at).map_err(Error::io("write a batch"))?;
            at += len as u64;
        }
        assert_eq!(framer.blocks(), end - first, "the whole batch was framed");
        if !planted(Bug::SkippedSync) {
            self.sync()?;
        }
        assert!(end <= self.filled_blocks, "the batch lies in the file");
        self.end_block = end;
        Ok(items_offset(first))
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync a segment"))?;
        self.synced_blocks = self.filled_blocks;
        Ok(())
    }

    /// Reads `len` bytes of the stream, and checks each block.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let payload = PAYLOAD_BYTES as u64;
        let first = offset / payload;
        let blocks = (offset + len as u64).div_ceil(payload) - first;
        let bytes = self.read_blocks(first, blocks)?;
        let mut stream = Vec::with_capacity(bytes.len());
        for (number, block) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            match self.framing.inspect(number, block) {
                Block::Valid { payload, .. } => stream.extend_from_slice(payload),
                Block::Unwritten => return Err(self.corrupted(number, "a written block is empty")),
                Block::Damaged => return Err(self.corrupted(number, "the checksum is wrong")),
            }
        }
        stream.drain(..to_usize(offset % payload));
        stream.truncate(len);
        Ok(stream)
    }

    fn read_blocks(&self, first: u64, blocks: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(bytes_of(blocks))];
        let outcome = self.file.read_exact_at(&mut bytes, bytes_of(first));
        match outcome {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.corrupted(first, "the file ends early"))
            }
            other => other.map(|()| bytes).map_err(Error::io("read a segment")),
        }
    }

    /// Reads the whole file. Damage is an error; a batch that was cut off at the end is not an
    /// error here.
    pub(crate) fn scan(&self) -> Result<Scan> {
        let len = self.file.len().map_err(Error::io("measure a segment"))?;
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| self.corrupted(0, "the file is too long"))?];
        self.file.read_exact_at(&mut bytes, 0).map_err(Error::io("read a segment"))?;
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let whole_blocks = len / BLOCK_BYTES as u64;
        let mut scan = Scan { batches: Vec::new(), end_block: 0, written_blocks: 0, last_batch: (0, Vec::new()) };
        let mut blocks = Vec::with_capacity(bytes.len() / BLOCK_BYTES);
        for (number, block) in (0..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            let found = self.framing.inspect(number, block);
            match found {
                Block::Damaged => return Err(self.corrupted(number, "the checksum is wrong")),
                Block::Valid { .. } => scan.written_blocks = number + 1,
                Block::Unwritten => {}
            }
            blocks.push(found);
        }
        while let Some((batch, count)) = self.batch_at(&blocks, scan.end_block)? {
            if batch.synced_blocks > whole_blocks {
                return Err(self.corrupted(whole_blocks, "the file was cut"));
            }
            scan.batches.push(batch);
            scan.last_batch.0 = scan.end_block;
            scan.end_block += count;
        }
        let [first, end] = [scan.last_batch.0, scan.end_block].map(|block| to_usize(bytes_of(block)));
        scan.last_batch.1 = bytes[first..end].to_vec();
        self.check_tail(&blocks, scan.end_block)?;
        Ok(scan)
    }

    /// The batch that begins at a block, and its number of blocks; `None` if it is not complete.
    fn batch_at(&self, blocks: &[Block<'_>], first: u64) -> Result<Option<(FoundBatch, u64)>> {
        let start = to_usize(first);
        let Some(Block::Valid { position: 0, payload }) = blocks.get(start) else { return Ok(None) };
        let mut reader = Reader::new(payload);
        let header = (reader.u64(), reader.u32(), reader.u32());
        let (Ok(sequence), Ok(len), Ok(synced)) = header else { return Err(self.corrupted(first, "no batch header")) };
        let stream_len = BATCH_HEADER_BYTES + to_usize(len.into());
        let count = block::count(stream_len);
        let mut stream = Vec::new();
        for position in 0..count {
            let at = start + to_usize(position);
            match blocks.get(at) {
                Some(Block::Valid { position: found, payload }) if u64::from(*found) == position => {
                    stream.extend_from_slice(payload);
                }
                _ => return Ok(None),
            }
        }
        stream.truncate(stream_len);
        let items = stream.split_off(BATCH_HEADER_BYTES);
        let (offset, synced_blocks) = (items_offset(first), u64::from(synced));
        Ok(Some((FoundBatch { sequence, synced_blocks, offset, items }, count)))
    }

    /// Checks that only the rest of one batch follows the last complete one. A later batch would
    /// have been written only after this one was durable.
    fn check_tail(&self, blocks: &[Block<'_>], end: u64) -> Result<()> {
        let tail = (0..).zip(blocks).skip(to_usize(end));
        for (number, found) in tail {
            match found {
                Block::Valid { position, .. } if u64::from(*position) != number - end => {
                    return Err(self.corrupted(number, "a batch before this block is missing"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Overwrites the rest of a batch that was cut off, so that it can't be mistaken for a part of
    /// another.
    ///
    /// Everything that was found is durable when this returns. A killed process may have written
    /// the last batch without syncing it. After a failed sync, the operating system may treat the
    /// batch as written although it is not. So the batch is written again, byte for byte.
    pub(crate) fn cut(&mut self, scan: &Scan) -> Result<()> {
        assert!(scan.end_block <= scan.written_blocks, "complete batches were written");
        self.end_block = scan.end_block;
        let (first, bytes) = &scan.last_batch;
        self.file.write_all_at(bytes, bytes_of(*first)).map_err(Error::io("write a batch again"))?;
        if scan.written_blocks > scan.end_block {
            let zeroes = vec![0; to_usize(bytes_of(scan.written_blocks - scan.end_block))];
            self.file.write_all_at(&zeroes, bytes_of(scan.end_block)).map_err(Error::io("cut a torn batch"))?;
        }
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_that_of_its_segment_alone() {
        assert_eq!(file_name(26), "000000000000001a.log");
        assert_eq!(file_id(&file_name(26)), Some(26));
        for other in ["meta", "1a.log", "000000000000001A.log", "000000000000001a.log2"] {
            assert_eq!(file_id(other), None, "{other}");
        }
    }
}
