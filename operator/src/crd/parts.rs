//! Parts of a cluster's specification that are not specific to nodes or coordinators.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration, TopologySpreadConstraint};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The image of all processes of Coppice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Image {
    /// The image, without its tag.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::IMAGE))]
    pub repository: String,
    /// The image's tag, or its digest (`sha256:...`).
    #[schemars(length(min = 1, max = 128), regex(pattern = super::patterns::TAG))]
    pub tag: String,
    /// The image with its tag or digest, in place of `repository` and `tag`. It is for resources of
    /// before these two fields.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::IMAGE))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When the image is pulled.
    #[schemars(regex(pattern = "^(Always|IfNotPresent|Never)$"))]
    pub pull_policy: String,
    /// Secrets for the image's registry.
    #[schemars(length(max = 8))]
    pub pull_secrets: Vec<LocalObjectReference>,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            repository: "ghcr.io/coppice-dev/coppice".to_owned(),
            tag: env!("CARGO_PKG_VERSION").to_owned(),
            name: None,
            pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
        }
    }
}

impl Image {
    /// The reference by which a kubelet pulls the image.
    #[must_use]
    pub fn reference(&self) -> String {
        let between = if self.tag.starts_with("sha256:") { '@' } else { ':' };
        self.name.clone().unwrap_or_else(|| format!("{}{between}{}", self.repository, self.tag))
    }
}

/// The service for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientService {
    /// The kind of service: inside of the cluster, at a port of every machine, or behind a load
    /// balancer.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// Annotations, for instance for the provider of load balancers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// More names by which clients reach the coordinators. They are added to the certificates that
    /// the operator makes or requests.
    #[schemars(length(max = 16), inner(length(min = 1, max = 253), regex(pattern = super::patterns::HOST)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns_names: Vec<String>,
}

/// The kinds of services of Kubernetes for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Reachable inside of the cluster.
    #[default]
    ClusterIP,
    /// Reachable at a port of every machine.
    NodePort,
    /// Reachable behind a load balancer of the provider.
    LoadBalancer,
}

/// A volume for each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.class) == has(oldSelf.class)")
    .message("the storage class of existing volumes can't change"))]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// The size. It may grow where the storage class allows that.
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))")
        .message("size must be a quantity such as 20Gi"))]
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity(oldSelf)) >= 0").message("a volume can't shrink"))]
    #[schemars(length(min = 1, max = 32))]
    pub size: String,
    /// The storage class; the default is that of the Kubernetes cluster.
    #[x_kube(validation = Rule::new("self == oldSelf").message("the storage class of existing volumes can't change"))]
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// A second volume for each node, for old values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ColdStorage {
    #[serde(flatten)]
    pub volume: Storage,
    /// Bytes of values that each shard keeps on the first volume; the default is 4 GiB.
    #[schemars(range(min = 0, max = 1_125_899_906_842_624_i64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_value_bytes: Option<i64>,
}

/// Additions to the pods of one kind. They can't replace the operator's own security settings,
/// probes and labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Pods {
    /// More labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// More annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the machines that the pods may run on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The taints that the pods tolerate.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// An affinity. It replaces the operator's own, which keeps the pods of one kind on different
    /// machines if possible.
    #[schemars(schema_with = "any_object")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<serde_json::Value>,
    /// How the pods are spread; the default is over zones, if there are any.
    #[schemars(length(max = 8))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// The pods' priority class.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// A schema for objects that the API server checks when the pod is made. Writing it out would
/// double the size of the definition.
fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// The etcd that elects the leading coordinator: one that the operator runs, or an existing one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("!(has(self.managed) && has(self.external))").message("etcd must be either managed or external"))]
#[x_kube(validation = Rule::new("has(self.external) == has(oldSelf.external)")
    .message("etcd can't change between managed and external: coordinators of both would lead at once"))]
#[serde(rename_all = "camelCase")]
pub struct Etcd {
    /// Three members, run by the operator. This is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedEtcd>,
    /// An existing etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalEtcd>,
}

/// Three members of etcd, run by the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ManagedEtcd {
    /// The image, with its tag or digest.
    #[schemars(length(min = 1, max = 512), regex(pattern = super::patterns::IMAGE))]
    pub image: String,
    /// The volume of each member.
    pub storage: Storage,
    /// Additions to the members' pods.
    pub pods: Pods,
}

impl Default for ManagedEtcd {
    fn default() -> Self {
        Self {
            image: "quay.io/coreos/etcd:v3.6.5".to_owned(),
            storage: Storage { size: "1Gi".to_owned(), class: None },
            pods: Pods::default(),
        }
    }
}

/// An existing etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.endpoints.all(e, e.startsWith(has(self.tlsSecret) ? 'https://' : 'http://'))")
    .message("with tlsSecret the endpoints must begin with https://, without it with http://"))]
#[serde(rename_all = "camelCase")]
pub struct ExternalEtcd {
    /// The members: `http://HOST:PORT` or `https://HOST:PORT`.
    #[schemars(
        length(min = 1, max = 9),
        inner(length(max = 261), regex(pattern = "^https?://[a-zA-Z0-9._:\\[\\]-]+:[0-9]{1,5}$"))
    )]
    pub endpoints: Vec<String>,
    /// A secret with `ca.crt`, `tls.crt` and `tls.key`: etcd's authority, and a client certificate
    /// for it. It is required for https.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_secret: Option<String>,
    /// The prefix of all keys that the cluster writes to etcd.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^/[!-~]*[!-.0-~]$"))]
    #[serde(default = "etcd_prefix")]
    pub prefix: String,
}

fn etcd_prefix() -> String {
    "/coppice".to_owned()
}

/// The source of the processes' certificates; the default is an authority that the operator makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("[has(self.certManager), has(self.secrets), has(self.plaintext) && self.plaintext].filter(x, x).size() <= 1")
    .message("tls must have one source of certificates: certManager, secrets, or plaintext for none at all"))]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Certificates are requested from cert-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_manager: Option<CertManager>,
    /// Certificates that somebody else keeps in secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<TlsSecrets>,
    /// Certificates that nodes and coordinators no longer accept, although their authority signed
    /// them; those of a stolen key, for instance. Each entry is `serial HEX`, `fingerprint HEX` or
    /// `subject NAME`, as a record of denials shows it. Open connections end within two minutes; no
    /// pod is replaced.
    #[schemars(
        length(max = 1000),
        inner(
            length(max = 300),
            regex(
                pattern = "^(serial [0-9A-Fa-f:]{1,59}|fingerprint [0-9A-Fa-f:]{64,95}|subject [^#\\n\\r ][^#\\n\\r]*)$"
            )
        )
    )]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn: Vec<String>,
    /// No certificates: every pod that reaches the ports may write. For tests only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plaintext: bool,
}

/// An issuer of cert-manager. It must sign for this cluster alone: processes accept every
/// certificate of its authority. It does not sign for a managed etcd, which has an authority of its
/// own that the operator keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertManager {
    /// The name of the issuer.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    pub issuer: String,
    /// `Issuer` or `ClusterIssuer`.
    #[schemars(regex(pattern = "^(Issuer|ClusterIssuer)$"))]
    #[serde(default = "issuer_kind")]
    pub kind: String,
}

fn issuer_kind() -> String {
    "Issuer".to_owned()
}

/// Secrets with `tls.crt`, `tls.key` and `ca.crt`. Those of nodes and coordinators come from one
/// authority, which signs for this cluster alone. Each node and each coordinator has a secret of
/// its own, with its name in the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("!has(self.etcdClient) || has(self.etcd)")
    .message("etcdClient is for the etcd whose certificates secrets.etcd holds, which is missing"))]
#[serde(rename_all = "camelCase")]
pub struct TlsSecrets {
    /// The prefix of the names of the nodes' secrets: `-0` follows for the first node.
    /// `docs/operator.md` lists what each certificate must say.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    pub nodes: String,
    /// The prefix of the names of the readers' secrets, if there are readers.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<String>,
    /// The prefix of the names of the coordinators' secrets. The operator shows the first
    /// coordinator's certificate when it calls coordinators.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    pub coordinators: String,
    /// The secret of the members of a managed etcd, which let in every holder of a certificate that
    /// its `ca.crt` signed. By default the operator makes it, from an authority that signs for etcd
    /// alone.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
    /// The secret that coordinators use towards the members of etcd: their certificate, and the
    /// authority of the members. The default is the coordinators' other certificate.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_client: Option<String>,
}

/// Which versions are kept; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("!(has(self.versions) && has(self.hours))").message("retention must be by versions or by hours"))]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// At least this many of the newest versions.
    #[schemars(range(min = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<i64>,
    /// All versions that were head within this many hours.
    #[schemars(range(min = 1, max = 4_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<u32>,
}

/// The key that signs checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct SigningKey {
    /// A secret whose `ledger.key` is the key, as `coppice keygen` makes it. Without a name, the
    /// operator makes a key, in a secret that it never deletes. A `next.key` in the same secret is
    /// the key that the ledger changes to.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::patterns::NAME))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The witnesses that are asked to cosign checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.policy) || !has(self.quorum) || self.quorum <= self.list.size()")
    .message("quorum must be at most the number of witnesses"))]
#[x_kube(validation = Rule::new("!has(self.policy) || (self.list.size() == 0 && !has(self.quorum))")
    .message("policy takes the place of list and quorum"))]
#[serde(rename_all = "camelCase")]
pub struct Witnesses {
    /// The witnesses.
    #[schemars(length(max = 16))]
    #[serde(default)]
    pub list: Vec<Witness>,
    /// How many witnesses must cosign; the default is a majority.
    #[schemars(range(min = 1, max = 16))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// A C2SP policy in place of `list` and `quorum`: the file that everybody verifies with, as
    /// `docs/federation.md` makes it. All its witnesses are asked and need URLs, also those outside
    /// of its quorum. Its quorum, with its groups, says which checkpoints are cosigned.
    #[schemars(length(min = 1, max = 65536), regex(pattern = super::patterns::LINES))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// A witness that speaks C2SP `tlog-witness`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Witness {
    /// The witness's submission prefix; `stream:NAME/PATH` if the process NAME opens a stream.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^(https?://|stream:[A-Za-z0-9._-]+/)[!-~]+$"))]
    pub url: String,
    /// The witness's public key.
    #[schemars(length(min = 1, max = 2048), regex(pattern = super::patterns::TEXT))]
    pub vkey: String,
}

/// The authorities that stamp checkpoints (RFC 3161). Without any, nothing is stamped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("!has(self.quorum) || self.quorum <= self.authorities.size()")
    .message("quorum must be at most the number of authorities"))]
#[serde(rename_all = "camelCase")]
pub struct TimeStamps {
    /// The authorities. No two have a root in common.
    #[schemars(length(max = 8))]
    #[serde(default)]
    pub authorities: Vec<TimeAuthority>,
    /// How many authorities must stamp a checkpoint; the default is a majority.
    #[schemars(range(min = 1, max = 8))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// Seconds from one stamped checkpoint to the next; the default is a minute.
    #[schemars(range(min = 1, max = 86400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u32>,
}

/// An authority that stamps time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeAuthority {
    /// The address that requests are posted to.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^https?://[!-~]+$"))]
    pub url: String,
    /// Its roots as PEM, and certificates that its tokens may lack.
    #[schemars(length(min = 1, max = 32768), regex(pattern = super::patterns::CERTIFICATES))]
    pub roots: String,
    /// How far its times may be off at least, in milliseconds. Needed where its tokens don't say
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy_ms: Option<u32>,
}

/// The collector of metrics and spans; without one, nothing is pushed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.otlpEndpoint) || !has(self.traceRatio)")
    .message("traceRatio says how much is sent to otlpEndpoint, which is missing"))]
#[serde(rename_all = "camelCase")]
pub struct Telemetry {
    /// A collector that takes OTLP over gRPC without TLS: `http://HOST:PORT`. It may be an agent on
    /// each machine, or a service of the cluster.
    #[schemars(length(min = 1, max = 261), regex(pattern = "^http://[a-zA-Z0-9._:\\[\\]-]+:[0-9]{1,5}$"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// The share of calls that are traced, among those whose callers say nothing about tracing; the
    /// default is 0.01.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_ratio: Option<f64>,
}

/// What happens to the volumes when the cluster is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumePolicy {
    /// Volumes and signing key stay: a cluster of the same name takes them up again.
    #[default]
    Retain,
    /// Volumes and signing key are deleted, and with them the ledger.
    Delete,
}

/// A feature that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Toggle {
    /// Whether the feature is on.
    pub enabled: bool,
}

impl Default for Toggle {
    fn default() -> Self {
        Self { enabled: true }
    }
}
