//! Services, and network policies for each port.

use k8s_openapi::api::{core::v1::Service, networking::v1::NetworkPolicy};
use serde_json::{Value, json};

use super::{CLIENT_PORT, Facts, HEALTH_PORT, HTTP_PORT, NODE_PORT, Object, Role};

/// A headless service for the pods of each role, and one for clients.
pub(super) fn services(facts: &Facts) -> Vec<Object> {
    let port =
        |name: &str, number: u16| json!({ "name": name, "port": number, "targetPort": number, "protocol": "TCP" });
    let headless = |role: Role, ports: Vec<Value>| {
        Object::new::<Service>(json!({
            "metadata": facts.metadata(&facts.set(role), Some(role)),
            "spec": {
                "clusterIP": "None",
                // Nodes find each other before they can serve.
                "publishNotReadyAddresses": true,
                "selector": facts.selector(role),
                "ports": ports,
            },
        }))
    };
    let clients = vec![port("grpc", CLIENT_PORT), port("http", HTTP_PORT)];
    let serving = facts.serving();
    let mut of_nodes = vec![port("raft", NODE_PORT)];
    let mut services = Vec::new();
    match serving {
        Role::Node => of_nodes.extend(clients.clone()),
        _ => services.push(headless(serving, clients.clone())),
    }
    let asked = &facts.spec().service;
    let mut metadata = facts.metadata(&facts.name(), Some(serving));
    if !asked.annotations.is_empty() {
        metadata["annotations"] = json!(asked.annotations);
    }
    services.extend([
        headless(Role::Node, of_nodes),
        Object::new::<Service>(json!({
            "metadata": metadata,
            "spec": { "type": asked.kind, "selector": facts.selector(serving), "ports": clients },
        })),
    ]);
    if facts.count(Role::Reader) > 0 {
        services.push(headless(Role::Reader, vec![port("raft", NODE_PORT)]));
    }
    if facts.count(Role::Etcd) > 0 {
        services.push(headless(Role::Etcd, vec![port("client", 2379), port("peer", 2380)]));
    }
    services
}

/// Lets nodes, readers among them, be called by nodes and coordinators, etcd by etcd and
/// coordinators, and coordinators by everyone. Metrics may be collected from anywhere; they contain
/// nothing of the ledger.
pub(super) fn policies(facts: &Facts) -> Vec<Object> {
    if !facts.spec().network_policies.enabled {
        return Vec::new();
    }
    let from = |roles: &[Role]| {
        let peer = |role: &Role| json!({ "podSelector": { "matchLabels": facts.selector(*role) } });
        roles.iter().map(peer).collect::<Vec<_>>()
    };
    let policy = |role: Role, rules: Value| {
        Object::new::<NetworkPolicy>(json!({
            "metadata": facts.metadata(&facts.set(role), Some(role)),
            "spec": {
                "podSelector": { "matchLabels": facts.selector(role) },
                "policyTypes": ["Ingress"],
                "ingress": rules,
            },
        }))
    };
    let ports =
        |numbers: &[u16]| numbers.iter().map(|number| json!({ "port": number, "protocol": "TCP" })).collect::<Vec<_>>();
    let clients = ports(&[CLIENT_PORT, HTTP_PORT, HEALTH_PORT]);
    if facts.spec().one_process {
        // No other pod has a reason to call the node.
        return vec![policy(Role::Node, json!([{ "ports": clients }]))];
    }
    let callers: Vec<Role> =
        [Role::Node, Role::Reader, Role::Coordinator].into_iter().filter(|role| facts.count(*role) > 0).collect();
    let nodes = json!([
        { "from": from(&callers), "ports": ports(&[NODE_PORT]) },
        { "ports": ports(&[HEALTH_PORT]) },
    ]);
    let mut policies =
        vec![policy(Role::Node, nodes.clone()), policy(Role::Coordinator, json!([{ "ports": clients }]))];
    if facts.count(Role::Reader) > 0 {
        policies.push(policy(Role::Reader, nodes));
    }
    if facts.count(Role::Etcd) > 0 {
        let members = json!([
            { "from": from(&[Role::Etcd, Role::Coordinator]), "ports": ports(&[2379]) },
            { "from": from(&[Role::Etcd]), "ports": ports(&[2380]) },
        ]);
        policies.push(policy(Role::Etcd, members));
    }
    policies
}
