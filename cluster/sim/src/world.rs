//! One run: a cluster is formed, suffers, is left in peace, and is judged.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coppice_env::{Clock, SimRng, watch};
use coppice_shard_node::Replica;
use coppice_types::GroupId;
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    check,
    client::{Client, Phase},
    coordinators::{self, Coordinator},
    event,
    history::Scribe,
    life::MachineClock,
    metadata::Store,
    nemesis::Nemesis,
    net::{Net, Weather},
    node::{Machine, Site},
    shape::Shape,
    trace::Trace,
    witnesses::Witnesses,
};

/// How long a cluster may take to form.
const FORM_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take, after the faults, until everything works again.
const CALM_LIMIT: Duration = Duration::from_secs(60);
/// How often the world looks whether something is so.
const LOOK: Duration = Duration::from_millis(20);

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// Hash of the trace.
    pub trace: u64,
    /// Events in it.
    pub events: u64,
    /// Commits and reads that succeeded.
    pub done: (u64, u64),
    /// What is wrong: the checker's name, a colon, and what it saw.
    pub wrong: Option<String>,
}

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// The trace goes to the standard output.
    pub print: bool,
    /// No faults at all.
    pub peaceful: bool,
}

/// Everything in a run.
#[derive(Debug)]
pub struct World {
    /// Cluster, network, what is wrong.
    pub site: Site,
    /// The metadata store.
    pub store: Store,
    /// The machines with nodes, by ordinal.
    pub machines: BTreeMap<u32, Machine>,
    /// The coordinators.
    pub coordinators: Vec<Coordinator>,
    /// The cluster was formed: no group is founded again.
    pub formed: bool,
}

/// Runs a seed on a new runtime of one thread whose time is paused: it goes on by itself when nothing else can be done.
#[must_use]
pub fn run(runtime: Runtime, seed: u64, settings: Settings) -> Verdict {
    let verdict = runtime.block_on(async {
        let mut shape = Shape::new(seed);
        if settings.peaceful {
            shape.faults = crate::shape::Faults::default();
        }
        let world = World::new(shape, Trace::new(settings.print));
        world.live().await
    });
    // What is left of dead processes is dropped here.
    drop(runtime);
    verdict
}

impl World {
    fn new(shape: Shape, trace: Trace) -> Self {
        let start = Instant::now();
        let mut rng = SimRng::new(shape.seed ^ 0xc10c);
        let mut clock = || {
            use coppice_env::Rng;
            MachineClock::new(start, 999_000 + rng.below(2001))
        };
        let machines = (1..=shape.nodes).map(|ordinal| (ordinal, Machine::new(ordinal, clock()))).collect();
        let coordinators = (1..=shape.coordinators).map(|number| Coordinator::new(number, clock())).collect();
        let scribe = Scribe::default();
        let net = Net::new(shape.seed ^ 0x7e7, trace.clone(), scribe.clone());
        let store = Store::new(Arc::new(clock()) as Arc<dyn Clock>, shape.seed ^ 0x3e7a, trace);
        let witnesses = Witnesses::new(&shape, net.clone());
        let site = Site { shape: Arc::new(shape), net, scribe, witnesses };
        Self { site, store, machines, coordinators, formed: false }
    }

    async fn live(mut self) -> Verdict {
        if self.form().await {
            self.suffer().await;
        }
        if self.site.scribe.lock().wrong.is_none() {
            check::all(&self).await;
        }
        self.site.net.end();
        let history = self.site.scribe.lock();
        let trace = self.site.net.trace();
        Verdict {
            seed: self.site.shape.seed,
            trace: trace.hash(),
            events: trace.events(),
            done: history.done,
            wrong: history.wrong.clone(),
        }
    }

    async fn form(&mut self) -> bool {
        for machine in self.machines.values_mut() {
            machine.start(&self.site, false).await;
        }
        for coordinator in &mut self.coordinators {
            coordinator.start(&self.site, &self.store).await;
        }
        let led = timeout(FORM_LIMIT, async {
            while !self.is_led() {
                sleep(LOOK).await;
            }
        });
        if led.await.is_err() {
            self.site.scribe.wrong("progress: no coordinator leads at the start".to_owned());
            return false;
        }
        self.formed = true;
        true
    }

    /// Clients work, faults come and go, then it is calm and everything must work again.
    async fn suffer(&mut self) {
        let shape = Arc::clone(&self.site.shape);
        let names: Vec<String> = (1..=shape.coordinators).map(coordinators::name).collect();
        let (phase, watched) = watch::channel(Phase::Chaos);
        let mut clients = JoinSet::new();
        for id in 1..=shape.clients {
            let client = Client::new(id, Arc::clone(&shape), self.site.scribe.clone(), &self.site.net, &names);
            clients.spawn(client.run(watched.clone()));
        }
        let mut nemesis = Nemesis::new(&shape);
        let end = Instant::now() + shape.chaos;
        while Instant::now() < end && self.site.scribe.lock().wrong.is_none() {
            nemesis.act(self).await;
            check::observe(self);
        }
        self.calm().await;
        phase.send_replace(Phase::Calm);
        event!(self.site.net.trace(), "calm");
        self.settle(&mut clients, false).await;
        // Nobody reads any more: only who needs a snapshot meets the bad byte.
        nemesis.spoil_snapshots(self);
        self.settle(&mut clients, false).await;
        event!(self.site.net.trace(), "all is well");
        self.settle(&mut clients, true).await;
        phase.send_replace(Phase::Over);
        clients.abort_all();
    }

    /// Waits until everything works again: by itself, bad bytes or not; then with an operator who has replicas with a bad byte rebuilt.
    async fn settle(&mut self, clients: &mut JoinSet<()>, with_operator: bool) {
        let limit = Instant::now() + CALM_LIMIT;
        while self.site.scribe.lock().wrong.is_none() {
            sleep(LOOK).await;
            while clients.try_join_next().is_some() {}
            self.mend().await;
            if with_operator {
                self.rebuild().await;
            }
            check::observe(self);
            let waits = if clients.is_empty() { self.unsettled() } else { Some("clients wait".to_owned()) };
            match waits {
                None => break,
                Some(why) if Instant::now() > limit => {
                    self.site.scribe.wrong(format!("progress: after the faults {why}"));
                }
                Some(_) => {}
            }
        }
    }

    fn is_led(&self) -> bool {
        let leads = |coordinator: &Coordinator| {
            coordinator.running.as_ref().is_some_and(|(_, handle, _)| handle.leadership().term.is_some())
        };
        self.coordinators.iter().any(leads)
    }

    /// All faults end.
    async fn calm(&mut self) {
        self.site.net.mend();
        self.site.net.set_ambush(None);
        self.site.net.set_weather(Weather { delay_ms: 1, ..Weather::default() });
        self.store.set_loss(0);
        for machine in self.machines.values_mut() {
            machine.disk.set_capacity(None);
            machine.disk.set_opens_left(None);
            machine.disk.clear_faults();
            machine.disk.disarm();
            if let Some((life, _)) = &machine.running {
                life.put_out_fuse();
            }
            machine.disk.set_pace(Duration::ZERO, Duration::ZERO);
            machine.clock.set_offset_ms(0);
        }
        for coordinator in &self.coordinators {
            coordinator.clock.set_offset_ms(0);
            if let Some((life, _, _)) = &coordinator.running {
                life.put_out_fuse();
            }
        }
        self.mend().await;
    }

    /// Starts what is down, and replicas that have stopped by themselves, as a supervisor would.
    pub async fn mend(&mut self) {
        for machine in self.machines.values_mut() {
            if machine.running.as_ref().is_some_and(|(life, _)| !life.is_alive()) {
                machine.crash(&self.site, Some(u64::from(machine.ordinal)));
            }
            if machine.running.is_none() {
                machine.start(&self.site, self.formed).await;
            }
            self.site.mend_replicas(machine, self.formed).await;
        }
        for coordinator in &mut self.coordinators {
            if !coordinator.is_alive() {
                coordinator.crash(&self.site);
                coordinator.start(&self.site, &self.store).await;
            }
        }
    }

    /// An operator has replicas with a bad byte rebuilt, one after the other.
    async fn rebuild(&mut self) {
        let site = self.site.clone();
        let mut groups = site.shape.groups.keys();
        if groups.any(|group| self.machines.values().any(|machine| machine.is_being_replaced(*group))) {
            return;
        }
        if let Some(machine) = self.machines.values_mut().find(|machine| !machine.rotten.is_empty()) {
            machine.rebuild(&site).await;
        }
    }

    /// What is not as it should be when all is well; none if all is.
    pub fn unsettled(&self) -> Option<String> {
        for (group, ordinals) in &self.site.shape.groups {
            let mut applied = BTreeMap::new();
            for ordinal in ordinals {
                let Some((_, handle)) = &self.machines[ordinal].running else {
                    return Some(format!("node-{ordinal} is down"));
                };
                let Some(replica) = handle.hosted().replica(*group) else {
                    return Some(format!("{group} does not run on node-{ordinal}"));
                };
                let status = replica.status();
                if !matches!(status.role.as_str(), "leader" | "follower") {
                    return Some(format!("{group} on node-{ordinal} is {}: {}", status.role, status.note));
                }
                if status.voters.len() != 3 || !status.learners.is_empty() {
                    let (voters, learners) = (&status.voters, &status.learners);
                    return Some(format!(
                        "{group} on node-{ordinal} has voters {voters:x?} and learners {learners:x?}"
                    ));
                }
                applied.insert(*ordinal, status.applied);
            }
            if applied.values().min() != applied.values().max() {
                return Some(format!("{group} is applied up to {applied:?}"));
            }
        }
        None
    }

    /// The replica of a group on a node that runs.
    #[must_use]
    pub fn replica(&self, ordinal: u32, group: GroupId) -> Option<Replica> {
        self.machines.get(&ordinal)?.running.as_ref()?.1.hosted().replica(group)
    }
}

impl Site {
    /// Starts replicas again that have stopped by themselves.
    pub async fn mend_replicas(&self, machine: &mut Machine, formed: bool) {
        for (group, note) in machine.stopped(&self.shape) {
            let Some((_, handle)) = machine.running.clone() else { return };
            let absent = handle.hosted().replica(group).is_none();
            if absent && machine.is_being_replaced(group) {
                continue;
            }
            event!(self.net.trace(), "{} {group} has stopped: {note}", machine.name);
            // It has ended, or never began.
            let _ = handle.stop_replica(group).await;
            machine.start_replica(self, group, formed).await;
        }
    }
}
