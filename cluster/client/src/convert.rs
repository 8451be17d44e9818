//! Conversions between the shared types and the messages of the API.

use coppice_proto::v1;
use coppice_types::{Batch, Change, Condition, Stamp, codec};
use coppice_verify::header::Header;

use crate::Error;

/// A stamp as a message.
#[must_use]
pub(crate) fn stamp(stamp: Stamp) -> v1::Stamp {
    v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 }
}

/// A batch as a message, with its preconditions and metadata.
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

/// Decodes a header from an answer, in canonical bytes.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are not a header.
pub fn header(bytes: &[u8]) -> Result<Header, Error> {
    Header::decode(bytes).map_err(|error| match error {
        codec::Error::Malformed(what) => Error::Malformed(what),
        _ => Error::Malformed("header"),
    })
}

#[cfg(test)]
mod tests {
    use coppice_types::{Digest, Operation, Precondition};

    use super::*;

    #[test]
    fn a_batch_keeps_all_its_parts() {
        let key = |key: &[u8]| key.to_vec();
        let (changed, hash) = (Stamp::new(1, 7), Digest([3; 32]));
        let message = batch(Batch {
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
    fn bytes_that_are_no_header_are_malformed() {
        for bytes in [&b""[..], b"header", &[0xff; 300]] {
            assert!(matches!(header(bytes), Err(Error::Malformed(_))), "{bytes:?}");
        }
    }
}
