//! Starting a replica: directory, raft group, state machine, and the thread or task that drives
//! them.
//!
//! A replica that stops because of a shortage leaves a directory like that of a crash, and starts
//! again from it as soon as it can. Any other error ends the replica until the process starts
//! again.

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
    config::{Bootstrap, Config},
    handle::ReplicaHandle,
    home::{Home, Identity},
    machine::StateMachine,
    mailbox::Mailbox,
    runner::{self, Runner},
    shared::{Counts, Gate, Shared},
    site::Site,
    status::{Member, Role, Status},
    tuning::Tuning,
};
use crate::{
    Error,
    limits::{PEER_QUEUE_MAX, REQUEST_QUEUE_MAX},
};

/// How soon a replica that ended because of a shortage is opened again.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);

/// The random numbers of one start of one replica, from the node's seed and the time. With them
/// raft distinguishes this start's reads from those of an earlier start, whose answers may still
/// arrive.
fn rng(config: &Config<impl StateMachine>) -> Box<dyn Rng> {
    let Identity { group, raft_id, .. } = config.identity;
    let start = config.site.clock.now().as_nanos() as u64;
    Box::new(SimRng::new(config.site.seed ^ raft_id.0 ^ (u64::from(group.number()) << 48) ^ start.rotate_left(32)))
}

fn options(config: &Config<impl StateMachine>) -> coppice_consensus::Options {
    let Identity { cluster, group, raft_id } = config.identity;
    let &Tuning { log_segment_bytes: segment_bytes, log_beside_bytes_min: beside_bytes_min, .. } = &config.site.tuning;
    let defaults = coppice_consensus::Options::new(cluster, group, raft_id);
    let message_bytes = config.site.message_bytes_max;
    coppice_consensus::Options {
        segment_bytes,
        beside_bytes_min,
        fill_bytes: defaults.fill_bytes.min(segment_bytes),
        entry_bytes_max: defaults.entry_bytes_max.max(message_bytes),
        uncommitted_bytes_max: defaults.uncommitted_bytes_max.max(2 * message_bytes as u64),
        ..defaults
    }
}

/// A replica's parts after opening its directory.
struct Opened<M> {
    home: Home,
    group: Group,
    machine: Option<M>,
    applied: Position,
    note: String,
}

/// The thread or task that drives a replica.
#[derive(Debug)]
pub enum Work {
    Thread(JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

impl Work {
    /// Waits for the end, which comes after the mailbox is closed.
    pub async fn ended(self) {
        // A thread that panicked has ended the process.
        let _ = match self {
            Self::Thread(thread) => tokio::task::spawn_blocking(move || drop(thread.join())).await,
            Self::Task(task) => task.await,
        };
    }
}

/// Opens the replica's directory and starts its thread or task.
///
/// # Errors
/// If the directory is in use, not this replica's, or cannot be read.
pub fn start<M: StateMachine>(config: Config<M>) -> Result<(ReplicaHandle<M>, Work), Error> {
    let config = Arc::new(config);
    let opened = open(&config, false)?;
    let membership = opened.group.status().membership;
    let member = |id: &RaftId| Member { raft_id: *id, node: config.site.node_of(*id).unwrap_or_default() };
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
        cleared: AtomicU64::new(0),
        traffic: Arc::default(),
        counts: Counts::default(),
        runner: config.site.tuning.runner.clone(),
    });
    let Identity { group, raft_id, .. } = config.identity;
    let handle = ReplicaHandle { group, raft_id, shared: Arc::clone(&shared) };
    let runtime = config.site.runtime.clone();
    let site = Arc::clone(&config.site);
    let actor = Actor::new(config, Arc::clone(&shared), opened.home, opened.group, opened.applied);
    let work = match shared.runner.clone() {
        Runner::Threads => {
            let drive = move || {
                let _stop = StopOnPanic;
                let result = drive_thread(&shared, actor, &runtime);
                end(group, &shared, &site, result);
            };
            let thread = std::thread::Builder::new().name(format!("{group}")).spawn(drive);
            Work::Thread(thread.map_err(crate::error::no_thread)?)
        }
        Runner::Inline(took) => Work::Task(runtime.spawn(async move {
            let result = drive_task(&shared, actor, took.as_ref()).await;
            end(group, &shared, &site, result);
        })),
    };
    Ok((handle, work))
}

/// Opens the directory, or creates it. If `without_reserve` is set, the replica's share of the
/// reserve is given up first.
fn open<M: StateMachine>(config: &Config<M>, without_reserve: bool) -> Result<Opened<M>, Error> {
    let home = Home::open(config.site.storage.as_ref(), config.identity)?;
    home.clear_cold()?;
    if without_reserve {
        config.site.reserve.release(config.identity.group)?;
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

/// The body of a replica's task: like [`drive_thread`], without blocking.
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

/// Ends an actor that can't continue or has finished. After an error that passes, returns a new
/// actor, which was opened from the same directory.
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
        // The fetch ends by itself, at once if the mailbox is closed. Until then it uses the
        // directory.
        let _ = fetch.await;
    }
    let config = Arc::clone(actor.config());
    drop(actor);
    match result {
        Err(error) if again => {
            note_end(config.identity.group, shared, &error);
            reopen_when_possible(config, shared, error).await
        }
        result => result.map(|()| None),
    }
}

/// Opens the replica again after an error that passes; `None` if the mailbox is closed meanwhile.
async fn reopen_when_possible<M: StateMachine>(
    config: Arc<Config<M>>,
    shared: &Arc<Shared<M>>,
    mut last: Error,
) -> Result<Option<Actor<M>>, Error> {
    loop {
        let until = tokio::time::Instant::now() + SHORTAGE_RETRY;
        while let Some(left) = until.checked_duration_since(tokio::time::Instant::now()).filter(|left| !left.is_zero())
        {
            shared.mailbox.arrival(left).await;
            // Dropping the requests answers them: their callers need not wait for a timeout.
            drop(shared.mailbox.take(Duration::ZERO));
            if shared.mailbox.is_closed() {
                return Ok(None);
            }
        }
        match open(&config, last.shortage() != Some(Shortage::Handles)) {
            Ok(Opened { home, group, machine, applied, note }) => {
                *shared.machine.write() = machine;
                shared.applied.send_replace(applied.index);
                shared.set_note(note);
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

/// Publishes that the replica has ended. After an error it stays ended until the process starts
/// again.
fn end<M: StateMachine>(group: GroupId, shared: &Shared<M>, site: &Site, result: Result<(), Error>) {
    shared.gate.open();
    *shared.machine.write() = None;
    shared.status.write().unwrap_or_else(PoisonError::into_inner).role = Role::Stopped;
    if let Err(error) = result {
        note_end(group, shared, &error);
        shared.status.write().unwrap_or_else(PoisonError::into_inner).broken = true;
        // Otherwise the other replicas of the node would wait for this one's share.
        if let Err(error) = site.reserve.leave(group) {
            tracing::warn!(%group, error = error.chain(), "its share of the reserve stays");
        }
    }
}

fn note_end<M: StateMachine>(group: GroupId, shared: &Shared<M>, error: &Error) {
    tracing::error!(%group, error = error.chain(), "a replica stopped");
    shared.gate.open();
    *shared.machine.write() = None;
    let mut status = shared.status.write().unwrap_or_else(PoisonError::into_inner);
    (status.role, status.note) = (Role::Stopped, error.chain());
    status.full = error.shortage() == Some(Shortage::Space);
}

/// Ends the process when a replica's thread panics: memory with a broken invariant can't be
/// trusted.
struct StopOnPanic;

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// The first start. Nothing was promised yet, so the leftovers of a start that was cut off are
/// removed.
fn begin<M: StateMachine>(config: &Config<M>, mut home: Home) -> Result<Opened<M>, Error> {
    home.clear()?;
    let (group, machine, applied, note) = match &config.bootstrap {
        Bootstrap::New { voters } => {
            let group = Group::create(home.raft()?, options(config), rng(config), voters)?;
            let mut machine = M::open(home.state()?, &config.machine)?;
            // The log of a new group begins here.
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

/// Any later start. A crash may have come between any two steps of an earlier run.
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

/// Opens the state machine; `None` and a note if it is damaged, or was never installed.
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

#[cfg(test)]
mod tests;
