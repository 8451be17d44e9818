//! The objects that a cluster consists of, as pure functions of its specification and a few facts.
//!
//! Pods are run by StatefulSets with `OnDelete`: deleted pods and lost volumes come back even while
//! the operator is away, yet only [`crate::rollout`] decides when a pod is replaced. Settings are
//! in config maps that never change: their name holds a hash of their content, so a pod that
//! restarts has the settings of the template that it was made from.
//!
//! Invariant: no field is lost between what is written here and what is applied (`Object::new`
//! compares).

mod config;
mod coordinators;
mod etcd;
mod network;
mod nodes;
mod pod;
mod together;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt::Write as _};

use coppice_verify::hash::sha256;
use kube::{Resource, ResourceExt, api::ApiResource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    certificates::{CLIENT_DAYS, ETCD_DAYS, Holder, PROCESS_DAYS},
    crd::{LedgerCluster, LedgerClusterSpec},
};

/// The port of nodes.
pub const NODE_PORT: u16 = 7400;
/// The coordinators' port for clients.
pub const CLIENT_PORT: u16 = 7411;
/// The coordinators' port for the root log over HTTP.
pub const HTTP_PORT: u16 = 7421;
/// The port for health and metrics of nodes and coordinators, in the clear.
pub const HEALTH_PORT: u16 = 7431;
/// The field manager of all applied objects, and the value of `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "coppice-operator";

/// The clients that get a certificate, with their roles: one client for each role, and one for load
/// tests, some of which also remove what they wrote. Certificates of members are the user's.
pub const CLIENTS: [(&str, &[&str]); 6] = [
    ("reader", &["reader"]),
    ("writer", &["writer"]),
    ("operator", &["operator"]),
    ("auditor", &["auditor"]),
    (COSIGNER, &[COSIGNER]),
    ("load", &["writer", "operator"]),
];
/// The client whose certificate also names it as a process: coordinators take a stream only from
/// the process that the stream names.
const COSIGNER: &str = "cosigner";

/// The kinds of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A member of the managed etcd.
    Etcd,
    /// A node with copies that serve reads and never vote.
    Reader,
    /// A node whose replicas vote.
    Node,
    /// A coordinator, which clients connect to.
    Coordinator,
}

impl Role {
    /// All roles, in the order of replacement: readers before voters, since they must understand
    /// what voters log, and nodes before coordinators, which may speak a newer protocol.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Reader, Self::Node, Self::Coordinator];

    /// The role in object names and in `app.kubernetes.io/component`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Reader => "reader",
            Self::Node => "node",
            Self::Coordinator => "coordinator",
        }
    }

    /// The role in certificates. To other processes, a reader is a node.
    #[must_use]
    pub fn certified(self) -> &'static str {
        if self == Self::Reader { Self::Node.name() } else { self.name() }
    }
}

/// The set of processes that trust one authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    /// Nodes, coordinators and clients.
    Ledger,
    /// The managed etcd and coordinators.
    Etcd,
}

/// A cluster, with the data that had to be looked up for it.
#[derive(Clone, Debug)]
pub struct Facts {
    pub cluster: LedgerCluster,
    /// The cluster's id in hex, from the signing key.
    pub cluster_id: String,
    /// The secret that holds the signing key.
    pub signing_secret: String,
    /// Whether that secret has a second key, `next.key`.
    pub next_key: bool,
    /// Whether the ledger was founded: then no node may found it again.
    pub founded: bool,
    /// A name for the certificates of each role. Processes read theirs at their start, so pods are
    /// replaced when this name changes.
    pub certificates: BTreeMap<Role, String>,
}

/// An object to be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub resource: ApiResource,
    /// The object, as it is sent.
    pub body: Value,
}

impl Object {
    /// Makes an object of kind `K`.
    ///
    /// # Panics
    /// If the kind lacks a field of the body, or the field has a different type: a mistake in this
    /// module.
    fn new<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned>(mut body: Value) -> Self {
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(K::kind(&()));
        let typed: K = serde_json::from_value(body.clone()).expect("the body has the types of its kind");
        let kept = serde_json::to_value(typed).expect("an object of Kubernetes is JSON");
        assert_eq!(lost(&body, &kept), None, "{} has no such field", K::kind(&()));
        Self { resource: ApiResource::erase::<K>(&()), body: kept }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Facts {
    #[must_use]
    pub fn spec(&self) -> &LedgerClusterSpec {
        &self.cluster.spec
    }

    #[must_use]
    pub fn name(&self) -> String {
        self.cluster.name_any()
    }

    #[must_use]
    pub fn namespace(&self) -> String {
        self.cluster.namespace().unwrap_or_else(|| "default".to_owned())
    }

    /// The common name of a role's StatefulSet, headless service and disruption budget.
    #[must_use]
    pub fn set(&self, role: Role) -> String {
        format!("{}-{}", self.name(), role.name())
    }

    /// The pods of a role, in order.
    #[must_use]
    pub fn pods(&self, role: Role) -> Vec<String> {
        (0..self.count(role)).map(|index| format!("{}-{index}", self.set(role))).collect()
    }

    /// The number of pods of a role.
    #[must_use]
    pub fn count(&self, role: Role) -> u32 {
        match role {
            Role::Node => self.spec().nodes.count,
            Role::Coordinator | Role::Etcd | Role::Reader if self.spec().one_process => 0,
            Role::Reader => self.spec().readers.as_ref().map_or(0, |readers| readers.count),
            Role::Coordinator => self.spec().coordinators.count,
            Role::Etcd if self.spec().etcd.external.is_some() => 0,
            Role::Etcd => 3,
        }
    }

    /// The role whose pods serve clients.
    #[must_use]
    pub fn serving(&self) -> Role {
        if self.spec().one_process { Role::Node } else { Role::Coordinator }
    }

    /// The host name of a pod.
    #[must_use]
    pub fn host(&self, role: Role, pod: &str) -> String {
        format!("{pod}.{}.{}.svc", self.set(role), self.namespace())
    }

    /// The host names that the certificate of these pods of a role must contain.
    #[must_use]
    pub fn hosts(&self, role: Role, pods: &[String]) -> Vec<String> {
        let mut hosts: Vec<String> = pods.iter().map(|pod| self.host(role, pod)).collect();
        if role == self.serving() {
            let (name, namespace) = (self.name(), self.namespace());
            hosts.extend([
                name.clone(),
                format!("{name}.{namespace}"),
                format!("{name}.{namespace}.svc"),
                format!("{name}.{namespace}.svc.cluster.local"),
                "localhost".to_owned(),
            ]);
            hosts.extend(self.spec().service.dns_names.iter().cloned());
        }
        hosts
    }

    /// The secrets with a role's certificates, in the order of its pods. Each node and each
    /// coordinator has its own, so that none can speak for another. All members of etcd share one.
    /// Empty if connections are not encrypted.
    #[must_use]
    pub fn tls_secrets(&self, role: Role) -> Vec<String> {
        let tls = &self.spec().tls;
        if tls.plaintext || self.count(role) == 0 {
            return Vec::new();
        }
        let own = tls.secrets.as_ref();
        let of_pods = match role {
            Role::Etcd => {
                let own = own.and_then(|secrets| secrets.etcd.clone());
                return vec![own.unwrap_or_else(|| format!("{}-server-tls", self.set(role)))];
            }
            Role::Node => own.map(|secrets| &secrets.nodes),
            Role::Reader => own.and_then(|secrets| secrets.readers.as_ref()),
            Role::Coordinator => own.map(|secrets| &secrets.coordinators),
        };
        let name = |index| match of_pods {
            Some(prefix) => format!("{prefix}-{index}"),
            None => format!("{}-{index}-tls", self.set(role)),
        };
        (0..self.count(role)).map(name).collect()
    }

    /// The secret with the certificate that coordinators show to etcd, and the authority that they
    /// trust there. `None` if etcd is reached in the clear, or with each coordinator's own
    /// certificate ([`Facts::shows_etcd_its_own`]).
    #[must_use]
    pub fn etcd_client_secret(&self) -> Option<String> {
        if let Some(external) = &self.spec().etcd.external {
            return external.tls_secret.clone();
        }
        if self.keeps_etcd_authority() {
            return Some(format!("{}-client-tls", self.set(Role::Etcd)));
        }
        self.spec().tls.secrets.as_ref().and_then(|secrets| secrets.etcd_client.clone())
    }

    /// Whether coordinators show their general certificates to a managed etcd.
    #[must_use]
    pub fn shows_etcd_its_own(&self) -> bool {
        self.spec().etcd.external.is_none() && !self.spec().tls.plaintext && self.etcd_client_secret().is_none()
    }

    /// The secret with the operator's certificate for calls to coordinators: that of the client
    /// with role `operator`, unless the user keeps all certificates. `None` if connections are not
    /// encrypted.
    #[must_use]
    pub fn own_secret(&self) -> Option<String> {
        if self.spec().tls.secrets.is_some() {
            return self.tls_secrets(self.serving()).into_iter().next();
        }
        (!self.spec().tls.plaintext).then(|| format!("{}-operator-tls", self.name()))
    }

    /// The config map with the list of withdrawn certificates; `None` if connections are not
    /// encrypted.
    #[must_use]
    pub fn withdrawn(&self) -> Option<String> {
        (!self.spec().tls.plaintext).then(|| format!("{}-withdrawn", self.name()))
    }

    /// Whether the operator makes the certificates of etcd: if it runs etcd, unless the user names
    /// a secret. No issuer is asked for them.
    #[must_use]
    pub fn keeps_etcd_authority(&self) -> bool {
        let tls = &self.spec().tls;
        let given = tls.secrets.as_ref().is_some_and(|secrets| secrets.etcd.is_some());
        self.count(Role::Etcd) > 0 && !tls.plaintext && !given
    }

    /// The realms whose authorities the operator keeps.
    #[must_use]
    pub fn authorities(&self) -> Vec<Realm> {
        let tls = &self.spec().tls;
        let ledger = !tls.plaintext && tls.cert_manager.is_none() && tls.secrets.is_none();
        let kept = [(Realm::Ledger, ledger), (Realm::Etcd, self.keeps_etcd_authority())];
        kept.into_iter().filter_map(|(of, is_kept)| is_kept.then_some(of)).collect()
    }

    /// The secret of a realm's authority.
    #[must_use]
    pub fn authority(&self, of: Realm) -> String {
        match of {
            Realm::Ledger => format!("{}-authority", self.name()),
            Realm::Etcd => format!("{}-authority", self.set(Role::Etcd)),
        }
    }

    /// The holders of certificates of a realm's authority, with their role and the secret of each,
    /// unless others keep them. The ledger's holders are nodes, coordinators and clients, which are
    /// not pods of this cluster. Those of etcd are its members, and coordinators as its clients.
    #[must_use]
    pub fn holders(&self, of: Realm) -> Vec<(Option<Role>, Holder, String)> {
        if of == Realm::Etcd {
            let of_etcd = |role: Role, hosts, secret: Option<String>| {
                let name = self.set(role);
                let holder = Holder { name, hosts, roles: Vec::new(), is_process: false, days: ETCD_DAYS };
                (Some(role), holder, secret.unwrap_or_default())
            };
            let hosts = self.hosts(Role::Etcd, &self.pods(Role::Etcd));
            return vec![
                of_etcd(Role::Etcd, hosts, self.tls_secrets(Role::Etcd).pop()),
                of_etcd(Role::Coordinator, Vec::new(), self.etcd_client_secret()),
            ];
        }
        let client = |(client, roles): (&str, &[&'static str])| {
            let name = format!("{}-{client}", self.name());
            let secret = format!("{name}-tls");
            let (roles, is_process) = (roles.to_vec(), client == COSIGNER);
            (None, Holder { name, hosts: Vec::new(), roles, is_process, days: CLIENT_DAYS }, secret)
        };
        let process = |role: Role| {
            let hosts = move |pod: &String| self.hosts(role, std::slice::from_ref(pod));
            let roles = move || match self.spec().one_process {
                true => vec![Role::Node.name(), Role::Coordinator.name()],
                false => vec![role.certified()],
            };
            self.pods(role).into_iter().zip(self.tls_secrets(role)).map(move |(name, secret)| {
                let hosts = hosts(&name);
                (Some(role), Holder { name, hosts, roles: roles(), is_process: true, days: PROCESS_DAYS }, secret)
            })
        };
        let processes = [Role::Node, Role::Reader, Role::Coordinator].into_iter().flat_map(process);
        processes.chain(CLIENTS.map(client)).collect()
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.spec().tls.plaintext { "http" } else { "https" }
    }

    /// The endpoint for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://{}.{}.svc:{CLIENT_PORT}", self.scheme(), self.name(), self.namespace())
    }

    /// The endpoint of the root log over HTTP.
    #[must_use]
    pub fn http_endpoint(&self) -> String {
        format!("{}://{}.{}.svc:{HTTP_PORT}", self.scheme(), self.name(), self.namespace())
    }

    /// The operator's endpoints. They include coordinators that aren't ready, since they can say
    /// what is wrong.
    #[must_use]
    pub fn coordinators(&self) -> String {
        let endpoint = |pod: &String| format!("{}://{}:{CLIENT_PORT}", self.scheme(), self.host(self.serving(), pod));
        self.pods(self.serving()).iter().map(endpoint).collect::<Vec<_>>().join(",")
    }

    /// The groups with their hosts, as places among the nodes. The root group is first; shards are
    /// dealt out in turn.
    #[must_use]
    pub fn placement(&self) -> Vec<(String, Vec<usize>)> {
        let nodes = self.spec().nodes.count;
        let most = nodes.min(5);
        let odd = if most.is_multiple_of(2) { most - 1 } else { most };
        let hosts = |first: u32, replicas: Option<u32>| {
            let replicas = replicas.unwrap_or(odd).min(nodes);
            let mut hosts: Vec<usize> = (0..replicas).map(|index| ((first + index) % nodes) as usize).collect();
            hosts.sort_unstable();
            hosts
        };
        let root = std::iter::once(("root".to_owned(), hosts(0, self.spec().root.replicas)));
        let shards = 0..self.spec().shards.count;
        root.chain(shards.map(|shard| (format!("shard-{shard}"), hosts(shard, self.spec().shards.replicas)))).collect()
    }

    /// Labels that select the objects of a role.
    fn selector(&self, role: Role) -> Value {
        json!({
            "app.kubernetes.io/name": "coppice",
            "app.kubernetes.io/instance": self.name(),
            "app.kubernetes.io/component": role.name(),
        })
    }

    fn labels(&self, role: Option<Role>) -> Value {
        let mut labels = json!({
            "app.kubernetes.io/name": "coppice",
            "app.kubernetes.io/instance": self.name(),
            "app.kubernetes.io/managed-by": MANAGER,
        });
        if let Some(role) = role {
            labels["app.kubernetes.io/component"] = json!(role.name());
        }
        labels
    }

    /// The metadata of an object that is deleted with the cluster.
    fn metadata(&self, name: &str, role: Option<Role>) -> Value {
        let mut metadata = json!({ "name": name, "namespace": self.namespace(), "labels": self.labels(role) });
        if let Some(owner) = self.cluster.controller_owner_ref(&()) {
            metadata["ownerReferences"] = json!([owner]);
        }
        metadata
    }
}

/// A selector for all objects of a cluster, whatever their role.
#[must_use]
pub fn selector_of(cluster: &str) -> String {
    format!(
        "app.kubernetes.io/name=coppice,app.kubernetes.io/instance={cluster},app.kubernetes.io/managed-by={MANAGER}"
    )
}

/// The objects of a cluster, in the order in which they are applied: objects that pods need come
/// before them.
#[must_use]
pub fn build(facts: &Facts) -> Vec<Object> {
    let mut objects = vec![pod::service_account(facts)];
    objects.extend(network::services(facts));
    objects.extend(network::policies(facts));
    objects.extend(Role::ALL.into_iter().filter(|role| facts.count(*role) > 0).map(|role| pod::budget(facts, role)));
    objects.push(config::bootstrap(facts));
    objects.extend(config::withdrawn(facts));
    if facts.spec().one_process {
        let settings = config::together(facts);
        objects.push(together::set(facts, settings.name()));
        objects.insert(1, settings);
        return objects;
    }
    let (nodes, coordinators) = (config::nodes(facts), config::coordinators(facts));
    if facts.count(Role::Etcd) > 0 {
        objects.push(etcd::set(facts));
    }
    let readers = facts.spec().readers.as_ref().filter(|readers| readers.count > 0);
    let of_readers = readers.map(|readers| (readers, config::readers(facts, readers)));
    if let Some((readers, settings)) = &of_readers {
        objects.push(nodes::readers(facts, readers, settings.name()));
    }
    objects.push(nodes::set(facts, nodes.name()));
    objects.push(coordinators::set(facts, coordinators.name()));
    let settings = of_readers.map(|(_, settings)| settings);
    objects.splice(1..1, [nodes, coordinators].into_iter().chain(settings));
    objects
}

/// Returns the path of something in `written` that is missing in `kept`.
pub(crate) fn lost(written: &Value, kept: &Value) -> Option<String> {
    let below = |name: String, written: &Value, kept: &Value| lost(written, kept).map(|path| format!("{name}.{path}"));
    match (written, kept) {
        (Value::Object(fields), Value::Object(kept)) => {
            fields.iter().find_map(|(name, value)| below(name.clone(), value, kept.get(name).unwrap_or(&Value::Null)))
        }
        (Value::Array(items), Value::Array(kept)) if items.len() == kept.len() => {
            items.iter().zip(kept).enumerate().find_map(|(index, (item, kept))| below(index.to_string(), item, kept))
        }
        _ => (written != kept).then(String::new),
    }
}

/// A short name that follows from some content.
pub(crate) fn hash_of(content: &str) -> String {
    let mut text = String::new();
    for byte in &sha256(content.as_bytes()).as_bytes()[..5] {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}
