//! The parts that the pods of all roles have in common.

use k8s_openapi::api::{core::v1::ServiceAccount, policy::v1::PodDisruptionBudget};
use serde_json::{Value, json};

use super::{
    Facts, Object, Role,
    config::{TLS_DIR, merge},
};
use crate::crd::{Image, Pods};

/// The user of all processes: `nonroot` in the usual small images.
const USER: u32 = 65532;

/// The claim for a pod's data volume.
pub(super) const DATA_CLAIM: &str = "data";
/// The claim for a node's second volume.
pub(super) const COLD_CLAIM: &str = "cold";

/// The annotation with the name of the certificates that the pod was made with.
const CERTIFICATE: &str = "coppice.dev/certificate";

/// The files of a secret with a certificate.
const CERTIFICATE_FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// Differences between the roles.
pub(super) struct Kind<'a> {
    pub role: Role,
    pub image: String,
    pub pods: &'a Pods,
    pub resources: Value,
    pub command: Vec<String>,
    pub env: Vec<Value>,
    pub ports: Vec<(&'static str, u16)>,
    /// Probes by name.
    pub probes: Value,
    /// Volumes and their mount paths. All are read-only, except the pod's own claims.
    pub mounts: Vec<(&'static str, &'static str)>,
    /// Single files of volumes that are mounted.
    pub files: Vec<Value>,
    pub volumes: Vec<Value>,
}

/// The service account of all pods; it has no rights.
pub(super) fn service_account(facts: &Facts) -> Object {
    Object::new::<ServiceAccount>(json!({
        "metadata": facts.metadata(&facts.name(), None),
        "automountServiceAccountToken": false,
    }))
}

/// Allows one pod of a role at a time to be evicted when machines are drained.
pub(super) fn budget(facts: &Facts, role: Role) -> Object {
    Object::new::<PodDisruptionBudget>(json!({
        "metadata": facts.metadata(&facts.set(role), Some(role)),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": facts.selector(role) } },
    }))
}

/// The pod template of a StatefulSet.
pub(super) fn template(facts: &Facts, kind: Kind<'_>) -> Value {
    let Kind { role, pods, .. } = kind;
    let mut labels = json!(pods.labels);
    merge(&mut labels, facts.labels(Some(role)));
    let mut metadata = json!({ "labels": labels });
    let mut annotations = pods.annotations.clone();
    annotations.extend(facts.certificates.get(&role).map(|name| (CERTIFICATE.to_owned(), name.clone())));
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    let Image { pull_secrets, .. } = &facts.spec().image;
    let mut spec = json!({
        "serviceAccountName": facts.name(),
        "automountServiceAccountToken": false,
        // A service called `coppice-…` would add environment variables that are taken for settings.
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "affinity": pods.affinity.clone().unwrap_or_else(|| apart(facts, role)),
        "topologySpreadConstraints": spread(facts, role, pods),
        "containers": [container(facts, &kind)],
        "volumes": kind.volumes,
    });
    if !pull_secrets.is_empty() {
        spec["imagePullSecrets"] = json!(pull_secrets);
    }
    if !pods.node_selector.is_empty() {
        spec["nodeSelector"] = json!(pods.node_selector);
    }
    if !pods.tolerations.is_empty() {
        spec["tolerations"] = json!(pods.tolerations);
    }
    if let Some(class) = &pods.priority_class_name {
        spec["priorityClassName"] = json!(class);
    }
    json!({ "metadata": metadata, "spec": spec })
}

fn container(facts: &Facts, kind: &Kind<'_>) -> Value {
    let port = |(name, number): &(&str, u16)| json!({ "name": name, "containerPort": number, "protocol": "TCP" });
    let mount = |(volume, path): &(&str, &str)| {
        let mut mount = json!({ "name": volume, "mountPath": path });
        if ![DATA_CLAIM, COLD_CLAIM].contains(volume) {
            mount["readOnly"] = json!(true);
        }
        mount
    };
    let mut container = json!({
        "name": kind.role.name(),
        "image": kind.image,
        "imagePullPolicy": facts.spec().image.pull_policy,
        "command": kind.command,
        "env": kind.env,
        "ports": kind.ports.iter().map(port).collect::<Vec<_>>(),
        "resources": kind.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": kind.mounts.iter().map(mount).chain(kind.files.iter().cloned()).collect::<Vec<_>>(),
    });
    merge(&mut container, kind.probes.clone());
    container
}

/// Prefers different machines for the pods of a role.
fn apart(facts: &Facts, role: Role) -> Value {
    let term = json!({
        "labelSelector": { "matchLabels": facts.selector(role) },
        "topologyKey": "kubernetes.io/hostname",
    });
    json!({ "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "podAffinityTerm": term }],
    } })
}

/// Prefers different zones, if there are any.
fn spread(facts: &Facts, role: Role, pods: &Pods) -> Value {
    if !pods.topology_spread_constraints.is_empty() {
        return json!(pods.topology_spread_constraints);
    }
    json!([{
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": facts.selector(role) },
    }])
}

/// The pod's own name as a variable.
pub(super) fn own_name(variable: &str) -> Value {
    json!({ "name": variable, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } })
}

/// A volume with the files of a secret.
pub(super) fn secret(volume: &str, secret: &str) -> Value {
    json!({ "name": volume, "secret": { "secretName": secret, "defaultMode": 0o440 } })
}

/// A pod's own certificate, in [`TLS_DIR`]. One volume holds the secrets of all pods of the role,
/// and each pod sees only the one that its name selects. The variable holds the name. Files mounted
/// this way stay as they were when the pod was made.
pub(super) fn own_certificate(facts: &Facts, role: Role, variable: &str) -> (Vec<Value>, Value) {
    let pods = facts.pods(role).into_iter().zip(facts.tls_secrets(role));
    let source = |(pod, secret): (String, String)| {
        let items = CERTIFICATE_FILES.map(|file| json!({ "key": file, "path": format!("{pod}.{file}") }));
        json!({ "secret": { "name": secret, "items": items } })
    };
    let sources: Vec<Value> = pods.map(source).collect();
    let volume = json!({ "name": "tls", "projected": { "sources": sources, "defaultMode": 0o440 } });
    let file = |file: &str| {
        json!({ "name": "tls", "mountPath": format!("{TLS_DIR}/{file}"), "subPathExpr": format!("$({variable}).{file}"),
            "readOnly": true })
    };
    (CERTIFICATE_FILES.map(file).to_vec(), volume)
}

/// A volume with the files of a config map.
pub(super) fn config_map(volume: &str, name: &str) -> Value {
    json!({ "name": volume, "configMap": { "name": name, "defaultMode": 0o444 } })
}

/// Probes for a port. A start may take as long as a replica needs to recover; after that, a process
/// that no longer answers is restarted. A process that can't serve its role gets no clients but is
/// not restarted: a restart doesn't bring what it waits for.
pub(super) fn probes(port: u16, startup: &str) -> Value {
    let probe = |path: &str, period: u32, timeout: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": port, "scheme": "HTTP" },
            "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures,
        })
    };
    json!({
        "startupProbe": probe(startup, 2, 2, 150),
        "livenessProbe": probe("/livez", 10, 5, 6),
        "readinessProbe": probe("/readyz", 2, 2, 3),
    })
}

/// A StatefulSet that replaces no pod by itself.
pub(super) fn set(facts: &Facts, role: Role, template: Value, claims: &[Value]) -> Object {
    let mut spec = json!({
        "serviceName": facts.set(role),
        "replicas": facts.count(role),
        "podManagementPolicy": "Parallel",
        "updateStrategy": { "type": "OnDelete" },
        "revisionHistoryLimit": 5,
        "selector": { "matchLabels": facts.selector(role) },
        "template": template,
    });
    if !claims.is_empty() {
        spec["volumeClaimTemplates"] = json!(claims);
    }
    Object::new::<k8s_openapi::api::apps::v1::StatefulSet>(json!({
        "metadata": facts.metadata(&facts.set(role), Some(role)),
        "spec": spec,
    }))
}

/// The claim of a volume for each pod. It has no owner: volumes outlive the cluster unless its
/// policy says otherwise.
pub(super) fn claim(facts: &Facts, role: Role, name: &str, storage: &crate::crd::Storage) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": { "requests": { "storage": storage.size } },
    });
    if let Some(class) = &storage.class {
        spec["storageClassName"] = json!(class);
    }
    json!({ "metadata": { "name": name, "labels": facts.labels(Some(role)) }, "spec": spec })
}
