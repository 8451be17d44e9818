//! The API port with certificates: gRPC-web by each role, bytes of clients that mean harm within
//! TLS, writes through a coordinator that does not lead, and the switch that leaves gRPC alone.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    common::{self, Done},
    harness::{Cluster, until},
};

/// The server's limit on a head, and some time for a busy machine.
const HEAD_LIMIT: Duration = Duration::from_secs(30 + 30);
/// A message without fields, in the framing of gRPC.
const EMPTY: &[u8] = b"\0\0\0\0\0";
/// A commit of one record: `web` with the value `1`.
const COMMIT: &[u8] = b"\0\0\0\0\x0c\x0a\x0a\x0a\x08\x0a\x03web\x12\x011";

/// Runs `curl` with the certificate of this name. Standard output ends with the code of the answer.
fn curl(cluster: &Cluster, name: &str, url: &str, more: &[&str]) -> Done {
    let file = |end: &str| cluster.path(&format!("{name}.{end}"));
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "50", "-w", "\n%{http_code}", "--cacert"]).arg(cluster.path("ca.pem"));
    command.arg("--cert").arg(file("pem")).arg("--key").arg(file("key")).args(more).arg(url);
    common::run(&mut command)
}

fn code(done: &Done) -> &str {
    done.stdout.lines().last().unwrap_or_default()
}

/// The status of a call of gRPC-web.
fn web(cluster: &Cluster, name: &str, method: &str, message: &[u8], more: &[&str]) -> String {
    let sent = cluster.path("web-call");
    fs::write(&sent, message).expect("a file can be written");
    let (data, head) = (format!("@{}", sent.display()), cluster.path("web-head"));
    let kind = ["--data-binary", &data, "-H", "Content-Type: application/grpc-web+proto", "-D"];
    let head_path = head.display().to_string();
    let url = format!("https://127.0.0.1:{}/coppice.v1.Ledger/{method}", cluster.port_of(4));
    let done = curl(cluster, name, &url, &[&kind[..], &[&head_path], more].concat());
    assert_eq!(code(&done), "200", "{name} {method}: {done:?}");
    let told = fs::read_to_string(&head).expect("an answer has a head") + &done.stdout;
    let status = told.split("grpc-status:").nth(1).unwrap_or_else(|| panic!("{name} {method}: {told:?}"));
    status.trim_start().chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn each_role_may_do_by_grpc_web_what_it_may_by_grpc() {
    let cluster = Cluster::of_ledgers();
    let (_node, _coordinator) = (cluster.node(1), cluster.coordinator());
    cluster.until_it_commits("alice=100");
    let mut denied = 0;
    for name in ["reader", "writer", "operator", "auditor", "nobody", "node-1", "coordinator-1"] {
        let reads = !["nobody", "node-1"].contains(&name);
        let writes = ["writer", "coordinator-1"].contains(&name);
        for (version, method, message, may) in [
            ("--http1.1", "Head", EMPTY, reads),
            ("--http2", "Head", EMPTY, reads),
            ("--http1.1", "Commit", COMMIT, writes),
        ] {
            let status = web(&cluster, name, method, message, &[version]);
            assert_eq!(status, if may { "0" } else { "7" }, "{name} {method}");
            denied += usize::from(!may);
        }
        // A page states its origin, and writes nothing, whatever its certificate.
        let status = web(&cluster, name, "Commit", COMMIT, &["-H", "Origin: https://127.0.0.1"]);
        assert_eq!(status, "7", "{name} as a page");
    }
    let forged = web(&cluster, "writer", "Commit", COMMIT, &["-H", "coppice-forwarded: 1"]);
    assert_eq!(forged, "7", "only a coordinator forwards");
    let recorded = until("all denials are on record", || {
        let log = fs::read_to_string(cluster.path("access-log")).unwrap_or_default();
        let count = log.lines().filter(|line| line.contains("/coppice.v1.Ledger/")).count();
        (count > denied).then_some(count)
    });
    assert_eq!(recorded, denied + 1);
    // A request that a page of another origin may send unasked is no call, also by HTTP/2. Its
    // answer reaches a client that is still sending.
    fs::write(cluster.path("web-call"), [COMMIT, &[0; 60 << 10]].concat()).expect("a file can be written");
    let sent = format!("@{}", cluster.path("web-call").display());
    let version = cluster.version();
    for (kind, path, expected) in [
        ("text/plain", "coppice.v1.Ledger/Commit", "404"),
        ("application/x-www-form-urlencoded", "coppice.v1.Ledger/Commit", "404"),
        ("application/json", "v1/nothing", "404"),
        ("application/json", "v1/status", "405"),
    ] {
        let url = format!("https://127.0.0.1:{}/{path}", cluster.port_of(4));
        let kind = format!("Content-Type: {kind}");
        let done = curl(&cluster, "writer", &url, &["--http2", "-H", &kind, "--data-binary", &sent]);
        assert_eq!(code(&done), expected, "{kind} {path}: {done:?}");
    }
    assert_eq!(cluster.version(), version, "nothing was written");
}

/// Sends bytes by TLS with the certificate of this name. Returns what comes until the server
/// closes.
fn raw(cluster: &Cluster, name: Option<&str>, bytes: &[u8]) -> String {
    let mut command = Command::new("timeout");
    command.arg(HEAD_LIMIT.as_secs().to_string()).args(["openssl", "s_client", "-quiet", "-connect"]);
    command.arg(format!("127.0.0.1:{}", cluster.port_of(4))).arg("-CAfile").arg(cluster.path("ca.pem"));
    if let Some(name) = name {
        let file = |end: &str| cluster.path(&format!("{name}.{end}"));
        command.arg("-cert").arg(file("pem")).arg("-key").arg(file("key"));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is installed");
    // A server that has closed already reads nothing.
    let _ = child.stdin.take().expect("it is piped").write_all(bytes);
    let done = child.wait_with_output().expect("it ends");
    assert_ne!(done.status.code(), Some(124), "still open after {HEAD_LIMIT:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Reads in the clear until the server closes. A reset is an end, too.
fn in_the_clear(cluster: &Cluster, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port_of(4))).expect("it listens");
    stream.set_read_timeout(Some(HEAD_LIMIT)).expect("a limit");
    stream.write_all(bytes).expect("it is open");
    let mut told = Vec::new();
    if let Err(error) = stream.read_to_end(&mut told) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "still open after {HEAD_LIMIT:?}");
    }
    told
}

#[test]
fn hostile_bytes_within_tls_are_refused_as_in_the_clear() {
    let cluster = Cluster::of_ledgers();
    let (_node, _coordinator) = (cluster.node(1), cluster.coordinator());
    cluster.until_it_commits("alice=100");
    let hidden = "PUT /v1/records/hidden HTTP/1.1\r\nHost: l\r\nCoppice-Write: any\r\nContent-Length: 1\r\n\r\nx";
    let begun = "PUT /v1/records/k HTTP/1.1\r\nHost: l\r\nCoppice-Write: any\r\n";
    for smuggled in [
        format!("{begun}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{begun}Content-Length: 0\r\nContent-Length: 40\r\n\r\n{hidden}"),
        format!("{begun}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET /v1/head HTTP/1.1\r\nHost : l\r\n\r\n{hidden}"),
    ] {
        let told = raw(&cluster, Some("writer"), smuggled.as_bytes());
        assert!(told.matches("HTTP/1.1 ").count() <= 1, "{smuggled:?}: {told}");
    }
    for (name, sent, told) in [
        (Some("writer"), format!("{begun}Content-Length: 999999999\r\n\r\n"), "HTTP/1.1 413"),
        (Some("writer"), format!("{begun}Content-Length: 9\r\n\r\nx"), "HTTP/1.1 429"),
        (Some("reader"), format!("{begun}Content-Length: 1\r\nConnection: close\r\n\r\nx"), "HTTP/1.1 403"),
        (Some("reader"), "GET /v1/head HTTP/1.1\r\nHost: l\r\nX: ".to_owned(), ""),
        (Some("reader"), "PR".to_owned(), ""),
        (None, "GET /v1/head HTTP/1.1\r\nHost: l\r\n\r\n".to_owned(), ""),
    ] {
        let answer = raw(&cluster, name, sent.as_bytes());
        assert!(answer.starts_with(told) && answer.is_empty() == told.is_empty(), "{sent:?}: {answer}");
    }
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for sent in
        [b"GET /v1/head HTTP/1.1\r\nHost: l\r\n\r\n".as_slice(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", hello, b"\x16"]
    {
        let told = in_the_clear(&cluster, sent);
        assert!(!told.windows(4).any(|four| four == b"HTTP"), "{told:?}");
    }
    let url = format!("https://127.0.0.1:{}/v1/records/hidden", cluster.port_of(4));
    assert_eq!(code(&curl(&cluster, "reader", &url, &[])), "404", "no request was hidden in another one");
    cluster.until_it_commits("alice=101");
}

#[test]
fn a_write_over_http_may_go_to_a_coordinator_that_does_not_lead() {
    let cluster = Cluster::tls_registered();
    let (_nodes, _first) = (cluster.nodes(), cluster.coordinator());
    cluster.until_it_commits("held=1");
    let (_second, address) = cluster.second_coordinator();
    let leading = cluster.endpoint().replace("http://", "").replace("https://", "");
    let at =
        |address: &str, path: &str, more: &[&str]| curl(&cluster, "writer", &format!("https://{address}{path}"), more);
    until("the second coordinator follows the first one", || {
        let done = at(&address, "/v1/status", &[]);
        let status: Option<Value> = serde_json::from_str(done.stdout.lines().next().unwrap_or_default()).ok();
        status.filter(|status| status["leader"] == "coordinator-1").map(|_| ())
    });
    let put = ["-X", "PUT", "-H", "If-None-Match: *", "-d", "100"];
    assert_eq!(code(&at(&address, "/v1/records/through", &put)), "200");
    assert_eq!(code(&at(&address, "/v1/records/through", &put)), "412", "the condition is judged where it leads");
    for read in [&leading, &address] {
        assert_eq!(at(read, "/v1/records/through", &[]).stdout, "100\n200", "{read}");
    }
    let session = "000102030405060708090a0b0c0d0e0f";
    let opened = at(&address, &format!("/v1/sessions/{session}"), &["-X", "PUT", "-H", "Coppice-Write: any"]);
    assert_eq!(code(&opened), "200", "{opened:?}");
    let named = format!("Coppice-Session: {session}");
    let once = ["-X", "PUT", "-H", &named, "-H", "Coppice-Number: 1", "-d", "yes"];
    let (first, again) = (at(&address, "/v1/records/once", &once), at(&leading, "/v1/records/once", &once));
    assert!(
        first.stdout.contains("\"replayed\":false") && again.stdout.contains("\"replayed\":true"),
        "{first:?} {again:?}"
    );
    let proof = cluster.path("receipt");
    let wanted = ["-X", "DELETE", "-H", "Coppice-Write: any", "-H", "Accept: application/vnd.coppice.proof", "-o"];
    let deleted = at(&address, "/v1/records/once", &[&wanted[..], &[&proof.display().to_string()]].concat());
    assert_eq!(code(&deleted), "200", "{deleted:?}");
    let key = format!("@{}", cluster.path("ledger.vkey").display());
    common::run(common::coppice().arg("verify").arg(&proof).args(["--key", &key])).expect(0);
    // A role that may not write is denied by the coordinator that it asks.
    let denied = curl(&cluster, "reader", &format!("https://{address}/v1/records/through"), &put);
    assert_eq!(code(&denied), "403", "{denied:?}");
}

#[test]
fn without_its_http_api_a_coordinator_speaks_grpc_alone() {
    let cluster = Cluster::of_ledgers();
    let (_node, _coordinator) = (cluster.node(1), cluster.coordinator_with(&["--set", "http_api=false"], &[]));
    cluster.until_it_commits("alice=100");
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", cluster.port_of(4));
    for path in ["/v1/head", "/v1/openapi.json", "/coppice.v1.Ledger/Head"] {
        let kind = ["-H", "Content-Type: application/grpc-web", "-d", ""];
        let done = curl(&cluster, "writer", &url(path), &[&["--http2"], &kind[..]].concat());
        assert_eq!(code(&done), "404", "{path}: {done:?}");
        let done = curl(&cluster, "writer", &url(path), &["--http1.1"]);
        assert_eq!(code(&done), "000", "{path}: {done:?}");
    }
    let put = ["--http2", "-X", "PUT", "-H", "Coppice-Write: any", "-d", "1"];
    assert_eq!(code(&curl(&cluster, "writer", &url("/v1/records/k"), &put)), "404");
}
