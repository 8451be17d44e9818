//! Judges batches. Each acknowledged batch stands where its client was told. No batch is applied
//! twice, or against its conditions, and no refused batch is applied.

use std::collections::BTreeMap;

use coppice_verify::header::Body;

use super::ledger::Ledger;
use crate::history::{BatchId, Committed, Finding, History, Outcome};

/// The places of batches: entry of the log, and index in its journal.
pub type Placed = BTreeMap<BatchId, (usize, u32)>;

/// Compares the answers to clients with the log. Returns the place of each batch.
pub fn check(history: &History, ledger: &Ledger) -> Result<Placed, Finding> {
    let mut placed = Placed::new();
    for (sequence, event) in ledger.events.iter().enumerate() {
        for &(index, id) in &event.batches {
            if placed.insert(id, (sequence, index)).is_some() {
                return Err(format!("commits: batch {id:x} was applied twice"));
            }
        }
    }
    for (&id, batch) in &history.batches {
        let place = placed.get(&id).copied();
        for attempt in batch.attempts.iter().flatten() {
            match attempt {
                Outcome::Committed(committed) => check_committed(id, committed, place, ledger)?,
                Outcome::RolledBack => check_rolled_back(id, place, ledger)?,
                Outcome::Refused(_) | Outcome::Unknown => {}
            }
        }
        let refused = |attempt: &Option<Outcome>| matches!(attempt, Some(Outcome::Refused(_)));
        if place.is_some() && batch.attempts.iter().all(refused) {
            return Err(format!("commits: batch {id:x} is in the log, but every attempt was refused"));
        }
        if let (Some((sequence, _)), Some(staged)) = (place, history.staged.get(&id)) {
            let header = &ledger.events[sequence].header;
            if header.stamp != staged.stamp || header.state_root != staged.state_root {
                return Err(format!("commits: stage {id:x} was finalized as a different version than was staged"));
            }
        }
    }
    Ok(placed)
}

fn check_committed(id: BatchId, told: &Committed, place: Option<(usize, u32)>, ledger: &Ledger) -> Result<(), Finding> {
    let Some((sequence, index)) = place else {
        return Err(format!("commits: acknowledged batch {id:x} at {} is lost", told.stamp));
    };
    let event = &ledger.events[sequence];
    if event.bytes[..] != told.header[..] || event.header.stamp != told.stamp || index != told.index {
        return Err(format!(
            "commits: batch {id:x} was acknowledged at {}, but stands at {}",
            told.stamp, event.header.stamp
        ));
    }
    Ok(())
}

fn check_rolled_back(id: BatchId, place: Option<(usize, u32)>, ledger: &Ledger) -> Result<(), Finding> {
    let Some((sequence, _)) = place else {
        return Err(format!("commits: batch {id:x} is said to be rolled back, but never was in the log"));
    };
    let version = ledger.events[sequence].header.stamp.version;
    let mut later = ledger.events[sequence..].iter();
    let dead = later.any(|event| matches!(&event.header.body, Body::Rollback(to) if to.target.version < version));
    if dead { Ok(()) } else { Err(format!("commits: batch {id:x} is said to be rolled back, but stands")) }
}
