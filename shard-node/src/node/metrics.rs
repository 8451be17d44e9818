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

use coppice_engine::{Counters, DiskUsage};
use coppice_proto::telemetry::SCOPE;
use coppice_types::GroupId;
use opentelemetry::{
    KeyValue, global,
    metrics::{AsyncInstrument, Meter},
};

use crate::{
    hosted::{Hosted, Replica},
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
    is_open: bool,
    /// How many messages from other replicas, and how many requests, wait for the replica.
    waiting: (u64, u64),
    counted: Counted,
    shard: Option<Shard>,
    root: Option<Root>,
}

impl Look {
    fn at(group: GroupId, replica: &Replica) -> Self {
        let counted = Counted::of(replica.counts(), replica.traffic());
        // A replica without a state has neither.
        let (shard, root) = match replica {
            Replica::Shard(replica) => (replica.read_now(|machine| Ok(shard(machine))).ok(), None),
            Replica::Root(replica) => (None, replica.read_now(|machine| Ok(root(machine))).ok()),
        };
        let (is_open, waiting) = (replica.is_open(), replica.waiting());
        Self { group: group_label(group), status: replica.status(), is_open, waiting, counted, shard, root }
    }

    fn counter(&self, counter: fn(&Counters) -> u64) -> Option<u64> {
        self.shard.as_ref().map(|shard| counter(&shard.counters))
    }

    fn usage(&self, bytes: fn(&DiskUsage) -> u64) -> Option<u64> {
        self.shard.as_ref()?.usage.as_ref().map(bytes)
    }

    fn is(&self, role: Role) -> Option<u64> {
        Some((self.status.role == role).into())
    }
}

fn shard(machine: &ShardMachine) -> Shard {
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
            let looks = hosted.all().into_iter().map(|(group, replica)| Look::at(group, &replica));
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
}
