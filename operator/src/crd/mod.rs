//! The resources that users write: [`LedgerCluster`] and [`LedgerOperation`], both in `coppice.dev/v1alpha1`.
//!
//! The custom resource definitions are derived from these types; `charts/coppice-operator/crds` holds what [`definitions`] gives, and
//! a test compares them. What a rule over several fields can say is said by CEL, so that the API server refuses it; what it can't say is
//! checked in [`crate::reconcile::validate`].

mod cluster;
mod operation;
mod parts;
mod status;

#[cfg(test)]
mod tests;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub use cluster::{Coordinators, LedgerCluster, LedgerClusterSpec, Nodes, Root, Shards};
pub use operation::{
    ExpectedHead, LedgerOperation, LedgerOperationSpec, LedgerOperationStatus, Phase, Prune, Rollback, Transfer,
};
pub use parts::{
    CertManager, ColdStorage, Etcd, ExternalEtcd, Image, ManagedEtcd, Pods, Retention, SigningKey, Storage, Telemetry,
    Tls, TlsSecrets, Toggle, VolumePolicy, Witness, Witnesses,
};
pub use status::{Group, Head, LedgerClusterStatus};

/// The group of all our resources.
pub const API_GROUP: &str = "coppice.dev";

/// Names of objects of Kubernetes: they become parts of paths, where a slash would lead elsewhere.
const NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// Images: what a registry takes.
const IMAGE: &str = "^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$";
/// Texts that people read: nothing that is not shown as itself. The ledger refuses a few more characters.
const TEXT: &str = r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$";
/// Printable ASCII without spaces.
const WORD: &str = "^[!-~]+$";

/// The custom resource definitions, each with the name of its file.
#[must_use]
pub fn definitions() -> [(&'static str, CustomResourceDefinition); 2] {
    [("ledgerclusters.yaml", signed(LedgerCluster::crd())), ("ledgeroperations.yaml", signed(LedgerOperation::crd()))]
}

/// Kubernetes knows no unsigned formats, and warns of them at every installation. What the numbers may be is said by their bounds.
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
