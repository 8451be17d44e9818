//! Answers that others were given, held against their proofs as a [`Client`](crate::Client) that trusts a key does with its own: for those who ask by
//! other means, or keep what they were told.
//!
//! What a client knows besides is missing here: whether its log had grown further before it asked.

use coppice_proto::v1;
use coppice_verify::{checkpoint::Checkpoint, keys::Keys, note::VerifierKey};

use crate::{
    Error,
    trust::{self, Asked, Read, Sent},
};

/// Checks that a read of keys, asked for with a proof, has this answer; gives the checkpoint of its proof.
///
/// # Errors
/// If the proof does not hold, or proves something else.
pub fn check_keys(
    key: &VerifierKey,
    asked: &v1::BatchGetRequest,
    told: &v1::BatchGetResponse,
) -> Result<Checkpoint, Error> {
    let v1::BatchGetResponse { records, read_at, proof } = told;
    let (question, options) = (Asked::Keys(&asked.keys), &asked.read.unwrap_or_default());
    let read = Read { question, options, records, read_at: read_at.as_ref(), proof, seen: 0 };
    trust::check_read(&Keys::new(key.clone()), None, &read).map(|seen| seen.checkpoint)
}

/// Checks that a read of a range, asked for with a proof, has this answer; gives the checkpoint of its proof.
///
/// # Errors
/// If the proof does not hold, or proves something else.
pub fn check_range(
    key: &VerifierKey,
    asked: &v1::RangeRequest,
    records: &[v1::Record],
    end: &v1::RangeEnd,
) -> Result<Checkpoint, Error> {
    let v1::RangeRequest { low, high, limit, read } = asked;
    let question = Asked::Range { low, high: high.as_deref(), limit: *limit, more: end.more };
    let (options, read_at) = (&read.unwrap_or_default(), end.read_at.as_ref());
    let read = Read { question, options, records, read_at, proof: &end.proof, seen: 0 };
    trust::check_read(&Keys::new(key.clone()), None, &read).map(|seen| seen.checkpoint)
}

/// Checks that a commit with a receipt is of the batch that was sent, to the ledger of this genesis header, which need not be proven;
/// gives the receipt's checkpoint.
///
/// # Errors
/// If the receipt does not hold, or is one of something else. Without a receipt nothing was shown
/// that could be wrong: that is [`Error::Refused`], with an unknown outcome.
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
    trust::check_receipt(&Keys::new(key.clone()), None, &trust::map_of(genesis)?, &sent, told)
        .map(|seen| seen.checkpoint)
}
