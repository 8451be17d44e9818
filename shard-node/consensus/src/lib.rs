//! One replica of a raft group: a synchronous step (messages in; messages, entries and snapshots out) and its log.
//!
//! It knows no state machine, no network and no thread: the caller feeds [`Group::tick`], [`Group::step`] and
//! [`Group::propose`], calls [`Group::advance`], and does what the [`Output`] says. Time, randomness and files come from
//! `coppice-env`, so a run follows from its seed.
//!
//! Rules that hold whatever the caller and the network do:
//! - no message speaks of entries, terms or votes that are not durable, except a leader's own unsynced entries, which
//!   raft doesn't count before they are;
//! - a replica without its disk comes back under a new id ([`Group::create_empty`]), has no vote and grants none until
//!   it has been sent a snapshot;
//! - bytes of peers and of the disk never reach raft unchecked, and never make it panic.

mod change;
mod error;
mod group;
mod ids;
mod log;
mod logger;
mod message;
mod options;
mod output;
mod store;
mod width;

pub use change::Change;
pub use error::{Error, Result};
pub use group::Group;
pub use ids::{Membership, Position, RaftId};
pub use message::Message;
pub use options::Options;
pub use output::{
    Beside, Committed, Install, LogReport, Output, Payload, Peer, ReadId, ReadReady, Role, RoleChange, SnapshotOffer,
    Status, Writing,
};
