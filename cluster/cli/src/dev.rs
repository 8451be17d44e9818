//! `coppice dev`: a whole cluster in one process.
//!
//! [`Cluster`] connects nodes, each with one replica of every group, by in-memory pipes, and puts a
//! coordinator on a TCP port, which calls the nodes without a connection. Its handle stops, starts,
//! wipes and replaces replicas, for tests. [`home`] keeps the data directory, [`serve`] is the
//! command.

mod cluster;
pub mod home;
mod listener;
pub mod serve;
pub mod shape;

pub use cluster::{Cluster, Options};
pub use listener::Listener;
