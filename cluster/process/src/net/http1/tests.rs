//! The age of a connection.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use super::*;
use crate::net::{incoming_both, listen};

const SHORT: Ages = Ages { calls: Duration::from_millis(400), last_call: Duration::from_millis(600) };
/// Longest time for anything before a test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A connection whose requests are answered: that for `/endless` without an end.
async fn connect() -> TcpStream {
    let listener = listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    let connections = incoming_both(listener, None);
    let service = service_fn(|request: http::Request<Body>| async move {
        let is_endless = request.uri().path() == "/endless";
        let parts = futures::stream::unfold(is_endless, |more| async move {
            if !more {
                return None;
            }
            sleep(Duration::from_millis(20)).await;
            let part = hyper::body::Frame::data(hyper::body::Bytes::from_static(b"on"));
            Some((Ok::<_, Infallible>(part), true))
        });
        Ok::<_, Infallible>(http::Response::new(Body::new(http_body_util::StreamBody::new(parts))))
    });
    tokio::spawn(async move {
        let _grpc = connections.grpc;
        serve_within(connections.http1, service, std::future::pending(), SHORT).await;
    });
    TcpStream::connect(address).await.expect("it listens")
}

#[tokio::test]
async fn a_connection_takes_no_further_call_at_its_age() {
    let mut stream = connect().await;
    let began = Instant::now();
    let mut bytes = [0; 4096];
    let mut answers = 0;
    while began.elapsed() < LIMIT {
        if stream.write_all(b"GET / HTTP/1.1\r\nHost: l\r\n\r\n").await.is_err() {
            break;
        }
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(count) => assert!(bytes[..count].starts_with(b"HTTP/1.1 200"), "{:?}", &bytes[..count]),
        }
        answers += 1;
        sleep(Duration::from_millis(10)).await;
    }
    let age = began.elapsed();
    assert!(answers > 1 && age >= SHORT.calls && age < LIMIT, "closed after {age:?} and {answers} answers");
}

#[tokio::test]
async fn an_answer_without_an_end_ends_with_its_connection() {
    let mut stream = connect().await;
    let began = Instant::now();
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: l\r\n\r\n").await.expect("it is open");
    let mut told = Vec::new();
    // A reset is an end, too.
    let read = timeout(LIMIT, stream.read_to_end(&mut told)).await;
    let age = began.elapsed();
    assert!(read.is_ok() && age >= SHORT.calls + SHORT.last_call, "closed after {age:?}");
    assert!(told.starts_with(b"HTTP/1.1 200") && !told.ends_with(b"0\r\n\r\n"), "it looks whole");
}
