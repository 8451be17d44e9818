//! No caller can use up a scarce resource: sessions, stages, pins, streams that follow the log.

use coppice_proto::v1;
use coppice_types::{Params, Reason};
use tonic::Status;

mod common;

use common::{LIMIT, World, commit, put, reason};

async fn small() -> World {
    let mut world = World::of(1, &[], Params::default()).await;
    let limits = &mut world.limits;
    (limits.sessions_per_caller_max, limits.pins_per_caller_max) = (2, 2);
    (limits.stages_per_caller_max, limits.follows_per_caller_max) = (2, 2);
    world
}

fn exceeded(refused: &Status, says: &str) {
    assert_eq!(reason(refused), Reason::QuotaExceeded, "{refused}");
    assert!(refused.message().contains(says), "{}", refused.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_its_quota_of_sessions_keeps_them_and_is_told_how_long_to_wait() {
    let world = small().await;
    let mut client = world.leader().await.client;
    let open = |session: u8| v1::OpenSessionRequest { session_id: vec![session; 16].into() };
    for session in [1, 2, 1] {
        client.open_session(open(session)).await.expect("it is one of two");
    }
    let refused = client.open_session(open(3)).await.expect_err("it would be the third");
    exceeded(
        &refused,
        "in-process has 2 sessions in use, as many as one caller may have: use one of them again, or wait",
    );
    for session in [1, 2] {
        let batch = commit(vec![put("k", "v")], Vec::new());
        let request = v1::CommitRequest { session_id: vec![session; 16].into(), number: 1, ..batch };
        client.commit(request).await.expect("it has that session");
    }
    // A session that another coordinator opened counts when it is used.
    let batch = commit(vec![put("k", "v")], Vec::new());
    let request = v1::CommitRequest { session_id: vec![4; 16].into(), number: 1, ..batch };
    exceeded(&client.commit(request).await.expect_err("it would be the third"), "sessions in use");
    client.commit(commit(vec![put("k", "v")], Vec::new())).await.expect("a commit without a session needs none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_its_quota_of_stages_stages_again_after_a_discard() {
    let world = small().await;
    let mut client = world.leader().await.client;
    let stage = |key: &str| v1::StageRequest {
        batch: commit(vec![put(key, "v")], Vec::new()).batch,
        ..v1::StageRequest::default()
    };
    let first = client.stage(stage("a")).await.expect("it is one of two").into_inner().stage_id;
    client.stage(stage("b")).await.expect("it is one of two");
    exceeded(&client.stage(stage("c")).await.expect_err("it would be the third"), "finalize or discard one");
    client.discard(v1::DiscardRequest { stage_id: first }).await.expect("it is dropped");
    client.stage(stage("c")).await.expect("there is a place again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_its_quota_of_pins_pins_again_after_an_unpin() {
    let world = small().await;
    let mut client = world.leader().await.client;
    client.commit(commit(vec![put("k", "v")], Vec::new())).await.expect("it is committed");
    let pin = |id: u8, version| v1::PinRequest { pin_id: vec![id; 16].into(), version: Some(version), ttl_ms: 60_000 };
    client.pin(pin(9, 7)).await.expect_err("there is no such version");
    for id in [1, 2, 1] {
        client.pin(pin(id, 1)).await.expect("it is one of two");
    }
    exceeded(&client.pin(pin(3, 1)).await.expect_err("it would be the third"), "unpin one, or wait");
    client.unpin(v1::UnpinRequest { pin_id: vec![1; 16].into() }).await.expect("it is taken back");
    client.pin(pin(3, 1)).await.expect("there is a place again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_its_quota_of_streams_opens_one_again_after_one_has_ended() {
    let world = small().await;
    let mut client = world.leader().await.client;
    let follow = || v1::WatchHeadsRequest { follow: true, ..v1::WatchHeadsRequest::default() };
    let first = client.watch_heads(follow()).await.expect("it is one of two");
    let _second = client.watch_heads(follow()).await.expect("it is one of two");
    exceeded(&client.watch_heads(follow()).await.expect_err("it would be the third"), "end one");
    client.watch_heads(v1::WatchHeadsRequest::default()).await.expect("a stream that ends by itself does not count");
    drop(first);
    let again = async {
        while client.watch_heads(follow()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, again).await.expect("its place is given back");
}
