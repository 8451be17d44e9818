//! The controller of clusters: makes a `LedgerCluster` true, one step at a time.

use std::sync::Arc;

use coppice_types::chain;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Resource, ResourceExt,
    api::{Api, Patch, PatchParams},
    runtime::{controller::Action, events::EventType, finalizer},
};
use serde_json::json;

use super::{
    context::{AFTER_ERROR, BUSY, Context, QUIET},
    plan::{Plan, plan},
};
use crate::{
    crd::{LedgerCluster, LedgerClusterStatus, VolumePolicy},
    error::{Error, Trying},
    ledger::{self, Report},
    reconcile::{
        apply,
        build::{self, Facts, MANAGER, Role},
        dereference::{
            self, Dereferenced,
            authority::{self, Stage},
        },
        observe::{Observed, node_groups},
        retire,
        status::{self, Outcome, READERS_READY},
    },
    rollout::{self, Fleet},
};

/// The finalizer of clusters: volumes are deleted, if the policy says so, before the resource is.
pub(super) const FINALIZER: &str = "coppice.dev/volumes";

/// Makes a cluster true, or cleans up after its deletion.
///
/// # Errors
/// If the API server refuses something; it is tried again.
pub async fn cluster(cluster: Arc<LedgerCluster>, context: Arc<Context>) -> Result<Action, finalizer::Error<Error>> {
    let clusters: Api<LedgerCluster> =
        Api::namespaced(context.client.clone(), &cluster.namespace().unwrap_or_default());
    finalizer::finalizer(&clusters, FINALIZER, cluster, |event| async {
        match event {
            finalizer::Event::Apply(cluster) => {
                Reconciliation { context: &context, cluster: &cluster }.reconcile().await
            }
            finalizer::Event::Cleanup(cluster) => {
                Reconciliation { context: &context, cluster: &cluster }.clean_up().await
            }
        }
    })
    .await
}

/// One look at one cluster.
struct Reconciliation<'a> {
    context: &'a Context,
    cluster: &'a LedgerCluster,
}

impl Reconciliation<'_> {
    async fn clean_up(&self) -> Result<Action, Error> {
        let words = match self.cluster.spec.volume_policy {
            VolumePolicy::Retain => "volumes and signing key stay: a cluster of this name takes them up again",
            VolumePolicy::Delete => "volumes and signing key go, as spec.volumePolicy says",
        };
        self.tell(EventType::Normal, "Deleting", words).await;
        self.context.uneven.is_due(self.cluster.uid().unwrap_or_default(), false, self.context.clock.now());
        apply::clean_up(&self.context.client, self.cluster).await.map(|()| Action::await_change())
    }

    async fn reconcile(&self) -> Result<Action, Error> {
        match self.carry_out().await {
            Ok(action) => Ok(action),
            Err(error @ (Error::Blocked { .. } | Error::Certificate(_))) => {
                let (reason, message) = (error.reason(), error.to_string());
                self.tell(EventType::Warning, reason, &message).await;
                let status = status::blocked(self.cluster, reason, &message, self.context.timestamp());
                self.write_status(&status).await?;
                Ok(Action::requeue(AFTER_ERROR))
            }
            Err(error) => {
                self.tell(EventType::Warning, error.reason(), &chain(&error)).await;
                Err(error)
            }
        }
    }

    async fn carry_out(&self) -> Result<Action, Error> {
        let now = self.context.timestamp();
        let found = dereference::dereference(&self.context.client, self.cluster, now.as_second()).await?;
        let observed = apply::observe(&self.context.client, &found.facts).await?;
        if !self.cluster.spec.paused {
            let retired = retire::certificates(&self.context.client, &found.facts, &observed).await?;
            if !retired.is_empty() {
                let words = format!("no longer in the settings: {}", retired.join(", "));
                self.tell(EventType::Normal, "ReadersRemoved", &words).await;
            }
            let objects = build::build(&found.facts);
            apply::apply(&self.context.client, &found.facts, &objects, &observed).await?;
            retire::objects_and_volumes(&self.context.client, &found.facts, &observed).await?;
        }
        // The objects are read again, with the revisions that follow from the apply. This is done
        // before the ledger is asked, so that the ledger's report is the newer one.
        let observed = apply::observe(&self.context.client, &found.facts).await?;
        let report = self.report(&found).await;
        let whole = |report: &Report| node_groups(&found.facts, report).iter().all(|group| group.led);
        // The mark waits until each group was formed: a node that is no longer allowed to found
        // would wait for a missing group for ever.
        if !found.facts.founded && report.as_ref().is_some_and(whole) {
            dereference::mark_founded(&self.context.client, &found.facts).await?;
            self.tell(EventType::Normal, "Founded", "the ledger takes commits").await;
        }
        let fleets = fleets(&found.facts, &observed, report.as_ref(), now);
        let progress = if self.cluster.spec.paused { None } else { self.roll_on(&found, &observed, &fleets).await? };
        let busy = progress.is_some();
        let outcome = Outcome { found: &found, fleets: &fleets, report: report.as_ref(), progress };
        let status = status::status(self.cluster, &outcome, now);
        let ready = status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        self.tell_of_readers(&status).await;
        self.write_status(&status).await?;
        if ready && !busy && !self.cluster.spec.paused {
            self.spread(&found, &fleets).await;
        }
        Ok(Action::requeue(if ready && !busy { QUIET } else { BUSY }))
    }

    /// Moves one leadership if leaders have been unevenly spread for a while. A failed move is
    /// tried again later.
    async fn spread(&self, found: &Dereferenced, fleets: &[(Role, Fleet)]) {
        let nodes = fleets.iter().find(|(role, _)| *role == Role::Node).map(|(_, fleet)| fleet);
        let wanted = nodes.and_then(|nodes| Some((nodes, rollout::spread(nodes)?)));
        let uid = self.cluster.uid().unwrap_or_default();
        if !self.context.uneven.is_due(uid, wanted.is_some(), self.context.clock.now()) {
            return;
        }
        let Some((nodes, handover)) = wanted else { return };
        let (from, to) = (&nodes.members[handover.from].name, &nodes.members[handover.to].name);
        let endpoint = found.facts.coordinators();
        let asked =
            ledger::hand_over(&endpoint, found.tls.as_ref(), (&handover.group, to), self.context.patience).await;
        match asked {
            Ok(()) => {
                let words = format!("{to} leads {} now: {from} led more shards than the others", handover.group);
                self.tell(EventType::Normal, "LeaderMoved", &words).await;
            }
            Err(error) => tracing::warn!(group = handover.group, to, %error, "a leadership could not be moved"),
        }
    }

    /// Reports that readers stopped or began to serve, if that is news.
    async fn tell_of_readers(&self, status: &LedgerClusterStatus) {
        let of = |status: &LedgerClusterStatus| {
            status.conditions.iter().find(|condition| condition.type_ == READERS_READY).cloned()
        };
        let Some(now) = of(status) else { return };
        let before = self.cluster.status.as_ref().and_then(of).map(|before| before.status);
        match (now.status.as_str(), before.as_deref()) {
            ("True", Some("False")) => self.tell(EventType::Normal, READERS_READY, &now.message).await,
            ("False", Some("True")) => self.tell(EventType::Warning, &now.reason, &now.message).await,
            _ => {}
        }
    }

    async fn report(&self, found: &Dereferenced) -> Option<Report> {
        match ledger::report(&found.facts.coordinators(), found.tls.as_ref(), self.context.patience).await {
            Ok(report) => Some(report),
            Err(error) => {
                tracing::debug!(cluster = found.facts.name(), %error, "the ledger does not answer");
                None
            }
        }
    }

    /// Replaces at most one pod. Returns a text about the current action or the reason to wait;
    /// `None` if nothing is left to do.
    async fn roll_on(
        &self,
        found: &Dereferenced,
        observed: &Observed,
        fleets: &[(Role, Fleet)],
    ) -> Result<Option<String>, Error> {
        let facts = &found.facts;
        match plan(facts, fleets) {
            Plan::Current => self.advance_authorities(found).await,
            Plan::Wait(words) => Ok(Some(words)),
            Plan::Restart { pod, why } => {
                let words = format!("{pod} is replaced: {why}");
                self.tell(EventType::Normal, "ReplacingPod", &words).await;
                apply::restart(&self.context.client, facts, observed, &pod).await?;
                Ok(Some(words))
            }
        }
    }

    /// Advances authorities that are being replaced, except those that wait for a person. The
    /// caller has checked that all pods are current. Returns a text about the current action or the
    /// reason to wait; `None` if nothing is left to do.
    async fn advance_authorities(&self, found: &Dereferenced) -> Result<Option<String>, Error> {
        let mut words = None;
        let unsettled = |standing: &&authority::Standing| standing.stage != Stage::Alone || standing.ends_soon;
        for standing in found.authorities.iter().filter(unsettled) {
            let news = match standing.waits_for(&found.facts) {
                Some(waits) => waits,
                None => {
                    let next = authority::advance(&self.context.client, &found.facts, *standing).await?;
                    self.tell(EventType::Normal, "Authority", next.words()).await;
                    next.words().to_owned()
                }
            };
            words.get_or_insert(news);
        }
        Ok(words)
    }

    async fn tell(&self, type_: EventType, reason: &str, note: &str) {
        self.context.tell(self.cluster, type_, reason, note).await;
    }

    async fn write_status(&self, status: &LedgerClusterStatus) -> Result<(), Error> {
        if self.cluster.status.as_ref() == Some(status) {
            return Ok(());
        }
        let name = self.cluster.name_any();
        let body = json!({
            "apiVersion": LedgerCluster::api_version(&()),
            "kind": LedgerCluster::kind(&()),
            "metadata": { "name": name },
            "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let namespace = self.cluster.namespace().unwrap_or_default();
        let api: Api<LedgerCluster> = Api::namespaced(self.context.client.clone(), &namespace);
        let written = api.patch_status(&name, &params, &Patch::Apply(&body)).await;
        written.map(drop).trying(|| format!("writing the status of {name}"))
    }
}

fn fleets(facts: &Facts, observed: &Observed, report: Option<&Report>, now: Timestamp) -> Vec<(Role, Fleet)> {
    let roles = Role::ALL.into_iter().filter(|role| facts.count(*role) > 0);
    roles.filter_map(|role| Some((role, observed.fleet(facts, role, report, now)?))).collect()
}
