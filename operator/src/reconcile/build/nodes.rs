//! The StatefulSets of nodes: of those that vote, and of readers.

use serde_json::json;

use super::{
    Facts, HEALTH_PORT, NODE_PORT, Object, Role,
    config::{BOOTSTRAP_DIR, COLD_DIR, DATA_DIR, DIR, WITHDRAWN_DIR},
    pod::{self, COLD_CLAIM, DATA_CLAIM, Kind},
};
use crate::crd::Readers;

/// The StatefulSet, with the settings of this config map.
pub(super) fn set(facts: &Facts, config_map: &str) -> Object {
    set_of(facts, kind(facts, config_map))
}

/// The StatefulSet of these pods, with the nodes' volumes.
pub(super) fn set_of(facts: &Facts, kind: Kind<'_>) -> Object {
    let nodes = &facts.spec().nodes;
    let mut claims = vec![pod::claim(facts, Role::Node, DATA_CLAIM, &nodes.storage)];
    if let Some(cold) = &nodes.cold_storage {
        claims.push(pod::claim(facts, Role::Node, COLD_CLAIM, &cold.volume));
    }
    pod::set(facts, Role::Node, pod::template(facts, kind), &claims)
}

/// The pods, with the settings of this config map.
pub(super) fn kind<'a>(facts: &'a Facts, config_map: &str) -> Kind<'a> {
    let nodes = &facts.spec().nodes;
    let resources = json!(nodes.resources.clone().unwrap_or_default());
    let mut kind = Kind { pods: &nodes.pods, resources, ..kind_of(facts, Role::Node, config_map) };
    if nodes.cold_storage.is_some() {
        kind.mounts.insert(3, (COLD_CLAIM, COLD_DIR));
    }
    kind
}

/// The StatefulSet of the readers, with the settings of this config map. They have one volume each:
/// which values are on a second one is each node's own affair.
pub(super) fn readers(facts: &Facts, readers: &Readers, config_map: &str) -> Object {
    let mut resources = json!(readers.resources.clone().unwrap_or_default());
    if let Some(devices) = readers.pim.as_ref().and_then(|modules| modules.devices.as_ref()) {
        // Kubernetes takes the limit of an extended resource as the request, too.
        resources["limits"][&devices.resource] = json!(devices.count.to_string());
    }
    let kind = Kind { pods: &readers.pods, resources, ..kind_of(facts, Role::Reader, config_map) };
    let claim = pod::claim(facts, Role::Reader, DATA_CLAIM, &readers.storage);
    pod::set(facts, Role::Reader, pod::template(facts, kind), &[claim])
}

/// The parts that pods of voters and of readers have in common.
fn kind_of<'a>(facts: &'a Facts, role: Role, config_map: &str) -> Kind<'a> {
    let mut mounts = vec![(DATA_CLAIM, DATA_DIR), ("config", DIR), ("bootstrap", BOOTSTRAP_DIR)];
    let mut volumes = vec![
        pod::config_map("config", config_map),
        pod::config_map("bootstrap", &format!("{}-bootstrap", facts.name())),
    ];
    let mut files = Vec::new();
    if let Some(withdrawn) = facts.withdrawn() {
        let (own, volume) = pod::own_certificate(facts, role, "COPPICE_NODE");
        (files, mounts) = (own, [mounts, vec![("withdrawn", WITHDRAWN_DIR)]].concat());
        volumes.extend([volume, pod::config_map("withdrawn", &withdrawn)]);
    }
    let config = format!("{DIR}/{}.toml", role.name());
    let bootstrap = format!("{BOOTSTRAP_DIR}/bootstrap.toml");
    let command = ["coppice-shard-node", "--config", &config, "--config", &bootstrap].map(str::to_owned);
    Kind {
        role,
        image: facts.spec().image.reference(),
        pods: &facts.spec().nodes.pods,
        resources: json!({}),
        command: command.to_vec(),
        env: vec![pod::own_name("COPPICE_NODE")],
        ports: vec![("raft", NODE_PORT), ("health", HEALTH_PORT)],
        probes: pod::probes(HEALTH_PORT, "/startupz"),
        mounts,
        files,
        volumes,
    }
}
