//! A node's life: how it starts and stops its replicas, forms or joins their groups, and reports
//! its health.
//!
//! `handle` starts and stops. [`formation`] and [`membership`] extend [`Handle`], [`claim`] binds
//! the data directory, and `health` and `metrics` only read.
//! `beats` tells the other nodes which groups sleep here.

mod beats;
pub mod claim;
pub mod formation;
mod handle;
mod health;
pub mod membership;
mod metrics;
mod options;

pub use handle::{Handle, Node};
pub use options::{Options, ReplicaOptions};
