//! Answers held against their proofs.
//!
//! A proof alone says that *something* was so; here it must say that the question that was asked has the answer that was
//! given: the same keys, values and version, or the same range without a gap.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use coppice_proto::v1;
use coppice_types::{Stamp, Version};
use coppice_verify::{
    check::{self, Answer, Claim, Record, Verified},
    checkpoint::Checkpoint,
    header::Header,
    note::VerifierKey,
};

use tokio::time::Instant;

use crate::Error;

/// What was asked for: keys in any order, or a range.
pub(crate) enum Question<'a> {
    Keys(&'a [bytes::Bytes]),
    Range { low: &'a [u8], high: Option<&'a [u8]>, limit: u32 },
}

/// How long a checkpoint that grew may go without a proof that it did nothing else.
const GROWTH_INTERVAL: Duration = Duration::from_secs(10);

/// The ledger's key, and the newest checkpoint that was seen under it.
#[derive(Debug)]
pub(crate) struct Trust {
    key: VerifierKey,
    newest: Mutex<Option<Newest>>,
}

#[derive(Debug)]
struct Newest {
    checkpoint: Checkpoint,
    /// One up to which all is consistent, and when that was shown.
    proven: Checkpoint,
    proven_at: Instant,
}

impl Trust {
    pub(crate) fn new(key: VerifierKey) -> Self {
        Self { key, newest: Mutex::default() }
    }

    pub(crate) fn key(&self) -> &VerifierKey {
        &self.key
    }

    /// Notes a checkpoint that was proven. Gives the one from which growth is to be proven, if it is time for that.
    ///
    /// # Errors
    /// If the log has had another root at that size: the ledger was forked, and both checkpoints are signed.
    pub(crate) fn note(&self, seen: Checkpoint) -> Result<Option<Checkpoint>, Error> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = newest.as_mut() else {
            *newest = Some(Newest { checkpoint: seen.clone(), proven: seen, proven_at: Instant::now() });
            return Ok(None);
        };
        let same_size = [&known.checkpoint, &known.proven].into_iter().find(|known| known.size == seen.size);
        ensure(same_size.is_none_or(|known| known.root == seen.root), FORKED)?;
        if seen.size > known.checkpoint.size {
            known.checkpoint = seen;
        }
        let due = known.checkpoint.size > known.proven.size && known.proven_at.elapsed() >= GROWTH_INTERVAL;
        if due {
            // Whoever asks, asks alone.
            known.proven_at = Instant::now();
        }
        Ok(due.then(|| known.proven.clone()))
    }

    /// Checks the proof that a log grew from a checkpoint that was seen.
    ///
    /// # Errors
    /// If it shows another log, or nothing.
    pub(crate) fn check_growth(&self, old: &Checkpoint, standing: &[u8]) -> Result<(), Error> {
        let verified = check::verify(standing, &self.key, None)?;
        let Claim::Standing(claim) = &verified.claim else {
            return Err(Error::Untrusted("the proof is of another kind"));
        };
        ensure(claim.old_size == old.size, "the proof is of another checkpoint")?;
        ensure(claim.old_root == old.root, FORKED)?;
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = newest.as_mut()
            && known.proven.size < verified.checkpoint.size
        {
            let seen = verified.checkpoint;
            ensure(known.checkpoint.size != seen.size || known.checkpoint.root == seen.root, FORKED)?;
            if known.checkpoint.size < seen.size {
                known.checkpoint = seen.clone();
            }
            known.proven = seen;
        }
        Ok(())
    }
}

const FORKED: &str = "the log has two roots of one size: keep both checkpoints, they are evidence";

/// Checks the answer to a read; gives the checkpoint of its proof.
pub(crate) fn check_read(
    key: &VerifierKey,
    question: &Question<'_>,
    at: Option<&v1::Stamp>,
    records: &[v1::Record],
    read_at: Option<&v1::Stamp>,
    proof: &[u8],
) -> Result<Checkpoint, Error> {
    let verified = check::verify(proof, key, None)?;
    check_claim(&verified, question, at, records, read_at)?;
    Ok(verified.checkpoint)
}

fn check_claim(
    verified: &Verified<'_>,
    question: &Question<'_>,
    at: Option<&v1::Stamp>,
    records: &[v1::Record],
    read_at: Option<&v1::Stamp>,
) -> Result<(), Error> {
    let Claim::Query(claim) = &verified.claim else { return Err(Error::Untrusted("the proof is of another kind")) };
    let stamp = claim.header.stamp;
    ensure(read_at.is_some_and(|read_at| same(stamp, read_at)), "the proof is of another version")?;
    ensure(at.is_none_or(|at| Version(at.version) == stamp.version), "another version was read than was asked for")?;
    match (&claim.answer, question) {
        (Answer::Keys(proven), Question::Keys(keys)) => check_keys(proven, keys, records),
        (Answer::Range { low, high, records: proven }, Question::Range { low: asked, high: to, limit }) => {
            ensure(low == asked, "the proof is of another range")?;
            let cut_short =
                *limit > 0 && records.len() == *limit as usize && successor(records).as_deref() == high.as_deref();
            ensure(high.as_deref() == *to || cut_short, "the proof is of another range")?;
            ensure(proven.len() == records.len(), "the answer is not the proven range")?;
            proven.iter().zip(records).try_for_each(|(proven, record)| check_record(Some(proven), record))
        }
        _ => Err(Error::Untrusted("the proof answers another question")),
    }
}

/// Checks the receipt of a commit; gives its checkpoint.
pub(crate) fn check_receipt(key: &VerifierKey, response: &v1::CommitResponse) -> Result<Checkpoint, Error> {
    let verified = check::verify(&response.receipt, key, None)?;
    let Claim::Receipt(claim) = &verified.claim else { return Err(Error::Untrusted("the proof is of another kind")) };
    let header = Header::decode(&response.header).map_err(|_| Error::Malformed("header"))?;
    ensure(claim.header == header, "the receipt is of another version")?;
    let same_stamp = response.stamp.as_ref().is_some_and(|stamp| same(header.stamp, stamp));
    ensure(same_stamp, "the receipt is of another version")?;
    Ok(verified.checkpoint)
}

fn check_keys(
    proven: &[(std::borrow::Cow<'_, [u8]>, Option<Record<'_>>)],
    keys: &[bytes::Bytes],
    records: &[v1::Record],
) -> Result<(), Error> {
    ensure(keys.len() == records.len(), "the answer has other keys than the question")?;
    for (key, record) in keys.iter().zip(records) {
        let found = proven.binary_search_by(|(proven, _)| proven.as_ref().cmp(key.as_ref()));
        let at = found.map_err(|_| Error::Untrusted("the proof leaves a key out"))?;
        ensure(record.key == *key, "the answer has other keys than the question")?;
        check_record(proven[at].1.as_ref(), record)?;
    }
    Ok(())
}

fn check_record(proven: Option<&Record<'_>>, record: &v1::Record) -> Result<(), Error> {
    ensure(proven.is_some() == record.found, "the answer and its proof disagree")?;
    let Some(proven) = proven else { return Ok(()) };
    let agree = *proven.key == *record.key
        && proven.value_hash == coppice_verify::hash::sha256(&record.value)
        && record.last_changed.as_ref().is_some_and(|stamp| same(proven.stamp, stamp));
    ensure(agree, "the answer and its proof disagree")
}

/// The first key above the last record.
fn successor(records: &[v1::Record]) -> Option<Vec<u8>> {
    records.last().map(|record| [record.key.as_ref(), &[0]].concat())
}

fn same(stamp: Stamp, other: &v1::Stamp) -> bool {
    stamp == Stamp::new(other.epoch, other.version)
}

fn ensure(holds: bool, message: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Untrusted(message)) }
}

#[cfg(test)]
mod tests;
