//! Brings the API server's objects into the state that was built: applies them (server-side apply),
//! deletes those that are no longer built, and grows volumes.
//!
//! Names are derived from the cluster's name, so they may collide with objects of others: a cluster
//! `default` would have the service account `default`. An object without this cluster's labels is
//! neither changed nor deleted (`check_ours`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
    core::cel::{
        KubeCelExt,
        cel::{Context, Program, Value},
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    build::{Facts, MANAGER, Object, Role, selector_of},
    observe::Observed,
};
use crate::{
    crd::{LedgerCluster, VolumePolicy},
    error::{Error, Trying},
};

/// Applies all objects.
///
/// # Errors
/// If the API server refuses one; those before it are applied.
pub async fn apply(client: &Client, facts: &Facts, objects: &[Object], observed: &Observed) -> Result<(), Error> {
    let growing = grow_volumes(client, facts, objects, observed).await?;
    for object in objects.iter().filter(|object| !growing.contains(object.name())) {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &facts.namespace(), &object.resource);
        let there = api.get_opt(object.name()).await;
        let there = there.trying(|| format!("reading {} {}", object.resource.kind, object.name()))?;
        check_ours(&object.resource.kind, there.as_ref(), &facts.cluster)?;
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(object.name(), &params, &Patch::Apply(&object.body)).await;
        applied.trying(|| format!("applying {} {}", object.resource.kind, object.name()))?;
    }
    take_away(client, facts, objects, observed).await
}

/// Whether the operator made an object for this cluster.
pub(super) fn is_ours(object: &impl ResourceExt, cluster: &LedgerCluster) -> bool {
    let says = |label: &str, word: &str| object.labels().get(label).is_some_and(|value| value == word);
    let labelled =
        says("app.kubernetes.io/managed-by", MANAGER) && says("app.kubernetes.io/instance", &cluster.name_any());
    // Secrets that cert-manager makes for us have its annotation instead of our label.
    let certificate = object.annotations().get("cert-manager.io/certificate-name");
    let made = certificate
        .is_some_and(|name| name.starts_with(&cluster.name_any()) && object.name_any() == format!("{name}-tls"));
    labelled || made
}

/// Checks that an object doesn't exist yet, or is this cluster's.
///
/// # Errors
/// If the object is somebody else's. It is left as it is.
pub(super) fn check_ours(kind: &str, there: Option<&impl ResourceExt>, cluster: &LedgerCluster) -> Result<(), Error> {
    let Some(object) = there.filter(|object| !is_ours(*object, cluster)) else { return Ok(()) };
    let message = format!(
        "{kind} {} exists, and does not belong to this LedgerCluster: delete it if nobody needs it, or give the LedgerCluster another name",
        object.name_any()
    );
    Err(Error::blocked("NameTaken", message))
}

/// Reads the pods and StatefulSets of a cluster.
///
/// # Errors
/// If the API server doesn't answer.
pub async fn observe(client: &Client, facts: &Facts) -> Result<Observed, Error> {
    // The sets are read first. If a set's revision changes between the two reads, its old pods
    // count as outdated only at the next look.
    let sets = list::<StatefulSet>(client, facts, "").await?;
    let pods = list::<Pod>(client, facts, "").await?;
    Ok(Observed { sets, pods })
}

/// Deletes a pod, if it is still the one that was observed.
///
/// # Errors
/// If the API server refuses.
pub async fn restart(client: &Client, facts: &Facts, observed: &Observed, name: &str) -> Result<(), Error> {
    let Some(uid) = observed.pod(name).and_then(ResourceExt::uid) else { return Ok(()) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &facts.namespace());
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    gone_is_fine(pods.delete(name, &params).await.map(drop)).trying(|| format!("deleting pod {name}"))
}

/// Deletes what a deleted cluster leaves behind: volumes and key. Everything else has the cluster
/// as owner.
///
/// # Errors
/// If the API server refuses.
pub async fn clean_up(client: &Client, cluster: &LedgerCluster) -> Result<(), Error> {
    if cluster.spec.volume_policy == VolumePolicy::Retain {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_else(|| "default".to_owned());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let selector = ListParams::default().labels(&selector_of(&cluster.name_any()));
    for claim in claims.list(&selector).await.trying(|| "listing volumes".to_owned())? {
        let name = claim.name_any();
        // A volume that is in use is deleted when its pod is gone.
        let deleted = claims.delete(&name, &DeleteParams::default()).await.map(drop);
        gone_is_fine(deleted).trying(|| format!("deleting volume {name}"))?;
    }
    if cluster.spec.signing_key.secret.is_some() {
        return Ok(());
    }
    // Without its data the key has no use, except to sign another ledger under the same name.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let name = format!("{}-signing-key", cluster.name_any());
    let found = secrets.get_opt(&name).await.trying(|| format!("reading secret {name}"))?;
    if !found.is_some_and(|secret| is_ours(&secret, cluster)) {
        return Ok(());
    }
    let deleted = secrets.delete(&name, &DeleteParams::default()).await.map(drop);
    gone_is_fine(deleted).trying(|| format!("deleting secret {name}"))
}

pub(super) async fn list<K>(client: &Client, facts: &Facts, more: &str) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), &facts.namespace());
    let selector = format!("{}{more}", selector_of(&facts.name()));
    let listed = api.list(&ListParams::default().labels(&selector)).await;
    Ok(listed.trying(|| format!("listing {}", K::plural(&())))?.items)
}

/// Requests larger volumes where the specification demands them. The claim templates of a
/// StatefulSet can't change, so the set is deleted without its pods, and made again afterwards.
///
/// Returns the names of the sets that are being deleted.
async fn grow_volumes(
    client: &Client,
    facts: &Facts,
    objects: &[Object],
    observed: &Observed,
) -> Result<BTreeSet<String>, Error> {
    let mut growing = BTreeSet::new();
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &facts.namespace());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &facts.namespace());
    for role in [Role::Etcd, Role::Reader, Role::Node] {
        let name = facts.set(role);
        let built = objects.iter().find(|object| object.resource.kind == "StatefulSet" && object.name() == name);
        let there = observed.sets.iter().find(|set| set.name_any() == name);
        let (Some(built), Some(there)) = (built, there) else { continue };
        if there.metadata.deletion_timestamp.is_some() {
            growing.insert(name);
            continue;
        }
        let built: StatefulSet = serde_json::from_value(built.body.clone()).expect("it was built as one");
        let has = sizes(there);
        let mut larger = sizes(&built);
        larger.retain(|volume, wanted| has.get(volume).is_some_and(|has| is_larger(wanted, has)));
        if larger.is_empty() {
            continue;
        }
        for (volume, wanted) in larger {
            for pod in facts.pods(role) {
                let claim = format!("{volume}-{pod}");
                let patch = json!({ "spec": { "resources": { "requests": { "storage": wanted } } } });
                let patched = claims.patch(&claim, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop);
                gone_is_fine(patched).trying(|| format!("growing volume {claim}: its storage class must allow it"))?;
            }
        }
        let deleted = sets.delete(&name, &DeleteParams::orphan()).await.map(drop);
        gone_is_fine(deleted).trying(|| format!("replacing StatefulSet {name}"))?;
        growing.insert(name);
    }
    Ok(growing)
}

/// The sizes of a set's volumes, by name.
fn sizes(set: &StatefulSet) -> BTreeMap<String, Quantity> {
    let claims = set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_ref());
    let size = |claim: &PersistentVolumeClaim| {
        let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
        Some((claim.name_any(), requests.get("storage")?.clone()))
    };
    claims.into_iter().flatten().filter_map(size).collect()
}

/// Whether a size is larger than another. The API server rewrites sizes (`1024Gi` becomes `1Ti`),
/// so they are compared as the rules of the definition compare them.
fn is_larger(size: &Quantity, than: &Quantity) -> bool {
    static RULE: LazyLock<Program> =
        LazyLock::new(|| Program::compile("quantity(size).isGreaterThan(quantity(than))").expect("it is a rule"));
    let mut context = Context::default();
    context.register_all();
    context.add_variable_from_value("size", size.0.clone());
    context.add_variable_from_value("than", than.0.clone());
    RULE.execute(&context) == Ok(Value::Bool(true))
}

/// Deletes policies that are no longer built, and settings that no pod uses any more.
async fn take_away(client: &Client, facts: &Facts, objects: &[Object], observed: &Observed) -> Result<(), Error> {
    let built =
        |kind: &str, name: &str| objects.iter().any(|object| object.resource.kind == kind && object.name() == name);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &facts.namespace());
    for map in list::<ConfigMap>(client, facts, ",app.kubernetes.io/component").await? {
        let name = map.name_any();
        if !built("ConfigMap", &name) && !used(observed, &name) {
            let deleted = maps.delete(&name, &DeleteParams::default()).await.map(drop);
            gone_is_fine(deleted).trying(|| format!("deleting config map {name}"))?;
        }
    }
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &facts.namespace());
    for policy in list::<NetworkPolicy>(client, facts, "").await? {
        let name = policy.name_any();
        if !built("NetworkPolicy", &name) {
            let deleted = policies.delete(&name, &DeleteParams::default()).await.map(drop);
            gone_is_fine(deleted).trying(|| format!("deleting network policy {name}"))?;
        }
    }
    Ok(())
}

/// Whether a pod, or the old template of a set, mounts a config map.
fn used(observed: &Observed, name: &str) -> bool {
    let of_pods = observed.pods.iter().filter_map(|pod| pod.spec.as_ref());
    let of_sets = observed.sets.iter().filter_map(|set| set.spec.as_ref()?.template.spec.as_ref());
    of_pods.chain(of_sets).any(|spec| {
        let mut volumes = spec.volumes.iter().flatten();
        volumes.any(|volume| volume.config_map.as_ref().is_some_and(|map| map.name == name))
    })
}

/// Ignores that an object to delete or change is already gone.
pub(super) fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        // 409: the pod of this name has a different uid.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}
