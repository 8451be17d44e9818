//! The next step of a `LedgerOperation`, as a pure function. Each operation is carried out once,
//! however often the operator restarts.
//!
//! Before the ledger is asked, the resource's status is set to `Running` and records the size of
//! the root log. From then on the root log decides. Every operation's header names its principal,
//! and each resource has a principal that no other has ([`principal`]). An operator that finds a
//! running operation therefore searches for that header first, and asks only if there is none.
//!
//! A rollback is sent with the head that it expects, so that even a delayed request takes effect at
//! most once. A repeated prune finds its boundary already reached.

use coppice_types::{ErrorKind, text::is_control};
use coppice_verify::{
    header::{Body, Header},
    principal::{CLAIM_BYTES_MAX, bounded, claim_of},
};

use crate::crd::{LedgerOperationSpec, LedgerOperationStatus, Phase};

/// The ledger's position, as the ledger reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub epoch: i64,
    pub version: i64,
    /// The oldest version that can be read.
    pub boundary: i64,
    /// The number of entries of the root log.
    pub log_size: i64,
}

/// The ledger's answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The operation was carried out.
    Done {
        /// The place of its header in the root log, if the operation is recorded there.
        sequence: Option<i64>,
    },
    /// The operation was refused, or its answer was lost.
    Failed {
        /// The kind of the error, which says how to go on.
        kind: ErrorKind,
        message: String,
    },
}

/// An event that the operation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The ledger reported its state.
    Looked(Seen),
    /// The root log was searched for our header from `log_size_before` on: its place, if it was
    /// found.
    Searched(Option<i64>),
    /// The ledger answered, and the root log was searched after that.
    Answered(Answer, Option<i64>),
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask the ledger for its state.
    Look,
    /// Search the root log.
    Search,
    /// Ask the ledger for the operation; then search.
    Ask,
    /// Write this status; then go on from it.
    Record(LedgerOperationStatus),
    /// Try again later.
    Later(String),
    /// The operation is over.
    Over,
}

/// The annotation that names a resource's creator. The API server does not reveal the creator, so
/// the annotation is as trustworthy as admission makes it: `docs/operator.md` has a policy that
/// admits only the caller's own name.
pub const CREATED_BY: &str = "coppice.dev/created-by";
/// Separates the resource's name from its creator.
const CREATOR: &str = ", creator ";

/// The principal of a resource. It contains the uid, so no other resource ever has the same.
#[must_use]
pub fn principal(namespace: &str, uid: &str) -> String {
    format!("LedgerOperation {uid} in {namespace}")
}

/// The claim that the operator makes to the ledger: the resource and its creator. The ledger writes
/// the operator's own subject in front of it.
#[must_use]
pub fn claim(principal: &str, creator: Option<&str>) -> String {
    // Quotes would be escaped, and take more room.
    let plain = |c: char| if is_control(c) || matches!(c, '"' | '\\') { '?' } else { c };
    let creator: String = creator.unwrap_or("unknown").chars().map(plain).collect();
    bounded(&format!("{principal}{CREATOR}{creator}"), CLAIM_BYTES_MAX)
}

/// Whether a header is the record of this operation. The creator that it names does not matter.
#[must_use]
pub fn is_ours(header: &Header, principal: &str) -> bool {
    let recorded = match &header.body {
        Body::Rollback(rollback) => &rollback.principal,
        Body::Prune(prune) => &prune.principal,
        Body::Genesis(_) | Body::Commit | Body::Key(_) | Body::Anchor(_) | Body::Other { .. } => return false,
    };
    let claim = claim_of(recorded);
    claim.is_some_and(|claim| claim.split_once(CREATOR).is_some_and(|(name, _)| name == principal))
}

/// The first step, at the beginning or after a restart.
#[must_use]
pub fn begin(status: &LedgerOperationStatus) -> Step {
    match status.phase {
        Phase::Pending => Step::Look,
        Phase::Running => Step::Search,
        Phase::Succeeded | Phase::Failed => Step::Over,
    }
}

/// The step that follows an event.
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
        // A transfer that is already done needs no record.
        (None, None) if spec.transfer.is_some() => Step::Record(running),
        (None, None) => {
            let message = "the operation is neither a prune nor a rollback nor a transfer".to_owned();
            Step::Record(over(&fresh, Phase::Failed, message, None))
        }
    }
}

/// Makes a final status; the caller adds the time.
fn over(status: &LedgerOperationStatus, phase: Phase, message: String, sequence: Option<i64>) -> LedgerOperationStatus {
    LedgerOperationStatus { phase, message, sequence, ..status.clone() }
}

#[cfg(test)]
mod tests;
