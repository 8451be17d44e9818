//! Endpoints: where a coordinator listens, and the channel to it.

use std::time::Duration;

use coppice_proto::{Channel, live::Live, secure, v1::ledger_client::LedgerClient};
use tonic::transport::Endpoint;

use crate::{
    Error,
    bounds::{ANSWER_BYTES_MAX, bounded},
    tls::{self, CONNECT_TIMEOUT, Expected},
};

/// The pause between probes of a connection with open calls, and the longest wait for the answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one answer that are received before the caller reads them.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// The largest window of HTTP/2: an unread stream must not block other calls on its connection.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// The settings of TLS connections, and the peer to expect.
pub(crate) type Secure = (Live<secure::Client>, Expected);

/// Parses an endpoint. Returns its settings without those of TLS, and its full address.
fn parse(endpoint: &str, has_tls: bool) -> Result<(Endpoint, String), String> {
    let address = match (endpoint.split_once("://"), has_tls) {
        (None, false) => format!("http://{endpoint}"),
        (None, true) => format!("https://{endpoint}"),
        (Some(("http", _)), false) | (Some(("https", _)), true) => endpoint.to_owned(),
        (Some(("http", _)), true) => {
            return Err("with a CA, the endpoint must be https://HOST:PORT".to_owned());
        }
        (Some(("https", _)), false) => return Err("https:// needs the server's CA".to_owned()),
        (Some(_), _) => return Err("only http:// and https:// are supported; use http://HOST:PORT".to_owned()),
    };
    let mut parsed = Endpoint::from_shared(address.clone()).map_err(|error| error.to_string())?;
    if parsed.uri().port_u16().is_none() {
        return Err("it has no port; use http://HOST:PORT".to_owned());
    }
    if let Some(place) = address.strip_prefix("https://") {
        // The connector does TLS itself, so the transport sees a plain connection.
        let origin = parsed.uri().clone();
        let plain = Endpoint::from_shared(format!("http://{place}")).map_err(|error| error.to_string())?;
        parsed = plain.origin(origin);
    }
    Ok((parsed, address))
}

pub(crate) fn ledger_over(channel: Channel) -> LedgerClient<Channel> {
    LedgerClient::new(bounded(channel))
        .max_decoding_message_size(ANSWER_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX)
}

/// The full address of an endpoint, and a channel that connects with its first call.
pub(crate) fn open(endpoint: &str, tls: Option<&Secure>) -> Result<(String, Channel), Error> {
    let refuse = |message| Error::Endpoint { endpoint: endpoint.to_owned(), message };
    let (parsed, address) = parse(endpoint, tls.is_some()).map_err(refuse)?;
    let parsed = parsed
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let channel = match tls {
        None => parsed.connect_timeout(CONNECT_TIMEOUT).connect_lazy().into(),
        Some((live, expected)) => tls::channel(parsed, live.clone(), expected.clone()),
    };
    Ok((address, channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_gets_the_scheme_that_tls_asks_for() {
        let address = |endpoint, has_tls| parse(endpoint, has_tls).map(|(_, address)| address);
        assert_eq!(address("host:1", false).as_deref(), Ok("http://host:1"));
        assert_eq!(address("host:1", true).as_deref(), Ok("https://host:1"));
        assert_eq!(address("https://host:1", true).as_deref(), Ok("https://host:1"));
        for (endpoint, has_tls) in
            [("http://host:1", true), ("https://host:1", false), ("ftp://host:1", false), ("host", false), ("", true)]
        {
            assert!(parse(endpoint, has_tls).is_err(), "{endpoint} {has_tls}");
        }
    }

    #[test]
    fn the_transport_sees_a_plain_connection_whose_requests_name_https() {
        let (endpoint, _) = parse("host:1", true).expect("an endpoint");
        assert_eq!(endpoint.uri().scheme_str(), Some("http"));
    }
}
