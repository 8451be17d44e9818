//! An operation on a ledger, done once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An operation on a ledger: done once, however often the manifest is applied or the operator restarted. It can't be changed; for another
/// operation, make another resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "coppice.dev",
    version = "v1alpha1",
    kind = "LedgerOperation",
    plural = "ledgeroperations",
    shortname = "lo",
    category = "coppice",
    namespaced,
    status = "LedgerOperationStatus",
    derive = "PartialEq",
    cel,
    doc = "A prune or a rollback of a ledger, or a transfer of a leadership, done once.",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".spec.cluster"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("an operation can't be changed; make another one"))]
#[x_kube(validation = Rule::new("[has(self.prune), has(self.rollback), has(self.transfer)].filter(x, x).size() == 1")
    .message("an operation is one of prune, rollback and transfer"))]
// Not `confirm == '…' + string(to)`: the API server takes a number's text for unboundedly long, and refuses the rule for its cost. 14 letters are
// those of `roll back ` and ` to `.
#[x_kube(validation = Rule::new("!has(self.rollback) || (self.rollback.confirm.startsWith('roll back ' + self.cluster + ' to ') \
    && self.rollback.confirm.substring(14 + self.cluster.size()).matches('^[0-9]{1,18}$') \
    && int(self.rollback.confirm.substring(14 + self.cluster.size())) == self.rollback.to)")
    .message("rollback.confirm must read: roll back CLUSTER to VERSION"))]
#[serde(rename_all = "camelCase")]
pub struct LedgerOperationSpec {
    /// The `LedgerCluster`, in the same namespace.
    #[schemars(length(min = 1, max = 40), regex(pattern = super::NAME))]
    pub cluster: String,
    /// Drop old versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
    /// Make an older version head again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// Hand the leadership of a group over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
}

/// Drops old versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// The oldest version to keep.
    #[schemars(range(min = 1))]
    pub before: i64,
    /// Why; kept in the root log.
    #[schemars(length(min = 1, max = 256), regex(pattern = super::TEXT))]
    pub reason: String,
}

/// Makes an older version head again, in a new epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.to < self.expectedHead.version").message("to is older than expectedHead"))]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// The newest version that stands afterwards.
    #[schemars(range(min = 0))]
    pub to: i64,
    /// The head that is rolled back. With any other head nothing is done: a manifest that is applied again can't roll back again.
    pub expected_head: ExpectedHead,
    /// Why; kept in the root log.
    #[schemars(length(min = 1, max = 256), regex(pattern = super::TEXT))]
    pub reason: String,
    /// `roll back CLUSTER to VERSION`, in so many words.
    #[schemars(length(min = 1, max = 100))]
    pub confirm: String,
}

/// Hands the leadership of a group to the replica of a node, before that of another one is stopped for instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    /// The group, as the cluster's status names it: `root`, or `shard-N`.
    #[schemars(regex(pattern = "^(root|shard-[0-9]{1,9})$"))]
    pub group: String,
    /// The pod of the node that is to lead.
    #[schemars(length(min = 1, max = 63), regex(pattern = super::NAME))]
    pub node: String,
}

/// The name of the newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedHead {
    /// Its epoch.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Its version.
    #[schemars(range(min = 1))]
    pub version: i64,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing was asked of the ledger yet.
    #[default]
    Pending,
    /// The ledger was, or may have been, asked.
    Running,
    /// It is in the root log.
    Succeeded,
    /// It was refused, and not done.
    Failed,
}

/// What is known of an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LedgerOperationStatus {
    /// How far it is.
    pub phase: Phase,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Entries that the root log had before the ledger was asked: the operation's own, if it was done, is not among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_size_before: Option<i64>,
    /// Where the root log records the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
    /// When it was seen to be done, or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
