//! Streams of batches, pins, prune by policy, and the outcome of writes whose clients have gone.

use std::time::Duration;

use coppice_coordinator::Retention;
use coppice_types::{Params, Reason, SessionId, Term, Version};
use coppice_verify::header::{Body, Header, Prune};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::iter;

mod common;

use common::{LIMIT, World, absent, bytes, commit, get, proxy::Fate, prune_before, put, reason};
use coppice_proto::v1;

type Client = coppice_proto::v1::ledger_client::LedgerClient<coppice_proto::Channel>;

const SESSION: [u8; 16] = [5; 16];

async fn small(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::of(1, &[], Params::default()).await;
    change(&mut world);
    world
}

async fn commit_many(client: &mut Client, count: u64) -> u64 {
    let mut version = 0;
    for number in 0..count {
        let request = commit(vec![put("k", &number.to_string())], Vec::new());
        version = client.commit(request).await.expect("it is committed").into_inner().stamp.expect("a stamp").version;
    }
    version
}

async fn prune(client: &mut Client, before: u64) -> Result<v1::AdminResponse, tonic::Status> {
    let request = prune_before(before);
    Ok(client.prune(request).await?.into_inner())
}

async fn pin(client: &mut Client, version: u64) -> Result<v1::VersionPin, tonic::Status> {
    let request = v1::PinRequest { pin_id: bytes("0123456789abcdef"), version: Some(version), ttl_ms: 60_000 };
    Ok(client.pin(request).await?.into_inner().pin.expect("a pin"))
}

async fn open_session(client: &mut Client) -> u64 {
    let request = v1::OpenSessionRequest { session_id: SESSION.to_vec().into() };
    client.open_session(request).await.expect("it is opened").into_inner().highest_number
}

fn numbered(number: u64, batch: v1::CommitRequest) -> v1::CommitStreamRequest {
    v1::CommitStreamRequest {
        session_id: SESSION.to_vec().into(),
        number,
        batch: batch.batch,
        want_receipt: number.is_multiple_of(50),
    }
}

async fn value(client: &mut Client, key: &str) -> Option<String> {
    let record = client.get(get(key, None)).await.expect("it is read").into_inner().record.expect("a record");
    record.found.then(|| String::from_utf8(record.value.to_vec()).expect("tests write text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_version_is_not_pruned_and_the_pin_is_named() {
    let world = small(|_| {}).await;
    let leader = world.leader().await;
    let mut client = leader.client.clone();
    commit_many(&mut client, 5).await;
    let pinned = pin(&mut client, 2).await.expect("it stands");
    assert_eq!(pin(&mut client, 9).await.expect_err("it is not there yet").code(), tonic::Code::FailedPrecondition);
    let refused = prune(&mut client, 4).await.expect_err("a pin holds version 2");
    assert_eq!(reason(&refused), Reason::Pinned);
    assert!(refused.message().contains("30313233343536373839616263646566"), "{}", refused.message());
    assert_eq!(prune(&mut client, 2).await.expect("up to the pin").pruned_boundary, 2);
    let listed = client.list_pins(v1::ListPinsRequest {}).await.expect("they are listed").into_inner().pins;
    assert_eq!(listed, std::slice::from_ref(&pinned));
    let unpin = v1::UnpinRequest { pin_id: pinned.id };
    assert!(client.unpin(unpin.clone()).await.expect("it is taken back").into_inner().found);
    assert!(!client.unpin(unpin).await.expect("a repetition is not an error").into_inner().found);
    assert_eq!(prune(&mut client, 4).await.expect("nothing holds it").pruned_boundary, 4);
    // The refusal did not end the leadership.
    assert_eq!(leader.handle.leadership().term, Some(Term(1)));
}

/// The prunes in the root log.
async fn prunes(client: &mut Client) -> Vec<Prune> {
    let request = v1::WatchHeadsRequest::default();
    let mut stream = client.watch_heads(request).await.expect("the log is served").into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await.expect("the log is served") {
        if let Body::Prune(prune) = Header::decode(&message.header).expect("a header").body {
            found.push(prune);
        }
    }
    found
}

async fn until_pruned(client: &mut Client, from: u64) -> u64 {
    let reached = async {
        loop {
            let head = client.head(v1::HeadRequest::default()).await.expect("it is known").into_inner();
            if head.pruned_boundary >= from {
                return head.pruned_boundary;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, reached).await.expect("the policy prunes in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_are_pruned_by_policy_and_never_above_a_pin() {
    let world = small(|world| {
        world.limits.retention = Some(Retention::Versions(4));
        world.limits.retention_interval = Duration::from_millis(20);
    });
    let world = world.await;
    let mut client = world.leader().await.client;
    commit_many(&mut client, 30).await;
    let boundary = until_pruned(&mut client, 1).await;
    assert!(boundary <= 27, "four of thirty versions are kept: {boundary}");
    pin(&mut client, 28).await.expect("it stands");
    commit_many(&mut client, 60).await;
    assert_eq!(until_pruned(&mut client, 28).await, 28);
    let prunes = prunes(&mut client).await;
    assert!(prunes.iter().all(|prune| prune.boundary <= Version(28)), "{prunes:?}");
    assert!(
        prunes
            .iter()
            .all(|prune| prune.principal.starts_with("coordinator ")
                && prune.principal.ends_with(" (by retention policy)")),
        "{prunes:?}"
    );
    assert_eq!(prunes[0].reason, "keep the newest 4 versions");
    assert!(prunes.len() < 5, "prunes come in steps: {prunes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_pruned_by_the_time_of_their_headers() {
    let world = small(|world| {
        world.limits.retention = Some(Retention::Age(Duration::from_millis(100)));
        world.limits.retention_interval = Duration::from_millis(20);
    });
    let world = world.await;
    let mut client = world.leader().await.client;
    let newest = commit_many(&mut client, 5).await;
    // Nothing is written any more, so in the end all versions but head are too old.
    assert_eq!(until_pruned(&mut client, newest).await, newest);
    assert_eq!(value(&mut client, "k").await.as_deref(), Some("4"), "head stays, however old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_answered_in_order_and_found_again() {
    let world = small(|_| {}).await;
    let mut client = world.leader().await.client;
    assert_eq!(open_session(&mut client).await, 0);
    for first in [1, 101] {
        // The second time, half of the batches were there before.
        let from = if first == 1 { 1 } else { 51 };
        let batch = |number: u64| commit(vec![put("k", &number.to_string())], Vec::new());
        let batches = (from..first + 100).map(move |number| numbered(number, batch(number)));
        let mut answers = client.commit_stream(iter(batches)).await.expect("it is opened").into_inner();
        let mut version = 0;
        for number in from..first + 100 {
            let answer = answers.message().await.expect("it is committed").expect("every batch is answered");
            assert_eq!(answer.number, number);
            let commit = answer.commit.expect("an answer");
            assert_eq!(commit.replayed, number < first);
            assert_eq!(!commit.receipt.is_empty(), number.is_multiple_of(50));
            let stamp = commit.stamp.expect("a stamp");
            assert!(stamp.version >= version, "versions ascend");
            version = stamp.version;
        }
        assert!(answers.message().await.expect("it ends well").is_none());
    }
    assert_eq!(value(&mut client, "k").await.as_deref(), Some("200"));
    assert_eq!(open_session(&mut client).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_batch_ends_its_stream_and_nothing_after_it_is_applied() {
    let world = small(|_| {}).await;
    let mut client = world.leader().await.client;
    open_session(&mut client).await;
    let batch = |number: u64| {
        let checks = if number == 3 { vec![absent("k1")] } else { Vec::new() };
        numbered(number, commit(vec![put(&format!("k{number}"), "v")], checks))
    };
    let mut answers = client.commit_stream(iter((1..=9).map(batch))).await.expect("it is opened").into_inner();
    for number in [1, 2] {
        assert_eq!(answers.message().await.expect("it is committed").expect("an answer").number, number);
    }
    let refused = answers.message().await.expect_err("k1 is there");
    assert_eq!(reason(&refused), Reason::PreconditionFailed);
    // A later batch of the session takes the number of the refused one.
    let instead = numbered(3, commit(vec![put("k3", "instead")], vec![absent("k4")]));
    let mut answers = client.commit_stream(iter([instead])).await.expect("it is opened").into_inner();
    assert_eq!(answers.message().await.expect("it is committed").expect("an answer").number, 3);
    for number in 4..=9 {
        assert_eq!(value(&mut client, &format!("k{number}")).await, None, "number {number} followed the refused one");
    }
    assert_eq!(open_session(&mut client).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_checked() {
    let world = small(|_| {}).await;
    let mut client = world.leader().await.client;
    open_session(&mut client).await;
    let batch = |number: u64| numbered(number, commit(vec![put("k", "v")], Vec::new()));
    let nameless = v1::CommitStreamRequest { session_id: bytes(""), ..batch(1) };
    let other = v1::CommitStreamRequest { session_id: bytes("another session!"), ..batch(2) };
    let empty = v1::CommitStreamRequest { batch: None, ..batch(1) };
    let apart = vec![batch(1), batch(3)];
    for bad in [vec![nameless], vec![batch(1), other], apart, vec![batch(0)], vec![empty], vec![batch(5), batch(6)]] {
        let mut answers = client.commit_stream(iter(bad.clone())).await.expect("it is opened").into_inner();
        let ended = loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it is accepted: {bad:?}"),
                Err(error) => break error,
            }
        };
        assert_eq!(reason(&ended), Reason::InvalidArgument, "{bad:?}");
    }
}

/// A batch that no version has taken is dropped with its client. A batch that a version has taken
/// is decided without its client.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_batches_of_a_client_that_has_gone_are_not_written() {
    let world = small(|_| {}).await;
    let mut client = world.leader().await.client;
    commit_many(&mut client, 1).await;
    let (arrived, mut prepares) = tokio::sync::mpsc::unbounded_channel();
    world.faults.set(move |call| {
        if call.name == "prepare" {
            // The test may have ended.
            let _ = arrived.send(());
            return Fate::Lost;
        }
        Fate::Pass
    });
    let mut first = client.clone();
    let taken = tokio::spawn(async move { first.commit(commit(vec![put("taken", "v")], Vec::new())).await });
    timeout(LIMIT, prepares.recv()).await.expect("its prepare arrives").expect("the rule holds the sender");
    let mut request = tonic::Request::new(commit(vec![put("waiting", "v")], Vec::new()));
    request.set_timeout(Duration::from_millis(50));
    client.commit(request).await.expect_err("nothing is committed in this time");
    world.faults.clear();
    // The first batch may be refused, since its shard did not answer in time. Nothing else may
    // happen to it.
    let first = taken.await.expect("the task ends");
    assert!(first.is_ok() || first.is_err_and(|error| reason(&error) == Reason::Unavailable));
    let version = timeout(LIMIT, async {
        loop {
            if let Ok(answer) = client.commit(commit(vec![put("after", "v")], Vec::new())).await {
                return answer.into_inner().stamp.expect("a stamp").version;
            }
        }
    });
    version.await.expect("the shard answers again");
    assert_eq!(value(&mut client, "waiting").await, None);
}

/// Waits until a node other than `before` leads a group. Returns its name.
async fn led_by_another(world: &World, group: u32, before: Option<usize>) -> usize {
    let leads = |node: &coppice_shard_node::Handle| {
        let replicas = node.status().replicas.into_iter();
        replicas.filter(|it| it.group == group).any(|it| it.status.is_some_and(|status| status.role == "leader"))
    };
    let look = async {
        loop {
            if let Some(at) = (0..world.nodes.len()).find(|&at| Some(at) != before && leads(&world.nodes[at])) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, look).await.expect("somebody leads")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_falls_silent_is_left_when_another_takes_over() {
    let mut world = World::new(Params::default()).await;
    // No time-out ends a call within this test.
    for limit in [&mut world.limits.attempt_timeout, &mut world.limits.root_timeout, &mut world.limits.prepare_timeout]
    {
        *limit = 10 * LIMIT;
    }
    let mut client = world.leader().await.client;
    commit_many(&mut client, 3).await;
    for (group, call) in [(0, "append_header"), (1, "prepare")] {
        let silent = led_by_another(&world, group, None).await;
        let (hangs, mut hung) = tokio::sync::mpsc::unbounded_channel();
        world.faults.set(move |passing| match passing.name == call {
            true => {
                hangs.send(()).expect("the test waits");
                Fate::Lost
            }
            false => Fate::Pass,
        });
        let mut writer = client.clone();
        let write = tokio::spawn(async move { writer.commit(commit(vec![put("a", "1")], Vec::new())).await });
        timeout(LIMIT, hung.recv()).await.expect("it is sent").expect("the rule stands");
        world.faults.clear();
        world.nodes[silent].stop_replica(coppice_types::GroupId::from_number(group)).await.expect("it stops");
        led_by_another(&world, group, Some(silent)).await;
        timeout(LIMIT, write).await.expect("it ends").expect("no panic").expect("it is committed");
        let replica =
            world.replica(u32::try_from(silent).expect("few") + 1, coppice_types::GroupId::from_number(group));
        world.nodes[silent].start_replica(replica).await.expect("it starts again");
    }
}

/// The note in the report of a node's replica of a group.
fn note_of(node: &coppice_shard_node::Handle, group: u32) -> String {
    let replica = node.status().replicas.into_iter().find(|it| it.group == group).expect("it has one");
    replica.status.expect("it reports a status").note
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leadership_goes_to_no_replica_that_should_not_lead() {
    let world = World::of(3, &[], Params::default()).await;
    let mut client = world.leader().await.client;
    let leader = led_by_another(&world, 1, None).await;
    let full = (leader + 1) % 3;
    let node = format!("node-{}", full + 1);
    let transfer = v1::TransferLeaderRequest { group: "shard-0".to_owned(), node: node.clone() };
    world.disks[full].set_capacity(Some(world.disks[full].used_bytes() + (64 << 10)));
    let long = "v".repeat(64 << 10);
    let fill = async {
        while note_of(&world.nodes[full], 1) != "the disk is full" {
            client.commit(commit(vec![put("k", &long)], Vec::new())).await.expect("the others have room");
        }
    };
    timeout(LIMIT, fill).await.expect("its disk is full");
    let refusal = client.transfer_leader(transfer.clone()).await.expect_err("it would hand it on");
    assert_eq!(reason(&refusal), Reason::Unavailable, "{refusal}");
    assert!(refusal.message().contains(&format!("{node} can't lead shard-0: the disk is full")), "{refusal}");

    world.disks[full].set_capacity(None);
    let lead = async {
        // On a slow machine the disk may look slow for a while.
        while client.transfer_leader(transfer.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, lead).await.expect("it leads once there is room");
}

/// Sends this many batches at once, each with a key of its own and a value of this size, while no
/// version is decided. Then lets all of them continue. Checks that exactly the batches that were
/// not refused are written. Returns the refusals.
async fn crowd(world: &World, batches: usize, refused: usize, value_bytes: usize) -> Vec<String> {
    let mut client = world.leader().await.client;
    commit_many(&mut client, 1).await;
    world.faults.set(|call| if call.name == "prepare" { Fate::Lost } else { Fate::Pass });
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..batches {
        let mut client = client.clone();
        let batch = commit(vec![put(&format!("key-{number:04}"), &"v".repeat(value_bytes))], Vec::new());
        calls.spawn(async move { (number, client.commit(batch).await) });
    }
    let mut told = Vec::new();
    let mut written = vec![true; batches];
    for _ in 0..refused {
        let ended = timeout(LIMIT, calls.join_next()).await.expect("refused at once").expect("there are more");
        let (number, answer) = ended.expect("no client panics");
        let refusal = answer.expect_err("nothing can be decided");
        assert_eq!(reason(&refusal), Reason::ResourceExhausted, "{refusal}");
        told.push(refusal.message().to_owned());
        written[number] = false;
    }
    world.faults.clear();
    while let Some(ended) = timeout(LIMIT, calls.join_next()).await.expect("all are answered") {
        let (number, answer) = ended.expect("no client panics");
        answer.unwrap_or_else(|error| panic!("number {number} was taken: {error}"));
    }
    for (number, written) in written.into_iter().enumerate() {
        assert_eq!(value(&mut client, &format!("key-{number:04}")).await.is_some(), written, "number {number}");
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once_and_loses_nothing_that_it_took() {
    let mut world = small(|world| world.limits.queue_max = 8).await;
    world.limits.prepare_timeout = LIMIT;
    let told = crowd(&world, 40, 32, 1).await;
    assert!(told.iter().all(|told| told.contains("queue_max is 8")), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_takes_a_place_in_the_queue_too() {
    let mut world = small(|world| world.limits.queue_max = 1).await;
    world.limits.prepare_timeout = LIMIT;
    let mut client = world.leader().await.client;
    let mut prepares = world.faults.after(0, Fate::Lost);
    let mut first = client.clone();
    let taken = tokio::spawn(async move { first.commit(commit(vec![put("taken", "v")], Vec::new())).await });
    timeout(LIMIT, prepares.recv()).await.expect("its prepare arrives").expect("the rule holds the sender");
    let batch = commit(vec![put("staged", "v")], Vec::new()).batch;
    let staged = client.stage(v1::StageRequest { batch, ..v1::StageRequest::default() });
    let refused = timeout(LIMIT / 2, staged).await.expect("it does not wait").expect_err("a commit has the place");
    assert!(refused.message().contains("queue_max is 1"), "{refused:?}");
    world.faults.clear();
    taken.await.expect("the task ends").expect("its prepare is sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_full_by_bytes_too() {
    let sizes = (32 << 10, 64 << 10);
    let params =
        Params { value_bytes_max: sizes.0, batch_bytes_max: sizes.0, message_bytes_max: sizes.1, ..Params::default() };
    let mut world = World::of(1, &[], params).await;
    world.limits.prepare_timeout = LIMIT;
    world.limits.queue_bytes_max = 1;
    // One message always fits: the queue has room for the largest one, with the transport's
    // overhead.
    let room = (64 << 10) + (1 << 20);
    let fit = room / (30_000 + 8 + 24);
    let told = crowd(&world, fit + 23, 23, 30_000).await;
    assert!(told.iter().all(|told| told.contains("queue_bytes_max is 1")), "{told:?}");
}

/// A connection has at most 1,024 open calls. Further ones are neither refused nor lost.
#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_of_a_connection_wait_at_their_client() {
    let mut world = small(|_| {}).await;
    world.limits.prepare_timeout = LIMIT;
    crowd(&world, 1500, 0, 1).await;
}

/// The second batch is refused at once, while the first one is being decided.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_says_nothing_of_a_batch_that_was_not_answered() {
    let world = small(|_| {}).await;
    let _leader = world.leader().await;
    let routes = vec![("a".to_owned(), world.net.connector("sdk").channel("a"))];
    let client = coppice_client::Client::over(routes, 1, &coppice_client::Options::new("http://ledger:1"));
    let mut session = client.open_session(SessionId(SESSION)).await.expect("it is opened");
    let (appended, mut being_decided) = mpsc::unbounded_channel();
    world.faults.set(move |call| {
        if call.name != "append_header" {
            return Fate::Pass;
        }
        // The test watches only the first call.
        let _ = appended.send(());
        Fate::AnswerLost
    });
    let batch = |key| v1::Batch { operations: vec![put(key, "1")], ..v1::Batch::default() };
    let mut stream = session.stream(false);
    stream.push(batch("a")).await.expect("it is sent");
    timeout(LIMIT, being_decided.recv()).await.expect("it is being decided in time");
    stream.push(batch("")).await.expect("it is sent");
    let error = timeout(LIMIT, stream.next()).await.expect("in time").expect_err("there is no such key");
    assert_eq!(error.reason(), Some(Reason::InvalidArgument));
    assert!(error.outcome_unknown(), "the first batch may have been committed: {error}");
    world.faults.clear();
    let first = session.commit(batch("a"), false).await.expect("it is answered again");
    assert!(first.replayed, "it was committed");
    let second = session.commit(batch("b"), false).await.expect("the number of the refused batch is free");
    assert_eq!((second.replayed, second.stamp.map(|stamp| stamp.version)), (false, Some(2)));
}
