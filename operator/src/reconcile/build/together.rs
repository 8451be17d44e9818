//! The StatefulSet of a ledger whose only node is its coordinator, too: one container runs
//! `coppice serve`.

use serde_json::json;

use super::{
    CLIENT_PORT, Facts, HEALTH_PORT, HTTP_PORT, NODE_PORT, Object, Role,
    config::{BOOTSTRAP_DIR, DIR, KEY_DIR},
    nodes,
    pod::{self, Kind},
};

/// The StatefulSet, with the settings of this config map. It has the name and the volumes of the
/// nodes' set.
pub(super) fn set(facts: &Facts, config_map: &str) -> Object {
    let (config, bootstrap) = (format!("{DIR}/node.toml"), format!("{BOOTSTRAP_DIR}/bootstrap.toml"));
    let command = ["coppice", "serve", "--config", &config, "--config", &bootstrap].map(str::to_owned);
    let advertise = format!("{}:{CLIENT_PORT}", facts.host(Role::Node, "$(COPPICE_NODE)"));
    let mut kind = nodes::kind(facts, config_map);
    kind.mounts.push(("key", KEY_DIR));
    kind.volumes.push(pod::secret("key", &facts.signing_secret));
    kind.env.push(json!({ "name": "COPPICE_ADVERTISE", "value": advertise }));
    let ports = vec![("raft", NODE_PORT), ("grpc", CLIENT_PORT), ("http", HTTP_PORT), ("health", HEALTH_PORT)];
    nodes::set_of(facts, Kind { command: command.to_vec(), ports, ..kind })
}
