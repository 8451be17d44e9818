//! A client's batch after its limits were checked, with its routes, hashes and sizes, computed
//! once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{Condition, Digest, Params, Precondition, Reason, SessionId, ShardId, Stamp};
use coppice_verify::{
    hash::{self, RecordBody},
    ledgers::{Checked, RESERVED_END},
};

use super::{map::Leaves, refusal::Refusal};

/// Bytes of an operation or precondition in a message, in addition to its key and value.
const OVERHEAD_BYTES: u64 = 24;
/// Bytes of an operation in a kept journal, in addition to its key.
const JOURNAL_BYTES: u64 = 40;

/// The value of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub value: Bytes,
    /// SHA-256 of the value.
    pub value_hash: Digest,
}

/// A change of one key: a put, or a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: Bytes,
    /// The value, or `None` for a delete.
    pub put: Option<Put>,
}

/// A condition on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub key: Bytes,
    /// The condition that must hold.
    pub condition: Condition,
}

/// A checked and routed batch, or a member's request to append journals.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operations by shard, each list in the order in which they were sent.
    pub writes: BTreeMap<ShardId, Vec<Write>>,
    /// The preconditions.
    pub checks: Vec<Check>,
    /// The stamp that the version before the batch must have, if the batch demands one.
    pub expected_head: Option<Stamp>,
    /// Whether the batch must be alone in its version.
    pub exclusive: bool,
    /// The batch's session and its number there.
    pub session: Option<(SessionId, u64)>,
    /// Whether the batch is applied only after the previous number of its session.
    pub ordered: bool,
    /// Identifies the batch in its session.
    pub batch_hash: Digest,
    /// The hash of the batch's metadata, for the journal.
    pub metadata_hash: Digest,
    /// The hash of each shard's operation list.
    pub list_hashes: BTreeMap<ShardId, Digest>,
    /// Every shard that the batch writes to or has a precondition on.
    pub involved: BTreeSet<ShardId>,
    /// An upper bound of the bytes that the batch adds to a prepare.
    pub bytes: u64,
    /// The journals that a member asks to append. Such a request has no writes of its own: they
    /// follow from the state in which it is judged.
    pub append: Option<Box<Checked>>,
}

impl Request {
    /// Checks a batch against the limits of the genesis header and routes it.
    ///
    /// # Errors
    /// The limit that the batch exceeds, or the field that is wrong.
    pub fn admit(
        batch: v1::Batch,
        session: Option<(SessionId, u64)>,
        map: &Leaves,
        params: &Params,
    ) -> Result<Self, Refusal> {
        let mut content = batch.metadata.len() as u64;
        let mut bytes = 0;
        let mut writes: BTreeMap<ShardId, Vec<Write>> = BTreeMap::new();
        let mut involved = BTreeSet::new();
        let flat = admit_writes(batch.operations, params)?;
        for write in &flat {
            let size = write.key.len() as u64 + write.put.as_ref().map_or(0, |put| put.value.len() as u64);
            content += size;
            bytes += size + OVERHEAD_BYTES;
            if params.journals_kept {
                bytes += write.key.len() as u64 + JOURNAL_BYTES;
            }
            let shard = map.route(&write.key);
            involved.insert(shard);
            writes.entry(shard).or_default().push(write.clone());
        }
        limit("batch_bytes_max", params.batch_bytes_max, content)?;
        limit("message_bytes_max", params.message_bytes_max, bytes)?;
        let checks =
            batch.preconditions.into_iter().map(|check| admit_check(check, params)).collect::<Result<Vec<_>, _>>()?;
        involved.extend(checks.iter().map(|check| map.route(&check.key)));
        let list_hashes = writes.iter().map(|(&shard, list)| (shard, list_hash(list))).collect();
        Ok(Self {
            batch_hash: batch_hash(&flat, &checks, &batch.metadata),
            metadata_hash: hash::metadata_hash(&batch.metadata),
            list_hashes,
            writes,
            checks,
            expected_head: batch.expected_head.map(stamp),
            exclusive: batch.exclusive,
            session,
            ordered: false,
            involved,
            bytes,
            append: None,
        })
    }
}

impl Request {
    /// The shards that the request may write to.
    pub fn written(&self) -> impl Iterator<Item = &ShardId> {
        let of_append = self.append.iter().flat_map(|_| &self.involved);
        self.writes.keys().chain(of_append)
    }

    /// The session number that must be applied before this one, if the batch is `ordered`.
    #[must_use]
    pub fn predecessor(&self) -> Option<(SessionId, u64)> {
        let (id, number) = self.session.filter(|_| self.ordered)?;
        (number > 1).then(|| (id, number - 1))
    }
}

fn stamp(stamp: v1::Stamp) -> Stamp {
    Stamp::new(stamp.epoch, stamp.version)
}

pub(super) fn limit(name: &str, allowed: u32, found: u64) -> Result<(), Refusal> {
    if found > u64::from(allowed) { Err(Refusal::over_limit(name, u64::from(allowed), found)) } else { Ok(()) }
}

/// Checks a key of a request.
///
/// # Errors
/// If it is empty or too long.
pub fn check_key(key: &[u8], params: &Params) -> Result<(), Refusal> {
    if key.is_empty() {
        return Err(Refusal::invalid("a key must have at least 1 byte"));
    }
    check_open(key, params)?;
    limit("key_bytes_max", params.key_bytes_max, key.len() as u64)
}

/// Checks that a key, or the low end of a range, is not reserved for ledgers of members. Their
/// records are written and read by calls of their own, which know who may do so.
///
/// # Errors
/// If it is reserved.
pub fn check_open(key: &[u8], params: &Params) -> Result<(), Refusal> {
    if params.ledgers && key < RESERVED_END {
        let message = "keys below 0x01 are reserved for ledgers: a key or range begins at 0x01 or above";
        return Err(Refusal::new(Reason::Reserved, message));
    }
    Ok(())
}

fn admit_writes(operations: Vec<v1::Operation>, params: &Params) -> Result<Vec<Write>, Refusal> {
    let changes: Vec<(Bytes, Option<Bytes>)> =
        operations.into_iter().map(|operation| admit_change(operation, params)).collect::<Result<_, _>>()?;
    let values: Vec<&[u8]> = changes.iter().filter_map(|(_, value)| value.as_deref()).collect();
    let mut hashes = hash::sha256_each(&values).into_iter();
    let mut put = |value| Put { value, value_hash: hashes.next().expect("each value has a hash") };
    Ok(changes.into_iter().map(|(key, value)| Write { key, put: value.map(&mut put) }).collect())
}

/// The key of an operation, and its value if the operation is a put.
fn admit_change(operation: v1::Operation, params: &Params) -> Result<(Bytes, Option<Bytes>), Refusal> {
    check_key(&operation.key, params)?;
    let value = match operation.change {
        Some(v1::operation::Change::Put(value)) => {
            limit("value_bytes_max", params.value_bytes_max, value.len() as u64)?;
            Some(value)
        }
        Some(v1::operation::Change::Delete(true)) => None,
        Some(v1::operation::Change::Delete(false)) => return Err(Refusal::invalid("delete must be true")),
        None => return Err(Refusal::invalid("an operation must put or delete")),
    };
    Ok((operation.key, value))
}

fn admit_check(precondition: v1::Precondition, params: &Params) -> Result<Check, Refusal> {
    use v1::precondition::Condition as Wire;
    check_key(&precondition.key, params)?;
    let condition = match precondition.condition {
        Some(Wire::LastChanged(last)) => Condition::LastChanged(stamp(last)),
        Some(Wire::Absent(true)) => Condition::Absent,
        Some(Wire::Absent(false)) => return Err(Refusal::invalid("absent must be true")),
        Some(Wire::ValueSha256(hash)) => Condition::ValueHash(
            Digest::from_slice(&hash).ok_or_else(|| Refusal::invalid("value_sha256 must have 32 bytes"))?,
        ),
        None => return Err(Refusal::invalid("a precondition needs a condition")),
    };
    Ok(Check { key: precondition.key, condition })
}

impl Write {
    /// The form of the write that is hashed.
    #[must_use]
    pub fn body(&self) -> RecordBody {
        match &self.put {
            Some(put) => RecordBody::Put {
                value_len: u32::try_from(put.value.len()).expect("values are limited on admission"),
                value_hash: put.value_hash,
            },
            None => RecordBody::Tombstone,
        }
    }
}

pub(super) fn list_hash(list: &[Write]) -> Digest {
    hash::operation_list_hash(list.iter().map(|write| (write.key.as_ref(), write.body())))
}

fn batch_hash(writes: &[Write], checks: &[Check], metadata: &[u8]) -> Digest {
    let preconditions: Vec<Precondition> = checks
        .iter()
        .map(|check| Precondition { key: check.key.to_vec(), condition: check.condition.clone() })
        .collect();
    hash::batch_hash_of(writes.iter().map(|write| (write.key.as_ref(), write.body())), &preconditions, metadata)
}
