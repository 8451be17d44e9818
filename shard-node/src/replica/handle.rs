//! A running replica as the rest of the node sees it.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_env::watch;
use coppice_proto::v1;
use coppice_types::{GroupId, Reason};
use opentelemetry::Context;
use tokio::sync::oneshot;

use super::transfer::Failed;
use crate::{
    Error,
    refusal::Refusal,
    replica::machine::{Position, StateMachine},
    replica::mailbox::{Lane, Mailbox},
    replica::runner::Runner,
};

/// How long a command's outcome is awaited.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a read waits for the state that it names, or for a read index.
pub const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Where an answer goes.
pub type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its raft id: `ordinal << 32 | incarnation`.
    pub raft_id: u64,
    /// The node that hosts it.
    pub node: String,
}

/// A change of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A copy without a vote joins.
    AddLearner(Member),
    /// A learner that has caught up gets its vote.
    Promote(u64),
    /// A replica leaves for good.
    Remove(u64),
    /// A voter is to lead; whether it comes to that is seen later.
    Lead(u64),
}

/// What a replica's thread is asked.
#[derive(Debug)]
pub enum Input<M: StateMachine> {
    /// A message of another replica, and the node that it came from.
    Peer(v1::PeerMessage, String),
    /// A node that cannot be reached.
    Unreachable(String),
    /// A command to replicate, and the trace that it is a part of.
    Command(Vec<u8>, Answer<M::Reply>, Context),
    /// A read index, for a linearizable read.
    ReadIndex(Answer<u64>),
    /// A change of the members.
    Change(Change, Answer<()>),
    /// A snapshot was fetched, or why it was not.
    Fetched(Position, Result<(), Failed>),
    /// The check of a pinned snapshot, begun at this time, has ended.
    Checked(Duration, Result<(), Error>),
    /// A read met damaged bytes.
    Damaged(String),
    /// To flush and to end; before that, if it is said so, to move leadership away.
    Retire(bool, Answer<()>),
}

/// What a replica shows of itself.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// leader, follower, candidate, learner, quarantined, stopped
    pub role: &'static str,
    /// Raft's term.
    pub term: u64,
    /// The raft id of the leader, 0 if unknown.
    pub leader: u64,
    /// The leader's node, empty if unknown.
    pub leader_node: String,
    /// The last applied entry.
    pub applied: u64,
    /// The last entry that is known to be committed.
    pub committed: u64,
    /// The last entry of the log.
    pub last: u64,
    /// Entries that the log holds.
    pub log_entries: u64,
    /// What the log takes on the disk.
    pub log_bytes: u64,
    /// No new versions are taken for want of space.
    pub full: bool,
    /// It stopped for good: it comes back with the next start of the process, if at all.
    pub broken: bool,
    /// The voters.
    pub voters: Vec<Member>,
    /// The copies without a vote.
    pub learners: Vec<Member>,
    /// Why it does not serve, if it does not.
    pub note: String,
}

/// Lets a writer through where readers come and go without end: while it is closed, new readers wait.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        let mut now = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *now && !closed {
            self.opened.notify_all();
        }
        *now = closed;
    }

    /// New readers wait from now on.
    pub fn close(&self) {
        self.set(true);
    }

    /// Readers pass again.
    pub fn open(&self) {
        self.set(false);
    }

    /// Waits while it is closed.
    fn pass(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(closed, |closed| *closed));
    }
}

/// What came of snapshots.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes that were taken in by the network.
    pub sent: AtomicU64,
    /// Bytes that were taken in and were here already.
    pub held: AtomicU64,
    /// Own ones that another replica refused and that were checked here.
    pub checked: AtomicU64,
    /// Bytes of own ones that were handed out.
    pub given: AtomicU64,
    /// Own ones that were made for others.
    pub pinned: AtomicU64,
    /// Those of others that became the state here.
    pub installed: AtomicU64,
}

/// What a replica counts of itself, since it runs here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Commands proposed.
    pub proposals: AtomicU64,
    /// Elections begun.
    pub campaigns: AtomicU64,
    /// Elections won.
    pub leaderships: AtomicU64,
    /// Times that it was quarantined.
    pub quarantines: AtomicU64,
}

impl Counts {
    /// The role is another one than before, maybe. An election may be begun and won between two looks.
    pub fn note_role(&self, before: &str, now: &str) {
        if before == now {
            return;
        }
        if now == "candidate" || (now == "leader" && before != "candidate") {
            self.campaigns.fetch_add(1, Ordering::Relaxed);
        }
        if now == "leader" {
            self.leaderships.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What a replica's thread shares with the services.
#[derive(Debug)]
pub struct Shared<M: StateMachine> {
    /// The way in.
    pub mailbox: Arc<Mailbox<Input<M>>>,
    /// The state machine; none while the replica is in quarantine, takes in a snapshot, or has stopped. The lock is one that
    /// is handed on to those who wait: where merges are behind, its thread takes it again before a reader would be awake.
    pub machine: parking_lot::RwLock<Option<M>>,
    /// What readers pass before they take the state machine.
    pub gate: Gate,
    /// The last applied entry, for those who wait for one.
    pub applied: watch::Sender<u64>,
    /// How it does.
    pub status: RwLock<Status>,
    /// When a part of a pinned snapshot was last handed out, by the monotonic clock.
    pub fetched_ms: AtomicU64,
    /// What came of snapshots.
    pub traffic: Arc<Traffic>,
    /// What it counts of itself.
    pub counts: Counts,
    /// Where reads run.
    pub runner: Runner,
}

/// The way to a replica. Clones lead to the same one.
#[derive(Debug)]
pub struct ReplicaHandle<M: StateMachine> {
    /// Its group.
    pub group: GroupId,
    /// Its raft id.
    pub raft_id: u64,
    /// What its thread shares.
    pub shared: Arc<Shared<M>>,
}

impl<M: StateMachine> Clone for ReplicaHandle<M> {
    fn clone(&self) -> Self {
        Self { group: self.group, raft_id: self.raft_id, shared: Arc::clone(&self.shared) }
    }
}

impl<M: StateMachine> ReplicaHandle<M> {
    /// How the replica does.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has a state: not in quarantine, nor before its first snapshot.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // Otherwise it is being written to.
        self.shared.machine.try_read().is_none_or(|machine| machine.is_some())
    }

    /// Gives a message of another replica; it may be dropped.
    pub fn peer(&self, message: v1::PeerMessage, node: &str) {
        if self.shared.mailbox.put(Lane::Peers, Input::Peer(message, node.to_owned())).is_err() {
            tracing::trace!(group = %self.group, "a peer's message was dropped: the replica is behind");
        }
    }

    /// Asks something and waits for the answer.
    ///
    /// # Errors
    /// The refusal, or `UNAVAILABLE` if the replica has stopped or gives no answer in time: then the outcome is unknown.
    pub async fn ask<T>(&self, limit: Duration, input: impl FnOnce(Answer<T>) -> Input<M>) -> Result<T, Refusal> {
        let unavailable =
            |what: &str| Refusal::new(Reason::Unavailable, format!("the replica of {} {what}", self.group));
        let (answer, answered) = oneshot::channel();
        if self.shared.mailbox.put(Lane::Requests, input(answer)).is_err() {
            return Err(if self.shared.mailbox.is_closed() {
                unavailable("has stopped")
            } else {
                Refusal::new(Reason::ResourceExhausted, format!("too many requests wait for {}", self.group))
            });
        }
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(unavailable("stopped meanwhile")),
            Err(_) => Err(unavailable("gave no answer in time")),
        }
    }

    /// Replicates a command and gives its outcome, once a majority agrees on it.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn command(&self, command: Vec<u8>) -> Result<M::Reply, Refusal> {
        self.ask(COMMAND_TIMEOUT, |answer| Input::Command(command, answer, Context::current())).await
    }

    /// Waits until everything is applied that was committed when this was called, anywhere in the group.
    ///
    /// # Errors
    /// `UNAVAILABLE` if no leader confirms it in time.
    pub async fn read_index(&self) -> Result<(), Refusal> {
        let mut applied = self.shared.applied.subscribe();
        let index = self.ask(READ_TIMEOUT, Input::ReadIndex).await?;
        let reached = applied.wait_for(|&applied| applied >= index);
        match tokio::time::timeout(READ_TIMEOUT, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Refusal::new(Reason::Unavailable, format!("the replica of {} is behind", self.group))),
        }
    }

    /// Runs a read on the state machine, on a thread that may block.
    ///
    /// # Errors
    /// The read's refusal, or `UNAVAILABLE` if the replica does not serve.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&M) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let handle = self.clone();
        let done = self.shared.runner.blocking(move || handle.read_now(read)).await;
        done.unwrap_or_else(|| Err(Refusal::new(Reason::Internal, "the read failed")))
    }

    /// Runs a read on the state machine at once, on this thread.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_now<T>(&self, read: impl FnOnce(&M) -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.shared.gate.pass();
        let machine = self.shared.machine.read();
        let Some(machine) = machine.as_ref() else {
            let message = format!("the replica of {} does not serve: {}", self.group, self.status().note);
            return Err(Refusal::new(Reason::Unavailable, message));
        };
        let result = read(machine);
        if let Err(refusal) = &result
            && refusal.reason == Reason::Corrupted
        {
            let note = refusal.message.clone();
            // A full lane drops the news: the next read that meets the damage brings it again.
            let _ = self.shared.mailbox.put(Lane::Requests, Input::Damaged(note));
        }
        result
    }

    /// As [`read`](Self::read), but waits and tries again while the replica may just be behind.
    ///
    /// # Errors
    /// As [`read`](Self::read); the last refusal if waiting did not help.
    pub async fn read_when<T: Send + 'static>(
        &self,
        read: impl Fn(&M) -> Result<T, Refusal> + Send + Sync + 'static,
    ) -> Result<T, Refusal> {
        let read = Arc::new(read);
        let mut applied = self.shared.applied.subscribe();
        let deadline = tokio::time::sleep(READ_TIMEOUT);
        tokio::pin!(deadline);
        loop {
            applied.mark_unchanged();
            let attempt = Arc::clone(&read);
            match self.read(move |machine| attempt(machine)).await {
                Err(refusal) if refusal.may_pass() => tokio::select! {
                    biased;
                    () = &mut deadline => return Err(refusal),
                    changed = applied.changed() => if changed.is_err() { return Err(refusal) },
                },
                settled => return settled,
            }
        }
    }
}
