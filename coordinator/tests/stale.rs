//! A coordinator that has missed a change must not answer from old state.

use std::time::Duration;

use coppice_proto::v1;
use coppice_types::{Params, Reason};

mod common;

use common::{World, at, commit, get, proxy::proxy_of, put, reason};

/// PROTOCOL 7.1: after an acknowledged rollback a stale coordinator asks a follower that has not
/// applied it yet. Explicit versions need a ReadIndex, as head does.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_coordinator_and_a_stale_follower_do_not_undo_a_rollback() {
    let mut world = World::new(Params::default()).await;
    world.limits.read_timeout = Duration::from_secs(1);
    world.limits.root_timeout = Duration::from_secs(1);
    let leader = world.leader().await;
    let mut client = leader.client.clone();
    for version in 1..=6 {
        let batch = commit(vec![put("a", &version.to_string()), put("z", "1")], Vec::new());
        client.commit(batch).await.expect("committed");
    }
    let stale = world.coordinator("b");
    let mut old = stale.client.clone();
    let before = old.get(get("a", Some(at(0, 6)))).await.expect("it stands").into_inner();
    assert_eq!(before.record.expect("a record").last_changed, Some(at(0, 6)));
    // From now on node 3 hears nothing from the others, and b reaches only node 3.
    for node in ["node-1", "node-2"] {
        world.net.cut("node-3", node);
        world.net.cut("b", &proxy_of(node));
    }
    world.net.cut("a", &proxy_of("node-3"));
    let rollback = v1::RollbackRequest {
        to: Some(3),
        reason: "a mistake".to_owned(),
        principal: "someone".to_owned(),
        expected_head: Some(at(0, 6)),
    };
    client.rollback(rollback).await.expect("a majority is there");
    for stands in [6, 4] {
        let refused = old.get(get("a", Some(at(0, stands)))).await.expect_err("b can't know that it stands");
        assert_eq!(reason(&refused), Reason::Unavailable, "{refused}");
    }
    let refused = old.get(get("a", None)).await.expect_err("b can't know the head");
    assert_eq!(reason(&refused), Reason::Unavailable, "{refused}");
    // A client that accepts an old answer gets one, or none.
    let read = v1::ReadOptions { at: Some(at(0, 6)), stale_ok: true, ..v1::ReadOptions::default() };
    let answer = old.get(v1::GetRequest { read: Some(read), ..get("a", None) }).await;
    assert!(answer.map_or(true, |answer| answer.into_inner().record.is_some()));
    for node in ["node-1", "node-2"] {
        world.net.heal("node-3", node);
        world.net.heal("b", &proxy_of(node));
    }
    let told = async {
        loop {
            match old.get(get("a", Some(at(0, 6)))).await {
                Ok(answer) => panic!("a rolled-back version is served: {answer:?}"),
                Err(error) if reason(&error) == Reason::RolledBack => return,
                Err(error) => assert_eq!(reason(&error), Reason::Unavailable, "{error}"),
            }
        }
    };
    tokio::time::timeout(common::LIMIT, told).await.expect("b learns of it");
    let now = old.get(get("a", None)).await.expect("it is read").into_inner();
    assert_eq!(now.record.expect("a record").last_changed, Some(at(0, 3)));
}
