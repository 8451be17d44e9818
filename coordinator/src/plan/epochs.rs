//! The versions that stand, and their names (`docs/verification.md` section 11).

use coppice_types::{Reason, Stamp, Version};
use coppice_verify::epochs::Epochs;

use super::refusal::Refusal;

/// The original name of the version that a read asks for.
///
/// If `at` is `None`, the version is head. If `any_epoch` is set, the epoch of `at` is ignored. The
/// name that a rollback gave to its target also names the target.
///
/// # Errors
/// `NOT_YET`, `ROLLED_BACK`, `PRUNED`; `NOT_FOUND` for a name that was never given.
pub fn resolve(
    at: Option<Stamp>,
    any_epoch: bool,
    epochs: &Epochs,
    head: Stamp,
    boundary: Version,
) -> Result<Stamp, Refusal> {
    let Some(at) = at else { return Ok(epochs.stamp_of(head.version)) };
    let stamp = if any_epoch && at.version <= head.version {
        epochs.stamp_of(at.version)
    } else if any_epoch || at.epoch > head.epoch || (at.epoch == head.epoch && at.version > head.version) {
        return Err(Refusal::new(Reason::NotYet, format!("version {} is above head {head}", shown(at, any_epoch))));
    } else {
        named(at, epochs, head)?
    };
    if stamp.version < boundary {
        let message = format!("version {stamp} is below the pruned boundary {boundary}");
        return Err(Refusal::new(Reason::Pruned, message));
    }
    Ok(stamp)
}

fn shown(at: Stamp, any_epoch: bool) -> String {
    if any_epoch { at.version.to_string() } else { at.to_string() }
}

fn named(at: Stamp, epochs: &Epochs, head: Stamp) -> Result<Stamp, Refusal> {
    let pair = epochs.pairs().iter().find(|pair| pair.epoch == at.epoch);
    if at.version <= head.version {
        let stamp = epochs.stamp_of(at.version);
        if stamp.epoch == at.epoch || pair.is_some_and(|pair| pair.base == at.version) {
            return Ok(stamp);
        }
        if pair.is_some_and(|pair| at.version < pair.base) {
            let message = format!("there was no version {at}: version {} is {stamp}", at.version);
            return Err(Refusal::new(Reason::NotFound, message));
        }
    }
    Err(Refusal::new(Reason::RolledBack, format!("version {at} was rolled back")))
}
