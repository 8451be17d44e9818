//! One replica of a raft group: a synchronous step and the durable log behind it. Messages go in;
//! messages, entries and snapshots come out.
//!
//! The crate has no state machine, network or threads. The caller feeds [`Group::tick`],
//! [`Group::step`] and [`Group::propose`], calls [`Group::advance`], and handles the [`Output`].
//! Time, randomness and files come from `coppice-env`, so a run is determined by its seed.
//!
//! ```text
//!   group                     raft, and the order of durability
//!   store                     the log as raft reads it
//!   message  change  options  encodings, settings
//!   log                       the durable log
//!   ids  output  error        values
//! ```
//!
//! Rules that hold whatever the caller and the network do:
//! - A message speaks only of entries, terms and votes that are durable. The exception is a
//!   leader's own unsynced entries, which raft does not count before they are durable.
//! - A replica that lost its disk comes back under a new id ([`Group::create_empty`]). It has no
//!   vote and grants none until it has been sent a snapshot.
//! - Bytes from peers and from the disk are checked before raft sees them, and never make it panic.

// Values.
mod error;
mod ids;
mod logger;
mod output;
mod width;

// The log on disk, and the encodings of the messages between replicas.
mod change;
mod log;
mod message;
mod options;

// Raft on top of the log.
mod group;
mod store;

pub use change::Change;
pub use coppice_types::{Position, RaftId};
pub use error::{Error, Result};
pub use group::Group;
pub use ids::Membership;
pub use log::compact::{Cut, Garbage};
pub use message::{Heartbeat, Message};
pub use options::Options;
pub use output::{
    Beside, Committed, Install, LogReport, Output, Payload, Peer, ReadId, ReadReady, Role, RoleChange, SnapshotOffer,
    Status, Writing,
};
