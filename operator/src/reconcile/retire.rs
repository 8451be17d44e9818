//! What readers leave behind that were taken out of the specification: certificates, volumes, and
//! the objects that all of them shared.
//!
//! Pods are stopped by the StatefulSet, which has fewer replicas. The other nodes learn from their
//! settings that a reader is gone, and the groups forget it later.

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Secret, Service},
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, DeleteParams},
};
use serde::de::DeserializeOwned;

use super::{
    apply::{gone_is_fine, is_ours, list},
    build::{Facts, Role},
    dereference::cert_manager,
    observe::Observed,
};
use crate::{
    crd::VolumePolicy,
    error::{Error, Trying},
};

/// Deletes the certificates of readers that the StatefulSet still has and the specification no
/// longer has. Returns the names of these readers. It is called before the StatefulSet is applied,
/// so it is repeated until it succeeds.
///
/// # Errors
/// If the API server refuses.
pub async fn certificates(client: &Client, facts: &Facts, observed: &Observed) -> Result<Vec<String>, Error> {
    let set = observed.sets.iter().find(|set| set.name_any() == facts.set(Role::Reader));
    let had = set.and_then(|set| set.spec.as_ref()?.replicas).and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    let gone: Vec<String> =
        (facts.count(Role::Reader)..had).map(|index| format!("{}-{index}", facts.set(Role::Reader))).collect();
    for name in &gone {
        // cert-manager would make the secret again.
        if facts.spec().tls.cert_manager.is_some() {
            let deleted = cert_manager(client, facts).delete(name, &DeleteParams::default()).await.map(drop);
            gone_is_fine(deleted).trying(|| format!("deleting certificate {name}"))?;
        }
        delete_ours::<Secret>(client, facts, &format!("{name}-tls")).await?;
    }
    Ok(gone)
}

/// Deletes the volumes of former readers if the policy says so, and the shared objects of readers
/// if there are none any more.
///
/// # Errors
/// If the API server refuses.
pub async fn objects_and_volumes(client: &Client, facts: &Facts, observed: &Observed) -> Result<(), Error> {
    let name = facts.set(Role::Reader);
    if facts.count(Role::Reader) == 0 && observed.sets.iter().any(|set| set.name_any() == name) {
        delete_ours::<PodDisruptionBudget>(client, facts, &name).await?;
        delete_ours::<Service>(client, facts, &name).await?;
        // The set is the last one, since it is what tells that the others have to go.
        delete_ours::<StatefulSet>(client, facts, &name).await?;
    }
    if facts.spec().volume_policy == VolumePolicy::Retain {
        return Ok(());
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &facts.namespace());
    let of_readers = format!(",app.kubernetes.io/component={}", Role::Reader.name());
    let kept = facts.pods(Role::Reader);
    for claim in list::<PersistentVolumeClaim>(client, facts, &of_readers).await? {
        let name = claim.name_any();
        if kept.iter().any(|pod| name.ends_with(&format!("-{pod}"))) || claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        // A volume that is in use is deleted when its pod is gone.
        let deleted = claims.delete(&name, &DeleteParams::default()).await.map(drop);
        gone_is_fine(deleted).trying(|| format!("deleting volume {name}"))?;
    }
    Ok(())
}

/// Deletes an object, if it is there and this cluster's.
async fn delete_ours<K>(client: &Client, facts: &Facts, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (api, kind): (Api<K>, _) = (Api::namespaced(client.clone(), &facts.namespace()), K::kind(&()));
    let found = api.get_opt(name).await.trying(|| format!("reading {kind} {name}"))?;
    if !found.is_some_and(|object| is_ours(&object, &facts.cluster)) {
        return Ok(());
    }
    let deleted = api.delete(name, &DeleteParams::default()).await.map(drop);
    gone_is_fine(deleted).trying(|| format!("deleting {kind} {name}"))
}
