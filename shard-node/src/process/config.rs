//! The settings of `coppice-shard-node`; docs/operations.md describes them for operators.

mod pim;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use coppice_process::{
    Failure, Flag, Format, Log, Program, Settings, Telemetry,
    access::Access,
    config::millis,
    ledger::{self, Ledger, Nodes, parse_cluster},
    log_filter,
    store::Store,
    tls::Tls,
};
use coppice_types::GroupId;
use serde::{Deserialize, Serialize};

use crate::node::{claim::Owner, formation::Formation};

pub use pim::{Pim, SmallBatches};

/// The command line.
pub const PROGRAM: Program = Program {
    name: "coppice-shard-node",
    version: env!("CARGO_PKG_VERSION"),
    about: "Hosts replicas of a ledger's shards and of its root log",
    serves_clients: false,
    flags: &[
        Flag { name: "node", value: "NAME", help: "This node's name, as in [nodes]" },
        Flag { name: "cluster-id", value: "HEX", help: "The cluster: the end of the signing key's name" },
        Flag { name: "data-dir", value: "DIR", help: "Where the replicas live; only for this node" },
        Flag { name: "listen", value: "ADDRESS", help: "Where to listen for other nodes and coordinators: IP:PORT" },
        Flag {
            name: "bootstrap",
            value: "new|existing",
            help: "Whether groups that no node has may be formed [default: existing]",
        },
    ],
};

/// Whether a node may form groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bootstrap {
    /// Groups that no node has may be formed, together with all their hosts.
    New,
    /// Groups that are not here are joined, as soon as other nodes have them.
    #[default]
    Existing,
}

/// The settings of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub node: String,
    /// The cluster, in hex.
    pub cluster_id: String,
    /// The directory of the replicas.
    pub data_dir: PathBuf,
    /// A second directory for old values.
    pub cold: Option<Cold>,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The address for health and metrics over plain HTTP.
    pub health_listen: Option<SocketAddr>,
    #[serde(default)]
    pub bootstrap: Bootstrap,
    /// The filter of log events.
    #[serde(default = "log_filter")]
    pub log: String,
    /// The form of a log line.
    #[serde(default)]
    pub log_format: Format,
    /// Where metrics and spans are sent.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// Time limit of a stop.
    #[serde(default = "stop_timeout_ms")]
    pub stop_timeout_ms: u64,
    /// All nodes by name, including this one and the readers.
    pub nodes: Nodes,
    /// The ledger's founding parameters. All processes must have the same ones.
    #[serde(default)]
    pub ledger: Ledger,
    /// The nodes of each group, by the group's name (`root`, or the number of a shard). Groups that
    /// are not named are on all nodes but the readers, which have every shard in any case.
    #[serde(default)]
    pub placement: BTreeMap<String, BTreeSet<String>>,
    /// The etcd in which the node registers its address and finds those of the others.
    pub metadata: Option<Store>,
    /// Certificates. With them, every connection is mutually authenticated.
    pub tls: Option<Tls>,
    /// The roles of callers.
    #[serde(default)]
    pub access: Access,
    /// Intervals and limits of the replicas.
    #[serde(default)]
    pub tuning: Tuning,
    /// Memory modules that compute, for a node with readers.
    pub pim: Option<Pim>,
}

/// A second directory, on a cheaper disk, for each shard's oldest values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cold {
    /// The directory, which only this node uses.
    pub dir: PathBuf,
    /// How many bytes of values each shard keeps in `data_dir`.
    #[serde(default = "hot_value_bytes")]
    pub hot_value_bytes: u64,
    /// Limit on the bytes that each replica copies there in a second.
    #[serde(default = "cold_bytes_per_s")]
    pub bytes_per_s: u64,
}

/// Whether one directory is within the other, by their names.
fn nested(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn hot_value_bytes() -> u64 {
    4 << 30
}

fn cold_bytes_per_s() -> u64 {
    crate::Tuning::default().cold_bytes_per_s
}

/// The default time limit of a stop.
#[must_use]
pub fn stop_timeout_ms() -> u64 {
    20_000
}

/// Intervals and limits of the replicas. The defaults suit a cluster in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Raft's unit of time. There is a heartbeat every 2 ticks, and an election after 10 to 20.
    pub tick_ms: u64,
    /// A state machine is flushed this long after the last flush.
    pub flush_interval_ms: u64,
    /// A state machine is also flushed after this many entries.
    pub flush_entries_max: u64,
    /// A state machine is also flushed when it has this many bytes to write.
    pub flush_bytes_max: u64,
    /// A shard is also flushed when this much of its disk waits for a flush to become free, in
    /// percent of the used space. A lower value takes less space and writes more.
    pub waiting_percent_max: u32,
    /// A value's record includes its key if the key takes at most this share of it, in percent.
    /// Then gets find the value without reading a leaf.
    pub name_percent_max: u32,
    /// Size of a file of the raft log.
    pub log_segment_bytes: u64,
    /// How much of its files each replica reads and checks in a second; 0 turns the check off.
    pub scrub_bytes_per_s: u64,
    /// Bytes of cached nodes of active trees, per shard.
    pub young_cache_bytes: usize,
    /// Bytes of cached nodes of frozen trees, per shard.
    pub old_cache_bytes: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        let tuning = crate::Tuning::default();
        Self {
            tick_ms: millis(tuning.tick),
            flush_interval_ms: millis(tuning.flush_interval),
            flush_entries_max: tuning.flush_entries_max,
            flush_bytes_max: tuning.flush_bytes_max,
            waiting_percent_max: tuning.engine.waiting_percent_max,
            name_percent_max: tuning.engine.name_percent_max,
            log_segment_bytes: tuning.log_segment_bytes,
            scrub_bytes_per_s: tuning.scrub_bytes_per_s,
            young_cache_bytes: tuning.engine.young_cache_bytes,
            old_cache_bytes: tuning.engine.old_cache_bytes,
        }
    }
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
        ledger::check_nodes(&self.nodes)?;
        if !self.nodes.contains_key(&self.node) {
            let names: Vec<&str> = self.nodes.keys().map(String::as_str).collect();
            return Err(Failure::usage(format!("node = {:?} is not in [nodes]: {}", self.node, names.join(", "))));
        }
        self.access.check("listen", self.listen, self.tls.is_some())?;
        let Tuning { tick_ms, log_segment_bytes, .. } = self.tuning;
        if !(1..=10_000).contains(&tick_ms) || !(64 << 10..=1 << 30).contains(&log_segment_bytes) {
            return Err(Failure::usage("tuning: tick_ms must be 1 to 10000, log_segment_bytes 64 KiB to 1 GiB"));
        }
        if let Some(Cold { dir, .. }) = self.cold.as_ref().filter(|cold| nested(&cold.dir, &self.data_dir)) {
            let message = format!(
                "cold.dir = {:?} and data_dir = {:?} are not apart: neither may contain the other",
                dir, self.data_dir
            );
            return Err(Failure::usage(message));
        }
        if let Some(store) = &self.metadata {
            store.check()?;
            if store.dir.is_some() {
                return Err(Failure::usage(
                    "metadata: dir is only for coordinators; nodes register in etcd: endpoints",
                ));
            }
        }
        if let Some(pim) = &self.pim {
            if !self.nodes.get(&self.node).is_some_and(|node| node.reader) {
                return Err(Failure::usage(
                    "pim is only for a node with readers: its entry in [nodes] has reader = true",
                ));
            }
            pim.check()?;
        }
        self.owner()?;
        self.formation().map(drop)
    }
}

impl Config {
    /// The owner of the node's directory.
    ///
    /// # Errors
    /// If the cluster id or the ledger cannot be read.
    pub fn owner(&self) -> Result<Owner, Failure> {
        Ok(Owner {
            cluster: parse_cluster(&self.cluster_id)?,
            node: self.node.clone(),
            ordinal: self.nodes.get(&self.node).map_or(0, |node| node.ordinal),
            ledger: self.ledger.digest()?,
        })
    }

    /// All groups of the ledger.
    ///
    /// # Errors
    /// If the ledger's shards cannot be read.
    pub fn groups(&self) -> Result<Vec<GroupId>, Failure> {
        let map = self.ledger.shard_map()?;
        Ok(std::iter::once(GroupId::Root).chain(map.shards().iter().map(|shard| GroupId::Shard(shard.id))).collect())
    }

    /// The groups that this node hosts, and its part in forming them.
    ///
    /// # Errors
    /// If a group or node of the placement does not exist.
    pub fn formation(&self) -> Result<Formation, Failure> {
        let wrong = |message: String| Failure::usage(format!("placement: {message}"));
        let own = self.nodes.get(&self.node).cloned().unwrap_or_default();
        let mut groups = BTreeMap::new();
        let mut named: BTreeSet<&str> = self.placement.keys().map(String::as_str).collect();
        for group in self.groups()? {
            let name = match group {
                GroupId::Root => "root".to_owned(),
                GroupId::Shard(shard) => shard.0.to_string(),
            };
            named.remove(name.as_str());
            let hosts: BTreeSet<u32> = match self.placement.get(&name) {
                None => self.nodes.values().filter(|node| !node.reader).map(|node| node.ordinal).collect(),
                Some(nodes) => {
                    let ordinal = |node: &String| match self.nodes.get(node) {
                        None => Err(wrong(format!("{name} is on {node}, which is not in [nodes]"))),
                        Some(known) if known.reader => {
                            Err(wrong(format!("{name} is on {node}, a reader, which has every shard and never votes")))
                        }
                        Some(known) => Ok(known.ordinal),
                    };
                    nodes.iter().map(ordinal).collect::<Result<_, _>>()?
                }
            };
            if hosts.is_empty() {
                return Err(wrong(format!("{name} is on no node")));
            }
            if hosts.contains(&own.ordinal) || (own.reader && group != GroupId::Root) {
                groups.insert(group, hosts);
            }
        }
        if let Some(unknown) = named.first() {
            return Err(wrong(format!("there is no group `{unknown}`: they are `root` and the numbers of the shards")));
        }
        Ok(Formation { groups, new: self.bootstrap == Bootstrap::New, ledger: self.ledger.digest()? })
    }

    /// Intervals and limits of the replicas.
    pub(super) fn tuning(&self) -> crate::Tuning {
        let Tuning { young_cache_bytes, old_cache_bytes, waiting_percent_max, name_percent_max, .. } = self.tuning;
        let defaults = crate::Tuning::default();
        let cold = self.cold.as_ref();
        let hot_value_bytes_max = cold.map_or(u64::MAX, |cold| cold.hot_value_bytes);
        let engine = coppice_engine::Options {
            young_cache_bytes,
            old_cache_bytes,
            waiting_percent_max,
            name_percent_max,
            hot_value_bytes_max,
            ..defaults.engine.clone()
        };
        crate::Tuning {
            cold_bytes_per_s: cold.map_or(0, |cold| cold.bytes_per_s),
            tick: Duration::from_millis(self.tuning.tick_ms),
            flush_interval: Duration::from_millis(self.tuning.flush_interval_ms),
            flush_entries_max: self.tuning.flush_entries_max,
            flush_bytes_max: self.tuning.flush_bytes_max,
            log_segment_bytes: self.tuning.log_segment_bytes,
            scrub_bytes_per_s: self.tuning.scrub_bytes_per_s,
            engine,
            ..defaults
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
