//! The resources that users write: [`LedgerCluster`] and [`LedgerOperation`], both in
//! `coppice.dev/v1alpha1`.
//!
//! The custom resource definitions are derived from these types. `charts/coppice-operator/crds`
//! holds the output of [`definitions`], and a test compares the two. Rules over several fields are
//! written in CEL where CEL can express them, so that the API server refuses a violation. All other
//! rules are checked in [`crate::reconcile::validate`].

mod cluster;
mod fields;
mod operation;
mod parts;
mod patterns;
mod pim;
mod status;

#[cfg(test)]
mod tests;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub use cluster::{Coordinators, LedgerCluster, LedgerClusterSpec, Nodes, Readers, Root, Shards};
pub use fields::reference;
pub use operation::{
    ExpectedHead, LedgerOperation, LedgerOperationSpec, LedgerOperationStatus, Phase, Prune, Rollback, Transfer,
};
pub use parts::{
    CertManager, ClientService, ColdStorage, Etcd, ExternalEtcd, Image, ManagedEtcd, Pods, Retention, ServiceType,
    SigningKey, Storage, Telemetry, TimeAuthority, TimeStamps, Tls, TlsSecrets, Toggle, VolumePolicy, Witness,
    Witnesses,
};
pub use pim::{Devices, Pim, SmallBatches};
pub use status::{Group, Head, LedgerClusterStatus};

/// The API group of all resources of Coppice.
pub const API_GROUP: &str = "coppice.dev";

/// The custom resource definitions, each with the name of its file.
#[must_use]
pub fn definitions() -> [(&'static str, CustomResourceDefinition); 2] {
    [("ledgerclusters.yaml", signed(LedgerCluster::crd())), ("ledgeroperations.yaml", signed(LedgerOperation::crd()))]
}

/// Replaces unsigned formats: Kubernetes does not know them and warns about them at every
/// installation. The bounds of each number stay in its definition.
fn signed(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("a definition is JSON");
    sign(&mut value);
    serde_json::from_value(value).expect("formats are words")
}

fn sign(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "uint32") {
                fields.insert("format".to_owned(), "int64".into());
            }
            fields.values_mut().for_each(sign);
        }
        Value::Array(items) => items.iter_mut().for_each(sign),
        _ => {}
    }
}
