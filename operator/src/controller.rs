//! The controllers: one for clusters, one for operations. Both run only while this process holds
//! the lease.

mod cluster;
mod context;
mod leaders;
mod operation;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use coppice_env::{Clock, SystemClock};
use coppice_types::chain;
use futures::StreamExt;
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease};
use kube::{
    Client, Resource,
    api::Api,
    runtime::{
        Controller,
        controller::Action,
        events::{Recorder, Reporter},
        finalizer, watcher,
    },
};
use tokio::time::Instant;

pub use self::{
    cluster::cluster,
    context::Context,
    operation::operation,
    plan::{Plan, plan},
};
use self::{
    context::{AFTER_ERROR, PATIENCE},
    leaders::Uneven,
};
use crate::{
    crd::{LedgerCluster, LedgerOperation},
    error::Error,
    lease::{self, Candidate},
    reconcile::build::MANAGER,
};

/// The settings of the operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The watched namespace; `None` watches all.
    pub namespace: Option<String>,
    /// The namespace of the lease.
    pub lease_namespace: String,
    /// A name that no other operator has: the pod's name.
    pub identity: String,
}

/// Waits for the lease, and works until it is lost or `stop` resolves.
///
/// # Errors
/// If the lease was lost. The process then ends, and waits for the lease again when it is
/// restarted.
pub async fn run(client: Client, options: Options, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let leases: Api<Lease> = Api::namespaced(client.clone(), &options.lease_namespace);
    let mut candidate = Candidate::new(MANAGER, &options.identity);
    tokio::pin!(stop);
    tracing::info!(identity = options.identity, "waiting for the lease");
    let held_since = loop {
        let began = Instant::now();
        match tokio::time::timeout(lease::RENEW_DEADLINE, candidate.try_hold(&leases, clock.as_ref())).await {
            Ok(Ok(true)) => break began,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease could not be asked for"),
            Err(_) => tracing::warn!("the lease could not be asked for in time"),
        }
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(lease::RETRY) => {}
        }
    };
    tracing::info!("holding the lease");
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(options.identity.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let context = Arc::new(Context {
        client,
        recorder,
        clock: Arc::clone(&clock),
        patience: PATIENCE,
        uneven: Uneven::default(),
    });
    tokio::select! {
        () = work(context, options.namespace.as_deref()) => Ok(()),
        () = &mut stop => Ok(()),
        error = keep(&mut candidate, &leases, clock.as_ref(), held_since) => Err(error),
    }
}

/// Renews the lease. Returns when no renewal succeeded for `RENEW_DEADLINE`, counted from the start
/// of the last successful one.
async fn keep(candidate: &mut Candidate, leases: &Api<Lease>, clock: &dyn Clock, held_since: Instant) -> Error {
    let mut until = held_since + lease::RENEW_DEADLINE;
    loop {
        tokio::time::sleep(lease::RETRY).await;
        let began = Instant::now();
        match tokio::time::timeout_at(until, candidate.try_hold(leases, clock)).await {
            Ok(Ok(true)) => until = began + lease::RENEW_DEADLINE,
            Ok(Ok(false)) => return Error::blocked("LeaseLost", "another operator holds the lease"),
            Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed"),
            Err(_) => return Error::blocked("LeaseLost", "the lease could not be renewed in time"),
        }
    }
}

async fn work(context: Arc<Context>, namespace: Option<&str>) {
    let client = context.client.clone();
    let config = watcher::Config::default;
    let managed = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
    let clusters = Controller::new(api::<LedgerCluster>(&client, namespace), config())
        .owns(api::<StatefulSet>(&client, namespace), managed)
        .run(cluster, |_, error, _| failed(error), Arc::clone(&context))
        .for_each(|_| std::future::ready(()));
    let operations = Controller::new(api::<LedgerOperation>(&client, namespace), config())
        .run(operation, |_, error, _| failed(error), context)
        .for_each(|_| std::future::ready(()));
    tokio::join!(clusters, operations);
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn failed(error: &finalizer::Error<Error>) -> Action {
    tracing::warn!(error = chain(error), "a reconciliation failed");
    Action::requeue(AFTER_ERROR)
}
