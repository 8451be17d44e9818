//! gRPC servers, with the limits that all processes share.

use coppice_proto::telemetry::Served;
use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

use super::{
    calls::Bounded,
    front::Front,
    socket::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, WINDOW_BYTES},
};

/// Most bytes in the headers of a request.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// Most streams of a connection that its peer has reset before they were looked at, and most that
/// this end has reset for errors. A connection with more is closed.
const RESETS_PENDING_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 256;
/// Most calls in progress on one connection. A client that obeys HTTP/2 holds back more; any other
/// client has them refused.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;

/// A server behind a front, and behind another layer before that.
pub type Fronted<L> = Server<Stack<Bounded, Stack<Served, Stack<L, Identity>>>>;

impl Front {
    /// A gRPC server behind this front.
    #[must_use]
    pub fn server(&self) -> Fronted<Identity> {
        self.server_behind(Identity::new())
    }

    /// Like [`Front::server`], with another layer before the front.
    #[must_use]
    pub fn server_behind<L>(&self, outer: L) -> Fronted<L> {
        Server::builder()
            .layer(outer)
            .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
            .concurrency_limit_per_connection(CALLS_PER_CONNECTION_MAX as usize)
            .load_shed(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(2 * WINDOW_BYTES)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
            .http2_max_local_error_reset_streams(Some(ERROR_RESETS_MAX))
            .layer(self.served.clone())
            .layer(self.bounded.clone())
    }
}

/// A gRPC server with the limits that all processes share. It measures and traces its calls. Must
/// be called within a tokio runtime.
#[must_use]
pub fn server() -> Fronted<Identity> {
    Front::new().server()
}
