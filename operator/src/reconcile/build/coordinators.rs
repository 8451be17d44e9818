//! The coordinators' StatefulSet: they keep no data, but each has a name of its own.

use serde_json::json;

use super::{
    CLIENT_PORT, Facts, HEALTH_PORT, HTTP_PORT, Object, Role,
    config::{DIR, ETCD_TLS_DIR, KEY_DIR, WITHDRAWN_DIR},
    pod::{self, Kind},
};

/// The StatefulSet, with the settings of this config map.
pub(super) fn set(facts: &Facts, config_map: &str) -> Object {
    let coordinators = &facts.spec().coordinators;
    let mut mounts = vec![("config", DIR), ("key", KEY_DIR)];
    let mut volumes = vec![pod::config_map("config", config_map), pod::secret("key", &facts.signing_secret)];
    let mut files = Vec::new();
    if let Some(withdrawn) = facts.withdrawn() {
        let (own, volume) = pod::own_certificate(facts, Role::Coordinator, "COPPICE_NAME");
        (files, mounts) = (own, [mounts, vec![("withdrawn", WITHDRAWN_DIR)]].concat());
        volumes.extend([volume, pod::config_map("withdrawn", &withdrawn)]);
    }
    if let Some(secret) = facts.etcd_client_secret() {
        mounts.push(("etcd-tls", ETCD_TLS_DIR));
        volumes.push(pod::secret("etcd-tls", &secret));
    }
    let command = ["coppice-coordinator", "--config", &format!("{DIR}/coordinator.toml")].map(str::to_owned);
    let advertise = format!("{}:{CLIENT_PORT}", facts.host(Role::Coordinator, "$(COPPICE_NAME)"));
    let template = pod::template(
        facts,
        Kind {
            role: Role::Coordinator,
            image: facts.spec().image.reference(),
            pods: &coordinators.pods,
            resources: json!(coordinators.resources.clone().unwrap_or_default()),
            command: command.to_vec(),
            env: vec![pod::own_name("COPPICE_NAME"), json!({ "name": "COPPICE_ADVERTISE", "value": advertise })],
            ports: vec![("grpc", CLIENT_PORT), ("http", HTTP_PORT), ("health", HEALTH_PORT)],
            probes: pod::probes(HEALTH_PORT, "/startupz"),
            mounts,
            files,
            volumes,
        },
    );
    pod::set(facts, Role::Coordinator, template, &[])
}
