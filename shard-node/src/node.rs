//! A node: its replicas, the services in front of them, and the handle that starts and stops them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use coppice_env::{Clock, Storage};
use coppice_proto::v1::{
    self, node_server::NodeServer, peer_server::PeerServer, root_server::RootServer, shard_server::ShardServer,
};
use coppice_types::{ClusterId, GroupId, Params, Reason};
use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{oneshot, watch},
};
use tonic::transport::{Server, server::Connected};

use crate::{
    Error, convert,
    home::{self, Identity},
    limits::{
        CALLS_PER_CONNECTION_MAX, KEEPALIVE_INTERVAL, PEER_MESSAGE_EXTRA_BYTES, SNAPSHOT_CHUNK_BYTES, WINDOW_BYTES,
        message_bytes,
    },
    machine::StateMachine,
    net::Connector,
    peers::{Peers, Sender},
    refusal::Refusal,
    replica::{self, Bootstrap, Change, Config, Input, ReplicaHandle, Status, Tuning},
    root::RootMachine,
    service::{NodeService, PeerService, RootService, ShardService},
    shard::{ShardConfig, ShardMachine},
};

/// How long a replica may take to hand over leadership and flush.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open calls may take to end when the node stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Raft ids of unknown ordinals whose node is remembered.
const LEARNED_MAX: usize = 1024;

/// The raft id of a replica: `ordinal` names the node's place, `incarnation` counts its disks from 1. Never used twice.
#[must_use]
pub fn raft_id(ordinal: u32, incarnation: u32) -> u64 {
    u64::from(ordinal) << 32 | u64::from(incarnation)
}

/// The ordinal of a raft id.
#[must_use]
pub fn ordinal(raft_id: u64) -> u32 {
    u32::try_from(raft_id >> 32).expect("32 bits are left")
}

/// What a node is made of.
#[derive(Debug)]
pub struct Options {
    /// Its name, by which others connect to it.
    pub node: String,
    /// The cluster that it belongs to.
    pub cluster_id: ClusterId,
    /// The parameters of the genesis header.
    pub params: Params,
    /// The nodes of the cluster by ordinal, this one among them.
    pub nodes: BTreeMap<u32, String>,
    /// The node's directory; each replica lives in `group-<number>`.
    pub storage: Arc<dyn Storage>,
    /// The way to other nodes.
    pub connector: Arc<dyn Connector>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Seeds the random delays of elections.
    pub seed: u64,
    /// The replicas to start.
    pub replicas: Vec<ReplicaOptions>,
    /// How they pace themselves.
    pub tuning: Tuning,
}

/// Which replica to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// Its group.
    pub group: GroupId,
    /// Its raft id, see [`raft_id`].
    pub raft_id: u64,
    /// How it begins if it has no directory yet; ignored otherwise.
    pub bootstrap: Bootstrap,
}

/// A replica of either kind.
#[derive(Clone, Debug)]
pub enum Replica {
    /// Of a shard.
    Shard(ReplicaHandle<ShardMachine>),
    /// Of the root group.
    Root(ReplicaHandle<RootMachine>),
}

/// What the services and replicas of one node share.
#[derive(Debug)]
pub struct Hosted {
    /// The node's name.
    pub node: String,
    /// Its cluster.
    pub cluster: ClusterId,
    /// The genesis parameters.
    pub params: Params,
    /// The largest message of the API.
    pub message_bytes_max: usize,
    /// The node's directory.
    pub storage: Arc<dyn Storage>,
    /// The way to other nodes.
    pub connector: Arc<dyn Connector>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For random delays.
    pub seed: u64,
    /// The replicas' pace.
    pub tuning: Tuning,
    /// Where asynchronous work runs.
    pub runtime: tokio::runtime::Handle,
    /// The queues to other nodes.
    pub peers: Peers,
    /// Set when the node ends: streams that would last for ever end too.
    pub closing: watch::Sender<bool>,
    nodes: BTreeMap<u32, String>,
    learned: RwLock<BTreeMap<u64, String>>,
    replicas: RwLock<BTreeMap<GroupId, Replica>>,
}

impl Replica {
    /// Its raft id.
    #[must_use]
    pub fn raft_id(&self) -> u64 {
        match self {
            Self::Shard(replica) => replica.raft_id,
            Self::Root(replica) => replica.raft_id,
        }
    }

    /// How it does.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Shard(replica) => replica.status(),
            Self::Root(replica) => replica.status(),
        }
    }

    /// Changes the group's members; the replica must lead.
    ///
    /// # Errors
    /// If it does not, or the change is refused or not done in time.
    pub async fn change(&self, limit: Duration, change: Change) -> Result<(), Refusal> {
        match self {
            Self::Shard(replica) => replica.ask(limit, |answer| Input::Change(change, answer)).await,
            Self::Root(replica) => replica.ask(limit, |answer| Input::Change(change, answer)).await,
        }
    }

    /// Bytes of a pinned snapshot.
    ///
    /// # Errors
    /// If it is not pinned (any more) or cannot be read.
    pub async fn read_snapshot(
        &self,
        request: &v1::FetchSnapshotRequest,
        offset: u64,
        now: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        match self {
            Self::Shard(replica) => read_snapshot(replica, request, offset, now).await,
            Self::Root(replica) => read_snapshot(replica, request, offset, now).await,
        }
    }

    fn unreachable(&self, node: &str) {
        // A full lane drops the news: the next lost message brings it again.
        let _ = match self {
            Self::Shard(replica) => {
                replica.shared.mailbox.put(crate::mailbox::Lane::Peers, Input::Unreachable(node.to_owned()))
            }
            Self::Root(replica) => {
                replica.shared.mailbox.put(crate::mailbox::Lane::Peers, Input::Unreachable(node.to_owned()))
            }
        };
    }

    fn close(&self) {
        match self {
            Self::Shard(replica) => replica.shared.mailbox.close(),
            Self::Root(replica) => replica.shared.mailbox.close(),
        }
    }

    async fn retire(&self) {
        let retired = match self {
            Self::Shard(replica) => replica.ask(RETIRE_TIMEOUT, Input::Retire).await,
            Self::Root(replica) => replica.ask(RETIRE_TIMEOUT, Input::Retire).await,
        };
        if let Err(refusal) = retired {
            tracing::warn!(reason = %refusal.reason, refusal.message, "a replica did not retire in order");
        }
    }

    fn report(&self, group: GroupId, node: &str) -> v1::ReplicaReport {
        let status = self.status();
        let (disk, forest) = match self {
            Self::Shard(replica) => {
                let read = |machine: &ShardMachine| {
                    let decided = machine.engine().decided();
                    let shape = machine.engine().shape(&decided).ok();
                    Ok((machine.disk_bytes(), Some((decided, shape))))
                };
                replica.read_now(read).unwrap_or_default()
            }
            Self::Root(replica) => (replica.read_now(|machine| Ok(machine.disk_bytes())).unwrap_or_default(), None),
        };
        let ids = |members: &[replica::Member]| members.iter().map(|member| member.raft_id).collect();
        v1::ReplicaReport {
            group: group.number(),
            leader_raft_id: status.leader,
            decided: forest.as_ref().map(|(decided, _)| convert::to_state(decided)),
            shape: forest.and_then(|(_, shape)| shape).as_ref().map(convert::to_shape),
            voters: ids(&status.voters),
            learners: ids(&status.learners),
            committed: status.committed,
            status: Some(v1::ReplicaStatus {
                raft_id: self.raft_id(),
                node: node.to_owned(),
                role: status.role.to_owned(),
                applied: status.applied,
                bytes_on_disk: disk,
                note: status.note,
            }),
        }
    }
}

async fn read_snapshot<M: StateMachine>(
    replica: &ReplicaHandle<M>,
    request: &v1::FetchSnapshotRequest,
    offset: u64,
    now: Duration,
) -> Result<Vec<u8>, Refusal> {
    let (id, file) = (request.snapshot_id, request.file.clone());
    let read = move |machine: &M| {
        let unavailable = |error: Error| Refusal::new(Reason::Unavailable, error.chain());
        machine.read_snapshot(id, &file, offset, SNAPSHOT_CHUNK_BYTES).map_err(unavailable)
    };
    let bytes = replica.read(read).await?;
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    replica.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
    Ok(bytes)
}

impl Hosted {
    /// The replica of a group that runs here.
    #[must_use]
    pub fn replica(&self, group: GroupId) -> Option<Replica> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// The replica of a shard's group that runs here.
    ///
    /// # Errors
    /// `UNAVAILABLE` if there is none.
    pub fn shard(&self, group: GroupId) -> Result<ReplicaHandle<ShardMachine>, Refusal> {
        match self.replica(group) {
            Some(Replica::Shard(replica)) => Ok(replica),
            _ if group == GroupId::Root => Err(Refusal::new(Reason::InvalidArgument, "group 0 is the root group")),
            _ => Err(Refusal::new(Reason::Unavailable, format!("no replica of {group} runs here"))),
        }
    }

    /// The replica of the root group that runs here.
    ///
    /// # Errors
    /// `UNAVAILABLE` if there is none.
    pub fn root(&self) -> Result<ReplicaHandle<RootMachine>, Refusal> {
        match self.replica(GroupId::Root) {
            Some(Replica::Root(replica)) => Ok(replica),
            _ => Err(Refusal::new(Reason::Unavailable, "no replica of the root group runs here")),
        }
    }

    /// The node that hosts a raft id.
    #[must_use]
    pub fn node_of(&self, raft_id: u64) -> Option<String> {
        let known = self.nodes.get(&ordinal(raft_id)).cloned();
        known.or_else(|| self.learned.read().unwrap_or_else(PoisonError::into_inner).get(&raft_id).cloned())
    }

    /// Notes where a raft id of an ordinal that was not known at the start lives.
    pub fn learn_node(&self, raft_id: u64, node: &str) {
        if self.node_of(raft_id).is_none() {
            let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
            if learned.len() < LEARNED_MAX {
                learned.insert(raft_id, node.to_owned());
            }
        }
    }

    /// This node's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> Option<u32> {
        self.nodes.iter().find(|(_, name)| **name == self.node).map(|(&ordinal, _)| ordinal)
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.values().map(String::as_str)
    }

    /// How all replicas do.
    #[must_use]
    pub fn report(&self) -> v1::NodeStatusResponse {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner).clone();
        let replicas = replicas.iter().map(|(group, replica)| replica.report(*group, &self.node)).collect();
        v1::NodeStatusResponse { node: self.node.clone(), replicas }
    }

    fn unreachable(&self, node: &str) {
        for replica in self.replicas.read().unwrap_or_else(PoisonError::into_inner).values() {
            replica.unreachable(node);
        }
    }
}

/// A running node. Clones are the same node.
#[derive(Clone, Debug)]
pub struct Handle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    hosted: Arc<Hosted>,
    threads: Mutex<BTreeMap<GroupId, JoinHandle<()>>>,
    /// Starting and stopping replicas is done one at a time.
    changing: tokio::sync::Mutex<()>,
    shutdown: Mutex<Option<oneshot::Sender<()>>>,
    server: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

/// Starts nodes.
#[derive(Debug)]
pub struct Node;

impl Node {
    /// The raft id of the group's replica in a node's directory; none if there is no replica.
    ///
    /// # Errors
    /// If the directory cannot be read or is damaged.
    pub fn stored_raft_id(storage: &dyn Storage, group: GroupId) -> Result<Option<u64>, Error> {
        Ok(home::stored(storage, group)?.map(|identity| identity.raft_id))
    }

    /// Starts a node's replicas and serves them on `incoming`. Runs on the present tokio runtime.
    ///
    /// # Errors
    /// If a replica cannot be started; then none runs.
    pub async fn start<I, IO, E>(options: Options, incoming: I) -> Result<Handle, Error>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        IO::ConnectInfo: Clone + Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        if options.params.journals_kept {
            return Err(Error::Unsupported("keeping operation lists in shards"));
        }
        let runtime = tokio::runtime::Handle::current();
        let replicas = options.replicas.clone();
        let hosted = Arc::new_cyclic(|weak| hosted(options, weak, runtime));
        let (shutdown, ended) = oneshot::channel();
        let inner = Inner {
            hosted: Arc::clone(&hosted),
            threads: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            shutdown: Mutex::new(Some(shutdown)),
            server: Mutex::default(),
        };
        let handle = Handle { inner: Arc::new(inner) };
        for replica in replicas {
            if let Err(error) = handle.start_replica(replica).await {
                handle.kill().await;
                return Err(error);
            }
        }
        let server = serve(&hosted, incoming, ended);
        *handle.inner.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::spawn(server));
        Ok(handle)
    }
}

fn hosted(options: Options, weak: &Weak<Hosted>, runtime: tokio::runtime::Handle) -> Hosted {
    let weak = weak.clone();
    let message_bytes_max = message_bytes(&options.params);
    let sender = Sender {
        node: options.node.clone(),
        cluster: options.cluster_id,
        connector: Arc::clone(&options.connector),
        message_bytes_max: message_bytes_max + PEER_MESSAGE_EXTRA_BYTES,
        unreachable: Arc::new(move |node| {
            if let Some(hosted) = weak.upgrade() {
                hosted.unreachable(node);
            }
        }),
    };
    Hosted {
        peers: Peers::new(sender, runtime.clone()),
        node: options.node,
        cluster: options.cluster_id,
        params: options.params,
        message_bytes_max,
        storage: options.storage,
        connector: options.connector,
        clock: options.clock,
        seed: options.seed,
        tuning: options.tuning,
        runtime,
        closing: watch::Sender::new(false),
        nodes: options.nodes,
        learned: RwLock::default(),
        replicas: RwLock::default(),
    }
}

/// The node's gRPC server, until it is told to end.
fn serve<I, IO, E>(
    hosted: &Arc<Hosted>,
    incoming: I,
    ended: oneshot::Receiver<()>,
) -> impl Future<Output = ()> + Send + 'static
where
    I: Stream<Item = Result<IO, E>> + Send + 'static,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IO::ConnectInfo: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let hosted = Arc::clone(hosted);
    let max = hosted.message_bytes_max;
    let peer_max = max + PEER_MESSAGE_EXTRA_BYTES;
    let peer = PeerServer::new(PeerService { hosted: Arc::clone(&hosted) }).max_decoding_message_size(peer_max);
    let shard = ShardServer::new(ShardService { hosted: Arc::clone(&hosted) });
    let root = RootServer::new(RootService { hosted: Arc::clone(&hosted) });
    let router = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .add_service(peer)
        .add_service(shard.max_decoding_message_size(max).max_encoding_message_size(max))
        .add_service(root.max_decoding_message_size(max).max_encoding_message_size(max))
        .add_service(NodeServer::new(NodeService { hosted }));
    async move {
        let shutdown = async {
            // Also ends when the handle is gone.
            let _ = ended.await;
        };
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, shutdown).await {
            tracing::error!(%error, "the node's server ended");
        }
    }
}

impl Handle {
    /// What the node hosts.
    #[must_use]
    pub fn hosted(&self) -> &Arc<Hosted> {
        &self.inner.hosted
    }

    /// How all replicas do.
    #[must_use]
    pub fn status(&self) -> v1::NodeStatusResponse {
        self.inner.hosted.report()
    }

    /// Starts a replica from its directory, or as its options say if it has none.
    ///
    /// # Errors
    /// If one of the group runs here, or the directory is in use, another replica's, or damaged beyond what raft can mend.
    pub async fn start_replica(&self, options: ReplicaOptions) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        let group = options.group;
        if self.inner.hosted.replica(group).is_some() {
            return Err(Error::ReplicaRuns(group));
        }
        let hosted = Arc::clone(&self.inner.hosted);
        let started = tokio::task::spawn_blocking(move || start(&hosted, options)).await;
        let (replica, thread) = started.unwrap_or(Err(Error::Overdue("the start of a replica")))?;
        self.inner.hosted.replicas.write().unwrap_or_else(PoisonError::into_inner).insert(group, replica);
        self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner).insert(group, thread);
        Ok(())
    }

    /// Stops a replica as if its process had died: nothing is flushed or handed over.
    ///
    /// # Errors
    /// If none of the group runs here.
    pub async fn stop_replica(&self, group: GroupId) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.end(group).await
    }

    async fn end(&self, group: GroupId) -> Result<(), Error> {
        let replica = self.inner.hosted.replicas.write().unwrap_or_else(PoisonError::into_inner).remove(&group);
        replica.ok_or(Error::NoReplica(group))?.close();
        let thread = self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        if let Some(thread) = thread {
            // A thread that panicked has ended the process.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        Ok(())
    }

    /// Stops a replica, if it runs, and removes its directory.
    ///
    /// # Errors
    /// If the directory cannot be removed.
    pub async fn wipe_replica(&self, group: GroupId) -> Result<(), Error> {
        let _one_at_a_time = self.inner.changing.lock().await;
        match self.end(group).await {
            Ok(()) | Err(Error::NoReplica(_)) => {}
            Err(error) => return Err(error),
        }
        let storage = Arc::clone(&self.inner.hosted.storage);
        let removed = tokio::task::spawn_blocking(move || storage.remove_dir_all(&home::directory(group))).await;
        match removed {
            Ok(result) => result.map_err(crate::error::storage("remove the replica's directory")),
            Err(_) => Err(Error::Overdue("the removal of a directory")),
        }
    }

    /// Stops the node in order: leaderships are handed over, everything is flushed.
    pub async fn stop(&self) {
        let groups: Vec<GroupId> = {
            let replicas = self.inner.hosted.replicas.read().unwrap_or_else(PoisonError::into_inner);
            replicas.keys().copied().collect()
        };
        let retiring = groups.iter().filter_map(|group| self.inner.hosted.replica(*group));
        futures::future::join_all(retiring.map(|replica| async move { replica.retire().await })).await;
        self.close(DRAIN_TIMEOUT).await;
    }

    /// Stops the node as if its process had died.
    pub async fn kill(&self) {
        self.close(Duration::ZERO).await;
    }

    /// Ends replicas, streams and server; open calls have so long to end.
    async fn close(&self, drain: Duration) {
        let _one_at_a_time = self.inner.changing.lock().await;
        let groups: Vec<GroupId> = {
            let replicas = self.inner.hosted.replicas.read().unwrap_or_else(PoisonError::into_inner);
            replicas.keys().copied().collect()
        };
        for group in groups {
            // Nobody else removes replicas meanwhile.
            let _ = self.end(group).await;
        }
        self.inner.hosted.peers.stop();
        self.inner.hosted.closing.send_replace(true);
        drop(self.inner.shutdown.lock().unwrap_or_else(PoisonError::into_inner).take());
        let server = self.inner.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut server) = server
            && tokio::time::timeout(drain, &mut server).await.is_err()
        {
            server.abort();
        }
    }
}

fn start(hosted: &Arc<Hosted>, options: ReplicaOptions) -> Result<(Replica, JoinHandle<()>), Error> {
    let ReplicaOptions { group, raft_id, bootstrap } = options;
    let identity = Identity { cluster: hosted.cluster, group, raft_id };
    let hosted = Arc::clone(hosted);
    match group {
        GroupId::Root => {
            let (replica, thread) = replica::start(Config { identity, bootstrap, machine: (), hosted })?;
            Ok((Replica::Root(replica), thread))
        }
        GroupId::Shard(shard) => {
            let machine = ShardConfig { shard, params: hosted.params.clone(), engine: hosted.tuning.engine.clone() };
            let (replica, thread) = replica::start(Config { identity, bootstrap, machine, hosted })?;
            Ok((Replica::Shard(replica), thread))
        }
    }
}
