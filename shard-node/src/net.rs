//! Connections between nodes: opening channels, the in-process network, and queues of messages to
//! other nodes.

pub mod connector;
mod duplex;
pub mod peers;

pub use connector::{Connector, endpoint};
pub use duplex::{DuplexNet, Incoming, Pipe};
