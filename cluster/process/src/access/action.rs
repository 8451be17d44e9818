//! Actions of administrators in the access log: the caller, the address, the action, and its
//! outcome.
//!
//! An action has two lines with one `id`. `asked` is on disk before the effect begins. `done` or
//! `failed` is written before the caller gets its answer, or `left` if the caller did not wait. A
//! crash in between leaves only `asked`; then the root log shows whether the operation was done.
//!
//! Calls between processes of the cluster (taking over, changing members) have one line, after
//! their effect. They don't wait for it, since they are part of a failover. A refusal that only
//! names the leader has no line.
//!
//! A forwarded request has lines with both coordinators. Those of the leader name the coordinator
//! that vouched for the caller.

use std::sync::atomic::{AtomicU64, Ordering};

use coppice_proto::status;
use coppice_types::{Reason, text::is_control};
use coppice_verify::principal::bounded;
use tonic::Status;

use super::{caller::Caller, log::AccessLog, step::Step};

/// Longest text from a request in a line, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// The requested action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// `prune`, `rollback`, and so on.
    pub what: &'static str,
    /// The object of the action.
    pub target: String,
    /// The reason that the caller gives.
    pub reason: String,
    /// The name that the caller gives itself.
    pub claim: String,
}

impl Action {
    #[must_use]
    pub fn new(what: &'static str, target: String) -> Self {
        Self { what, target, ..Self::default() }
    }

    /// Adds the reason and the name that the caller gives.
    #[must_use]
    pub fn because(self, reason: &str, claim: &str) -> Self {
        Self { reason: reason.to_owned(), claim: claim.to_owned(), ..self }
    }
}

/// An action whose last line is not written yet.
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
        // An id that is unique across restarts, too.
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

/// Records an action of another process of the cluster, once it is done.
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

/// Does an action, with a line before and one after. Without an access log (in simulations and
/// `coppice dev`), no lines are written.
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

/// The text of an error for a line.
fn told(error: &Status) -> String {
    let reason = status::reason(error).map_or_else(|| format!("{:?}", error.code()), |reason| reason.to_string());
    shown(&format!("{reason}: {}", error.message()))
}

/// Cuts a text to the limit, and replaces characters that are not shown as themselves.
fn shown(text: &str) -> String {
    let text: String = text.chars().map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    bounded(&text, TEXT_BYTES_MAX)
}
