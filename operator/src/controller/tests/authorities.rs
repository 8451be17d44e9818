//! Authorities and certificates: replacements come in stages, and no stage locks anybody out.

use super::*;
use crate::reconcile::dereference::authority;

/// A file of a secret.
fn file(server: &Server, secret: &str, name: &str) -> String {
    let secret = server.get(&format!("{SECRETS}/{secret}")).expect("the secret is there");
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret).expect("it is one");
    String::from_utf8(secret.data.expect("it has files")[name].0.clone()).expect("it is PEM")
}

/// Whether a process that trusts these authorities accepts this certificate, as client and as
/// server.
fn believes(authorities: &str, certificate: &str) -> bool {
    use rustls::pki_types::{CertificateDer, UnixTime, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.expect("it is PEM")).expect("it is an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let shown = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("it is PEM");
    let now = UnixTime::since_unix_epoch(Duration::from_secs(SystemClock::new().wall_ms() / 1000));
    verifier.build().expect("there is an authority").verify_client_cert(&shown, &[], now).is_ok()
}

/// The processes that connect to etcd, and its members, while they run. A member trusts what it
/// read at its start; all other files are read again when they change.
struct Processes {
    server: Arc<Server>,
    context: Arc<Context>,
    /// For each pod, the secret that it mounts for etcd, and the authorities that it trusted at its
    /// start.
    mounted: BTreeMap<String, (String, String)>,
}

impl Processes {
    /// Makes a pod again, from the current template.
    fn start(&mut self, pod: &str, revision: &str) {
        run_pod(&self.server, pod, revision, &json!({ "running": {} }));
        let made = self.server.get(&format!("{PODS}/{pod}")).expect("it was made");
        let volumes = made["spec"]["volumes"].as_array().expect("it has volumes");
        let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name);
        let volume = volume("etcd-tls").or_else(|| volume("tls")).expect("it has a certificate");
        let secret = volume["secret"]["secretName"].as_str().expect("it is a secret").to_owned();
        let believed = file(&self.server, &secret, "ca.crt");
        self.mounted.insert(pod.to_owned(), (secret, believed));
    }

    /// Checks that every member accepts every other member and every coordinator, and that every
    /// coordinator accepts every member.
    fn assert_nobody_is_locked_out(&self, when: &str) {
        let shown = |secret: &str| file(&self.server, secret, "tls.crt");
        for (name, (secret, believed)) in &self.mounted {
            let is_member = |name: &str| name.contains("-etcd-");
            let believed = if is_member(name) { believed.clone() } else { file(&self.server, secret, "ca.crt") };
            for (other, (shows, _)) in &self.mounted {
                let connect = is_member(name) || is_member(other);
                assert!(!connect || believes(&believed, &shown(shows)), "{when}: {name} does not believe {other}");
            }
        }
    }

    /// Rolls out what the operator wants, one pod after the other, until it wants nothing more.
    /// Returns the number of rollouts.
    async fn settle(&mut self, first_revision: u32) -> u32 {
        let template = |server: &Server, set: &str| {
            server.get(&format!("{SETS}/{set}")).expect("the set is there")["spec"]["template"].clone()
        };
        let sets = ["ledger-etcd", "ledger-coordinator"];
        for round in 0.. {
            assert!(round < 6, "there is no end of it");
            let before = sets.map(|set| template(&self.server, set));
            // The first look may find that all pods were made in a stage; the second one begins the
            // next.
            reconcile(&self.server, &self.context).await;
            self.assert_nobody_is_locked_out("the operator looked");
            reconcile(&self.server, &self.context).await;
            if round > 0 && sets.map(|set| template(&self.server, set)) == before {
                return round;
            }
            let revision = (first_revision + round).to_string();
            for set in ["ledger-etcd", "ledger-node", "ledger-coordinator"] {
                let path = format!("{SETS}/{set}");
                let mut object = self.server.get(&path).expect("the set is there");
                let generation = object["metadata"]["generation"].clone();
                merge(
                    &mut object,
                    &json!({ "status": { "observedGeneration": generation, "updateRevision": revision } }),
                );
                self.server.put(&path, object);
            }
            let stage = |server: &Server| server.get(&format!("{SECRETS}/ledger-etcd-authority"));
            let begun = stage(&self.server);
            for index in 0..3 {
                run_pod(&self.server, &format!("ledger-node-{index}"), &revision, &json!({ "running": {} }));
            }
            for pod in ["etcd-2", "etcd-1", "etcd-0", "coordinator-1", "coordinator-0"] {
                reconcile(&self.server, &self.context).await;
                assert_eq!(stage(&self.server), begun, "the pod {pod} is of the former stage");
                self.start(&format!("ledger-{pod}"), &revision);
                self.assert_nobody_is_locked_out(pod);
            }
        }
        unreachable!("it returns above")
    }
}

/// A cluster from the time when etcd had no authority of its own.
async fn former_cluster() -> Processes {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    for secret in ["authority", "client-tls", "server-tls"] {
        server.objects().remove(&format!("{SECRETS}/ledger-etcd-{secret}"));
    }
    // The secret states no role: to etcd, its certificate is like a coordinator's.
    let of_cluster = server.get(&format!("{SECRETS}/ledger-coordinator-0-tls")).expect("it was made");
    server.put(&format!("{SECRETS}/ledger-etcd-tls"), of_cluster);
    for (set, of_etcd) in [("ledger-etcd", "ledger-etcd-tls"), ("ledger-coordinator", "ledger-coordinator-0-tls")] {
        let path = format!("{SETS}/{set}");
        let mut object = server.get(&path).expect("it was made");
        object["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "tls", "secret": { "secretName": of_etcd } }]);
        server.put(&path, object);
    }
    run_pods(&server, "0");
    let mut processes = Processes { server, context, mounted: BTreeMap::new() };
    for pod in ["etcd-0", "etcd-1", "etcd-2", "coordinator-0", "coordinator-1"] {
        processes.start(&format!("ledger-{pod}"), "0");
    }
    processes.assert_nobody_is_locked_out("before the upgrade");
    processes
}

#[tokio::test]
async fn a_cluster_whose_etcd_trusted_everybody_gets_an_authority_of_its_own_without_locking_anybody_out() {
    let mut processes = former_cluster().await;
    let reader = file(&processes.server, "ledger-reader-tls", "tls.crt");
    let members = |processes: &Processes| {
        let is_member = |name: &&String| name.contains("-etcd-");
        let names: Vec<String> = processes.mounted.keys().filter(is_member).cloned().collect();
        names.iter().map(|name| processes.mounted[name].1.clone()).collect::<Vec<_>>()
    };
    assert!(members(&processes).iter().all(|believed| believes(believed, &reader)), "so it was");
    assert_eq!(processes.settle(1).await, 3);
    assert!(members(&processes).iter().all(|believed| !believes(believed, &reader)));
    let authority = file(&processes.server, "ledger-etcd-authority", "tls.crt");
    assert!(members(&processes).iter().all(|believed| *believed == authority));

    // The next authority is introduced in the same stages.
    processes.server.objects().remove(&format!("{SECRETS}/ledger-etcd-authority"));
    assert_eq!(processes.settle(4).await, 3);
    let other = file(&processes.server, "ledger-etcd-authority", "tls.crt");
    assert!(other != authority && members(&processes).iter().all(|believed| *believed == other));
}

#[tokio::test]
async fn the_stages_of_an_authority_do_not_depend_on_secrets_that_are_gone() {
    let mut processes = former_cluster().await;
    reconcile(&processes.server, &processes.context).await;
    processes.server.objects().remove(&format!("{SECRETS}/ledger-etcd-server-tls"));
    processes.server.objects().remove(&format!("{SECRETS}/ledger-etcd-client-tls"));
    assert_eq!(processes.settle(1).await, 3);
}

#[tokio::test]
async fn a_new_cluster_has_an_authority_for_etcd_alone_from_the_beginning() {
    let issuer = json!({ "tls": { "certManager": { "issuer": "i" } } });
    let secrets = json!({ "tls": { "secrets": { "nodes": "n", "coordinators": "c" } } });
    for spec in [json!({}), issuer, secrets] {
        let (server, context) = set_up(&spec);
        reconcile(&server, &context).await;
        let authority = file(&server, "ledger-etcd-authority", "tls.crt");
        for secret in ["ledger-etcd-server-tls", "ledger-etcd-client-tls"] {
            assert_eq!(file(&server, secret, "ca.crt"), authority, "{spec}: {secret}");
            assert!(believes(&authority, &file(&server, secret, "tls.crt")), "{spec}: {secret}");
        }
        let asked = server.objects().keys().any(|path| path.ends_with("/certificates/ledger-etcd"));
        assert!(!asked, "{spec}: an issuer's certificates are everybody's");
    }
}

/// The authorities that a process trusts, and the certificate that it shows.
type Files = (String, String);

/// Nodes, coordinators, and a remote client whose files a person has to bring.
struct Ledger {
    server: Arc<Server>,
    context: Arc<Context>,
    /// The files of each pod's secret at its start.
    pods: BTreeMap<String, Files>,
    client: Files,
}

impl Ledger {
    fn files(&self, secret: &str) -> Files {
        (file(&self.server, secret, "ca.crt"), file(&self.server, secret, "tls.crt"))
    }

    fn start(&mut self, pod: &str, revision: &str) {
        run_pod(&self.server, pod, revision, &json!({ "running": {} }));
        self.pods.insert(pod.to_owned(), self.files(&format!("{pod}-tls")));
    }

    /// Checks that all processes accept each other, whether or not they have read their files again
    /// since their start.
    fn assert_nobody_is_locked_out(&self, when: &str) {
        let now =
            ["ledger-node-0-tls", "ledger-node-2-tls", "ledger-coordinator-1-tls"].map(|secret| self.files(secret));
        let all: BTreeSet<&Files> = self.pods.values().chain(&now).chain([&self.client]).collect();
        for (believed, _) in &all {
            assert!(all.iter().all(|(_, shown)| believes(believed, shown)), "{when}");
        }
    }

    async fn look(&self, when: &str) {
        reconcile(&self.server, &self.context).await;
        self.assert_nobody_is_locked_out(when);
    }

    /// Replaces all pods, one after the other.
    async fn roll_out(&mut self, revision: &str) {
        for (set, count) in [("ledger-node", 3), ("ledger-coordinator", 2)] {
            let path = format!("{SETS}/{set}");
            let mut object = self.server.get(&path).expect("the set is there");
            let generation = object["metadata"]["generation"].clone();
            merge(&mut object, &json!({ "status": { "observedGeneration": generation, "updateRevision": revision } }));
            self.server.put(&path, object);
            for index in 0..count {
                let begun = self.stage();
                self.look("before a pod is replaced").await;
                assert_eq!(self.stage(), begun, "a pod is of the former stage");
                self.start(&format!("{set}-{index}"), revision);
                self.assert_nobody_is_locked_out("a pod was replaced");
            }
        }
    }

    fn stage(&self) -> Value {
        let secret = self.server.get(&format!("{SECRETS}/ledger-authority")).expect("it is there");
        secret["metadata"]["annotations"]["coppice.dev/stage"].clone()
    }
}

#[tokio::test]
async fn another_authority_of_the_ledger_locks_nobody_out_and_waits_for_clients() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    run_pods(&server, "0");
    let mut ledger = Ledger { server, context, pods: BTreeMap::new(), client: Files::default() };
    ledger.client = ledger.files("ledger-writer-tls");
    for pod in ["node-0", "node-1", "node-2", "coordinator-0", "coordinator-1"] {
        ledger.start(&format!("ledger-{pod}"), "0");
    }
    let former = file(&ledger.server, "ledger-authority", "tls.crt");
    ledger.server.objects().remove(&format!("{SECRETS}/ledger-authority"));
    for (revision, stage) in [("1", "believed"), ("2", "shown")] {
        ledger.look("the operator looked").await;
        ledger.look("the operator looked again").await;
        assert_eq!(ledger.stage(), json!(stage));
        ledger.roll_out(revision).await;
        // However often the operator looks, a person has to say that clients have followed.
        for _ in 0..3 {
            ledger.look("all pods are of the stage").await;
        }
        assert_eq!(ledger.stage(), json!(stage));
        let told = the_cluster(&ledger.server).status.clone().expect("it is written").conditions;
        let told = told.into_iter().find(|condition| condition.type_ == "Progressing").expect("it is reported").message;
        let command = format!("kubectl annotate --overwrite secret ledger-authority {}={stage}", authority::CLIENTS);
        assert!(told.ends_with(&command), "{told}");
        ledger.client = ledger.files("ledger-writer-tls");
        ledger.assert_nobody_is_locked_out("clients came along");
        let path = format!("{SECRETS}/ledger-authority");
        let mut secret = ledger.server.get(&path).expect("it is there");
        secret["metadata"]["annotations"][authority::CLIENTS] = json!(stage);
        ledger.server.put(&path, secret);
    }
    ledger.look("the operator looked").await;
    assert_eq!(ledger.stage(), Value::Null);
    ledger.roll_out("3").await;
    let other = file(&ledger.server, "ledger-authority", "tls.crt");
    assert_ne!(other, former);
    assert!(ledger.pods.values().all(|(believed, shown)| *believed == other && !believes(&former, shown)));
}

#[tokio::test]
async fn an_authority_that_ends_soon_is_followed_by_another_one_or_a_person_is_told() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    run_pods(&server, "1");
    let progress = || {
        let told = the_cluster(&server).status.clone().expect("it is written").conditions;
        told.into_iter().find(|condition| condition.type_ == "Progressing").expect("it is reported").message
    };
    for (authority, certificate) in
        [("ledger-authority", "ledger-node-0-tls"), ("ledger-etcd-authority", "ledger-etcd-server-tls")]
    {
        let path = format!("{SECRETS}/{authority}");
        let former = file(&server, authority, "tls.crt");
        let mut secret = server.get(&path).expect("it is there");
        let now = i64::try_from(SystemClock::new().wall_ms() / 1000).expect("a time");
        let mut end_at = |ends: i64| {
            secret["metadata"]["annotations"]["coppice.dev/not-after"] = json!(ends.to_string());
            server.put(&path, secret.clone());
        };
        end_at(now + certificates::AUTHORITY_RENEWED_BEFORE_SECONDS + 1000);
        reconcile(&server, &context).await;
        assert_eq!(file(&server, authority, "tls.crt"), former, "it lasts long enough");
        end_at(now + 5000);
        reconcile(&server, &context).await;
        let shown = file(&server, certificate, "tls.crt");
        reconcile(&server, &context).await;
        assert_eq!(file(&server, certificate, "tls.crt"), shown, "it is not made again and again");
        let stage = server.get(&path).expect("it is there")["metadata"]["annotations"]["coppice.dev/stage"].clone();
        if authority == "ledger-authority" {
            // The ledger's clients could be locked out.
            assert_eq!((file(&server, authority, "tls.crt"), stage), (former, Value::Null));
            assert!(progress().contains("kubectl delete secret ledger-authority"), "{}", progress());
        } else {
            assert_ne!(file(&server, authority, "tls.crt"), former);
            assert_eq!(stage, "believed");
        }
    }
}

#[tokio::test]
async fn an_issuer_that_is_no_longer_asked_is_replaced_by_an_authority_in_stages() {
    let (server, context) = set_up(&json!({}));
    reconcile(&server, &context).await;
    let with = |tls: Value| {
        let mut object = server.get(CLUSTER).expect("the cluster is there");
        object["spec"]["tls"] = tls;
        server.put(CLUSTER, object);
    };
    with(json!({ "certManager": { "issuer": "i" } }));
    reconcile(&server, &context).await;
    assert_eq!(server.get(&format!("{SECRETS}/ledger-authority")), None, "it signs nothing any more");
    // The issuer has an authority of its own, and the running pods were made with it.
    let issued = file(&server, "ledger-etcd-authority", "tls.crt");
    for secret in ["ledger-node-0-tls", "ledger-coordinator-0-tls"] {
        let path = format!("{SECRETS}/{secret}");
        let mut object = server.get(&path).expect("it is there");
        object["data"]["ca.crt"] =
            server.get(&format!("{SECRETS}/ledger-etcd-authority")).expect("there")["data"]["tls.crt"].clone();
        server.put(&path, object);
    }
    run_pods(&server, "1");
    for index in 0..3 {
        run_pod(&server, &format!("ledger-node-{index}"), "1", &json!({ "running": {} }));
    }
    let certificates = "/apis/cert-manager.io/v1/namespaces/bank/certificates";
    let asked = || server.objects().keys().filter(|path| path.starts_with(certificates)).count();
    assert!(asked() > 2);
    let foreign = format!("{certificates}/ledger-reader");
    server.put(
        &foreign,
        json!({ "metadata": { "name": "ledger-reader", "labels": { "app.kubernetes.io/managed-by": "Helm" } } }),
    );
    with(json!({}));
    reconcile(&server, &context).await;
    assert_eq!(asked(), 1, "two would write the same secrets");
    assert!(server.get(&foreign).is_some(), "it is somebody else's");
    let authority = server.get(&format!("{SECRETS}/ledger-authority")).expect("it was made");
    assert_eq!(authority["metadata"]["annotations"]["coppice.dev/stage"], "believed");
    let believed = file(&server, "ledger-node-0-tls", "ca.crt");
    assert!(believed.contains(&issued) && believed.contains(&file(&server, "ledger-authority", "tls.crt")));
}
