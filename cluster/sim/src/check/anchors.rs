//! Checker `anchors`: each anchor holds what the time ledger took in, and the bounds that follow
//! from it are true.

use coppice_verify::{
    anchor::{Anchor, Stamps},
    check::verify_time_receipt,
    header::{Body, Header},
};

use super::ledger::Ledger;
use crate::{
    history::{Finding, History, Moment, Outcome},
    shape,
    world::World,
};

/// The moment of a stamp, the size of the log that was stamped, and the anchor's own sequence.
type Stamped = (Moment, u64, u64);

/// Judges the anchors of the log, and what they say of each commit that was answered.
pub fn check(world: &World, history: &History, ledger: &Ledger) -> Result<(), Finding> {
    let mut stamped: Vec<Stamped> = Vec::new();
    for event in &ledger.events {
        if let Body::Anchor(Anchor::Stamps(stamps)) = &event.header.body {
            let sequence = event.header.sequence.0;
            for moment in moments(world, stamps).map_err(|why| format!("anchors: entry {sequence}: {why}"))? {
                stamped.push((moment, stamps.size, sequence));
            }
        }
    }
    for batch in history.batches.values() {
        for outcome in batch.attempts.iter().flatten() {
            let Outcome::Committed(committed) = outcome else { continue };
            let Ok(header) = Header::decode(&committed.header) else { continue };
            let at = header.sequence.0;
            for &(moment, size, sequence) in &stamped {
                // The batch was sequenced between its first attempt and this answer.
                if at < size && moment < batch.begin || at > sequence && moment > committed.end {
                    let (begin, end) = (batch.begin, committed.end);
                    let anchor = format!("the anchor at {sequence} stamps {size} entries at {moment}");
                    return Err(format!("anchors: entry {at} is from {begin} to {end}, and {anchor}"));
                }
            }
        }
    }
    Ok(())
}

/// The moment of each token of an anchor.
fn moments(world: &World, stamps: &Stamps) -> Result<Vec<Moment>, String> {
    let clock = &world.site.time_ledger;
    let checkpoint = stamps.checkpoint(shape::signing_key().name());
    let moment = |token: &coppice_verify::anchor::Token| {
        let header = verify_time_receipt(&token.bytes, clock.key(), &checkpoint).map_err(|error| error.to_string())?;
        clock.moment_of(&header.hash()).ok_or_else(|| "the time ledger has no such version".to_owned())
    };
    stamps.tokens.iter().map(moment).collect()
}
