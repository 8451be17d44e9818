//! Callers that read nothing, and callers that take too many places, over real HTTP/2 in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{Router, body::Body as AxumBody, response::IntoResponse};
use coppice_proto::status;
use coppice_types::Reason;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Code, Status,
    service::Routes,
    transport::{Channel, Endpoint, Uri},
};
use tower::ServiceExt;

use super::*;
use crate::net::Front;

const RANGE: &str = "/coppice.v1.Ledger/Range";
const GET: &str = "/coppice.v1.Ledger/Get";
const PART: usize = 256 << 10;

/// A server whose streams last until their caller is gone. Counts those that run.
struct Scene {
    running: Arc<AtomicUsize>,
    incoming: mpsc::Sender<std::io::Result<tokio::io::DuplexStream>>,
}

impl Scene {
    fn start(limits: Limits, parts: usize) -> Self {
        let running = Arc::new(AtomicUsize::new(0));
        let shown = Arc::clone(&running);
        let stream = move || {
            let running = Arc::clone(&shown);
            async move {
                let (sender, parts_made) = mpsc::channel(1);
                running.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    for _ in 0..parts {
                        if sender.send(Ok::<_, Status>(Bytes::from(vec![7; PART]))).await.is_err() {
                            break;
                        }
                    }
                    sender.closed().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                });
                AxumBody::from_stream(ReceiverStream::new(parts_made)).into_response()
            }
        };
        let routes = Router::new().route(RANGE, axum::routing::any(stream)).fallback(async || "answered");
        let (incoming, connections) = mpsc::channel(8);
        let server = Front::within(limits).server().add_routes(Routes::from(routes));
        tokio::spawn(server.serve_with_incoming(ReceiverStream::new(connections)));
        Self { running, incoming }
    }

    /// Opens a separate connection.
    fn connect(&self) -> Channel {
        let incoming = self.incoming.clone();
        Endpoint::from_static("http://memory.invalid").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let incoming = incoming.clone();
            async move {
                let (near, far) = tokio::io::duplex(64 << 10);
                incoming.send(Ok(far)).await.map_err(|_| std::io::ErrorKind::ConnectionRefused)?;
                Ok::<_, std::io::Error>(TokioIo::new(near))
            }
        }))
    }

    async fn until_running(&self, expected: usize) {
        while self.running.load(Ordering::SeqCst) != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn call(channel: &Channel, path: &str) -> http::Response<Body> {
    let request = http::Request::post(path).body(Body::empty()).expect("a request");
    channel.clone().oneshot(request).await.expect("it is answered")
}

/// All data of an answer, and the status at its end, if there is one.
async fn read(answer: http::Response<Body>) -> (usize, Option<Status>) {
    use hyper::body::Body as _;
    let mut body = std::pin::pin!(answer.into_body());
    let (mut bytes, mut status) = (0, None);
    while let Some(frame) = std::future::poll_fn(|task| body.as_mut().poll_frame(task)).await {
        match frame.expect("it does not break off").into_data() {
            Ok(data) => bytes += data.len(),
            Err(trailers) => status = trailers.trailers_ref().and_then(Status::from_header_map),
        }
    }
    (bytes, status)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_is_cut_off_and_says_so() {
    let scene = Scene::start(Limits::default(), usize::MAX);
    let channel = scene.connect();
    let unread = call(&channel, RANGE).await;
    scene.until_running(1).await;
    let began = Instant::now();
    scene.until_running(0).await;
    assert!((STALL_MAX..2 * STALL_MAX).contains(&began.elapsed()), "{:?}", began.elapsed());
    // A caller that reads on after all learns why its answer ended.
    let (bytes, status) = read(unread).await;
    let status = status.expect("it ends with a status");
    assert_eq!(status::reason(&status), Some(Reason::ResourceExhausted));
    assert!(status.message().contains("cut off"), "{status:?}");
    assert!(bytes < (2 << 20) + 4 * PART, "little more than a full window was made: {bytes}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_nothing_to_say_goes_on() {
    let scene = Scene::start(Limits::default(), 2);
    let channel = scene.connect();
    let mut quiet = call(&channel, RANGE).await.into_body().into_data_stream_of();
    let mut bytes = 0;
    while bytes < 2 * PART {
        bytes += quiet.next().await.expect("there is more").len();
    }
    tokio::time::sleep(10 * STALL_MAX).await;
    assert_eq!(scene.running.load(Ordering::SeqCst), 1);
}

/// The data of a body, part by part.
trait DataOf {
    fn into_data_stream_of(self) -> impl tokio_stream::Stream<Item = Bytes> + Unpin;
}

impl DataOf for Body {
    fn into_data_stream_of(self) -> impl tokio_stream::Stream<Item = Bytes> + Unpin {
        AxumBody::new(self).into_data_stream().map(|part| part.expect("it does not break off"))
    }
}

#[tokio::test(start_paused = true)]
async fn no_kind_of_call_takes_the_places_of_another() {
    let limits = Limits { calls_max: [1, 1, 2, 1], ..Limits::default() };
    let scene = Scene::start(limits, usize::MAX);
    let (others, own) = (scene.connect(), scene.connect());
    let _first = call(&others, RANGE).await;
    let second = call(&others, RANGE).await;
    let refused = call(&own, RANGE).await;
    let status = Status::from_header_map(refused.headers()).expect("it is refused");
    assert_eq!((status.code(), status::reason(&status)), (Code::ResourceExhausted, Some(Reason::ResourceExhausted)));
    assert!(status.message().contains("stream"), "{status:?}");
    assert_eq!(read(call(&own, GET).await).await.0, "answered".len(), "a read is of another kind");
    drop(second);
    scene.until_running(1).await;
    let again = call(&own, RANGE).await;
    assert!(Status::from_header_map(again.headers()).is_none(), "a place is free again");
}

#[tokio::test]
async fn a_caller_has_a_share_of_the_places_and_the_cluster_has_all() {
    let calls = Places::new([8, 8, 8, 8]);
    let of = |name: &str| Party::Subject(name.to_owned());
    let mut places: Vec<_> = (0..2).map(|_| calls.enter(Kind::Stream, of("a")).expect("its share")).collect();
    let refused = calls.enter(Kind::Stream, of("a")).expect_err("no more");
    assert!(refused.message().contains("share"), "{refused:?}");
    places.push(calls.enter(Kind::Stream, of("b")).expect("another caller has its own"));
    places.extend((0..5).map(|_| calls.enter(Kind::Stream, Party::Cluster("node".to_owned())).expect("all of it")));
    assert!(calls.enter(Kind::Stream, of("c")).is_err(), "all places are taken");
    drop(places);
    assert!(calls.is_empty());
}

#[test]
fn every_stream_of_answers_has_a_kind_of_its_own() {
    use prost::Message;
    let set = prost_types::FileDescriptorSet::decode(coppice_proto::DESCRIPTOR).expect("it is a set of descriptors");
    for (file, service) in set.file.iter().flat_map(|file| file.service.iter().map(move |service| (file, service))) {
        for method in &service.method {
            let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
            let streams = method.server_streaming() && !method.client_streaming();
            assert_eq!(matches!(Kind::of(&path), Kind::Stream | Kind::Watch), streams, "{path}");
            assert_eq!(is_stream(&path), method.client_streaming(), "{path}");
        }
    }
}

/// A request that arrives in part: `sent` bytes of a message of `length` bytes.
fn partial(path: &str, length: u32, sent: usize) -> (http::Request<Body>, mpsc::Sender<Result<Bytes, Status>>) {
    let (more, parts) = mpsc::channel(1);
    let begin = [&[0][..], &length.to_be_bytes(), &vec![7; sent]].concat();
    more.try_send(Ok(Bytes::from(begin))).expect("there is room");
    let body = Body::new(AxumBody::from_stream(ReceiverStream::new(parts)));
    (http::Request::post(path).body(body).expect("a request"), more)
}

/// A server that reads a request completely before it answers.
fn taking(
    limits: Limits,
) -> impl Service<http::Request<Body>, Response = http::Response<Body>, Error = std::convert::Infallible, Future: Send> + Clone
{
    let routes = Router::new().fallback(async |request: axum::extract::Request| {
        match axum::body::to_bytes(request.into_body(), usize::MAX).await {
            Ok(_) => Status::ok("").into_http::<AxumBody>(),
            Err(error) => Status::from_error(error.into()).into_http(),
        }
    });
    Bounded::new(limits).layer(Routes::from(routes))
}

#[tokio::test(start_paused = true)]
async fn unfinished_messages_hold_a_share_and_not_for_long() {
    const MIB: usize = 1 << 20;
    let limits = Limits { received_bytes_max: 16 * MIB, ..Limits::default() };
    let server = taking(limits);
    let from = |path: &str, address: u8| {
        let (mut request, more) = partial(path, 13 << 20, 2 * MIB);
        let address = Some(([10, 0, 0, address], 1).into());
        request.extensions_mut().insert(Peer { address, ..Peer::default() });
        (tokio::spawn(server.clone().oneshot(request)), more)
    };
    let began = Instant::now();
    let commit = "/coppice.v1.Ledger/Commit";
    let unfinished: Vec<_> = (0..60).map(|_| from(commit, 1)).collect();
    let (other, more) = from(commit, 2);
    more.send(Ok(Bytes::from(vec![7; 11 * MIB]))).await.expect("its beginning was read");
    let refused = |answer: &http::Response<Body>| {
        let status = Status::from_header_map(answer.headers()).expect("a status");
        assert_eq!(status::reason(&status), Some(Reason::ResourceExhausted), "{status:?}");
        status.message().to_owned()
    };
    let mut told = Vec::new();
    for (answer, _more) in unfinished {
        told.push(refused(&answer.await.expect("no panic").expect("it is answered")));
    }
    assert_eq!(told.iter().filter(|told| told.contains("this caller")).count(), 59, "one of them fits: {told:?}");
    assert_eq!(told.iter().filter(|told| told.contains("did not arrive completely")).count(), 1);
    assert!(refused(&other.await.expect("no panic").expect("it is answered")).contains("this caller"));
    assert_eq!(began.elapsed().as_secs(), RECEIVE_MAX.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_bare_body_has_the_same_limits_and_is_not_taken_for_messages() {
    const MIB: usize = 1 << 20;
    let server = taking(Limits { received_bytes_max: 16 * MIB, ..Limits::default() });
    let put = |first: Bytes| {
        let (more, parts) = mpsc::channel(1);
        more.try_send(Ok::<_, Status>(first)).expect("there is room");
        let body = Body::new(AxumBody::from_stream(ReceiverStream::new(parts)));
        let mut request = http::Request::put("/v1/records/k").body(body).expect("a request");
        request.extensions_mut().insert(Peer { address: Some(([10, 0, 0, 1], 1).into()), ..Peer::default() });
        (server.clone().oneshot(request), more)
    };
    let told = |answer: http::Response<Body>| {
        let refused = Status::from_header_map(answer.headers()).filter(|status| status.code() != Code::Ok);
        refused.map(|status| (status::reason(&status), status.message().to_owned()))
    };
    // Bytes that gRPC would take for two whole messages, and then one byte in each second.
    let (answer, more) = put(Bytes::from_static(&[0; 10]));
    let began = Instant::now();
    let trickle = async {
        while more.send(Ok(Bytes::from_static(b"x"))).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (answer, ()) = tokio::join!(answer, trickle);
    let (reason, message) = told(answer.expect("it is answered")).expect("it is refused");
    assert!(reason == Some(Reason::ResourceExhausted) && message.contains("did not arrive completely"), "{message}");
    assert!((RECEIVE_MAX..RECEIVE_MAX + Duration::from_secs(2)).contains(&began.elapsed()), "{:?}", began.elapsed());
    let (answer, more) = put(Bytes::from(vec![7; 5 * MIB]));
    drop(more);
    let (reason, message) = told(answer.await.expect("it is answered")).expect("it is refused");
    assert!(reason == Some(Reason::ResourceExhausted) && message.contains("this caller"), "{message}");
    let (answer, more) = put(Bytes::from(vec![7; 3 * MIB]));
    drop(more);
    assert_eq!(told(answer.await.expect("it is answered")), None, "what was held was given back");
}
