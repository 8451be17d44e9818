//! Values of the project as messages, and messages as values: each direction once.
//!
//! `to_x` makes the message of an `x`. Its counterpart `x` reads a message and names the field that
//! no correct peer sends, so that a server can refuse the request and a client its answer.

use std::fmt;

use bytes::Bytes;
use coppice_types::{
    Batch, Change, Condition, Digest, MergeName, Operation, PinId, Precondition, Sequence, SessionBatch, SessionCommit,
    SessionId, ShardId, ShardState, Stamp, Version,
};
use coppice_verify::shard_map::StateLeaf;

use crate::v1;

/// A field that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The field is not there.
    Missing(&'static str),
    /// The field's number of bytes is not that of its type.
    Length {
        /// The field.
        field: &'static str,
        /// A description of the expected length.
        expected: &'static str,
    },
    /// The field has a value that it may not have.
    Value(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(field) => write!(f, "{field} is missing"),
            Self::Length { field, expected } => write!(f, "{field} is not {expected}"),
            Self::Value(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Malformed {}

type Result<T> = std::result::Result<T, Malformed>;

/// Returns what a field holds.
///
/// # Errors
/// `Missing` if it holds nothing.
pub fn need<T>(field: Option<T>, name: &'static str) -> Result<T> {
    field.ok_or(Malformed::Missing(name))
}

/// The message of a digest, 32 bytes.
#[must_use]
pub fn to_digest(digest: &Digest) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

/// Reads a digest.
///
/// # Errors
/// `Length` if the field's length is not 32 bytes.
pub fn digest(bytes: &[u8], field: &'static str) -> Result<Digest> {
    Digest::from_slice(bytes).ok_or(Malformed::Length { field, expected: "a digest of 32 bytes" })
}

/// The message of a list of digests.
#[must_use]
pub fn to_path(hashes: &[Digest]) -> v1::HashPath {
    v1::HashPath { hashes: hashes.iter().map(to_digest).collect() }
}

/// Reads a list of digests.
///
/// # Errors
/// `Length` if one of them is not a digest.
pub fn path(path: &v1::HashPath, field: &'static str) -> Result<Vec<Digest>> {
    path.hashes.iter().map(|hash| digest(hash, field)).collect()
}

/// The message of a session's name.
#[must_use]
pub fn to_session_id(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(session.as_bytes())
}

/// Reads the name of a session.
///
/// # Errors
/// `Length` if the field's length is not 16 bytes.
pub fn session_id(bytes: &[u8]) -> Result<SessionId> {
    SessionId::from_slice(bytes).ok_or(Malformed::Length { field: "session_id", expected: "16 bytes long" })
}

/// The message of a pin's name.
#[must_use]
pub fn to_pin_id(pin: PinId) -> Bytes {
    Bytes::copy_from_slice(pin.as_bytes())
}

/// Reads the name of a pin.
///
/// # Errors
/// `Length` if the field's length is not 16 bytes.
pub fn pin_id(bytes: &[u8]) -> Result<PinId> {
    PinId::from_slice(bytes).ok_or(Malformed::Length { field: "pin_id", expected: "16 bytes long" })
}

/// The message of a stamp.
#[must_use]
pub fn to_stamp(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 }
}

/// Reads a stamp that is there.
#[must_use]
pub fn from_stamp(stamp: v1::Stamp) -> Stamp {
    Stamp::new(stamp.epoch, stamp.version)
}

/// Reads a stamp.
///
/// # Errors
/// `Missing` if the field is not there.
pub fn stamp(stamp: Option<v1::Stamp>, field: &'static str) -> Result<Stamp> {
    need(stamp, field).map(from_stamp)
}

/// The message of a shard's state.
#[must_use]
pub fn to_state(state: ShardState) -> v1::ShardState {
    v1::ShardState { version: state.version.0, digest: to_digest(&state.digest) }
}

/// Reads a shard's state.
///
/// # Errors
/// `Missing` if the field is not there, `Length` if its digest is none.
pub fn state(state: Option<&v1::ShardState>, field: &'static str) -> Result<ShardState> {
    let state = need(state, field)?;
    Ok(ShardState { version: Version(state.version), digest: digest(&state.digest, field)? })
}

/// The message of a state leaf.
#[must_use]
pub fn to_leaf(leaf: &StateLeaf) -> v1::StateLeaf {
    v1::StateLeaf {
        shard: leaf.shard.0,
        low: Bytes::copy_from_slice(&leaf.low),
        high: leaf.high.as_deref().map(Bytes::copy_from_slice),
        state: Some(to_state(ShardState { version: leaf.version, digest: leaf.digest })),
    }
}

/// Reads a state leaf.
///
/// # Errors
/// Like [`state`].
pub fn leaf(leaf: v1::StateLeaf) -> Result<StateLeaf> {
    let state = state(leaf.state.as_ref(), "leaf.state")?;
    Ok(StateLeaf {
        shard: ShardId(leaf.shard),
        low: leaf.low.into(),
        high: leaf.high.map(Into::into),
        version: state.version,
        digest: state.digest,
    })
}

/// The message of a merge's name.
#[must_use]
pub fn to_merge(merge: &MergeName) -> v1::Merge {
    v1::Merge { inputs: merge.inputs.iter().map(to_digest).collect(), output: to_digest(&merge.output) }
}

/// Reads the name of a merge.
///
/// # Errors
/// `Length` if one of its digests is none.
pub fn merge(merge: &v1::Merge) -> Result<MergeName> {
    let inputs = merge.inputs.iter().map(|input| digest(input, "a merge's input")).collect::<Result<_>>()?;
    Ok(MergeName { inputs, output: digest(&merge.output, "a merge's output")? })
}

/// The message of an operation. Its bytes are shared, not copied.
#[must_use]
pub fn to_operation(operation: Operation) -> v1::Operation {
    let change = match operation.change {
        Change::Put(value) => v1::operation::Change::Put(value),
        Change::Delete => v1::operation::Change::Delete(true),
    };
    v1::Operation { key: operation.key, change: Some(change) }
}

/// Reads an operation. Its bytes are shared, not copied.
///
/// # Errors
/// `Missing` if it changes nothing, `Value` if it says not to delete.
pub fn operation(operation: v1::Operation) -> Result<Operation> {
    let change = match need(operation.change, "operation.change")? {
        v1::operation::Change::Put(value) => Change::Put(value),
        v1::operation::Change::Delete(true) => Change::Delete,
        v1::operation::Change::Delete(false) => return Err(Malformed::Value("operation.delete can only be true")),
    };
    Ok(Operation { key: operation.key, change })
}

fn to_precondition(precondition: Precondition) -> v1::Precondition {
    let condition = match precondition.condition {
        Condition::LastChanged(at) => v1::precondition::Condition::LastChanged(to_stamp(at)),
        Condition::Absent => v1::precondition::Condition::Absent(true),
        Condition::ValueHash(hash) => v1::precondition::Condition::ValueSha256(to_digest(&hash)),
    };
    v1::Precondition { key: precondition.key.into(), condition: Some(condition) }
}

/// The message of a batch. Its keys and values are shared, not copied.
#[must_use]
pub fn to_batch(batch: Batch) -> v1::Batch {
    v1::Batch {
        operations: batch.operations.into_iter().map(to_operation).collect(),
        preconditions: batch.preconditions.into_iter().map(to_precondition).collect(),
        expected_head: batch.expected_head.map(to_stamp),
        exclusive: batch.exclusive,
        metadata: batch.metadata.into(),
    }
}

/// The message of a session's batch that is committed.
#[must_use]
pub fn to_session_commit(commit: &SessionCommit) -> v1::SessionCommit {
    v1::SessionCommit {
        session_id: to_session_id(commit.session),
        number: commit.number,
        batch_hash: to_digest(&commit.batch_hash),
        journal_index: commit.journal_index,
    }
}

/// Reads a session's batch that is committed.
///
/// # Errors
/// `Length` if its session or its hash has a wrong length.
pub fn session_commit(commit: &v1::SessionCommit) -> Result<SessionCommit> {
    Ok(SessionCommit {
        session: session_id(&commit.session_id)?,
        number: commit.number,
        batch_hash: digest(&commit.batch_hash, "batch_hash")?,
        journal_index: commit.journal_index,
    })
}

/// The message of a session's batch that the root group remembers.
#[must_use]
pub fn to_session_batch(batch: &SessionBatch) -> v1::SessionBatch {
    v1::SessionBatch {
        number: batch.number,
        batch_hash: to_digest(&batch.batch_hash),
        sequence: batch.sequence.0,
        journal_index: batch.journal_index,
        rolled_back: batch.rolled_back,
    }
}

/// Reads a session's batch that the root group remembers.
///
/// # Errors
/// `Length` if its hash is not a digest.
pub fn session_batch(batch: &v1::SessionBatch) -> Result<SessionBatch> {
    Ok(SessionBatch {
        number: batch.number,
        batch_hash: digest(&batch.batch_hash, "batch_hash")?,
        sequence: Sequence(batch.sequence),
        journal_index: batch.journal_index,
        rolled_back: batch.rolled_back,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Digest = Digest([7; 32]);

    #[test]
    fn every_value_is_read_back_as_it_was() {
        let state_7 = ShardState { version: Version(7), digest: DIGEST };
        assert_eq!(state(Some(&to_state(state_7)), "state"), Ok(state_7));
        for high in [None, Some(b"m".to_vec())] {
            let bounded =
                StateLeaf { shard: ShardId(3), low: b"a".to_vec(), high, version: Version(7), digest: DIGEST };
            assert_eq!(leaf(to_leaf(&bounded)), Ok(bounded));
        }
        let name = MergeName { inputs: vec![DIGEST, Digest([1; 32])], output: Digest([2; 32]) };
        assert_eq!(merge(&to_merge(&name)), Ok(name));
        assert_eq!(stamp(Some(to_stamp(Stamp::new(1, 2))), "stamp"), Ok(Stamp::new(1, 2)));
        assert_eq!(path(&to_path(&[DIGEST]), "path"), Ok(vec![DIGEST]));
        for change in [Change::Put(b"value".to_vec().into()), Change::Put(Vec::new().into()), Change::Delete] {
            let changed = Operation { key: b"key".to_vec().into(), change };
            assert_eq!(operation(to_operation(changed.clone())), Ok(changed));
        }
        let session = SessionId([5; 16]);
        let commit = SessionCommit { session, number: 4, batch_hash: DIGEST, journal_index: 2 };
        assert_eq!(session_commit(&to_session_commit(&commit)), Ok(commit));
        for rolled_back in [false, true] {
            let batch =
                SessionBatch { number: 4, batch_hash: DIGEST, sequence: Sequence(9), journal_index: 2, rolled_back };
            assert_eq!(session_batch(&to_session_batch(&batch)), Ok(batch));
        }
        assert_eq!(pin_id(&to_pin_id(PinId([6; 16]))), Ok(PinId([6; 16])));
    }

    #[test]
    fn a_batch_keeps_all_its_parts() {
        let key = |key: &[u8]| key.to_vec();
        let (changed, hash) = (Stamp::new(1, 7), Digest([3; 32]));
        let message = to_batch(Batch {
            operations: vec![
                Operation { key: key(b"put").into(), change: Change::Put(b"value".to_vec().into()) },
                Operation { key: key(b"gone").into(), change: Change::Delete },
            ],
            preconditions: vec![
                Precondition { key: key(b"changed"), condition: Condition::LastChanged(changed) },
                Precondition { key: key(b"absent"), condition: Condition::Absent },
                Precondition { key: key(b"hash"), condition: Condition::ValueHash(hash) },
            ],
            expected_head: Some(Stamp::new(2, 9)),
            exclusive: true,
            metadata: b"why".to_vec(),
        });
        let operations: Vec<_> = message.operations.iter().map(|it| (&it.key[..], it.change.clone())).collect();
        let put = v1::operation::Change::Put("value".into());
        let expected = [(&b"put"[..], Some(put)), (b"gone", Some(v1::operation::Change::Delete(true)))];
        assert_eq!(operations, expected);
        let conditions: Vec<_> = message.preconditions.iter().map(|it| (&it.key[..], it.condition.clone())).collect();
        let expected = [
            (&b"changed"[..], Some(v1::precondition::Condition::LastChanged(v1::Stamp { epoch: 1, version: 7 }))),
            (b"absent", Some(v1::precondition::Condition::Absent(true))),
            (b"hash", Some(v1::precondition::Condition::ValueSha256(vec![3; 32].into()))),
        ];
        assert_eq!(conditions, expected);
        assert_eq!(message.expected_head, Some(v1::Stamp { epoch: 2, version: 9 }));
        assert_eq!((message.exclusive, &message.metadata[..]), (true, &b"why"[..]));
    }

    #[test]
    fn what_is_missing_or_of_another_length_is_named() {
        assert_eq!(state(None, "base").map_err(|error| error.to_string()), Err("base is missing".to_owned()));
        let short = v1::ShardState { version: 1, digest: Bytes::from_static(&[1; 31]) };
        let error = state(Some(&short), "base").map_err(|error| error.to_string());
        assert_eq!(error, Err("base is not a digest of 32 bytes".to_owned()));
        assert_eq!(leaf(v1::StateLeaf::default()), Err(Malformed::Missing("leaf.state")));
        assert_eq!(operation(v1::Operation::default()), Err(Malformed::Missing("operation.change")));
        let kept = v1::Operation { change: Some(v1::operation::Change::Delete(false)), ..v1::Operation::default() };
        assert_eq!(operation(kept), Err(Malformed::Value("operation.delete can only be true")));
        assert!(session_id(&[1; 15]).is_err() && pin_id(&[1; 17]).is_err() && digest(&[1; 33], "hash").is_err());
    }
}
