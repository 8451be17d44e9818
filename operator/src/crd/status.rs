//! What the operator reports about a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The observed state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LedgerClusterStatus {
    /// The generation of the specification that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: the ledger takes commits, and nothing is missing. `Available`: the ledger takes
    /// commits. `Progressing`: pods are being made or replaced. `Valid`: the specification can be
    /// carried out. `ReadersReady`, if there are readers: all of them serve. The other conditions
    /// do not depend on readers.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The cluster's id in hex, which is the end of the signing key's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The ledger's public key: the argument of `coppice --trust`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vkey: Option<String>,
    /// The endpoint for clients inside of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The newest version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// The oldest version that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned_boundary: Option<i64>,
    /// The coordinator that leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The root group and the shards.
    pub groups: Vec<Group>,
    /// Nodes that are ready, and nodes in all: `3/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Readers that are ready, and readers in all; absent without readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<String>,
    /// The number of entries that the slowest reader lacks in one group; absent while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_lag: Option<i64>,
    /// Coordinators that are ready, and coordinators in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinators: Option<String>,
}

/// The name of a state, and its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// The number of rollbacks so far.
    pub epoch: i64,
    pub version: i64,
    /// The state root of the version, in hex.
    pub state_root: String,
}

/// A raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// `root`, or `shard-` and the shard's number.
    pub name: String,
    /// The node that leads the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Whether the group has a leader, and exactly its hosts vote.
    pub whole: bool,
    /// Replicas whose votes raft counts, and replicas in all: `3/3`. If some are missing, the next
    /// failure may stop the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voters: Option<String>,
    /// What is wrong with the group, if something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
