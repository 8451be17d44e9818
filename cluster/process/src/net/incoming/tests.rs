//! Connections whose peers say nothing, or stop halfway.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::StreamExt;
use tonic::{
    body::Body,
    codegen::http::Request,
    service::Routes,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tower::ServiceExt;

use super::*;
use crate::{access::AccessLog, net, tls::Tls};

/// A server on a free port that answers every call.
async fn serve(tls: Option<Acceptor>, bounds: Bounds) -> std::net::SocketAddr {
    let listener = net::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let routes = Routes::from(axum::Router::new().fallback(async || "answered"));
    tokio::spawn(net::server().add_routes(routes).serve_with_incoming(incoming_within(listener, tls, bounds)));
    address
}

async fn call(channel: &Channel) {
    let request = Request::post("/coppice.v1.Ledger/Get").body(Body::empty()).expect("a request");
    channel.clone().oneshot(request).await.expect("it is answered");
}

/// Reads until the peer closes.
async fn until_closed(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut bytes).await;
}

/// Makes the next frame, given the number of frames before it.
type Flood<'a> = Box<dyn Fn(u32) -> Vec<u8> + Send + 'a>;

#[tokio::test]
async fn hundreds_of_silent_connections_delay_nobodys_handshake() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host");
    let certificate = params.signed_by(&key, &authority).expect("a certificate").pem();
    for (name, text) in [("ca", authority.pem()), ("cert", certificate.clone()), ("key", key.serialize_pem())] {
        fs::write(dir.path().join(name), text).expect("a file can be written");
        // A key that others can read is refused.
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
    let path = |name: &str| dir.path().join(name);
    let tls = Tls { ca: path("ca"), cert: path("cert"), key: path("key"), withdrawn: None };
    let address = serve(Some(tls.acceptor(AccessLog::to_log()).expect("the files are whole")), GRPC).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        // The beginning of a handshake.
        stream.write_all(&[0x16, 3, 1]).await.expect("it is open");
        silent.push(stream);
    }
    let shown = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .identity(Identity::from_pem(certificate, key.serialize_pem()));
    let endpoint = Endpoint::from_shared(format!("https://localhost:{}", address.port())).expect("an address");
    let endpoint = endpoint.tls_config(shown).expect("the files are whole");
    // The silent connections are closed only after that time, so waiting for them would be too
    // late.
    let channel = timeout(HANDSHAKE_TIMEOUT, endpoint.connect()).await.expect("in time").expect("it connects");
    call(&channel).await;
    drop(silent);
}

#[tokio::test]
async fn a_silent_connection_is_closed_and_one_with_a_call_stays() {
    let bounds = Bounds { greeting_timeout: Duration::from_millis(50), ..GRPC };
    let address = serve(None, bounds).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
    call(&channel).await;
    let silent = TcpStream::connect(address).await.expect("it listens");
    let mut half = TcpStream::connect(address).await.expect("it listens");
    half.write_all(b"PRI * HTTP/2").await.expect("it is open");
    timeout(Duration::from_secs(30), async { tokio::join!(until_closed(silent), until_closed(half)) })
        .await
        .expect("both are closed");
    call(&channel).await;
}

#[tokio::test]
async fn the_first_bytes_tell_the_protocol_and_none_of_them_is_lost() {
    let listener = net::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let mut both = incoming_both(listener, None);
    for (sent, is_http1) in [
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false),
        ("PUT /v1/records/k HTTP/1.1\r\n", true),
        ("PROPFIND / HTTP/1.1\r\n\r\n", true),
        ("GET /v1/head HTTP/1.1\r\n\r\n", true),
        ("\u{16}\u{3}\u{1} a handshake of TLS", true),
    ] {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        for byte in sent.as_bytes() {
            client.write_all(&[*byte]).await.expect("it is open");
            tokio::task::yield_now().await;
        }
        let taken = if is_http1 { both.http1.next().await } else { both.grpc.next().await };
        let mut taken = taken.expect("there is one").expect("it was taken");
        let mut read = vec![0; sent.len()];
        taken.read_exact(&mut read).await.expect("all of it arrives");
        assert_eq!(read, sent.as_bytes());
    }
    // A connection that says too little is nobody's, and ends.
    let mut silent = TcpStream::connect(address).await.expect("it listens");
    silent.write_all(b"PR").await.expect("it is open");
    timeout(2 * GRPC.greeting_timeout, until_closed(silent)).await.expect("it is closed");
}

#[tokio::test]
async fn the_newest_connection_is_taken_and_the_oldest_silent_one_closed() {
    let bounds = Bounds { connections_max: 8, caller_max: 8, silent_max: 4, ..GRPC };
    let address = serve(None, bounds).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        call(&channel).await;
    }
    let oldest = silent.remove(0);
    timeout(GRPC.greeting_timeout / 2, until_closed(oldest)).await.expect("it went for the others");
}

#[tokio::test]
async fn a_connection_that_reads_nothing_is_closed() {
    let bounds = Bounds { write_timeout: Duration::from_millis(50), greeting_bytes: 1, ..GRPC };
    let listener = net::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let mut connections = incoming_within(listener, None, bounds);
    let mut client = TcpStream::connect(address).await.expect("it listens");
    client.write_all(b"x").await.expect("it is open");
    let mut served = connections.next().await.expect("there is one").expect("it was taken");
    served.read_u8().await.expect("it said something");
    let error = timeout(Duration::from_secs(30), async {
        loop {
            if let Err(error) = served.write_all(&[0; 64 << 10]).await {
                break error;
            }
        }
    });
    assert_eq!(error.await.expect("in time").kind(), io::ErrorKind::TimedOut);
    drop(client);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, in HPACK without its tables.
fn headers() -> Vec<u8> {
    let path = b"/coppice.v1.Ledger/Get";
    let length = [u8::try_from(path.len()).expect("it is short")];
    [&[0x83, 0x86, 0x04][..], &length, path, &[0x01, 0x01, b'a']].concat()
}

#[tokio::test]
async fn a_flood_ends_its_connection_and_delays_nobody() {
    const HEADERS: u8 = 1;
    let bounds = Bounds { write_timeout: Duration::from_millis(500), ..GRPC };
    let address = serve(None, bounds).await;
    let good = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
    let opened = |count: u32| 2 * count + 1;
    let reset = move |count: u32| {
        [frame(HEADERS, 0x4, opened(count), &headers()), frame(3, 0, opened(count), &[0, 0, 0, 8])].concat()
    };
    let continued = |count: u32| match count {
        0 => frame(HEADERS, 0, 1, &headers()),
        // A long value of a header that never ends.
        _ => frame(9, 0, 1, &[&[0x00, 0x01, b'x', 0x7f, 0x81, 0x7e][..], &[b'y'; 16_000]].concat()),
    };
    let unfinished = |count: u32| frame(HEADERS, 0x4, opened(count), &headers());
    let floods: [(&str, Flood); 5] = [
        ("resets", Box::new(reset)),
        ("continuations", Box::new(continued)),
        ("settings", Box::new(|_| frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]))),
        ("pings", Box::new(|_| frame(6, 0, 0, &[7; 8]))),
        ("calls without an end", Box::new(unfinished)),
    ];
    for (what, next) in floods {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it is open");
        stream.write_all(&frame(4, 0, 0, &[])).await.expect("it is open");
        let flood = async {
            // The answers of the server are not read.
            for count in 0.. {
                if stream.write_all(&next(count)).await.is_err() {
                    return;
                }
                if count % 64 == 0 {
                    timeout(HANDSHAKE_TIMEOUT, call(&good)).await.expect("others go on");
                }
            }
        };
        timeout(Duration::from_secs(60), flood).await.unwrap_or_else(|_| panic!("{what} go on for ever"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_pauses_ever_longer_without_descriptors_and_not_at_all_after_a_broken_connection() {
    let raw = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
    let fresh = Backoff::new(ACCEPT_PAUSE_MIN, ACCEPT_PAUSE_MAX);
    let mut backoff = fresh;
    let began = tokio::time::Instant::now();
    for _ in 0..100 {
        rest_after(&raw(Errno::CONNABORTED), &mut backoff).await;
    }
    assert_eq!((backoff, began.elapsed()), (fresh, Duration::ZERO));
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::MFILE] {
        let (began, expected) = (tokio::time::Instant::now(), { backoff }.next_pause());
        rest_after(&raw(errno), &mut backoff).await;
        assert!(began.elapsed() >= expected, "{errno}");
    }
    assert_eq!(backoff.next_pause(), ACCEPT_PAUSE_MAX);
}
