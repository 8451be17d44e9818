//! Starting a replica: directory, raft group, state machine, and the thread or task that drives them.

use std::{
    sync::{Arc, PoisonError, RwLock, atomic::AtomicU64},
    thread::JoinHandle,
    time::Duration,
};

use coppice_consensus::{Error as ConsensusError, Group, Position, RaftId};
use coppice_env::{Rng, Shortage, SimRng};
use coppice_types::{ErrorKind, GroupId};

use super::{
    actor::Actor,
    handle::{Counts, Gate, Member, ReplicaHandle, Shared, Status},
};
use crate::{
    Error,
    hosted::Hosted,
    limits::{PEER_QUEUE_MAX, REQUEST_QUEUE_MAX},
    replica::home::{Home, Identity},
    replica::machine::StateMachine,
    replica::mailbox::Mailbox,
    replica::runner::{self, Runner},
};

/// How soon a replica that ended because something ran out is opened again.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);
/// A reserve grows by so small parts of what is spare in it.
const SPARE_PARTS: u64 = 32;

/// How a replica without a directory begins. One that has a directory goes on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// The group is new: no genesis header knows it yet. All its first voters are given the same list.
    New {
        /// Raft ids of the first voters.
        voters: Vec<u64>,
    },
    /// The group exists: the replica has no vote, and waits to be added and for a snapshot.
    Join,
}

/// How a node's replicas pace themselves.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Raft's unit of time: heartbeats every 2, elections after 10 to 20.
    pub tick: Duration,
    /// The state machine is flushed when something was applied so long ago,
    pub flush_interval: Duration,
    /// or after so many entries,
    pub flush_entries_max: u64,
    /// or when it has so much to write.
    pub flush_bytes_max: u64,
    /// Size of a file of the raft log, which is cut by whole files.
    pub log_segment_bytes: u64,
    /// Batches of so many bytes are looked ahead at while the raft log writes them.
    pub log_beside_bytes_min: usize,
    /// How much of its files each replica reads in a second to see whether it is sound; 0 for nothing.
    pub scrub_bytes_per_s: u64,
    /// How much each replica copies to its cold directory in a second, if there is one.
    pub cold_bytes_per_s: u64,
    /// What each replica keeps back on its disk for what must go on when the disk is full, beside what may wait for a flush: what is in its log
    /// and not applied yet, and the commands that make room.
    pub spare_bytes: u64,
    /// The engine of each shard.
    pub engine: coppice_engine::Options,
    /// Where replicas and their blocking jobs run.
    pub runner: Runner,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(50),
            flush_interval: Duration::from_secs(5),
            flush_entries_max: 2048,
            flush_bytes_max: 32 << 20,
            log_segment_bytes: 32 << 20,
            log_beside_bytes_min: 256 << 10,
            scrub_bytes_per_s: 1 << 20,
            cold_bytes_per_s: 16 << 20,
            spare_bytes: 40 << 20,
            engine: coppice_engine::Options::default(),
            runner: Runner::Threads,
        }
    }
}

impl Tuning {
    /// What a replica keeps back on its disk. When the disk is full, as much may wait for a flush as makes one late, what is applied beyond
    /// that, and so many bytes that background work adds at once; it must be written before anything that a prune drops is free.
    #[must_use]
    pub fn reserve_bytes(&self, at_once: u64) -> u64 {
        // What is spare has the rest: so the reserve seldom grows.
        let part = (self.spare_bytes / SPARE_PARTS).max(1);
        self.spare_bytes.saturating_add(self.late_bytes()).saturating_add(at_once / part * part)
    }

    /// A disk that has so much to write does not keep up, and is waited for.
    pub(crate) fn late_bytes(&self) -> u64 {
        self.flush_bytes_max.saturating_mul(2)
    }
}

/// What a replica is and what it works with.
#[derive(Debug)]
pub struct Config<M: StateMachine> {
    /// Whose directory.
    pub identity: Identity,
    /// If the directory is new.
    pub bootstrap: Bootstrap,
    /// For the state machine.
    pub machine: M::Config,
    /// The node that hosts it.
    pub hosted: Arc<Hosted>,
}

impl<M: StateMachine> Clone for Config<M> {
    fn clone(&self) -> Self {
        Self {
            identity: self.identity,
            bootstrap: self.bootstrap.clone(),
            machine: self.machine.clone(),
            hosted: Arc::clone(&self.hosted),
        }
    }
}

/// The random numbers of one start of one replica, from the node's seed and the time: raft tells the reads of this start by
/// them from those of an earlier one, to which an answer may still be under way.
fn rng(config: &Config<impl StateMachine>) -> Box<dyn Rng> {
    let Identity { group, raft_id, .. } = config.identity;
    let start = config.hosted.clock.now().as_nanos() as u64;
    Box::new(SimRng::new(config.hosted.seed ^ raft_id ^ (u64::from(group.number()) << 48) ^ start.rotate_left(32)))
}

fn options(config: &Config<impl StateMachine>) -> coppice_consensus::Options {
    let Identity { cluster, group, raft_id } = config.identity;
    let &Tuning { log_segment_bytes: segment_bytes, log_beside_bytes_min: beside_bytes_min, .. } =
        &config.hosted.tuning;
    let defaults = coppice_consensus::Options::new(cluster, group, RaftId(raft_id));
    let message_bytes = config.hosted.message_bytes_max;
    coppice_consensus::Options {
        segment_bytes,
        beside_bytes_min,
        fill_bytes: defaults.fill_bytes.min(segment_bytes),
        entry_bytes_max: defaults.entry_bytes_max.max(message_bytes),
        uncommitted_bytes_max: defaults.uncommitted_bytes_max.max(2 * message_bytes as u64),
        ..defaults
    }
}

/// What was opened.
struct Opened<M> {
    home: Home,
    group: Group,
    machine: Option<M>,
    applied: Position,
    note: String,
}

/// What drives a replica.
#[derive(Debug)]
pub enum Work {
    /// A thread of its own.
    Thread(JoinHandle<()>),
    /// A task of the runtime.
    Task(tokio::task::JoinHandle<()>),
}

impl Work {
    /// Waits until it has ended. It ends when the mailbox is closed.
    pub async fn ended(self) {
        // A thread that panicked has ended the process.
        let _ = match self {
            Self::Thread(thread) => tokio::task::spawn_blocking(move || drop(thread.join())).await,
            Self::Task(task) => task.await,
        };
    }
}

/// Opens the replica's directory and starts what drives it.
///
/// # Errors
/// If the directory is in use, not this replica's, or cannot be read.
pub fn start<M: StateMachine>(config: Config<M>) -> Result<(ReplicaHandle<M>, Work), Error> {
    let opened = open(&config, false)?;
    let membership = opened.group.status().membership;
    let member = |id: &RaftId| Member { raft_id: id.0, node: config.hosted.node_of(id.0).unwrap_or_default() };
    let status = Status {
        voters: membership.voters.iter().map(member).collect(),
        learners: membership.learners.iter().map(member).collect(),
        note: opened.note,
        ..Status::default()
    };
    let shared = Arc::new(Shared {
        mailbox: Arc::new(Mailbox::new(PEER_QUEUE_MAX, REQUEST_QUEUE_MAX)),
        machine: parking_lot::RwLock::new(opened.machine),
        gate: Gate::default(),
        applied: coppice_env::watch::Sender::new(opened.applied.index),
        status: RwLock::new(status),
        fetched_ms: AtomicU64::new(0),
        traffic: Arc::default(),
        counts: Counts::default(),
        runner: config.hosted.tuning.runner.clone(),
    });
    let Identity { group, raft_id, .. } = config.identity;
    let handle = ReplicaHandle { group, raft_id, shared: Arc::clone(&shared) };
    let runtime = config.hosted.runtime.clone();
    let actor = Actor::new(config, Arc::clone(&shared), opened.home, opened.group, opened.applied);
    let work = match shared.runner.clone() {
        Runner::Threads => {
            let drive = move || {
                let _stop = StopOnPanic;
                let result = drive_thread(&shared, actor, &runtime);
                end(group, &shared, result);
            };
            let thread = std::thread::Builder::new().name(format!("{group}")).spawn(drive);
            Work::Thread(thread.map_err(crate::error::no_thread)?)
        }
        Runner::Inline(took) => Work::Task(runtime.spawn(async move {
            let result = drive_task(&shared, actor, took.as_ref()).await;
            end(group, &shared, result);
        })),
    };
    Ok((handle, work))
}

/// Opens the directory, or makes it; with the room of its reserve, where there is no other.
fn open<M: StateMachine>(config: &Config<M>, without_reserve: bool) -> Result<Opened<M>, Error> {
    let home = Home::open(config.hosted.storage.as_ref(), config.identity)?;
    home.clear_cold()?;
    if without_reserve {
        home.release_reserve()?;
    }
    if home.started() { reopen(config, home) } else { begin(config, home) }
}

/// The body of a replica's thread: steps until the replica is over.
fn drive_thread<M: StateMachine>(
    shared: &Arc<Shared<M>>,
    mut actor: Actor<M>,
    runtime: &tokio::runtime::Handle,
) -> Result<(), Error> {
    loop {
        let mut result = actor.begin();
        while result.is_ok() && !actor.is_over() {
            let inputs = shared.mailbox.take(actor.wait());
            result = actor.step(inputs);
        }
        match runtime.block_on(left(shared, actor, result))? {
            Some(again) => actor = again,
            None => return Ok(()),
        }
    }
}

/// The same as a task.
async fn drive_task<M: StateMachine>(
    shared: &Arc<Shared<M>>,
    mut actor: Actor<M>,
    took: &(dyn Fn() -> Duration + Send + Sync),
) -> Result<(), Error> {
    loop {
        let mut result = actor.begin();
        while result.is_ok() && !actor.is_over() {
            runner::rest(took()).await;
            match actor.wait() {
                Duration::ZERO => tokio::task::yield_now().await,
                wait => shared.mailbox.arrival(wait).await,
            }
            let inputs = shared.mailbox.take(Duration::ZERO);
            result = actor.step(inputs);
        }
        match left(shared, actor, result).await? {
            Some(again) => actor = again,
            None => return Ok(()),
        }
    }
}

/// What follows when a replica can't go on, or is over. What failed because something ran out leaves a directory like that of a crash: the
/// replica starts again from it, as soon as it can.
async fn left<M: StateMachine>(
    shared: &Arc<Shared<M>>,
    mut actor: Actor<M>,
    result: Result<(), Error>,
) -> Result<Option<Actor<M>>, Error> {
    let again = result.as_ref().is_err_and(Error::passes) && !shared.mailbox.is_closed();
    if !again {
        shared.mailbox.close();
    }
    if let Some(fetch) = actor.leave() {
        // It ends by itself, at once when it sees a closed mailbox. Until then the directory is in use.
        let _ = fetch.await;
    }
    let config = actor.config.clone();
    drop(actor);
    match result {
        Err(error) if again => {
            note_end(config.identity.group, shared, &error);
            reopen_when_possible(config, shared, error).await
        }
        result => result.map(|()| None),
    }
}

/// Opens the replica again after an error that passes; `None` if it is to end meanwhile.
async fn reopen_when_possible<M: StateMachine>(
    config: Config<M>,
    shared: &Arc<Shared<M>>,
    mut last: Error,
) -> Result<Option<Actor<M>>, Error> {
    loop {
        let until = tokio::time::Instant::now() + SHORTAGE_RETRY;
        while let Some(left) = until.checked_duration_since(tokio::time::Instant::now()).filter(|left| !left.is_zero())
        {
            shared.mailbox.arrival(left).await;
            // Whoever asks hears at once that nobody is here.
            drop(shared.mailbox.take(Duration::ZERO));
            if shared.mailbox.is_closed() {
                return Ok(None);
            }
        }
        match open(&config, last.shortage() != Some(Shortage::Handles)) {
            Ok(Opened { home, group, machine, applied, note }) => {
                *shared.machine.write() = machine;
                shared.applied.send_replace(applied.index);
                shared.status.write().unwrap_or_else(PoisonError::into_inner).note = note;
                return Ok(Some(Actor::new(config, Arc::clone(shared), home, group, applied)));
            }
            Err(error) if error.passes() => {
                note_end(config.identity.group, shared, &error);
                last = error;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The replica is gone: nobody finds its state machine any more. After an error it does not come back before the process starts again.
fn end<M: StateMachine>(group: GroupId, shared: &Shared<M>, result: Result<(), Error>) {
    shared.gate.open();
    *shared.machine.write() = None;
    shared.status.write().unwrap_or_else(PoisonError::into_inner).role = "stopped";
    if let Err(error) = result {
        note_end(group, shared, &error);
        shared.status.write().unwrap_or_else(PoisonError::into_inner).broken = true;
    }
}

fn note_end<M: StateMachine>(group: GroupId, shared: &Shared<M>, error: &Error) {
    tracing::error!(%group, error = error.chain(), "a replica stopped");
    shared.gate.open();
    *shared.machine.write() = None;
    let mut status = shared.status.write().unwrap_or_else(PoisonError::into_inner);
    (status.role, status.note) = ("stopped", error.chain());
    status.full = error.shortage() == Some(Shortage::Space);
}

/// A broken invariant of one replica ends the process: what it holds in memory can't be trusted.
struct StopOnPanic;

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The first start: nothing was promised yet, so what a start that was cut off has left is made anew.
fn begin<M: StateMachine>(config: &Config<M>, mut home: Home) -> Result<Opened<M>, Error> {
    home.clear()?;
    let (group, machine, applied, note) = match &config.bootstrap {
        Bootstrap::New { voters } => {
            let voters: Vec<RaftId> = voters.iter().copied().map(RaftId).collect();
            let group = Group::create(home.raft()?, options(config), rng(config), &voters)?;
            let mut machine = M::open(home.state()?, &config.machine)?;
            // Where the log of a new group begins.
            let first = Position { index: 1, term: 1 };
            machine.flush(first)?;
            home.set_floor(first)?;
            (group, Some(machine), first, String::new())
        }
        Bootstrap::Join => {
            let group = Group::create_empty(home.raft()?, options(config), rng(config))?;
            (group, None, Position { index: 0, term: 0 }, "waits for a snapshot".to_owned())
        }
    };
    home.set_started(config.identity)?;
    Ok(Opened { home, group, machine, applied, note })
}

/// Any later start.
fn reopen<M: StateMachine>(config: &Config<M>, mut home: Home) -> Result<Opened<M>, Error> {
    let (mut machine, mut note) = open_machine::<M>(config, &home)?;
    let applied = machine.as_ref().map_or(home.floor()?, StateMachine::durable);
    let opened = Group::open(home.raft()?, options(config), rng(config), applied);
    let (mut group, applied) = match opened {
        Ok(group) => (group, applied),
        Err(ConsensusError::InstallPending { position, .. }) => {
            // A crash came after raft took the snapshot and before its state became current.
            let incoming = home.incoming()?.filter(|incoming| incoming.complete && incoming.position == position);
            let Some(incoming) = incoming else {
                return Err(Error::Damaged {
                    file: "incoming",
                    what: "it is not the snapshot that raft took".to_owned(),
                });
            };
            drop(machine.take());
            home.install_incoming(&incoming, true)?;
            (machine, note) = open_machine::<M>(config, &home)?;
            let mut group = Group::open(home.raft()?, options(config), rng(config), position)?;
            group.clear_quarantine()?;
            (group, position)
        }
        Err(error) => return Err(error.into()),
    };
    if group.quarantined().is_some() {
        machine = None;
        note = "quarantined: waits for a snapshot".to_owned();
    } else if machine.is_none() && applied.index > 0 {
        group.quarantine(note.as_bytes())?;
    }
    Ok(Opened { home, group, machine, applied, note })
}

/// Opens the state machine; none if it is damaged, or was never installed.
fn open_machine<M: StateMachine>(config: &Config<M>, home: &Home) -> Result<(Option<M>, String), Error> {
    if home.floor()?.index == 0 {
        return Ok((None, "waits for a snapshot".to_owned()));
    }
    match M::open(home.state()?, &config.machine) {
        Ok(machine) => Ok((Some(machine), String::new())),
        Err(error) if error.kind() == ErrorKind::Corrupted => Ok((None, error.chain())),
        Err(error) => Err(error),
    }
}
