//! The set-ups that tests of a replica's parts share: a node's site with simulated disk and clock,
//! replicas with a [`Toy`] as their state machine, and groups that talk without a network.

mod ears;
mod toy;

use std::{
    io,
    sync::{Arc, RwLock, atomic::AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use coppice_consensus::{Change, Group, Message, Options, Output, Position, SnapshotOffer};
use coppice_env::{Clock, SimClock, SimRng, SimStorage, Storage};
use coppice_types::{ClusterId, GroupId, Params, RaftId};

pub(crate) use self::{
    ears::Ears,
    toy::{Script, Toy, manifest},
};

use super::{
    config::{Bootstrap, Config},
    durations::Durations,
    handle::ReplicaHandle,
    home::{Home, Identity},
    machine::StateMachine,
    mailbox::Mailbox,
    reserve::Reserve,
    shared::{Counts, Gate, Shared},
    site::Site,
    sleep::Sleepers,
    status::Status,
    tuning::Tuning,
};
use crate::{
    DuplexNet, Error,
    net::peers::{Peers, Sender},
};

pub(crate) const CLUSTER: ClusterId = ClusterId([9; 16]);
/// Lengths of the lanes of a test's mailbox.
pub(crate) const LANE_MAX: usize = 4;

/// The first raft id of a node.
pub(crate) fn raft_id(ordinal: u32) -> RaftId {
    RaftId::new(ordinal, 1)
}

/// The error of a disk without room.
pub(crate) fn full() -> Error {
    Error::Storage { what: "write", source: io::ErrorKind::StorageFull.into() }
}

/// The error of a process without descriptors.
pub(crate) fn no_handles() -> Error {
    Error::Storage { what: "open", source: io::ErrorKind::OutOfMemory.into() }
}

pub(crate) fn damage() -> Error {
    Error::Damaged { file: "toy", what: "a bit is flipped".to_owned() }
}

/// The site of node 1 of three.
pub(crate) fn site(net: &DuplexNet, storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, tuning: Tuning) -> Site {
    let node = "node-1".to_owned();
    let connector = net.connector(&node);
    let sender = Sender {
        node: node.clone(),
        cluster: CLUSTER,
        connector: Arc::clone(&connector),
        message_bytes_max: 16 << 20,
        unreachable: Arc::new(|_| ()),
    };
    let runtime = tokio::runtime::Handle::current();
    Site {
        node,
        cluster: CLUSTER,
        params: Params { capacity: 64, ..Params::default() },
        message_bytes_max: 16 << 20,
        reserve: Reserve::new(Arc::clone(&storage), []),
        storage,
        connector,
        clock,
        seed: 1,
        tuning,
        peers: Peers::new(sender, runtime.clone()),
        runtime,
        durations: Durations::new(),
        sleepers: Sleepers::default(),
        nodes: (1..=3).map(|ordinal| (ordinal, format!("node-{ordinal}"))).collect(),
        readers: Default::default(),
        learned: RwLock::default(),
    }
}

/// The state that a replica's thread and its services share, with short lanes.
pub(crate) fn shared<M: StateMachine>(machine: Option<M>) -> Arc<Shared<M>> {
    Arc::new(Shared {
        cleared: std::sync::atomic::AtomicU64::new(0),
        mailbox: Arc::new(Mailbox::new(LANE_MAX, LANE_MAX)),
        machine: parking_lot::RwLock::new(machine),
        gate: Gate::default(),
        applied: coppice_env::watch::Sender::new(0),
        status: RwLock::new(Status::default()),
        fetched_ms: AtomicU64::new(0),
        traffic: Arc::default(),
        counts: Counts::default(),
        runner: crate::Runner::Threads,
    })
}

/// The handle of a replica that no thread drives.
pub(crate) fn handle<M: StateMachine>(group: GroupId, machine: Option<M>) -> ReplicaHandle<M> {
    ReplicaHandle { group, raft_id: raft_id(1), shared: shared(machine) }
}

/// The bytes of a toy's file after a flush at a position.
pub(crate) fn content(position: Position) -> Vec<u8> {
    let mut toy = toy(&Script::default());
    toy.flush(position).expect("there is room");
    toy.content()
}

/// A toy on a disk of its own.
pub(crate) fn toy(script: &Script) -> Toy {
    Toy::open(SimStorage::new().storage(), script).expect("the disk is empty")
}

/// The root group's replica on node 1 of three, with a toy in place of the root's state machine.
pub(crate) struct Rig {
    pub disk: SimStorage,
    pub clock: SimClock,
    pub net: DuplexNet,
    pub script: Script,
    pub config: Arc<Config<Toy>>,
}

/// The parts of a replica that no thread drives.
pub(crate) struct Parts {
    pub home: Home,
    pub group: Group,
    pub shared: Arc<Shared<Toy>>,
    pub applied: Position,
}

impl Rig {
    pub fn new() -> Self {
        Self::tuned(Bootstrap::New { voters: vec![raft_id(1)] }, |_| ())
    }

    pub fn tuned(bootstrap: Bootstrap, tune: impl FnOnce(&mut Tuning)) -> Self {
        Self::on(SimStorage::new(), bootstrap, tune)
    }

    pub fn on(disk: SimStorage, bootstrap: Bootstrap, tune: impl FnOnce(&mut Tuning)) -> Self {
        let mut tuning = Tuning { log_segment_bytes: 64 << 10, spare_bytes: 4 << 20, ..Tuning::default() };
        tuning.flush_bytes_max = 1 << 20;
        tune(&mut tuning);
        let (clock, net) = (SimClock::new(1_000_000), DuplexNet::new());
        let site = Arc::new(site(&net, disk.storage(), Arc::new(clock.clone()), tuning));
        let identity = Identity { cluster: CLUSTER, group: GroupId::Root, raft_id: raft_id(1) };
        let script = Script::default();
        let config = Arc::new(Config { identity, bootstrap, machine: script.clone(), site });
        Self { disk, clock, net, script, config }
    }

    /// Makes a new replica of a group with the voters 1 to `voters`.
    pub fn parts(&self, voters: u32) -> Parts {
        let Identity { group, raft_id: id, .. } = self.config.identity;
        let mut home = Home::open(self.disk.storage().as_ref(), self.config.identity).expect("the disk is empty");
        let voters: Vec<RaftId> = (1..=voters).map(raft_id).collect();
        let raft = home.raft().expect("there is room");
        let group = Group::create(raft, options(group, id), rng(id), &voters).expect("the log is new");
        let mut machine = Toy::open(home.state().expect("there is room"), &self.script).expect("it is new");
        let applied = Position { index: 1, term: 1 };
        machine.flush(applied).expect("there is room");
        home.set_floor(applied).expect("there is room");
        home.set_started(self.config.identity).expect("there is room");
        self.script.take_calls();
        Parts { home, group, shared: shared(Some(machine)), applied }
    }

    /// The size of the node's reserve.
    pub fn reserve_bytes(&self) -> u64 {
        let file = self.disk.storage().open("reserve", coppice_env::OpenMode::Existing);
        file.map_or(0, |file| file.len().expect("the disk is sound"))
    }

    /// Moves the clock on by some of raft's ticks.
    pub fn pass(&self, ticks: u32) {
        self.clock.advance(self.config.site.tuning.tick * ticks);
    }
}

impl Parts {
    /// Makes the only voter of a group the leader.
    pub fn lead(&mut self) {
        self.group.campaign().expect("it has a vote");
        self.commit_all();
    }

    /// Commits some commands, without applying them to the state machine.
    pub fn commit(&mut self, commands: usize) {
        for _ in 0..commands {
            self.group.propose(Bytes::from_static(b"x")).expect("it leads");
        }
        self.commit_all();
    }

    /// Commits commands, each of which fills more than half a segment of the log.
    pub fn commit_large(&mut self, commands: usize) {
        for _ in 0..commands {
            self.group.propose(vec![7; 40 << 10].into()).expect("it leads");
            self.commit_all();
        }
    }

    fn commit_all(&mut self) {
        while self.group.has_ready() {
            let output = self.group.advance(&mut |_| ()).expect("the log can be written");
            self.applied = output.committed.last().map_or(self.applied, |last| last.position);
            self.group.applied(self.applied.index);
        }
    }
}

fn options(group: GroupId, id: RaftId) -> Options {
    Options { segment_bytes: 64 << 10, fill_bytes: 64 << 10, ..Options::new(CLUSTER, group, id) }
}

fn rng(id: RaftId) -> Box<SimRng> {
    Box::new(SimRng::new(id.0))
}

/// A root group's replica on another node, without a state machine.
pub(crate) struct Far {
    pub group: Group,
    /// The last committed entry.
    pub applied: Position,
    /// The index that a follower's snapshot must cover.
    pub wanted: Option<u64>,
}

impl Far {
    pub fn new(ordinal: u32, voters: &[RaftId]) -> Self {
        let id = raft_id(ordinal);
        let group = Group::create(SimStorage::new().storage(), options(GroupId::Root, id), rng(id), voters);
        Self { group: group.expect("the log is new"), applied: Position { index: 0, term: 0 }, wanted: None }
    }

    /// Takes messages and returns the answers.
    pub fn take(&mut self, messages: impl IntoIterator<Item = Message>) -> Vec<Message> {
        for message in messages {
            // Raft refuses messages that came too late, and repeats those that matter.
            let _ = self.group.step(message);
        }
        let mut sent = Vec::new();
        while self.group.has_ready() {
            let output = self.group.advance(&mut |message| sent.push(message)).expect("the log can be written");
            if let Some(last) = output.committed.last() {
                self.applied = last.position;
                self.group.applied(self.applied.index);
            }
            self.wanted = output.snapshot_wanted.or(self.wanted);
        }
        sent
    }
}

/// Passes messages between a group and a far one until there is none left. Returns the outputs of
/// the first.
pub(crate) fn converse(near: &mut Group, far: &mut Far, first: Vec<Message>) -> Vec<Output> {
    let (mut outputs, mut to_near) = (Vec::new(), first);
    loop {
        for message in std::mem::take(&mut to_near) {
            let _ = near.step(message);
        }
        let mut to_far = Vec::new();
        while near.has_ready() {
            outputs.push(near.advance(&mut |message| to_far.push(message)).expect("the log can be written"));
        }
        to_near = far.take(to_far);
        if to_near.is_empty() {
            return outputs;
        }
    }
}

/// A replica without a state that is offered a snapshot by node 2, the only voter. `manifest` makes
/// the manifest of the snapshot at a position.
pub(crate) fn offered(rig: &Rig, manifest: impl Fn(Position) -> Vec<u8>) -> (Parts, SnapshotOffer) {
    let Identity { group, raft_id: id, .. } = rig.config.identity;
    let mut home = Home::open(rig.disk.storage().as_ref(), rig.config.identity).expect("the disk is empty");
    let raft = home.raft().expect("there is room");
    let mut near = Group::create_empty(raft, options(group, id), rng(id)).expect("the log is new");
    home.set_started(rig.config.identity).expect("there is room");
    let mut far = Far::new(2, &[raft_id(2)]);
    far.group.campaign().expect("it has a vote");
    far.take([]);
    far.group.change_membership(&[Change::AddLearner(id)]).expect("it leads");
    for _ in 0..100 {
        let messages = far.take([]);
        let outputs = converse(&mut near, &mut far, messages);
        if let Some(offer) = outputs.into_iter().find_map(|output| output.snapshot_offer) {
            let applied = Position { index: 0, term: 0 };
            return (Parts { home, group: near, shared: shared(None), applied }, offer);
        }
        if far.wanted.take().is_some() {
            let Position { index, .. } = far.applied;
            far.group.set_snapshot(index, manifest(far.applied).into()).expect("it is applied");
        }
        far.group.tick();
    }
    panic!("a learner without a log is offered no snapshot");
}

/// The longest time that a test waits for what must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
