//! The controllers: one for clusters, one for operations, both only while this process holds the lease.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_env::{Clock, SystemClock};
use coppice_types::chain;
use futures::StreamExt;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, coordination::v1::Lease},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, Patch, PatchParams},
    runtime::{
        Controller,
        controller::Action,
        events::{Event, EventType, Recorder, Reporter},
        finalizer, watcher,
    },
};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    crd::{LedgerCluster, LedgerClusterStatus, LedgerOperation, LedgerOperationStatus, Phase, VolumePolicy},
    error::{Error, Trying},
    lease::{self, Candidate, timestamp},
    ledger::{self, Operator, Report},
    operation::{self, Step as OperationStep},
    reconcile::{
        apply,
        build::{self, Facts, MANAGER, Role},
        dereference::{
            self, Dereferenced,
            authority::{self, Stage},
        },
        observe::{Observed, node_groups},
        status::{self, Outcome},
        validate,
    },
    rollout::{self, Fleet, State, Step},
};

/// The finalizer of clusters: volumes go, if they are to go, before the resource does.
const FINALIZER: &str = "coppice.dev/volumes";
/// How long a ledger may take to tell how it stands: time to find one coordinator dead, and to ask another.
const PATIENCE: Duration = Duration::from_secs(6);
/// How often a cluster is looked at in which nothing is under way.
const QUIET: Duration = Duration::from_secs(30);
/// How often one is looked at that isn't ready, or an operation that isn't over.
const BUSY: Duration = Duration::from_secs(3);
/// Leaders are unevenly spread for so long before one is moved, and as long before the next one is.
const SPREAD_AFTER: Duration = Duration::from_secs(60);
/// How long after an error.
const AFTER_ERROR: Duration = Duration::from_secs(10);

/// What every reconciliation needs.
pub struct Context {
    client: Client,
    recorder: Recorder,
    clock: Arc<dyn Clock>,
    /// How long a ledger may take to answer: one without a leader must not hold up the others.
    patience: Duration,
    /// By the uid of a cluster whose leaders are unevenly spread: since when, or when one was moved last.
    uneven: Mutex<BTreeMap<String, Duration>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Watched; all namespaces, if it isn't given.
    pub namespace: Option<String>,
    /// Where the lease lies.
    pub lease_namespace: String,
    /// Unlike that of any other operator: the pod's name.
    pub identity: String,
}

/// Waits for the lease, and works until it is lost or `stop` resolves.
///
/// # Errors
/// If the lease was lost: the process ends, and its next start waits for it again.
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
    let context =
        Arc::new(Context { client, recorder, clock: Arc::clone(&clock), patience: PATIENCE, uneven: Mutex::default() });
    tokio::select! {
        () = work(context, options.namespace.as_deref()) => Ok(()),
        () = &mut stop => Ok(()),
        error = keep(&mut candidate, &leases, clock.as_ref(), held_since) => Err(error),
    }
}

/// Renews the lease; ends when that did not work for too long, counted from when the last renewal was asked for.
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

/// Makes a cluster true, or cleans up behind it.
///
/// # Errors
/// If the API server refuses something; it is tried again.
pub async fn cluster(cluster: Arc<LedgerCluster>, context: Arc<Context>) -> Result<Action, finalizer::Error<Error>> {
    let clusters: Api<LedgerCluster> =
        Api::namespaced(context.client.clone(), &cluster.namespace().unwrap_or_default());
    finalizer::finalizer(&clusters, FINALIZER, cluster, |event| async {
        match event {
            finalizer::Event::Apply(cluster) => context.reconcile(&cluster).await,
            finalizer::Event::Cleanup(cluster) => {
                let words = match cluster.spec.volume_policy {
                    VolumePolicy::Retain => "volumes and signing key stay: a cluster of this name takes them up again",
                    VolumePolicy::Delete => "volumes and signing key go, as spec.volumePolicy says",
                };
                context.tell(cluster.as_ref(), EventType::Normal, "Deleting", words).await;
                context.is_due(cluster.uid().unwrap_or_default(), false);
                apply::clean_up(&context.client, &cluster).await.map(|()| Action::await_change())
            }
        }
    })
    .await
}

impl Context {
    async fn reconcile(&self, cluster: &LedgerCluster) -> Result<Action, Error> {
        match self.carry_out(cluster).await {
            Ok(action) => Ok(action),
            Err(error @ (Error::Blocked { .. } | Error::Certificate(_))) => {
                let (reason, message) = (error.reason(), error.to_string());
                self.tell(cluster, EventType::Warning, reason, &message).await;
                let status = status::blocked(cluster, reason, &message, timestamp(self.clock.as_ref()));
                self.write_status(cluster, &status).await?;
                Ok(Action::requeue(AFTER_ERROR))
            }
            Err(error) => {
                self.tell(cluster, EventType::Warning, error.reason(), &chain(&error)).await;
                Err(error)
            }
        }
    }

    async fn carry_out(&self, cluster: &LedgerCluster) -> Result<Action, Error> {
        let now = timestamp(self.clock.as_ref());
        let found = dereference::dereference(&self.client, cluster, now.as_second()).await?;
        let observed = apply::observe(&self.client, &found.facts).await?;
        if !cluster.spec.paused {
            let objects = build::build(&found.facts);
            apply::apply(&self.client, &found.facts, &objects, &observed).await?;
        }
        // Once more, with the revisions that follow from what was applied; and before the ledger is asked, so that its report is the newer one.
        let observed = apply::observe(&self.client, &found.facts).await?;
        let report = self.report(&found).await;
        let whole = |report: &Report| node_groups(&found.facts, report).iter().all(|group| group.led);
        // Not before each group was formed: a node that may no longer found any would wait for it for ever.
        if !found.facts.founded && report.as_ref().is_some_and(whole) {
            dereference::mark_founded(&self.client, &found.facts).await?;
            self.tell(cluster, EventType::Normal, "Founded", "the ledger takes commits").await;
        }
        let fleets = fleets(&found.facts, &observed, report.as_ref(), now);
        let progress =
            if cluster.spec.paused { None } else { self.roll_on(cluster, &found, &observed, &fleets).await? };
        let busy = progress.is_some();
        let outcome = Outcome { found: &found, fleets: &fleets, report: report.as_ref(), progress };
        let status = status::status(cluster, &outcome, now);
        let ready = status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        self.write_status(cluster, &status).await?;
        if ready && !busy && !cluster.spec.paused {
            self.spread(cluster, &found, &fleets).await;
        }
        Ok(Action::requeue(if ready && !busy { QUIET } else { BUSY }))
    }

    /// Moves one leadership if leaders are unevenly spread, and were so for a while. What does not work is tried again.
    async fn spread(&self, cluster: &LedgerCluster, found: &Dereferenced, fleets: &[(Role, Fleet)]) {
        let nodes = fleets.iter().find(|(role, _)| *role == Role::Node).map(|(_, fleet)| fleet);
        let wanted = nodes.and_then(|nodes| Some((nodes, rollout::spread(nodes)?)));
        let uid = cluster.uid().unwrap_or_default();
        if !self.is_due(uid, wanted.is_some()) {
            return;
        }
        let Some((nodes, handover)) = wanted else { return };
        let (from, to) = (&nodes.members[handover.from].name, &nodes.members[handover.to].name);
        let endpoint = found.facts.coordinators();
        let asked = ledger::hand_over(&endpoint, found.tls.as_ref(), (&handover.group, to), self.patience).await;
        match asked {
            Ok(()) => {
                let words = format!("{to} leads {} now: {from} led more shards than the others", handover.group);
                self.tell(cluster, EventType::Normal, "LeaderMoved", &words).await;
            }
            Err(error) => tracing::warn!(group = handover.group, to, %error, "a leadership could not be moved"),
        }
    }

    /// Whether leaders have been unevenly spread for long enough.
    fn is_due(&self, uid: String, is_uneven: bool) -> bool {
        let now = self.clock.now();
        let mut uneven = self.uneven.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_uneven {
            uneven.remove(&uid);
            return false;
        }
        let since = uneven.entry(uid).or_insert(now);
        let due = now.saturating_sub(*since) >= SPREAD_AFTER;
        if due {
            *since = now;
        }
        due
    }

    async fn report(&self, found: &Dereferenced) -> Option<Report> {
        match ledger::report(&found.facts.coordinators(), found.tls.as_ref(), self.patience).await {
            Ok(report) => Some(report),
            Err(error) => {
                tracing::debug!(cluster = found.facts.name(), %error, "the ledger does not answer");
                None
            }
        }
    }

    /// Replaces one pod at most; what is done or waited for.
    async fn roll_on(
        &self,
        cluster: &LedgerCluster,
        found: &Dereferenced,
        observed: &Observed,
        fleets: &[(Role, Fleet)],
    ) -> Result<Option<String>, Error> {
        let facts = &found.facts;
        match plan(facts, fleets) {
            Plan::Current => self.advance_authorities(cluster, found).await,
            Plan::Wait(words) => Ok(Some(words)),
            Plan::Restart { pod, why } => {
                let words = format!("{pod} is replaced: {why}");
                self.tell(cluster, EventType::Normal, "ReplacingPod", &words).await;
                apply::restart(&self.client, facts, observed, &pod).await?;
                Ok(Some(words))
            }
        }
    }

    /// All pods are current: authorities that are being replaced go on, but for those that wait for somebody; what is done or waited for.
    async fn advance_authorities(
        &self,
        cluster: &LedgerCluster,
        found: &Dereferenced,
    ) -> Result<Option<String>, Error> {
        let mut words = None;
        let unsettled = |standing: &&authority::Standing| standing.stage != Stage::Alone || standing.ends_soon;
        for standing in found.authorities.iter().filter(unsettled) {
            let news = match standing.waits_for(&found.facts) {
                Some(waits) => waits,
                None => {
                    let next = authority::advance(&self.client, &found.facts, *standing).await?;
                    self.tell(cluster, EventType::Normal, "Authority", next.words()).await;
                    next.words().to_owned()
                }
            };
            words.get_or_insert(news);
        }
        Ok(words)
    }

    /// Publishes an event. One that is lost is no reason to stop.
    async fn tell<K>(&self, about: &K, type_: EventType, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let note = Some(note.chars().take(1000).collect());
        let event = Event { type_, reason: reason.to_owned(), note, action: reason.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, &about.object_ref(&())).await {
            tracing::warn!(%error, reason, "an event could not be published");
        }
    }

    async fn write_status(&self, cluster: &LedgerCluster, status: &LedgerClusterStatus) -> Result<(), Error> {
        if cluster.status.as_ref() == Some(status) {
            return Ok(());
        }
        let api: Api<LedgerCluster> = Api::namespaced(self.client.clone(), &cluster.namespace().unwrap_or_default());
        write_status(&api, &cluster.name_any(), status).await
    }
}

async fn write_status<K, S>(api: &Api<K>, name: &str, status: &S) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    S: Serialize,
{
    let body = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": { "name": name }, "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = api.patch_status(name, &params, &Patch::Apply(&body)).await;
    written.map(drop).trying(|| format!("writing the status of {name}"))
}

fn fleets(
    facts: &Facts,
    observed: &Observed,
    report: Option<&Report>,
    now: k8s_openapi::jiff::Timestamp,
) -> Vec<(Role, Fleet)> {
    let roles = Role::ALL.into_iter().filter(|role| facts.count(*role) > 0);
    roles.filter_map(|role| Some((role, observed.fleet(facts, role, report, now)?))).collect()
}

/// What the rollouts of all roles come to: one pod at most at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All pods are current.
    Current,
    /// For what is waited.
    Wait(String),
    /// The pod to be deleted.
    Restart {
        /// Its name.
        pod: String,
        /// Why.
        why: &'static str,
    },
}

/// Which pod is next. A role waits for those before it, but for pods that can't serve anyway: they may be what the others wait for.
#[must_use]
pub fn plan(facts: &Facts, fleets: &[(Role, Fleet)]) -> Plan {
    let mut waits = None;
    for role in Role::ALL.into_iter().filter(|role| facts.count(*role) > 0) {
        let Some((_, fleet)) = fleets.iter().find(|(of, _)| *of == role) else {
            waits = waits.or_else(|| Some(format!("{} is being made", facts.set(role))));
            continue;
        };
        match rollout::next(fleet) {
            Step::Done => {}
            Step::Wait(words) => waits = waits.or(Some(words)),
            Step::Restart { member, why } => {
                let member = &fleet.members[member];
                if waits.is_none() || member.state != State::Ready {
                    return Plan::Restart { pod: member.name.clone(), why };
                }
            }
        }
    }
    waits.map_or(Plan::Current, Plan::Wait)
}

/// Goes on with an operation.
///
/// # Errors
/// If the API server refuses something; it is tried again.
pub async fn operation(
    operation: Arc<LedgerOperation>,
    context: Arc<Context>,
) -> Result<Action, finalizer::Error<Error>> {
    context.operate(&operation).await.map_err(finalizer::Error::ApplyFailed)
}

impl Context {
    async fn operate(&self, resource: &LedgerOperation) -> Result<Action, Error> {
        let status = resource.status.clone().unwrap_or_default();
        if matches!(status.phase, Phase::Succeeded | Phase::Failed) || resource.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let namespace = resource.namespace().unwrap_or_default();
        let name = resource.name_any();
        if let Err(invalid) = validate::check_name("cluster", &resource.spec.cluster) {
            return self.wait(resource, &status, invalid.to_string()).await;
        }
        let clusters: Api<LedgerCluster> = Api::namespaced(self.client.clone(), &namespace);
        let found = clusters.get_opt(&resource.spec.cluster).await;
        let Some(cluster) = found.trying(|| format!("reading cluster {}", resource.spec.cluster))? else {
            return self.wait(resource, &status, format!("there is no LedgerCluster {}", resource.spec.cluster)).await;
        };
        let now = timestamp(self.clock.as_ref());
        let cluster = match dereference::dereference(&self.client, &cluster, now.as_second()).await {
            Ok(cluster) => cluster,
            Err(Error::Blocked { message, .. }) => return self.wait(resource, &status, message).await,
            Err(error) => return Err(error),
        };
        let principal = operation::principal(&namespace, &resource.uid().unwrap_or_default());
        let operator = Operator {
            endpoint: &cluster.facts.coordinators(),
            tls: cluster.tls.as_ref(),
            spec: &resource.spec,
            principal: &principal,
            creator: resource.annotations().get(operation::CREATED_BY).map(String::as_str),
            patience: self.patience,
        };
        match operator.advance(&status).await {
            Ok(OperationStep::Record(mut new)) => {
                if matches!(new.phase, Phase::Succeeded | Phase::Failed) {
                    new.finished_at = Some(Time(now));
                    let (type_, reason) = match new.phase {
                        Phase::Succeeded => (EventType::Normal, "Succeeded"),
                        _ => (EventType::Warning, "Failed"),
                    };
                    self.tell(resource, type_, reason, &new.message).await;
                }
                let api: Api<LedgerOperation> = Api::namespaced(self.client.clone(), &namespace);
                // The status that was read must still be there: two operators never both begin.
                replace_status(&api, resource, &new).await.trying(|| format!("writing the status of {name}"))?;
                Ok(Action::requeue(Duration::ZERO))
            }
            Ok(OperationStep::Later(message)) => self.wait(resource, &status, message).await,
            Ok(_) => Ok(Action::await_change()),
            Err(error) => self.wait(resource, &status, error.to_string()).await,
        }
    }

    /// Says for what an operation waits.
    async fn wait(
        &self,
        resource: &LedgerOperation,
        status: &LedgerOperationStatus,
        message: String,
    ) -> Result<Action, Error> {
        if status.message != message {
            let api: Api<LedgerOperation> =
                Api::namespaced(self.client.clone(), &resource.namespace().unwrap_or_default());
            let new = LedgerOperationStatus { message, ..status.clone() };
            replace_status(&api, resource, &new)
                .await
                .trying(|| format!("writing the status of {}", resource.name_any()))?;
        }
        Ok(Action::requeue(BUSY))
    }
}

/// Replaces the status of the resource version that was read.
async fn replace_status(
    api: &Api<LedgerOperation>,
    resource: &LedgerOperation,
    status: &LedgerOperationStatus,
) -> Result<(), kube::Error> {
    let mut new = resource.clone();
    new.status = Some(status.clone());
    api.replace_status(&resource.name_any(), &kube::api::PostParams::default(), &new).await.map(drop)
}

#[cfg(test)]
mod tests;
