//! What a node's services and replicas share: the replicas by group, the way to other nodes, time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, RwLock, Weak, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{Clock, Storage, watch};
use coppice_proto::{
    Channel,
    v1::{self, node_client::NodeClient},
};
use coppice_types::{ClusterId, Digest, ErrorKind, GroupId, Params, Reason};
use coppice_verify::header::KINDS;

use crate::{
    Error, Options, convert,
    limits::{PEER_MESSAGE_EXTRA_BYTES, SNAPSHOT_CHUNK_BYTES, message_bytes},
    net::Connector,
    net::peers::{Peers, Sender},
    node::metrics::Durations,
    refusal::Refusal,
    replica::machine::StateMachine,
    replica::mailbox::Lane,
    replica::{self, Change, Input, ReplicaHandle, Status, Tuning},
    root::RootMachine,
    shard::ShardMachine,
};

/// How long a replica may take to hand over leadership and flush.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(10);
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

/// A replica of either kind.
#[derive(Clone, Debug)]
pub enum Replica {
    /// Of a shard.
    Shard(ReplicaHandle<ShardMachine>),
    /// Of the root group.
    Root(ReplicaHandle<RootMachine>),
}

/// How far the groups of a node are that did not run when it started.
#[derive(Debug, Default)]
pub(crate) struct Forming {
    /// Names the parameters and the first shards that the node was configured with.
    pub ledger: Option<Digest>,
    /// Groups that were not here when the node started, and are to be.
    pub expected: BTreeSet<GroupId>,
    /// Groups whose replica here has not begun, but is promised to.
    pub pledged: BTreeSet<GroupId>,
    /// Groups whose replica has begun here since the node started.
    pub started: BTreeSet<GroupId>,
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
    /// How long replicas take for what they do.
    pub durations: Durations,
    /// Set when the node ends: streams that would last for ever end too.
    pub closing: watch::Sender<bool>,
    nodes: BTreeMap<u32, String>,
    learned: RwLock<BTreeMap<u64, String>>,
    /// What the other nodes are told of groups that are being formed.
    pub(crate) forming: RwLock<Forming>,
    /// Channels for questions to other nodes, one a node.
    asking: Mutex<BTreeMap<String, Channel>>,
    pub(crate) replicas: RwLock<BTreeMap<GroupId, Replica>>,
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

    /// Whether it has a state: not in quarantine, nor before its first snapshot.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Shard(replica) => replica.is_open(),
            Self::Root(replica) => replica.is_open(),
        }
    }

    /// How many messages of other replicas, and requests, wait for it.
    #[must_use]
    pub fn waiting(&self) -> (u64, u64) {
        match self {
            Self::Shard(replica) => replica.shared.mailbox.waiting(),
            Self::Root(replica) => replica.shared.mailbox.waiting(),
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
            Self::Shard(replica) => replica.shared.mailbox.put(Lane::Peers, Input::Unreachable(node.to_owned())),
            Self::Root(replica) => replica.shared.mailbox.put(Lane::Peers, Input::Unreachable(node.to_owned())),
        };
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Shard(replica) => replica.shared.mailbox.close(),
            Self::Root(replica) => replica.shared.mailbox.close(),
        }
    }

    pub(crate) async fn retire(&self, hand_over: bool) {
        let retired = match self {
            Self::Shard(replica) => replica.ask(RETIRE_TIMEOUT, |answer| Input::Retire(hand_over, answer)).await,
            Self::Root(replica) => replica.ask(RETIRE_TIMEOUT, |answer| Input::Retire(hand_over, answer)).await,
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
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    if file.is_empty() {
        // The receiver has all, checks it, and wants the pin to be kept meanwhile.
        replica.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
        return Ok(Vec::new());
    }
    let read = move |machine: &M| {
        let refuse = |error: Error| {
            let gone = error.kind() == ErrorKind::NotFound;
            Refusal::new(if gone { Reason::NotFound } else { Reason::Unavailable }, error.chain())
        };
        machine.read_snapshot(id, &file, offset, SNAPSHOT_CHUNK_BYTES).map_err(refuse)
    };
    let bytes = replica.read(read).await?;
    replica.shared.traffic.given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    replica.shared.fetched_ms.store(now_ms, Ordering::Relaxed);
    Ok(bytes)
}

impl Hosted {
    /// The replica of a group that runs here.
    #[must_use]
    pub fn replica(&self, group: GroupId) -> Option<Replica> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// All replicas that run here.
    #[must_use]
    pub fn all(&self) -> BTreeMap<GroupId, Replica> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// Ends the queues to other nodes, and streams that would last for ever.
    pub(crate) fn hang_up(&self) {
        self.peers.stop();
        self.closing.send_replace(true);
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
        let replicas = self.all();
        let forming = self.forming.read().unwrap_or_else(PoisonError::into_inner);
        let started: BTreeSet<GroupId> = forming.started.iter().chain(replicas.keys()).copied().collect();
        let (pledged, ledger) = (forming.pledged.clone(), forming.ledger);
        drop(forming);
        v1::NodeStatusResponse {
            node: self.node.clone(),
            replicas: replicas.iter().map(|(group, replica)| replica.report(*group, &self.node)).collect(),
            cluster_id: Bytes::copy_from_slice(self.cluster.as_bytes()),
            ledger: ledger.as_ref().map(convert::to_bytes).unwrap_or_default(),
            pledged: pledged.iter().map(|group| group.number()).collect(),
            started: started.iter().map(|group| group.number()).collect(),
            header_kinds: KINDS.iter().map(|kind| u32::from(*kind)).collect(),
        }
    }

    /// A client of another node's own service, over a connection that all such questions share.
    pub(crate) fn ask(&self, node: &str) -> NodeClient<Channel> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = asking.entry(node.to_owned()).or_insert_with(|| self.connector.channel(node));
        NodeClient::new(channel.clone())
    }

    /// The node of an ordinal.
    #[must_use]
    pub fn node_at(&self, ordinal: u32) -> Option<&str> {
        self.nodes.get(&ordinal).map(String::as_str)
    }

    fn unreachable(&self, node: &str) {
        for replica in self.all().values() {
            replica.unreachable(node);
        }
    }
}

impl Hosted {
    /// What a node of these options shares; it hosts nothing yet.
    pub(crate) fn new(options: Options, weak: &Weak<Self>, runtime: tokio::runtime::Handle) -> Self {
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
            durations: Durations::new(),
            closing: watch::Sender::new(false),
            nodes: options.nodes,
            learned: RwLock::default(),
            forming: RwLock::default(),
            asking: Mutex::default(),
            replicas: RwLock::default(),
        }
    }
}
