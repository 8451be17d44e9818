//! The commit protocol against real nodes: commits, refusals, sessions, proofs, and the traces of
//! protocol.md that need a cluster.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use coppice_types::{GroupId, Params, Reason, Stamp};
use coppice_verify::{
    check::{Answer, Claim},
    header::Header,
    verify,
};

mod common;

use common::{
    World, absent, at, bytes, commit, delete, get,
    proxy::{Call, Fate, Said},
    prune_before, put, reason, roll_back, value_is,
};
use coppice_proto::v1;

type Client = coppice_proto::v1::ledger_client::LedgerClient<coppice_proto::Channel>;

async fn value_at(client: &mut Client, key: &str, stamp: Option<v1::Stamp>) -> Result<Option<String>, tonic::Status> {
    let answer = client.get(get(key, stamp)).await?.into_inner();
    let record = answer.record.expect("an answer has a record");
    Ok(record.found.then(|| String::from_utf8(record.value.to_vec()).expect("tests write text")))
}

async fn range(client: &mut Client, low: &str, high: Option<&str>, limit: u32) -> (Vec<String>, v1::RangeEnd) {
    let request = v1::RangeRequest { low: bytes(low), high: high.map(bytes), limit, ..Default::default() };
    range_of(client, request).await
}

async fn range_of(client: &mut Client, mut request: v1::RangeRequest) -> (Vec<String>, v1::RangeEnd) {
    request.read = Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() });
    let mut stream = client.range(request).await.expect("the range is served").into_inner();
    let mut keys = Vec::new();
    while let Some(message) = stream.message().await.expect("the range is served") {
        keys.extend(message.records.iter().map(|record| String::from_utf8_lossy(&record.key).into_owned()));
        if let Some(end) = message.end {
            return (keys, end);
        }
    }
    panic!("the last message has the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_read_and_proven_at_every_version() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let key = world.key();
    let mut headers = Vec::new();
    for version in 1..=5_u64 {
        let operations = vec![put("a", &format!("a{version}")), put("z", &format!("z{version}")), delete("gone")];
        let request = v1::CommitRequest { want_receipt: true, ..commit(operations, Vec::new()) };
        let answer = client.commit(request).await.expect("it is committed").into_inner();
        assert_eq!(answer.stamp, Some(at(0, version)));
        let receipt = verify(&answer.receipt, key.verifier(), None).expect("the receipt is sound");
        let Claim::Receipt(claim) = receipt.claim else { panic!("a receipt was asked for") };
        assert_eq!(claim.header.encode(), answer.header);
        headers.push(answer.header);
    }
    for version in 1..=5_u64 {
        let answer = client.get(get("z", Some(at(0, version)))).await.expect("it is read").into_inner();
        assert_eq!(answer.read_at, Some(at(0, version)));
        assert_eq!(answer.record.expect("a record").value, format!("z{version}"));
        let proof = verify(&answer.proof, key.verifier(), None).expect("the proof is sound");
        let Claim::Query(claim) = proof.claim else { panic!("a query was proven") };
        assert_eq!(claim.header.encode(), headers[version as usize - 1]);
        let Answer::Keys(found) = claim.answer else { panic!("keys were asked for") };
        let record = found[0].1.as_ref().expect("it was found");
        assert_eq!(record.value.as_deref(), Some(format!("z{version}").as_bytes()));
    }
    let absent = client.get(get("gone", None)).await.expect("it is read").into_inner();
    assert!(!absent.record.expect("a record").found);
    verify(&absent.proof, key.verifier(), None).expect("absence is proven");
    let error = client.get(get("a", Some(at(0, 6)))).await.expect_err("version 6 does not exist yet");
    assert_eq!(reason(&error), Reason::NotYet);
    let genesis = client.get(get("a", Some(at(0, 0)))).await.expect("genesis is readable").into_inner();
    assert!(!genesis.record.expect("a record").found);
    verify(&genesis.proof, key.verifier(), None).expect("the empty state is proven");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_values_of_an_answer_are_sent_once_if_the_client_wants_that() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let key = world.key();
    client.commit(commit(vec![put("a", "1"), put("z", "2")], Vec::new())).await.expect("it is committed");
    let options = |want_proof| v1::ReadOptions { want_proof, values_in_proof: true, ..v1::ReadOptions::default() };
    for (want_proof, expected) in [(true, ["", "", ""]), (false, ["2", "", "1"])] {
        let keys = ["z", "none", "a"].map(bytes).to_vec();
        let request = v1::BatchGetRequest { keys, read: Some(options(want_proof)) };
        let answer = client.batch_get(request).await.expect("they are read").into_inner();
        assert_eq!(
            answer.records.iter().map(|record| &record.value[..]).collect::<Vec<_>>(),
            expected.map(str::as_bytes)
        );
        assert_eq!(answer.records.iter().map(|record| record.found).collect::<Vec<_>>(), [true, false, true]);
        if want_proof {
            let proof = verify(&answer.proof, key.verifier(), None).expect("the proof is sound");
            let Claim::Query(claim) = proof.claim else { panic!("a query was proven") };
            let Answer::Keys(found) = claim.answer else { panic!("keys were asked for") };
            let values = found.iter().filter_map(|(_, record)| record.as_ref()?.value.as_deref());
            assert_eq!(values.collect::<Vec<_>>(), [b"1", b"2"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_an_old_header_is_asked_for_once_and_only_kept_if_it_is_true() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let key = world.key();
    for value in ["1", "2", "3"] {
        client.commit(commit(vec![put("a", value)], Vec::new())).await.expect("it is committed");
    }
    let old = get("a", Some(at(0, 1)));
    world.faults.lie(|_, said| {
        if let Said::Read(answer) = said
            && let Some(hash) = answer.inclusion.first_mut().and_then(|path| path.hashes.first_mut())
        {
            *hash = vec![0; 32].into();
        }
    });
    let error = client.get(old.clone()).await.expect_err("the path leads elsewhere");
    assert_eq!(reason(&error), Reason::Internal);
    world.faults.tell_the_truth();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    world.faults.set(move |call| {
        if call.name == "prove_log" {
            tell.send(()).expect("the test listens");
        }
        Fate::Pass
    });
    for _ in 0..3 {
        let answer = client.get(old.clone()).await.expect("it is read").into_inner();
        verify(&answer.proof, key.verifier(), None).expect("the proof is sound");
    }
    told.try_recv().expect("the first read asks");
    told.try_recv().expect_err("the others remember");
    client.commit(commit(vec![put("a", "4")], Vec::new())).await.expect("it is committed");
    let answer = client.get(old).await.expect("it is read").into_inner();
    verify(&answer.proof, key.verifier(), None).expect("the proof is sound");
    told.try_recv().expect("the log has grown");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_histories_and_differences_cross_shards() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let key = world.key();
    for batch in
        [vec![put("a", "1"), put("k", "1"), put("n", "1")], vec![put("p", "2"), put("a", "2")], vec![delete("k")]]
    {
        client.commit(commit(batch, Vec::new())).await.expect("it is committed");
    }
    for (low, high, limit, expected, more) in [
        ("", None, 0, vec!["a", "n", "p"], false),
        ("", None, 2, vec!["a", "n"], true),
        ("", None, 3, vec!["a", "n", "p"], false),
        ("", None, 1, vec!["a"], true),
        ("b", Some("m"), 0, vec![], false),
        ("a", Some("n"), 1, vec!["a"], false),
        ("o", Some("pp"), 9, vec!["p"], false),
    ] {
        let (keys, end) = range(&mut client, low, high, limit).await;
        assert_eq!(
            (&keys, end.more),
            (&expected.iter().map(ToString::to_string).collect(), more),
            "{low} {high:?} {limit}"
        );
        let proof = verify(&end.proof, key.verifier(), None).expect("the range is proven");
        let Claim::Query(claim) = proof.claim else { panic!("a query was proven") };
        let Answer::Range { records, .. } = claim.answer else { panic!("a range was asked for") };
        let proven: Vec<_> = records.iter().map(|record| String::from_utf8_lossy(&record.key).into_owned()).collect();
        assert_eq!(proven, keys);
    }
    for (low, high, limit, expected, more) in [
        ("", None, 0, vec!["p", "n", "a"], false),
        ("", None, 1, vec!["p"], true),
        ("", None, 2, vec!["p", "n"], true),
        ("", None, 3, vec!["p", "n", "a"], false),
        ("", Some("n"), 1, vec!["a"], false),
        ("b", Some("p"), 9, vec!["n"], false),
        ("b", Some("m"), 0, vec![], false),
    ] {
        let request =
            v1::RangeRequest { low: bytes(low), high: high.map(bytes), limit, reverse: true, ..Default::default() };
        let (keys, end) = range_of(&mut client, request).await;
        let told = (keys.iter().map(String::as_str).collect::<Vec<_>>(), end.more);
        assert_eq!(told, (expected, more), "back from {high:?} to {low}, {limit}");
        let proof = verify(&end.proof, key.verifier(), None).expect("the range is proven");
        let Claim::Query(claim) = proof.claim else { panic!("a query was proven") };
        let Answer::Range { records, .. } = claim.answer else { panic!("a range was asked for") };
        assert!(records.iter().rev().map(|record| &record.key[..]).eq(keys.iter().map(String::as_bytes)));
    }
    let request = v1::HistoryRequest { key: bytes("k"), ..v1::HistoryRequest::default() };
    let mut stream = client.history(request).await.expect("served").into_inner();
    let mut changes = Vec::new();
    while let Some(message) = stream.message().await.expect("served") {
        let change = message.change.expect("a change");
        changes.push((change.found, change.last_changed.expect("a stamp").version));
    }
    assert_eq!(changes, [(false, 3), (true, 1)]);
    for backwards in [false, true] {
        let (from, to) = if backwards { (at(0, 3), at(0, 1)) } else { (at(0, 1), at(0, 3)) };
        let request = v1::DiffRequest { from: Some(from), to: Some(to), ..v1::DiffRequest::default() };
        let mut stream = client.diff(request).await.expect("served").into_inner();
        let mut differences = Vec::new();
        while let Some(message) = stream.message().await.expect("served") {
            for difference in message.differences {
                let side = |record: Option<v1::Record>| {
                    let record = record.expect("both sides are given");
                    record.found.then(|| String::from_utf8_lossy(&record.value).into_owned())
                };
                let key = difference.after.as_ref().expect("both sides are given").key.clone();
                let sides = (side(difference.before), side(difference.after));
                let (before, after) = if backwards { (sides.1, sides.0) } else { sides };
                differences.push((String::from_utf8_lossy(&key).into_owned(), before, after));
            }
        }
        let text = |value: &str| Some(value.to_owned());
        let expected = [
            ("a".to_owned(), text("1"), text("2")),
            ("k".to_owned(), text("1"), None),
            ("p".to_owned(), None, text("2")),
        ];
        assert_eq!(differences, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_share_versions_and_preconditions_hold() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let mut client = running.client.clone();
            tokio::spawn(async move {
                // All clients try to create the same key.
                let won = client.commit(commit(vec![put("one", &format!("{number}"))], vec![absent("one")])).await;
                let own = format!("own-{number}");
                client.commit(commit(vec![put(&own, "1")], Vec::new())).await.expect("it is committed");
                match won {
                    Ok(_) => Some(number),
                    Err(error) => {
                        assert_eq!(reason(&error), Reason::PreconditionFailed);
                        None
                    }
                }
            })
        })
        .collect();
    let mut winners = Vec::new();
    for task in tasks {
        winners.extend(task.await.expect("no client panics"));
    }
    assert_eq!(winners.len(), 1, "exactly one made the key");
    let mut client = running.client.clone();
    let value = value_at(&mut client, "one", None).await.expect("it is read");
    assert_eq!(value, Some(winners[0].to_string()));
    let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    let versions = head.stamp.expect("a stamp").version;
    assert!(versions < 65, "65 batches shared {versions} versions");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_apply_a_number_once() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let mut client = running.client.clone();
    let session_id = bytes("0123456789abcdef");
    let numbered = |number, value: &str| v1::CommitRequest {
        session_id: session_id.clone(),
        number,
        want_receipt: true,
        ..commit(vec![put("k", value)], Vec::new())
    };
    let error = client.commit(numbered(1, "x")).await.expect_err("the session was never opened");
    assert_eq!(reason(&error), Reason::UnknownSession);
    let open = v1::OpenSessionRequest { session_id: session_id.clone() };
    client.open_session(open.clone()).await.expect("it is opened");
    let first = client.commit(numbered(1, "x")).await.expect("it is committed").into_inner();
    client.commit(numbered(2, "y")).await.expect("it is committed");
    let again = client.commit(numbered(1, "x")).await.expect("it is answered again").into_inner();
    assert!(again.replayed && !first.replayed);
    assert_eq!((again.header, again.journal_index, again.stamp), (first.header, first.journal_index, first.stamp));
    verify(&again.receipt, world.key().verifier(), None).expect("the receipt is sound");
    let error = client.commit(numbered(1, "other")).await.expect_err("the number is used");
    assert_eq!(reason(&error), Reason::SessionMismatch);
    let opened = client.open_session(open).await.expect("it is found").into_inner();
    assert_eq!(opened.highest_number, 2);
    // A new leader knows the outcome, too.
    running.kill();
    let running = world.leader().await;
    let mut client = running.client.clone();
    assert!(client.commit(numbered(2, "y")).await.expect("it is answered again").into_inner().replayed);
    // A batch that was rolled back is never applied again.
    let rollback = roll_back(1);
    client.rollback(rollback).await.expect("it is rolled back");
    let error = client.commit(numbered(2, "y")).await.expect_err("it was rolled back");
    assert_eq!(reason(&error), Reason::RolledBack);
    assert!(client.commit(numbered(1, "x")).await.expect("it stands").into_inner().replayed);
    client.commit(numbered(3, "z")).await.expect("the session goes on");
    assert_eq!(value_at(&mut client, "k", None).await.expect("it is read").as_deref(), Some("z"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_and_prune_are_seen_in_reads_and_in_the_log() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let mut client = running.client.clone();
    for version in 1..=6 {
        client
            .commit(commit(vec![put("a", &format!("{version}")), put("z", "1")], Vec::new()))
            .await
            .expect("committed");
    }
    let old = client.get(get("a", Some(at(0, 6)))).await.expect("it is read").into_inner();
    let old_checkpoint = client.get_checkpoint(v1::GetCheckpointRequest::default()).await.expect("given").into_inner();
    let rollback = |to, expected_head| v1::RollbackRequest {
        to: Some(to),
        reason: "a mistake".to_owned(),
        principal: "someone".to_owned(),
        expected_head,
    };
    let error = client.rollback(rollback(3, Some(at(0, 5)))).await.expect_err("another head");
    assert_eq!(reason(&error), Reason::PreconditionFailed);
    let error = client.rollback(rollback(7, None)).await.expect_err("above head");
    assert_eq!(reason(&error), Reason::NotYet);
    let error = client.rollback(rollback(6, None)).await.expect_err("nothing to do");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    let done = client.rollback(rollback(3, Some(at(0, 6)))).await.expect("rolled back").into_inner();
    assert_eq!(done.head, Some(at(1, 3)));
    Header::decode(&done.header).expect("it is canonical");
    for (to, expected) in [(6, Reason::RolledBack), (7, Reason::NotYet)] {
        let error = client.rollback(rollback(to, None)).await.expect_err("above head");
        assert_eq!(reason(&error), expected, "version {to}");
    }
    let read = client.get(get("a", None)).await.expect("it is read").into_inner();
    assert_eq!(read.read_at, Some(at(0, 3)), "versions are named as they were first");
    assert_eq!(read.record.expect("a record").value, "3");
    verify(&read.proof, world.key().verifier(), None).expect("the proof is sound");
    let alias = client.get(get("a", Some(at(1, 3)))).await.expect("another name").into_inner();
    assert_eq!(alias.read_at, Some(at(0, 3)));
    let error = client.get(get("a", Some(at(0, 6)))).await.expect_err("it was rolled back");
    assert_eq!(reason(&error), Reason::RolledBack);
    for (version, expected) in [(6, Reason::RolledBack), (7, Reason::NotYet)] {
        let mut by_number = get("a", Some(at(0, version)));
        by_number.read.as_mut().expect("it has options").any_epoch = true;
        let error = client.get(by_number).await.expect_err("above head");
        assert_eq!(reason(&error), expected, "number {version}");
    }
    let stamp = client.commit(commit(vec![put("b", "new")], Vec::new())).await.expect("committed").into_inner().stamp;
    assert_eq!(stamp, Some(at(1, 4)));
    let done = client.prune(prune_before(2)).await.expect("pruned").into_inner();
    assert_eq!((done.head, done.pruned_boundary), (Some(at(1, 4)), 2));
    let error = client.get(get("a", Some(at(0, 1)))).await.expect_err("it is pruned");
    assert_eq!(reason(&error), Reason::Pruned);
    assert_eq!(value_at(&mut client, "a", Some(at(0, 2))).await.expect("it is kept").as_deref(), Some("2"));
    let error = client.rollback(rollback(1, None)).await.expect_err("it is pruned");
    assert_eq!(reason(&error), Reason::Pruned);
    // The proof of a rolled-back version fails against a newer checkpoint, although the log has
    // only grown.
    let standing = client
        .get_checkpoint(v1::GetCheckpointRequest { old_size: 7, cosigned: false })
        .await
        .expect("given")
        .into_inner();
    assert_ne!(standing.checkpoint, old_checkpoint.checkpoint);
    verify(&standing.standing, world.key().verifier(), None).expect("the log has only grown");
    verify(&old.proof, world.key().verifier(), None).expect("it stood when it was given");
    verify(&old.proof, world.key().verifier(), Some(&standing.standing)).expect_err("it does not stand any more");
    client.commit(commit(vec![put("c", "more")], Vec::new())).await.expect("commits go on");
}

/// PROTOCOL 4.4, with a real shard that does not answer: A puts on shard 0, B builds on it and
/// writes to shard 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_times_out_takes_only_its_batches_with_it() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let mut client = running.client.clone();
    client.commit(commit(vec![put("a", "0"), put("z", "0")], Vec::new())).await.expect("committed");
    world.faults.set(|call| if (call.name, call.group) == ("prepare", 1) { Fate::Lost } else { Fate::Pass });
    let send = |operations, checks| {
        let mut client = running.client.clone();
        tokio::spawn(async move { client.commit(commit(operations, checks)).await })
    };
    let a = send(vec![put("a", "A's")], vec![]);
    let b = send(vec![put("z", "B's")], vec![value_is("a", "A's")]);
    let c = send(vec![put("y", "C's")], vec![]);
    let error = a.await.expect("it ends").expect_err("its shard does not answer");
    assert_eq!(reason(&error), Reason::Unavailable);
    let error = b.await.expect("it ends").expect_err("what it built on is gone");
    assert!(matches!(reason(&error), Reason::Unavailable | Reason::PreconditionFailed), "{error}");
    c.await.expect("it ends").expect("it has nothing to do with that shard");
    world.faults.clear();
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("0"));
    assert_eq!(value_at(&mut client, "z", None).await.expect("it is read").as_deref(), Some("0"));
    assert_eq!(value_at(&mut client, "y", None).await.expect("it is read").as_deref(), Some("C's"));
    // The shard is asked in the background and comes back, however busy the leader is with the
    // other shard.
    let mut other = client.clone();
    let busy =
        tokio::spawn(async move { while other.commit(commit(vec![put("y", "1")], Vec::new())).await.is_ok() {} });
    let back = tokio::time::timeout(common::LIMIT, async {
        while client.commit(commit(vec![put("a", "1")], Vec::new())).await.is_err() {}
    });
    back.await.expect("the shard comes back");
    assert!(!busy.is_finished(), "the other one goes on meanwhile");
    busy.abort();
}

/// PROTOCOL 4.6: a number that was committed before is answered as such, even if its shard fails
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_batch_is_not_refused_with_those_that_its_shard_did_not_prepare() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let session_id = bytes("0123456789abcdef");
    client.open_session(v1::OpenSessionRequest { session_id: session_id.clone() }).await.expect("it is opened");
    let first = v1::CommitRequest { session_id, number: 1, ..commit(vec![put("a", "1")], Vec::new()) };
    client.commit(first.clone()).await.expect("committed");
    let mut told = world.faults.lose("prepare");
    let send = |request: v1::CommitRequest| {
        let mut client = client.clone();
        tokio::spawn(async move { client.commit(request).await })
    };
    let before = send(commit(vec![put("z", "1")], Vec::new()));
    told.recv().await.expect("a version is being prepared");
    // These two batches belong to the next version.
    let other = send(commit(vec![put("a", "2")], Vec::new()));
    let again = send(first);
    for failed in [before, other] {
        let error = failed.await.expect("it ends").expect_err("its shard does not answer");
        assert_eq!(reason(&error), Reason::Unavailable);
    }
    assert!(again.await.expect("it ends").expect("it was committed before").into_inner().replayed);
}

/// PROTOCOL 3.1: an append whose answer is lost is found in the log.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_of_unknown_outcome_is_resolved() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let mut once = true;
    world.faults.set(move |call| {
        let lose = call.name == "append_header" && std::mem::take(&mut once);
        if lose { Fate::AnswerLost } else { Fate::Pass }
    });
    let answer = client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("committed").into_inner();
    assert_eq!(answer.stamp, Some(at(0, 1)));
    let next = client.commit(commit(vec![put("a", "2")], Vec::new())).await.expect("committed").into_inner();
    assert_eq!(next.stamp, Some(at(0, 2)), "it was applied once");
}

/// PROTOCOL 5.4: V+1 is prepared on V while V is being decided. PROTOCOL 4.3: a refusal that
/// depends on V waits for V.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_version_is_prepared_while_one_is_being_decided() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, open) = (calls.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let gate = open.clone();
    world.faults.set(move |call| {
        seen.lock().expect("no test panics here").push(call.name);
        let shut = !gate.load(std::sync::atomic::Ordering::Relaxed);
        if call.name == "append_header" && shut { Fate::Lost } else { Fate::Pass }
    });
    let count = |name| calls.lock().expect("no test panics here").iter().filter(|call| **call == name).count();
    let until = async |name, wanted| {
        while count(name) < wanted {
            tokio::task::yield_now().await;
        }
    };
    let send = |operations, checks| {
        let mut client = running.client.clone();
        tokio::spawn(async move { client.commit(commit(operations, checks)).await })
    };
    let first = send(vec![put("a", "1")], vec![absent("a")]);
    tokio::time::timeout(common::LIMIT, until("append_header", 1)).await.expect("it is being decided");
    let second = send(vec![put("a", "2")], vec![value_is("a", "1")]);
    tokio::time::timeout(common::LIMIT, until("prepare", 2)).await.expect("the next one is prepared on it");
    let refused = send(vec![put("z", "1")], vec![absent("a")]);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), async {
        while !(first.is_finished() || second.is_finished() || refused.is_finished()) {
            tokio::task::yield_now().await;
        }
    });
    early.await.expect_err("nothing is answered before it is decided");
    open.store(true, std::sync::atomic::Ordering::Relaxed);
    let stamp = |answer: Result<tonic::Response<v1::CommitResponse>, _>| answer.expect("committed").into_inner().stamp;
    assert_eq!(stamp(first.await.expect("it ends")), Some(at(0, 1)));
    assert_eq!(stamp(second.await.expect("it ends")), Some(at(0, 2)));
    let error = refused.await.expect("it ends").expect_err("the key was made");
    assert_eq!(reason(&error), Reason::PreconditionFailed);
}

/// PROTOCOL 3.1 and 3.2: the leader dies with a version that is prepared everywhere but not
/// appended. The next leader drops it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_leader_left_undecided_is_dropped() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let mut client = running.client.clone();
    client.commit(commit(vec![put("a", "1"), put("z", "1")], Vec::new())).await.expect("committed");
    world.faults.set(|call| if call.name == "append_header" { Fate::Lost } else { Fate::Pass });
    let mut other = running.client.clone();
    let lost =
        tokio::spawn(async move { other.commit(commit(vec![put("a", "lost"), put("z", "lost")], Vec::new())).await });
    // An undecided write is never read.
    for _ in 0..20 {
        assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("1"));
    }
    running.kill();
    world.faults.clear();
    let mut client = world.leader().await.client;
    assert_eq!(value_at(&mut client, "z", None).await.expect("it is read").as_deref(), Some("1"));
    let next =
        client.commit(commit(vec![put("a", "2")], vec![value_is("a", "1")])).await.expect("committed").into_inner();
    assert_eq!(next.stamp, Some(at(0, 2)));
    lost.abort();
}

/// PROTOCOL 4.3: a deposed leader does not refuse from an old view.
#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_neither_commits_nor_refuses() {
    let world = World::new(Params::default()).await;
    let a = world.leader().await;
    let mut of_a = a.client.clone();
    of_a.commit(commit(vec![put("k", "1")], Vec::new())).await.expect("committed");
    // B takes over. A is not told.
    let b = world.coordinator("b");
    let mut deposed = a.client.clone();
    world.picked.pick("b");
    tokio::time::timeout(common::LIMIT, b.handle.leading()).await.expect("B leads");
    let mut of_b = b.client.clone();
    of_b.commit(commit(vec![delete("k")], Vec::new())).await.expect("committed");
    let error = deposed.commit(commit(vec![put("x", "1")], vec![absent("k")])).await;
    // A knows by now that B leads, or learns it from the root group. It never answers from its own
    // old state.
    let error = error.expect_err("A does not lead");
    assert_eq!(reason(&error), Reason::NotLeader);
    // A still answers reads correctly.
    assert_eq!(value_at(&mut of_a, "k", None).await.expect("it is read"), None);
}

/// PROTOCOL 8.2: version 7 is decided, and its Finalize is pending. A rollback to it must not drop
/// it as an undecided tip.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_settles_what_was_decided_before_it() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    world.faults.set(|call| if call.name == "finalize" { Fate::Lost } else { Fate::Pass });
    client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("committed");
    client.commit(commit(vec![put("z", "2")], Vec::new())).await.expect("committed");
    let rollback = roll_back(1);
    client.rollback(rollback).await.expect("rolled back");
    world.faults.clear();
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("1"));
    assert_eq!(value_at(&mut client, "z", None).await.expect("it is read"), None);
}

/// PROTOCOL 8.1 and 8.2: the leader dies between the header and its execution. The next leader
/// tells the shards.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_missed_a_rollback_executes_it_before_it_serves() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let mut client = running.client.clone();
    for version in 1..=3 {
        client.commit(commit(vec![put("a", &format!("{version}"))], Vec::new())).await.expect("committed");
    }
    world.faults.set(|call| if call.name == "execute" { Fate::Lost } else { Fate::Pass });
    let mut other = running.client.clone();
    let rollback = roll_back(1);
    let asked = tokio::spawn(async move { other.rollback(rollback).await });
    let decided = tokio::time::timeout(common::LIMIT, async {
        loop {
            let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
            if head.stamp == Some(at(1, 1)) {
                break;
            }
        }
    });
    decided.await.expect("the header is appended");
    running.kill();
    asked.abort();
    world.faults.clear();
    let mut client = world.leader().await.client;
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("1"));
    let next = client.commit(commit(vec![put("a", "new")], vec![value_is("a", "1")])).await.expect("committed");
    assert_eq!(next.into_inner().stamp, Some(at(1, 2)));
}

/// A prune does not wait for a shard that does not answer, so it does not delay the commits of the
/// others. The shard executes it before it serves again.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_asks_only_the_shards_that_are_up() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    for version in 1..=2 {
        let both = vec![put("a", &format!("{version}")), put("z", &format!("{version}"))];
        client.commit(commit(both, Vec::new())).await.expect("committed");
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let rule = |fate: Fate| {
        let count = Arc::clone(&asked);
        move |call: Call| {
            count.fetch_add(usize::from((call.name, call.group) == ("execute", 1)), Ordering::SeqCst);
            if call.group == 1 { fate } else { Fate::Pass }
        }
    };
    world.faults.set(rule(Fate::Lost));
    let error = client.commit(commit(vec![put("a", "3")], Vec::new())).await.expect_err("its shard does not answer");
    assert_eq!(reason(&error), Reason::Unavailable);
    client.prune(prune_before(2)).await.expect("pruned");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    client.commit(commit(vec![put("z", "3")], Vec::new())).await.expect("committed");
    world.faults.set(rule(Fate::Pass));
    let back = tokio::time::timeout(common::LIMIT, async {
        while client.commit(commit(vec![put("a", "4")], Vec::new())).await.is_err() {}
    });
    back.await.expect("the shard comes back");
    assert!(asked.load(Ordering::SeqCst) > 0, "it executes the prune before it serves");
}

/// PROTOCOL 8.1: a rollback that can't fence every shard changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_that_can_not_fence_every_shard_changes_nothing() {
    let mut world = World::new(Params::default()).await;
    world.limits.admin_timeout = std::time::Duration::from_secs(2);
    let mut client = world.leader().await.client;
    client.commit(commit(vec![put("a", "1"), put("z", "1")], Vec::new())).await.expect("committed");
    client.commit(commit(vec![put("a", "2"), put("z", "2")], Vec::new())).await.expect("committed");
    world.faults.set(|call| if (call.name, call.group) == ("fence", 2) { Fate::Lost } else { Fate::Pass });
    let rollback = roll_back(1);
    let error = client.rollback(rollback).await.expect_err("a shard can't be fenced");
    assert_eq!(reason(&error), Reason::Unavailable);
    world.faults.clear();
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("2"));
    let next = client.commit(commit(vec![put("a", "3"), put("z", "3")], Vec::new())).await.expect("committed");
    assert_eq!(next.into_inner().stamp, Some(at(0, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_are_finalized_on_head_and_lost_by_any_other_commit() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let stage = |key: &str, parent: &[u8]| v1::StageRequest {
        batch: commit(vec![put(key, "staged")], Vec::new()).batch,
        parent_stage_id: bytes::Bytes::copy_from_slice(parent),
    };
    let finalize = |id: &bytes::Bytes| v1::FinalizeRequest { stage_id: id.clone(), want_receipt: true };
    let one = client.stage(stage("a", b"")).await.expect("staged").into_inner();
    let sibling = client.stage(stage("z", b"")).await.expect("staged").into_inner();
    let child = client.stage(stage("z", &one.stage_id)).await.expect("staged").into_inner();
    assert_eq!((one.stamp, sibling.stamp, child.stamp), (Some(at(0, 1)), Some(at(0, 1)), Some(at(0, 2))));
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read"), None, "stages are not read");
    let error = client.finalize(finalize(&child.stage_id)).await.expect_err("its parent is not head");
    assert_eq!(reason(&error), Reason::PreconditionFailed);
    let done = client.finalize(finalize(&one.stage_id)).await.expect("committed").into_inner();
    let header = Header::decode(&done.header).expect("it is canonical");
    assert_eq!(header.state_root.as_bytes(), one.state_root.as_ref(), "the root was known before");
    verify(&done.receipt, world.key().verifier(), None).expect("the receipt is sound");
    let again = client.finalize(finalize(&one.stage_id)).await.expect("it is answered again").into_inner();
    assert!(again.replayed && again.header == done.header);
    let error = client.finalize(finalize(&sibling.stage_id)).await.expect_err("its parent is no longer head");
    assert_eq!(reason(&error), Reason::StageLost);
    client.finalize(finalize(&child.stage_id)).await.expect("its parent is head now");
    let lost = client.stage(stage("b", b"")).await.expect("staged").into_inner();
    client.commit(commit(vec![put("c", "1")], Vec::new())).await.expect("committed");
    let error = client.finalize(finalize(&lost.stage_id)).await.expect_err("another commit came");
    assert_eq!(reason(&error), Reason::StageLost);
    let dropped = client.stage(stage("d", b"")).await.expect("staged").into_inner();
    let request = v1::DiscardRequest { stage_id: dropped.stage_id.clone() };
    assert_eq!(client.discard(request.clone()).await.expect("discarded").into_inner().discarded, 1);
    assert_eq!(reason(&client.discard(request).await.expect_err("it is gone")), Reason::StageLost);
}

/// A forest that stages have filled becomes smaller when they are finalized. The finalization does
/// not wait for callers that stage on top.
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_on_a_full_stage_is_refused_at_once_and_taken_when_those_below_are_final() {
    let mut world = World::of(1, &[], Params { capacity: 8, tree_limit: 4, ..Params::default() }).await;
    // A caller that waited for a merge would wait for longer than this test.
    world.limits.prepare_timeout = 4 * common::LIMIT;
    (world.limits.stages_max, world.limits.stages_per_caller_max) = (64, 64);
    let mut client = world.leader().await.client;
    let mut staged: Vec<bytes::Bytes> = Vec::new();
    let refused = loop {
        let keys = [0, 1, 2, 3, 4, 5, 6, 7].map(|item| put(&format!("{}-{item}", staged.len()), "staged"));
        let parent_stage_id = staged.last().cloned().unwrap_or_default();
        let request = v1::StageRequest { batch: commit(keys.to_vec(), Vec::new()).batch, parent_stage_id };
        let answer = tokio::time::timeout(common::LIMIT, client.stage(request.clone()));
        match answer.await.expect("it does not wait for a merge") {
            Ok(answer) => staged.push(answer.into_inner().stage_id),
            Err(error) => {
                assert_eq!(reason(&error), Reason::ResourceExhausted, "{error:?}");
                assert!(error.message().contains("finalize the stages below"), "{error:?}");
                break request;
            }
        }
    };
    assert!((2..60).contains(&staged.len()), "the trees have a limit: {}", staged.len());
    for stage_id in &staged {
        let finalize = v1::FinalizeRequest { stage_id: stage_id.clone(), want_receipt: false };
        client.finalize(finalize).await.expect("nothing holds it up");
    }
    // On head, staging waits for the merges that are being built.
    let request = v1::StageRequest { parent_stage_id: bytes::Bytes::new(), ..refused };
    let answer = tokio::time::timeout(common::LIMIT, client.stage(request)).await.expect("merges are built");
    answer.expect("there is room again");
}

/// PROTOCOL 5.6: a `TakeOver` drops stages. A session that another coordinator opened is known
/// here.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_term_drops_stages_and_any_coordinator_opens_sessions() {
    let world = World::new(Params::default()).await;
    let running = world.leader().await;
    let follower = world.coordinator("b");
    let mut client = running.client.clone();
    let session_id = bytes("0123456789abcdef");
    let open = v1::OpenSessionRequest { session_id: session_id.clone() };
    follower.client.clone().open_session(open).await.expect("any coordinator opens sessions");
    let request = v1::CommitRequest { session_id, number: 1, ..commit(vec![put("a", "1")], Vec::new()) };
    client.commit(request).await.expect("the leader finds the session");
    let error = follower.client.clone().commit(commit(vec![], Vec::new())).await.expect_err("it does not lead");
    assert_eq!(reason(&error), Reason::NotLeader);
    assert_eq!(coppice_proto::status::metadata(&error, coppice_proto::status::LEADER).as_deref(), Some("a"));
    assert_eq!(value_at(&mut follower.client.clone(), "a", None).await.expect("it reads").as_deref(), Some("1"));
    let batch = commit(vec![put("a", "staged")], Vec::new()).batch;
    let stage = v1::StageRequest { batch, ..v1::StageRequest::default() };
    let staged = client.stage(stage).await.expect("staged").into_inner();
    running.kill();
    let mut client = world.leader().await.client;
    let finalize = v1::FinalizeRequest { stage_id: staged.stage_id, want_receipt: false };
    let error = client.finalize(finalize).await.expect_err("the term that made it is over");
    assert_eq!(reason(&error), Reason::StageLost);
    client.commit(commit(vec![put("a", "2")], vec![value_is("a", "1")])).await.expect("committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_standard_services_are_there() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    let world = World::of(1, &[], Params::default()).await;
    let running = world.leader().await;
    let channel = world.net.connector("client").channel("a");
    let service = "coppice.v1.Ledger".to_owned();
    let health = HealthClient::new(channel.clone());
    let until = async |wanted: ServingStatus| {
        let look = async {
            let check = async || health.clone().check(HealthCheckRequest { service: service.clone() }).await;
            while check().await.expect("served").into_inner().status() != wanted {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(common::LIMIT, look).await.expect("the health changes");
    };
    until(ServingStatus::Serving).await;
    world.nodes[0].stop_replica(GroupId::Root).await.expect("it stops");
    until(ServingStatus::NotServing).await;
    world.nodes[0].start_replica(world.replica(1, GroupId::Root)).await.expect("it starts again");
    until(ServingStatus::Serving).await;
    // Groups of one replica work too.
    let mut client = running.client.clone();
    client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("committed");
    assert_eq!(value_at(&mut client, "a", None).await.expect("it is read").as_deref(), Some("1"));
}

/// Asks for the services, and for the file that has the details of errors, in one version of
/// reflection.
macro_rules! reflected {
    ($version:ident, $channel:expr) => {{
        use tonic_reflection::pb::$version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let ask = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let requests = [
            ask(MessageRequest::ListServices(String::new())),
            ask(MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".to_owned())),
        ];
        let answers = ServerReflectionClient::new($channel).server_reflection_info(tokio_stream::iter(requests)).await;
        let mut answers = answers.expect("served").into_inner();
        let listed = answers.message().await.expect("served").expect("an answer");
        let Some(MessageResponse::ListServicesResponse(services)) = listed.message_response else {
            panic!("{listed:?}")
        };
        let found = answers.message().await.expect("served").expect("an answer");
        let has_details = matches!(found.message_response, Some(MessageResponse::FileDescriptorResponse(_)));
        (services.service.into_iter().map(|service| service.name).collect::<Vec<_>>(), has_details)
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_find_services_and_the_details_of_errors_by_both_versions_of_reflection() {
    let world = World::new(Params::default()).await;
    let _running = world.leader().await;
    let channel = world.net.connector("client").channel("a");
    for (names, has_details) in [reflected!(v1, channel.clone()), reflected!(v1alpha, channel)] {
        assert!(has_details, "the details of errors");
        for service in ["coppice.v1.Ledger", "grpc.health.v1.Health"] {
            assert!(names.iter().any(|name| name == service), "{names:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_not_answer_are_named() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    let status = client.status(v1::StatusRequest {}).await.expect("served").into_inner();
    assert_eq!(status.unreachable, Vec::<String>::new());
    world.nodes[2].kill().await;
    // Connections that are open end a moment after the node.
    let named = async {
        loop {
            let status = client.status(v1::StatusRequest {}).await.expect("served").into_inner();
            if !status.unreachable.is_empty() {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(common::LIMIT, named).await.expect("it is named");
    assert_eq!(status.unreachable, ["node-3"]);
    assert!(status.groups.iter().all(|group| group.replicas.len() == 2), "{:?}", status.groups);
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_watched_with_what_changed() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    client.commit(commit(vec![put("a", "1"), put("z", "1")], Vec::new())).await.expect("committed");
    let request = v1::WatchHeadsRequest {
        follow: true,
        want_changed_keys: true,
        want_changed_values: true,
        ..v1::WatchHeadsRequest::default()
    };
    let mut stream = client.clone().watch_heads(request).await.expect("served").into_inner();
    client.commit(commit(vec![delete("a")], Vec::new())).await.expect("committed");
    let mut seen = Vec::new();
    let mut changes = Vec::new();
    while seen.len() < 3 {
        let message = tokio::time::timeout(common::LIMIT, stream.message()).await.expect("in time");
        let message = message.expect("served").expect("it follows for ever");
        changes.extend(message.changes.iter().map(|record| (record.key.clone(), record.found)));
        if !message.continued {
            seen.push(Header::decode(&message.header).expect("it is canonical").sequence.0);
        }
    }
    assert_eq!(seen, [0, 1, 2]);
    assert_eq!(changes, [(bytes("a"), true), (bytes("z"), true), (bytes("a"), false)]);
    // Rolled-back changes are skipped, whether head is above them again or not.
    for key in ["after", "more"] {
        let rollback = roll_back(1);
        client.rollback(rollback).await.expect("rolled back");
        let request = v1::WatchHeadsRequest { want_changed_keys: true, ..v1::WatchHeadsRequest::default() };
        let mut stream = client.clone().watch_heads(request).await.expect("served").into_inner();
        let (mut gone, mut count) = (Vec::new(), 0);
        while let Some(message) = stream.message().await.expect("it goes on") {
            count += u64::from(!message.continued);
            let header = Header::decode(&message.header).expect("it is canonical");
            if message.rolled_back {
                assert!(message.changes.is_empty() && !message.continued);
                gone.push(header.stamp);
            }
        }
        let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
        assert_eq!(count, head.log_size);
        let epochs = head.stamp.expect("a stamp").epoch;
        assert_eq!(gone, (0..epochs).map(|epoch| Stamp::new(epoch, 2)).collect::<Vec<_>>());
        client.commit(commit(vec![put(key, "1")], Vec::new())).await.expect("committed");
    }
}

/// A state is rolled back after it was located and before its first record is read. The read then
/// shows the new head.
#[tokio::test(flavor = "multi_thread")]
async fn scans_that_meet_a_rollback_before_they_begin_locate_their_state_again() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    for value in ["1", "2"] {
        client.commit(commit(vec![put("a", value)], Vec::new())).await.expect("committed");
    }
    for epoch in 1..=2_u64 {
        let mut told = world.faults.lose("scan");
        let mut other = client.clone();
        let asked = tokio::spawn(async move {
            if epoch == 1 {
                let (keys, end) = range(&mut other, "", None, 0).await;
                (keys.len(), end.read_at.expect("a stamp"))
            } else {
                let request = v1::HistoryRequest { key: bytes("a"), ..v1::HistoryRequest::default() };
                let mut stream = other.history(request).await.expect("served").into_inner();
                let mut changes = Vec::new();
                while let Some(message) = stream.message().await.expect("served") {
                    changes.push(message.change.expect("a change").last_changed.expect("a stamp"));
                }
                (changes.len(), changes[0])
            }
        });
        told.recv().await.expect("a scan is under way");
        let rollback = roll_back(1);
        client.rollback(rollback).await.expect("rolled back");
        client.commit(commit(vec![put("a", "new")], Vec::new())).await.expect("committed");
        world.faults.clear();
        let (count, stamp) = asked.await.expect("it is answered");
        assert_eq!((count, stamp), (epoch as usize, at(epoch, 2)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn freezes_and_merges_keep_versions_equal_to_commits() {
    let params = Params { capacity: 8, ..Params::default() };
    let world = World::new(params).await;
    let mut client = world.leader().await.client;
    for version in 1..=120_u64 {
        let operations =
            (0..5).map(|item| put(&format!("k{}", (version * 7 + item * 13) % 400), &format!("{version}")));
        let answer = client.commit(commit(operations.collect(), Vec::new())).await.expect("committed").into_inner();
        assert_eq!(answer.stamp, Some(at(0, version)), "no version is made for a merge alone");
    }
    let mut model = std::collections::BTreeMap::new();
    for version in 1..=120_u64 {
        for item in 0..5 {
            model.insert(format!("k{}", (version * 7 + item * 13) % 400), version.to_string());
        }
    }
    for (key, value) in model.iter().step_by(17) {
        let answer = client.get(get(key, None)).await.expect("it is read").into_inner();
        verify(&answer.proof, world.key().verifier(), None).expect("the proof is sound");
        assert_eq!(answer.record.expect("a record").value, value.as_str());
    }
    let (keys, end) = range(&mut client, "", None, 0).await;
    assert_eq!(keys, model.keys().cloned().collect::<Vec<_>>());
    verify(&end.proof, world.key().verifier(), None).expect("the range is proven");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_with_a_reason() {
    let world = World::new(Params::default()).await;
    let mut client = world.leader().await.client;
    client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("committed");
    let error = client.get(get("", None)).await.expect_err("an empty key");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    let error = client.get(get(&"k".repeat(513), None)).await.expect_err("a long key");
    assert_eq!(reason(&error), Reason::LimitExceeded);
    assert!(error.message().contains("key_bytes_max"), "{error}");
    let large = commit(vec![put("a", &"v".repeat((1 << 20) + 1))], Vec::new());
    let error = client.commit(large).await.expect_err("a large value");
    assert!(error.message().contains("value_bytes_max"), "{error}");
    let error = client.commit(v1::CommitRequest::default()).await.expect_err("no batch");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    let inverted = v1::RangeRequest { low: bytes("b"), high: Some(bytes("a")), ..v1::RangeRequest::default() };
    let mut stream = client.range(inverted).await.expect("it begins").into_inner();
    let error = stream.message().await.expect_err("an inverted range");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    let long = v1::PruneRequest { reason: "r".repeat(1025), ..prune_before(1) };
    let error = client.prune(long).await.expect_err("a long reason");
    assert!(error.message().contains("reason_bytes_max"), "{error}");
    let error = client.prune(prune_before(9)).await.expect_err("above head");
    assert_eq!(reason(&error), Reason::NotYet);
    let which = Some(v1::get_header_request::Which::Sequence(99));
    let error = client.get_header(v1::GetHeaderRequest { which }).await.expect_err("no such header");
    assert_eq!(reason(&error), Reason::NotFound);
    let error = client
        .get_checkpoint(v1::GetCheckpointRequest { old_size: 99, cosigned: false })
        .await
        .expect_err("a smaller log");
    assert_eq!(reason(&error), Reason::InvalidArgument);
    let head = client.head(v1::HeadRequest::default()).await.expect("head").into_inner();
    assert_eq!(head.stamp, Some(at(0, 1)), "nothing changed");
    let status = client.status(v1::StatusRequest {}).await.expect("status").into_inner();
    assert_eq!(status.groups.len(), 3);
    assert!(status.groups.iter().all(|group| group.replicas.len() == 3), "{status:?}");
}
