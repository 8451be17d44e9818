//! What the operator tells about a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LedgerClusterStatus {
    /// The generation of the specification that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: it takes commits, and nothing is missing. `Available`: it takes commits. `Progressing`: pods are being made or
    /// replaced. `Valid`: the specification can be carried out.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// In hex; the end of the signing key's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The ledger's public key: what `coppice --trust` takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vkey: Option<String>,
    /// Where clients connect inside of Kubernetes.
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
    /// Nodes that are ready, of how many: `3/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Coordinators that are ready, of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinators: Option<String>,
}

/// The name of a state, and its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Counts the rollbacks.
    pub epoch: i64,
    /// The version.
    pub version: i64,
    /// Its state root, in hex.
    pub state_root: String,
}

/// A raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// `root`, or `shard-` and its number.
    pub name: String,
    /// The node that leads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Each of its hosts votes, nobody else does, and one leads.
    pub whole: bool,
    /// Replicas whose votes raft counts, of how many there should be: `3/3`. With fewer, the next failure may be one too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voters: Option<String>,
    /// What is wrong with it, if something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
