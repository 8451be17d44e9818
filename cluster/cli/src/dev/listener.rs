//! Addresses that are bound before anything else is done, so that an unavailable one leaves no
//! trace.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::net::TcpListener;

use crate::failure::{Code, Failure};

/// The default port of a development cluster.
pub const DEFAULT_PORT: u16 = 7401;

/// A bound address.
#[derive(Debug)]
pub struct Listener(std::net::TcpListener);

impl Listener {
    /// Binds the address that an option names.
    pub fn bind(address: SocketAddr, option: &str) -> Result<Self, Failure> {
        std::net::TcpListener::bind(address).map(Self).map_err(|error| refused(address, option, &error))
    }

    /// Binds the default port, or a free one if it is taken. Returns whether it was taken.
    pub fn bind_default() -> Result<(Self, bool), Failure> {
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match std::net::TcpListener::bind(address(DEFAULT_PORT)) {
            Ok(listener) => Ok((Self(listener), false)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok((Self::bind(address(0), "--listen")?, true)),
            Err(error) => Err(refused(address(DEFAULT_PORT), "--listen", &error)),
        }
    }

    /// Starts to listen. Must be called within a tokio runtime.
    pub(crate) fn open(self) -> Result<(TcpListener, SocketAddr), Failure> {
        let open = || {
            self.0.set_nonblocking(true)?;
            let listener = TcpListener::from_std(self.0)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        open().map_err(|error: io::Error| Failure::new(Code::Unavailable, error.to_string()))
    }
}

fn refused(address: SocketAddr, option: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot listen on {address}: {error}"))
        .hint(format!("{option} takes another address; port 0 a free port."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_port_that_is_taken_is_replaced_and_a_chosen_one_is_not() {
        // If this test does not get the default port, another process has it: it is taken in any
        // case.
        let (_first, _) = Listener::bind_default().expect("a port");
        let (second, moved) = Listener::bind_default().expect("a port");
        assert!(moved);
        let address = second.0.local_addr().expect("it is bound");
        let failure = Listener::bind(address, "--listen").expect_err("it is taken");
        assert!(failure.code == Code::Usage && failure.hint.is_some_and(|hint| hint.contains("--listen")));
    }
}
