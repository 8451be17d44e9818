//! The controller of operations: carries out a `LedgerOperation`, one step at a time.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    ResourceExt,
    api::{Api, PostParams},
    runtime::{controller::Action, events::EventType, finalizer},
};

use super::context::{BUSY, Context};
use crate::{
    crd::{LedgerCluster, LedgerOperation, LedgerOperationStatus, Phase},
    error::{Error, Trying},
    ledger::Operator,
    operation::{self, Step as OperationStep},
    reconcile::{dereference, validate},
};

/// Goes on with an operation.
///
/// # Errors
/// If the API server refuses something; it is tried again.
pub async fn operation(
    operation: Arc<LedgerOperation>,
    context: Arc<Context>,
) -> Result<Action, finalizer::Error<Error>> {
    let look = Look { context: &context, resource: &operation };
    Box::pin(look.advance()).await.map_err(finalizer::Error::ApplyFailed)
}

/// One look at one operation.
struct Look<'a> {
    context: &'a Context,
    resource: &'a LedgerOperation,
}

impl Look<'_> {
    async fn advance(&self) -> Result<Action, Error> {
        let resource = self.resource;
        let status = resource.status.clone().unwrap_or_default();
        if matches!(status.phase, Phase::Succeeded | Phase::Failed) || resource.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let namespace = resource.namespace().unwrap_or_default();
        if let Err(invalid) = validate::check_name("cluster", &resource.spec.cluster) {
            return self.wait(&status, invalid.to_string()).await;
        }
        let clusters: Api<LedgerCluster> = Api::namespaced(self.context.client.clone(), &namespace);
        let found = clusters.get_opt(&resource.spec.cluster).await;
        let Some(cluster) = found.trying(|| format!("reading cluster {}", resource.spec.cluster))? else {
            return self.wait(&status, format!("there is no LedgerCluster {}", resource.spec.cluster)).await;
        };
        let now = self.context.timestamp();
        let cluster = match dereference::dereference(&self.context.client, &cluster, now.as_second()).await {
            Ok(cluster) => cluster,
            Err(Error::Blocked { message, .. }) => return self.wait(&status, message).await,
            Err(error) => return Err(error),
        };
        let principal = operation::principal(&namespace, &resource.uid().unwrap_or_default());
        let operator = Operator {
            endpoint: &cluster.facts.coordinators(),
            tls: cluster.tls.as_ref(),
            spec: &resource.spec,
            principal: &principal,
            creator: resource.annotations().get(operation::CREATED_BY).map(String::as_str),
            patience: self.context.patience,
        };
        match operator.advance(&status).await {
            Ok(OperationStep::Record(new)) => self.record(new, now).await,
            Ok(OperationStep::Later(message)) => self.wait(&status, message).await,
            Ok(_) => Ok(Action::await_change()),
            Err(error) => self.wait(&status, error.to_string()).await,
        }
    }

    /// Writes a new status, with an event if the operation is over.
    async fn record(&self, mut new: LedgerOperationStatus, now: Timestamp) -> Result<Action, Error> {
        if matches!(new.phase, Phase::Succeeded | Phase::Failed) {
            new.finished_at = Some(Time(now));
            let (type_, reason) = match new.phase {
                Phase::Succeeded => (EventType::Normal, "Succeeded"),
                _ => (EventType::Warning, "Failed"),
            };
            self.context.tell(self.resource, type_, reason, &new.message).await;
        }
        self.replace_status(new).await?;
        Ok(Action::requeue(Duration::ZERO))
    }

    /// Writes into the status what the operation waits for.
    async fn wait(&self, status: &LedgerOperationStatus, message: String) -> Result<Action, Error> {
        if status.message != message {
            self.replace_status(LedgerOperationStatus { message, ..status.clone() }).await?;
        }
        Ok(Action::requeue(BUSY))
    }

    /// Replaces the status of the resource version that was read. If the status has changed since,
    /// the API server refuses: two operators never both begin an operation.
    async fn replace_status(&self, status: LedgerOperationStatus) -> Result<(), Error> {
        let namespace = self.resource.namespace().unwrap_or_default();
        let api: Api<LedgerOperation> = Api::namespaced(self.context.client.clone(), &namespace);
        let mut new = self.resource.clone();
        new.status = Some(status);
        let name = new.name_any();
        let replaced = api.replace_status(&name, &PostParams::default(), &new).await;
        replaced.map(drop).trying(|| format!("writing the status of {name}"))
    }
}
