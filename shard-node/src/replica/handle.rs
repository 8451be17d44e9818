//! The handle of a running replica: commands, reads and questions, with their time limits.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use coppice_types::{GroupId, RaftId, Reason};
use opentelemetry::Context;
use tokio::sync::oneshot;

use super::{
    input::{Answer, Input},
    machine::StateMachine,
    mailbox::Lane,
    runner::Runner,
    shared::Shared,
    status::Status,
};
use crate::refusal::Refusal;

/// How long a command's outcome is awaited.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a read waits for the state that it names, or for a read index.
pub const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle of a replica. All clones refer to the same one.
#[derive(Debug)]
pub struct ReplicaHandle<M: StateMachine> {
    pub group: GroupId,
    pub raft_id: RaftId,
    /// The state that the replica's thread shares.
    pub shared: Arc<Shared<M>>,
}

impl<M: StateMachine> Clone for ReplicaHandle<M> {
    fn clone(&self) -> Self {
        Self { group: self.group, raft_id: self.raft_id, shared: Arc::clone(&self.shared) }
    }
}

impl<M: StateMachine> ReplicaHandle<M> {
    /// The replica's current status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Erasures by versions with numbers up to this one have no copies outside of the state.
    #[must_use]
    pub fn cleared(&self) -> u64 {
        self.shared.cleared.load(Ordering::Relaxed)
    }

    /// Whether the replica has a state: it is not quarantined, and does not wait for a first
    /// snapshot.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // A locked state machine is being written to, so it exists.
        self.shared.machine.try_read().is_none_or(|machine| machine.is_some())
    }

    /// Asks a question and waits for the answer.
    ///
    /// # Errors
    /// The replica's refusal. `UNAVAILABLE` if the replica has stopped or does not answer in time;
    /// then the outcome is unknown.
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

    /// Replicates a command and returns its outcome once a majority agrees on it.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask).
    pub async fn command(&self, command: Vec<u8>) -> Result<M::Reply, Refusal> {
        self.ask(COMMAND_TIMEOUT, |answer| Input::Command(command, answer, Context::current())).await
    }

    /// Waits until this replica has applied every entry that was committed, anywhere in the group,
    /// before the call.
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

    /// Runs a read of what is in memory: on the calling thread, unless it would wait for the
    /// replica's thread.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub async fn read_memory<T: Send + 'static>(
        &self,
        read: impl FnOnce(&M) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if matches!(self.shared.runner, Runner::Threads)
            && self.shared.gate.is_open()
            && let Some(machine) = self.shared.machine.try_read()
        {
            return self.read_of(machine.as_ref(), read);
        }
        self.read(read).await
    }

    /// Runs a read on the state machine at once, on the calling thread.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_now<T>(&self, read: impl FnOnce(&M) -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.shared.gate.pass();
        let machine = self.shared.machine.read();
        self.read_of(machine.as_ref(), read)
    }

    fn read_of<T>(&self, machine: Option<&M>, read: impl FnOnce(&M) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let Some(machine) = machine else {
            let message = format!("the replica of {} does not serve: {}", self.group, self.status().note);
            return Err(Refusal::new(Reason::Unavailable, message));
        };
        let result = read(machine);
        if let Err(refusal) = &result
            && refusal.reason == Reason::Corrupted
        {
            let note = refusal.message.clone();
            // If the lane is full, the report is dropped. The next read of the damaged bytes
            // repeats it.
            let _ = self.shared.mailbox.put(Lane::Requests, Input::Damaged(note));
        }
        result
    }

    /// Like [`read`](Self::read), but waits and tries again while the replica may only be behind.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), or the last refusal if waiting did not help.
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

#[cfg(test)]
mod tests;
