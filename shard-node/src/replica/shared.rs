//! The state that a replica's thread shares with the services: mailbox, state machine, status,
//! counters.
//!
//! Readers share the state machine under a lock, and the replica's thread alone writes to it. The
//! [`Gate`] in front of the lock lets the thread through, even if there are always readers.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use coppice_env::watch;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::{
    input::Input,
    machine::StateMachine,
    mailbox::Mailbox,
    runner::Runner,
    status::{Role, Status},
};

/// While the gate is closed, new readers wait, so that the writer gets its turn.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Whether a reader was in the writer's way since the last call of [`Gate::take_blocked`].
    blocked: AtomicBool,
}

impl Gate {
    fn set(&self, closed: bool) {
        let mut now = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *now && !closed {
            self.opened.notify_all();
        }
        *now = closed;
    }

    /// Makes new readers wait.
    pub fn close(&self) {
        self.set(true);
    }

    /// Lets readers pass again.
    pub fn open(&self) {
        self.set(false);
    }

    /// Waits while the gate is closed.
    pub fn pass(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(closed, |closed| *closed));
    }

    /// Whether readers may pass now.
    pub fn is_open(&self) -> bool {
        !*self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a reader was in the writer's way.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether a reader was in the writer's way. Resets the flag.
    pub fn take_blocked(&self) -> bool {
        self.blocked.swap(false, Ordering::Relaxed)
    }
}

/// Counters of snapshots.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes that were received over the network.
    pub sent: AtomicU64,
    /// Bytes that were needed and on the disk already.
    pub held: AtomicU64,
    /// Snapshots of this replica that another one refused and that were checked here.
    pub checked: AtomicU64,
    /// Bytes of this replica's snapshots that were handed out.
    pub given: AtomicU64,
    /// Snapshots of this replica that were made for others.
    pub pinned: AtomicU64,
    /// Snapshots of others that became this replica's state.
    pub installed: AtomicU64,
}

/// Counters of a replica since it was started here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Commands proposed.
    pub proposals: AtomicU64,
    /// Elections begun.
    pub campaigns: AtomicU64,
    /// Elections won.
    pub leaderships: AtomicU64,
    /// Times that the replica was quarantined.
    pub quarantines: AtomicU64,
}

impl Counts {
    /// Counts the elections that a change of role shows. An election may begin and be won between
    /// two calls.
    pub fn note_role(&self, before: Role, now: Role) {
        if before == now {
            return;
        }
        if now == Role::Candidate || (now == Role::Leader && before != Role::Candidate) {
            self.campaigns.fetch_add(1, Ordering::Relaxed);
        }
        if now == Role::Leader {
            self.leaderships.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The state that a replica's thread shares with the services.
#[derive(Debug)]
pub struct Shared<M: StateMachine> {
    /// The queue of the thread's inputs.
    pub mailbox: Arc<Mailbox<Input<M>>>,
    /// The state machine; `None` while the replica is in quarantine, waits for a snapshot, or has
    /// stopped. The lock is eventually fair: if merges are behind, the thread would otherwise take
    /// the state machine again before a reader wakes up.
    pub machine: parking_lot::RwLock<Option<M>>,
    /// The gate that readers pass before they take the state machine.
    pub gate: Gate,
    /// The last applied entry, for readers that wait for one.
    pub applied: watch::Sender<u64>,
    pub status: RwLock<Status>,
    /// When a part of a pinned snapshot was last handed out, by the monotonic clock.
    pub fetched_ms: AtomicU64,
    /// Erasures by versions with numbers up to this one have no copies outside of the state.
    pub cleared: AtomicU64,
    pub traffic: Arc<Traffic>,
    pub counts: Counts,
    /// The threads that reads run on.
    pub runner: Runner,
}

/// Access of the replica's thread, the only writer.
impl<M: StateMachine> Shared<M> {
    /// Takes the state machine once all readers have left it. It is for rare work only, since the
    /// thread does nothing else meanwhile.
    pub(super) fn wait_for_machine(&self) -> RwLockWriteGuard<'_, Option<M>> {
        self.gate.close();
        let machine = self.machine.write();
        self.gate.open();
        machine
    }

    /// Takes the state machine, unless a reader has it. In that case no new readers are let in, and
    /// the thread tries again soon.
    pub(super) fn try_machine(&self) -> Option<RwLockWriteGuard<'_, Option<M>>> {
        match self.machine.try_write() {
            Some(machine) => {
                self.gate.open();
                Some(machine)
            }
            None => {
                self.gate.close();
                self.gate.blocked.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// The state machine, to read from. Only the calling thread writes, so this never waits.
    pub(super) fn read_machine(&self) -> RwLockReadGuard<'_, Option<M>> {
        self.machine.read()
    }

    /// Sets the status' note.
    pub(super) fn set_note(&self, note: impl Into<String>) {
        self.status.write().unwrap_or_else(PoisonError::into_inner).note = note.into();
    }
}

#[cfg(test)]
mod tests;
