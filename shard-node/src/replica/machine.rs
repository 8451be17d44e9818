//! What a replica drives: a synchronous, deterministic state machine with durable state of its own.

use std::{fmt::Debug, sync::Arc};

use bytes::Bytes;
use coppice_env::Storage;
use coppice_proto::v1;
use coppice_types::Digest;
use parking_lot::RwLock;

pub use coppice_consensus::Position;

use crate::{Error, refusal::Refusal, replica::agreement::Voters};

/// Looks at every byte that counts: `Corrupted` is damage, any other error says nothing of the bytes.
pub type Check = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// What applying one entry gave.
#[derive(Debug)]
pub struct Applied<R> {
    /// What the replicas compare.
    pub digest: Digest,
    /// What the proposer is told.
    pub reply: R,
}

/// A pinned physical copy of the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Names the pin.
    pub id: u64,
    /// The state is that after this entry.
    pub position: Position,
    /// What a receiver needs to know, opaque here.
    pub manifest: Vec<u8>,
}

/// How far a state machine is with what it writes beside everything else: ahead of its next flush, or for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// There is little to write: a flush may begin.
    Idle,
    /// [`StateMachine::write_on`] has something to begin or to end.
    Due,
    /// Something goes on that a flush would wait for, or undo.
    Busy,
}

/// Background work of a state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backlog {
    /// There is none.
    None,
    /// Another thread is at what is left.
    Waiting,
    /// It can wait until nothing else is to be done.
    Some,
    /// It must not wait any longer.
    Behind,
}

/// The state machine of one group.
///
/// Its state is a function of the entries applied. What is durable is the state after the entry at `durable`; it can fall back
/// to the state after `log_floor`, so the raft log is kept from there.
pub trait StateMachine: Send + Sync + Debug + Sized + 'static {
    /// What a proposer is told.
    type Reply: Send + Debug + 'static;
    /// What opening needs beside the directory.
    type Config: Clone + Debug + Send + Sync + 'static;
    /// Takes in a copy of another replica's state.
    type Receiver: Receiver;

    /// Opens the state in `storage`, or makes a new one there.
    ///
    /// # Errors
    /// If the state is damaged, or of another group.
    fn open(storage: Arc<dyn Storage>, config: &Self::Config) -> Result<Self, Error>;

    /// Does what applying an entry would take, while the raft log writes it: it may never be durable, nor committed. The outcomes of
    /// whatever is applied next, and what a flush makes durable, are the same as without it.
    fn foresee(&mut self, index: u64, command: &Bytes) {
        let _ = (index, command);
    }

    /// Applies a committed entry.
    ///
    /// # Errors
    /// If this replica cannot do what the others do: it stops.
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Applied<Self::Reply>, Error>;

    /// The entry up to which the state is durable.
    fn durable(&self) -> Position;

    /// The entry after which the raft log must be kept.
    fn log_floor(&self) -> Position;

    /// How much would be written by a flush, in bytes.
    fn unflushed_bytes(&self) -> u64;

    /// What background work may add to that at once, in bytes.
    fn work_bytes_max(&self) -> u64 {
        0
    }

    /// Whether a flush would free so much of the disk that it is due.
    fn much_waits(&self) -> bool {
        false
    }

    /// What is written now, or is to be.
    fn disk(&self, flush_due: bool) -> Disk {
        let _ = flush_due;
        Disk::Idle
    }

    /// Ends what was written beside everything else; then begins to write what the next flush would have to, if none is due.
    ///
    /// # Errors
    /// As [`flush`](Self::flush) if that was one; or if no thread can be had.
    fn write_on(&mut self, flush_due: bool) -> Result<(), Error> {
        let _ = flush_due;
        Ok(())
    }

    /// Begins to make the state of now durable, beside everything else where it can. [`StateMachine::write_on`], or the next flush, ends it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), also those of a flush that was begun before.
    fn begin_flush(&mut self, position: Position) -> Result<(), Error> {
        self.flush(position)
    }

    /// Makes the state after the entry at `position`, the last applied one, durable.
    ///
    /// # Errors
    /// If it may not be durable. On a full disk the state is intact and a later flush may succeed.
    fn flush(&mut self, position: Position) -> Result<(), Error>;

    /// What background work there is.
    fn backlog(&self) -> Backlog {
        Backlog::None
    }

    /// Does a bounded piece of background work.
    ///
    /// # Errors
    /// If the state cannot be read or written.
    fn work(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Reads and checks about so many bytes of what is durable, and goes on from there with the next call.
    ///
    /// # Errors
    /// If something is damaged, or cannot be read.
    fn scrub(&mut self, bytes: u64) -> Result<(), Error> {
        let _ = bytes;
        Ok(())
    }

    /// Whether [`StateMachine::move_cold`] has something to begin or to end.
    fn cold_due(&self) -> bool {
        false
    }

    /// Begins to move so many bytes that are old to a cheaper disk, beside everything else, and ends what was begun.
    ///
    /// # Errors
    /// If that failed. Nothing is lost, and a later call tries again.
    fn move_cold(&mut self, bytes: u64) -> Result<(), Error> {
        let _ = bytes;
        Ok(())
    }

    /// Pins a copy of the state at `position`, the last applied entry, which is made durable first.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error>;

    /// Bytes of a pinned copy's file; none at its end.
    ///
    /// # Errors
    /// If there is no such pin or file, or it cannot be read.
    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error>;

    /// What checks a pinned copy as its receiver does. It runs beside the state machine, and the pin must stay until then.
    ///
    /// # Errors
    /// If there is no such pin.
    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error>;

    /// Ends a pin.
    fn unpin_snapshot(&mut self, id: u64);

    /// Starts taking in the copy that a manifest describes. The directory is empty, or has parts of this or another copy.
    ///
    /// # Errors
    /// If the manifest cannot be read, or the directory holds something else.
    fn receive(storage: Arc<dyn Storage>, config: &Self::Config, manifest: &[u8]) -> Result<Self::Receiver, Error>;

    /// The id of the pin and the position that a manifest names.
    ///
    /// # Errors
    /// If the manifest cannot be read.
    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error>;

    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;

    /// Whether a command adds to the state: refused while the disk is full.
    #[must_use]
    fn grows(command: &[u8]) -> bool {
        let _ = command;
        true
    }

    /// Whether a command may be proposed now. Asked on the leader, by what it has applied: a bound, not a rule.
    ///
    /// # Errors
    /// If a bounded resource is used up.
    fn admit(&self, command: &[u8]) -> Result<(), Refusal> {
        let _ = command;
        Ok(())
    }

    /// What this replica tells the others about the merges that it has built; nothing if it builds none.
    fn built(&self) -> Vec<v1::Merge> {
        Vec::new()
    }

    /// Notes which merges another replica has built.
    fn note_built(&mut self, from: u64, built: &[v1::Merge]) {
        let _ = (from, built);
    }

    /// Completes a reply with what depends on the other replicas and not on the entries applied.
    fn complete(&self, reply: &mut Self::Reply, own_id: u64, voters: &Voters) {
        let _ = (reply, own_id, voters);
    }
}

/// Looks ahead at commands that are being written, unless a reader is in the way.
pub(crate) fn foresee<M: StateMachine>(machine: &RwLock<Option<M>>, commands: &[(u64, Bytes)]) {
    if let Some(machine) = machine.try_write().as_deref_mut().and_then(Option::as_mut) {
        commands.iter().for_each(|(index, command)| machine.foresee(*index, command));
    }
}

/// Does background work while there is as much as that, for as long as something else goes on and no reader is in the way.
pub(crate) fn catch_up<M: StateMachine>(
    machine: &RwLock<Option<M>>,
    least: Backlog,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Error> {
    while goes_on() {
        let Some(mut guard) = machine.try_write() else { break };
        match guard.as_mut() {
            Some(machine) if machine.backlog() >= least => machine.work()?,
            _ => break,
        }
    }
    Ok(())
}

/// Takes in the files of a copy.
pub trait Receiver: Send + 'static {
    /// The file and offset to fetch next; `None` when all is here.
    fn next(&self) -> Option<(String, u64)>;

    /// Up to `len` bytes that an earlier transfer left at a place. They are this copy's only if the sender has the same there.
    ///
    /// # Errors
    /// If they cannot be read.
    fn held(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error>;

    /// Takes the bytes at that place.
    ///
    /// # Errors
    /// If they cannot be written, or are not what the manifest says.
    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the copy durable and checks every hash of it. Only then may it be opened.
    ///
    /// # Errors
    /// If a hash is wrong, or something is missing.
    fn finish(self) -> Result<(), Error>;
}
