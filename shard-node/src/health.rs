//! Whether a node can serve its role, for whoever asks by `grpc.health.v1.Health`: each of its replicas votes, and knows a leader.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
    time::Duration,
};

use coppice_types::GroupId;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::hosted::{Hosted, Replica};

/// How often the replicas are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Keeps the answer up to date until the node ends.
pub(crate) async fn report(hosted: Arc<Hosted>, reporter: HealthReporter) {
    let mut closing = hosted.closing.subscribe();
    let mut told = None;
    loop {
        let serving = serves(&hosted);
        if told != Some(serving) {
            let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status("", status).await;
            told = Some(serving);
        }
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    reporter.set_service_status("", ServingStatus::NotServing).await;
}

fn serves(hosted: &Hosted) -> bool {
    let replicas = hosted.all();
    let expected: BTreeSet<GroupId> =
        hosted.forming.read().unwrap_or_else(PoisonError::into_inner).expected.iter().copied().collect();
    !replicas.is_empty() && expected.iter().all(|group| replicas.contains_key(group)) && replicas.values().all(votes)
}

fn votes(replica: &Replica) -> bool {
    let status = replica.status();
    matches!(status.role, "leader" | "follower") && status.leader != 0
}
