//! One replica: joins a raft group with a state machine, driven step by step by a thread, or by a task in a simulation.
//!
//! **Order of durability**, for every entry: raft's log is synced, the entry is committed, then applied in memory; its outcome is told
//! to the other replicas; the proposer is answered once a majority of voters told the same. Now and then the state machine is
//! flushed, and only then is the raft log cut, never beyond what the older superblock needs. Recovery opens the state machine
//! at its last flush and lets raft deliver what follows, through the same function.
//!
//! A crash between any two steps loses nothing that was answered: an answer needs the fsync of a majority.
//!
//! A replica that finds itself in the minority, or its bytes damaged, is *quarantined*: raft notes it durably, the state machine is
//! closed and kept as evidence, and a snapshot is asked for until one is installed. It goes on to vote and to keep its log.

mod actor;
pub mod agreement;
mod handle;
pub mod home;
pub mod machine;
pub mod mailbox;
pub mod runner;
mod start;
mod trace;
mod transfer;
mod waiters;

pub use handle::{
    Answer, COMMAND_TIMEOUT, Change, Input, Member, READ_TIMEOUT, ReplicaHandle, Shared, Status, Traffic,
};
pub use start::{Bootstrap, Config, Tuning, Work, start};
