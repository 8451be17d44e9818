//! The gRPC services of a node, one file for each; `scan` makes the pages of the `Shard` service's
//! scans.

mod node;
mod peer;
mod root;
mod scan;
mod shard;
#[cfg(test)]
mod tests;

pub use node::NodeService;
pub use peer::PeerService;
pub use root::RootService;
pub use shard::ShardService;
