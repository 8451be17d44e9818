//! The nodes' StatefulSet.

use serde_json::json;

use super::{
    Facts, HEALTH_PORT, NODE_PORT, Object, Role,
    config::{BOOTSTRAP_DIR, COLD_DIR, DATA_DIR, DIR, WITHDRAWN_DIR},
    pod::{self, COLD_CLAIM, DATA_CLAIM, Kind},
};

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
    let mut mounts = vec![(DATA_CLAIM, DATA_DIR), ("config", DIR), ("bootstrap", BOOTSTRAP_DIR)];
    let mut volumes = vec![
        pod::config_map("config", config_map),
        pod::config_map("bootstrap", &format!("{}-bootstrap", facts.name())),
    ];
    if nodes.cold_storage.is_some() {
        mounts.push((COLD_CLAIM, COLD_DIR));
    }
    let mut files = Vec::new();
    if let Some(withdrawn) = facts.withdrawn() {
        let (own, volume) = pod::own_certificate(facts, Role::Node, "COPPICE_NODE");
        (files, mounts) = (own, [mounts, vec![("withdrawn", WITHDRAWN_DIR)]].concat());
        volumes.extend([volume, pod::config_map("withdrawn", &withdrawn)]);
    }
    let config = format!("{DIR}/node.toml");
    let bootstrap = format!("{BOOTSTRAP_DIR}/bootstrap.toml");
    let command = ["coppice-shard-node", "--config", &config, "--config", &bootstrap].map(str::to_owned);
    Kind {
        role: Role::Node,
        image: &facts.spec().image.name,
        pods: &nodes.pods,
        resources: json!(nodes.resources.clone().unwrap_or_default()),
        command: command.to_vec(),
        env: vec![pod::own_name("COPPICE_NODE")],
        ports: vec![("raft", NODE_PORT), ("health", HEALTH_PORT)],
        probes: pod::probes(HEALTH_PORT, "/startupz"),
        mounts,
        files,
        volumes,
    }
}
