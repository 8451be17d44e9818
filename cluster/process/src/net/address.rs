//! Addresses of the form `HOST:PORT`.

use std::io;

use tonic::transport::Uri;

pub(super) fn uri(address: &str) -> io::Result<Uri> {
    let wrong = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
    check_address(address).map_err(wrong)?;
    format!("http://{address}").parse().map_err(|error| wrong(format!("{address}: {error}")))
}

/// The host of an address, as certificates name it.
pub(super) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Checks that an address is `HOST:PORT`.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_address(address: &str) -> Result<(), String> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    match parts.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) if port > 0 => Ok(()),
        _ => Err(format!("{address:?} is not HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["localhost:1", "127.0.0.1:65535", "[::1]:80", "node-1.nodes:7400"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
            assert!(uri(good).is_ok(), "{good}");
        }
        assert_eq!([host("[::1]:80"), host("node-1.nodes:7400")], ["::1", "node-1.nodes"]);
        for bad in ["", ":1", "localhost", "localhost:0", "localhost:65536", "http://localhost:1", "a:b"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
