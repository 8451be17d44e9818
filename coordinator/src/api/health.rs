//! The readiness of a coordinator. It can read if the root group answers, sign if it holds the
//! ledger's key, and write if it leads or knows the leader. Clients see the result over
//! `grpc.health.v1.Health`, and probes over HTTP.

use std::{sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_proto::v1::ledger_server::LedgerServer;
use tokio::time::{sleep, timeout};
use tonic_health::{ServingStatus, server::HealthReporter};

use super::service::Api;
use crate::{
    groups::root_log::RootLog,
    shown::{Readiness, Shown},
};

/// How often readiness is checked.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long the root group may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Keeps the reported status up to date until the coordinator is told to stop.
pub async fn report(log: Arc<RootLog>, shown: Arc<Shown>, reporter: HealthReporter, mut stop: watch::Receiver<bool>) {
    tell(&reporter, false).await;
    tokio::select! {
        biased;
        // A dropped sender means that the coordinator was dropped.
        _ = stop.wait_for(|stop| *stop) => {}
        () = keep(&log, &shown, &reporter) => {}
    }
    drop(shown.readiness.send_replace(Err("stopping".to_owned())));
    tell(&reporter, false).await;
}

async fn keep(log: &RootLog, shown: &Shown, reporter: &HealthReporter) {
    let mut told = false;
    loop {
        let readiness = look(log, shown).await;
        let serving = readiness.is_ok();
        drop(shown.readiness.send_replace(readiness));
        if told != serving {
            tell(reporter, serving).await;
            told = serving;
        }
        sleep(INTERVAL).await;
    }
}

async fn look(log: &RootLog, shown: &Shown) -> Readiness {
    match timeout(ANSWER_MAX, log.view()).await {
        Ok(Ok(_)) => {}
        Ok(Err(status)) => return Err(format!("the root group: {}", status.message())),
        Err(_) => return Err("the root group does not answer".to_owned()),
    }
    log.keys.check().map_err(|refusal| refusal.message)?;
    if shown.leadership.borrow().leader.is_empty() {
        return Err("no coordinator leads".to_owned());
    }
    Ok(())
}

/// Reports the status of the whole server, and of its one service.
async fn tell(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    reporter.set_service_status("", status).await;
    match serving {
        true => reporter.set_serving::<LedgerServer<Api>>().await,
        false => reporter.set_not_serving::<LedgerServer<Api>>().await,
    }
}
