//! A ledger, and all the processes that make it.

use coppice_types::Params;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ColdStorage, Etcd, Image, LedgerClusterStatus, Pods, Retention, SigningKey, Storage, Telemetry, Tls, Toggle,
    VolumePolicy, Witnesses,
};

/// A ledger and its processes. All has defaults: an empty specification is a cluster of three nodes, two coordinators and three members of etcd.
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
    validation = Rule::new("self.metadata.name.size() <= 40").message("the name has at most 40 characters: names of pods are made from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name begins with a letter and has no dots: names of services are made from it"),
    validation = Rule::new("!self.metadata.name.matches('-(node|coordinator|etcd)$')").message("the name does not end in -node, -coordinator or -etcd: so end the names of services of other clusters"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(name = "Coordinators", type_ = "string", json_path = ".status.coordinators"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.head.epoch"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".status.head.version"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader", priority = 1),
    printcolumn(name = "Root", type_ = "string", json_path = ".status.head.stateRoot", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.shards.replicas) || self.shards.replicas <= self.nodes.count")
    .message("shards.replicas is at most nodes.count"))]
#[x_kube(validation = Rule::new("!has(self.root.replicas) || self.root.replicas <= self.nodes.count")
    .message("root.replicas is at most nodes.count"))]
#[serde(rename_all = "camelCase")]
pub struct LedgerClusterSpec {
    /// The image of all processes of Coppice.
    #[serde(default)]
    pub image: Image,
    /// What holds the data.
    #[serde(default)]
    pub nodes: Nodes,
    /// How the ledger's keys are split.
    #[serde(default)]
    pub shards: Shards,
    /// The group that holds the root log.
    #[serde(default)]
    pub root: Root,
    /// Whether shards keep what was committed, for auditors. For good.
    #[x_kube(validation = Rule::new("self == oldSelf").message("journals is for good: digests depend on it"))]
    #[serde(default)]
    pub journals: bool,
    /// What clients connect to.
    #[serde(default)]
    pub coordinators: Coordinators,
    /// Who picks the coordinator that leads.
    #[serde(default)]
    pub etcd: Etcd,
    /// Where certificates come from.
    #[serde(default)]
    pub tls: Tls,
    /// The key that signs checkpoints.
    #[serde(default)]
    pub signing_key: SigningKey,
    /// Which versions are kept.
    #[serde(default)]
    pub retention: Retention,
    /// Who cosigns checkpoints.
    #[serde(default)]
    pub witnesses: Witnesses,
    /// What processes log: a level, or a filter such as `warn,coppice_shard_node=debug`.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::WORD))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Where processes send metrics and spans. Their metrics are at `/metrics` of their health ports in any case.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// Whether network policies close what nobody needs to reach. A cluster without a network plugin that enforces them ignores them.
    #[serde(default)]
    pub network_policies: Toggle,
    /// What becomes of volumes when the resource is deleted.
    #[serde(default)]
    pub volume_policy: VolumePolicy,
    /// Nothing is changed as long as this is true; the status is kept up to date.
    #[serde(default)]
    pub paused: bool,
}

impl LedgerClusterSpec {
    /// The filter that is logged by.
    #[must_use]
    pub fn log_filter(&self) -> &str {
        self.log.as_deref().unwrap_or("info")
    }
}

/// The processes that hold the data. Their number is for good: data doesn't move between nodes yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.coldStorage) == has(oldSelf.coldStorage)")
    .message("nodes.coldStorage is for good: data doesn't move between volumes that come and go"))]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// How many: with three one may be down, with five two.
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodes.count is for good"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default = "three")]
    pub count: u32,
    /// The volume of each.
    #[serde(default = "node_storage")]
    pub storage: Storage,
    /// A second volume of each, of a cheaper class, to which the oldest values go. It must be there from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_storage: Option<ColdStorage>,
    /// Processor time and memory of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// What is added to the pods.
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

/// How keys are split into shards, for good: digests depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self == oldSelf").message("shards are for good"))]
#[x_kube(validation = Rule::new("self.splits.size() == 0 || self.count == self.splits.size() + 1")
    .message("count is one more than the number of splits"))]
#[x_kube(validation = Rule::new("self.splits.exists(s, s.startsWith('0x')) || self.splits.isSorted()")
    .message("splits are in ascending order"))]
#[serde(rename_all = "camelCase")]
pub struct Shards {
    /// How many.
    #[schemars(range(min = 1, max = 64))]
    #[serde(default = "two")]
    pub count: u32,
    /// The keys at which shards begin, but for the first, ascending: text, or hex with `0x`. Without them keys are split evenly by their
    /// first byte.
    #[schemars(length(max = 63), inner(length(min = 1, max = 512)), extend("x-kubernetes-list-type" = "set"))]
    #[serde(default)]
    pub splits: Vec<String>,
    /// On how many nodes each is; by default on all, or one less if their number is even, and at most on five.
    #[x_kube(validation = Rule::new("self % 2 == 1").message("replicas is odd: an even number bears no more failures"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Records at which a partition is frozen.
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
#[x_kube(validation = Rule::new("self == oldSelf").message("the root group is for good"))]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// On how many nodes it is; by default as for shards.
    #[x_kube(validation = Rule::new("self % 2 == 1").message("replicas is odd: an even number bears no more failures"))]
    #[schemars(range(min = 1, max = 9))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
}

/// The processes that clients connect to. They keep no data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Coordinators {
    /// How many; one of them leads, all serve.
    #[schemars(range(min = 1, max = 9))]
    pub count: u32,
    /// Processor time and memory of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// What is added to the pods.
    pub pods: Pods,
}

impl Default for Coordinators {
    fn default() -> Self {
        Self { count: 2, resources: None, pods: Pods::default() }
    }
}
