//! Connections between processes: listening and connecting over TCP, plain or by TLS.
//!
//! Sockets send small messages at once. Keep-alives probe them, so that a vanished peer is noticed.
//! A connection is made at its first use, and again whenever it breaks, with the address and
//! certificates of that moment. Callers pause between their attempts.
//!
//! A caller in the same process needs no connection ([`Services`]). Its calls pass the same limits
//! and checks.
//!
//! The dialing end says which process it expects to answer. An address is only a hint at the place
//! of that process: with TLS, nothing is sent until the other end has shown that it is the expected
//! process.

mod address;
mod answers;
mod budget;
pub mod calls;
mod dial;
mod front;
mod http1;
mod incoming;
mod inside;
mod places;
mod requests;
mod server;
mod socket;

pub use self::{
    address::check_address,
    dial::{Dialer, Place},
    front::Front,
    http1::serve_http1,
    incoming::{Accepted, Both, incoming, incoming_both, incoming_within},
    inside::Services,
    server::{CALLS_PER_CONNECTION_MAX, Fronted, server},
    socket::listen,
};
pub use crate::{
    connection::Connection,
    peer::lines::{Bounds, GRPC, Used},
};
