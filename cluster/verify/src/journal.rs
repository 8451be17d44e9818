//! Entries of a version's journal: its batches in order, then its events (`docs/verification.md`
//! section 8).

use alloc::vec::Vec;

use coppice_types::{
    Digest, SessionId, ShardId,
    codec::{Error, Reader, Writer},
};

use crate::{
    hash::{RecordBody, journal_leaf_hash},
    merkle,
};

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A batch that was applied.
    Batch(BatchEntry),
    /// A merge that was installed before the version's batches were applied.
    Merge(MergeEntry),
}

/// The entry of a client's batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// The session in which the batch was sent, and its number there; `None` for a batch without a
    /// session.
    pub session: Option<(SessionId, u64)>,
    /// Hash of the batch's metadata (`metadata hash` in section 8).
    pub metadata: Digest,
    /// Each shard that the batch touches, in ascending order, with the hash of the batch's
    /// operations there (`operation list hash`).
    pub shards: Vec<(ShardId, Digest)>,
}

/// The entry of an `InstallMerge` event on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeEntry {
    /// Id of the shard.
    pub shard: ShardId,
    /// Digests of the trees that are replaced, youngest first; two or more.
    pub inputs: Vec<Digest>,
    /// Digest of the tree that replaces them.
    pub output: Digest,
}

impl Entry {
    /// The canonical bytes: `entry` in section 8.
    ///
    /// # Panics
    /// If a merge has 2^16 inputs or more; a shard has at most 16 trees.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Batch(batch) => {
                out.u8(0);
                out.flag(batch.session.is_some());
                if let Some((session, number)) = &batch.session {
                    out.raw(session.as_bytes());
                    out.u64(*number);
                }
                out.digest(&batch.metadata);
                // No client signature and no clues: both are reserved.
                out.u8(0);
                out.u8(0);
                out.u32(u32::try_from(batch.shards.len()).expect("there are fewer than 2^32 shards"));
                for (shard, operations) in &batch.shards {
                    out.u32(shard.0);
                    out.digest(operations);
                }
            }
            Self::Merge(merge) => {
                out.u8(1);
                out.u32(merge.shard.0);
                out.u16(u16::try_from(merge.inputs.len()).expect("a shard has at most 16 trees"));
                merge.inputs.iter().for_each(|input| out.digest(input));
                out.digest(&merge.output);
            }
        }
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a journal entry: truncated, too long, of a different kind, with a
    /// signature or clues, with shards that do not ascend, or with fewer than two merge inputs.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let entry = match input.u8()? {
            0 => Self::Batch(read_batch(&mut input)?),
            1 => Self::Merge(read_merge(&mut input)?),
            _ => return Err(Error::Malformed("journal entry kind")),
        };
        input.finish()?;
        Ok(entry)
    }

    /// Hash of the entry in the journal's list. That of a batch names it in receipts.
    #[must_use]
    pub fn hash(&self) -> Digest {
        journal_leaf_hash(&self.encode())
    }
}

fn read_batch(input: &mut Reader<'_>) -> Result<BatchEntry, Error> {
    let session = if input.flag("session flag")? { Some((SessionId(input.bytes16()?), input.u64()?)) } else { None };
    let metadata = input.digest()?;
    if input.u8()? != 0 || input.u8()? != 0 {
        return Err(Error::Malformed("client signature or clues"));
    }
    let count = input.u32()?;
    let mut shards: Vec<(ShardId, Digest)> = Vec::new();
    for _ in 0..count {
        let shard = ShardId(input.u32()?);
        if shards.last().is_some_and(|(last, _)| *last >= shard) {
            return Err(Error::Malformed("order of touched shards"));
        }
        shards.push((shard, input.digest()?));
    }
    Ok(BatchEntry { session, metadata, shards })
}

fn read_merge(input: &mut Reader<'_>) -> Result<MergeEntry, Error> {
    let shard = ShardId(input.u32()?);
    let count = input.u16()?;
    if count < 2 {
        return Err(Error::Malformed("number of merged trees"));
    }
    let mut inputs = Vec::new();
    for _ in 0..count {
        inputs.push(input.digest()?);
    }
    Ok(MergeEntry { shard, inputs, output: input.digest()? })
}

/// Decodes a kept operation list (section 8) into keys and bodies, in the order in which they were
/// sent. [`crate::hash::operation_list_hash`] hashes the same list.
///
/// # Errors
/// If the bytes are not an operation list.
pub fn decode_operations(bytes: &[u8]) -> Result<Vec<(Vec<u8>, RecordBody)>, Error> {
    let mut input = Reader::new(bytes);
    let mut operations = Vec::new();
    for _ in 0..input.u32()? {
        let kind = input.u8()?;
        let key = input.str16()?.to_vec();
        let body = match kind {
            0 => RecordBody::Put { value_len: input.u32()?, value_hash: input.digest()? },
            1 => RecordBody::Tombstone,
            _ => return Err(Error::Malformed("kind of an operation")),
        };
        operations.push((key, body));
    }
    input.finish()?;
    Ok(operations)
}

/// The journal root, which the version's header carries.
#[must_use]
pub fn journal_root(entries: &[Entry]) -> Digest {
    merkle::mth(&entries.iter().map(Entry::hash).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::hash::sha256;

    fn entries() -> Vec<Entry> {
        let shards = vec![(ShardId(1), sha256(b"1")), (ShardId(4), sha256(b"4"))];
        let batch = BatchEntry { session: None, metadata: sha256(b"m"), shards };
        let named = BatchEntry { session: Some((SessionId([7; 16]), 9)), ..batch.clone() };
        let merge = MergeEntry { shard: ShardId(3), inputs: vec![sha256(b"a"), sha256(b"b")], output: sha256(b"c") };
        vec![Entry::Batch(batch), Entry::Batch(named), Entry::Merge(merge)]
    }

    #[test]
    fn entries_survive_encoding_and_nothing_else_does() {
        for entry in entries() {
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Ok(entry.clone()));
            for len in 0..bytes.len() {
                assert!(Entry::decode(&bytes[..len]).is_err());
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(Entry::decode(&longer), Err(Error::Trailing));
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                // Bytes that still decode are the only encoding of a different entry.
                if let Ok(other) = Entry::decode(&flipped) {
                    assert_eq!(other.encode(), flipped);
                }
            }
        }
    }

    #[test]
    fn touched_shards_ascend_and_merges_have_two_inputs() {
        let unordered = BatchEntry {
            session: None,
            metadata: sha256(b"m"),
            shards: vec![(ShardId(4), sha256(b"4")), (ShardId(4), sha256(b"1"))],
        };
        assert_eq!(Entry::decode(&Entry::Batch(unordered).encode()), Err(Error::Malformed("order of touched shards")));
        let alone = MergeEntry { shard: ShardId(3), inputs: vec![sha256(b"a")], output: sha256(b"c") };
        assert_eq!(Entry::decode(&Entry::Merge(alone).encode()), Err(Error::Malformed("number of merged trees")));
    }
}
