//! The settings of `coppice serve`: those of `coppice-shard-node` and of `coppice-coordinator`.
//!
//! A setting that both programs have is given once. Only `listen` means two things: here it is the
//! node's address for the cluster, and `api_listen` is the coordinator's for clients. The process
//! has one name and, with TLS, one certificate with both roles.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

use coppice_coordinator::process::{self as coordinator, Anchor, Limits, Retention, Witness};
use coppice_process::{
    Failure, Flag, Format, Log, Program, Settings, Telemetry,
    access::Access,
    ledger::{Ledger, Nodes},
    log_filter,
    store::Store,
    tls::{ServerTls, Tls},
};
use coppice_shard_node::process::{self as node, Bootstrap, Cold, Pim, Tuning, stop_timeout_ms};
use serde::{Deserialize, Serialize};

/// The command line.
pub const PROGRAM: Program = Program {
    name: "coppice-serve",
    version: env!("CARGO_PKG_VERSION"),
    about: "Run a node and a coordinator in this process",
    serves_clients: true,
    flags: &[
        Flag { name: "node", value: "NAME", help: "This node's name, as in [nodes]" },
        Flag { name: "cluster-id", value: "HEX", help: "The cluster: the end of the signing key's name" },
        Flag { name: "data-dir", value: "DIR", help: "Where the replicas live; only for this node" },
        Flag { name: "listen", value: "ADDRESS", help: "Where to listen for other nodes and coordinators: IP:PORT" },
        Flag { name: "api-listen", value: "ADDRESS", help: "Where to listen for clients (gRPC): IP:PORT" },
        Flag {
            name: "http-listen",
            value: "ADDRESS",
            help: "Where to serve the root log over HTTP: IP:PORT [default: nowhere]",
        },
        Flag {
            name: "advertise",
            value: "ADDRESS",
            help: "Where other coordinators reach this one: HOST:PORT [default: api-listen]",
        },
        Flag {
            name: "bootstrap",
            value: "new|existing",
            help: "Whether groups that no node has may be formed [default: existing]",
        },
        Flag {
            name: "signing-key-file",
            value: "FILE",
            help: "The key that signs checkpoints, as `coppice keygen` makes it",
        },
    ],
};

/// The settings of a process that is a node and a coordinator. docs/operations.md describes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    // Settings of both roles.
    pub cluster_id: String,
    pub health_listen: Option<SocketAddr>,
    #[serde(default = "log_filter")]
    pub log: String,
    #[serde(default)]
    pub log_format: Format,
    #[serde(default)]
    pub telemetry: Telemetry,
    pub nodes: Nodes,
    #[serde(default)]
    pub ledger: Ledger,
    pub metadata: Store,
    pub tls: Option<Tls>,
    #[serde(default)]
    pub access: Access,
    // Settings of the node.
    /// The name of the node, and of the coordinator unless `name` is given.
    pub node: String,
    pub data_dir: PathBuf,
    pub cold: Option<Cold>,
    /// The address for nodes and coordinators.
    pub listen: SocketAddr,
    #[serde(default)]
    pub bootstrap: Bootstrap,
    #[serde(default = "stop_timeout_ms")]
    pub stop_timeout_ms: u64,
    #[serde(default)]
    pub placement: BTreeMap<String, BTreeSet<String>>,
    #[serde(default)]
    pub tuning: Tuning,
    /// For a node with readers.
    pub pim: Option<Pim>,
    // Settings of the coordinator.
    /// The coordinator's name. With roles, it must be that of the node: one certificate states it.
    pub name: Option<String>,
    /// The address for clients: a coordinator's `listen`.
    pub api_listen: SocketAddr,
    pub http_api: Option<bool>,
    pub http_listen: Option<SocketAddr>,
    pub advertise: Option<String>,
    pub signing_key_file: PathBuf,
    pub next_signing_key_file: Option<PathBuf>,
    pub api_tls: Option<ServerTls>,
    #[serde(default)]
    pub witnesses: Vec<Witness>,
    pub witness_quorum: Option<usize>,
    pub witness_policy: Option<PathBuf>,
    pub anchor: Option<Anchor>,
    #[serde(default)]
    pub retention: Retention,
    #[serde(default)]
    pub limits: Limits,
}

impl Settings for Config {
    fn log(&self) -> Log {
        Log { filter: self.log.clone(), format: self.log_format }
    }

    fn name(&self) -> &str {
        &self.node
    }

    fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn check(&self) -> Result<(), Failure> {
        self.node().check()?;
        self.coordinator().check_as("api_listen")
    }
}

impl Config {
    /// The settings of the node.
    #[must_use]
    pub fn node(&self) -> node::Config {
        let all = self.clone();
        // An embedded store is the coordinator's alone.
        let metadata = (!all.metadata.endpoints.is_empty()).then_some(all.metadata);
        node::Config {
            node: all.node,
            cluster_id: all.cluster_id,
            data_dir: all.data_dir,
            cold: all.cold,
            listen: all.listen,
            health_listen: all.health_listen,
            bootstrap: all.bootstrap,
            log: all.log,
            log_format: all.log_format,
            telemetry: all.telemetry,
            stop_timeout_ms: all.stop_timeout_ms,
            nodes: all.nodes,
            ledger: all.ledger,
            placement: all.placement,
            metadata,
            tls: all.tls,
            access: all.access,
            tuning: all.tuning,
            pim: all.pim,
        }
    }

    /// The settings of the coordinator.
    #[must_use]
    pub fn coordinator(&self) -> coordinator::Config {
        let all = self.clone();
        coordinator::Config {
            name: all.name.unwrap_or_else(|| all.node.clone()),
            cluster_id: Some(all.cluster_id),
            listen: all.api_listen,
            http_api: all.http_api,
            http_listen: all.http_listen,
            health_listen: all.health_listen,
            advertise: all.advertise,
            signing_key_file: all.signing_key_file,
            next_signing_key_file: all.next_signing_key_file,
            log: all.log,
            log_format: all.log_format,
            telemetry: all.telemetry,
            zone: all.nodes.get(&all.node).and_then(|node| node.zone.clone()),
            nodes: all.nodes,
            ledger: all.ledger,
            metadata: all.metadata,
            tls: all.tls,
            api_tls: all.api_tls,
            access: all.access,
            witnesses: all.witnesses,
            witness_quorum: all.witness_quorum,
            witness_policy: all.witness_policy,
            anchor: all.anchor,
            retention: all.retention,
            limits: all.limits,
        }
    }
}
