//! From the shared types to messages, and back.

use coppice_proto::v1;
use coppice_types::{Batch, Change, Condition, Stamp, codec};
use coppice_verify::header::Header;

use crate::Error;

/// The message of a stamp.
#[must_use]
pub(crate) fn stamp(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 }
}

/// The message of a batch.
#[must_use]
pub fn batch(batch: Batch) -> v1::Batch {
    let operations = batch.operations.into_iter().map(|operation| v1::Operation {
        key: operation.key.into(),
        change: Some(match operation.change {
            Change::Put(value) => v1::operation::Change::Put(value.into()),
            Change::Delete => v1::operation::Change::Delete(true),
        }),
    });
    let preconditions = batch.preconditions.into_iter().map(|precondition| v1::Precondition {
        key: precondition.key.into(),
        condition: Some(match precondition.condition {
            Condition::LastChanged(at) => v1::precondition::Condition::LastChanged(stamp(at)),
            Condition::Absent => v1::precondition::Condition::Absent(true),
            Condition::ValueHash(hash) => v1::precondition::Condition::ValueSha256(hash.0.to_vec().into()),
        }),
    });
    v1::Batch {
        operations: operations.collect(),
        preconditions: preconditions.collect(),
        expected_head: batch.expected_head.map(stamp),
        exclusive: batch.exclusive,
        metadata: batch.metadata.into(),
    }
}

/// The header that an answer brought.
///
/// # Errors
/// `Malformed`, with what is wrong with it.
pub fn header(bytes: &[u8]) -> Result<Header, Error> {
    Header::decode(bytes).map_err(|error| match error {
        codec::Error::Malformed(what) => Error::Malformed(what),
        _ => Error::Malformed("header"),
    })
}
