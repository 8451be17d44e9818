//! Everything in a run: machines, coordinators, network and stores, with the actions of operators
//! and supervisors on them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coppice_env::{Clock, Rng, SimRng};
use coppice_shard_node::Replica;
use coppice_types::GroupId;
use tokio::time::Instant;

use crate::{
    coordinators::Coordinator,
    event,
    history::Scribe,
    life::MachineClock,
    metadata::Store,
    net::{Net, Weather},
    node::{Machine, Site},
    shape::Shape,
    time_ledger::TimeLedger,
    trace::Trace,
    witnesses::Witnesses,
};

/// Everything in a run.
#[derive(Debug)]
pub struct World {
    /// The cluster's shape, the network, the record of the run, and the witnesses.
    pub site: Site,
    pub store: Store,
    /// The machines with nodes, by ordinal.
    pub machines: BTreeMap<u32, Machine>,
    pub coordinators: Vec<Coordinator>,
    /// Whether the cluster was formed. After that, no group is founded again.
    pub formed: bool,
}

impl World {
    /// The machines and coordinators of a shape, all of them off.
    #[must_use]
    pub fn new(shape: Shape, trace: Trace) -> Self {
        let start = Instant::now();
        let mut rng = SimRng::new(shape.seed ^ 0xc10c);
        let mut clock = || MachineClock::new(start, 999_000 + rng.below(2001));
        let machines =
            (1..=shape.nodes + shape.readers).map(|ordinal| (ordinal, Machine::new(ordinal, clock()))).collect();
        let coordinators = (1..=shape.coordinators).map(|number| Coordinator::new(number, clock())).collect();
        let scribe = Scribe::default();
        let net = Net::new(shape.seed ^ 0x7e7, trace.clone(), scribe.clone());
        let store = Store::new(Arc::new(clock()) as Arc<dyn Clock>, shape.seed ^ 0x3e7a, trace);
        let witnesses = Witnesses::new(&shape, net.clone());
        let time_ledger = TimeLedger::new(net.clone(), scribe.clone());
        let site = Site { shape: Arc::new(shape), net, scribe, witnesses, time_ledger };
        Self { site, store, machines, coordinators, formed: false }
    }

    /// Whether some coordinator leads.
    #[must_use]
    pub fn is_led(&self) -> bool {
        let leads = |coordinator: &Coordinator| {
            coordinator.running.as_ref().is_some_and(|(_, handle, _)| handle.leadership().term.is_some())
        };
        self.coordinators.iter().any(leads)
    }

    /// Ends all faults.
    pub async fn calm(&mut self) {
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

    /// Starts processes that are down, and replicas that have stopped by themselves, as a
    /// supervisor would.
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

    /// Has replicas with a bad byte rebuilt, one after the other, as an operator would.
    pub async fn rebuild(&mut self) {
        let site = self.site.clone();
        let mut groups = site.shape.groups.keys();
        if groups.any(|group| self.machines.values().any(|machine| machine.is_being_replaced(*group))) {
            return;
        }
        if let Some(machine) = self.machines.values_mut().find(|machine| !machine.rotten.is_empty()) {
            machine.rebuild(&site).await;
        }
    }

    /// Something that is not as it should be when all is well; `None` if all is well.
    pub fn unsettled(&self) -> Option<String> {
        for group in self.site.shape.groups.keys() {
            let mut applied = BTreeMap::new();
            for ordinal in self.site.shape.hosts(*group) {
                let Some((_, handle)) = &self.machines[&ordinal].running else {
                    return Some(format!("node-{ordinal} is down"));
                };
                let Some(replica) = handle.hosted().replica(*group) else {
                    return Some(format!("{group} does not run on node-{ordinal}"));
                };
                let status = replica.status();
                let reads = self.site.shape.is_reader(ordinal);
                if !matches!((status.role.as_str(), reads), ("leader" | "follower", false) | ("learner", true)) {
                    return Some(format!("{group} on node-{ordinal} is {}: {}", status.role, status.note));
                }
                let readers = if *group == GroupId::Root { 0 } else { self.site.shape.readers as usize };
                if status.voters.len() != 3 || status.learners.len() != readers {
                    let (voters, learners) = (&status.voters, &status.learners);
                    return Some(format!(
                        "{group} on node-{ordinal} has voters {voters:x?} and learners {learners:x?}"
                    ));
                }
                if let Replica::Shard(replica) = &replica {
                    let open = replica.read_now(|machine| Ok(machine.engine().erasures(replica.cleared()).open));
                    if let Ok(open) = open
                        && open > 0
                    {
                        return Some(format!("{group} on node-{ordinal} has {open} erasures to do"));
                    }
                }
                applied.insert(ordinal, status.applied);
            }
            if applied.values().min() != applied.values().max() {
                return Some(format!("{group} is applied up to {applied:?}"));
            }
        }
        None
    }

    /// The replica of a group on a running node.
    #[must_use]
    pub fn replica(&self, ordinal: u32, group: GroupId) -> Option<Replica> {
        self.machines.get(&ordinal)?.running.as_ref()?.1.hosted().replica(group)
    }
}

impl Site {
    /// Restarts replicas that have stopped by themselves.
    pub async fn mend_replicas(&self, machine: &mut Machine, formed: bool) {
        for (group, note) in machine.stopped(&self.shape) {
            let Some((_, handle)) = machine.running.clone() else { return };
            let absent = handle.hosted().replica(group).is_none();
            if absent && machine.is_being_replaced(group) {
                continue;
            }
            event!(self.net.trace(), "{} {group} has stopped: {note}", machine.name);
            // The replica has ended, or never began.
            let _ = handle.stop_replica(group).await;
            machine.start_replica(self, group, formed).await;
        }
    }
}
