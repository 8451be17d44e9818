//! A node of the cluster: hosts replicas, each a raft group joined with a state machine, behind
//! gRPC.
//!
//! A node serves `Peer`, `Shard`, `Root` and `Node` of `proto/coppice/v1/node.proto` for all its
//! replicas, over any connections (see [`Connector`] and [`Node::start`]). Its layers, from the
//! top; each imports only layers below it:
//!
//! ```text
//!   process                 the binary: settings, sockets, start and stop
//!      │
//!    node                   starts and stops replicas; forms and joins groups; health, metrics
//!      │
//!   service                 the gRPC services in front of the replicas
//!      │
//!   hosted                  the replicas of one node, and what the services share
//!      │
//!     pim                    proofs from memory modules that compute, for readers
//!    ┌─┴───┐
//!  shard  root              the state machines: engine and protocol rules; coppice_root
//!    └─┬───┘
//!   replica                 joins a raft group with a state machine; the replica's directory
//!      │
//!     net                   channels and queues to other nodes
//!      │
//!  limits, refusal, error   bounds; answers that say why a request was not carried out
//! ```
//!
//! Outside of the layers, `convert` maps messages of the API to types of the state machines and
//! back, and [`fsck`] checks a stopped node's directory.
//!
//! A thread or task drives each replica ([`replica`]). Reads run at the same time, on the same
//! state machine: a shard's ([`shard`]) or the root group's ([`root`]).
//!
//! **Invariants.** State machines and raft are synchronous and know nothing of tokio. Every queue
//! is bounded, see [`limits`]. No outcome is answered before a majority of voters has the entry on
//! disk and agrees on the outcome. An error stops or quarantines one replica; a broken invariant
//! stops the process.

mod error;
pub mod fsck;
mod hosted;
pub mod limits;
mod net;
pub mod node;
pub mod pim;
pub mod process;
mod refusal;
pub mod replica;
pub mod root;
mod service;
pub mod shard;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use hosted::{Hosted, Replica};
pub use net::{Connector, DuplexNet, Incoming, Pipe, endpoint};
pub use node::{Handle, Node, Options, ReplicaOptions};
pub use refusal::Refusal;
pub use replica::{Bootstrap, Role, Tuning, home, runner::Runner};
