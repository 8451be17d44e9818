//! One replica: a raft group joined with a state machine. A thread drives it step by step, or a
//! task in a simulation.
//!
//! ```text
//!  handle, any: the way in for services      start: opens the directory, drives the actor
//!      │                                                │
//!      ▼                                                ▼
//!  shared: mailbox, status, state machine  ◄──────  actor: inputs, raft, apply, compare, answer
//!                                                       │
//!             flushing, snapshots (fetch), fitness, cold, waiters, agreement: the actor's parts
//!                                                       │
//!             machine, maintain: the state machine      home: the directory      site: the node
//! ```
//!
//! **Order of durability**, for every entry: raft's log is synced; the entry is committed, then
//! applied in memory; its outcome is reported to the other replicas; the proposer is answered once
//! a majority of voters reported the same outcome. Now and then the state machine is flushed, and
//! only then is the raft log cut, never beyond the entries that the older superblock needs.
//! Recovery opens the state machine at its last flush and lets raft deliver the following entries,
//! through the same function.
//!
//! A crash between any two steps loses nothing that was answered: an answer needs the fsync of a
//! majority.
//!
//! A replica is *quarantined* if its outcome is in the minority or its bytes are damaged: raft
//! notes it durably, the state machine is closed and kept as evidence, and a snapshot is requested
//! until one is installed. Meanwhile the replica still votes and keeps its log.

mod actor;
pub mod agreement;
mod any;
mod cold;
mod config;
mod durations;
mod fetch;
mod fitness;
mod flushing;
mod handle;
pub mod home;
mod input;
pub mod machine;
pub mod mailbox;
pub mod maintain;
mod readers;
mod reserve;
mod rest;
pub mod runner;
mod shared;
pub(crate) mod site;
mod sleep;
mod snapshots;
mod start;
mod status;
#[cfg(test)]
pub(crate) mod tests;
mod trace;
mod tuning;
mod waiters;

pub use any::AnyReplica;
pub use config::{Bootstrap, Config};
pub use durations::{Durations, group_label};
pub use handle::{COMMAND_TIMEOUT, READ_TIMEOUT, ReplicaHandle};
pub use input::{Answer, Change, Input};
pub use reserve::Reserve;
pub use shared::{Counts, Shared, Traffic};
pub use site::Site;
pub use sleep::{BEAT_TICKS, SILENT_TICKS, Sleepers};
pub use start::{Work, start};
pub use status::{Member, Role, Status};
pub use tuning::Tuning;
