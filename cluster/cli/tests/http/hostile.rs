//! Clients that mean harm, or know no better.

use std::{
    io::{Read, Write},
    time::Duration,
};

use coppice_env::{Clock, SystemClock};

use crate::{
    common::{Dev, LIMIT},
    start,
    wire::{Wire, ask},
};

const ANY: &str = "Coppice-Write: any";
/// The server's limits on a head and on a body, and some time for a busy machine.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const RECEIVE_MAX: Duration = Duration::from_secs(30);
const SLACK: Duration = Duration::from_secs(20);

fn code(dev: &Dev, method: &str, path: &str, headers: &[&str]) -> u16 {
    ask(dev, method, path, headers, b"").code
}

#[test]
fn malformed_requests_are_refused_and_change_nothing() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let long = "k".repeat(512);
    assert_eq!(ask(&dev, "PUT", &format!("/v1/records/{long}"), &[ANY], b"v").code, 200, "the longest key");
    assert_eq!(ask(&dev, "GET", &format!("/v1/records/{}", "%6B".repeat(512)), &[], b"").body, b"v");
    assert_eq!(ask(&dev, "PUT", &format!("/v1/records/{long}k"), &[ANY], b"v").code, 413);
    let head = ask(&dev, "GET", "/v1/head", &[], b"").json();
    let refused: [(u16, &str, &str, &[&str]); 25] = [
        (400, "PUT", "/v1/records/", &[ANY]),
        (400, "PUT", "/v1/records/%", &[ANY]),
        (400, "PUT", "/v1/records/%0", &[ANY]),
        (400, "PUT", "/v1/records/k", &[]),
        (400, "PUT", "/v1/records/k?x=1", &[ANY]),
        (400, "PUT", "/v1/records/k", &["If-Match: *"]),
        (400, "PUT", "/v1/records/k", &["If-Match: 0.1"]),
        (400, "PUT", "/v1/records/k", &["If-Match: \"0.1\", \"0.2\""]),
        (400, "PUT", "/v1/records/k", &["If-Match: W/\"0.1\""]),
        (400, "PUT", "/v1/records/k", &["If-Match: \"0.1\"", "If-Match: \"0.2\""]),
        (400, "PUT", "/v1/records/k", &["If-None-Match: *", "If-None-Match: *"]),
        (400, "PUT", "/v1/records/k", &["If-None-Match: \"0.1\""]),
        (400, "PUT", "/v1/records/k", &["Coppice-Number: 1"]),
        (400, "PUT", "/v1/records/k", &["Coppice-Session: 00", "Coppice-Number: 1"]),
        (400, "PUT", "/v1/records/k", &["Coppice-Session: 000102030405060708090a0b0c0d0e0f", "Coppice-Number: +1"]),
        (409, "PUT", "/v1/records/k", &["Coppice-Session: 000102030405060708090a0b0c0d0e0f", "Coppice-Number: 1"]),
        (400, "PUT", "/v1/sessions/00", &[ANY]),
        (400, "PUT", "/v1/sessions/000102030405060708090a0b0c0d0e0f", &[]),
        (400, "PUT", "/v1/records/k", &[ANY, "Content-Encoding: gzip"]),
        (403, "PUT", "/v1/records/k", &[ANY, "Origin: http://127.0.0.1:7401"]),
        (412, "PUT", "/v1/records/k", &["If-Match: \"7.7\""]),
        (400, "POST", "/v1/batches", &[ANY]),
        (400, "POST", "/v1/batches", &["If-Match: \"0.1\""]),
        (404, "PUT", "/v1/records/a/b", &[ANY]),
        (404, "GET", "/v1/nothing", &[]),
    ];
    for (expected, method, path, headers) in refused {
        let answer = ask(&dev, method, path, headers, b"");
        assert_eq!(answer.code, expected, "{method} {path} {headers:?}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["status"], expected);
    }
    for path in ["/v1/records/k", "/v1/records", "/v1/head", "/v1/batches", "/v1/openapi.json"] {
        for method in ["OPTIONS", "PATCH", "TRACE", "POSTS", "HEAD"] {
            let answer = ask_bodiless(&dev, method, path);
            assert_eq!(answer.0, 405, "{method} {path}");
            assert!(answer.1.to_ascii_lowercase().contains("\r\nallow: "), "{method} {path}: {}", answer.1);
            assert!(!answer.1.to_ascii_lowercase().contains("access-control"), "no CORS: {}", answer.1);
        }
    }
    assert_eq!(ask(&dev, "GET", "/v1/head", &[], b"").json(), head, "nothing was written");
}

/// The code and head of an answer that may have no body.
fn ask_bodiless(dev: &Dev, method: &str, path: &str) -> (u16, String) {
    let mut wire = Wire::open(dev);
    wire.send(format!("{method} {path} HTTP/1.1\r\nHost: l\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    let text = String::from_utf8_lossy(&wire.until_closed(LIMIT)).into_owned();
    let head = text.split("\r\n\r\n").next().expect("a head").to_owned();
    (head.get(9..12).and_then(|code| code.parse().ok()).expect("a code"), head)
}

#[test]
fn no_request_is_taken_for_two_and_none_for_forwarded() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let hidden = "GET /v1/head HTTP/1.1\r\nHost: l\r\n\r\n";
    let smuggled = [
        format!(
            "PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!(
            "PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n{hidden}"
        ),
        format!("PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\nContent-Length: +0\r\n\r\n{hidden}"),
        format!(
            "PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!(
            "PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}"
        ),
        format!("GET /v1/head HTTP/1.1\r\nHost: l\r\n X: y\r\n\r\n{hidden}"),
        format!("GET /v1/head HTTP/1.1\r\nHost : l\r\n\r\n{hidden}"),
    ];
    for bytes in smuggled {
        let mut wire = Wire::open(&dev);
        wire.send(&bytes);
        let text = String::from_utf8_lossy(&wire.until_closed(HEAD_TIMEOUT + SLACK)).into_owned();
        assert!(text.matches("HTTP/1.1 ").count() <= 1, "{bytes:?}: {text}");
    }
    assert!(!dev.run(&["get", "k", "--json"]).stdout.contains("GET /v1"), "no request became a value");
    // The caller of a forwarded request is another one: the ledger must not hear of it.
    for header in ["coppice-forwarded: 1", "coppice-caller-bin: Q049YWxpY2U"] {
        assert_eq!(ask(&dev, "PUT", "/v1/records/f", &[header], b"v").code, 200, "without TLS nobody has a name");
    }
    let gone = ask(&dev, "POST", "/coppice.v1.Ledger/Get", &["Content-Type: application/grpc"], b"\0\0\0\0\0");
    assert_eq!(gone.code, 404, "gRPC is not spoken by HTTP/1.1");
}

#[test]
fn ten_thousand_requests_in_one_go_are_answered_in_order() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    assert_eq!(ask(&dev, "PUT", "/v1/records/k", &[ANY], b"v").code, 200);
    let mut wire = Wire::open(&dev);
    let mut writer = wire.stream.try_clone().expect("it is open");
    let writing = std::thread::spawn(move || {
        for at in 0..10_000 {
            let path = if at % 2 == 0 { "/v1/records/k" } else { "/v1/records/none" };
            writer.write_all(format!("GET {path} HTTP/1.1\r\nHost: l\r\n\r\n").as_bytes()).expect("it is read");
        }
    });
    for at in 0..10_000 {
        let answer = wire.answer();
        assert_eq!(answer.code, if at % 2 == 0 { 200 } else { 404 }, "{at}");
    }
    writing.join().expect("all were sent");
}

#[test]
fn slow_heads_bodies_and_readers_end_and_delay_nobody() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    assert_eq!(ask(&dev, "PUT", "/v1/records/k", &[ANY], b"v").code, 200);
    let clock = SystemClock::new();
    let mut silent = Wire::open(&dev);
    let mut idle = Wire::open(&dev);
    idle.send("GET /v1/records/k HTTP/1.1\r\nHost: l\r\n\r\n");
    assert_eq!(idle.answer().code, 200);
    let mut heads: Vec<Wire> = (0..100).map(|_| Wire::open(&dev)).collect();
    heads.iter_mut().for_each(|wire| wire.send("GET /v1/records/k HTTP/1.1\r\nHost: l\r\nX: "));
    let mut bodies: Vec<Wire> = (0..100).map(|_| Wire::open(&dev)).collect();
    let begun = format!("PUT /v1/records/slow HTTP/1.1\r\nHost: l\r\n{ANY}\r\nContent-Length: 1000000\r\n\r\n");
    bodies.iter_mut().for_each(|wire| wire.send(&begun));
    silent.send("PR");
    // They send on, a byte at a time, until the server has enough of it.
    let (mut rounds, mut looks) = (0, Vec::new());
    while clock.now() < Duration::from_secs(5) {
        for wire in heads.iter_mut().chain(&mut bodies) {
            let _ = wire.stream.write_all(b"x");
        }
        let before = clock.now();
        assert_eq!(code(&dev, "GET", "/v1/records/k", &[]), 200);
        looks.push(clock.now() - before);
        rounds += 1;
    }
    assert!(rounds > 1 && looks.iter().all(|look| *look < Duration::from_secs(5)), "{looks:?}");
    for wire in heads {
        let left = (HEAD_TIMEOUT + SLACK).saturating_sub(clock.now());
        assert!(!String::from_utf8_lossy(&wire.until_closed(left)).contains(" 200 "));
    }
    for wire in bodies {
        let left = (RECEIVE_MAX + SLACK).saturating_sub(clock.now());
        let told = String::from_utf8_lossy(&wire.until_closed(left)).into_owned();
        assert!(told.starts_with("HTTP/1.1 429") && told.contains("did not arrive completely"), "{told:?}");
    }
    silent.until_closed(SLACK);
    idle.until_closed((HEAD_TIMEOUT + SLACK).saturating_sub(clock.now()));
    assert_eq!(code(&dev, "GET", "/v1/records/slow", &[]), 404, "no part of a value was written");
}

#[test]
fn endless_heads_and_bodies_are_cut_off() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let large = ask_large(&dev, "Content-Length: 999999999\r\n");
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let endless = ask_large(&dev, "Transfer-Encoding: chunked\r\n");
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 413"), "{endless}");
    let mut head = Wire::open(&dev);
    let begun = head.stream.write_all(b"GET /v1/head HTTP/1.1\r\nHost: l\r\n");
    begun.expect("it is open");
    let line = format!("X: {}\r\n", "y".repeat(1000));
    let sent = (0..10_000).take_while(|_| head.stream.write_all(line.as_bytes()).is_ok()).count();
    assert!(sent < 10_000, "a head of 10 MB is too long");
}

/// Sends a body without an end. Returns what the server says.
fn ask_large(dev: &Dev, framing: &str) -> String {
    let mut wire = Wire::open(dev);
    wire.send(format!("PUT /v1/records/k HTTP/1.1\r\nHost: l\r\n{ANY}\r\n{framing}\r\n"));
    let chunk = [b"10000\r\n".as_slice(), &[b'z'; 0x10000], b"\r\n"].concat();
    let mut reader = wire.stream.try_clone().expect("it is open");
    let told = std::thread::spawn(move || {
        let mut told = Vec::new();
        // A reset is an end, too.
        let _ = reader.read_to_end(&mut told);
        String::from_utf8_lossy(&told).into_owned()
    });
    let chunks = (0..10_000).take_while(|_| wire.stream.write_all(&chunk).is_ok()).count();
    assert!(chunks < 10_000, "the server took {chunks} chunks of 64 KiB");
    told.join().expect("it ends")
}

#[test]
fn an_answer_that_nobody_reads_does_not_stop_others() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let value = vec![b'v'; 1 << 20];
    for version in 0..12 {
        let put = ask(&dev, "PUT", "/v1/records/large", &[ANY], &[&value[..], &[version]].concat()[1..]);
        assert_eq!(put.code, 200, "{}", put.text());
    }
    let mut unread: Vec<Wire> = (0..20).map(|_| Wire::open(&dev)).collect();
    unread.iter_mut().for_each(|wire| wire.send("GET /v1/records/large/history HTTP/1.1\r\nHost: l\r\n\r\n"));
    for _ in 0..20 {
        assert_eq!(ask(&dev, "GET", "/v1/records/large", &[], b"").body.len(), value.len());
    }
    // What is read after the server has given up must not look complete.
    let clock = SystemClock::new();
    let limit = Duration::from_secs(90);
    for wire in unread {
        // The server closes once it could write nothing for its time limit. Nothing is read here.
        let gone = || wire.stream.peek(&mut [0]).is_err() || clock.now() > Duration::from_secs(35);
        while !gone() {
            std::thread::yield_now();
        }
        let told = wire.until_closed(limit);
        let end = &told[told.len().saturating_sub(200)..];
        assert!(!end.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(end));
    }
}
