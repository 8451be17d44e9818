//! Three nodes in one process, with simulated disks and memory pipes, and a caller that retries.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coppice_env::{SimStorage, SystemClock};
use coppice_proto::{
    Channel, status,
    v1::{self, root_client::RootClient, shard_client::ShardClient, shard_command_request::Command as Wire},
};
use coppice_types::{ClusterId, ErrorKind, GroupId, Params, RaftId, Reason, ShardId};
use tonic::Status;

use crate::{Bootstrap, DuplexNet, Error, Handle, Node, Options, ReplicaOptions, Tuning, pim::PimOptions};

pub const CLUSTER: ClusterId = ClusterId([9; 16]);
pub const SHARD: GroupId = GroupId::Shard(ShardId(0));
/// Time limit of every condition that a test waits for.
pub const LIMIT: Duration = Duration::from_secs(30);

pub fn name(ordinal: u32) -> String {
    format!("node-{ordinal}")
}

/// Waits until `look` finds something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(LIMIT, looking).await {
        Ok(found) => found,
        Err(_) => panic!("it did not come to pass: {what}"),
    }
}

/// Nodes 1 to n, each with a replica of the root group and of one shard, and nodes with readers.
pub struct Cluster {
    pub net: DuplexNet,
    pub size: u32,
    /// Number of nodes with readers, whose ordinals come next. They are started by the tests.
    pub readers: u32,
    pub disks: BTreeMap<u32, SimStorage>,
    pub nodes: BTreeMap<u32, Handle>,
    pub tuning: Tuning,
    /// Memory modules of the readers.
    pub pim: Option<PimOptions>,
}

impl Cluster {
    pub async fn start(size: u32) -> Self {
        Self::start_tuned(size, |_| ()).await
    }

    /// Like [`start`](Self::start), with changes to the nodes' tuning.
    pub async fn start_tuned(size: u32, tune: impl FnOnce(&mut Tuning)) -> Self {
        Self::start_with_readers(size, 0, tune).await
    }

    /// Like [`start_tuned`](Self::start_tuned), with nodes that know of readers.
    pub async fn start_with_readers(size: u32, readers: u32, tune: impl FnOnce(&mut Tuning)) -> Self {
        let mut tuning = Tuning {
            tick: Duration::from_millis(15),
            flush_interval: Duration::from_millis(200),
            flush_entries_max: 64,
            flush_bytes_max: 4 << 20,
            log_segment_bytes: 64 << 10,
            log_beside_bytes_min: 0,
            ..Tuning::default()
        };
        tune(&mut tuning);
        let disks = (1..=size + readers).map(|ordinal| (ordinal, SimStorage::new())).collect();
        let mut cluster =
            Self { net: DuplexNet::new(), size, readers, disks, nodes: BTreeMap::new(), tuning, pim: None };
        for ordinal in 1..=size {
            let node = cluster.open(ordinal, CLUSTER).await.expect("the node starts");
            cluster.nodes.insert(ordinal, node);
        }
        cluster
    }

    pub fn options(&self, ordinal: u32, cluster_id: ClusterId) -> Options {
        let voters: Vec<RaftId> = (1..=self.size).map(|ordinal| RaftId::new(ordinal, 1)).collect();
        let reads = ordinal > self.size;
        let stored = Node::stored_raft_id(self.disks[&ordinal].storage().as_ref(), SHARD).expect("it can be read");
        let replica = |group| ReplicaOptions {
            group,
            raft_id: RaftId::new(ordinal, 1),
            bootstrap: Bootstrap::New { voters: voters.clone() },
        };
        Options {
            node: name(ordinal),
            cluster_id,
            params: Params { capacity: 64, ..Params::default() },
            nodes: (1..=self.size + self.readers).map(|ordinal| (ordinal, name(ordinal))).collect(),
            readers: (self.size + 1..=self.size + self.readers).collect(),
            storage: self.disks[&ordinal].storage(),
            connector: self.net.connector(&name(ordinal)),
            clock: Arc::new(SystemClock::new()),
            seed: u64::from(ordinal),
            replicas: match (reads, stored) {
                (false, _) => vec![replica(GroupId::Root), replica(SHARD)],
                (true, None) => Vec::new(),
                (true, Some(raft_id)) => vec![ReplicaOptions { group: SHARD, raft_id, bootstrap: Bootstrap::Join }],
            },
            tuning: self.tuning.clone(),
            pim: self.pim.clone(),
        }
    }

    pub async fn open(&self, ordinal: u32, cluster_id: ClusterId) -> Result<Handle, Error> {
        Node::start(self.options(ordinal, cluster_id), self.net.listen(&name(ordinal))).await
    }

    /// A message from one shard replica to another.
    pub fn message(&self, from: u32, to: u32, body: v1::peer_message::Body) -> v1::PeerMessage {
        v1::PeerMessage {
            cluster_id: CLUSTER.as_bytes().to_vec().into(),
            group: SHARD.number(),
            from_raft_id: RaftId::new(from, 1).0,
            to_raft_id: RaftId::new(to, 1).0,
            unfit: false,
            body: Some(body),
        }
    }

    /// Ends all nodes. A replica that waits for room on its disk wakes by a timer of the runtime,
    /// so the runtime must outlive it.
    pub async fn end(self) {
        for node in self.nodes.into_values() {
            node.kill().await;
        }
    }

    pub fn node(&self, ordinal: u32) -> &Handle {
        &self.nodes[&ordinal]
    }

    pub fn replica(&self, ordinal: u32, group: GroupId) -> Option<v1::ReplicaReport> {
        let status = self.nodes.get(&ordinal)?.status();
        status.replicas.into_iter().find(|report| report.group == group.number())
    }

    pub fn role(&self, ordinal: u32, group: GroupId) -> String {
        self.replica(ordinal, group).and_then(|report| report.status).map(|status| status.role).unwrap_or_default()
    }

    /// The ordinal of a group's leader among some nodes.
    pub async fn leader_among(&self, group: GroupId, among: &[u32]) -> u32 {
        until("a leader", async || among.iter().copied().find(|&ordinal| self.role(ordinal, group) == "leader")).await
    }

    pub async fn leader(&self, group: GroupId) -> u32 {
        let all: Vec<u32> = (1..=self.size).collect();
        self.leader_among(group, &all).await
    }

    pub fn caller(&self) -> Caller {
        let connector = self.net.connector("caller");
        let all = 1..=self.size + self.readers;
        let channels = all.map(|ordinal| (ordinal, connector.channel(&name(ordinal)))).collect();
        Caller { channels, at: 1 }
    }

    /// Stops a replica and starts it again from its disk.
    pub async fn restart(&self, ordinal: u32, group: GroupId) {
        let id = self.replica(ordinal, group).and_then(|report| report.status).expect("it runs").raft_id;
        self.node(ordinal).stop_replica(group).await.expect("it stops");
        let options = ReplicaOptions { group, raft_id: RaftId(id), bootstrap: Bootstrap::Join };
        self.node(ordinal).start_replica(options).await.expect("it starts");
    }

    /// The decided states of the shard's replicas that serve, by ordinal.
    pub fn decided(&self) -> Vec<v1::ShardState> {
        (1..=self.size).filter_map(|ordinal| self.replica(ordinal, SHARD)?.decided).collect()
    }
}

/// Calls a group's leader on whichever node it is, and repeats calls that may be repeated.
pub struct Caller {
    pub channels: BTreeMap<u32, Channel>,
    at: u32,
}

impl Caller {
    pub fn shard(&self, ordinal: u32) -> ShardClient<Channel> {
        ShardClient::new(self.channels[&ordinal].clone())
    }

    pub fn root(&self, ordinal: u32) -> RootClient<Channel> {
        RootClient::new(self.channels[&ordinal].clone())
    }

    /// Repeats a call while the answer is `UNAVAILABLE`, at the leader that the last refusal named.
    pub async fn call<T>(&mut self, mut call: impl AsyncFnMut(&Self, u32) -> Result<T, Status>) -> Result<T, Status> {
        until("an answer", async || {
            let limit = Duration::from_secs(3);
            let result = match tokio::time::timeout(limit, call(self, self.at)).await {
                Ok(Ok(answer)) => return Some(Ok(answer)),
                Ok(Err(refusal)) => refusal,
                Err(_) => Status::deadline_exceeded("no answer"),
            };
            if status::kind(&result) != ErrorKind::Unavailable || status::reason(&result) == Some(Reason::MissedAdmin) {
                return Some(Err(result));
            }
            let named =
                status::metadata(&result, status::LEADER).and_then(|node| node.strip_prefix("node-")?.parse().ok());
            self.at = named.unwrap_or(self.at % u32::try_from(self.channels.len()).expect("few nodes") + 1);
            None
        })
        .await
    }
}

/// A leading coordinator, as one shard sees it.
pub struct Leader {
    pub caller: Caller,
    pub context: v1::ShardContext,
    /// Number of rollbacks so far.
    pub epoch: u64,
    pub attempt: u64,
    /// Merges that a majority has built, on the newest state.
    ready: Vec<v1::Merge>,
}

impl Leader {
    pub async fn new(cluster: &Cluster, term: u64) -> Self {
        let decided = until("a decided state", async || cluster.decided().into_iter().next()).await;
        let context = v1::ShardContext { term, admin_sequence: 0, decided: Some(decided) };
        let mut leader = Self { caller: cluster.caller(), context, epoch: 0, attempt: 0, ready: Vec::new() };
        leader.command(Wire::Adopt(v1::AdoptCommand {})).await.expect("adopted");
        leader
    }

    /// Takes over in a new term, with the same decided state.
    pub async fn adopt(&mut self) {
        self.context.term += 1;
        self.command(Wire::Adopt(v1::AdoptCommand {})).await.expect("adopted");
    }

    pub fn decided(&self) -> v1::ShardState {
        self.context.decided.clone().expect("always set")
    }

    pub async fn command(&mut self, command: Wire) -> Result<v1::ShardCommandResponse, Status> {
        let request = v1::ShardCommandRequest {
            group: SHARD.number(),
            context: Some(self.context.clone()),
            command: Some(command),
        };
        let call = async |caller: &Caller, at: u32| caller.shard(at).command(request.clone()).await;
        let answer = self.caller.call(call).await?.into_inner();
        self.ready = answer.shape.clone().map(|shape| shape.ready).unwrap_or_default();
        Ok(answer)
    }

    pub fn request(&self, version: u64, base: v1::ShardState, records: &[(String, String)]) -> v1::PrepareRequest {
        let mut operations: Vec<v1::Operation> = records
            .iter()
            .map(|(key, value)| v1::Operation {
                key: key.clone().into_bytes().into(),
                change: Some(v1::operation::Change::Put(value.clone().into_bytes().into())),
            })
            .collect();
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        v1::PrepareRequest {
            group: SHARD.number(),
            context: Some(self.context.clone()),
            stamp: Some(v1::Stamp { epoch: self.epoch, version }),
            attempt: self.attempt,
            base: Some(base),
            merges: self.ready.first().cloned().into_iter().collect(),
            operations,
            journal: Vec::new(),
        }
    }

    pub async fn prepare(
        &mut self,
        version: u64,
        base: v1::ShardState,
        records: &[(String, String)],
    ) -> Result<v1::ShardState, Status> {
        self.attempt += 1;
        let request = self.request(version, base, records);
        let call = async |caller: &Caller, at: u32| caller.shard(at).prepare(request.clone()).await;
        let answer = self.caller.call(call).await?.into_inner();
        self.ready = answer.shape.map(|shape| shape.ready).unwrap_or_default();
        Ok(v1::ShardState { version, digest: answer.digest })
    }

    /// Prepares the next version with one record and decides it. The shard learns that from the
    /// next message.
    pub async fn commit(&mut self, key: &str, value: &str) -> u64 {
        let base = self.decided();
        let version = base.version + 1;
        let records = [(key.to_owned(), value.to_owned())];
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            match self.prepare(version, base.clone(), &records).await {
                Ok(state) => {
                    self.context.decided = Some(state);
                    return version;
                }
                // The forest is full until a majority has built a merge.
                Err(refusal)
                    if status::kind(&refusal) == ErrorKind::Exhausted && tokio::time::Instant::now() < deadline =>
                {
                    self.finalize().await;
                }
                Err(refusal) => panic!("version {version}: {refusal}"),
            }
        }
    }

    pub async fn finalize(&mut self) {
        self.command(Wire::Finalize(v1::FinalizeCommand {})).await.expect("decided");
    }

    /// Rolls the shard back to a version, or prunes the versions before it.
    pub async fn execute(&mut self, operation: v1::execute_command::Operation, boundary: v1::ShardState) {
        self.context.admin_sequence += 1;
        let newest = self.context.decided.clone();
        if matches!(operation, v1::execute_command::Operation::RollbackTo(_)) {
            self.epoch += 1;
            self.context.decided = Some(boundary.clone());
        }
        let execute = v1::ExecuteCommand {
            admin_sequence: self.context.admin_sequence,
            operation: Some(operation),
            epoch: self.epoch,
            boundary: Some(boundary),
            newest,
        };
        self.command(Wire::Execute(execute)).await.expect("what makes room goes on");
    }

    /// Reads a key at the decided state from one replica.
    pub async fn get(&self, ordinal: u32, key: &str) -> Result<Option<String>, Status> {
        let request = v1::ShardReadRequest {
            group: SHARD.number(),
            context: Some(self.context.clone()),
            state: self.context.decided.clone(),
            parts: vec![v1::ReadPart { keys: vec![key.to_owned().into_bytes().into()] }],
            want_proof: false,
            want_values: true,
            bytes_max: 0,
        };
        let answer = self.caller.shard(ordinal).read(request).await?.into_inner();
        let record = answer.answers.into_iter().flat_map(|answer| answer.records).next().filter(|record| record.found);
        Ok(record.map(|record| String::from_utf8_lossy(&record.value).into_owned()))
    }

    /// Waits until a replica returns a key's value at the decided state.
    pub async fn wait_for(&self, ordinal: u32, key: &str, value: &str) {
        let what = format!("node {ordinal} reads {key}");
        until(&what, async || (self.get(ordinal, key).await.ok()? == Some(value.to_owned())).then_some(())).await;
    }
}
