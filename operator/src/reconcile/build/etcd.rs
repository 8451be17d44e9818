//! The managed etcd's StatefulSet. etcd holds the name of the coordinator that leads, which must
//! not be lost.

use kube::ResourceExt;
use serde_json::json;

use super::{
    Facts, Object, Role,
    config::TLS_DIR,
    pod::{self, Kind},
};
use crate::crd::ManagedEtcd;

const DATA_DIR: &str = "/var/lib/etcd";
/// The port for health checks, in the clear.
const HEALTH_PORT: u16 = 2381;

/// The StatefulSet.
pub(super) fn set(facts: &Facts) -> Object {
    let etcd: ManagedEtcd = facts.spec().etcd.managed.clone().unwrap_or_default();
    let mut mounts = vec![(pod::DATA_CLAIM, DATA_DIR)];
    let mut volumes = Vec::new();
    if let Some(secret) = facts.tls_secrets(Role::Etcd).pop() {
        mounts.push(("tls", TLS_DIR));
        volumes.push(pod::secret("tls", &secret));
    }
    let template = pod::template(
        facts,
        Kind {
            role: Role::Etcd,
            image: etcd.image.clone(),
            pods: &etcd.pods,
            resources: json!({}),
            command: command(facts),
            env: vec![pod::own_name("POD")],
            ports: vec![("client", 2379), ("peer", 2380), ("health", HEALTH_PORT)],
            probes: pod::probes(HEALTH_PORT, "/readyz"),
            mounts,
            files: Vec::new(),
            volumes,
        },
    );
    pod::set(facts, Role::Etcd, template, &[pod::claim(facts, Role::Etcd, pod::DATA_CLAIM, &etcd.storage)])
}

fn command(facts: &Facts) -> Vec<String> {
    let scheme = facts.scheme();
    let own = facts.host(Role::Etcd, "$(POD)");
    let peers: Vec<String> = facts
        .pods(Role::Etcd)
        .iter()
        .map(|pod| format!("{pod}={scheme}://{}:2380", facts.host(Role::Etcd, pod)))
        .collect();
    let mut command = vec![
        "etcd".to_owned(),
        "--name=$(POD)".to_owned(),
        format!("--data-dir={DATA_DIR}/data"),
        format!("--listen-client-urls={scheme}://0.0.0.0:2379"),
        format!("--advertise-client-urls={scheme}://{own}:2379"),
        format!("--listen-peer-urls={scheme}://0.0.0.0:2380"),
        format!("--initial-advertise-peer-urls={scheme}://{own}:2380"),
        format!("--initial-cluster={}", peers.join(",")),
        "--initial-cluster-state=new".to_owned(),
        // A cluster that was deleted and made again must not be mistaken for the one before it.
        format!("--initial-cluster-token={}", facts.cluster.uid().unwrap_or_default()),
        format!("--listen-metrics-urls=http://0.0.0.0:{HEALTH_PORT}"),
        "--auto-compaction-mode=periodic".to_owned(),
        "--auto-compaction-retention=1h".to_owned(),
    ];
    if !facts.tls_secrets(Role::Etcd).is_empty() {
        for prefix in ["", "peer-"] {
            command.extend([
                format!("--{prefix}cert-file={TLS_DIR}/tls.crt"),
                format!("--{prefix}key-file={TLS_DIR}/tls.key"),
                format!("--{prefix}trusted-ca-file={TLS_DIR}/ca.crt"),
                format!("--{prefix}client-cert-auth=true"),
            ]);
        }
    }
    command
}
