//! A ledger, and all the processes that it consists of.

use coppice_types::Params;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ClientService, ColdStorage, Etcd, Image, LedgerClusterStatus, Pim, Pods, Retention, SigningKey, Storage, Telemetry,
    TimeStamps, Tls, Toggle, VolumePolicy, Witnesses,
};

/// A ledger and its processes. Every field has a default: an empty specification is a cluster of
/// three nodes, two coordinators and three members of etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "coppice.dev",
    version = "v1alpha1",
    kind = "LedgerCluster",
    plural = "ledgerclusters",
    shortname = "lc",
    category = "coppice",
    namespaced,
    status = "LedgerClusterStatus",
    derive = "PartialEq",
    cel,
    doc = "A verifiable ledger: its nodes, coordinators and etcd, and how they are run.",
    validation = Rule::new("self.metadata.name.size() <= 40").message("the name may have at most 40 characters: names of pods are made from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name must begin with a letter and have no dots: names of services are made from it"),
    validation = Rule::new("!self.metadata.name.matches('-(node|coordinator|etcd)$')").message("the name must not end in -node, -coordinator or -etcd: services of other clusters have such names"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(name = "Readers", type_ = "string", json_path = ".status.readers", priority = 1),
    printcolumn(name = "Coordinators", type_ = "string", json_path = ".status.coordinators"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.head.epoch"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".status.head.version"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader", priority = 1),
    printcolumn(name = "Root", type_ = "string", json_path = ".status.head.stateRoot", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.shards.replicas) || self.shards.replicas <= self.nodes.count")
    .message("shards.replicas must be at most nodes.count"))]
#[x_kube(validation = Rule::new("!self.oneProcess || self.nodes.count == 1")
    .message("oneProcess is for nodes.count 1: several nodes need etcd and coordinators to be restarted one by one"))]
#[x_kube(validation = Rule::new("!has(self.root.replicas) || self.root.replicas <= self.nodes.count")
    .message("root.replicas must be at most nodes.count"))]
#[x_kube(validation = Rule::new("!self.oneProcess || !has(self.readers) || self.readers.count == 0")
    .message("oneProcess has no readers: nodes that vote must be in pods of their own"))]
#[x_kube(validation = Rule::new("!has(self.readers) || self.readers.count == 0 || !has(self.tls.secrets) || has(self.tls.secrets.readers)")
    .message("tls.secrets.readers must name the secrets of readers"))]
#[serde(rename_all = "camelCase")]
pub struct LedgerClusterSpec {
    /// The image of all processes of Coppice.
    #[serde(default)]
    pub image: Image,
    /// The nodes, which hold the data.
    #[serde(default)]
    pub nodes: Nodes,
    /// Copies of all shards that serve reads and never vote. They may come and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readers: Option<Readers>,
    /// How the ledger's keys are split into shards.
    #[serde(default)]
    pub shards: Shards,
    /// The group that holds the root log.
    #[serde(default)]
    pub root: Root,
    /// Whether shards keep journals of what was committed, for auditors. It can't be changed later.
    #[x_kube(validation = Rule::new("self == oldSelf").message("journals can't change: digests depend on it"))]
    #[serde(default)]
    pub journals: bool,
    /// Whether the cluster keeps ledgers of members, in the first half of its shards. It keeps
    /// journals then, whatever `journals` says. It can't be changed later.
    #[x_kube(validation = Rule::new("self == oldSelf").message("ledgers can't change: digests depend on it"))]
    #[serde(default)]
    pub ledgers: bool,
    /// The coordinators, which clients connect to.
    #[serde(default)]
    pub coordinators: Coordinators,
    /// The service for clients.
    #[serde(default)]
    pub service: ClientService,
    /// Whether the only node is the coordinator, too: one process in one pod, without etcd. For
    /// ledgers of one node; their pods have the settings of `nodes`.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("oneProcess can't change: what etcd holds is on the node's volume instead"))]
    #[serde(default)]
    pub one_process: bool,
    /// The etcd that elects the leading coordinator.
    #[serde(default)]
    pub etcd: Etcd,
    /// The source of the processes' certificates.
    #[serde(default)]
    pub tls: Tls,
    /// The key that signs checkpoints.
    #[serde(default)]
    pub signing_key: SigningKey,
    /// Which versions are kept.
    #[serde(default)]
    pub retention: Retention,
    /// The witnesses that cosign checkpoints.
    #[serde(default)]
    pub witnesses: Witnesses,
    /// The authorities that stamp the time of checkpoints.
    #[serde(default)]
    pub time_stamps: TimeStamps,
    /// What processes log: a level, or a filter like `warn,coppice_shard_node=debug`.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::WORD))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The collector to which processes push metrics and spans. Metrics are also served at
    /// `/metrics` of every health port.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// Whether network policies block all connections that Coppice does not need. They have an
    /// effect only with a network plugin that enforces them.
    #[serde(default)]
    pub network_policies: Toggle,
    /// What happens to volumes when the resource is deleted.
    #[serde(default)]
    pub volume_policy: VolumePolicy,
    /// While this is true, nothing is changed; the status is kept up to date.
    #[serde(default)]
    pub paused: bool,
}

impl LedgerClusterSpec {
    /// The log filter of the processes.
    #[must_use]
    pub fn log_filter(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }
}

/// The nodes, which hold the data. Their number can't be changed: data does not move between nodes
/// yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.coldStorage) == has(oldSelf.coldStorage)")
    .message("nodes.coldStorage can't change: data doesn't move between volumes that come and go"))]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The number of nodes. With three, one may be down; with five, two.
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodes.count can't change"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default = "three")]
    pub count: u32,
    /// The volume of each node.
    #[serde(default = "node_storage")]
    pub storage: Storage,
    /// A second volume for each node, of a cheaper class, to which the oldest values move. It has
    /// to be there from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_storage: Option<ColdStorage>,
    /// Processor time and memory of each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Additions to the nodes' pods.
    #[serde(default)]
    pub pods: Pods,
}

fn three() -> u32 {
    3
}

fn node_storage() -> Storage {
    Storage { size: "20Gi".to_owned(), class: None }
}

impl Default for Nodes {
    fn default() -> Self {
        Self { count: three(), storage: node_storage(), cold_storage: None, resources: None, pods: Pods::default() }
    }
}

/// Nodes with copies of all shards that serve reads and never vote. Commits don't wait for them,
/// and they count in no decision about the other nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Readers {
    /// The number of readers. Each change replaces the other nodes and the coordinators one by one:
    /// they have to know the readers.
    #[schemars(range(min = 0, max = 32))]
    pub count: u32,
    /// The zone that the readers are in. Coordinators of the same zone ask them first.
    #[schemars(length(min = 1, max = 63), regex(pattern = super::patterns::ZONE))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The volume of each reader. `volumePolicy` says whether it outlives the reader.
    #[serde(default = "node_storage")]
    pub storage: Storage,
    /// Processor time and memory of each reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Additions to the readers' pods.
    #[serde(default)]
    pub pods: Pods,
    /// Memory modules that compute: they make proofs of single keys. A change replaces the readers
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pim: Option<Pim>,
}

/// How keys are split into shards. This can't be changed: digests depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self == oldSelf").message("shards can't change"))]
#[x_kube(validation = Rule::new("self.splits.size() == 0 || self.count == self.splits.size() + 1")
    .message("count must be one more than the number of splits"))]
#[x_kube(validation = Rule::new("self.splits.exists(s, s.startsWith('0x')) || self.splits.isSorted()")
    .message("splits must be in ascending order"))]
#[serde(rename_all = "camelCase")]
pub struct Shards {
    /// The number of shards.
    #[schemars(range(min = 1, max = 64))]
    #[serde(default = "two")]
    pub count: u32,
    /// The keys at which the shards after the first begin, ascending: text, or hex with `0x`.
    /// Without them, keys are split evenly by their first byte.
    #[schemars(length(max = 63), inner(length(min = 1, max = 512)), extend("x-kubernetes-list-type" = "set"))]
    #[serde(default)]
    pub splits: Vec<String>,
    /// The number of nodes that hold each shard. The default is all nodes, or one less if their
    /// number is even, and at most five.
    #[x_kube(validation = Rule::new("self % 2 == 1").message("replicas must be odd: an even number survives no more failures"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The number of records at which a partition is frozen.
    #[schemars(range(min = 16, max = 16_777_216))]
    #[serde(default = "capacity")]
    pub capacity: u32,
}

fn two() -> u32 {
    2
}

fn capacity() -> u32 {
    Params::default().capacity
}

impl Default for Shards {
    fn default() -> Self {
        Self { count: two(), splits: Vec::new(), replicas: None, capacity: capacity() }
    }
}

/// The group that holds the root log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self == oldSelf").message("the root group can't change"))]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// The number of nodes that hold the root log; the default is computed as for shards.
    #[x_kube(validation = Rule::new("self % 2 == 1").message("replicas must be odd: an even number survives no more failures"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
}

/// The coordinators, which clients connect to. They keep no data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Coordinators {
    /// The number of coordinators. One of them leads; all of them serve.
    #[schemars(range(min = 1, max = 9))]
    pub count: u32,
    /// The zone that the coordinators are in. Reads go to nodes of this zone first; without it,
    /// every node is near.
    #[schemars(length(min = 1, max = 63), regex(pattern = super::patterns::ZONE))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Processor time and memory of each coordinator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Additions to the coordinators' pods.
    pub pods: Pods,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self { count: 2, zone: None, resources: None, pods: Pods::default() }
    }
}
