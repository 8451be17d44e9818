//! The durable form of the Meta table: a snapshot, followed by one block of operations for each
//! flush.
//!
//! Each block's checksum is seeded with the previous one. A superblock names file, length and last
//! checksum. Bytes beyond that length come from a crashed flush; they are ignored and overwritten.
//! When the operations outgrow the snapshot, the next flush begins a new file. The old file stays
//! until both superblocks name newer ones.

use std::sync::Arc;

use coppice_env::{File, OpenMode, Storage};
use coppice_types::codec::{Reader, Writer};
use twox_hash::XxHash3_64;

use super::superblock::Superblock;
use crate::{
    Error, Result,
    meta::{Meta, MetaOp},
};

const MAGIC: &[u8; 8] = b"coppiceM";
const HEADER_BYTES: u64 = 16;
const BLOCK_HEADER_BYTES: usize = 16;
const KIND_OPERATIONS: u8 = 2;
const KIND_SNAPSHOT: u8 = 3;
/// A snapshot of a table with erased keys.
const KIND_ERASING: u8 = 4;

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
        assert!(self.count < u32::MAX, "operations between flushes are fewer");
        self.count += 1;
        self.bytes.extend_from_slice(&out.into_bytes());
    }

    /// Appends operations that came later.
    pub(crate) fn append(&mut self, later: &Self) {
        assert!(later.count <= u32::MAX - self.count, "operations between flushes are fewer");
        self.count += later.count;
        self.bytes.extend_from_slice(&later.bytes);
    }
}

/// Encodes the first block of a file.
pub(crate) fn snapshot(meta: &Meta) -> Vec<u8> {
    let mut out = Writer::new();
    out.u8(if meta.has_erasures() { KIND_ERASING } else { KIND_SNAPSHOT });
    meta.encode(&mut out);
    out.into_bytes()
}

/// The meta log that is being written.
#[derive(Clone, Debug)]
pub(crate) struct MetaLog {
    file: Arc<dyn File>,
    pub(crate) number: u64,
    /// Durable length, and checksum of the last block.
    pub(crate) len: u64,
    pub(crate) chain: u64,
    /// Length of header and snapshot.
    snapshot_len: u64,
}

impl MetaLog {
    /// Creates a file that begins with a [`snapshot`]. Nothing is durable yet.
    pub(crate) fn create(storage: &dyn Storage, number: u64, snapshot: &[u8]) -> Result<Self> {
        let name = file_name(number);
        let file = storage.open(&name, OpenMode::OpenOrCreate).map_err(Error::io("create", &name))?;
        file.set_len(0).map_err(Error::io("truncate", &name))?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&number.to_le_bytes());
        file.write_all_at(&header, 0).map_err(Error::io("write", &name))?;
        let mut log = Self { file, number, len: HEADER_BYTES, chain: number, snapshot_len: 0 };
        (log.len, log.chain) = log.append(snapshot)?;
        log.snapshot_len = log.len;
        Ok(log)
    }

    /// Writes operations after the durable length. Returns the length and checksum that a
    /// superblock may name after a sync.
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
        let checksum = XxHash3_64::oneshot_with_seed(self.chain, payload);
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

    /// Makes an append part of the log, once it is durable.
    pub(crate) fn advance(&mut self, (len, chain): (u64, u64)) {
        assert!(len > self.len, "a log only grows");
        (self.len, self.chain) = (len, chain);
    }

    /// Whether the operations have outgrown the snapshot.
    pub(crate) fn is_long(&self, compaction_bytes_min: u64) -> bool {
        assert!(self.len >= self.snapshot_len, "a log begins with its snapshot");
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

/// Returns the table and the length of header and snapshot, or the offset and a description of the
/// damage.
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
        if XxHash3_64::oneshot_with_seed(chain, payload) != checksum {
            return Err(bad("block checksum"));
        }
        (chain, rest) = (checksum, after);
        let end = (bytes.len() - rest.len()) as u64;
        let mut input = Reader::new(payload);
        match (input.u8(), &mut table) {
            (Ok(kind @ (KIND_SNAPSHOT | KIND_ERASING)), None) => {
                let meta = Meta::decode(&mut input, kind == KIND_ERASING).map_err(|error| bad(&error.to_string()))?;
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
    meta.check().map_err(|error| (0, error.0.to_owned()))?;
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

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng, SimStorage};
    use coppice_types::{Change, Epoch, Operation, Params, ShardId};

    use super::*;
    use crate::{Engine, MergeProgress, Options, Position, check::check_superblock, testing};

    /// A directory with merges and with pruned, dropped and staged versions, and its superblock.
    fn directory() -> (SimStorage, Superblock) {
        let sim = SimStorage::new();
        let params = Params { key_bytes_max: 8, node_bytes: 320, fanout: 4, capacity: 8, ..Params::default() };
        let mut engine =
            Engine::create(sim.storage(), ShardId(1), params, Options::default()).expect("an empty directory");
        for version in 1..=12 {
            let put = |key: u64| Operation {
                key: format!("k{:02}", (version * 5 + key) % 20).into_bytes().into(),
                change: Change::Put(vec![version as u8; 200].into()),
            };
            let staged = testing::stage(&mut engine, version, (0..5).map(put).collect());
            match version {
                5 => drop(engine.abort_all_staged()),
                12 => {}
                _ => engine.settle(&staged.state).expect("staged"),
            }
            while engine.merge_step(20).expect("sound pages") == MergeProgress::Working {}
            engine.prune(coppice_types::Version(version / 2)).expect("usable");
            if version % 3 == 0 {
                engine.flush(Position { index: version, term: 1 }, b"").expect("room");
            }
        }
        let superblock = engine.superblock.clone();
        (sim, superblock)
    }

    fn payloads(mut rest: &[u8]) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let Some((payload, _, after)) = split_block(rest) {
            payloads.push(payload.to_vec());
            rest = after;
        }
        payloads
    }

    /// A log of these payloads, and the superblock that names it.
    fn log(payloads: &[Vec<u8>], superblock: &Superblock) -> (Vec<u8>, Superblock) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&superblock.meta_file.to_le_bytes());
        let mut chain = superblock.meta_file;
        for payload in payloads {
            chain = XxHash3_64::oneshot_with_seed(chain, payload);
            bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&chain.to_le_bytes());
            bytes.extend_from_slice(payload);
        }
        let superblock = Superblock { meta_len: bytes.len() as u64, meta_chain: chain, ..superblock.clone() };
        (bytes, superblock)
    }

    #[test]
    fn a_log_that_a_peer_made_up_is_refused_and_never_panics() {
        let (sim, superblock) = directory();
        let storage = sim.storage();
        let file = storage.open(&file_name(superblock.meta_file), OpenMode::Existing).expect("it is named");
        let mut bytes = vec![0; superblock.meta_len as usize];
        file.read_exact_at(&mut bytes, 0).expect("as long as named");
        let sound = payloads(&bytes[HEADER_BYTES as usize..]);
        assert_eq!(log(&sound, &superblock), (bytes, superblock.clone()));
        assert!(check_superblock(&storage, &superblock).is_clean());
        let mut rng = SimRng::new(1);
        for round in 0..4000 {
            let mut payloads = sound.clone();
            for _ in 0..1 + rng.below(3) {
                let payload = &mut payloads[rng.below(sound.len() as u64) as usize];
                let at = rng.below(payload.len() as u64) as usize;
                payload[at] = [0, 1, 0x80, 0xff, rng.next_u64() as u8][rng.below(5) as usize];
            }
            let changed = payloads != sound;
            let (bytes, superblock) = log(&payloads, &superblock);
            file.write_all_at(&bytes, 0).expect("room");
            file.sync_data().expect("a sound disk");
            let report = check_superblock(&storage, &superblock);
            // Some fields may have any value (a prepare id, a stamp); most may not.
            assert!(changed || report.is_clean(), "round {round}: {:?}", report.findings);
        }
    }

    /// A log of a new table and a block of operations, and the superblock that names it.
    fn with_operations(storage: &dyn Storage, operations: &[MetaOp]) -> (MetaLog, Superblock) {
        let engine = testing::create(&SimStorage::new(), testing::small());
        let mut log = MetaLog::create(storage, 7, &snapshot(&engine.meta)).expect("room");
        let mut block = Operations::default();
        operations.iter().for_each(|operation| block.push(operation));
        block.push(&checkpoint(2));
        let end = log.append_operations(&block).expect("room");
        log.sync().expect("a sound disk");
        log.advance(end);
        let superblock = Superblock {
            generation: 2,
            meta_file: 7,
            meta_len: log.len,
            meta_chain: log.chain,
            ..engine.superblock.clone()
        };
        (log, superblock)
    }

    fn checkpoint(generation: u64) -> MetaOp {
        MetaOp::Checkpoint { generation, segment_ends: Vec::new(), dead_segments: Vec::new() }
    }

    fn damage_of(storage: &dyn Storage, superblock: &Superblock) -> (Option<u64>, String) {
        match MetaLog::open(storage, superblock) {
            Err(Error::Corrupted { file, page, what }) => {
                assert_eq!(file, file_name(superblock.meta_file));
                (page, what)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_log_is_named_by_its_number() {
        assert_eq!((file_name(12), file_number("meta-12")), ("meta-12".to_owned(), Some(12)));
        assert_eq!(["meta-", "meta-x", "meta", "values-1", "meta-1.new"].map(file_number), [None; 5]);
    }

    #[test]
    fn operations_are_applied_in_order_to_the_table_that_the_log_begins_with() {
        let sim = SimStorage::new();
        let (log, superblock) = with_operations(&sim, &[MetaOp::SetEpoch(Epoch(4)), MetaOp::SetEpoch(Epoch(6))]);
        let (opened, meta) = MetaLog::open(&sim, &superblock).expect("sound");
        assert_eq!((meta.epoch, meta.generation), (Epoch(6), 2));
        assert_eq!((opened.number, opened.len, opened.chain), (7, log.len, log.chain));
        assert_eq!(opened.snapshot_len, log.snapshot_len);
    }

    #[test]
    fn a_block_that_no_superblock_names_is_ignored_and_overwritten() {
        let sim = SimStorage::new();
        let (mut log, superblock) = with_operations(&sim, &[]);
        for epoch in [5, 9] {
            let mut block = Operations::default();
            block.push(&MetaOp::SetEpoch(Epoch(epoch)));
            block.push(&checkpoint(3));
            let (len, chain) = log.append_operations(&block).expect("room");
            let (_, meta) = MetaLog::open(&sim, &superblock).expect("sound");
            assert_eq!((meta.epoch, meta.generation), (Epoch(0), 2));
            if epoch == 9 {
                log.advance((len, chain));
                let next = Superblock { generation: 3, meta_len: len, meta_chain: chain, ..superblock.clone() };
                let (_, meta) = MetaLog::open(&sim, &next).expect("sound");
                assert_eq!((meta.epoch, meta.generation), (Epoch(9), 3));
            }
        }
    }

    #[test]
    fn operations_of_a_failed_flush_come_before_later_ones() {
        let sim = SimStorage::new();
        let (mut log, superblock) = with_operations(&sim, &[]);
        let [mut failed, mut later] = [5, 9].map(|epoch| {
            let mut operations = Operations::default();
            operations.push(&MetaOp::SetEpoch(Epoch(epoch)));
            operations
        });
        later.push(&checkpoint(3));
        failed.append(&later);
        let (meta_len, meta_chain) = log.append_operations(&failed).expect("room");
        log.advance((meta_len, meta_chain));
        let next = Superblock { generation: 3, meta_len, meta_chain, ..superblock };
        assert_eq!(MetaLog::open(&sim, &next).expect("all three are there").1.epoch, Epoch(9));
    }

    #[test]
    fn every_flipped_byte_of_a_log_is_found() {
        let sim = SimStorage::new();
        let (_, superblock) = with_operations(&sim, &[MetaOp::SetEpoch(Epoch(4))]);
        for at in 0..superblock.meta_len {
            sim.flip_bit("meta-7", at, 3);
            damage_of(&sim, &superblock);
            sim.flip_bit("meta-7", at, 3);
        }
        MetaLog::open(&sim, &superblock).expect("sound again");
    }

    #[test]
    fn a_log_that_its_superblock_does_not_name_is_refused() {
        let sim = SimStorage::new();
        let (log, superblock) = with_operations(&sim, &[]);
        let other = "it is not the log that the superblock names";
        for superblock in [
            Superblock { generation: 3, ..superblock.clone() },
            Superblock { meta_chain: 1, ..superblock.clone() },
            Superblock { meta_len: log.snapshot_len, ..superblock.clone() },
        ] {
            assert_eq!(damage_of(&sim, &superblock), (Some(0), other.to_owned()));
        }
        let header_alone = Superblock { meta_len: HEADER_BYTES, ..superblock.clone() };
        assert_eq!(damage_of(&sim, &header_alone), (Some(0), "no snapshot".to_owned()));
        let within_a_block = Superblock { meta_len: log.len - 1, ..superblock.clone() };
        assert_eq!(damage_of(&sim, &within_a_block), (Some(log.snapshot_len), "block header".to_owned()));
        let longer = Superblock { meta_len: log.len + 1, ..superblock.clone() };
        assert_eq!(damage_of(&sim, &longer), (None, "it is shorter than the superblock says".to_owned()));
        sim.rename("meta-7", "meta-8").expect("it is there");
        let renamed = Superblock { meta_file: 8, ..superblock.clone() };
        assert_eq!(damage_of(&sim, &renamed), (Some(0), "header".to_owned()));
        assert!(matches!(MetaLog::open(&sim, &superblock), Err(Error::Io { action: "open", .. })));
    }

    #[test]
    fn a_log_has_one_table_at_its_start_and_operations_that_fit() {
        let sim = SimStorage::new();
        let (_, superblock) = with_operations(&sim, &[]);
        let file = sim.open("meta-7", OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; superblock.meta_len as usize];
        file.read_exact_at(&mut bytes, 0).expect("as long as named");
        let sound = payloads(&bytes[HEADER_BYTES as usize..]);
        let [table, block] = sound.as_slice() else { panic!("{} blocks", sound.len()) };
        let end = |payload: &[u8]| (HEADER_BYTES as usize + BLOCK_HEADER_BYTES + payload.len()) as u64;
        let unknown_kind = [&[9], &block[1..]].concat();
        let unfit = {
            let mut operations = Operations::default();
            operations.push(&MetaOp::DropVersion(99));
            [&[KIND_OPERATIONS][..], &1_u32.to_le_bytes(), &operations.bytes].concat()
        };
        let too_long = [block.as_slice(), &[0]].concat();
        for (blocks, offset) in [
            (vec![table.clone(), table.clone()], end(table)),
            (vec![block.clone(), table.clone()], HEADER_BYTES),
            (vec![table.clone(), unknown_kind], end(table)),
            (vec![table.clone(), unfit], end(table)),
            (vec![table.clone(), too_long], end(table)),
        ] {
            let (bytes, superblock) = log(&blocks, &superblock);
            file.set_len(0).and_then(|()| file.write_all_at(&bytes, 0)).expect("room");
            assert_eq!(damage_of(&sim, &superblock).0, Some(offset));
        }
    }

    #[test]
    fn a_log_is_long_when_its_operations_outgrow_its_table_and_the_least_length() {
        let sim = SimStorage::new();
        let (mut log, _) = with_operations(&sim, &[]);
        let table = log.snapshot_len;
        for (operations, least, long) in
            [(table, 0, false), (table + 1, 0, true), (table + 1, table + 1, false), (table + 2, table + 1, true)]
        {
            log.len = table + operations;
            assert_eq!(log.is_long(least), long, "{operations} bytes, {least} at least");
        }
    }
}
