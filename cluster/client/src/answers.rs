//! Checks of answers that were not received by this library, or that a program has kept.
//!
//! The checks are those of a [`Client`](crate::Client) that trusts a key, except for one: a client
//! also remembers how far the log had grown before it asked, and these functions do not.

use coppice_proto::v1;
use coppice_verify::{checkpoint::Checkpoint, keys::Keys, note::VerifierKey};

use crate::{
    Error,
    trust::{self, Asked, Read, Sent},
};

/// Checks the answer `told` to the read of keys `asked`, which must have asked for a proof. Returns
/// the checkpoint of that proof.
///
/// # Errors
/// If the proof does not hold, or holds for something other than this answer.
pub fn check_keys(
    key: &VerifierKey,
    asked: &v1::BatchGetRequest,
    told: &v1::BatchGetResponse,
) -> Result<Checkpoint, Error> {
    let v1::BatchGetResponse { records, read_at, proof } = told;
    let (question, options) = (Asked::Keys(&asked.keys), &asked.read.unwrap_or_default());
    let read = Read { question, options, records, read_at: read_at.as_ref(), file: &trust::decoded(proof)?, seen: 0 };
    trust::check_read(&trust::ProvenLogs::default(), &Keys::new(key.clone()), None, &read).map(|seen| seen.checkpoint)
}

/// Checks the answer to the read of a range `asked`, which must have asked for a proof. `records`
/// are those of all messages together, and `end` is the last message's. Returns the checkpoint of
/// the proof.
///
/// # Errors
/// If the proof does not hold, or holds for something other than this answer.
pub fn check_range(
    key: &VerifierKey,
    asked: &v1::RangeRequest,
    records: &[v1::Record],
    end: &v1::RangeEnd,
) -> Result<Checkpoint, Error> {
    let v1::RangeRequest { low, high, limit, read, reverse, .. } = asked;
    let question = Asked::Range { low, high: high.as_deref(), limit: *limit, reverse: *reverse, more: end.more };
    let (options, read_at) = (&read.unwrap_or_default(), end.read_at.as_ref());
    let read = Read { question, options, records, read_at, file: &trust::decoded(&end.proof)?, seen: 0 };
    trust::check_read(&trust::ProvenLogs::default(), &Keys::new(key.clone()), None, &read).map(|seen| seen.checkpoint)
}

/// Checks that the receipt in `told` is for the batch in `asked`. `genesis` is the ledger's genesis
/// header in canonical bytes; it may come from anywhere, because the receipt proves it. Returns the
/// checkpoint of the receipt.
///
/// # Errors
/// If the receipt does not hold, or is for another batch. [`Error::Refused`] with an unknown
/// outcome if there is no receipt: then nothing was shown that could be wrong.
pub fn check_commit(
    key: &VerifierKey,
    genesis: &[u8],
    asked: &v1::CommitRequest,
    told: &v1::CommitResponse,
) -> Result<Checkpoint, Error> {
    if told.receipt.is_empty() {
        return Err(Error::unproven_commit());
    }
    let sent = Sent::new(&asked.session_id, asked.number, asked.batch.as_ref())?;
    trust::check_receipt(
        &trust::ProvenLogs::default(),
        &Keys::new(key.clone()),
        None,
        &trust::map_of(genesis)?,
        &sent,
        &trust::Receipted::new(told)?,
    )
    .map(|seen| seen.checkpoint)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_types::{Change, ErrorKind, Operation};
    use coppice_verify::replay::Commit;

    use super::*;
    use crate::fake::{self, get, range, record};

    #[test]
    fn a_read_is_checked_as_a_client_would() {
        let ledger = fake::ledger();
        let (key, size) = (ledger.key.verifier(), ledger.headers.len() as u64);
        let asked = v1::BatchGetRequest { keys: vec![Bytes::from_static(b"a")], read: None };
        let v1::GetResponse { read_at, proof, .. } = get(&ledger, b"a");
        let told = v1::BatchGetResponse { records: vec![record(b"a")], read_at, proof };
        assert_eq!(check_keys(key, &asked, &told).expect("an honest answer").size, size);
        let other = v1::BatchGetRequest { keys: vec![Bytes::from_static(b"b")], read: None };
        assert_eq!(check_keys(key, &other, &told).expect_err("of another key").kind(), ErrorKind::Corrupted);

        let asked = v1::RangeRequest::default();
        let mut answer = range(&ledger, &asked).remove(0);
        let end = answer.end.take().expect("it is whole");
        assert_eq!(check_range(key, &asked, &answer.records, &end).expect("an honest answer").size, size);
        answer.records.pop();
        let lie = check_range(key, &asked, &answer.records, &end);
        assert_eq!(lie.expect_err("a record is missing").kind(), ErrorKind::Corrupted);
    }

    #[test]
    fn a_range_in_reverse_is_proven_from_its_last_record_on() {
        let ledger = fake::ledger();
        let key = ledger.key.verifier();
        let asked = v1::RangeRequest { reverse: true, limit: 2, ..v1::RangeRequest::default() };
        let end = |low: &[u8], more| {
            let proof = ledger.prove_range(ledger.head(), low, None, true).encode().expect("a small file").into();
            v1::RangeEnd { more, read_at: Some(coppice_proto::convert::to_stamp(ledger.head())), proof }
        };
        let told = |records: &[&[u8]], end: &v1::RangeEnd, asked: &v1::RangeRequest| {
            let records: Vec<_> = records.iter().map(|key| record(key)).collect();
            check_range(key, asked, &records, end).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(told(&[b"x", b"b"], &end(b"b", true), &asked), Ok(()));
        let all = v1::RangeRequest { limit: 0, ..asked.clone() };
        assert_eq!(told(&[b"x", b"b", b"a"], &end(b"", false), &all), Ok(()));
        let from_b = v1::RangeRequest { low: Bytes::from_static(b"b"), ..asked.clone() };
        for (what, records, end, asked) in [
            ("in the other order", &[&b"b"[..], b"x"][..], end(b"b", true), &asked),
            ("the smallest instead of the largest", &[b"b", b"a"], end(b"", true), &asked),
            ("less than the limit", &[b"x"], end(b"x", true), &asked),
            ("a proof of more", &[b"x", b"b"], end(b"", true), &asked),
            ("nothing can follow", &[b"x", b"b"], end(b"b", true), &from_b),
        ] {
            assert_eq!(told(records, &end, asked), Err(ErrorKind::Corrupted), "{what}");
        }
    }

    #[test]
    fn a_commit_is_checked_with_a_genesis_header_from_anywhere() {
        let mut ledger = fake::ledger();
        let genesis = ledger.headers[0].encode();
        let change = Change::Put(b"value".to_vec().into());
        let operations = vec![Operation { key: b"k".to_vec().into(), change }];
        let stamp = ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("a batch");
        let asked = v1::CommitRequest { batch: Some(fake::put("k")), ..v1::CommitRequest::default() };
        let told = v1::CommitResponse {
            stamp: Some(coppice_proto::convert::to_stamp(stamp)),
            header: ledger.newest().encode().into(),
            receipt: ledger.receipt(stamp, 0).encode().expect("a small file").into(),
            ..v1::CommitResponse::default()
        };
        let key = ledger.key.verifier();
        let checkpoint = check_commit(key, &genesis, &asked, &told).expect("an honest receipt");
        assert_eq!(checkpoint.size, ledger.headers.len() as u64);
        let other = v1::CommitRequest { batch: Some(fake::put("l")), ..v1::CommitRequest::default() };
        check_commit(key, &genesis, &other, &told).expect_err("the receipt of another batch");
        check_commit(key, &told.header, &asked, &told).expect_err("no genesis header");
        let bare = v1::CommitResponse { receipt: Bytes::new(), ..told };
        let error = check_commit(key, &genesis, &asked, &bare).expect_err("no receipt");
        assert!(error.kind() == ErrorKind::Unavailable && error.outcome_unknown(), "{error:?}");
    }
}
