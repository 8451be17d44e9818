//! The [`Connector`] seam: how channels to nodes are opened, and the settings that all of them
//! share.

use std::fmt;

use coppice_proto::Channel;
use tonic::transport::Endpoint;

use crate::limits::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, WINDOW_BYTES};

/// Opens channels to nodes by their names.
pub trait Connector: Send + Sync + fmt::Debug {
    /// A channel that connects when it is first used, and reconnects when its connection breaks.
    /// Each call of this function makes a new channel with its own connection.
    fn channel(&self, node: &str) -> Channel;
}

/// An endpoint with the options of every channel of the cluster.
#[must_use]
pub fn endpoint(node: &str) -> Endpoint {
    // Node names are not DNS names. The authority is only displayed, never resolved.
    Endpoint::from_static("http://coppice.invalid")
        .user_agent(format!("coppice/{node}"))
        .unwrap_or_else(|_| Endpoint::from_static("http://coppice.invalid"))
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .tcp_nodelay(true)
}
