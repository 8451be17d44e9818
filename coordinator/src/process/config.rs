//! The settings of `coppice-coordinator`; docs/operations.md describes them for operators.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use coppice_process::{
    Failure, Flag, Format, Log, Program, Settings, Telemetry,
    access::{Access, AccessLog, Demand},
    config::{millis, read_text},
    ledger::{self, Ledger, Nodes, parse_cluster},
    log_filter,
    net::check_address,
    store::Store,
    tls::{Acceptor, Believed, Protocol, ServerTls, Tls},
};
use coppice_timestamp::{Accuracy, Authority};
use coppice_types::ClusterId;
use coppice_verify::{cosignature::WitnessKey, note::VerifierKey, policy::Policy};
use serde::{Deserialize, Serialize};

use crate::{
    anchor::{self, Anchoring},
    log::witness::{self, Quorum},
    options,
};

/// Most stages that a setting allows. A shard holds twice as many staged versions.
const STAGES_MAX: usize = 128;

/// The command line.
pub const PROGRAM: Program = Program {
    name: "coppice-coordinator",
    version: env!("CARGO_PKG_VERSION"),
    about: "Serves a ledger's clients: orders writes, answers reads, signs checkpoints",
    serves_clients: true,
    flags: &[
        Flag { name: "name", value: "NAME", help: "This coordinator's name, unlike that of any other" },
        Flag { name: "listen", value: "ADDRESS", help: "Where to listen for clients (gRPC): IP:PORT" },
        Flag {
            name: "http-listen",
            value: "ADDRESS",
            help: "Where to serve the root log over HTTP: IP:PORT [default: nowhere]",
        },
        Flag {
            name: "advertise",
            value: "ADDRESS",
            help: "Where other coordinators reach this one: HOST:PORT [default: listen]",
        },
        Flag {
            name: "signing-key-file",
            value: "FILE",
            help: "The key that signs checkpoints, as `coppice keygen` makes it",
        },
    ],
};

/// The settings of a coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The coordinator's name.
    pub name: String,
    /// The cluster, in hex. If given, it must be the one that the signing key names.
    pub cluster_id: Option<String>,
    /// Where to listen for clients.
    pub listen: SocketAddr,
    /// Whether the API is also served over HTTP and by gRPC-web [default: yes].
    pub http_api: Option<bool>,
    /// Where to serve the root log over HTTP.
    pub http_listen: Option<SocketAddr>,
    /// Where to serve health and metrics over plain HTTP.
    pub health_listen: Option<SocketAddr>,
    /// Where other coordinators reach this one.
    pub advertise: Option<String>,
    /// The file of the key that signs checkpoints.
    pub signing_key_file: PathBuf,
    /// The file of the key that replaces the ledger's key, or of the one that was replaced.
    pub next_signing_key_file: Option<PathBuf>,
    /// The filter of log lines.
    #[serde(default = "log_filter")]
    pub log: String,
    /// The form of a log line.
    #[serde(default)]
    pub log_format: Format,
    /// Where metrics and spans are sent.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// All nodes by name.
    pub nodes: Nodes,
    /// The coordinator's zone. Reads go to nodes of this zone first.
    pub zone: Option<String>,
    /// The founding of the ledger. All processes must have the same one.
    #[serde(default)]
    pub ledger: Ledger,
    /// The store that picks the coordinator that leads.
    pub metadata: Store,
    /// Certificates. With them, every connection to nodes is mutually authenticated.
    pub tls: Option<Tls>,
    /// The server certificate for clients. By default it is the one of `tls`, if there is one.
    pub api_tls: Option<ServerTls>,
    /// The roles that callers need.
    #[serde(default)]
    pub access: Access,
    /// The witnesses that are asked to cosign checkpoints.
    #[serde(default)]
    pub witnesses: Vec<Witness>,
    /// How many witnesses must cosign a checkpoint [default: a majority].
    pub witness_quorum: Option<usize>,
    /// A C2SP policy in place of these two. All its witnesses are asked, and a checkpoint needs
    /// those of its quorum.
    pub witness_policy: Option<PathBuf>,
    /// The authorities that stamp checkpoints. By default none.
    pub anchor: Option<Anchor>,
    /// The versions that are kept. By default all.
    #[serde(default)]
    pub retention: Retention,
    /// Bounds and deadlines.
    #[serde(default)]
    pub limits: Limits,
}

/// A witness that speaks C2SP `tlog-witness`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// The witness's submission prefix, to which `add-checkpoint` is appended.
    pub url: String,
    /// The witness's public key.
    pub vkey: String,
}

/// Time stamps over the root log, by authorities that speak RFC 3161 over HTTP, and by time
/// ledgers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// The authorities. None may have a root in common with another.
    #[serde(default)]
    pub tsa: Vec<Tsa>,
    /// Ledgers of other clusters that take checkpoints in, and are stamped themselves.
    #[serde(default)]
    pub time_ledger: Vec<TimeLedger>,
    /// How many of them must stamp a checkpoint [default: a majority].
    pub quorum: Option<NonZeroUsize>,
    /// Seconds from one anchor to the next.
    #[serde(default = "every_s")]
    pub every_s: u32,
    /// Whether only checkpoints that witnesses have cosigned are stamped [default: true if there
    /// are witnesses].
    pub cosigned: Option<bool>,
    /// Whether checkpoints are stamped while nothing is committed, too.
    #[serde(default)]
    pub idle: bool,
}

/// An authority that stamps time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tsa {
    /// The address that requests are posted to.
    pub url: String,
    /// The PEM file of its roots, and of certificates that its tokens may lack.
    pub root: PathBuf,
    /// The best accuracy of its times that is believed, in ms. Needed if its tokens name none.
    pub accuracy_ms: Option<u32>,
}

/// A ledger of another cluster, to which this coordinator commits as a writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeLedger {
    /// HOST:PORT of one of its coordinators.
    pub address: String,
    /// The file with its public key.
    pub vkey: PathBuf,
    /// Its certificate authority, and the certificate of a writer. Without it, the connection is
    /// plain.
    pub tls: Option<Tls>,
}

impl TimeLedger {
    fn open(&self, own: &str) -> Result<anchor::TimeLedger, Failure> {
        let wrong = |what: String| Failure::usage(format!("anchor.time_ledger: {what}"));
        let vkey = read_text(&self.vkey)?;
        let key =
            VerifierKey::parse(vkey.trim()).map_err(|error| wrong(format!("{}: {error}", self.vkey.display())))?;
        anchor::TimeLedger::at(own, &self.address, key, self.tls.clone()).map_err(wrong)
    }
}

fn every_s() -> u32 {
    60
}

impl Tsa {
    fn open(&self) -> Result<anchor::Tsa, Failure> {
        let roots = read_text(&self.root)?;
        let authority = Authority::from_certificates(roots.as_bytes())
            .map_err(|error| Failure::usage(format!("anchor.tsa: {}: {error}", self.root.display())))?;
        let authority = match self.accuracy_ms.map(Accuracy::from_millis) {
            Some(accuracy) => authority.with_accuracy(accuracy),
            None => authority,
        };
        Ok(anchor::Tsa { url: self.url.clone(), authority })
    }
}

/// The versions that the leading coordinator keeps, which must be equal for all coordinators. Older
/// versions are pruned automatically, in steps, and never above a pin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Keep at least this many of the newest versions.
    pub versions: Option<u64>,
    /// Keep the versions that were head within this many hours.
    pub hours: Option<u32>,
}

/// Bounds and deadlines. The defaults suit a cluster in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Limit on the number of batches that wait or are being decided.
    pub queue_max: usize,
    /// Limit on the bytes of batches that wait or are being decided.
    pub queue_bytes_max: u32,
    /// Limit on the number of batches of one version.
    pub batches_per_version_max: usize,
    /// Limit on the number of batches of one stream that are under way.
    pub stream_batches_max: usize,
    /// Limit on the number of sessions that one caller uses through one coordinator within a
    /// minute.
    pub sessions_per_caller_max: usize,
    /// Limit on the number of stages at once.
    pub stages_max: usize,
    /// Limit on the number of stages of one caller.
    pub stages_per_caller_max: usize,
    /// How long a stage lives.
    pub stage_age_ms: u64,
    /// How long a batch may wait before it is refused.
    pub commit_timeout_ms: u64,
    /// How long a shard may take for a prepare before the version is formed again without it.
    pub prepare_timeout_ms: u64,
    /// How long the root group may take for one call.
    pub root_timeout_ms: u64,
    /// How long one node may take before another is asked.
    pub attempt_timeout_ms: u64,
    /// How long a read may look for a replica that has its state.
    pub read_timeout_ms: u64,
    /// How long a leadership lease lasts if it is not kept alive.
    pub lease_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let limits = options::Limits::default();
        Self {
            queue_max: limits.queue_max,
            queue_bytes_max: limits.queue_bytes_max,
            batches_per_version_max: limits.batches_per_version_max,
            stream_batches_max: limits.stream_batches_max,
            sessions_per_caller_max: limits.sessions_per_caller_max,
            stages_max: limits.stages_max,
            stages_per_caller_max: limits.stages_per_caller_max,
            stage_age_ms: millis(limits.stage_age_max),
            commit_timeout_ms: millis(limits.commit_timeout),
            prepare_timeout_ms: millis(limits.prepare_timeout),
            root_timeout_ms: millis(limits.root_timeout),
            attempt_timeout_ms: millis(limits.attempt_timeout),
            read_timeout_ms: millis(limits.read_timeout),
            lease_ms: millis(limits.lease),
        }
    }
}

impl Limits {
    fn check(&self) -> Result<(), Failure> {
        let Self { queue_max, batches_per_version_max, stream_batches_max, sessions_per_caller_max, .. } = *self;
        if [queue_max, batches_per_version_max, stream_batches_max, sessions_per_caller_max].contains(&0) {
            let message = "limits: queue_max, batches_per_version_max, stream_batches_max and \
                           sessions_per_caller_max must be at least 1";
            return Err(Failure::usage(message));
        }
        if self.stages_max > STAGES_MAX || self.stages_per_caller_max > self.stages_max {
            let message =
                format!("limits: stages_max is at most {STAGES_MAX}, and stages_per_caller_max at most stages_max");
            return Err(Failure::usage(message));
        }
        Ok(())
    }
}

impl Retention {
    fn rule(&self) -> Option<options::Retention> {
        let hours = self.hours.map(|hours| options::Retention::Age(Duration::from_secs(3600 * u64::from(hours))));
        self.versions.map(options::Retention::Versions).or(hours)
    }
}

impl Settings for Config {
    fn log(&self) -> Log {
        Log { filter: self.log.clone(), format: self.log_format }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn check(&self) -> Result<(), Failure> {
        self.check_as("listen")
    }
}

impl Config {
    /// The nodes that reads go to first.
    pub(super) fn routing(&self) -> options::Routing {
        let readers = self.nodes.iter().filter(|(_, node)| node.reader).map(|(name, _)| name.clone()).collect();
        let zones = self.nodes.iter().filter_map(|(name, node)| Some((name.clone(), node.zone.clone()?)));
        options::Routing { readers, zones: zones.collect(), zone: self.zone.clone() }
    }

    /// Checks settings against each other. `listen` is the key of the address for clients, which
    /// differs in a process that is a node, too.
    ///
    /// # Errors
    /// If settings contradict each other.
    pub fn check_as(&self, listen: &str) -> Result<(), Failure> {
        ledger::check_nodes(&self.nodes)?;
        ledger::check_name("name", &self.name)?;
        self.zone.as_ref().map_or(Ok(()), |zone| ledger::check_name("zone", zone))?;
        self.metadata.check()?;
        self.access.check(listen, self.listen, self.tls.is_some())?;
        if let Some(cluster) = &self.cluster_id {
            parse_cluster(cluster)?;
        }
        if let Some(address) = &self.advertise {
            check_address(address).map_err(|error| Failure::usage(format!("advertise: {error}")))?;
        }
        if !self.metadata.endpoints.is_empty() && self.advertise.is_none() && self.listen.ip().is_unspecified() {
            let message = format!("{listen} = {} tells others nothing: advertise is missing", self.listen);
            return Err(Failure::usage(message));
        }
        if self.api_tls.is_some() && self.tls.is_none() {
            return Err(Failure::usage("api_tls without tls: the connections to the nodes would be plain"));
        }
        self.limits.check()?;
        if matches!(self.retention, Retention { versions: Some(0), .. } | Retention { hours: Some(0), .. }) {
            return Err(Failure::usage("retention: versions and hours must be at least 1"));
        }
        if self.retention.versions.is_some() && self.retention.hours.is_some() {
            return Err(Failure::usage("retention: set either versions or hours"));
        }
        for file in std::iter::once(&self.signing_key_file).chain(&self.next_signing_key_file) {
            // The message must not repeat the key.
            if file.to_string_lossy().starts_with("PRIVATE+KEY") {
                let message = "a private key stands where the name of its file belongs (signing_key_file)";
                return Err(Failure::usage(message).hint("Write the key to a file that its owner alone can read."));
            }
        }
        self.witnesses()?;
        self.anchoring()?;
        self.ledger.digest().map(drop)
    }

    /// Checks that the cluster of the key is the configured one.
    pub(super) fn check_cluster(&self, cluster: &ClusterId) -> Result<(), Failure> {
        let Some(configured) = self.cluster_id.as_deref() else { return Ok(()) };
        if parse_cluster(configured)? == *cluster {
            return Ok(());
        }
        let key = self.signing_key_file.display();
        Err(Failure::usage(format!("cluster_id = {configured:?}, but {key} signs for cluster {cluster}")))
    }

    /// TLS for a listener to clients. `None` if the process uses no TLS.
    ///
    /// A caller of the API needs a certificate if it needs a role, or if there is an authority for
    /// clients. The certificate comes from that authority, or from the cluster's, like those of
    /// other coordinators. The root log is open to the public, unless there is an authority for
    /// clients.
    pub(super) fn acceptor(&self, protocol: Protocol, log: &AccessLog) -> Result<Option<Acceptor>, Failure> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let shown = self.api_tls.clone().unwrap_or_else(|| tls.server());
        let mut authorities: Vec<PathBuf> = shown.client_ca.iter().cloned().collect();
        let asked = self.access.roles == Demand::Required || !authorities.is_empty();
        if protocol == Protocol::Api && asked {
            authorities.push(tls.ca.clone());
        }
        let believed = Believed { authorities, withdrawn: tls.withdrawn.clone() };
        shown.acceptor(protocol, believed, log.clone()).map(Some)
    }

    /// Whether witnesses are asked.
    pub(super) fn asks_witnesses(&self) -> bool {
        !self.witnesses.is_empty() || self.witness_policy.is_some()
    }

    /// The witnesses that are asked, and which of them must cosign.
    pub(super) fn witnesses(&self) -> Result<(Vec<witness::Witness>, Quorum), Failure> {
        if let Some(path) = &self.witness_policy {
            if !self.witnesses.is_empty() || self.witness_quorum.is_some() {
                return Err(Failure::usage("witness_policy takes the place of witnesses and witness_quorum"));
            }
            return witnesses_by_policy(path);
        }
        let witness = |Witness { url, vkey }: &Witness| {
            let wrong =
                |error| Failure::usage(format!("witnesses: the vkey of {url} is not a key of a witness: {error}"));
            Ok(witness::Witness { url: url.clone(), key: WitnessKey::parse(vkey).map_err(wrong)? })
        };
        let witnesses = self.witnesses.iter().map(witness).collect::<Result<Vec<_>, Failure>>()?;
        let majority = witnesses.len() / 2 + 1;
        Ok((witnesses, self.witness_quorum.unwrap_or(majority).into()))
    }

    /// The authorities that stamp checkpoints, and how often. Reads their roots.
    pub(super) fn anchoring(&self) -> Result<Option<Anchoring>, Failure> {
        let Some(anchor) = &self.anchor else { return Ok(None) };
        let authorities = anchor.tsa.iter().map(Tsa::open).collect::<Result<Vec<_>, Failure>>()?;
        let ledgers = anchor.time_ledger.iter().map(|ledger| ledger.open(&self.name));
        let time_ledgers = ledgers.collect::<Result<Vec<_>, Failure>>()?;
        let count = authorities.len() + time_ledgers.len();
        let anchoring = Anchoring {
            quorum: anchor.quorum.unwrap_or_else(|| Authority::majority(count)),
            every: Duration::from_secs(anchor.every_s.into()),
            cosigned: anchor.cosigned.unwrap_or(self.asks_witnesses()),
            idle: anchor.idle,
            authorities,
            time_ledgers,
        };
        anchoring.check().map_err(|error| Failure::usage(format!("anchor: {error}")))?;
        if anchoring.cosigned && !self.asks_witnesses() {
            return Err(Failure::usage("anchor.cosigned needs witnesses, and there are none"));
        }
        Ok(Some(anchoring))
    }

    pub(super) fn limits(&self) -> options::Limits {
        let limits = &self.limits;
        options::Limits {
            queue_max: limits.queue_max,
            queue_bytes_max: limits.queue_bytes_max,
            batches_per_version_max: limits.batches_per_version_max,
            stream_batches_max: limits.stream_batches_max,
            sessions_per_caller_max: limits.sessions_per_caller_max,
            stages_max: limits.stages_max,
            stages_per_caller_max: limits.stages_per_caller_max,
            stage_age_max: Duration::from_millis(limits.stage_age_ms),
            retention: self.retention.rule(),
            commit_timeout: Duration::from_millis(limits.commit_timeout_ms),
            prepare_timeout: Duration::from_millis(limits.prepare_timeout_ms),
            root_timeout: Duration::from_millis(limits.root_timeout_ms),
            attempt_timeout: Duration::from_millis(limits.attempt_timeout_ms),
            read_timeout: Duration::from_millis(limits.read_timeout_ms),
            lease: Duration::from_millis(limits.lease_ms),
            ..options::Limits::default()
        }
    }
}

/// The witnesses of a policy, all of which are asked, and its quorum. Its logs do not matter here.
///
/// # Errors
/// If the file is no policy, or a witness in it has no URL.
pub fn witnesses_by_policy(path: &Path) -> Result<(Vec<witness::Witness>, Quorum), Failure> {
    let named = |error: String| Failure::usage(format!("witness_policy: {}: {error}", path.display()));
    let policy = Policy::parse(read_text(path)?.as_bytes()).map_err(|error| named(error.to_string()))?;
    let witness = |(name, key, url): (&[u8], &WitnessKey, Option<&[u8]>)| {
        let name = String::from_utf8_lossy(name);
        let url = url.and_then(|url| std::str::from_utf8(url).ok());
        let url = url.ok_or_else(|| named(format!("the witness {name} has no URL")))?;
        Ok(witness::Witness { url: url.to_owned(), key: key.clone() })
    };
    let witnesses = policy.witnesses().map(witness).collect::<Result<Vec<_>, Failure>>()?;
    let quorum = Quorum::Policy(Box::new(policy));
    crate::check_witnesses(&witnesses, &quorum).map_err(|error| named(error.to_string()))?;
    Ok((witnesses, quorum))
}
