//! A cluster of real nodes in one process, and coordinators in front of it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_coordinator::{
    Anchoring, Connect, Genesis, Handle, Limits, Options, Post, Quorum, Routing, Service, Witness,
};
use coppice_env::{Clock, SimRng, SimStorage, SystemClock};
use coppice_metadata::{Error, Leader, LeaseId, Member, Metadata, Revision, Snapshot, Watch};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_shard_node::{Bootstrap, DuplexNet, Node, ReplicaOptions, Tuning};
use coppice_types::{ClusterId, GroupId, Params, RaftId, ShardId};
use coppice_verify::{checkpoint::origin, note::SignerKey, shard_map::ShardMap};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};

pub mod authority;
pub mod member;
pub mod proxy;
pub mod team;

use proxy::Faults;

pub const CLUSTER: ClusterId = ClusterId([0xc0; 16]);
/// Longest wait of any test.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The candidate that the test picks.
#[derive(Debug)]
pub struct Picked {
    name: watch::Sender<String>,
}

impl Picked {
    pub fn pick(&self, name: &str) {
        self.name.send_replace(name.to_owned());
    }
}

/// A metadata store that picks the test's candidate, and is slow to tell the deposed one.
#[derive(Debug)]
struct Store(Arc<Picked>);

#[tonic::async_trait]
impl Metadata for Store {
    async fn grant(&self, _ttl: Duration) -> Result<LeaseId, Error> {
        Ok(LeaseId(1))
    }

    async fn keep_alive(&self, _lease: LeaseId) -> Result<(), Error> {
        Ok(())
    }

    async fn revoke(&self, _lease: LeaseId) -> Result<(), Error> {
        Ok(())
    }

    async fn register(&self, _lease: LeaseId, _member: Member) -> Result<Revision, Error> {
        Ok(Revision(1))
    }

    async fn campaign(&self, _lease: LeaseId, name: &str) -> Result<Leader, Error> {
        let mut picked = self.0.name.subscribe();
        picked.wait_for(|picked| picked == name).await.expect("the world outlives its coordinators");
        Ok(Leader { name: name.to_owned(), token: Revision(1) })
    }

    async fn resign(&self, _lease: LeaseId) -> Result<(), Error> {
        Ok(())
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let leader = Some(Leader { name: self.0.name.borrow().clone(), token: Revision(1) });
        Ok(Snapshot { leader, ..Snapshot::default() })
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error> {
        Err(Error::Compacted { asked: after, oldest: after })
    }
}

/// Nodes, their disks, and the network between them.
pub struct World {
    pub net: DuplexNet,
    pub nodes: Vec<coppice_shard_node::Handle>,
    /// The disks of the nodes.
    pub disks: Vec<SimStorage>,
    pub faults: Faults,
    pub picked: Arc<Picked>,
    pub params: Params,
    pub map: ShardMap,
    pub limits: Limits,
    /// What coordinators know of readers and zones.
    pub routing: Routing,
}

/// A running coordinator and a client of it.
pub struct Running {
    pub handle: Handle,
    pub client: LedgerClient<Channel>,
    task: JoinHandle<()>,
}

impl Running {
    /// Ends the coordinator as if its process had died.
    pub fn kill(self) {
        self.task.abort();
    }
}

fn name_of(ordinal: u32) -> String {
    format!("node-{ordinal}")
}

impl World {
    /// Three nodes, two shards split at "m", with these parameters.
    pub async fn new(params: Params) -> Self {
        Self::of(3, &[b"m".to_vec()], params).await
    }

    /// This many nodes, each with a replica of every group.
    pub async fn of(count: u32, splits: &[Vec<u8>], params: Params) -> Self {
        let map = ShardMap::from_splits(splits).expect("the splits ascend");
        let net = DuplexNet::new();
        let faults = Faults::default();
        let names: BTreeMap<u32, String> = (1..=count).map(|ordinal| (ordinal, name_of(ordinal))).collect();
        let groups: Vec<GroupId> = std::iter::once(GroupId::Root)
            .chain(map.shards().iter().map(|shard| GroupId::Shard(ShardId(shard.id.0))))
            .collect();
        let voters: Vec<RaftId> = names.keys().map(|ordinal| RaftId::new(*ordinal, 1)).collect();
        let mut nodes = Vec::new();
        let disks: Vec<SimStorage> = names.iter().map(|_| SimStorage::new()).collect();
        for ((&ordinal, name), disk) in names.iter().zip(&disks) {
            let replica = |&group: &GroupId| ReplicaOptions {
                group,
                raft_id: RaftId::new(ordinal, 1),
                bootstrap: Bootstrap::New { voters: voters.clone() },
            };
            let options = coppice_shard_node::Options {
                node: name.clone(),
                cluster_id: CLUSTER,
                params: params.clone(),
                nodes: names.clone(),
                readers: Default::default(),
                storage: disk.storage(),
                connector: net.connector(name),
                clock: Arc::new(SystemClock::new()),
                seed: u64::from(ordinal),
                replicas: groups.iter().map(replica).collect(),
                tuning: Tuning { tick: Duration::from_millis(20), flush_bytes_max: 4 << 20, ..Tuning::default() },
                pim: None,
            };
            let incoming = net.listen(name);
            nodes.push(Node::start(options, incoming).await.expect("the node starts"));
            proxy::start(&net, name, faults.clone());
        }
        let picked = Arc::new(Picked { name: watch::Sender::new("a".to_owned()) });
        let limits = Limits {
            prepare_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(700),
            root_timeout: Duration::from_secs(3),
            ..Limits::default()
        };
        Self { net, nodes, disks, faults, picked, params, map, limits, routing: Routing::default() }
    }

    /// Adds a node that has a reader of each shard, and waits until it has their states.
    pub async fn add_reader(&mut self) -> coppice_shard_node::Handle {
        let ordinal = u32::try_from(self.nodes.len() + self.routing.readers.len() + 1).expect("nodes are few");
        let (name, disk) = (name_of(ordinal), SimStorage::new());
        let options = coppice_shard_node::Options {
            node: name.clone(),
            cluster_id: CLUSTER,
            params: self.params.clone(),
            nodes: (1..=ordinal).map(|ordinal| (ordinal, name_of(ordinal))).collect(),
            readers: [ordinal].into(),
            storage: disk.storage(),
            connector: self.net.connector(&name),
            clock: Arc::new(SystemClock::new()),
            seed: u64::from(ordinal),
            replicas: Vec::new(),
            tuning: Tuning { tick: Duration::from_millis(20), flush_bytes_max: 4 << 20, ..Tuning::default() },
            pim: None,
        };
        let node = Node::start(options, self.net.listen(&name)).await.expect("the node starts");
        proxy::start(&self.net, &name, self.faults.clone());
        for shard in self.map.shards() {
            node.replace_replica(GroupId::Shard(shard.id)).await.expect("it joins");
        }
        let ready = async {
            while node.readiness().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, ready).await.expect("it is refilled in time");
        self.routing.readers.insert(name);
        node
    }

    /// The options for restarting a replica of the first incarnation.
    pub fn replica(&self, ordinal: u32, group: GroupId) -> ReplicaOptions {
        let voters =
            (1..=u32::try_from(self.nodes.len()).expect("nodes are few")).map(|of| RaftId::new(of, 1)).collect();
        ReplicaOptions { group, raft_id: RaftId::new(ordinal, 1), bootstrap: Bootstrap::New { voters } }
    }

    pub fn key(&self) -> SignerKey {
        self.key_of(9)
    }

    /// A key with the ledger's name.
    pub fn key_of(&self, seed: u8) -> SignerKey {
        SignerKey::from_seed(&origin("coppice.test", &CLUSTER), &[seed; 32]).expect("it is a name")
    }

    /// Starts a coordinator that has these keys.
    pub fn coordinator_with_keys(&self, name: &str, key: SignerKey, next: Option<SignerKey>) -> Running {
        let options = self.options(name, Arc::new(Store(self.picked.clone())), Arc::new(SystemClock::new()));
        let options = Options { signing_key: key, next_signing_key: next, ..options };
        self.run(name, Service::new(options).expect("the options are sound"))
    }

    /// Starts a coordinator, which leads when it is picked.
    pub fn coordinator(&self, name: &str) -> Running {
        self.run(name, self.service(name))
    }

    /// Starts a coordinator that also serves the root log, on a free port of the loopback
    /// interface.
    pub async fn coordinator_with_log(&self, name: &str) -> (Running, String) {
        self.coordinator_with_witnesses(name, Vec::new(), 0).await
    }

    /// Like `coordinator_with_log`, but the coordinator also asks these witnesses.
    pub async fn coordinator_with_witnesses(
        &self,
        name: &str,
        witnesses: Vec<Witness>,
        quorum: impl Into<Quorum>,
    ) -> (Running, String) {
        let (mut service, handle) = self.service(name);
        if !witnesses.is_empty() {
            service.ask_witnesses(witnesses, quorum).expect("the witnesses are sound");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        service.serve_log(listener, None);
        (self.run(name, (service, handle)), url)
    }

    /// Starts a coordinator that has authorities stamp checkpoints. All witnesses must cosign.
    pub fn coordinator_with_anchors(&self, name: &str, witnesses: &[Witness], anchoring: Anchoring) -> Running {
        let (mut service, handle) = self.service(name);
        if !witnesses.is_empty() {
            service.ask_witnesses(witnesses.to_vec(), witnesses.len()).expect("the witnesses are sound");
        }
        service.anchor(anchoring).expect("the authorities are sound");
        self.run(name, (service, handle))
    }

    /// Like `coordinator_with_anchors`, but authorities are asked by `post`.
    pub fn coordinator_with_anchors_by(&self, name: &str, post: Post, anchoring: Anchoring) -> Running {
        let (mut service, handle) = self.service(name);
        service.anchor_by(post, anchoring).expect("the authorities are sound");
        self.run(name, (service, handle))
    }

    fn service(&self, name: &str) -> (Service, Handle) {
        self.service_with(name, Arc::new(Store(self.picked.clone())), Arc::new(SystemClock::new()))
    }

    /// A coordinator that works with others, whose addresses are their names.
    pub fn joined_service(&self, name: &str, metadata: Arc<dyn Metadata>, clock: Arc<dyn Clock>) -> (Service, Handle) {
        let (mut service, handle) = self.service_with(name, metadata, clock);
        let connector = self.net.connector(name);
        service.join_others(name.to_owned(), Arc::new(move |_, address| Some(connector.channel(address))));
        (service, handle)
    }

    fn service_with(&self, name: &str, metadata: Arc<dyn Metadata>, clock: Arc<dyn Clock>) -> (Service, Handle) {
        Service::new(self.options(name, metadata, clock)).expect("the options are sound")
    }

    fn options(&self, name: &str, metadata: Arc<dyn Metadata>, clock: Arc<dyn Clock>) -> Options {
        let connector = self.net.connector(name);
        let connect: Connect = Arc::new(move |node| connector.channel(&proxy::proxy_of(node)));
        Options {
            name: name.to_owned(),
            nodes: (1..=u32::try_from(self.nodes.len() + self.routing.readers.len()).expect("nodes are few"))
                .map(name_of)
                .collect(),
            routing: self.routing.clone(),
            connect,
            metadata,
            signing_key: self.key(),
            next_signing_key: None,
            genesis: Genesis { params: self.params.clone(), shard_map: self.map.clone() },
            limits: self.limits.clone(),
            clock,
            rng: Box::new(SimRng::new(7)),
        }
    }

    /// Runs a service under this name.
    pub fn run(&self, name: &str, (service, handle): (Service, Handle)) -> Running {
        let incoming = self.net.listen(name);
        let task = tokio::spawn(async move {
            service.run(incoming, std::future::pending()).await.expect("the pipes don't fail");
        });
        let client = LedgerClient::new(self.net.connector("client").channel(name))
            .max_decoding_message_size(16 << 20)
            .max_encoding_message_size(16 << 20);
        Running { handle, client, task }
    }

    /// Starts the coordinator "a" and waits until it leads.
    pub async fn leader(&self) -> Running {
        let running = self.coordinator("a");
        timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
        running
    }
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub fn put(key: &str, value: &str) -> v1::Operation {
    v1::Operation { key: bytes(key), change: Some(v1::operation::Change::Put(bytes(value))) }
}

pub fn delete(key: &str) -> v1::Operation {
    v1::Operation { key: bytes(key), change: Some(v1::operation::Change::Delete(true)) }
}

pub fn absent(key: &str) -> v1::Precondition {
    v1::Precondition { key: bytes(key), condition: Some(v1::precondition::Condition::Absent(true)) }
}

pub fn value_is(key: &str, value: &str) -> v1::Precondition {
    let hash = coppice_verify::hash::sha256(value.as_bytes());
    let condition = v1::precondition::Condition::ValueSha256(Bytes::copy_from_slice(&hash.0));
    v1::Precondition { key: bytes(key), condition: Some(condition) }
}

pub fn commit(operations: Vec<v1::Operation>, preconditions: Vec<v1::Precondition>) -> v1::CommitRequest {
    let batch = v1::Batch { operations, preconditions, ..v1::Batch::default() };
    v1::CommitRequest { batch: Some(batch), ..v1::CommitRequest::default() }
}

pub fn at(epoch: u64, version: u64) -> v1::Stamp {
    v1::Stamp { epoch, version }
}

pub fn get(key: &str, at: Option<v1::Stamp>) -> v1::GetRequest {
    let read = v1::ReadOptions { at, want_proof: true, ..v1::ReadOptions::default() };
    v1::GetRequest { key: bytes(key), read: Some(read) }
}

pub fn roll_back(to: u64) -> v1::RollbackRequest {
    let (reason, principal) = ("test".to_owned(), "tester".to_owned());
    v1::RollbackRequest { to: Some(to), reason, principal, expected_head: None }
}

pub fn prune_before(before: u64) -> v1::PruneRequest {
    let (reason, principal) = ("test".to_owned(), "tester".to_owned());
    v1::PruneRequest { before: Some(before), reason, principal, expected_head: None }
}

pub fn reason(status: &tonic::Status) -> coppice_types::Reason {
    coppice_proto::status::reason(status).unwrap_or_else(|| panic!("{status:?} carries a reason"))
}
