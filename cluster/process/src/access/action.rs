//! Actions of administrators in the access log: who, for whom, from where, what, and what became of it.
//!
//! An action has two lines with one `id`. `asked` is on the disk before the effect begins; `done` or `failed` follows before the caller hears of
//! it, and `left` if the caller did not wait. A crash in between leaves `asked` alone: the root log then tells whether the operation was done.
//! What processes of the cluster ask of each other (to take over, to change members) has one line after its effect, which nobody waits for: it is
//! part of a failover. A refusal that only names the leader has none.
//!
//! A forwarded request has lines with both coordinators; those of the leader name the coordinator that vouched for the caller.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use coppice_proto::status;
use coppice_types::{Reason, text::is_control};
use coppice_verify::principal::bounded;
use serde::Serialize;
use tonic::Status;

use super::{AccessLog, Caller};

/// Longest text of a request that is written, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// `prune`, `rollback`, and so on.
    pub what: &'static str,
    /// What it is done to.
    pub target: String,
    /// Why, as the caller says.
    pub reason: String,
    /// The caller, as it calls itself.
    pub claim: String,
}

impl Action {
    /// An action on something.
    #[must_use]
    pub fn new(what: &'static str, target: String) -> Self {
        Self { what, target, ..Self::default() }
    }

    /// Also with a reason, and who the caller says it is.
    #[must_use]
    pub fn because(self, reason: &str, claim: &str) -> Self {
        Self { reason: reason.to_owned(), claim: claim.to_owned(), ..self }
    }
}

/// One line.
#[derive(Serialize)]
pub(super) struct Step<'a> {
    time_ms: u64,
    id: &'a str,
    action: &'a str,
    step: &'a str,
    caller: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    claim: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vouched_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    target: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    answer: &'a str,
}

impl Step<'_> {
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("a line has texts and numbers only")
    }

    pub(super) fn log(&self) {
        let Self { id, action, step, caller, claim, target, reason, answer, .. } = self;
        let (from, vouched_by) = (self.address.map(tracing::field::display), self.vouched_by);
        tracing::info!(
            target: "coppice_access", id, action, step, caller, claim, vouched_by, from, to = target, reason, answer, "an action of an administrator"
        );
    }

    pub(super) fn not_written(&self) {
        tracing::error!(target: "coppice_access", line = self.json(), "a line of the access log was not written in time");
    }
}

/// An action whose end was not written yet.
struct Open<'a> {
    log: &'a AccessLog,
    id: String,
    action: Action,
    name: String,
    caller: &'a Caller,
    over: bool,
}

impl<'a> Open<'a> {
    fn new(log: &'a AccessLog, caller: &'a Caller, action: Action) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Action { what, target, reason, claim } = action;
        let action = Action { what, target: shown(&target), reason: shown(&reason), claim: shown(&claim) };
        // Unique over restarts, too.
        let id = format!("{}-{}", log.now_ms(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { log, id, action, name: caller.name.to_string(), caller, over: false }
    }
}

impl Open<'_> {
    fn step<'a>(&'a self, step: &'a str, answer: &'a str) -> Step<'a> {
        let Self { log, id, action: Action { what, target, reason, claim }, name, caller, .. } = self;
        let (time_ms, vouched_by) = (log.now_ms(), caller.voucher.as_deref());
        let address = caller.address;
        Step { time_ms, id, action: what, step, caller: name, claim, vouched_by, address, target, reason, answer }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.log.post(&self.step("left", "the caller did not wait for the answer"));
        }
    }
}

/// Takes note of what one process of the cluster has asked of this one.
pub fn noted<T>(log: Option<&AccessLog>, caller: &Caller, action: Action, answer: &Result<T, Status>) {
    let Some(log) = log else { return };
    if answer.as_ref().is_err_and(|error| status::reason(error) == Some(Reason::NotLeader)) {
        return;
    }
    let mut open = Open::new(log, caller, action);
    open.over = true;
    match answer {
        Ok(_) => log.post(&open.step("done", "")),
        Err(error) => log.post(&open.step("failed", &told(error))),
    }
}

/// Does an action, with a line before and one after. Without an access log (in simulations, `coppice dev`) it is only done.
///
/// # Errors
/// Those of the work.
pub async fn recorded<T>(
    log: Option<&AccessLog>,
    caller: &Caller,
    action: Action,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(log) = log else { return work.await };
    let mut open = Open::new(log, caller, action);
    log.write(&open.step("asked", "")).await;
    let answer = work.await;
    open.over = true;
    match &answer {
        Ok(_) => log.write(&open.step("done", "")).await,
        Err(error) => log.write(&open.step("failed", &told(error))).await,
    }
    answer
}

/// An answer in words.
fn told(error: &Status) -> String {
    let reason = status::reason(error).map_or_else(|| format!("{:?}", error.code()), |reason| reason.to_string());
    shown(&format!("{reason}: {}", error.message()))
}

/// A text in bounds, with nothing that is not shown as itself.
fn shown(text: &str) -> String {
    let text: String = text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    bounded(&text, TEXT_BYTES_MAX)
}
