//! Step `anchors`: anchors around an entry of the log (`docs/verification.md` section 19).

use alloc::vec::Vec;

use super::{
    claim::{AnchorClaim, Claim, IntervalClaim},
    failure::{Failure, Step, ensure, fail},
    log::Log,
    verify,
};
use crate::{
    anchor::{Anchor, time_key},
    checkpoint::Checkpoint,
    hash::{RecordBody, operation_list_hash},
    header::{Body, Header},
    merkle,
    note::VerifierKey,
    proof::{HeaderPart, IntervalProof},
};

pub(super) fn check(log: &Log, proof: &IntervalProof<'_>) -> Result<IntervalClaim, Failure> {
    let header = log.header(&proof.header)?;
    let below = proof.below.iter().map(|part| anchor(log, part)).collect::<Result<Vec<_>, Failure>>()?;
    let above = proof.above.iter().map(|(part, _)| anchor(log, part)).collect::<Result<Vec<_>, Failure>>()?;
    let at = header.sequence;
    let before = below.iter().all(|anchor| anchor.sequence < at);
    ensure(before, Step::Anchors, "an anchor that does not come before the entry")?;
    for (anchor, (_, path)) in above.iter().zip(&proof.above) {
        let stamped = &anchor.stamps;
        ensure(at.0 < stamped.size, Step::Anchors, "an anchor of a log that does not hold the entry")?;
        merkle::verify_inclusion(at.0, stamped.size, &header.hash(), path, &stamped.root)
            .map_err(fail(Step::Anchors))?;
    }
    let all: Vec<&AnchorClaim> = below.iter().chain(&above).collect();
    let ordered = all.is_sorted_by(|a, b| a.sequence < b.sequence && a.stamps.size < b.stamps.size);
    ensure(ordered, Step::Anchors, "anchors out of order")?;
    Ok(IntervalClaim { header, below, above })
}

/// Checks a token of a time ledger: a receipt, under the key of the ledger, of a batch that takes
/// the checkpoint in and does nothing else. Returns the header of the batch's version, whose time
/// in the log of the time ledger is that of the token.
///
/// # Errors
/// Names the step that failed.
pub fn verify_time_receipt(file: &[u8], key: &VerifierKey, checkpoint: &Checkpoint) -> Result<Header, Failure> {
    let Claim::Receipt(receipt) = verify(file, key, None)?.claim else {
        return Err(Failure::rule(Step::Question, "the token is not a receipt"));
    };
    let text = checkpoint.text();
    let value_len =
        u32::try_from(text.len()).map_err(|_| Failure::rule(Step::Question, "the checkpoint is too long"))?;
    let put = RecordBody::Put { value_len, value_hash: checkpoint.imprint() };
    let taken_in = operation_list_hash([(&time_key(checkpoint)[..], put)]);
    let does = receipt.batch.shards.iter().map(|(_, list)| *list);
    ensure(does.eq([taken_in]), Step::Question, "the receipt is for another batch")?;
    Ok(receipt.header)
}

/// An anchor that is in the log and has stamps.
fn anchor(log: &Log, part: &HeaderPart<'_>) -> Result<AnchorClaim, Failure> {
    let header = log.entry(part, Step::Anchors)?;
    let Header { sequence, timestamp_ms, body: Body::Anchor(Anchor::Stamps(stamps)), .. } = header else {
        return Err(Failure::rule(Step::Anchors, "not an anchor with stamps"));
    };
    Ok(AnchorClaim { sequence, timestamp_ms, imprint: stamps.imprint(&log.checkpoint.origin), stamps })
}
