//! Prune by policy: while this coordinator leads, it drops versions that are older than the policy keeps.
//!
//! The prune is a header like any other, with the rule as its reason. Its principal is this coordinator `(by retention policy)`, which no
//! caller can claim. It never goes above a living pin. Each adds an operation to the root log for ever, so they come in steps: not before an eighth more than the
//! policy keeps has gathered, and at most one an interval.

use std::{sync::Arc, time::Duration};

use coppice_proto::v1;
use coppice_types::Version;
use coppice_verify::principal;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{Command, admin::AdminRequest, admin::Wanted, context::Context, wire};

/// In whose stead a coordinator prunes.
const RULE: &str = "retention policy";
/// Versions beyond those kept that are worth a prune, at least.
const STEP_VERSIONS_MIN: u64 = 16;
/// Which part of what is kept gathers before it is pruned.
const STEP_PART: u32 = 8;

/// Which versions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// At least this many of the newest versions.
    Versions(u64),
    /// Every version that was head within this time, by the headers' timestamps.
    Age(Duration),
}

impl Retention {
    /// The rule as the root log says it.
    fn rule(self) -> String {
        match self {
            Self::Versions(count) => format!("keep the newest {count} versions"),
            Self::Age(age) => format!("keep what was head in the last {} s", age.as_secs()),
        }
    }
}

/// Prunes whenever this coordinator leads and the policy says so; ends when nobody takes commands any more.
pub async fn run(context: Arc<Context>, retention: Retention, commands: mpsc::Sender<Command>) {
    loop {
        tokio::select! {
            biased;
            () = commands.closed() => return,
            () = tokio::time::sleep(context.limits.retention_interval) => {}
        }
        if context.leadership.borrow().term.is_none() {
            continue;
        }
        match boundary(&context, retention).await {
            Ok(Some(boundary)) => prune(&context, retention, boundary, &commands).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the retention policy waits"),
        }
    }
}

async fn prune(context: &Context, retention: Retention, boundary: Version, commands: &mpsc::Sender<Command>) {
    let (reply, receive) = oneshot::channel();
    let request = AdminRequest {
        wanted: Wanted::Prune(boundary),
        principal: principal::by_rule(&context.own_name(), RULE),
        reason: retention.rule(),
        expected_head: None,
        reply,
    };
    if commands.send(Command::Admin(request)).await.is_err() {
        return;
    }
    match tokio::time::timeout(context.limits.admin_timeout, receive).await {
        Ok(Ok(Ok(_))) => tracing::info!(%boundary, rule = retention.rule(), "old versions were pruned"),
        Ok(Ok(Err(error))) => tracing::warn!(%error, %boundary, "the retention policy could not prune"),
        Ok(Err(_)) | Err(_) => tracing::debug!(%boundary, "a prune by policy has an unknown outcome"),
    }
}

/// The oldest version to keep, if it is worth a prune.
async fn boundary(context: &Context, retention: Retention) -> Result<Option<Version>, Status> {
    let view = context.view().await?;
    let (head, boundary) = (view.head().version.0, view.boundary.0);
    let wanted = match retention {
        Retention::Versions(count) => {
            let step = (count / u64::from(STEP_PART)).max(STEP_VERSIONS_MIN);
            let first = (head + 1).saturating_sub(count.max(1));
            (first >= boundary + step).then_some(first)
        }
        Retention::Age(age) => {
            let now_ms = context.clock.wall_ms();
            let before = |age: Duration| now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            let due = head_at(context, boundary, head, before(age + age / STEP_PART)).await?;
            if due > boundary { Some(head_at(context, due, head, before(age)).await?) } else { None }
        }
    };
    let pinned = view.oldest_pin.as_ref().map_or(u64::MAX, |pin| pin.version);
    Ok(wanted.map(|wanted| wanted.min(pinned)).filter(|wanted| *wanted > boundary).map(Version))
}

/// The version from `low` to `high` that was head at a time: the newest whose header is not younger; else `low`. Timestamps never
/// decrease, so it is found by halving.
async fn head_at(context: &Context, low: u64, high: u64, time_ms: u64) -> Result<u64, Status> {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = high - (high - low) / 2;
        let read = v1::read_root_request::Read::Version(v1::VersionRead { version: middle, epoch: None });
        let answer = context.root.read(read).await?;
        if wire::header_in(&answer.header)?.timestamp_ms <= time_ms {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}
