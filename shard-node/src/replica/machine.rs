//! The state machine that a replica drives. It is synchronous and deterministic, and keeps its own
//! durable state.
//!
//! [`StateMachine`] has the operations of every group. [`Maintain`] has
//! those that only a shard needs: background work, concurrent writes, checks.

use std::{fmt::Debug, sync::Arc};

use bytes::Bytes;
use coppice_env::Storage;
use coppice_types::{Digest, RaftId};

pub use coppice_consensus::Position;

use super::{agreement::Voters, maintain::Maintain};
use crate::{Error, refusal::Refusal};

/// Checks every byte of a pinned copy. `Corrupted` means damage; any other error says nothing about
/// the bytes.
pub type Check = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// The outcome of applying one entry.
#[derive(Debug)]
pub struct Applied<R> {
    /// The digest that the replicas compare.
    pub digest: Digest,
    /// The reply to the proposer.
    pub reply: R,
}

/// A pinned physical copy of the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The pin's name.
    pub id: u64,
    /// The last entry that the state covers.
    pub position: Position,
    /// The data that a receiver needs; opaque here.
    pub manifest: Vec<u8>,
}

/// The state machine of one group.
///
/// Its state is a function of the entries applied. The state after the entry at `durable` is
/// durable. After a crash it may fall back to the state after `log_floor`, so the raft log is kept
/// from there.
pub trait StateMachine: Maintain + Send + Sync + Debug + Sized + 'static {
    /// The reply that a proposer gets.
    type Reply: Send + Debug + 'static;
    /// The settings that opening needs in addition to the directory.
    type Config: Clone + Debug + Send + Sync + 'static;
    /// Receives a copy of another replica's state.
    type Receiver: Receiver;

    /// Opens the state in `storage`, or makes a new one there.
    ///
    /// # Errors
    /// If the state is damaged, or of another group.
    fn open(storage: Arc<dyn Storage>, config: &Self::Config) -> Result<Self, Error>;

    /// Applies a committed entry.
    ///
    /// # Errors
    /// If this replica cannot apply an entry as the others do. It stops then.
    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Applied<Self::Reply>, Error>;

    /// The entry up to which the state is durable.
    fn durable(&self) -> Position;

    /// The entry after which the raft log must be kept.
    fn log_floor(&self) -> Position;

    /// How many bytes a flush would write.
    fn unflushed_bytes(&self) -> u64;

    /// Begins to make the present state durable, while other work continues where that is possible.
    /// [`Maintain::write_on`] or the next flush ends it.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush), including errors of a flush that was begun before.
    fn begin_flush(&mut self, position: Position) -> Result<(), Error>;

    /// Makes the state after the entry at `position`, the last applied one, durable.
    ///
    /// # Errors
    /// If it may not be durable. On a full disk the state is intact and a later flush may succeed.
    fn flush(&mut self, position: Position) -> Result<(), Error>;

    /// Pins a copy of the state at `position`, the last applied entry, which is made durable first.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error>;

    /// Bytes of a pinned copy's file. None are returned at the file's end.
    ///
    /// # Errors
    /// If there is no such pin or file, or it cannot be read.
    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error>;

    /// A job that checks a pinned copy as its receiver does. It runs concurrently with the state
    /// machine, and the pin must stay until it ends.
    ///
    /// # Errors
    /// If there is no such pin.
    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error>;

    /// Ends a pin.
    fn unpin_snapshot(&mut self, id: u64);

    /// Begins to receive the copy that a manifest describes. The directory is empty, or has parts
    /// of this or another copy.
    ///
    /// # Errors
    /// If the manifest cannot be read, or the directory holds something else.
    fn receive(storage: Arc<dyn Storage>, config: &Self::Config, manifest: &[u8]) -> Result<Self::Receiver, Error>;

    /// The pin's id and the position that a manifest names.
    ///
    /// # Errors
    /// If the manifest cannot be read.
    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error>;

    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;

    /// Whether a command adds to the state. Such commands are refused while the disk is full.
    #[must_use]
    fn grows(command: &[u8]) -> bool {
        let _ = command;
        true
    }

    /// Whether a command may be proposed now. The leader asks this of its applied state, so the
    /// answer is a bound on resources, not a rule of the protocol.
    ///
    /// # Errors
    /// If a bounded resource is used up.
    fn admit(&self, command: &[u8]) -> Result<(), Refusal> {
        let _ = command;
        Ok(())
    }

    /// Completes a reply with facts that depend on the other replicas and not on the entries
    /// applied.
    fn complete(&self, reply: &mut Self::Reply, own_id: RaftId, voters: &Voters) {
        let _ = (reply, own_id, voters);
    }
}

/// Receives the files of a copy.
pub trait Receiver: Send + 'static {
    /// The file and offset to fetch next; `None` when the copy is complete.
    fn next(&self) -> Option<(String, u64)>;

    /// Up to `len` bytes that an earlier transfer left at a place. They belong to this copy only if
    /// the sender has the same bytes there.
    ///
    /// # Errors
    /// If they cannot be read.
    fn held(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error>;

    /// Writes the bytes at that place.
    ///
    /// # Errors
    /// If they cannot be written, or are not what the manifest says.
    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the copy durable and checks every hash in it. Only then may it be opened.
    ///
    /// # Errors
    /// If a hash is wrong, or something is missing.
    fn finish(self) -> Result<(), Error>;
}
