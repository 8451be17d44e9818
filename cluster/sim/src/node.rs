//! A simulated machine with a shard node on it. It is started, crashed and robbed of its disk, and
//! repaired as an operator would repair it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_env::{Clock, SimStorage, Storage, TieredStorage, Workers};
use coppice_shard_node::{Bootstrap, Handle, Node, Options, ReplicaOptions, Runner, Tuning, fsck};
use coppice_types::{GroupId, RaftId};

use crate::{
    event,
    history::Scribe,
    life::{Life, MachineClock},
    net::Net,
    shape::{CLUSTER, Shape},
    time_ledger::TimeLedger,
    witnesses::Witnesses,
};

/// A machine and its node.
#[derive(Debug)]
pub struct Machine {
    pub ordinal: u32,
    pub name: String,
    pub disk: SimStorage,
    pub clock: MachineClock,
    /// The running node, if any.
    pub running: Option<(Life, Handle)>,
    /// Groups whose replica has a bad byte that counts and was not rebuilt since.
    pub rotten: BTreeSet<GroupId>,
    runs: u32,
    /// Groups whose replica is being replaced.
    replacing: Arc<Mutex<BTreeSet<GroupId>>>,
}

/// Everything that a node needs to start.
#[derive(Clone, Debug)]
pub struct Site {
    pub shape: Arc<Shape>,
    pub net: Net,
    /// The record of the run, which takes findings.
    pub scribe: Scribe,
    pub witnesses: Witnesses,
    pub time_ledger: TimeLedger,
}

#[must_use]
pub fn name(ordinal: u32) -> String {
    format!("node-{ordinal}")
}

/// Options with caches and files so small that they are always full.
#[must_use]
pub fn engine_options() -> coppice_engine::Options {
    coppice_engine::Options {
        young_cache_bytes: 32 << 10,
        old_cache_bytes: 16 << 10,
        hash_cache_bytes: 8 << 10,
        segment_bytes_max: 4 << 10,
        meta_compaction_bytes_min: 4 << 10,
        rows_held_min: 3,
        filters_cached_max: 3,
        free_bytes_kept_min: 64 << 10,
        hot_value_bytes_max: 4 << 10,
        waiting_percent_max: 25,
        // Short values get names, too, so that reads use them.
        name_percent_max: 1000,
        workers: Workers::Inline,
    }
}

/// A machine's data directory, with a cold one on the same disk, so that one loss of power hits
/// both.
#[must_use]
pub fn storage_of(disk: &SimStorage) -> Arc<dyn Storage> {
    Arc::new(TieredStorage::new(disk.storage(), disk.subdir("cold").expect("a legal path")))
}

fn tuning(disk: &SimStorage, seed: u64) -> Tuning {
    let disk = disk.clone();
    Tuning {
        tick: Duration::from_millis(20),
        // Groups sleep often, or only after a while.
        quiet_ticks: 4 + seed % 3 * 20,
        flush_interval: Duration::from_millis(150 + seed % 7 * 130),
        flush_entries_max: 8 + seed % 5 * 40,
        flush_bytes_max: 64 << 10,
        log_segment_bytes: 32 << 10,
        // Every batch is processed ahead while the log writes it.
        log_beside_bytes_min: 0,
        // No scrub: readers must find bytes that rot.
        scrub_bytes_per_s: 0,
        cold_bytes_per_s: 64 << 20,
        spare_bytes: 32 << 10,
        engine: engine_options(),
        runner: Runner::Inline(Arc::new(move || disk.take_took())),
    }
}

impl Machine {
    /// A machine that is off.
    #[must_use]
    pub fn new(ordinal: u32, clock: MachineClock) -> Self {
        let (name, disk) = (name(ordinal), SimStorage::new());
        Self { ordinal, name, disk, clock, running: None, rotten: BTreeSet::new(), runs: 0, replacing: Arc::default() }
    }

    /// The groups that have a replica here.
    pub fn groups<'a>(&self, shape: &'a Shape) -> impl Iterator<Item = GroupId> + 'a {
        let ordinal = self.ordinal;
        shape.groups.keys().copied().filter(move |group| shape.hosts(*group).any(|host| host == ordinal))
    }

    fn options(&self, site: &Site, life: &Life) -> Options {
        let Site { shape, net, .. } = site;
        Options {
            node: self.name.clone(),
            cluster_id: CLUSTER,
            params: shape.params.clone(),
            nodes: (1..=shape.nodes + shape.readers).map(|ordinal| (ordinal, name(ordinal))).collect(),
            readers: shape.reader_ordinals().collect(),
            storage: storage_of(&self.disk),
            connector: net.connector(life),
            clock: Arc::new(self.clock.clone()) as Arc<dyn Clock>,
            seed: shape.seed ^ u64::from(self.ordinal) << 40 ^ u64::from(self.runs),
            replicas: Vec::new(),
            tuning: tuning(&self.disk, shape.seed),
            pim: None,
        }
    }

    /// Starts the node. Before the groups are formed, replicas without a directory found them;
    /// after that, they come back as new members.
    pub async fn start(&mut self, site: &Site, formed: bool) {
        self.runs += 1;
        self.replacing = Arc::default();
        let life = Life::new(&self.name, self.runs, Some(self.disk.clone()));
        event!(site.net.trace(), "{} starts, run {}", self.name, self.runs);
        let (handle, routes) = match Node::open(self.options(site, &life)).await {
            Ok(opened) => opened,
            // A process ends if its disk takes or opens nothing, and is started again later.
            Err(error) if formed && is_io(&error) => {
                return event!(site.net.trace(), "{} does not start: {error:?}", self.name);
            }
            Err(error) => return site.scribe.wrong(format!("start: an empty node does not start: {error}")),
        };
        site.net.serve(&life, routes);
        self.running = Some((life, handle));
        let groups: Vec<GroupId> = self.groups(&site.shape).collect();
        for group in groups {
            self.start_replica(site, group, formed).await;
        }
    }

    /// Starts one replica. If it can't start, it is repaired as an operator would repair it: its
    /// directory is removed, and it comes back from the other replicas.
    pub async fn start_replica(&mut self, site: &Site, group: GroupId, formed: bool) {
        let Some((life, handle)) = self.running.clone() else { return };
        if !formed && site.shape.is_reader(self.ordinal) {
            // It joins once there is a group.
            return;
        }
        let stored = Node::stored_raft_id(&self.disk, group);
        let started = match stored {
            Ok(None) if formed => {
                self.replace(site, group);
                return;
            }
            Ok(stored) => {
                let voters = site.shape.groups[&group].iter().map(|ordinal| RaftId::new(*ordinal, 1)).collect();
                let raft_id = stored.unwrap_or(RaftId::new(self.ordinal, 1));
                let bootstrap = if formed { Bootstrap::Join } else { Bootstrap::New { voters } };
                handle.start_replica(ReplicaOptions { group, raft_id, bootstrap }).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = started else {
            if formed {
                handle.resume_joining(group);
            }
            return;
        };
        event!(site.net.trace(), "{} can't start {group}: {error:?}", self.name);
        if !life.is_alive() {
            return;
        }
        let rotten = self.rotten.contains(&group);
        if !rotten && !is_io(&error) {
            site.scribe.wrong(format!("start: {} can't start {group} though nothing was damaged: {error}", self.name));
            return;
        }
        // A replica on a full or failing disk is tried again later.
        if rotten && !is_io(&error) && handle.wipe_replica(group).await.is_ok() {
            self.rotten.remove(&group);
            self.replace(site, group);
        }
    }

    /// Removes a replica with a bad byte, as an operator would, and replaces it.
    pub async fn rebuild(&mut self, site: &Site) {
        let (Some((_, handle)), Some(group)) = (self.running.clone(), self.rotten.first().copied()) else { return };
        if handle.wipe_replica(group).await.is_ok() {
            self.rotten.remove(&group);
            self.replace(site, group);
        }
    }

    /// Brings a lost replica back as a new member, in the background.
    fn replace(&self, site: &Site, group: GroupId) {
        let Some((life, handle)) = self.running.clone() else { return };
        let (trace, name) = (site.net.trace().clone(), self.name.clone());
        let replacing = Arc::clone(&self.replacing);
        if !replacing.lock().unwrap_or_else(PoisonError::into_inner).insert(group) {
            return;
        }
        event!(trace, "{name} replaces its replica of {group}");
        tokio::spawn(async move {
            let replaced = tokio::select! {
                biased;
                () = life.ended() => return,
                replaced = handle.replace_replica(group) => replaced.map(|id| id.0),
            };
            event!(trace, "{name} replaced its replica of {group}: {replaced:?}");
            replacing.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        });
    }

    /// Stops the machine at once: by a loss of power with the seed `power`; without one, only the
    /// process ends.
    pub fn crash(&mut self, site: &Site, power: Option<u64>) {
        let ios = self.disk.io_count();
        let what = if power.is_some() { "loses power" } else { "is killed" };
        event!(site.net.trace(), "{} {what} after {ios} changes to its disk", self.name);
        let image = match power {
            Some(seed) => self.disk.power_loss(seed),
            None => self.disk.process_loss(),
        };
        if let Some((life, handle)) = self.running.take() {
            life.end();
            tokio::spawn(async move { handle.kill().await });
        }
        self.disk.halt();
        self.disk = image;
        self.check_image(site);
    }

    /// Checks that the image that a crash left is sound, except for replicas that are known to be
    /// rotten.
    pub fn check_image(&self, site: &Site) -> bool {
        let image = storage_of(&self.disk.process_loss());
        for group in self.groups(&site.shape).filter(|group| !self.rotten.contains(group)) {
            let report = fsck::check(&image, group);
            if let Some(finding) = report.findings.first() {
                site.scribe.wrong(format!("fsck: {} {group}: {finding}", self.name));
                return false;
            }
        }
        true
    }

    /// Whether the replica is being replaced.
    #[must_use]
    pub fn is_being_replaced(&self, group: GroupId) -> bool {
        self.replacing.lock().unwrap_or_else(PoisonError::into_inner).contains(&group)
    }

    /// The replicas that have stopped by themselves, with the reason.
    #[must_use]
    pub fn stopped(&self, shape: &Shape) -> BTreeMap<GroupId, String> {
        let Some((_, handle)) = &self.running else { return BTreeMap::new() };
        let missing = |group: &GroupId| match handle.hosted().replica(*group) {
            None => Some("it does not run".to_owned()),
            Some(replica) => {
                Some(replica.status()).filter(|status| status.role.as_str() == "stopped").map(|status| status.note)
            }
        };
        self.groups(shape).filter_map(|group| Some((group, missing(&group)?))).collect()
    }
}

/// Whether the disk refused an operation, as opposed to holding wrong content.
fn is_io(error: &coppice_shard_node::Error) -> bool {
    use coppice_types::ErrorKind;
    matches!(error.kind(), ErrorKind::Internal | ErrorKind::Exhausted | ErrorKind::Unavailable)
}
