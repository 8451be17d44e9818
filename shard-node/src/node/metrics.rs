//! Metrics of a node's replicas; `docs/metrics.md` lists them.
//!
//! Replicas count with plain atomics, and a collection reads them together with the replicas'
//! status. Only durations are recorded as they happen. If the process has no meter, nothing is read
//! or recorded.

mod list;

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_engine::{Counters, DiskUsage, ErasureProgress};
use coppice_proto::telemetry::SCOPE;
use coppice_types::GroupId;
use opentelemetry::{
    KeyValue, global,
    metrics::{AsyncInstrument, Meter},
};

use crate::{
    hosted::{Hosted, Replica},
    pim::{Figures, Outcome, Prover},
    replica::{Counts, Role, Status, Traffic, group_label},
    root::RootMachine,
    shard::ShardMachine,
};

/// How long one look is reused, so that all metrics of a collection come from the same look.
const LOOK_AGE_MAX: Duration = Duration::from_millis(500);

/// Figures of a shard's engine.
#[derive(Debug)]
struct Shard {
    counters: Counters,
    usage: Option<DiskUsage>,
    trees: u64,
    records: u64,
    unflushed_bytes: u64,
    staged: u64,
    version: u64,
    erasures: ErasureProgress,
}

/// Figures of the root group's state.
#[derive(Debug)]
struct Root {
    entries: u64,
    sessions: u64,
    term: u64,
    disk_bytes: u64,
}

/// A replica's own counters.
#[derive(Debug)]
struct Counted {
    proposals: u64,
    campaigns: u64,
    leaderships: u64,
    quarantines: u64,
    snapshot_bytes_given: u64,
    snapshot_bytes_sent: u64,
    snapshot_bytes_held: u64,
    snapshots_pinned: u64,
    snapshots_installed: u64,
    snapshots_checked: u64,
}

impl Counted {
    fn of(counts: &Counts, traffic: &Traffic) -> Self {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Self {
            proposals: count(&counts.proposals),
            campaigns: count(&counts.campaigns),
            leaderships: count(&counts.leaderships),
            quarantines: count(&counts.quarantines),
            snapshot_bytes_given: count(&traffic.given),
            snapshot_bytes_sent: count(&traffic.sent),
            snapshot_bytes_held: count(&traffic.held),
            snapshots_pinned: count(&traffic.pinned),
            snapshots_installed: count(&traffic.installed),
            snapshots_checked: count(&traffic.checked),
        }
    }
}

/// The result of one look at a replica. It keeps no reference to the replica, which may end
/// meanwhile.
#[derive(Debug)]
struct Look {
    group: KeyValue,
    status: Status,
    is_reader: bool,
    is_open: bool,
    is_asleep: bool,
    /// How many messages from other replicas, and how many requests, wait for the replica.
    waiting: (u64, u64),
    counted: Counted,
    shard: Option<Shard>,
    root: Option<Root>,
    pim: Option<Pim>,
}

/// Figures of a prover.
#[derive(Debug)]
struct Pim {
    figures: Figures,
    /// Queries by outcome.
    asked: [u64; 5],
}

impl Pim {
    const OUTCOMES: [Outcome; 5] = [Outcome::Answered, Outcome::Small, Outcome::Unserved, Outcome::Busy, Outcome::Late];

    fn of(prover: &Prover) -> Self {
        Self { figures: prover.figures(), asked: Self::OUTCOMES.map(|outcome| prover.asked().count(outcome)) }
    }
}

impl Look {
    fn at(hosted: &Hosted, group: GroupId, replica: &Replica) -> Self {
        let counted = Counted::of(replica.counts(), replica.traffic());
        // A replica without a state has neither.
        let (shard, root) = match replica {
            Replica::Shard(replica) => {
                let cleared = replica.cleared();
                (replica.read_now(|machine| Ok(shard(machine, cleared))).ok(), None)
            }
            Replica::Root(replica) => (None, replica.read_now(|machine| Ok(root(machine))).ok()),
        };
        let (is_open, waiting) = (replica.is_open(), replica.waiting());
        let is_asleep = hosted.sleepers.is_asleep(group);
        let (group, pim) = (group_label(group), hosted.prover(group).as_deref().map(Pim::of));
        let (is_reader, status) = (hosted.hosts_readers(), replica.status());
        Self { group, status, is_reader, is_open, is_asleep, waiting, counted, shard, root, pim }
    }

    fn counter(&self, counter: fn(&Counters) -> u64) -> Option<u64> {
        self.shard.as_ref().map(|shard| counter(&shard.counters))
    }

    fn usage(&self, bytes: fn(&DiskUsage) -> u64) -> Option<u64> {
        self.shard.as_ref()?.usage.as_ref().map(bytes)
    }

    fn pim(&self, figure: fn(&Figures) -> u64) -> Option<u64> {
        self.pim.as_ref().map(|pim| figure(&pim.figures))
    }

    /// Queries with the outcome of this number.
    fn asked(&self, outcome: usize) -> Option<u64> {
        self.pim.as_ref().map(|pim| pim.asked[outcome])
    }

    fn is(&self, role: Role) -> Option<u64> {
        Some((self.status.role == role).into())
    }
}

fn shard(machine: &ShardMachine, cleared: u64) -> Shard {
    let engine = machine.engine();
    let decided = engine.decided();
    let entries = engine.shape(&decided).map(|shape| shape.entries).unwrap_or_default();
    Shard {
        counters: engine.counters(),
        usage: engine.disk_usage().ok(),
        trees: entries.len() as u64,
        records: entries.iter().sum(),
        unflushed_bytes: engine.unflushed_bytes(),
        staged: engine.staged().len() as u64,
        version: decided.version.0,
        erasures: engine.erasures(cleared),
    }
}

fn root(machine: &RootMachine) -> Root {
    let root = machine.root();
    Root {
        entries: root.log_size(),
        sessions: root.sessions().count() as u64,
        term: root.term().0,
        disk_bytes: root.disk_usage().unwrap_or_default(),
    }
}

/// Looks at the replicas of a node that still runs.
#[derive(Debug)]
struct Looker {
    hosted: Weak<Hosted>,
    last: Mutex<(Duration, Arc<Vec<Look>>)>,
}

impl Looker {
    fn look(&self) -> Arc<Vec<Look>> {
        let Some(hosted) = self.hosted.upgrade() else { return Arc::default() };
        let now = hosted.clock.now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.is_empty() || now.saturating_sub(last.0) > LOOK_AGE_MAX {
            let looks = hosted.all().into_iter().map(|(group, replica)| Look::at(&hosted, group, &replica));
            *last = (now, Arc::new(looks.collect()));
        }
        Arc::clone(&last.1)
    }
}

type Reads = fn(&Look) -> Option<u64>;

/// Builds instruments that read replicas.
struct Instruments {
    meter: Meter,
    looker: Arc<Looker>,
}

impl Instruments {
    /// The callback of a collection. It observes each of `parts` of each replica that has the part,
    /// under the part's label if it has one.
    fn observe(
        &self,
        label: &'static str,
        parts: &'static [(&'static str, Reads)],
    ) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
        let looker = Arc::clone(&self.looker);
        move |observer| {
            for look in looker.look().iter() {
                for (part, read) in parts {
                    let Some(value) = read(look) else { continue };
                    if part.is_empty() {
                        observer.observe(value, std::slice::from_ref(&look.group));
                    } else {
                        observer.observe(value, &[look.group.clone(), KeyValue::new(label, *part)]);
                    }
                }
            }
        }
    }

    fn gauges(
        &self,
        (name, unit, label): (&'static str, &'static str, &'static str),
        help: &'static str,
        parts: &'static [(&'static str, Reads)],
    ) {
        let gauge = self.meter.u64_observable_gauge(name).with_unit(unit).with_description(help);
        gauge.with_callback(self.observe(label, parts)).build();
    }

    fn counters(
        &self,
        (name, unit, label): (&'static str, &'static str, &'static str),
        help: &'static str,
        parts: &'static [(&'static str, Reads)],
    ) {
        let counter = self.meter.u64_observable_counter(name).with_unit(unit).with_description(help);
        counter.with_callback(self.observe(label, parts)).build();
    }
}

/// Makes a node's replicas visible to collections, as long as the node runs.
pub fn show(hosted: &Arc<Hosted>) {
    let looker = Looker { hosted: Arc::downgrade(hosted), last: Mutex::default() };
    let instruments = Instruments { meter: global::meter(SCOPE), looker: Arc::new(looker) };
    list::replicas(&instruments);
    list::raft(&instruments);
    list::snapshots(&instruments);
    list::engine(&instruments);
    list::root_group(&instruments);
    list::pim(&instruments);
}

#[cfg(test)]
mod tests {
    use coppice_env::{Clock, SimClock, SimStorage};

    use super::*;
    use crate::{
        DuplexNet,
        hosted::tests::{SHARD, hosted},
        replica::tests::site,
        shard::tests::Talk,
    };

    #[tokio::test]
    async fn a_look_shows_what_there_is_of_a_replica_and_nothing_of_what_there_is_not() {
        let hosted = hosted(&DuplexNet::new());
        let mut talk = Talk::new();
        talk.commit(1, "a");
        hosted.put_shard(Some(talk.machine));
        hosted.put_root(3);
        let look = |(group, replica)| Look::at(&hosted, group, &replica);
        let looks = || hosted.all().into_iter().map(look).collect::<Vec<_>>();
        let [root, shard] = &looks()[..] else { panic!("two replicas are here") };
        assert_eq!(root.root.as_ref().map(|root| (root.entries, root.term)), Some((3, 1)));
        assert_eq!((root.counter(|counters| counters.stages), root.usage(|usage| usage.versions)), (None, None));
        assert_eq!(shard.shard.as_ref().map(|shard| (shard.version, shard.records)), Some((1, 1)));
        assert_eq!((shard.counter(|counters| counters.stages), shard.root.is_some()), (Some(1), false));
        assert_eq!((shard.is(Role::Unknown), shard.is(Role::Leader)), (Some(1), Some(0)));
        hosted.sleepers.fall_asleep(SHARD, 1, [], Duration::ZERO);
        assert_eq!(looks().iter().map(|look| look.is_asleep).collect::<Vec<_>>(), [false, true]);
        hosted.put_shard(None);
        let closed = looks().remove(1);
        assert!(closed.shard.is_none() && !closed.is_open, "a replica without a state still has a role");
        assert_eq!(closed.counter(|counters| counters.stages), None);
    }

    #[tokio::test]
    async fn one_look_serves_a_collection_and_the_next_one_is_fresh() {
        let clock = SimClock::default();
        let of = Arc::new(clock.clone()) as Arc<dyn Clock>;
        let site = site(&DuplexNet::new(), SimStorage::new().storage(), of, crate::Tuning::default());
        let hosted = Arc::new_cyclic(|weak| Hosted::new(weak, |_| site));
        let looker = Looker { hosted: Arc::downgrade(&hosted), last: Mutex::default() };
        assert!(looker.look().is_empty());
        let replica = hosted.put_shard(None);
        let proposals = || looker.look().iter().map(|look| look.counted.proposals).collect::<Vec<_>>();
        assert_eq!(proposals(), [0], "a node without replicas is looked at again at once");
        replica.shared.counts.proposals.fetch_add(5, Ordering::Relaxed);
        clock.advance(LOOK_AGE_MAX);
        assert_eq!(proposals(), [0]);
        clock.advance(Duration::from_millis(1));
        assert_eq!(proposals(), [5]);
        assert_eq!(hosted.shard(SHARD).map(|it| it.group).map_err(|it| it.reason), Ok(SHARD));
        drop(hosted);
        assert!(looker.look().is_empty(), "the node has ended");
    }
}
