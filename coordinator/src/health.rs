//! Whether a coordinator can serve its role: the root group answers it, so that it can read, it has the ledger's key, so that it can sign, and
//! it leads or knows who does, so that it can write. It tells so by `grpc.health.v1.Health`, and its process by HTTP.

use std::{sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_proto::v1::ledger_server::LedgerServer;
use tokio::time::{sleep, timeout};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{exec::context::Context, service::Api};

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long the root group may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Whether it can, or why not.
pub type Readiness = Result<(), String>;

/// Keeps the answer up to date until the coordinator is told to stop.
pub async fn report(context: Arc<Context>, reporter: HealthReporter, mut stop: watch::Receiver<bool>) {
    tell(&reporter, false).await;
    tokio::select! {
        biased;
        // A dropped sender is a coordinator that is dropped.
        _ = stop.wait_for(|stop| *stop) => {}
        () = keep(&context, &reporter) => {}
    }
    drop(context.readiness.send_replace(Err("stopping".to_owned())));
    tell(&reporter, false).await;
}

async fn keep(context: &Context, reporter: &HealthReporter) {
    let mut told = false;
    loop {
        let readiness = look(context).await;
        let serving = readiness.is_ok();
        drop(context.readiness.send_replace(readiness));
        if told != serving {
            tell(reporter, serving).await;
            told = serving;
        }
        sleep(INTERVAL).await;
    }
}

async fn look(context: &Context) -> Readiness {
    match timeout(ANSWER_MAX, context.view()).await {
        Ok(Ok(_)) => {}
        Ok(Err(status)) => return Err(format!("the root group: {}", status.message())),
        Err(_) => return Err("the root group does not answer".to_owned()),
    }
    context.keys.check().map_err(|refusal| refusal.message)?;
    if context.leadership.borrow().leader.is_empty() {
        return Err("no coordinator leads".to_owned());
    }
    Ok(())
}

/// For the whole server, and for its one service.
async fn tell(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    reporter.set_service_status("", status).await;
    match serving {
        true => reporter.set_serving::<LedgerServer<Api>>().await,
        false => reporter.set_not_serving::<LedgerServer<Api>>().await,
    }
}
