//! Nodes and a coordinator, assembled in one process.
//!
//! When the coordinator leads for the first time, the file `formed` notes that the groups were
//! formed. From then on, a missing replica directory is a lost one. Its replica comes back under a
//! new raft id, and as a learner first, because an empty directory must never vote. A crash before
//! the note leaves replicas that have promised nothing.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use coppice_coordinator as coordinator;
use coppice_env::{Clock, OpenMode, Rng, Storage, SystemClock, SystemRng};
use coppice_metadata::{EmbeddedStore, Metadata};
use coppice_pim::BatcherOptions;
use coppice_process::{
    access::Peer,
    net::{Services, incoming_both},
};
use coppice_shard_node::{
    Bootstrap, DuplexNet, Handle, Node, ReplicaOptions, Tuning, home as replica_home,
    pim::{PimOptions, Source},
};
use coppice_types::{ClusterId, ErrorKind, GroupId, RaftId, chain};
use coppice_verify::note::SignerKey;
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{listener::Listener, shape::Shape};
use crate::failure::{Code, Failure};

/// Longest time for the groups to elect leaders and for the coordinator to take over.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for the coordinator to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The parts and settings of a cluster.
#[derive(Debug)]
pub struct Options {
    /// The data directory.
    pub storage: Arc<dyn Storage>,
    /// Shards, replicas, capacity.
    pub shape: Shape,
    /// Number of nodes with readers, which may differ at each start.
    pub readers: u32,
    /// Whether these have emulated memory modules.
    pub pim: bool,
    /// The key that signs checkpoints; its name ends in the cluster id.
    pub key: SignerKey,
    /// A key to which the ledger's key can be changed.
    pub next_key: Option<SignerKey>,
    /// The address at which the coordinator listens.
    pub listen: Listener,
    /// The address at which the root log is served over HTTP, if it is served.
    pub http_listen: Option<Listener>,
    /// Witnesses to ask for cosignatures of checkpoints, and which of them must have cosigned.
    pub witnesses: Option<(Vec<coordinator::Witness>, coordinator::Quorum)>,
    /// The authorities that stamp checkpoints, and how often; `None` without any.
    pub anchoring: Option<coordinator::Anchoring>,
    /// The versions to keep; `None` keeps all.
    pub retention: Option<coordinator::Retention>,
    /// The pace of the replicas.
    pub tuning: Tuning,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: BTreeMap<u32, Handle>,
    groups: Vec<GroupId>,
    coordinator: coordinator::Handle,
    service: JoinHandle<Result<(), coordinator::Error>>,
    shutdown: oneshot::Sender<()>,
    endpoint: String,
    log_url: Option<String>,
}

fn node_name(ordinal: u32) -> String {
    format!("node-{ordinal}")
}

impl Cluster {
    /// Starts a cluster and waits until it serves.
    ///
    /// # Errors
    /// If a replica can't be started, or if there is no leader in time.
    pub async fn start(options: Options) -> Result<Self, Failure> {
        let Options { storage, shape, readers, pim, key, next_key, listen, http_listen, .. } = options;
        let Options { witnesses, anchoring, retention, tuning, .. } = options;
        let cluster = cluster_id(key.name())?;
        let map = shape.shard_map()?;
        let (listener, endpoint) = listen.open()?;
        let log_listener = http_listen.map(Listener::open).transpose()?;
        let mut groups = vec![GroupId::Root];
        groups.extend(map.shards().iter().map(|shard| GroupId::Shard(shard.id)));
        let network = DuplexNet::new();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let formation = Formation {
            storage,
            shape: &shape,
            readers,
            pim,
            groups: &groups,
            cluster,
            clock: Arc::clone(&clock),
            network: &network,
            tuning,
        };
        let formed = formation.is_formed()?;
        let Started { nodes, services, lost } = formation.start_nodes(formed).await?;
        let metadata = formation.open_metadata()?;
        let routing =
            coordinator::Routing { readers: formation.readers().map(node_name).collect(), ..Default::default() };
        let (mut service, handle) =
            new_coordinator((services, routing), &shape, (key, next_key), metadata, clock, retention)?;
        let (shutdown, stopped) = oneshot::channel();
        let log_url = log_listener.as_ref().map(|(_, address)| format!("http://{address}/"));
        if let Some((listener, _)) = log_listener {
            service.serve_log(listener, None);
        }
        if let Some((witnesses, quorum)) = witnesses {
            service.ask_witnesses(witnesses, quorum).map_err(|error| Failure::usage(error.to_string()))?;
        }
        if let Some(anchoring) = anchoring {
            service.anchor(anchoring).map_err(|error| Failure::usage(error.to_string()))?;
        }
        let connections = incoming_both(listener, None);
        service.serve_http1(connections.http1);
        let service = tokio::spawn(service.run(connections.grpc, async {
            // An error means that the cluster was dropped, which ends the service, too.
            let _ = stopped.await;
        }));
        let mut running = Self {
            nodes,
            groups: groups.clone(),
            coordinator: handle,
            service,
            shutdown,
            endpoint: format!("http://{endpoint}"),
            log_url,
        };
        running.wait_until_led().await?;
        if !formed {
            formation.set_formed()?;
        }
        running.bring_back(lost);
        Ok(running)
    }

    async fn wait_until_led(&mut self) -> Result<(), Failure> {
        let coordinator = self.coordinator.clone();
        tokio::select! {
            led = timeout(READY_LIMIT, coordinator.leading()) => match led {
                Ok(_) => Ok(()),
                Err(_) => Err(Failure::new(Code::Unavailable, format!("no leader within {} s", READY_LIMIT.as_secs()))
                    .hint("COPPICE_LOG=info shows what the replicas do.")),
            },
            ended = &mut self.service => {
                let why = match ended {
                    Ok(Ok(())) => "it stopped".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                };
                Err(Failure::new(Code::Unavailable, format!("the coordinator ended: {why}")))
            }
        }
    }

    /// Replaces replicas whose directories were lost, and adds readers, in the background.
    fn bring_back(&self, lost: Vec<(u32, GroupId)>) {
        for (ordinal, group) in lost {
            let node = self.nodes[&ordinal].clone();
            tokio::spawn(async move {
                match node.replace_replica(group).await {
                    Ok(id) => tracing::warn!(node = ordinal, %group, "an empty replica joined as {:#x}", id.0),
                    Err(error) => tracing::error!(node = ordinal, %group, %error, "an empty replica did not join"),
                }
            });
        }
    }

    /// The URL at which the coordinator listens.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of the root log over HTTP, if it is served.
    #[must_use]
    pub fn log_url(&self) -> Option<&str> {
        self.log_url.as_deref()
    }

    /// The groups: root first, then the shards.
    #[must_use]
    pub fn groups(&self) -> &[GroupId] {
        &self.groups
    }

    /// The nodes by ordinal, from 1. Those with readers come last.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<u32, Handle> {
        &self.nodes
    }

    #[must_use]
    pub fn coordinator(&self) -> &coordinator::Handle {
        &self.coordinator
    }

    /// Starts a stopped replica from its directory.
    ///
    /// # Errors
    /// If the replica has no directory, or can't be started.
    ///
    /// # Panics
    /// If there is no node with this ordinal.
    pub async fn start_replica(&self, ordinal: u32, group: GroupId) -> Result<(), Failure> {
        let node = &self.nodes[&ordinal];
        let identity = replica_home::stored(node.hosted().storage.as_ref(), group).map_err(failed)?;
        let identity = identity
            .ok_or_else(|| Failure::new(Code::Refused, format!("{group} has no directory on node {ordinal}")))?;
        let options = ReplicaOptions { group, raft_id: identity.raft_id, bootstrap: Bootstrap::Join };
        node.start_replica(options).await.map_err(failed)
    }

    /// Stops everything in order: the coordinator first, then the nodes, which flush.
    ///
    /// # Errors
    /// If the coordinator does not end in time.
    pub async fn stop(self) -> Result<(), Failure> {
        // The service may have ended by itself.
        let _ = self.shutdown.send(());
        let ended = timeout(STOP_LIMIT, self.service).await;
        let mut stopping = JoinSet::new();
        for node in self.nodes.into_values() {
            stopping.spawn(async move { node.stop_with_cluster().await });
        }
        stopping.join_all().await;
        match ended {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Failure::new(Code::Unavailable, error.to_string())),
            Ok(Err(error)) => Err(Failure::new(Code::Unavailable, error.to_string())),
            Err(_) => Err(Failure::new(Code::Unavailable, "the coordinator did not end in time")),
        }
    }
}

fn new_coordinator(
    (services, routing): (BTreeMap<String, Services>, coordinator::Routing),
    shape: &Shape,
    (signing_key, next_signing_key): (SignerKey, Option<SignerKey>),
    metadata: Arc<dyn Metadata>,
    clock: Arc<dyn Clock>,
    retention: Option<coordinator::Retention>,
) -> Result<(coordinator::Service, coordinator::Handle), Failure> {
    coordinator::Service::new(coordinator::Options {
        name: "coordinator-1".to_owned(),
        nodes: services.keys().cloned().collect(),
        routing,
        connect: Arc::new(move |node| services[node].channel(Peer::default())),
        metadata,
        signing_key,
        next_signing_key,
        genesis: coordinator::Genesis { params: shape.params(), shard_map: shape.shard_map()? },
        limits: coordinator::Limits { retention, ..coordinator::Limits::default() },
        clock,
        rng: Box::new(SystemRng),
    })
    .map_err(|error| Failure::new(Code::Unavailable, error.to_string()))
}

/// The nodes after their start.
struct Started {
    nodes: BTreeMap<u32, Handle>,
    /// The services of each node by name.
    services: BTreeMap<String, Services>,
    /// Replicas whose directories were lost.
    lost: Vec<(u32, GroupId)>,
}

/// Everything that the start of the nodes needs.
struct Formation<'a> {
    storage: Arc<dyn Storage>,
    shape: &'a Shape,
    readers: u32,
    pim: bool,
    groups: &'a [GroupId],
    cluster: ClusterId,
    clock: Arc<dyn Clock>,
    network: &'a DuplexNet,
    tuning: Tuning,
}

impl Formation<'_> {
    fn is_formed(&self) -> Result<bool, Failure> {
        match self.storage.open("formed", OpenMode::Existing) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unreadable(&error)),
        }
    }

    fn set_formed(&self) -> Result<(), Failure> {
        let make = || {
            self.storage.open("formed", OpenMode::OpenOrCreate)?.sync_data()?;
            self.storage.sync_dir("")
        };
        make().map_err(|error| unreadable(&error))
    }

    fn open_metadata(&self) -> Result<Arc<dyn Metadata>, Failure> {
        let storage = self.storage.subdir("metadata").map_err(|error| unreadable(&error))?;
        let store = EmbeddedStore::open(storage, Arc::clone(&self.clock));
        Ok(Arc::new(
            store.map_err(|error| Failure::new(Code::Unavailable, format!("the metadata store: {}", chain(&error))))?,
        ))
    }

    /// Starts all nodes, with all replicas except those whose directories were lost.
    async fn start_nodes(&self, formed: bool) -> Result<Started, Failure> {
        let (mut nodes, mut services, mut lost) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for ordinal in (1..=self.shape.replicas).chain(self.readers()) {
            let (options, missing) = self.node(ordinal, formed)?;
            let (name, incoming) = (options.node.clone(), self.network.listen(&options.node));
            let (node, served) = Node::start_guarded(options, incoming, None).await.map_err(failed)?;
            nodes.insert(ordinal, node);
            services.insert(name, served);
            lost.extend(missing.into_iter().map(|group| (ordinal, group)));
        }
        for group in self.groups {
            let voted = |ordinal: u32| ordinal <= self.shape.replicas;
            let gone = lost.iter().filter(|(ordinal, missing)| missing == group && voted(*ordinal)).count();
            if gone * 2 >= self.shape.replicas as usize {
                let message = format!("{group} has lost {gone} of {} replica directories", self.shape.replicas);
                return Err(Failure::new(Code::Unavailable, message)
                    .hint("Without a majority, nothing shows what was committed: restore the directories."));
            }
        }
        Ok(Started { nodes, services, lost })
    }

    /// The ordinals of the nodes with readers.
    fn readers(&self) -> impl Iterator<Item = u32> {
        (1..=self.readers).map(|number| self.shape.replicas + number)
    }

    /// The options of a node, and its groups that have no directory though the cluster is formed.
    /// Readers join such groups; their nodes have no replica of the root group.
    fn node(&self, ordinal: u32, formed: bool) -> Result<(coppice_shard_node::Options, Vec<GroupId>), Failure> {
        let node = node_name(ordinal);
        self.storage.create_dir_all(&node).map_err(|error| unreadable(&error))?;
        let storage = self.storage.subdir(&node).map_err(|error| unreadable(&error))?;
        let voters: Vec<RaftId> = (1..=self.shape.replicas).map(|ordinal| RaftId::new(ordinal, 1)).collect();
        let (mut replicas, mut missing) = (Vec::new(), Vec::new());
        let reads = ordinal > self.shape.replicas;
        let formed = formed || reads;
        for &group in self.groups.iter().filter(|group| !reads || **group != GroupId::Root) {
            let identity = replica_home::stored(storage.as_ref(), group).map_err(failed)?;
            match identity {
                Some(identity) if formed => {
                    replicas.push(ReplicaOptions { group, raft_id: identity.raft_id, bootstrap: Bootstrap::Join })
                }
                None if formed => missing.push(group),
                _ => replicas.push(ReplicaOptions {
                    group,
                    raft_id: RaftId::new(ordinal, 1),
                    bootstrap: Bootstrap::New { voters: voters.clone() },
                }),
            }
        }
        let options = coppice_shard_node::Options {
            connector: self.network.connector(&node),
            node,
            cluster_id: self.cluster,
            params: self.shape.params(),
            nodes: (1..=self.shape.replicas)
                .chain(self.readers())
                .map(|ordinal| (ordinal, node_name(ordinal)))
                .collect(),
            readers: self.readers().collect(),
            storage,
            clock: Arc::clone(&self.clock),
            seed: SystemRng.next_u64(),
            replicas,
            tuning: self.tuning.clone(),
            pim: (reads && self.pim).then(emulated_modules),
        };
        Ok((options, missing))
    }
}

/// Emulated memory modules that answer however few queries come, so that a few commands show them.
fn emulated_modules() -> PimOptions {
    PimOptions {
        source: Source::Emulator,
        profile: String::new(),
        dpus: 8,
        records_min: 1,
        versions_max: 64,
        nodes_max: 256 << 10,
        batches: BatcherOptions { queries_min: 64, wait_max: Duration::from_millis(2), queries_max: 4096 },
        answer_wait: Duration::from_millis(45),
        small_batches: true,
    }
}

/// The cluster id at the end of a key's name.
fn cluster_id(name: &str) -> Result<ClusterId, Failure> {
    let id = name.rsplit_once('/').and_then(|(_, id)| hex::decode(id).ok()).and_then(|id| ClusterId::from_slice(&id));
    id.ok_or_else(|| Failure::usage(format!("the key's name `{name}` does not end in a cluster id")))
}

fn failed(error: coppice_shard_node::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Exhausted => Code::Refused,
        _ => Code::Unavailable,
    };
    Failure::new(code, chain(&error))
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::new(Code::Unavailable, format!("the data directory: {error}"))
}
