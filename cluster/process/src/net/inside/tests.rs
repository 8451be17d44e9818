//! Callers in the process are bounded like those over the network.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse as _, Response},
    routing::any,
};
use tokio::sync::Notify;
use tonic::{
    Code,
    codegen::http::{self, HeaderValue},
};

use super::*;
use crate::{
    access::{Access, Identity, Role, Roles},
    net::calls::{Kind, Limits},
};

const PREPARE: &str = "/coppice.v1.Shard/Prepare";
const READ: &str = "/coppice.v1.Shard/Read";
const STATUS: &str = "/coppice.v1.Node/NodeStatus";

/// A service that answers `READ` at once, panics at `STATUS`, and answers `PREPARE` when it may.
#[derive(Clone, Default)]
struct Scene {
    open: Arc<AtomicUsize>,
    may_end: Arc<Notify>,
    peers: Arc<Mutex<Vec<Option<Peer>>>>,
}

fn buggy() -> Response {
    panic!("a bug")
}

/// Counts an open call until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Scene {
    fn services(&self, limits: Limits) -> Services {
        let slow = self.clone();
        let prepare = move || {
            let scene = slow.clone();
            async move {
                scene.open.fetch_add(1, Ordering::SeqCst);
                let _open = Open(Arc::clone(&scene.open));
                scene.may_end.notified().await;
                "answered".into_response()
            }
        };
        let seen = Arc::clone(&self.peers);
        let read = move |request: Request| {
            seen.lock().expect("no holder panics").push(request.extensions().get().cloned());
            async { "answered".into_response() }
        };
        let status = || async { buggy() };
        let routes = Router::new().route(PREPARE, any(prepare)).route(READ, any(read)).route(STATUS, any(status));
        Front::within(limits).services(Routes::from(routes))
    }

    async fn until_open(&self, calls: usize) {
        while self.open.load(Ordering::SeqCst) != calls {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The code of a call's answer.
async fn call(channel: &Channel, path: &str, timeout: Option<&'static str>) -> Code {
    let mut request = http::Request::post(path).body(tonic::body::Body::empty()).expect("a request");
    if let Some(timeout) = timeout {
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
    }
    let answer = channel.clone().oneshot(request).await.expect("a channel does not fail");
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_places_of_a_channel_wait_within_their_own_limit_and_hold_up_no_other() {
    let scene = Scene::default();
    let services = scene.services(Limits::default());
    let channel = services.channel(Peer::default());
    let most = CALLS_PER_CONNECTION_MAX as usize;
    let open: Vec<_> = (0..most)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { call(&channel, PREPARE, None).await })
        })
        .collect();
    scene.until_open(most).await;
    assert_eq!(call(&channel, READ, Some("50m")).await, Code::DeadlineExceeded, "there is no place for it");
    assert_eq!(call(&services.channel(Peer::default()), READ, None).await, Code::Ok, "another channel has places");
    scene.may_end.notify_one();
    scene.until_open(most - 1).await;
    assert_eq!(call(&channel, READ, Some("50m")).await, Code::Ok);
    drop(open);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline_and_with_its_caller_and_so_does_its_work() {
    let scene = Scene::default();
    let channel = scene.services(Limits::default()).channel(Peer::default());
    assert_eq!(call(&channel, PREPARE, Some("50m")).await, Code::DeadlineExceeded);
    scene.until_open(0).await;
    let caller = tokio::spawn(async move { call(&channel, PREPARE, None).await });
    scene.until_open(1).await;
    caller.abort();
    scene.until_open(0).await;
}

#[tokio::test]
async fn a_service_that_panics_fails_its_call_alone() {
    let channel = Scene::default().services(Limits::default()).channel(Peer::default());
    assert_eq!(call(&channel, STATUS, None).await, Code::Internal);
    assert_eq!(call(&channel, READ, None).await, Code::Ok);
}

#[tokio::test]
async fn calls_of_all_channels_share_the_limits_of_the_front() {
    let scene = Scene::default();
    let mut calls_max = Limits::default().calls_max;
    calls_max[Kind::Commit as usize] = 1;
    let services = scene.services(Limits { calls_max, ..Limits::default() });
    let (first, second) = (services.channel(Peer::default()), services.channel(Peer::default()));
    let open = tokio::spawn(async move { call(&first, PREPARE, None).await });
    scene.until_open(1).await;
    assert_eq!(call(&second, PREPARE, None).await, Code::ResourceExhausted);
    scene.may_end.notify_one();
    assert_eq!(open.await.expect("it does not panic"), Code::Ok);
    scene.may_end.notify_one();
    assert_eq!(call(&second, PREPARE, None).await, Code::Ok);
}

#[tokio::test]
async fn a_service_sees_the_caller_that_the_channel_is_for() {
    let scene = Scene::default();
    let services = scene.services(Limits::default());
    let address = "127.0.0.1:7".parse().ok();
    call(&services.channel(Peer { address, ..Peer::default() }), READ, None).await;
    let peers = scene.peers.lock().expect("no holder panics").clone();
    let addresses: Vec<_> = peers.into_iter().map(|peer| peer.map(|peer| peer.address)).collect();
    assert_eq!(addresses, [Some(address)]);
}

#[tokio::test]
async fn a_guard_judges_a_caller_in_the_process_by_its_certificate() {
    let scene = Scene::default();
    let (guard, _) = Access::default().open(true).expect("it opens no file");
    let seen = Arc::clone(&scene.peers);
    let read = move |request: Request| {
        seen.lock().expect("no holder panics").push(request.extensions().get().cloned());
        async { "answered".into_response() }
    };
    let routes = guard.over(Routes::from(Router::new().route(READ, any(read))));
    let services = Front::new().services(routes);
    let of = |roles: &[Role]| Identity {
        subject: "CN=node-1".to_owned(),
        serial: String::new(),
        fingerprint: String::new(),
        roles: Roles::of(roles),
        process: Some("node-1".to_owned()),
        member: None,
    };
    for (identity, code) in [
        (Some(of(&[Role::Node, Role::Coordinator])), Code::Ok),
        (Some(of(&[Role::Node])), Code::PermissionDenied),
        (None, Code::PermissionDenied),
    ] {
        let channel = services.channel(Peer { identity: identity.map(Arc::new), ..Peer::default() });
        assert_eq!(call(&channel, READ, None).await, code);
    }
    assert_eq!(scene.peers.lock().expect("no holder panics").len(), 1, "no denied call came through");
}
