//! What a `LedgerOperation` does next: a pure function, so that it is done once however often the operator is restarted.
//!
//! Before the ledger is asked, the resource's status says so (`Running`) and how long the root log was. From then on the root log decides: every
//! operation writes who asked for it into its header, and a resource asks under a name that no other has ([`principal`]). Whoever comes back to a
//! running operation looks for that header first, and asks only if it is not there. A rollback is sent with the head that it expects, so that
//! even a request that comes late is done once at most; a prune that is repeated finds its boundary reached.

use coppice_types::{ErrorKind, text::is_control};
use coppice_verify::{
    header::{Body, Header},
    principal::{CLAIM_BYTES_MAX, bounded, claim_of},
};

use crate::crd::{LedgerOperationSpec, LedgerOperationStatus, Phase};

/// What a ledger says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The newest state.
    pub epoch: i64,
    /// Its version.
    pub version: i64,
    /// The oldest version that can be read.
    pub boundary: i64,
    /// Entries of the root log.
    pub log_size: i64,
}

/// How the ledger answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done {
        /// The place in the root log, where it is recorded there.
        sequence: Option<i64>,
    },
    /// It was not done, or the answer was lost.
    Failed {
        /// What can be done about it.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

/// What is known at a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The ledger told how it stands.
    Looked(Seen),
    /// The root log from `log_size_before` on was searched for our header: its place, if it is there.
    Searched(Option<i64>),
    /// The ledger answered, and the root log was searched after that.
    Answered(Answer, Option<i64>),
}

/// What is done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// See how the ledger stands.
    Look,
    /// Search the root log.
    Search,
    /// Ask the ledger for the operation; then search.
    Ask,
    /// Write this status; then go on from it.
    Record(LedgerOperationStatus),
    /// Try again later.
    Later(String),
    /// It is over.
    Over,
}

/// The annotation that says who made a resource. The API server tells nobody who did, so it is worth what admission makes of it
/// (`docs/operator.md` has a policy that admits no other name than that of the caller).
pub const CREATED_BY: &str = "coppice.dev/created-by";
/// Between the name of a resource and its creator.
const CREATOR: &str = ", creator ";

/// Under which name a resource asks: no other resource ever has its uid.
#[must_use]
pub fn principal(namespace: &str, uid: &str) -> String {
    format!("LedgerOperation {uid} in {namespace}")
}

/// What the operator claims to the ledger: the resource, and who made it. The ledger writes the operator's own subject in front of it.
#[must_use]
pub fn claim(principal: &str, creator: Option<&str>) -> String {
    // Quotes would be escaped, and take more room.
    let plain = |c: char| if is_control(c) || matches!(c, '"' | '\\') { '?' } else { c };
    let creator: String = creator.unwrap_or("unknown").chars().map(plain).collect();
    bounded(&format!("{principal}{CREATOR}{creator}"), CLAIM_BYTES_MAX)
}

/// Whether a header is the record of this operation, whoever its creator is said to be.
#[must_use]
pub fn is_ours(header: &Header, principal: &str) -> bool {
    let recorded = match &header.body {
        Body::Rollback(rollback) => &rollback.principal,
        Body::Prune(prune) => &prune.principal,
        Body::Genesis(_) | Body::Commit | Body::Key(_) | Body::Other { .. } => return false,
    };
    let claim = claim_of(recorded);
    claim.is_some_and(|claim| claim.split_once(CREATOR).is_some_and(|(name, _)| name == principal))
}

/// Where to begin, or to go on after a restart.
#[must_use]
pub fn begin(status: &LedgerOperationStatus) -> Step {
    match status.phase {
        Phase::Pending => Step::Look,
        Phase::Running => Step::Search,
        Phase::Succeeded | Phase::Failed => Step::Over,
    }
}

/// What follows from an event.
#[must_use]
pub fn next(spec: &LedgerOperationSpec, status: &LedgerOperationStatus, event: Event) -> Step {
    match event {
        Event::Looked(seen) => looked(spec, seen),
        Event::Searched(None) => Step::Ask,
        Event::Searched(Some(sequence)) | Event::Answered(Answer::Failed { .. }, Some(sequence)) => {
            succeeded(status, Some(sequence))
        }
        Event::Answered(Answer::Done { sequence }, _) => succeeded(status, sequence),
        Event::Answered(Answer::Failed { kind, message }, None) => match kind {
            ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Conflict => {
                Step::Record(over(status, Phase::Failed, message, None))
            }
            _ => Step::Later(message),
        },
    }
}

fn succeeded(status: &LedgerOperationStatus, sequence: Option<i64>) -> Step {
    let message = match sequence {
        Some(sequence) => format!("done: entry {sequence} of the root log"),
        None => "done".to_owned(),
    };
    Step::Record(over(status, Phase::Succeeded, message, sequence))
}

fn looked(spec: &LedgerOperationSpec, seen: Seen) -> Step {
    let fresh = LedgerOperationStatus::default();
    let running = LedgerOperationStatus {
        phase: Phase::Running,
        message: "the ledger is being asked".to_owned(),
        log_size_before: Some(seen.log_size),
        ..LedgerOperationStatus::default()
    };
    match (&spec.rollback, &spec.prune) {
        (Some(rollback), _) => {
            let expected = rollback.expected_head;
            if (expected.epoch, expected.version) == (seen.epoch, seen.version) {
                return Step::Record(running);
            }
            let message = format!(
                "nothing was done: head is ({}, {}), and ({}, {}) was expected",
                seen.epoch, seen.version, expected.epoch, expected.version
            );
            Step::Record(over(&fresh, Phase::Failed, message, None))
        }
        (None, Some(prune)) if seen.boundary >= prune.before => {
            let message = format!("nothing was left to do: versions before {} are gone already", seen.boundary);
            Step::Record(over(&fresh, Phase::Succeeded, message, None))
        }
        (None, Some(_)) => Step::Record(running),
        // To transfer what was transferred is nothing: it needs no record.
        (None, None) if spec.transfer.is_some() => Step::Record(running),
        (None, None) => {
            let message = "the operation is neither a prune nor a rollback nor a transfer".to_owned();
            Step::Record(over(&fresh, Phase::Failed, message, None))
        }
    }
}

/// The time is filled in by whoever writes it.
fn over(status: &LedgerOperationStatus, phase: Phase, message: String, sequence: Option<i64>) -> LedgerOperationStatus {
    LedgerOperationStatus { phase, message, sequence, ..status.clone() }
}

#[cfg(test)]
mod tests;
