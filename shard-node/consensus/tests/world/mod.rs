//! A simulated group: replicas on simulated disks and a lossy network, in one thread and from one
//! seed, with checks at every step.

mod network;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use coppice_consensus::{Change, Committed, Error, Group, Message, Options, Output, Payload, Position, RaftId, Role};
use coppice_env::{Rng, SimClock, SimRng, SimStorage};
use coppice_types::{ClusterId, GroupId, ShardId};

use network::{Faults, SimNetwork};

const TICK: Duration = Duration::from_millis(50);

/// A state machine that keeps everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub position: Position,
    pub entries: Vec<(Position, Bytes)>,
}

#[derive(Debug)]
pub struct Node {
    pub disk: SimStorage,
    pub group: Option<Group>,
    pub machine: Machine,
    /// The state that a restart finds.
    pub durable: Machine,
    /// A snapshot being fetched: its position, its number, and the tick at which it arrives.
    fetching: Option<(Position, u64, u64)>,
    /// Fetched snapshots, by number.
    fetched: BTreeMap<u64, Machine>,
    reads: BTreeMap<u64, u64>,
    pub restarts: u64,
    pub removed: bool,
}

/// The group, and the facts that are known about it from outside.
pub struct World {
    pub nodes: BTreeMap<RaftId, Node>,
    pub rng: SimRng,
    clock: SimClock,
    pub network: SimNetwork,
    pub ticks: u64,
    /// Proposals that are not committed yet, by position.
    proposed: BTreeMap<Position, Bytes>,
    /// Every entry that some replica was handed as committed.
    pub committed: BTreeMap<u64, (u64, Bytes)>,
    pub acknowledged: BTreeMap<u64, Bytes>,
    leaders: BTreeMap<u64, RaftId>,
    /// All snapshots ever pinned, as the states that their files would hold.
    snapshots: Vec<Machine>,
    pub trace: Vec<String>,
    next: u64,
    pub reads_done: u64,
    pub snapshots_installed: u64,
    /// If set, snapshots are kept here instead of being sent.
    pub held: Option<Vec<Message>>,
}

pub fn options(id: RaftId) -> Options {
    let mut options = Options::new(ClusterId([7; 16]), GroupId::Shard(ShardId(3)), id);
    options.segment_bytes = 8 << 10;
    options.fill_bytes = 2 << 10;
    options.cache_bytes = 2 << 10;
    options.message_bytes_max = 512;
    options.committed_bytes_max = 4 << 10;
    options.snapshot_ticks_max = 100;
    options.promote_lag_max = 32;
    options
}

fn name(id: RaftId) -> String {
    format!("{id}")
}

impl World {
    pub fn new(seed: u64, voters: u32) -> Self {
        let clock = SimClock::new(0);
        let mut world = Self {
            nodes: BTreeMap::new(),
            rng: SimRng::new(seed),
            network: SimNetwork::new(seed ^ 0xABCD, clock.clone()),
            clock,
            ticks: 0,
            proposed: BTreeMap::new(),
            committed: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            leaders: BTreeMap::new(),
            snapshots: Vec::new(),
            trace: Vec::new(),
            next: 0,
            reads_done: 0,
            snapshots_installed: 0,
            held: None,
        };
        let ids: Vec<RaftId> = (1..=voters).map(|ordinal| RaftId::new(ordinal, 1)).collect();
        for id in &ids {
            let disk = SimStorage::new();
            let rng = world.fork_rng();
            let group = Group::create(disk.storage(), options(*id), rng, &ids).expect("a new group");
            let machine = Machine { position: Position::START, entries: Vec::new() };
            world.add(*id, disk, group, machine);
        }
        world
    }

    pub fn fork_rng(&mut self) -> Box<dyn Rng> {
        Box::new(SimRng::new(self.rng.next_u64()))
    }

    fn add(&mut self, id: RaftId, disk: SimStorage, group: Group, machine: Machine) {
        let node = Node {
            disk,
            group: Some(group),
            durable: machine.clone(),
            machine,
            fetching: None,
            fetched: BTreeMap::new(),
            reads: BTreeMap::new(),
            restarts: 0,
            removed: false,
        };
        self.nodes.insert(id, node);
    }

    /// Adds an empty replica, under a new id.
    pub fn add_empty(&mut self, id: RaftId) {
        let disk = SimStorage::new();
        let rng = self.fork_rng();
        let group = Group::create_empty(disk.storage(), options(id), rng).expect("an empty directory");
        self.add(id, disk, group, Machine::default());
        self.note(format!("{id} joins empty"));
    }

    pub fn note(&mut self, line: String) {
        self.trace.push(format!("{}: {line}", self.ticks));
    }

    pub fn node(&mut self, id: RaftId) -> &mut Node {
        self.nodes.get_mut(&id).expect("the node exists")
    }

    pub fn group(&mut self, id: RaftId) -> &mut Group {
        self.node(id).group.as_mut().expect("the node is up")
    }

    pub fn ids(&self) -> Vec<RaftId> {
        self.nodes.keys().copied().collect()
    }

    /// The leader of the highest term.
    pub fn leader(&self) -> Option<RaftId> {
        let groups = self.nodes.values().filter_map(|node| node.group.as_ref());
        let leaders = groups.map(Group::status).filter(|status| status.role == Role::Leader);
        leaders.max_by_key(|status| status.term).map(|status| status.id)
    }

    pub fn set_lossy(&mut self, lossy: bool) {
        let faults = Faults {
            drop_per_mille: 60,
            duplicate_per_mille: 60,
            delay_min: Duration::from_millis(0),
            delay_max: Duration::from_millis(120),
        };
        self.network.set_faults(if lossy { faults } else { Faults::default() });
    }

    /// Lets the power of a node fail: unsynced writes are lost, torn or kept.
    pub fn crash(&mut self, id: RaftId) {
        let seed = self.rng.next_u64();
        let node = self.node(id);
        node.group = None;
        node.disk = node.disk.power_loss(seed);
        node.machine = node.durable.clone();
        node.fetching = None;
        node.reads.clear();
        self.network.clear_inbox(&name(id));
        self.note(format!("{id} crashes"));
    }

    pub fn restart(&mut self, id: RaftId) {
        if self.nodes[&id].group.is_some() {
            return;
        }
        let rng = self.fork_rng();
        let node = self.node(id);
        node.restarts += 1;
        let open = |node: &Node, rng| Group::open(node.disk.storage(), options(id), rng, node.durable.position);
        let group = match open(node, rng) {
            Err(Error::InstallPending { position, manifest }) => {
                let number = u64::from_le_bytes(manifest[..8].try_into().expect("eight bytes"));
                node.durable = node.fetched[&number].clone();
                assert_eq!(node.durable.position, position);
                let rng = self.fork_rng();
                open(self.node(id), rng)
            }
            other => other,
        };
        let group = group.unwrap_or_else(|error| panic!("{id} does not open: {error}"));
        let node = self.node(id);
        node.machine = node.durable.clone();
        node.group = Some(group);
        self.note(format!("{id} restarts"));
    }

    /// Lets one tick pass on every node that is up.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.clock.advance(TICK);
        for id in self.ids() {
            if self.nodes[&id].group.is_none() {
                continue;
            }
            self.group(id).tick();
            let endpoint = self.network.endpoint(&name(id));
            while let Some((_, bytes)) = endpoint.receive() {
                let message = Message::decode(&bytes).expect("peers send what decodes");
                // A refused message is a lost message.
                let _ = self.group(id).step(message);
            }
            self.finish_fetch(id);
            self.hand_over(id);
            self.settle(id);
        }
    }

    /// Lets a quarantined leader, which leads as a last resort, hand over to a replica that has the
    /// whole log.
    fn hand_over(&mut self, id: RaftId) {
        let status = self.group(id).status();
        if status.role == Role::Leader && status.quarantined {
            let heir =
                status.peers.iter().find(|peer| peer.active && !peer.learner && peer.matched == status.last.index);
            if let Some(heir) = heir {
                // The transfer is refused while another one is under way.
                let _ = self.group(id).transfer_leader(heir.id);
            }
        }
    }

    pub fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    /// Ticks until a condition holds.
    pub fn run_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..4000 {
            if holds(self) {
                return;
            }
            self.tick();
        }
        let statuses: Vec<_> = self.nodes.values().map(|node| node.group.as_ref().map(Group::status)).collect();
        panic!("never: {what}; {statuses:#?}");
    }

    /// Calls `advance` until nothing is due.
    pub fn settle(&mut self, id: RaftId) {
        let network = self.network.endpoint(&name(id));
        loop {
            let node = self.nodes.get_mut(&id).expect("it is one of the world's");
            let Some(group) = node.group.as_mut() else { return };
            if !group.has_ready() {
                return;
            }
            let (mut sent, held) = (Vec::new(), &mut self.held);
            let outcome = group.advance(&mut |message| {
                if let Some(held) = held.as_mut().filter(|_| message.kind() == "snapshot") {
                    return held.push(message);
                }
                sent.push(format!("{} -> {} {}", message.from(), message.to(), message.kind()));
                network.send(&name(message.to()), message.encode().into());
            });
            sent.into_iter().for_each(|line| self.note(line));
            match outcome {
                Ok(output) => self.handle(id, output),
                Err(error) => {
                    assert!(self.nodes[&id].disk.crashed(), "{id}: {error}");
                    self.crash(id);
                }
            }
        }
    }

    fn handle(&mut self, id: RaftId, output: Output) {
        if let Some(role) = output.role.filter(|role| role.role == Role::Leader) {
            let known = *self.leaders.entry(role.term).or_insert(id);
            assert_eq!(known, id, "term {} has two leaders", role.term);
            self.note(format!("{id} leads term {}", role.term));
        }
        if let Some(install) = output.install {
            let number = u64::from_le_bytes(install.manifest[..8].try_into().expect("eight bytes"));
            let machine = self.node(id).fetched[&number].clone();
            assert_eq!(machine.position, install.position);
            let node = self.node(id);
            node.machine = machine.clone();
            node.durable = machine;
            self.group(id).applied(install.position.index);
            self.snapshots_installed += 1;
            self.note(format!("{id} installs {}", install.position));
            if let Err(error) = self.group(id).clear_quarantine() {
                assert!(self.nodes[&id].disk.crashed(), "{id}: {error}");
                return self.crash(id);
            }
        }
        for committed in output.committed {
            self.apply(id, committed);
        }
        for read in output.reads {
            let least = self.node(id).reads.remove(&read.id.0).expect("a read is answered once");
            assert!(read.index >= least, "{id}: a read misses an acknowledged write");
            self.reads_done += 1;
        }
        if let Some(offer) = output.snapshot_offer {
            let number = u64::from_le_bytes(offer.manifest[..8].try_into().expect("eight bytes"));
            let arrives = self.ticks + 1 + self.rng.below(10);
            self.node(id).fetching = Some((offer.position, number, arrives));
            self.note(format!("{id} is offered {}", offer.position));
        }
        if let Some(least) = output.snapshot_wanted {
            self.pin(id, least);
        }
        self.node(id).removed |= output.removed;
    }

    fn pin(&mut self, id: RaftId, least: u64) {
        let machine = self.node(id).machine.clone();
        if machine.position.index < least {
            return;
        }
        let number = self.snapshots.len() as u64;
        let index = machine.position.index;
        self.snapshots.push(machine);
        let manifest = Bytes::copy_from_slice(&number.to_le_bytes());
        self.group(id).set_snapshot(index, manifest).expect("an applied state");
        self.note(format!("{id} pins {index}"));
    }

    fn finish_fetch(&mut self, id: RaftId) {
        let now = self.ticks;
        let lost = self.rng.chance(100);
        let Some((position, number, arrives)) = self.node(id).fetching else { return };
        if now < arrives {
            return;
        }
        self.node(id).fetching = None;
        let machine = self.snapshots[usize::try_from(number).expect("small")].clone();
        if lost {
            let source = self.group(id).snapshot_source().expect("a snapshot is being fetched");
            self.group(id).refuse_snapshot(position).expect("it was offered");
            if let Some(group) = self.nodes.get_mut(&source).and_then(|node| node.group.as_mut()) {
                group.report_snapshot(id, false);
            }
            return;
        }
        assert_eq!(machine.position, position);
        self.node(id).fetched.insert(number, machine);
        self.group(id).accept_snapshot(position).expect("it was offered");
    }

    fn apply(&mut self, id: RaftId, committed: Committed) {
        let Committed { position, payload } = committed;
        let data = match payload {
            Payload::Data(data) => data,
            Payload::Empty => Bytes::new(),
            Payload::Membership(membership) => Bytes::from(format!("{membership:?}")),
        };
        let known = self.committed.entry(position.index).or_insert((position.term, data.clone()));
        assert_eq!(*known, (position.term, data.clone()), "{id}: another entry at {position}");
        let node = self.nodes.get_mut(&id).expect("the node exists");
        assert_eq!(position.index, node.machine.position.index + 1, "{id}: entries come in order");
        node.machine.position = position;
        node.machine.entries.push((position, data.clone()));
        node.group.as_mut().expect("it is up").applied(position.index);
        if self.proposed.contains_key(&position) && self.leaders.get(&position.term) == Some(&id) {
            let data = self.proposed.remove(&position).expect("it is there");
            self.acknowledged.insert(position.index, data);
        }
    }

    /// Proposes an entry of random length to a replica that may believe it leads.
    pub fn propose(&mut self, id: RaftId) -> Option<Position> {
        self.next += 1;
        let mut data = self.next.to_le_bytes().to_vec();
        let len = self.rng.below(300);
        data.resize(data.len() + usize::try_from(len).expect("small"), 7);
        let data = Bytes::from(data);
        let position = self.node(id).group.as_mut()?.propose(data.clone()).ok()?;
        self.proposed.insert(position, data);
        Some(position)
    }

    pub fn read(&mut self, id: RaftId) {
        let least = self.acknowledged.keys().last().copied().unwrap_or(0);
        let Some(group) = self.node(id).group.as_mut() else { return };
        if let Ok(read) = group.read_index() {
            self.node(id).reads.insert(read.0, least);
        }
    }

    /// Makes the machine's state durable, and drops the log before it.
    pub fn persist(&mut self, id: RaftId) {
        let node = self.node(id);
        let Some(group) = node.group.as_mut() else { return };
        node.durable = node.machine.clone();
        let keep = node.durable.position.index.saturating_sub(8);
        if let Err(error) = cut_log(group, keep) {
            assert!(node.disk.crashed(), "{id}: {error}");
            self.crash(id);
        }
    }

    pub fn change(&mut self, changes: &[Change]) -> Option<Position> {
        let leader = self.leader()?;
        let position = self.group(leader).change_membership(changes).ok()?;
        self.note(format!("{leader} proposes {changes:?} at {position}"));
        Some(position)
    }

    /// Starts and reconnects everything. All replicas in the group must then agree, and no
    /// acknowledged entry may be missing.
    pub fn converge(&mut self) {
        self.network.heal();
        self.set_lossy(false);
        let ids: Vec<RaftId> = self.ids().into_iter().filter(|id| !self.nodes[id].removed).collect();
        for id in &ids {
            // A planned crash is cancelled.
            if self.nodes[id].group.is_some() {
                self.node(*id).disk.crash_after(u64::MAX >> 1);
            }
            self.restart(*id);
        }
        self.run_until("a leader that commits", |world| {
            let Some(leader) = world.leader() else { return false };
            let Some(position) = world.propose(leader) else { return false };
            world.run(20);
            world.acknowledged.contains_key(&position.index)
        });
        let members = |world: &World| {
            let leader = world.leader().expect("there is one");
            let status = world.nodes[&leader].group.as_ref().expect("it is up").status();
            let member = |id: &RaftId| status.membership.contains(*id);
            (status.commit, world.ids().into_iter().filter(member).collect::<Vec<_>>())
        };
        self.run_until("all replicas have applied everything, and none is in quarantine", |world| {
            let Some(_) = world.leader() else { return false };
            let (commit, members) = members(world);
            let sound = |id: &RaftId| world.nodes[id].group.as_ref().is_some_and(|group| group.quarantined().is_none());
            members.iter().all(|id| world.nodes[id].machine.position.index == commit && sound(id))
        });
        let (_, members) = members(self);
        let first = &self.nodes[&members[0]].machine;
        for id in &members {
            assert_eq!(self.nodes[id].machine, *first, "{id} differs");
        }
        for (index, data) in &self.acknowledged {
            let found = first.entries.iter().find(|(position, _)| position.index == *index);
            assert_eq!(found.map(|(_, found)| found), Some(data), "the acknowledged entry at {index}");
        }
    }
}

/// Drops a group's entries up to `keep`.
fn cut_log(group: &mut Group, keep: u64) -> Result<(), Error> {
    let Some(mut cut) = group.begin_cut(keep)? else { return Ok(()) };
    cut.run::<Error>(|| Ok(()))?;
    group.end_cut(cut).remove()
}
