//! The durable form of the Meta table: one snapshot and the operations since, each flush a block.
//!
//! Blocks are chained by their checksums; a superblock names file, length and last checksum, so what lies behind that
//! length (a flush that crashed) does not count and is overwritten. When the log has outgrown its snapshot, the next flush begins a new file; the old one
//! stays until both superblocks name newer ones.

use std::sync::Arc;

use coppice_env::{File, OpenMode, Storage};
use coppice_types::codec::{Reader, Writer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Error, Result,
    meta::{Meta, MetaOp},
    superblock::Superblock,
};

const MAGIC: &[u8; 8] = b"coppiceM";
const HEADER_BYTES: u64 = 16;
const BLOCK_HEADER_BYTES: usize = 16;
const KIND_SNAPSHOT: u8 = 1;
const KIND_OPERATIONS: u8 = 2;

/// Name of a meta log file.
pub(crate) fn file_name(number: u64) -> String {
    format!("meta-{number}")
}

/// Number in the name of a meta log file.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    name.strip_prefix("meta-")?.parse().ok()
}

/// Operations since the last superblock, encoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    count: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Operations {
    pub(crate) fn push(&mut self, operation: &MetaOp) {
        let mut out = Writer::new();
        operation.encode(&mut out);
        self.count = self.count.checked_add(1).expect("operations between flushes are fewer");
        self.bytes.extend_from_slice(&out.into_bytes());
    }
}

/// The log that is being written.
#[derive(Debug)]
pub(crate) struct MetaLog {
    file: Arc<dyn File>,
    pub(crate) number: u64,
    /// Durable length and checksum of the last block.
    pub(crate) len: u64,
    pub(crate) chain: u64,
    /// Length of header and snapshot.
    snapshot_len: u64,
}

impl MetaLog {
    /// Begins a file with a snapshot. Nothing is durable yet.
    pub(crate) fn create(storage: &dyn Storage, number: u64, meta: &Meta) -> Result<Self> {
        let name = file_name(number);
        let file = storage.open(&name, OpenMode::OpenOrCreate).map_err(Error::io("create", &name))?;
        file.set_len(0).map_err(Error::io("truncate", &name))?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&number.to_le_bytes());
        file.write_all_at(&header, 0).map_err(Error::io("write", &name))?;
        let mut log = Self { file, number, len: HEADER_BYTES, chain: number, snapshot_len: 0 };
        let mut out = Writer::new();
        out.u8(KIND_SNAPSHOT);
        meta.encode(&mut out);
        (log.len, log.chain) = log.append(&out.into_bytes())?;
        log.snapshot_len = log.len;
        Ok(log)
    }

    /// Writes the operations behind the durable length; gives the length and checksum that a superblock may name after a sync.
    pub(crate) fn append_operations(&self, operations: &Operations) -> Result<(u64, u64)> {
        let mut out = Writer::new();
        out.u8(KIND_OPERATIONS);
        out.u32(operations.count);
        out.raw(&operations.bytes);
        self.append(&out.into_bytes())
    }

    fn append(&self, payload: &[u8]) -> Result<(u64, u64)> {
        let name = file_name(self.number);
        let len = u32::try_from(payload.len()).map_err(|_| Error::Invalid("a block of the meta log has 4 GiB"))?;
        let checksum = xxh3_64_with_seed(payload, self.chain);
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + payload.len());
        block.extend_from_slice(&len.to_le_bytes());
        block.extend_from_slice(&0_u32.to_le_bytes());
        block.extend_from_slice(&checksum.to_le_bytes());
        block.extend_from_slice(payload);
        self.file.write_all_at(&block, self.len).map_err(Error::io("write", &name))?;
        Ok((self.len + block.len() as u64, checksum))
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync", &file_name(self.number)))
    }

    /// Makes a durable append count.
    pub(crate) fn advance(&mut self, (len, chain): (u64, u64)) {
        (self.len, self.chain) = (len, chain);
    }

    /// The operations have outgrown the snapshot.
    pub(crate) fn is_long(&self, compaction_bytes_min: u64) -> bool {
        self.len - self.snapshot_len > self.snapshot_len.max(compaction_bytes_min)
    }

    /// Reads the log that a superblock names, and replays it.
    pub(crate) fn open(storage: &dyn Storage, superblock: &Superblock) -> Result<(Self, Meta)> {
        let name = file_name(superblock.meta_file);
        let file = storage.open(&name, OpenMode::Existing).map_err(Error::io("open", &name))?;
        if file.len().map_err(Error::io("read", &name))? < superblock.meta_len {
            return Err(Error::corrupted(name, None, "it is shorter than the superblock says"));
        }
        let len = usize::try_from(superblock.meta_len).map_err(|_| Error::corrupted(&name, None, "length"))?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).map_err(Error::io("read", &name))?;
        let (meta, snapshot_len) =
            replay(&bytes, superblock).map_err(|(offset, what)| Error::corrupted(&name, Some(offset), what))?;
        let log = Self {
            file,
            number: superblock.meta_file,
            len: superblock.meta_len,
            chain: superblock.meta_chain,
            snapshot_len,
        };
        Ok((log, meta))
    }
}

/// Gives the table and the length of header and snapshot, or the offset of what is wrong.
fn replay(bytes: &[u8], superblock: &Superblock) -> std::result::Result<(Meta, u64), (u64, String)> {
    let header = bytes
        .split_first_chunk::<16>()
        .filter(|(header, _)| header[..8] == *MAGIC && header[8..] == superblock.meta_file.to_le_bytes());
    let (_, mut rest) = header.ok_or((0, "header".to_owned()))?;
    let mut chain = superblock.meta_file;
    let mut table: Option<(Meta, u64)> = None;
    while !rest.is_empty() {
        let offset = (bytes.len() - rest.len()) as u64;
        let bad = |what: &str| (offset, what.to_owned());
        let (payload, checksum, after) = split_block(rest).ok_or(bad("block header"))?;
        if xxh3_64_with_seed(payload, chain) != checksum {
            return Err(bad("block checksum"));
        }
        (chain, rest) = (checksum, after);
        let end = (bytes.len() - rest.len()) as u64;
        let mut input = Reader::new(payload);
        match (input.u8(), &mut table) {
            (Ok(KIND_SNAPSHOT), None) => {
                let meta = Meta::decode(&mut input).map_err(|error| bad(&error.to_string()))?;
                table = Some((meta, end));
            }
            (Ok(KIND_OPERATIONS), Some((meta, _))) => {
                let count = input.u32().map_err(|error| bad(&error.to_string()))?;
                for _ in 0..count {
                    let operation = MetaOp::decode(&mut input).map_err(|error| bad(&error.to_string()))?;
                    meta.apply(operation).map_err(|error| bad(error.0))?;
                }
            }
            _ => return Err(bad("block kind")),
        }
        input.finish().map_err(|error| bad(&error.to_string()))?;
    }
    let (mut meta, snapshot_len) = table.ok_or((0, "no snapshot".to_owned()))?;
    if chain != superblock.meta_chain || meta.generation != superblock.generation {
        return Err((0, "it is not the log that the superblock names".to_owned()));
    }
    meta.take_freed();
    Ok((meta, snapshot_len))
}

fn split_block(bytes: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
    let mut input = Reader::new(header);
    let len = usize::try_from(input.u32().ok()?).ok()?;
    if input.u32().ok()? != 0 {
        return None;
    }
    let checksum = input.u64().ok()?;
    let (payload, after) = rest.split_at_checked(len)?;
    Some((payload, checksum, after))
}
