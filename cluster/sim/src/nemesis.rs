//! The faults of a run. The design promises to survive each of them.
//!
//! At most one disk is lost or rotten at a time, and only while every group has all its voters. As
//! an exception, one disk may be lost while another has a bad byte in the state of one group, if
//! its raft logs are sound. Everything else may fail everywhere at once.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use coppice_env::{Fault, Operation, Rng, SimRng};
use coppice_types::GroupId;
use tokio::time::{Instant, sleep};

use crate::{
    coordinators, event,
    net::{Ambush, KINDS, Weather},
    node,
    rot::{self, Rot},
    shape::{Faults, Shape},
    world::World,
};

/// The adversary of a run.
#[derive(Debug)]
pub struct Nemesis {
    rng: SimRng,
    faults: Faults,
    /// Longest pause between two chances for a fault, in ms.
    pause_ms: u64,
    nodes: u32,
    coordinators: u32,
    /// Passing faults and the times at which they end.
    ends: Vec<(Instant, End)>,
    /// Processes that are down and the times at which they start.
    down: Vec<(Instant, Down)>,
}

/// A passing fault.
#[derive(Clone, Debug)]
enum End {
    Weather,
    Cut(String, String),
    Full(u32),
    Slow(u32),
    ClockOfNode(u32),
    ClockOfCoordinator(usize),
    Metadata,
}

#[derive(Clone, Debug)]
enum Down {
    Node(u32),
    Coordinator(usize),
}

/// Number of bits that are tried until one counts.
const SPOIL_TRIES: usize = 6;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Nemesis {
    #[must_use]
    pub fn new(shape: &Arc<Shape>) -> Self {
        Self {
            rng: SimRng::new(shape.seed ^ 0xbad),
            faults: shape.faults,
            pause_ms: shape.pause_ms,
            nodes: shape.nodes + shape.readers,
            coordinators: shape.coordinators,
            ends: Vec::new(),
            down: Vec::new(),
        }
    }

    /// Lets some time pass, and may then begin or end faults.
    pub async fn act(&mut self, world: &mut World) {
        sleep(ms(1 + self.rng.below(self.pause_ms))).await;
        self.notice(world);
        self.end(world);
        self.start(world).await;
        let Faults { weather, cuts, crashes, io_crashes, .. } = self.faults;
        match self.rng.below(40) {
            0..2 if weather => self.change_weather(world),
            2..4 if cuts => self.cut(world),
            4 if crashes => self.crash_node(world),
            5 if crashes => self.crash_coordinator(world),
            6 if crashes => self.light_fuse(world),
            7 if io_crashes => self.crash_at_io(world),
            8 => self.lose_disk(world),
            9 => self.rot(world),
            10..12 => self.trouble_disk(world),
            12 if self.faults.clocks => self.move_clock(world),
            13 if self.faults.metadata => self.trouble_metadata(world),
            14 if self.faults.crashes => self.restart_replicas(world).await,
            15..17 if crashes => self.lie_in_wait(world),
            17..19 if cuts => self.leave_behind(world),
            19..21 => self.spoil_snapshots(world),
            _ => {}
        }
    }

    fn node(&mut self) -> u32 {
        1 + u32::try_from(self.rng.below(u64::from(self.nodes))).expect("nodes are few")
    }

    fn coordinator(&mut self) -> usize {
        usize::try_from(self.rng.below(u64::from(self.coordinators))).expect("coordinators are few")
    }

    fn later(&mut self, most_ms: u64) -> Instant {
        Instant::now() + ms(20 + self.rng.below(most_ms))
    }

    /// Records that processes which died of a fuse or of an I/O are down now.
    fn notice(&mut self, world: &mut World) {
        let site = world.site.clone();
        for machine in world.machines.values_mut() {
            if machine.running.as_ref().is_some_and(|(life, _)| !life.is_alive()) {
                let power = self.rng.chance(700).then(|| self.rng.next_u64());
                machine.crash(&site, power);
            }
            if machine.running.is_none() && !self.is_down(machine.ordinal) {
                let at = self.later(1500);
                self.down.push((at, Down::Node(machine.ordinal)));
            }
        }
        for (index, coordinator) in world.coordinators.iter_mut().enumerate() {
            if coordinator.running.is_some() && !coordinator.is_alive() {
                coordinator.crash(&site);
                let at = self.later(1000);
                self.down.push((at, Down::Coordinator(index)));
            }
        }
    }

    fn is_down(&self, node: u32) -> bool {
        self.down.iter().any(|(_, down)| matches!(down, Down::Node(ordinal) if *ordinal == node))
    }

    /// Ends the faults whose time is over.
    fn end(&mut self, world: &mut World) {
        let now = Instant::now();
        let over: Vec<End> = self.ends.extract_if(.., |(end, _)| *end <= now).map(|(_, what)| what).collect();
        for what in over {
            event!(world.site.net.trace(), "ends: {what:?}");
            match what {
                End::Weather => world.site.net.set_weather(Weather { delay_ms: 1, ..Weather::default() }),
                End::Cut(from, to) => world.site.net.set_cut(&from, &to, false),
                End::Full(node) => {
                    world.machines[&node].disk.set_capacity(None);
                    world.machines[&node].disk.set_opens_left(None);
                }
                End::Slow(node) => world.machines[&node].disk.set_pace(Duration::ZERO, Duration::ZERO),
                End::ClockOfNode(node) => world.machines[&node].clock.set_offset_ms(0),
                End::ClockOfCoordinator(index) => world.coordinators[index].clock.set_offset_ms(0),
                End::Metadata => world.store.set_loss(0),
            }
        }
    }

    /// Starts the processes whose time to be down is over.
    async fn start(&mut self, world: &mut World) {
        let now = Instant::now();
        let over: Vec<Down> = self.down.extract_if(.., |(end, _)| *end <= now).map(|(_, what)| what).collect();
        let site = world.site.clone();
        for what in over {
            match what {
                Down::Node(ordinal) => {
                    let machine = world.machines.get_mut(&ordinal).expect("it is one of the machines");
                    if machine.running.is_none() {
                        machine.start(&site, true).await;
                    }
                }
                Down::Coordinator(index) => {
                    if world.coordinators[index].running.is_none() {
                        world.coordinators[index].start(&site, &world.store).await;
                    }
                }
            }
        }
    }

    fn change_weather(&mut self, world: &World) {
        let weather = Weather {
            lose_per_mille: self.rng.below(120),
            double_per_mille: self.rng.below(200),
            delay_ms: 1 + self.rng.below(20),
            late_per_mille: self.rng.below(100),
            late_ms: 1 + self.rng.below(900),
        };
        event!(world.site.net.trace(), "weather {weather:?}");
        world.site.net.set_weather(weather);
        let end = self.later(1500);
        self.ends.push((end, End::Weather));
    }

    /// Cuts one process off from some others, in one direction or both.
    fn cut(&mut self, world: &World) {
        let one = if self.rng.chance(700) { node::name(self.node()) } else { coordinators::name(1) };
        let mut others: Vec<String> = (1..=self.nodes).map(node::name).collect();
        others.extend((1..=self.coordinators).map(coordinators::name));
        let end = self.later(1500);
        let (to, from) = (self.rng.chance(700), self.rng.chance(700));
        let share = 300 + self.rng.below(701);
        for other in others.into_iter().filter(|other| *other != one) {
            if !self.rng.chance(share) {
                continue;
            }
            let links = [(to, one.clone(), other.clone()), (from, other, one.clone())];
            for (_, a, b) in links.into_iter().filter(|(cut, _, _)| *cut) {
                event!(world.site.net.trace(), "cut {a} > {b}");
                world.site.net.set_cut(&a, &b, true);
                self.ends.push((end, End::Cut(a, b)));
            }
        }
    }

    /// Cuts one node off from the other nodes, but not from coordinators. It lags, and still gets
    /// calls.
    fn leave_behind(&mut self, world: &World) {
        let one = node::name(self.node());
        let end = self.later(3000);
        for other in (1..=self.nodes).map(node::name).filter(|other| *other != one) {
            event!(world.site.net.trace(), "{one} is left behind {other}");
            for (a, b) in [(one.clone(), other.clone()), (other, one.clone())] {
                world.site.net.set_cut(&a, &b, true);
                self.ends.push((end, End::Cut(a, b)));
            }
        }
    }

    fn crash_node(&mut self, world: &mut World) {
        let all = self.rng.chance(80);
        let one = self.node();
        let site = world.site.clone();
        for machine in world.machines.values_mut() {
            if machine.running.is_some() && (all || machine.ordinal == one) {
                let power = self.rng.chance(600).then(|| self.rng.next_u64());
                machine.crash(&site, power);
            }
        }
    }

    fn crash_coordinator(&mut self, world: &mut World) {
        let index = self.coordinator();
        if world.coordinators[index].running.is_some() {
            world.coordinators[index].crash(&world.site);
            let at = self.later(1000);
            self.down.push((at, Down::Coordinator(index)));
        }
    }

    /// Makes a process die at one of its next messages.
    fn light_fuse(&mut self, world: &World) {
        let (messages, turns) = (self.rng.below(60), self.turns());
        let index = self.coordinator();
        let node = self.node();
        let life = if self.rng.chance(600) {
            world.coordinators[index].running.as_ref().map(|(life, _, _)| life.clone())
        } else {
            world.machines[&node].running.as_ref().map(|(life, _)| life.clone())
        };
        if let Some(life) = life {
            event!(world.site.net.trace(), "{} will die after {messages} messages", life.name());
            life.light_fuse(messages, turns);
        }
    }

    /// Number of executor turns between a message and the death of its process.
    fn turns(&mut self) -> u64 {
        if self.rng.chance(500) { self.rng.below(60) } else { 0 }
    }

    /// Makes a process die of a call of one kind, however rarely that call comes.
    fn lie_in_wait(&mut self, world: &World) {
        let kind = KINDS[usize::try_from(self.rng.below(KINDS.len() as u64)).expect("kinds are few")];
        let (sender, messages, turns) = (self.rng.chance(600), self.rng.below(8), self.turns());
        // A call may outlive its sender, and meet the next coordinator's term.
        let late = if self.rng.chance(300) { ms(self.rng.below(3000)) } else { Duration::ZERO };
        let ambush = Ambush { kind, sender, messages, turns, late };
        event!(world.site.net.trace(), "waits with {ambush:?}");
        world.site.net.set_ambush(Some(ambush));
    }

    fn crash_at_io(&mut self, world: &World) {
        let (node, ios) = (self.node(), self.rng.below(60));
        event!(world.site.net.trace(), "{} will crash after {ios} changes to its disk", node::name(node));
        world.machines[&node].disk.crash_after(ios);
    }

    /// Whether a disk may be damaged: only one at a time, and only while nothing is missing.
    fn may_damage(&self, world: &World) -> bool {
        world.machines.values().all(|machine| machine.running.is_some()) && world.unsettled().is_none()
    }

    fn lose_disk(&mut self, world: &mut World) {
        if !self.faults.lost_disks || !self.may_damage(world) {
            return;
        }
        let node = self.node();
        if world.machines.values().any(|machine| machine.ordinal != node && !machine.rotten.is_empty()) {
            return;
        }
        Self::take_disk(world, node);
    }

    fn take_disk(world: &mut World, node: u32) {
        let site = world.site.clone();
        let machine = world.machines.get_mut(&node).expect("it is one of the machines");
        machine.crash(&site, None);
        machine.disk = coppice_env::SimStorage::new();
        machine.rotten.clear();
        event!(site.net.trace(), "{} lost its disk", machine.name);
    }

    /// Spoils a bit on a leader's disk that the leader does not read. Then takes the disk of
    /// another replica of the group, so that it needs a snapshot.
    pub fn spoil_snapshots(&mut self, world: &mut World) {
        let free = self.faults.rot && self.faults.lost_disks && self.may_damage(world);
        if !free || world.machines.values().any(|machine| !machine.rotten.is_empty()) {
            return;
        }
        let groups: Vec<GroupId> = world.site.shape.groups.keys().copied().collect();
        let group = groups[self.index(groups.len())];
        let ordinals = world.site.shape.groups[&group].clone();
        let leads =
            |ordinal: &u32| world.replica(*ordinal, group).is_some_and(|it| it.status().role.as_str() == "leader");
        let Some(leader) = ordinals.iter().copied().find(leads) else { return };
        let machine = world.machines.get_mut(&leader).expect("it is one of the machines");
        let parts = ["/data", "/index", "/values-", "/tile/", "/journal/"];
        let state = format!("{}/state-", rot::directory_of(group));
        let counts = |file: &String| file.contains(&state) && parts.iter().any(|part| file.contains(part));
        let files: Vec<String> = machine.disk.files().into_iter().filter(counts).collect();
        for _ in 0..SPOIL_TRIES.min(files.len()) {
            let file = &files[self.index(files.len())];
            let length = rot::length(&machine.disk, file);
            if length == 0 {
                continue;
            }
            let (at, bit) = (self.rng.below(length), u8::try_from(self.rng.below(8)).expect("a byte has 8 bits"));
            let sound = machine.disk.process_loss();
            machine.disk.flip_bit(file, at, bit);
            match rot::judge(&sound, &machine.disk, group, file) {
                Ok(Rot::Found) => {
                    event!(world.site.net.trace(), "{} rots in {file} at {at}, and leads", machine.name);
                    machine.rotten.insert(group);
                    let others: Vec<u32> = ordinals.iter().copied().filter(|ordinal| *ordinal != leader).collect();
                    let lost = others[self.index(others.len())];
                    return Self::take_disk(world, lost);
                }
                Ok(Rot::Dead) => machine.disk.flip_bit(file, at, bit),
                Err(finding) => return world.site.scribe.wrong(finding),
            }
        }
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.rng.below(length as u64)).expect("it is below a length")
    }

    /// Spoils one bit of one file.
    fn rot(&mut self, world: &mut World) {
        if !self.faults.rot || !self.may_damage(world) {
            return;
        }
        let node = self.node();
        let others = world.machines.values().filter(|machine| machine.ordinal != node);
        let spoilt: BTreeSet<GroupId> = others.flat_map(|machine| machine.rotten.clone()).collect();
        let machine = world.machines.get_mut(&node).expect("it is one of the machines");
        let files: Vec<String> = machine
            .disk
            .files()
            .into_iter()
            .filter(|file| !file.ends_with("reserve") && !file.ends_with("LOCK"))
            .collect();
        if files.is_empty() {
            return;
        }
        let file = &files[usize::try_from(self.rng.below(files.len() as u64)).expect("files are few")];
        let (length, group) = (rot::length(&machine.disk, file), rot::group_of(file));
        let Some(group) = group.filter(|group| length > 0 && !spoilt.contains(group)) else { return };
        let at = self.rng.below(length);
        event!(world.site.net.trace(), "{} rots in {file} at {at} of {length}", machine.name);
        let sound = machine.disk.process_loss();
        machine.disk.flip_bit(file, at, u8::try_from(self.rng.below(8)).expect("a byte has 8 bits"));
        let site = world.site.clone();
        let dead = match rot::judge(&sound, &machine.disk, group, file) {
            Ok(rot) => rot == Rot::Dead,
            Err(finding) => return site.scribe.wrong(finding),
        };
        event!(site.net.trace(), "the bad byte is {}", if dead { "dead" } else { "found" });
        // The content in memory hides the bad byte until the node restarts. A byte that is dead for
        // a node that starts may still matter to one that runs.
        let restarts = self.rng.chance(500);
        if !(dead && restarts) {
            machine.rotten.insert(group);
        }
        if restarts {
            machine.crash(&site, None);
        }
    }

    fn trouble_disk(&mut self, world: &World) {
        let node = self.node();
        let disk = &world.machines[&node].disk;
        let name = node::name(node);
        let trace = world.site.net.trace();
        match self.rng.below(3) {
            0 if self.faults.full_disks => {
                let room = self.rng.below(40_000);
                if room < 10_000 {
                    event!(trace, "{name} can open {} more files", room / 500);
                    disk.set_opens_left(Some(room / 500));
                } else {
                    event!(trace, "{name} has room for {room} more bytes");
                    disk.set_capacity(Some(disk.used_bytes() + room));
                }
                let end = self.later(1500);
                self.ends.push((end, End::Full(node)));
            }
            1 if self.faults.slow_disks => {
                let (change, sync) = (self.rng.below(3), self.rng.below(60));
                event!(trace, "{name} takes {sync} ms for a sync");
                disk.set_pace(ms(change), ms(sync));
                let end = self.later(1500);
                self.ends.push((end, End::Slow(node)));
            }
            2 if self.faults.io_errors => {
                let operations = [Operation::Write, Operation::Sync, Operation::SyncDir, Operation::Name];
                let operation = operations[usize::try_from(self.rng.below(4)).expect("it is below 4")];
                let skip = self.rng.below(30);
                event!(trace, "{name} will fail a {operation:?} after {skip}");
                disk.inject(Fault { operation, path_part: String::new(), skip, kind: io::ErrorKind::Other });
            }
            _ => {}
        }
    }

    fn move_clock(&mut self, world: &World) {
        let most = if self.rng.chance(500) { 900 } else { 20_000 };
        let offset =
            i64::try_from(self.rng.below(2 * most)).expect("it is small") - i64::try_from(most).expect("it is small");
        let end = self.later(2500);
        if self.rng.chance(500) {
            let node = self.node();
            event!(world.site.net.trace(), "the clock of {} is {offset} ms off", node::name(node));
            world.machines[&node].clock.set_offset_ms(offset);
            self.ends.push((end, End::ClockOfNode(node)));
        } else {
            let index = self.coordinator();
            event!(world.site.net.trace(), "the clock of {} is {offset} ms off", world.coordinators[index].name);
            world.coordinators[index].clock.set_offset_ms(offset);
            self.ends.push((end, End::ClockOfCoordinator(index)));
        }
    }

    fn trouble_metadata(&mut self, world: &World) {
        match self.rng.below(3) {
            0 => {
                world.store.set_loss(100 + self.rng.below(901));
                let end = self.later(2500);
                self.ends.push((end, End::Metadata));
            }
            wipe => world.store.restart(wipe == 1, self.rng.next_u64()),
        }
    }

    /// Restarts replicas that have stopped by themselves, as a supervisor would.
    async fn restart_replicas(&mut self, world: &mut World) {
        let site = world.site.clone();
        let node = self.node();
        let machine = world.machines.get_mut(&node).expect("it is one of the machines");
        site.mend_replicas(machine, true).await;
    }
}
