//! Step `time`: which version stood at a time (`docs/verification.md` section 13, *The version of a
//! time*).

use super::{
    claim::TimeClaim,
    failure::{Failure, Step, ensure},
    log::Log,
};
use crate::{
    header::{Body, Header},
    proof::{EpochPart, TimeProof},
};

pub(super) fn check(log: &Log, proof: &TimeProof<'_>) -> Result<TimeClaim, Failure> {
    let header = log.header(&proof.header)?;
    ensure(matches!(header.body, Body::Commit | Body::Genesis(_)), Step::Header, "neither a commit nor genesis")?;
    let next = proof.next.as_ref().map(|part| log.header(part)).transpose()?;
    let commits = next.as_ref().is_none_or(|next| matches!(next.body, Body::Commit));
    ensure(commits, Step::Header, "the next header is not a commit")?;
    log.stands(&proof.epoch, header.stamp)?;
    let rule = |holds, rule| ensure(holds, Step::Time, rule);
    rule(header.timestamp_ms <= proof.time_ms, "the version is later than the time")?;
    match &next {
        Some(next) => {
            check_next(&proof.epoch, &header, next)?;
            // By the same rule as for each version: it is part of the newest header's timeline.
            log.check_not_above(next.stamp, Step::Time)?;
            rule(next.timestamp_ms > proof.time_ms, "the next version is not later than the time")?;
        }
        None => rule(header.stamp.version == log.newest.stamp.version, "the next version is not shown")?,
    }
    let newest_ms = log.newest.timestamp_ms;
    let last = next.as_ref().unwrap_or(&header);
    rule(last.timestamp_ms <= newest_ms, "times that decrease along the log")?;
    let next = next.map(|next| (next.stamp, next.timestamp_ms));
    Ok(TimeClaim { header, time_ms: proof.time_ms, next, newest_ms })
}

/// Checks that `next` is the header of the version after a version that stands, and stands itself.
/// It is in the same epoch, unless the version is the base of the next one (section 11).
fn check_next(part: &EpochPart, header: &Header, next: &Header) -> Result<(), Failure> {
    let (at, after) = (header.stamp, next.stamp);
    let rule = |holds, rule| ensure(holds, Step::Time, rule);
    rule(at.version.0.checked_add(1) == Some(after.version.0), "not the version after it")?;
    let epoch = part.next.filter(|pair| pair.base == at.version).map_or(part.pair.epoch, |pair| pair.epoch);
    rule(after.epoch == epoch, "the next version was rolled back")?;
    rule(next.sequence > header.sequence, "the next version lies before it in the log")
}
