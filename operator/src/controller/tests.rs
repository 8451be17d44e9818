//! Whole reconciliations against an API server that is a map of objects.

mod authorities;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use coppice_env::{Clock, SystemClock};
use http::{Method, Request, Response};
use kube::{
    Client,
    client::Body,
    runtime::events::{Recorder, Reporter},
};
use serde_json::{Value, json};

use super::{cluster::FINALIZER, *};
use crate::{
    certificates,
    crd::LedgerCluster,
    reconcile::build::{Facts, MANAGER, Role},
    rollout::{self, Fleet, Member, State},
};

/// The permissions of the chart's roles: group, resource, verb.
fn rights() -> &'static BTreeSet<[String; 3]> {
    static RIGHTS: OnceLock<BTreeSet<[String; 3]>> = OnceLock::new();
    RIGHTS.get_or_init(|| {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/golden/coppice-operator-default.yaml");
        let rendered = std::fs::read_to_string(golden).expect("the render is there");
        let mut rights = BTreeSet::new();
        for object in rendered.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).expect("it is YAML")) {
            for rule in object["rules"].as_array().into_iter().flatten() {
                let words = |field: &str| -> Vec<String> {
                    rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
                };
                for (group, resource) in words("apiGroups")
                    .iter()
                    .flat_map(|group| words("resources").into_iter().map(move |resource| (group, resource)))
                {
                    rights.extend(words("verbs").into_iter().map(|verb| [group.clone(), resource.clone(), verb]));
                }
            }
        }
        rights
    })
}

/// Whether the chart's roles allow a request.
fn is_allowed(method: &Method, uri: &http::Uri, makes: bool) -> bool {
    let mut parts = uri.path().trim_start_matches('/').split('/');
    let group = if parts.next() == Some("api") { "" } else { parts.next().unwrap_or_default() };
    // Skips the version, `namespaces`, and the namespace.
    let mut parts = parts.skip(3);
    let (resource, name, sub) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let resource = sub.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
    let verbs: &[&str] = match (method.as_str(), name) {
        ("GET", Some(_)) => &["get"],
        ("GET", None) => &["list"],
        ("POST", _) => &["create"],
        ("PUT", _) => &["update"],
        ("DELETE", _) => &["delete"],
        // An apply creates missing objects.
        ("PATCH", _) if makes => &["patch", "create"],
        _ => &["patch"],
    };
    verbs.iter().all(|verb| rights().contains(&[group.to_owned(), resource.clone(), (*verb).to_owned()]))
}

/// An API server that stores what it is sent, by path. It enforces the chart's roles, names,
/// resource versions and finalizers, and no other rules.
#[derive(Default)]
struct Server {
    objects: Mutex<BTreeMap<String, Value>>,
    /// Method and path of every request except reads.
    writes: Mutex<Vec<String>>,
    /// Writes to this path are answered with 422, as for a field that can't change.
    immutable: Mutex<Option<String>>,
}

impl Server {
    fn objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut *self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, path: &str, object: Value) {
        self.objects().insert(path.to_owned(), object);
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.objects().get(path).cloned()
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await?;
                let content = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let applies = content == Some("application/apply-patch+yaml");
                let (code, answer) = server.answer(&parts.method, &parts.uri, applies, &bytes);
                let text = serde_json::to_vec(&answer).expect("an answer is JSON");
                Ok::<_, kube::Error>(Response::builder().status(code).body(Body::from(text)).expect("it is an answer"))
            }
        });
        Client::new(service, "bank")
    }

    fn answer(&self, method: &Method, uri: &http::Uri, applies: bool, body: &[u8]) -> (u16, Value) {
        let path = uri.path().trim_end_matches("/status").to_owned();
        let sent: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if *method != Method::GET {
            // The precondition of a deletion, and its effect on the objects that the deleted one
            // owns.
            let terms = [&sent["preconditions"]["uid"], &sent["propagationPolicy"]];
            let terms: String = terms.iter().filter_map(|term| term.as_str()).map(|term| format!(" {term}")).collect();
            let write = format!("{method} {}{terms}", uri.path());
            self.writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
        }
        let missing =
            json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": path });
        let mut objects = self.objects();
        let exists = objects.contains_key(&path);
        if !is_allowed(method, uri, applies && !exists) {
            let message = format!("the chart's roles do not allow {method} {uri}");
            return (
                403,
                json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message }),
            );
        }
        let immutable = self.immutable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if *method != Method::GET && immutable.as_ref() == Some(&path) {
            let message = "spec: Forbidden: updates to statefulset spec are forbidden";
            return (
                422,
                json!({ "kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422, "message": message }),
            );
        }
        if *method == Method::GET {
            if let Some(object) = objects.get(&path) {
                return (200, object.clone());
            }
            let is_list = uri.query().is_some_and(|query| query.contains("labelSelector"));
            if path.starts_with("/apis/cert-manager.io/") {
                // The resource type is not installed.
                return (404, json!("404 page not found"));
            }
            if !is_list {
                return (404, missing);
            }
            let component = uri.query().and_then(|query| query.split("component%3D").nth(1));
            let component = component.map(|rest| rest.split('&').next().unwrap_or(rest));
            let fits = |object: &&Value| {
                component.is_none_or(|name| object["metadata"]["labels"]["app.kubernetes.io/component"] == name)
            };
            let below = format!("{path}/");
            let items: Vec<Value> = objects
                .iter()
                .filter(|(at, _)| at.starts_with(&below))
                .map(|(_, object)| object.clone())
                .filter(|object| fits(&object))
                .collect();
            return (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }));
        }
        match method.as_str() {
            "DELETE" => match objects.remove(&path) {
                Some(object) => (200, object),
                None => (404, missing),
            },
            "POST" => {
                let at = format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap_or_default());
                objects.insert(at, sent.clone());
                (201, sent)
            }
            "PATCH" if !exists && !applies => (404, missing),
            // An apply, a merge or a replacement is done by fields, which suffices for these tests.
            // A JSON patch adds or removes the finalizer.
            _ => {
                let object = objects.entry(path).or_insert_with(|| json!({}));
                let before = object["spec"].clone();
                match &sent {
                    Value::Array(operations) => patch(object, operations),
                    _ => merge(object, &sent),
                }
                // The set's controller has not seen the change yet.
                if object["kind"] == "StatefulSet" && object["spec"] != before {
                    object["metadata"]["generation"] =
                        json!(object["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
                }
                (200, object.clone())
            }
        }
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match value {
                    Value::Null => drop(into.remove(name)),
                    _ => merge(into.entry(name.clone()).or_insert(Value::Null), value),
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn patch(object: &mut Value, operations: &[Value]) {
    for operation in operations {
        match operation["op"].as_str() {
            Some("add") => object["metadata"]["finalizers"] = json!([FINALIZER]),
            Some("remove") => object["metadata"]["finalizers"] = json!([]),
            _ => {}
        }
    }
}

const CLUSTER: &str = "/apis/coppice.dev/v1alpha1/namespaces/bank/ledgerclusters/ledger";
const SECRETS: &str = "/api/v1/namespaces/bank/secrets";
const PODS: &str = "/api/v1/namespaces/bank/pods";
const CLAIMS: &str = "/api/v1/namespaces/bank/persistentvolumeclaims";
const SETS: &str = "/apis/apps/v1/namespaces/bank/statefulsets";

/// A server with a cluster of this specification, and an operator.
fn set_up(spec: &Value) -> (Arc<Server>, Arc<Context>) {
    let server = Arc::new(Server::default());
    server.put(
        CLUSTER,
        json!({
            "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerCluster", "spec": spec,
            "metadata": { "name": "ledger", "namespace": "bank", "uid": "1", "generation": 1, "finalizers": [FINALIZER] },
        }),
    );
    let client = server.client();
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    let patience = Duration::from_millis(1);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    (server, Arc::new(Context { client, recorder, clock, patience, uneven: Uneven::default() }))
}

fn the_cluster(server: &Server) -> Arc<LedgerCluster> {
    let object = server.get(CLUSTER).expect("the cluster is there");
    Arc::new(serde_json::from_value(object).expect("it can be read"))
}

async fn reconcile(server: &Arc<Server>, context: &Arc<Context>) {
    cluster(the_cluster(server), Arc::clone(context)).await.expect("it is reconciled");
}

fn condition(server: &Server, kind: &str) -> (String, String) {
    let status = the_cluster(server).status.clone().expect("the status is written");
    let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind).expect("it is reported");
    (condition.status, condition.reason)
}

/// Acts as the StatefulSets' controller and the kubelet: every pod runs, at this revision.
fn run_pods(server: &Server, revision: &str) {
    let readers = server.get(&format!("{SETS}/ledger-reader")).and_then(|set| set["spec"]["replicas"].as_i64());
    let of_readers = readers.map(|count| ("ledger-reader", count));
    for (set, count) in
        [("ledger-etcd", 3), ("ledger-node", 3), ("ledger-coordinator", 2)].into_iter().chain(of_readers)
    {
        let path = format!("{SETS}/{set}");
        let mut object = server.get(&path).expect("the set was applied");
        let generation = object["metadata"]["generation"].clone();
        merge(
            &mut object,
            &json!({ "status": { "replicas": count, "observedGeneration": generation, "updateRevision": revision } }),
        );
        server.put(&path, object);
        for index in 0..count {
            run_pod(server, &format!("{set}-{index}"), revision, &json!({ "running": {} }));
        }
    }
}

fn run_pod(server: &Server, name: &str, revision: &str, state: &Value) {
    let (set, _) = name.rsplit_once('-').expect("its number is the end of its name");
    let made_from = server.get(&format!("{SETS}/{set}")).expect("the set was applied");
    server.put(
        &format!("{PODS}/{name}"),
        json!({
            "spec": made_from["spec"]["template"]["spec"],
            "metadata": { "name": name, "namespace": "bank", "uid": format!("uid of {name}"), "labels": { "controller-revision-hash": revision } },
            "status": {
                "containerStatuses": [{ "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state }],
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            },
        }),
    );
}

#[tokio::test]
async fn an_empty_specification_becomes_a_cluster_and_a_second_look_makes_nothing_new() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    for name in [
        "ledger-signing-key",
        "ledger-authority",
        "ledger-node-0-tls",
        "ledger-node-2-tls",
        "ledger-coordinator-1-tls",
        "ledger-etcd-authority",
        "ledger-etcd-server-tls",
        "ledger-etcd-client-tls",
    ] {
        assert!(server.get(&format!("{SECRETS}/{name}")).is_some(), "{name}");
    }
    for name in ["ledger-etcd", "ledger-node", "ledger-coordinator"] {
        assert!(server.get(&format!("{SETS}/{name}")).is_some(), "{name}");
    }
    assert_eq!(condition(&server, "Valid").0, "True");
    assert_eq!(condition(&server, "Ready"), ("False".to_owned(), "NotWhole".to_owned()));
    let key = server.get(&format!("{SECRETS}/ledger-signing-key"));
    server.writes();
    reconcile(&server, &context).await;
    let writes = server.writes();
    assert!(writes.iter().all(|write| write.starts_with("PATCH") || write.contains("/events")), "{writes:?}");
    assert!(writes.iter().all(|write| !write.contains("/secrets/")), "certificates are current: {writes:?}");
    assert_eq!(server.get(&format!("{SECRETS}/ledger-signing-key")), key);
}

#[tokio::test]
async fn a_clients_secret_is_all_that_an_application_needs_and_stays_so() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    let vkey = the_cluster(&server).status.as_ref().and_then(|status| status.vkey.clone()).expect("it is known");
    let file = |client: &str, name: &str| {
        let secret = server.get(&format!("{SECRETS}/ledger-{client}-tls")).expect("it was made");
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).expect("it is one");
        secret.data.and_then(|mut data| data.remove(name)).map(|bytes| String::from_utf8(bytes.0).expect("it is text"))
    };
    let whole = || {
        for (client, _) in crate::reconcile::build::CLIENTS {
            assert_eq!(file(client, "endpoint").as_deref(), Some("https://ledger.bank.svc:7411"), "{client}");
            assert_eq!(file(client, "http-endpoint").as_deref(), Some("https://ledger.bank.svc:7421"));
            assert_eq!(file(client, "ledger.vkey"), Some(vkey.clone()));
            assert!(["ca.crt", "tls.crt", "tls.key"].iter().all(|name| file(client, name).is_some()));
        }
    };
    whole();
    assert_eq!(file("node-0", "endpoint"), None, "nodes are no clients");
    // Somebody changes it, or writes it again without what was added.
    let path = format!("{SECRETS}/ledger-writer-tls");
    let mut secret = server.get(&path).expect("it was made");
    secret["data"]["endpoint"] = json!("aHR0cDovL2V2aWwv");
    secret["data"].as_object_mut().expect("it has files").remove("ledger.vkey");
    server.put(&path, secret);
    server.writes();
    reconcile(&server, &context).await;
    whole();
    let secrets = server.writes().into_iter().filter(|write| write.contains("/secrets/"));
    assert_eq!(secrets.collect::<Vec<_>>(), [format!("PATCH {path}")]);
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_renewed_and_its_pods_are_of_another_template() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    let template =
        |set: &str| server.get(&format!("{SETS}/{set}")).expect("it was applied")["spec"]["template"].clone();
    let before = [template("ledger-node"), template("ledger-coordinator")];
    assert!(before[0]["metadata"]["annotations"]["coppice.dev/certificate"].is_string());
    let path = format!("{SECRETS}/ledger-node-0-tls");
    let mut secret = server.get(&path).expect("it was made");
    let old = secret["data"]["tls.crt"].clone();
    secret["metadata"]["annotations"]["coppice.dev/not-after"] = json!("1");
    server.put(&path, secret);
    reconcile(&server, &context).await;
    assert_ne!(server.get(&path).expect("it is there")["data"]["tls.crt"], old);
    assert_ne!(template("ledger-node"), before[0]);
    assert_eq!(template("ledger-coordinator"), before[1], "its certificate is the old one");
}

#[tokio::test]
async fn what_the_api_server_refuses_is_reported_as_an_event() {
    let (server, context) = set_up(&json!({}));
    *server.immutable.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{SETS}/ledger-node"));
    let refused = cluster(the_cluster(&server), Arc::clone(&context)).await.expect_err("it is refused");
    assert!(chain(&refused).contains("updates to statefulset spec are forbidden"), "{refused:?}");
    let objects = server.objects();
    let event = objects.iter().find(|(path, _)| path.contains("/events/")).expect("it is reported").1;
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("ApiServerRefused")));
    let note = event["note"].as_str().expect("it has words");
    assert!(note.starts_with("applying StatefulSet ledger-node failed"), "{note}");
}

#[tokio::test]
async fn a_lost_signing_key_is_not_replaced() {
    let (server, context) = set_up(&json!({}));
    let labels = json!({ "app.kubernetes.io/component": "node" });
    server.put(
        &format!("{CLAIMS}/data-ledger-node-0"),
        json!({ "metadata": { "name": "data-ledger-node-0", "labels": labels } }),
    );
    reconcile(&server, &context).await;
    assert_eq!(condition(&server, "Ready"), ("False".to_owned(), "SigningKeyLost".to_owned()));
    assert!(server.get(&format!("{SECRETS}/ledger-signing-key")).is_none());
    assert!(server.get(&format!("{SETS}/ledger-node")).is_none());
    assert!(server.writes().iter().any(|write| write.contains("/events")), "it is reported as an event");
}

#[tokio::test]
async fn a_named_secret_that_is_missing_is_waited_for() {
    let (server, context) = set_up(&json!({ "signingKey": { "secret": "mine" }, "tls": { "plaintext": true } }));
    reconcile(&server, &context).await;
    assert_eq!(condition(&server, "Ready").1, "SigningKeyMissing");
    let made = set_up(&json!({ "tls": { "plaintext": true } }));
    reconcile(&made.0, &made.1).await;
    let key = made.0.get(&format!("{SECRETS}/ledger-signing-key")).expect("it was made");
    server.put(&format!("{SECRETS}/mine"), key);
    reconcile(&server, &context).await;
    assert_eq!(condition(&server, "Valid").0, "True");
}

#[tokio::test]
async fn a_specification_that_cannot_be_carried_out_changes_nothing() {
    let (server, context) = set_up(&json!({ "shards": { "count": 3, "splits": ["0x80", "m"] } }));
    reconcile(&server, &context).await;
    assert_eq!(condition(&server, "Valid"), ("False".to_owned(), "InvalidSpecification".to_owned()));
    let writes = server.writes();
    assert!(writes.iter().all(|write| write.contains("/events") || write.ends_with("/status")), "{writes:?}");
}

#[tokio::test]
async fn a_paused_cluster_is_watched_and_left_alone() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    run_pod(&server, "ledger-node-1", "0", &json!({ "waiting": { "reason": "ImagePullBackOff" } }));
    let mut paused = server.get(CLUSTER).expect("the cluster is there");
    paused["spec"]["paused"] = json!(true);
    server.put(CLUSTER, paused);
    server.writes();
    reconcile(&server, &context).await;
    assert_eq!(server.writes(), [format!("PATCH {CLUSTER}/status")]);
    assert_eq!(condition(&server, "Progressing").1, "Paused");
}

#[tokio::test]
async fn a_pod_that_does_not_start_is_replaced_and_healthy_ones_are_not_while_nobody_answers() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    run_pod(&server, "ledger-node-0", "0", &json!({ "running": {} }));
    run_pod(&server, "ledger-node-1", "0", &json!({ "waiting": { "reason": "ImagePullBackOff" } }));
    server.writes();
    reconcile(&server, &context).await;
    let deleted =
        |writes: Vec<String>| writes.into_iter().filter(|write| write.starts_with("DELETE")).collect::<Vec<_>>();
    assert_eq!(deleted(server.writes()), [format!("DELETE {PODS}/ledger-node-1 uid of ledger-node-1")]);
    run_pod(&server, "ledger-node-1", "1", &json!({ "running": {} }));
    reconcile(&server, &context).await;
    assert_eq!(
        deleted(server.writes()),
        Vec::<String>::new(),
        "node-0 is healthy, and nobody reports the state of the groups"
    );
    assert_eq!(condition(&server, "Progressing").1, "RollingOut");
}

#[tokio::test]
async fn deleting_a_cluster_leaves_its_data_unless_it_says_otherwise() {
    for (policy, stays) in [("Retain", true), ("Delete", false)] {
        let (server, context) = set_up(&json!({ "volumePolicy": policy }));
        reconcile(&server, &context).await;
        let claim = format!("{CLAIMS}/data-ledger-node-0");
        server.put(&claim, json!({ "metadata": { "name": "data-ledger-node-0" } }));
        let mut going = server.get(CLUSTER).expect("the cluster is there");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(CLUSTER, going);
        reconcile(&server, &context).await;
        assert_eq!(server.get(&claim).is_some(), stays, "{policy}");
        assert_eq!(server.get(&format!("{SECRETS}/ledger-signing-key")).is_some(), stays, "{policy}");
        assert_eq!(the_cluster(&server).metadata.finalizers, Some(Vec::new()), "{policy}");
    }
}

#[tokio::test]
async fn larger_volumes_are_asked_for_and_the_set_is_made_again_without_its_pods() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    let claim = format!("{CLAIMS}/data-ledger-node-0");
    server.put(&claim, json!({ "metadata": { "name": "data-ledger-node-0" } }));
    let mut larger = server.get(CLUSTER).expect("the cluster is there");
    larger["spec"]["nodes"] = json!({ "storage": { "size": "40Gi" } });
    server.put(CLUSTER, larger);
    server.writes();
    reconcile(&server, &context).await;
    assert_eq!(server.get(&claim).expect("it is there")["spec"]["resources"]["requests"]["storage"], "40Gi");
    let deleted: Vec<String> = server.writes().into_iter().filter(|write| write.starts_with("DELETE")).collect();
    assert_eq!(deleted, [format!("DELETE {SETS}/ledger-node Orphan")], "its pods stay");
    reconcile(&server, &context).await;
    let set = server.get(&format!("{SETS}/ledger-node")).expect("it was made again");
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"], "40Gi");
}

#[tokio::test]
async fn a_larger_cold_volume_is_asked_for_alone() {
    let (server, context) = set_up(&json!({ "nodes": { "coldStorage": { "size": "1Ti" } } }));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    let claims = ["data", "cold"].map(|volume| format!("{CLAIMS}/{volume}-ledger-node-0"));
    for claim in &claims {
        server.put(claim, json!({ "metadata": { "name": claim.rsplit('/').next() } }));
    }
    let mut larger = server.get(CLUSTER).expect("the cluster is there");
    larger["spec"]["nodes"]["coldStorage"]["size"] = json!("2Ti");
    server.put(CLUSTER, larger);
    reconcile(&server, &context).await;
    assert_eq!(server.get(&claims[1]).expect("it is there")["spec"]["resources"]["requests"]["storage"], "2Ti");
    assert_eq!(server.get(&claims[0]).expect("it is there")["spec"], Value::Null, "the other one is as it was");
    reconcile(&server, &context).await;
    let set = server.get(&format!("{SETS}/ledger-node")).expect("it was made again");
    assert_eq!(set["spec"]["volumeClaimTemplates"][1]["spec"]["resources"]["requests"]["storage"], "2Ti");
}

#[tokio::test]
async fn a_size_that_the_api_server_writes_in_another_way_is_not_a_larger_one() {
    for (written, stored) in [("1024Gi", "1Ti"), ("0.5Ti", "512Gi"), ("1000G", "1T"), ("1.1Gi", "1181116006400m")] {
        let (server, context) = set_up(&json!({ "nodes": { "storage": { "size": written } } }));
        reconcile(&server, &context).await;
        run_pods(&server, "1");
        let path = format!("{SETS}/ledger-node");
        let mut set = server.get(&path).expect("it was made");
        let size = &mut set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"];
        assert_eq!(size.take(), written);
        *size = json!(stored);
        server.put(&path, set);
        server.writes();
        reconcile(&server, &context).await;
        let deleted: Vec<String> = server.writes().into_iter().filter(|write| write.starts_with("DELETE")).collect();
        assert_eq!(deleted, [""; 0], "{written} is {stored}");
    }
}

#[tokio::test]
async fn settings_and_policies_that_nothing_needs_are_taken_away() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    let maps = "/api/v1/namespaces/bank/configmaps";
    let count = |server: &Server, below: &str| server.objects().keys().filter(|path| path.starts_with(below)).count();
    assert_eq!(count(&server, maps), 4);
    let policies = "/apis/networking.k8s.io/v1/namespaces/bank/networkpolicies";
    assert_eq!(count(&server, policies), 3);
    let mut changed = server.get(CLUSTER).expect("the cluster is there");
    merge(&mut changed, &json!({ "spec": { "retention": { "hours": 5 }, "networkPolicies": { "enabled": false } } }));
    server.put(CLUSTER, changed);
    reconcile(&server, &context).await;
    assert_eq!(count(&server, policies), 0);
    assert_eq!(count(&server, maps), 5, "the template as it was read still names the old one");
    reconcile(&server, &context).await;
    assert_eq!(count(&server, maps), 4);
}

#[tokio::test]
async fn only_one_of_two_operators_works() {
    let (server, _) = set_up(&json!({}));
    let leases: Api<Lease> = Api::namespaced(server.client(), "coppice");
    let clock = coppice_env::SimClock::new(0);
    let (mut one, mut other) = (Candidate::new("l", "one"), Candidate::new("l", "other"));
    let held = |result: Result<bool, kube::Error>| result.expect("the server answers");
    assert!(held(one.try_hold(&leases, &clock).await));
    assert!(!held(other.try_hold(&leases, &clock).await));
    assert!(held(one.try_hold(&leases, &clock).await));
    // The holder is gone, and the lease has the resource version of its last renewal.
    let path = "/apis/coordination.k8s.io/v1/namespaces/coppice/leases/l";
    let mut lease = server.get(path).expect("it is there");
    lease["metadata"]["resourceVersion"] = json!("7");
    server.put(path, lease);
    assert!(!held(other.try_hold(&leases, &clock).await));
    clock.advance(lease::DURATION + Duration::from_secs(1));
    assert!(held(other.try_hold(&leases, &clock).await));
    assert!(!held(one.try_hold(&leases, &clock).await), "it is the other's now");
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_can_not_renew_its_lease_ends_before_another_may_take_it() {
    let (server, _) = set_up(&json!({}));
    // The API server fails for a while, and then does not answer.
    for silent_after in 0..5 {
        let asked = AtomicU32::new(0);
        let service = tower::service_fn(move |_: Request<Body>| {
            let is_silent = asked.fetch_add(1, Ordering::Relaxed) >= silent_after;
            async move {
                if is_silent {
                    std::future::pending::<()>().await;
                }
                let status = Response::builder().status(503).body(Body::empty()).expect("it is an answer");
                Ok::<_, kube::Error>(status)
            }
        });
        let mut candidate = Candidate::new("l", "one");
        let leases: Api<Lease> = Api::namespaced(server.client(), "coppice");
        assert!(candidate.try_hold(&leases, &SystemClock::new()).await.expect("the server answers"));
        let began = tokio::time::Instant::now();
        let failing: Api<Lease> = Api::namespaced(Client::new(service, "bank"), "coppice");
        let error = keep(&mut candidate, &failing, &SystemClock::new(), began).await;
        assert_eq!(error.reason(), "LeaseLost");
        assert!(began.elapsed() < lease::DURATION, "{:?} with {silent_after} errors first", began.elapsed());
    }
}

#[tokio::test]
async fn an_operation_waits_for_its_cluster_and_is_left_alone_when_it_is_over() {
    let (server, context) = set_up(&json!({ "tls": { "plaintext": true } }));
    let path = "/apis/coppice.dev/v1alpha1/namespaces/bank/ledgeroperations/once";
    let object = |cluster: &str| {
        json!({
            "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerOperation",
            "metadata": { "name": "once", "namespace": "bank", "uid": "2" },
            "spec": { "cluster": cluster, "prune": { "before": 5, "reason": "r" } },
        })
    };
    let run = async |object: Value| {
        server.put(path, object.clone());
        let resource = serde_json::from_value(object).expect("it can be read");
        operation(Arc::new(resource), Arc::clone(&context)).await.expect("it goes on");
        server.get(path).expect("it is there")["status"].clone()
    };
    assert_eq!(run(object("other")).await["message"], "there is no LedgerCluster other");
    let waiting = run(object("ledger")).await;
    assert_eq!(waiting["phase"], "Pending");
    assert!(waiting["message"].as_str().is_some_and(|words| words.contains("no answer from")), "{waiting}");
    let mut over = object("ledger");
    over["status"] = json!({ "phase": "Failed", "message": "head moved" });
    server.writes();
    assert_eq!(run(over).await["message"], "head moved");
    assert_eq!(server.writes(), Vec::<String>::new());
}

#[test]
fn the_operator_may_not_do_more_than_it_does() {
    let uri = |path: &str| path.parse::<http::Uri>().expect("it is a path");
    assert!(is_allowed(&Method::GET, &uri("/api/v1/namespaces/bank/secrets/s"), false));
    for (method, path) in [
        (Method::GET, "/api/v1/namespaces/bank/secrets"),
        (Method::POST, "/api/v1/namespaces/bank/pods"),
        (Method::POST, "/api/v1/namespaces/bank/pods/p/exec"),
        (Method::DELETE, "/apis/coppice.dev/v1alpha1/namespaces/bank/ledgerclusters/l"),
        (Method::PATCH, "/apis/rbac.authorization.k8s.io/v1/namespaces/bank/roles/r"),
    ] {
        assert!(!is_allowed(&method, &uri(path), false), "{method} {path}");
    }
    assert!(rights().iter().all(|right| right.iter().all(|word| word != "*")), "nothing is allowed by a star");
}

/// The writes that delete something, without events.
fn deleted(server: &Server) -> Vec<String> {
    let writes = server.writes().into_iter();
    writes.filter_map(|write| write.strip_prefix("DELETE ").map(str::to_owned)).collect()
}

#[tokio::test]
async fn readers_come_and_go_and_volumes_stay_unless_the_policy_says_otherwise() {
    for policy in ["Retain", "Delete"] {
        let (server, context) = set_up(&json!({ "volumePolicy": policy, "readers": { "count": 3 } }));
        reconcile(&server, &context).await;
        run_pods(&server, "1");
        for index in 0..3 {
            assert!(server.get(&format!("{SECRETS}/ledger-reader-{index}-tls")).is_some());
            let name = format!("data-ledger-reader-{index}");
            let labels = json!({ "app.kubernetes.io/component": "reader" });
            server.put(&format!("{CLAIMS}/{name}"), json!({ "metadata": { "name": name, "labels": labels } }));
        }
        let name = "data-ledger-node-2";
        let labels = json!({ "app.kubernetes.io/component": "node" });
        server.put(&format!("{CLAIMS}/{name}"), json!({ "metadata": { "name": name, "labels": labels } }));
        let set_count = |count: u32| {
            let mut changed = server.get(CLUSTER).expect("the cluster is there");
            changed["spec"]["readers"]["count"] = json!(count);
            server.put(CLUSTER, changed);
            server.writes();
        };
        let volumes = |indices: &[u32]| -> Vec<String> {
            let of = |index: &u32| format!("{CLAIMS}/data-ledger-reader-{index}");
            indices.iter().filter(|_| policy == "Delete").map(of).collect()
        };
        let secret = |index: u32| format!("{SECRETS}/ledger-reader-{index}-tls");
        set_count(1);
        reconcile(&server, &context).await;
        let gone = [vec![secret(1), secret(2)], volumes(&[1, 2])].concat();
        assert_eq!(deleted(&server), gone, "{policy}");
        assert_eq!(server.get(&format!("{SETS}/ledger-reader")).expect("it is there")["spec"]["replicas"], 1);
        reconcile(&server, &context).await;
        assert_eq!(deleted(&server), [""; 0], "{policy}: once");

        set_count(0);
        reconcile(&server, &context).await;
        let shared = [
            "/apis/networking.k8s.io/v1/namespaces/bank/networkpolicies/ledger-reader",
            "/apis/policy/v1/namespaces/bank/poddisruptionbudgets/ledger-reader",
            "/api/v1/namespaces/bank/services/ledger-reader",
            "/apis/apps/v1/namespaces/bank/statefulsets/ledger-reader",
        ];
        let gone = [vec![secret(0)], shared.map(str::to_owned).to_vec(), volumes(&[0])].concat();
        assert_eq!(deleted(&server), gone, "{policy}");
        assert!(server.get(&format!("{CLAIMS}/data-ledger-node-2")).is_some(), "{policy}: a voter's volume stays");
        assert!(server.get(&format!("{SECRETS}/ledger-reader-tls")).is_some(), "it is a client's");
        // Settings that nothing mounts any more.
        reconcile(&server, &context).await;
        run_pods(&server, "2");
        server.objects().retain(|path, _| !path.starts_with(&format!("{PODS}/ledger-reader")));
        reconcile(&server, &context).await;
        let left: Vec<String> =
            server.objects().keys().filter(|path| path.contains("ledger-reader-")).cloned().collect();
        assert!(left.iter().all(|path| path.starts_with(CLAIMS) || path.ends_with("/ledger-reader-tls")), "{left:?}");
    }
}

#[tokio::test]
async fn readers_are_replaced_before_voters_and_do_not_hold_them_up() {
    let (server, context) = set_up(&json!({ "readers": { "count": 2 } }));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    for name in ["ledger-node-1", "ledger-reader-0"] {
        run_pod(&server, name, "0", &json!({ "waiting": { "reason": "ImagePullBackOff" } }));
    }
    server.writes();
    reconcile(&server, &context).await;
    assert_eq!(deleted(&server), [format!("{PODS}/ledger-reader-0 uid of ledger-reader-0")]);
    // It does not start with the new template, either: the voters go on.
    run_pod(&server, "ledger-reader-0", "1", &json!({ "waiting": { "reason": "ImagePullBackOff" } }));
    server.writes();
    reconcile(&server, &context).await;
    assert_eq!(deleted(&server), [format!("{PODS}/ledger-node-1 uid of ledger-node-1")]);
}

fn fleet(state: State) -> Fleet {
    let member = Member { name: "first".to_owned(), outdated: true, state };
    Fleet { members: vec![member], groups: None, unborn: false }
}

#[tokio::test]
async fn a_role_waits_for_those_before_it_unless_its_pods_are_broken() {
    let (server, _) = set_up(&json!({}));
    let facts = Facts {
        cluster: LedgerCluster::clone(&the_cluster(&server)),
        cluster_id: String::new(),
        signing_secret: "k".to_owned(),
        next_key: false,
        founded: true,
        certificates: BTreeMap::new(),
    };
    let done = Fleet { members: Vec::new(), groups: None, unborn: false };
    let healthy = |name: &str| {
        let groups = vec![rollout::Group {
            name: name.to_owned(),
            parts: [(0, rollout::Part::Votes)].into(),
            quorum: 1,
            led: true,
            ghosts: 0,
        }];
        Fleet { groups: Some(groups), ..fleet(State::Ready) }
    };
    let waits = fleet(State::Running);
    let fleets = |nodes: &Fleet, coordinators: &Fleet| {
        vec![(Role::Etcd, done.clone()), (Role::Node, nodes.clone()), (Role::Coordinator, coordinators.clone())]
    };
    assert_eq!(plan(&facts, &fleets(&waits, &healthy("c"))), Plan::Wait("first is not ready yet".to_owned()));
    let broken = Plan::Restart { pod: "first".to_owned(), why: "its process does not run" };
    assert_eq!(plan(&facts, &fleets(&waits, &fleet(State::Stopped))), broken, "nodes may be waiting for it");
    assert!(matches!(plan(&facts, &fleets(&done, &healthy("c"))), Plan::Restart { .. }));
    assert_eq!(plan(&facts, &fleets(&done, &done)), Plan::Current);
    assert_eq!(plan(&facts, &[]), Plan::Wait("ledger-etcd is being made".to_owned()));
    let mut facts = facts;
    facts.cluster.spec.readers = Some(serde_json::from_value(json!({ "count": 2 })).expect("it can be read"));
    let with_readers = |first: (bool, State), second: (bool, State)| {
        let members = [first, second].into_iter().zip(["r0", "r1"]);
        let member = |((outdated, state), name): (_, &str)| Member { name: name.to_owned(), outdated, state };
        let readers = Fleet { members: members.map(member).collect(), groups: Some(Vec::new()), unborn: false };
        let mut fleets = fleets(&healthy("n"), &done);
        fleets.push((Role::Reader, readers));
        match plan(&facts, &fleets) {
            Plan::Restart { pod, .. } => pod,
            Plan::Wait(words) => words,
            Plan::Current => String::new(),
        }
    };
    assert_eq!(with_readers((true, State::Ready), (true, State::Ready)), "r1", "readers come before voters");
    assert_eq!(with_readers((true, State::Ready), (false, State::Running)), "r1 is not ready yet");
    assert_eq!(with_readers((true, State::Ready), (false, State::Stalled)), "r0");
    for state in [State::Gone, State::Running, State::Stopped, State::Stalled] {
        assert_eq!(with_readers((false, State::Ready), (false, state)), "first", "no voter waits for a new reader");
    }
}

#[test]
fn leaders_that_are_unevenly_spread_are_moved_after_a_while_and_not_all_at_once() {
    let (uneven, clock) = (Uneven::default(), coppice_env::SimClock::new(0));
    let due_after = |seconds: u64, uid: &str, is_uneven: bool| {
        clock.advance(Duration::from_secs(seconds));
        uneven.is_due(uid.to_owned(), is_uneven, clock.now())
    };
    assert!(!due_after(0, "one", true), "it may be over in a moment");
    assert!(!due_after(59, "one", true));
    assert!(due_after(1, "one", true));
    assert!(!due_after(0, "two", true), "each cluster by itself");
    assert!(!due_after(59, "one", true), "one move, then a pause");
    assert!(due_after(1, "one", true));
    assert!(!due_after(30, "one", false));
    assert!(!due_after(60, "one", true), "it was even meanwhile");
}

#[tokio::test]
async fn what_somebody_else_made_is_neither_taken_over_nor_deleted() {
    for (path, object) in [
        (
            "/api/v1/namespaces/bank/serviceaccounts/ledger",
            json!({ "metadata": { "name": "ledger", "namespace": "bank" } }),
        ),
        (
            "/api/v1/namespaces/bank/services/ledger",
            json!({ "metadata": { "name": "ledger", "namespace": "bank" }, "spec": {} }),
        ),
        (
            "/api/v1/namespaces/bank/secrets/ledger-node-0-tls",
            json!({ "metadata": { "name": "ledger-node-0-tls", "namespace": "bank" }, "data": {} }),
        ),
        (
            "/apis/apps/v1/namespaces/bank/statefulsets/ledger-node",
            json!({ "metadata": { "name": "ledger-node", "namespace": "bank",
                "labels": { "app.kubernetes.io/managed-by": "coppice-operator", "app.kubernetes.io/instance": "other" } } }),
        ),
    ] {
        let (server, context) = set_up(&json!({}));
        server.put(path, object.clone());
        reconcile(&server, &context).await;
        assert_eq!(condition(&server, "Ready"), ("False".to_owned(), "NameTaken".to_owned()), "{path}");
        assert_eq!(server.get(path), Some(object), "{path}");
    }
    let (server, _) = set_up(&json!({ "volumePolicy": "Delete" }));
    let key = json!({ "metadata": { "name": "ledger-signing-key", "namespace": "bank" }, "data": { "a": "" } });
    let path = format!("{SECRETS}/ledger-signing-key");
    server.put(&path, key.clone());
    crate::reconcile::apply::clean_up(&server.client(), &the_cluster(&server)).await.expect("it is cleaned up");
    assert_eq!(server.get(&path), Some(key), "the operator did not make it");
}

#[tokio::test]
async fn no_name_in_a_resource_leads_out_of_its_namespace() {
    let elsewhere = "../../vault/secrets/key";
    for spec in [
        json!({ "signingKey": { "secret": elsewhere } }),
        json!({ "tls": { "secrets": { "nodes": elsewhere, "coordinators": "c" } } }),
    ] {
        let (server, context) = set_up(&spec);
        reconcile(&server, &context).await;
        assert_eq!(condition(&server, "Valid"), ("False".to_owned(), "InvalidSpecification".to_owned()), "{spec}");
    }
    let (server, context) = set_up(&json!({ "tls": { "plaintext": true } }));
    let path = "/apis/coppice.dev/v1alpha1/namespaces/bank/ledgeroperations/once";
    let object = json!({
        "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerOperation",
        "metadata": { "name": "once", "namespace": "bank", "uid": "2" },
        "spec": { "cluster": "../../vault/ledgerclusters/l", "prune": { "before": 5, "reason": "r" } },
    });
    server.put(path, object.clone());
    let resource = serde_json::from_value(object).expect("it can be read");
    operation(Arc::new(resource), Arc::clone(&context)).await.expect("it goes on");
    let told = server.get(path).expect("it is there")["status"]["message"].clone();
    assert!(told.as_str().is_some_and(|words| words.contains("is not a name")), "{told}");
}
