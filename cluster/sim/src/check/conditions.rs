//! Judges the conditions of batches by the content of a state.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_proto::v1::{self, precondition::Condition};
use coppice_types::{Epoch, Stamp, Version};
use coppice_verify::hash;

use crate::history::{Batch, BatchId, Finding};

/// The content of a state: value and last change of each key.
pub type Records = BTreeMap<Bytes, (Bytes, Stamp)>;

pub fn stamp(stamp: v1::Stamp) -> Stamp {
    Stamp { epoch: Epoch(stamp.epoch), version: Version(stamp.version) }
}

/// Whether a precondition holds in a state.
pub fn holds(precondition: &v1::Precondition, records: &Records) -> bool {
    let found = records.get(&precondition.key);
    match (&precondition.condition, found) {
        (Some(Condition::Absent(_)), found) => found.is_none(),
        (Some(Condition::LastChanged(wanted)), Some((_, changed))) => stamp(*wanted) == *changed,
        (Some(Condition::ValueSha256(wanted)), Some((value, _))) => hash::sha256(value).0[..] == wanted[..],
        _ => false,
    }
}

/// Checks that the conditions of a batch held when it was applied. `opens` is the stamp of the
/// version before, if the batch is the first of its version.
pub fn check(batch: &Batch, id: BatchId, records: &Records, opens: Option<Stamp>, alone: bool) -> Result<(), Finding> {
    if !batch.batch.preconditions.iter().all(|precondition| holds(precondition, records)) {
        return Err(format!("commits: batch {id:x} was committed though a precondition did not hold"));
    }
    if let Some(expected) = batch.batch.expected_head
        && opens != Some(stamp(expected))
    {
        return Err(format!("commits: batch {id:x} was committed on a different head than it expected"));
    }
    if batch.batch.exclusive && !alone {
        return Err(format!("commits: exclusive batch {id:x} shares its version"));
    }
    Ok(())
}
