//! An operation on a ledger, carried out once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An operation on a ledger. It is carried out once, however often the manifest is applied or the
/// operator restarts. It can't be changed; make another resource for another operation.
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
    .message("an operation must be one of prune, rollback and transfer"))]
// The rule is not `confirm == '…' + string(to)`: the API server assumes that a number's text is
// unboundedly long, and refuses that rule for its cost. The 14 letters are those of `roll back `
// and ` to `.
#[x_kube(validation = Rule::new("!has(self.rollback) || (self.rollback.confirm.startsWith('roll back ' + self.cluster + ' to ') \
    && self.rollback.confirm.substring(14 + self.cluster.size()).matches('^[0-9]{1,18}$') \
    && int(self.rollback.confirm.substring(14 + self.cluster.size())) == self.rollback.to)")
    .message("rollback.confirm must read: roll back CLUSTER to VERSION"))]
#[serde(rename_all = "camelCase")]
pub struct LedgerOperationSpec {
    /// The name of the `LedgerCluster`, in the same namespace.
    #[schemars(length(min = 1, max = 40), regex(pattern = super::patterns::NAME))]
    pub cluster: String,
    /// Drops old versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
    /// Makes an older version head again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// Hands over the leadership of a group.
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
    /// The reason; it is kept in the root log.
    #[schemars(length(min = 1, max = 256), regex(pattern = super::patterns::TEXT))]
    pub reason: String,
}

/// Makes an older version head again, in a new epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.to < self.expectedHead.version").message("to must be older than expectedHead"))]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// The newest version that remains.
    #[schemars(range(min = 0))]
    pub to: i64,
    /// The head that is rolled back. If the ledger has any other head, nothing is done: a manifest
    /// that is applied a second time can't roll back a second time.
    pub expected_head: ExpectedHead,
    /// The reason; it is kept in the root log.
    #[schemars(length(min = 1, max = 256), regex(pattern = super::patterns::TEXT))]
    pub reason: String,
    /// The text `roll back CLUSTER to VERSION`, as a confirmation.
    #[schemars(length(min = 1, max = 100))]
    pub confirm: String,
}

/// Hands the leadership of a group to another node's replica, for instance before the leading node
/// is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    /// The group, as the cluster's status names it: `root`, or `shard-N`.
    #[schemars(regex(pattern = "^(root|shard-[0-9]{1,9})$"))]
    pub group: String,
    /// The pod of the node that is to lead.
    #[schemars(length(min = 1, max = 63), regex(pattern = super::patterns::NAME))]
    pub node: String,
}

/// The name of a ledger's newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedHead {
    #[schemars(range(min = 0))]
    pub epoch: i64,
    #[schemars(range(min = 1))]
    pub version: i64,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The ledger has not been asked yet.
    #[default]
    Pending,
    /// The ledger has been asked, or may have been.
    Running,
    /// The operation is recorded in the root log.
    Succeeded,
    /// The ledger refused; the operation was not carried out.
    Failed,
}

/// What is known about an operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LedgerOperationStatus {
    /// The progress.
    pub phase: Phase,
    /// A description of the progress, or of what the operation waits for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The number of entries of the root log before the ledger was asked. The operation's own
    /// entry, if there is one, comes after them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_size_before: Option<i64>,
    /// The place of the operation's entry in the root log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
    /// The time at which the operator saw that the operation was done, or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
