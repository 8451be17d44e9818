//! The network between simulated processes. It carries calls straight into a process's services, or
//! loses them on the way.
//!
//! A call may be late or lost, or its answer may be lost. A call between the cluster's own
//! processes may also arrive twice, as if the caller had sent it again. Links are cut in one
//! direction or both. Raft messages are lost, delayed, doubled and overtaken one by one; other
//! streams stay in order and whole until they break. Everything follows from the seed, and
//! everything is in the trace.
//!
//! The network also reads the messages between replicas: two different digests of one entry are a
//! finding at once.

mod body;
mod link;
mod medium;

pub use self::medium::{Ambush, KINDS, Net, Weather};
