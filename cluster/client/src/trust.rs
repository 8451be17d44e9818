//! Answers held against their proofs.
//!
//! A proof alone says that *something* was so; here it must say that the question that was asked has the answer that was
//! given: the same keys, values and version, or the same range without a gap.

use coppice_proto::v1;
use coppice_types::{Stamp, Version};
use coppice_verify::{
    check::{self, Answer, Claim, Record},
    header::Header,
    note::VerifierKey,
};

use crate::Error;

/// What was asked for: keys in any order, or a range.
pub(crate) enum Question<'a> {
    Keys(&'a [bytes::Bytes]),
    Range { low: &'a [u8], high: Option<&'a [u8]>, limit: u32 },
}

/// Checks the answer to a read.
pub(crate) fn check_read(
    key: &VerifierKey,
    question: &Question<'_>,
    at: Option<&v1::Stamp>,
    records: &[v1::Record],
    read_at: Option<&v1::Stamp>,
    proof: &[u8],
) -> Result<(), Error> {
    let verified = check::verify(proof, key, None)?;
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

/// Checks the receipt of a commit.
pub(crate) fn check_receipt(key: &VerifierKey, response: &v1::CommitResponse) -> Result<(), Error> {
    let verified = check::verify(&response.receipt, key, None)?;
    let Claim::Receipt(claim) = &verified.claim else { return Err(Error::Untrusted("the proof is of another kind")) };
    let header = Header::decode(&response.header).map_err(|_| Error::Malformed("header"))?;
    ensure(claim.header == header, "the receipt is of another version")?;
    ensure(response.stamp.as_ref().is_some_and(|stamp| same(header.stamp, stamp)), "the receipt is of another version")
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
