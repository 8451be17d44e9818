//! The lines of an action in the access log.

use std::net::SocketAddr;

use serde::Serialize;

/// One line.
#[derive(Serialize)]
pub(super) struct Step<'a> {
    pub(super) time_ms: u64,
    pub(super) id: &'a str,
    pub(super) action: &'a str,
    pub(super) step: &'a str,
    pub(super) caller: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) claim: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vouched_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<SocketAddr>,
    pub(super) target: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) answer: &'a str,
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
