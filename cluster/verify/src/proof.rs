//! Proof files and their parts, encoded and decoded (`docs/verification.md` section 12).
//!
//! Decoding checks only the shape; [`crate::verify`] says what a file proves. Decoded parts borrow
//! from the file. Whatever counts it claims, a decoded file takes at most about twenty times the
//! file's length in memory. It takes far less if its records are puts.

mod digests;
mod interval;
mod ledgers;
mod parts;
mod shared;
mod time;
mod tree;

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{
    ClusterId, Digest, ShardId, Version,
    codec::{Error, Reader, Writer},
};

pub use self::interval::{ANCHORS_MAX, IntervalProof};
pub use self::ledgers::{JournalPart, JournalsProof, KnownPart, LineageProof, RequestPart};
pub use self::parts::{EpochPart, HeaderPart, LogPart, TooLarge};
pub use self::shared::{join_log, split_log};
pub use self::time::TimeProof;
pub use self::tree::{Entry, LEVEL_MAX, NodePart, Subtree, TREES_MAX, Tree, TreeList};
use self::{
    digests::{read_digests, write_digests},
    parts::{read_pair, write_count, write_pair},
};
use crate::{
    epochs::Pair,
    hash::file_checksum,
    shard_map::{KEY_BYTES_MAX, SHARD_NONE, read_bound, write_bound},
};

/// First bytes of a proof file.
pub const MAGIC: &[u8] = b"coppice-proof";
/// Largest proof file, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Longest bound of a range, in bytes: the successor of a longest key.
pub const BOUND_BYTES_MAX: usize = KEY_BYTES_MAX + 1;

/// Format of the proofs of kinds 0 to 2. Formats 1 and 2 belonged to protocol version 1.
const FORMAT: u8 = 3;
/// Format of the kinds that came later, which readers of format 3 alone do not know.
const FORMAT_LATER: u8 = 4;
const CHECKSUM_BYTES: usize = 8;

/// A proof file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofFile<'a> {
    /// Id of the ledger.
    pub cluster: ClusterId,
    /// The payload.
    pub proof: Proof<'a>,
}

/// The payload of a proof file, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof<'a> {
    /// Kind 0: shows the values of keys or a range at a version.
    Query(QueryProof<'a>),
    /// Kind 1: shows that a batch was committed.
    Receipt(ReceiptProof<'a>),
    /// Kind 2: shows that a checkpoint extends an older one, and which versions stand at it.
    Standing(StandingProof<'a>),
    /// Kind 3: shows journals of a ledger.
    Journals(JournalsProof<'a>),
    /// Kind 4: shows which version stood at a time.
    Time(TimeProof<'a>),
    /// Kind 5: shows all journals with a clue, or the newest of them.
    Lineage(LineageProof<'a>),
    /// Kind 6: shows anchors around an entry of the log.
    Interval(IntervalProof<'a>),
}

/// The question of a query proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query<'a> {
    /// Keys of 1 to 512 bytes, ascending, each once, at least one.
    Keys(Vec<Cow<'a, [u8]>>),
    /// All records with `low <= key < high`; without `high`, to the end of the key space.
    Range {
        /// The lowest key, at most [`BOUND_BYTES_MAX`] bytes.
        low: Cow<'a, [u8]>,
        /// The key above the range, at most [`BOUND_BYTES_MAX`] bytes and above `low`.
        high: Option<Cow<'a, [u8]>>,
    },
}

/// `shard part`: the trees of one shard, tied to its state leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPart<'a> {
    /// Index of the state leaf.
    pub index: u32,
    /// Id of the shard.
    pub shard: ShardId,
    /// Lowest key of the shard's range.
    pub low: Cow<'a, [u8]>,
    /// The key above the shard's range; `None` means no upper bound.
    pub high: Option<Cow<'a, [u8]>>,
    /// The shard version in the state leaf.
    pub version: Version,
    /// The shard's trees, youngest first.
    pub trees: TreeList<'a>,
}

/// Payload of a query proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryProof<'a> {
    /// The checkpoint, and the log's newest header.
    pub log: LogPart<'a>,
    /// Header of the version.
    pub header: HeaderPart<'a>,
    /// Shows that the version stands.
    pub epoch: EpochPart,
    /// The question.
    pub query: Query<'a>,
    /// The shards that answer it, in order of their state leaves.
    pub shards: Vec<ShardPart<'a>>,
    /// List proof of their state leaves in the header's state root.
    pub state_hashes: Vec<Digest>,
    /// Values of the found records in order of their keys; `None` if they were not asked for.
    pub values: Option<Vec<Cow<'a, [u8]>>>,
}

/// Payload of a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptProof<'a> {
    /// The checkpoint, and the log's newest header.
    pub log: LogPart<'a>,
    /// Header of the version.
    pub header: HeaderPart<'a>,
    /// Shows that the version stands.
    pub epoch: EpochPart,
    /// Index of the batch in the version's journal.
    pub index: u32,
    /// The canonical bytes of the batch's journal entry.
    pub entry: Cow<'a, [u8]>,
    /// List proof of the entry in the header's journal root.
    pub hashes: Vec<Digest>,
}

/// Payload of a standing proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingProof<'a> {
    /// The newer checkpoint.
    pub log: LogPart<'a>,
    /// Size of the older checkpoint.
    pub old_size: u64,
    /// Root of the older checkpoint.
    pub old_root: Digest,
    /// Consistency path from the older checkpoint to the newer one.
    pub path: Vec<Digest>,
    /// All epoch pairs of the newest header.
    pub pairs: Vec<Pair>,
}

impl<'a> ProofFile<'a> {
    /// The bytes of the file.
    ///
    /// # Errors
    /// If they would be longer than [`FILE_BYTES_MAX`], or the proof has more than 65,535 keys,
    /// shards or epoch pairs.
    ///
    /// # Panics
    /// If a header, key or bound is longer than 65,535 bytes, or a node's level does not fit its
    /// entries. A ledger has none of these.
    pub fn encode(&self) -> Result<Vec<u8>, TooLarge> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u8(self.proof.format());
        out.u8(self.proof.kind());
        out.raw(self.cluster.as_bytes());
        match &self.proof {
            Proof::Query(proof) => proof.encode(&mut out)?,
            Proof::Receipt(proof) => proof.encode(&mut out),
            Proof::Standing(proof) => proof.encode(&mut out)?,
            Proof::Journals(proof) => proof.encode(&mut out)?,
            Proof::Time(proof) => proof.encode(&mut out),
            Proof::Lineage(proof) => proof.encode(&mut out)?,
            Proof::Interval(proof) => proof.encode(&mut out)?,
        }
        let mut bytes = out.into_bytes();
        bytes.extend(file_checksum(&bytes).to_le_bytes());
        if bytes.len() <= FILE_BYTES_MAX { Ok(bytes) } else { Err(TooLarge) }
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// If the file is damaged, of a different format or kind, over a limit of section 16, or not
    /// the only encoding of its content.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(Error::Malformed("proof file length"));
        }
        let at = bytes.len().checked_sub(CHECKSUM_BYTES).ok_or(Error::Truncated)?;
        let (content, checksum) = bytes.split_at(at);
        let mut input = Reader::new(content);
        if input.take(MAGIC.len())? != MAGIC {
            return Err(Error::Malformed("proof file: first bytes"));
        }
        let format = input.u8()?;
        if format != FORMAT && format != FORMAT_LATER {
            return Err(Error::Malformed(
                "proof file format: this build reads only formats 3 and 4, of protocol versions 2 and 3",
            ));
        }
        if file_checksum(content).to_le_bytes() != checksum {
            return Err(Error::Malformed("proof file checksum"));
        }
        let kind = input.u8()?;
        let cluster = ClusterId(input.bytes16()?);
        let proof = match (format, kind) {
            (FORMAT, 0) => Proof::Query(QueryProof::decode(&mut input)?),
            (FORMAT, 1) => Proof::Receipt(ReceiptProof::decode(&mut input)?),
            (FORMAT, 2) => Proof::Standing(StandingProof::decode(&mut input)?),
            (FORMAT_LATER, 3) => Proof::Journals(JournalsProof::decode(&mut input)?),
            (FORMAT_LATER, 4) => Proof::Time(TimeProof::decode(&mut input)?),
            (FORMAT_LATER, 5) => Proof::Lineage(LineageProof::decode(&mut input)?),
            (FORMAT_LATER, 6) => Proof::Interval(IntervalProof::decode(&mut input)?),
            _ => return Err(Error::Malformed("proof file kind")),
        };
        input.finish()?;
        Ok(Self { cluster, proof })
    }
}

impl<'a> Proof<'a> {
    fn kind(&self) -> u8 {
        match self {
            Self::Query(_) => 0,
            Self::Receipt(_) => 1,
            Self::Standing(_) => 2,
            Self::Journals(_) => 3,
            Self::Time(_) => 4,
            Self::Lineage(_) => 5,
            Self::Interval(_) => 6,
        }
    }

    fn format(&self) -> u8 {
        match self {
            Self::Query(_) | Self::Receipt(_) | Self::Standing(_) => FORMAT,
            Self::Journals(_) | Self::Time(_) | Self::Lineage(_) | Self::Interval(_) => FORMAT_LATER,
        }
    }

    /// The log part, which every kind has.
    #[must_use]
    pub fn log(&self) -> &LogPart<'a> {
        match self {
            Self::Query(proof) => &proof.log,
            Self::Receipt(proof) => &proof.log,
            Self::Standing(proof) => &proof.log,
            Self::Journals(proof) => &proof.log,
            Self::Time(proof) => &proof.log,
            Self::Lineage(proof) => &proof.query.log,
            Self::Interval(proof) => &proof.log,
        }
    }
}

impl<'a> Query<'a> {
    fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        match self {
            Self::Keys(keys) => {
                out.u8(0);
                write_count(out, keys.len())?;
                keys.iter().for_each(|key| out.str16(key));
            }
            Self::Range { low, high } => {
                out.u8(1);
                out.str16(low);
                write_bound(out, high.as_deref());
            }
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        match input.u8()? {
            0 => {
                let count = input.u16()?;
                let mut keys: Vec<Cow<'a, [u8]>> = Vec::new();
                for _ in 0..count {
                    let key = input.str16()?;
                    if key.is_empty() || key.len() > KEY_BYTES_MAX {
                        return Err(Error::Malformed("length of a queried key"));
                    }
                    if keys.last().is_some_and(|last| **last >= *key) {
                        return Err(Error::Malformed("order of queried keys"));
                    }
                    keys.push(Cow::Borrowed(key));
                }
                if keys.is_empty() { Err(Error::Malformed("number of queried keys")) } else { Ok(Self::Keys(keys)) }
            }
            1 => {
                let low = input.str16()?;
                let high = read_bound(input)?;
                if low.len().max(high.map_or(0, <[u8]>::len)) > BOUND_BYTES_MAX {
                    return Err(Error::Malformed("length of a range's bound"));
                }
                if high.is_some_and(|high| low >= high) {
                    return Err(Error::Malformed("order of a range's bounds"));
                }
                Ok(Self::Range { low: Cow::Borrowed(low), high: high.map(Cow::Borrowed) })
            }
            _ => Err(Error::Malformed("query kind")),
        }
    }
}

impl<'a> ShardPart<'a> {
    fn encode(&self, out: &mut Writer) {
        out.u32(self.index);
        out.u32(self.shard.0);
        out.str16(&self.low);
        write_bound(out, self.high.as_deref());
        out.u64(self.version.0);
        self.trees.write(out);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let (index, shard) = (input.u32()?, ShardId(input.u32()?));
        let (low, high) = (input.str16()?, read_bound(input)?);
        if shard == SHARD_NONE {
            return Err(Error::Malformed("id of a shard"));
        }
        if low.len().max(high.map_or(0, <[u8]>::len)) > KEY_BYTES_MAX {
            return Err(Error::Malformed("length of a shard's bound"));
        }
        if high.is_some_and(|high| low >= high) {
            return Err(Error::Malformed("order of a shard's bounds"));
        }
        let (low, high) = (Cow::Borrowed(low), high.map(Cow::Borrowed));
        Ok(Self { index, shard, low, high, version: Version(input.u64()?), trees: TreeList::read(input)? })
    }
}

impl<'a> QueryProof<'a> {
    fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        self.log.encode(out);
        self.header.encode(out);
        self.epoch.encode(out);
        self.query.encode(out)?;
        write_count(out, self.shards.len())?;
        self.shards.iter().for_each(|shard| shard.encode(out));
        write_digests(out, &self.state_hashes);
        out.flag(self.values.is_some());
        if let Some(values) = &self.values {
            if values.iter().map(|value| value.len()).sum::<usize>() > FILE_BYTES_MAX {
                return Err(TooLarge);
            }
            out.u32(u32::try_from(values.len()).map_err(|_| TooLarge)?);
            values.iter().for_each(|value| out.str32(value));
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let (log, header) = (LogPart::decode(input)?, HeaderPart::decode(input)?);
        let (epoch, query) = (EpochPart::decode(input)?, Query::decode(input)?);
        let count = input.u16()?;
        let mut shards = Vec::new();
        for _ in 0..count {
            shards.push(ShardPart::decode(input)?);
        }
        let state_hashes = read_digests(input)?;
        let values = if input.flag("values flag")? {
            let count = input.u32()?;
            let mut values = Vec::new();
            for _ in 0..count {
                values.push(Cow::Borrowed(input.str32()?));
            }
            Some(values)
        } else {
            None
        };
        Ok(Self { log, header, epoch, query, shards, state_hashes, values })
    }
}

impl<'a> ReceiptProof<'a> {
    fn encode(&self, out: &mut Writer) {
        self.log.encode(out);
        self.header.encode(out);
        self.epoch.encode(out);
        out.u32(self.index);
        out.str16(&self.entry);
        write_digests(out, &self.hashes);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        Ok(Self {
            log: LogPart::decode(input)?,
            header: HeaderPart::decode(input)?,
            epoch: EpochPart::decode(input)?,
            index: input.u32()?,
            entry: Cow::Borrowed(input.str16()?),
            hashes: read_digests(input)?,
        })
    }
}

impl<'a> StandingProof<'a> {
    fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        self.log.encode(out);
        out.u64(self.old_size);
        out.digest(&self.old_root);
        write_digests(out, &self.path);
        write_count(out, self.pairs.len())?;
        self.pairs.iter().for_each(|pair| write_pair(out, pair));
        Ok(())
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let log = LogPart::decode(input)?;
        let (old_size, old_root, path) = (input.u64()?, input.digest()?, read_digests(input)?);
        let count = input.u16()?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push(read_pair(input)?);
        }
        Ok(Self { log, old_size, old_root, path, pairs })
    }
}

#[cfg(test)]
mod tests;
