//! Prune by policy: while this coordinator leads, it prunes versions that are older than the rule
//! keeps.
//!
//! The prune is a header like any other, with the rule as its reason. Its principal is this
//! coordinator `(by retention policy)`, which no caller can claim. A prune never goes above a
//! living pin.
//!
//! Each prune adds an operation to the root log for ever, so prunes come in steps. A prune waits
//! until the log has an eighth more than the rule keeps, and there is at most one in each interval.

use std::{sync::Arc, time::Duration};

use coppice_proto::v1;
use coppice_types::Version;
use coppice_verify::principal;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{
    command::{AdminRequest, Command, Wanted},
    resources::Resources,
};
use crate::{
    groups::{root_log::RootLog, wire},
    options::Retention,
    shown::Shown,
};

/// The name of the rule in the principal of a prune.
const RULE: &str = "retention policy";
/// Minimum number of versions, beyond the kept ones, that is worth a prune.
const STEP_VERSIONS_MIN: u64 = 16;
/// A prune waits for 1/STEP_PART more versions than the rule keeps.
const STEP_PART: u32 = 8;

/// Prunes whenever this coordinator leads and the rule asks for it. Ends when the command channel
/// closes.
pub async fn run(shown: Arc<Shown>, resources: Resources, retention: Retention, commands: mpsc::Sender<Command>) {
    loop {
        tokio::select! {
            biased;
            () = commands.closed() => return,
            () = tokio::time::sleep(resources.limits.retention_interval) => {}
        }
        if !shown.leads() {
            continue;
        }
        match boundary(&resources, retention).await {
            Ok(Some(boundary)) => {
                let principal = principal::by_rule(&shown.own_name(), RULE);
                prune(principal, retention, boundary, &commands, resources.limits.admin_timeout).await;
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the retention policy waits"),
        }
    }
}

async fn prune(
    principal: String,
    retention: Retention,
    boundary: Version,
    commands: &mpsc::Sender<Command>,
    timeout: Duration,
) {
    let (reply, receive) = oneshot::channel();
    let request = AdminRequest {
        wanted: Wanted::Prune(boundary),
        principal,
        reason: retention.rule(),
        expected_head: None,
        reply,
    };
    if commands.send(Command::Admin(request)).await.is_err() {
        return;
    }
    match tokio::time::timeout(timeout, receive).await {
        Ok(Ok(Ok(_))) => tracing::info!(%boundary, rule = retention.rule(), "old versions were pruned"),
        Ok(Ok(Err(error))) => tracing::warn!(%error, %boundary, "the retention policy could not prune"),
        Ok(Err(_)) | Err(_) => tracing::debug!(%boundary, "a prune by policy has an unknown outcome"),
    }
}

/// The oldest version to keep. `None` if pruning up to it is not worth while.
async fn boundary(Resources { log, clock, .. }: &Resources, retention: Retention) -> Result<Option<Version>, Status> {
    let view = log.view().await?;
    let (head, boundary) = (view.head().version.0, view.boundary.0);
    let wanted = match retention {
        Retention::Versions(count) => {
            let step = (count / u64::from(STEP_PART)).max(STEP_VERSIONS_MIN);
            let first = (head + 1).saturating_sub(count.max(1));
            (first >= boundary + step).then_some(first)
        }
        Retention::Age(age) => {
            let now_ms = clock.wall_ms();
            let before = |age: Duration| now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            let due = head_at(log, boundary, head, before(age + age / STEP_PART)).await?;
            if due > boundary { Some(head_at(log, due, head, before(age)).await?) } else { None }
        }
    };
    let pinned = view.oldest_pin.as_ref().map_or(u64::MAX, |pin| pin.version);
    Ok(wanted.map(|wanted| wanted.min(pinned)).filter(|wanted| *wanted > boundary).map(Version))
}

/// The version from `low` to `high` that was head at a time: the newest one whose header is not
/// younger, or `low` if there is none. Timestamps never decrease, so it is found by bisection.
async fn head_at(log: &RootLog, low: u64, high: u64, time_ms: u64) -> Result<u64, Status> {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = high - (high - low) / 2;
        let read =
            v1::read_root_request::Read::Version(v1::VersionRead { version: middle, epoch: None, header_only: false });
        let answer = log.root.read(read).await?;
        if wire::header_in(&answer.header)?.timestamp_ms <= time_ms {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}
