//! Entries of a version's journal: its batches and appends in order, then the heads of its ledgers,
//! then its events (`docs/verification.md` section 8).

use alloc::{collections::BTreeMap, vec::Vec};

use coppice_types::{
    Digest, LedgerId, SessionId, ShardId,
    codec::{Error, Reader, Writer},
};

use crate::{
    hash::{RecordBody, journal_leaf_hash, operation_list_hash},
    header::Header,
    ledgers::Signed,
    merkle,
};

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A batch that was applied.
    Batch(BatchEntry),
    /// A merge that was installed before the version's batches were applied.
    Merge(MergeEntry),
    /// A member's request that was applied to a ledger.
    Append(AppendEntry),
    /// The state of a ledger after all requests of the version.
    Head(HeadEntry),
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

/// The entry of a member's request (section 18).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendEntry {
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// The signed bytes.
    pub signed: Vec<u8>,
    /// The signature over them.
    pub signature: [u8; 64],
    /// Number of the first journal.
    pub first_jsn: u64,
    /// Number of journals.
    pub count: u32,
    /// List root of their leaf hashes.
    pub leaves_root: Digest,
    /// Each shard that the request touches, in ascending order, with the hash of its operations
    /// there.
    pub shards: Vec<(ShardId, Digest)>,
}

/// The entry of a ledger that a version appended to (section 18).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadEntry {
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Number of journals before the version.
    pub size_before: u64,
    /// Number of journals after it.
    pub size: u64,
    /// Root of the ledger's list.
    pub root: Digest,
    /// Each shard that the entry touches, in ascending order, with the hash of its operations
    /// there.
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
                write_shards(&mut out, &batch.shards);
            }
            Self::Merge(merge) => {
                out.u8(1);
                out.u32(merge.shard.0);
                out.u16(u16::try_from(merge.inputs.len()).expect("a shard has at most 16 trees"));
                merge.inputs.iter().for_each(|input| out.digest(input));
                out.digest(&merge.output);
            }
            Self::Append(append) => {
                out.u8(2);
                out.raw(append.ledger.as_bytes());
                out.str16(&append.signed);
                out.raw(&append.signature);
                out.u64(append.first_jsn);
                out.u32(append.count);
                out.digest(&append.leaves_root);
                write_shards(&mut out, &append.shards);
            }
            Self::Head(head) => {
                out.u8(3);
                out.raw(head.ledger.as_bytes());
                out.u64(head.size_before);
                out.u64(head.size);
                out.digest(&head.root);
                write_shards(&mut out, &head.shards);
            }
        }
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a journal entry: truncated, too long, of a different kind, a batch with
    /// a signature or clues, with shards that do not ascend, with fewer than two merge inputs, with
    /// other journals than what was signed, or with a size that does not grow.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let entry = match input.u8()? {
            0 => Self::Batch(read_batch(&mut input)?),
            1 => Self::Merge(read_merge(&mut input)?),
            2 => Self::Append(read_append(&mut input)?),
            3 => Self::Head(read_head(&mut input)?),
            _ => return Err(Error::Malformed("journal entry kind")),
        };
        input.finish()?;
        Ok(entry)
    }

    /// The shards that the entry writes to, with the hash of its operations there; `None` for an
    /// event.
    #[must_use]
    pub fn writes(&self) -> Option<&[(ShardId, Digest)]> {
        match self {
            Self::Batch(batch) => Some(&batch.shards),
            Self::Append(append) => Some(&append.shards),
            Self::Head(head) => Some(&head.shards),
            Self::Merge(_) => None,
        }
    }

    /// Place of the entry's kind in a journal: batches and appends, then heads, then events.
    #[must_use]
    pub fn place(&self) -> u8 {
        match self {
            Self::Batch(_) | Self::Append(_) => 0,
            Self::Head(_) => 1,
            Self::Merge(_) => 2,
        }
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
    Ok(BatchEntry { session, metadata, shards: read_shards(input)? })
}

fn read_append(input: &mut Reader<'_>) -> Result<AppendEntry, Error> {
    let append = AppendEntry {
        ledger: LedgerId(input.bytes16()?),
        signed: input.str16()?.to_vec(),
        signature: input.take(64)?.try_into().map_err(|_| Error::Truncated)?,
        first_jsn: input.u64()?,
        count: input.u32()?,
        leaves_root: input.digest()?,
        shards: read_shards(input)?,
    };
    let signed = Signed::decode(&append.signed)?;
    if !signed.founds() && signed.ledger != append.ledger {
        return Err(Error::Malformed("ledger of an append"));
    }
    let fits = append.count == signed.items && append.first_jsn.checked_add(u64::from(append.count)).is_some();
    if fits { Ok(append) } else { Err(Error::Malformed("number of journals")) }
}

fn read_head(input: &mut Reader<'_>) -> Result<HeadEntry, Error> {
    let head = HeadEntry {
        ledger: LedgerId(input.bytes16()?),
        size_before: input.u64()?,
        size: input.u64()?,
        root: input.digest()?,
        shards: read_shards(input)?,
    };
    if head.size_before < head.size { Ok(head) } else { Err(Error::Malformed("size of a ledger")) }
}

fn write_shards(out: &mut Writer, shards: &[(ShardId, Digest)]) {
    out.u32(u32::try_from(shards.len()).expect("there are fewer than 2^32 shards"));
    for (shard, operations) in shards {
        out.u32(shard.0);
        out.digest(operations);
    }
}

fn read_shards(input: &mut Reader<'_>) -> Result<Vec<(ShardId, Digest)>, Error> {
    let count = input.u32()?;
    let mut shards: Vec<(ShardId, Digest)> = Vec::new();
    for _ in 0..count {
        let shard = ShardId(input.u32()?);
        if shards.last().is_some_and(|(last, _)| *last >= shard) {
            return Err(Error::Malformed("order of touched shards"));
        }
        shards.push((shard, input.digest()?));
    }
    Ok(shards)
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

/// What a version wrote, by its whole journal: each key with the last body that an entry gave it.
/// `entries` and the operation lists of each shard are encoded, and in the order of the journal. A
/// body names a value by its length and hash.
///
/// # Errors
/// If the entries are not those of the header, or the lists are not those of the entries.
pub fn written<B: AsRef<[u8]>>(
    header: &Header,
    entries: &[B],
    lists: &BTreeMap<ShardId, Vec<B>>,
) -> Result<BTreeMap<Vec<u8>, RecordBody>, Error> {
    let decoded = entries.iter().map(|entry| Entry::decode(entry.as_ref())).collect::<Result<Vec<_>, _>>()?;
    if decoded.len() != header.journal_leaves as usize || journal_root(&decoded) != header.journal_root {
        return Err(Error::Malformed("entries of another journal"));
    }
    let mut left: BTreeMap<ShardId, core::slice::Iter<'_, B>> =
        lists.iter().map(|(shard, lists)| (*shard, lists.iter())).collect();
    let mut written = BTreeMap::new();
    for (shard, hash) in decoded.iter().filter_map(Entry::writes).flatten() {
        let list =
            left.get_mut(shard).and_then(Iterator::next).ok_or(Error::Malformed("an operation list is missing"))?;
        let operations = decode_operations(list.as_ref())?;
        if operation_list_hash(operations.iter().map(|(key, body)| (&key[..], *body))) != *hash {
            return Err(Error::Malformed("an operation list of another batch"));
        }
        written.extend(operations);
    }
    if left.values_mut().any(|left| left.next().is_some()) {
        return Err(Error::Malformed("an operation list of no batch"));
    }
    Ok(written)
}

/// The journal root, which the version's header carries.
#[must_use]
pub fn journal_root(entries: &[Entry]) -> Digest {
    merkle::mth(&entries.iter().map(Entry::hash).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use coppice_types::{ClusterId, Epoch, MemberId};

    use super::*;
    use crate::hash::sha256;

    fn entries() -> Vec<Entry> {
        let shards = vec![(ShardId(1), sha256(b"1")), (ShardId(4), sha256(b"4"))];
        let batch = BatchEntry { session: None, metadata: sha256(b"m"), shards };
        let named = BatchEntry { session: Some((SessionId([7; 16]), 9)), ..batch.clone() };
        let merge = MergeEntry { shard: ShardId(3), inputs: vec![sha256(b"a"), sha256(b"b")], output: sha256(b"c") };
        let signed = Signed {
            cluster: ClusterId([1; 16]),
            ledger: LedgerId([5; 16]),
            member: MemberId([2; 16]),
            agent: None,
            lane: 0,
            number: 1,
            epoch: Epoch(0),
            seen_size: 1,
            seen_root: sha256(b"seen"),
            conditions: Vec::new(),
            items: 2,
            items_root: sha256(b"items"),
        };
        let append = AppendEntry {
            ledger: signed.ledger,
            signed: signed.encode(),
            signature: [6; 64],
            first_jsn: 9,
            count: 2,
            leaves_root: sha256(b"leaves"),
            shards: batch.shards.clone(),
        };
        let shards = batch.shards.clone();
        let head = HeadEntry { ledger: append.ledger, size_before: 9, size: 11, root: sha256(b"root"), shards };
        vec![Entry::Batch(batch), Entry::Batch(named), Entry::Merge(merge), Entry::Append(append), Entry::Head(head)]
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
    fn appends_and_heads_let_a_ledger_grow() {
        let [.., Entry::Append(append), Entry::Head(head)] = &entries()[..] else { panic!("they are last") };
        let number = Err(Error::Malformed("number of journals"));
        for (first_jsn, count) in [(9, 0), (9, 1), (9, 3), (u64::MAX, 2)] {
            let changed = Entry::Append(AppendEntry { first_jsn, count, ..append.clone() });
            assert_eq!(Entry::decode(&changed.encode()), number);
        }
        let elsewhere = Entry::Append(AppendEntry { ledger: LedgerId([6; 16]), ..append.clone() });
        assert_eq!(Entry::decode(&elsewhere.encode()), Err(Error::Malformed("ledger of an append")));
        let unsigned = Entry::Append(AppendEntry { signed: b"signed".to_vec(), ..append.clone() });
        assert!(Entry::decode(&unsigned.encode()).is_err());
        for size in [8, 9] {
            let changed = Entry::Head(HeadEntry { size, ..head.clone() });
            assert_eq!(Entry::decode(&changed.encode()), Err(Error::Malformed("size of a ledger")));
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
