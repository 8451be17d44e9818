//! The network between simulated processes: carries calls straight into a process's services, or loses them on the way.
//!
//! A call may be late, lost, or answered in vain (the answer is lost); a call between the cluster's own processes may also arrive twice,
//! as if the caller had sent it again. Links are cut in one direction or both. Raft's messages are lost, delayed, doubled and overtaken one
//! by one; other streams stay in order and whole until they break. Everything follows from the seed, and everything is in the trace.
//!
//! The network also sees what replicas tell each other: two that computed different digests from one entry are wrong at once.

mod body;
mod link;
mod medium;

pub use self::medium::{Ambush, KINDS, Net, Weather};
