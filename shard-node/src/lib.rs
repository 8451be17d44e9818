//! A node of the cluster: hosts replicas, each a raft group joined with a state machine, behind gRPC.
//!
//! A node serves `Peer`, `Shard`, `Root` and `Node` of `proto/coppice/v1/node.proto` for all its replicas over any connections, see
//! [`Connector`] and [`Node::start`]. Each replica is driven by one thread or task ([`replica`]); a shard's state machine is the engine with the protocol's
//! state ([`shard`]), the root group's is `coppice_root` ([`root`]). Reads run beside it, on the same state machine.
//!
//! **Invariants.** State machines and raft are synchronous and know nothing of tokio. Every queue is bounded, see [`limits`]. Nothing
//! is answered before a majority of voters has it on disk and agrees on its outcome. An error stops or quarantines one replica; a
//! broken invariant stops the process.

mod convert;
mod error;
pub mod fsck;
mod hosted;
pub mod limits;
mod net;
pub mod node;
pub mod process;
mod refusal;
pub mod replica;
pub mod root;
mod service;
pub mod shard;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use hosted::{Hosted, Replica, ordinal, raft_id};
pub use net::{Connector, DuplexNet, Incoming, Pipe, endpoint};
pub use node::{Handle, Node, Options, ReplicaOptions};
pub use refusal::Refusal;
pub use replica::{Bootstrap, Tuning, home, runner::Runner};
