//! The settings of nodes and coordinators, as config maps.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value, json};

use super::{CLIENT_PORT, Facts, HEALTH_PORT, HTTP_PORT, NODE_PORT, Object, Role, hash_of};
use crate::crd::{Pim, Readers, TimeAuthority};

/// Where config maps are mounted.
pub(super) const DIR: &str = "/etc/coppice/config";
/// Where `bootstrap.toml` is mounted.
pub(super) const BOOTSTRAP_DIR: &str = "/etc/coppice/bootstrap";
/// The path at which a pod's own certificate is mounted.
pub(super) const TLS_DIR: &str = "/etc/coppice/tls";
/// Where the list of withdrawn certificates is mounted.
pub(super) const WITHDRAWN_DIR: &str = "/etc/coppice/withdrawn";
/// The file name of that list.
const WITHDRAWN_FILE: &str = "list";
/// The path at which the signing key is mounted.
pub(super) const KEY_DIR: &str = "/etc/coppice/key";
/// Where coordinators find their certificate for etcd.
pub(super) const ETCD_TLS_DIR: &str = "/etc/coppice/etcd-tls";
/// The path at which a node's volume is mounted.
pub(super) const DATA_DIR: &str = "/var/lib/coppice";
/// Where a node's second volume is mounted, if it has one.
pub(super) const COLD_DIR: &str = "/var/lib/coppice-cold";

/// The ordinal of the first reader. Ordinals below it are left to voters, so that no reader ever
/// has one that a voter had.
const FIRST_READER_ORDINAL: usize = 101;

/// The settings of all nodes. A pod learns its own name from its environment.
pub(super) fn nodes(facts: &Facts) -> Object {
    immutable(facts, Role::Node, &node_settings(facts), Map::new())
}

/// The settings of all readers: those of the nodes, without a second volume, and with memory
/// modules if the readers have any. Their placement lists the hosts of voters alone.
pub(super) fn readers(facts: &Facts, readers: &Readers) -> Object {
    let mut settings = node_settings(facts);
    settings.remove("cold");
    settings.extend(readers.pim.as_ref().map(|modules| ("pim".to_owned(), pim(modules))));
    immutable(facts, Role::Reader, &settings, Map::new())
}

/// The section about memory modules. Voters refuse it. Defaults are written, too, as everywhere.
fn pim(modules: &Pim) -> Value {
    without_nulls(json!({
        "library": modules.library,
        "program": modules.program,
        "dpus": modules.dpus,
        "records_min": modules.records_min,
        "versions_max": modules.versions_max,
        "nodes_max": modules.nodes_max,
        "small_batches": modules.small_batches,
    }))
}

/// The settings of all coordinators.
pub(super) fn coordinators(facts: &Facts) -> Object {
    immutable(facts, Role::Coordinator, &coordinator_settings(facts), coordinator_files(facts))
}

/// The settings of the process that is a node and a coordinator. The coordinator's state lies
/// beside the node's on the same volume, so it needs no etcd.
pub(super) fn together(facts: &Facts) -> Object {
    let mut settings = coordinator_settings(facts);
    let clients = settings.remove("listen").expect("coordinators have the setting");
    settings.insert("api_listen".to_owned(), clients);
    settings.extend(node_settings(facts));
    settings.insert("data_dir".to_owned(), json!(format!("{DATA_DIR}/node")));
    settings.insert("metadata".to_owned(), json!({ "dir": format!("{DATA_DIR}/metadata") }));
    immutable(facts, Role::Node, &settings, coordinator_files(facts))
}

fn node_settings(facts: &Facts) -> Map<String, Value> {
    let names = facts.pods(Role::Node);
    let mut settings = shared(facts);
    settings.insert("cluster_id".to_owned(), json!(facts.cluster_id));
    settings.insert("data_dir".to_owned(), json!(DATA_DIR));
    if let Some(cold) = &facts.spec().nodes.cold_storage {
        let cold = json!({ "dir": COLD_DIR, "hot_value_bytes": cold.hot_value_bytes });
        settings.insert("cold".to_owned(), without_nulls(cold));
    }
    settings.insert("listen".to_owned(), json!(format!("0.0.0.0:{NODE_PORT}")));
    let placement: Map<String, Value> = facts
        .placement()
        .into_iter()
        .map(|(group, hosts)| {
            let hosts: Vec<&String> = hosts.into_iter().map(|host| &names[host]).collect();
            (group.strip_prefix("shard-").unwrap_or(&group).to_owned(), json!(hosts))
        })
        .collect();
    settings.insert("placement".to_owned(), Value::Object(placement));
    settings
}

fn coordinator_settings(facts: &Facts) -> Map<String, Value> {
    let spec = facts.spec();
    let mut settings = shared(facts);
    settings.insert("cluster_id".to_owned(), json!(facts.cluster_id));
    if let Some(zone) = &spec.coordinators.zone {
        settings.insert("zone".to_owned(), json!(zone));
    }
    settings.insert("listen".to_owned(), json!(format!("0.0.0.0:{CLIENT_PORT}")));
    settings.insert("http_listen".to_owned(), json!(format!("0.0.0.0:{HTTP_PORT}")));
    settings.insert("signing_key_file".to_owned(), json!(format!("{KEY_DIR}/ledger.key")));
    if facts.next_key {
        settings.insert("next_signing_key_file".to_owned(), json!(format!("{KEY_DIR}/next.key")));
    }
    settings.insert("metadata".to_owned(), metadata(facts));
    let retention = json!({ "versions": spec.retention.versions, "hours": spec.retention.hours });
    settings.insert("retention".to_owned(), without_nulls(retention));
    if !spec.witnesses.list.is_empty() {
        settings.insert("witnesses".to_owned(), json!(spec.witnesses.list));
        if let Some(quorum) = spec.witnesses.quorum {
            settings.insert("witness_quorum".to_owned(), json!(quorum));
        }
    }
    if spec.witnesses.policy.is_some() {
        settings.insert("witness_policy".to_owned(), json!(format!("{DIR}/{POLICY_FILE}")));
    }
    let stamps = &spec.time_stamps;
    if !stamps.authorities.is_empty() {
        let one = |(index, authority): (usize, &TimeAuthority)| {
            let root = format!("{DIR}/{}", roots_file(index));
            without_nulls(json!({ "url": authority.url, "root": root, "accuracy_ms": authority.accuracy_ms }))
        };
        let authorities: Vec<Value> = stamps.authorities.iter().enumerate().map(one).collect();
        let anchor = json!({ "tsa": authorities, "quorum": stamps.quorum, "every_s": stamps.every_seconds });
        settings.insert("anchor".to_owned(), without_nulls(anchor));
    }
    settings
}

/// The file with the policy of witnesses, beside the settings.
const POLICY_FILE: &str = "witness-policy";

/// The file with an authority's roots, beside the settings.
fn roots_file(index: usize) -> String {
    format!("time-authority-{}.pem", index + 1)
}

/// The files beside the settings of coordinators: roots of authorities, and the policy of
/// witnesses.
fn coordinator_files(facts: &Facts) -> Map<String, Value> {
    let authorities = facts.spec().time_stamps.authorities.iter().enumerate();
    let roots = authorities.map(|(index, authority)| (roots_file(index), json!(authority.roots)));
    let policy = facts.spec().witnesses.policy.as_ref().map(|policy| (POLICY_FILE.to_owned(), json!(policy)));
    roots.chain(policy).collect()
}

/// Whether nodes may found the ledger. It is not part of the pods' template: it changes once, and
/// processes read it only at their start.
pub(super) fn bootstrap(facts: &Facts) -> Object {
    let word = if facts.founded { "existing" } else { "new" };
    Object::new::<ConfigMap>(json!({
        "metadata": facts.metadata(&format!("{}-bootstrap", facts.name()), Some(Role::Node)),
        "data": { "bootstrap.toml": format!("bootstrap = \"{word}\"\n") },
    }))
}

/// The list of withdrawn certificates. It is not part of the pods' template: pods mount it as a
/// volume, so processes read a new list while they run.
pub(super) fn withdrawn(facts: &Facts) -> Option<Object> {
    let lines = facts.spec().tls.withdrawn.iter().map(String::as_str).chain(["end"]);
    let list: String = lines.map(|line| format!("{line}\n")).collect();
    Some(Object::new::<ConfigMap>(json!({
        "metadata": facts.metadata(&facts.withdrawn()?, None),
        "data": { WITHDRAWN_FILE: list },
    })))
}

/// Settings that all processes must agree on.
fn shared(facts: &Facts) -> Map<String, Value> {
    let spec = facts.spec();
    let node = |(index, name): (usize, String)| {
        let address = format!("{}:{NODE_PORT}", facts.host(Role::Node, &name));
        (name, json!({ "ordinal": index + 1, "address": address }))
    };
    let zone = spec.readers.as_ref().and_then(|readers| readers.zone.clone());
    let reader = |(index, name): (usize, String)| {
        let address = format!("{}:{NODE_PORT}", facts.host(Role::Reader, &name));
        let ordinal = FIRST_READER_ORDINAL + index;
        (name, without_nulls(json!({ "ordinal": ordinal, "address": address, "reader": true, "zone": zone })))
    };
    let voters = facts.pods(Role::Node).into_iter().enumerate().map(node);
    let nodes: Map<String, Value> =
        voters.chain(facts.pods(Role::Reader).into_iter().enumerate().map(reader)).collect();
    let mut ledger = json!({ "journals_kept": spec.journals || spec.ledgers, "capacity": spec.shards.capacity });
    if spec.ledgers {
        ledger["ledgers"] = json!(true);
    }
    if spec.shards.splits.is_empty() {
        ledger["shards"] = json!(spec.shards.count);
    } else {
        ledger["splits"] = json!(spec.shards.splits);
    }
    let mut settings = Map::new();
    settings.insert("log".to_owned(), json!(spec.log_filter()));
    settings.insert("log_format".to_owned(), json!("json"));
    settings.insert("health_listen".to_owned(), json!(format!("0.0.0.0:{HEALTH_PORT}")));
    if let Some(endpoint) = &spec.telemetry.otlp_endpoint {
        let telemetry = json!({ "otlp_endpoint": endpoint, "trace_ratio": spec.telemetry.trace_ratio });
        settings.insert("telemetry".to_owned(), without_nulls(telemetry));
    }
    settings.insert("nodes".to_owned(), Value::Object(nodes));
    settings.insert("ledger".to_owned(), ledger);
    if spec.tls.plaintext {
        settings.insert("access".to_owned(), json!({ "plaintext": true }));
    } else {
        let mut tls = tls_files(TLS_DIR);
        tls["withdrawn"] = json!(format!("{WITHDRAWN_DIR}/{WITHDRAWN_FILE}"));
        settings.insert("tls".to_owned(), tls);
    }
    settings
}

fn tls_files(dir: &str) -> Value {
    json!({ "ca": format!("{dir}/ca.crt"), "cert": format!("{dir}/tls.crt"), "key": format!("{dir}/tls.key") })
}

/// The coordinators' settings for etcd.
fn metadata(facts: &Facts) -> Value {
    let mut metadata = match &facts.spec().etcd.external {
        Some(external) => json!({ "endpoints": external.endpoints, "prefix": external.prefix }),
        None => {
            let endpoint = |pod: &String| format!("{}://{}:2379", facts.scheme(), facts.host(Role::Etcd, pod));
            json!({ "endpoints": facts.pods(Role::Etcd).iter().map(endpoint).collect::<Vec<_>>() })
        }
    };
    if facts.etcd_client_secret().is_some() {
        merge(&mut metadata, tls_files(ETCD_TLS_DIR));
    } else if facts.shows_etcd_its_own() {
        merge(&mut metadata, tls_files(TLS_DIR));
    }
    metadata
}

/// Adds the fields of an object to another one.
pub(super) fn merge(into: &mut Value, fields: Value) {
    if let (Value::Object(into), Value::Object(fields)) = (into, fields) {
        into.extend(fields);
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        other => other,
    }
}

/// A config map that never changes: other settings get another name.
/// A config map with these settings, and files beside them.
fn immutable(facts: &Facts, role: Role, settings: &Map<String, Value>, files: Map<String, Value>) -> Object {
    let text = toml::to_string(settings).expect("settings are TOML: they have no nulls");
    let hash = if files.is_empty() { hash_of(&text) } else { hash_of(&format!("{text}{}", json!(files))) };
    let mut data = files;
    data.insert(format!("{}.toml", role.name()), json!(text));
    Object::new::<ConfigMap>(json!({
        "metadata": facts.metadata(&format!("{}-{hash}", facts.set(role)), Some(role)),
        "immutable": true,
        "data": data,
    }))
}
