//! The auditor on a ledger that keeps its journals. A sound ledger passes, through freezes, merges,
//! prunes, rollbacks and restarts. A changed journal, or a shard whose replicas all lie, is found
//! at the affected version.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use coppice_client::{
    Client, Options,
    audit::{Audit, Report},
};
use coppice_env::{Rng, SimRng};
use coppice_proto::v1;
use coppice_types::{GroupId, Params, Reason, ShardId, Version};
use coppice_verify::{
    hash::{RecordBody, sha256},
    header::{Body, Header},
    journal,
};
use tokio::time::timeout;

mod common;

use common::{LIMIT, Running, World, at, commit, delete, prune_before, put, reason, roll_back};

fn params() -> Params {
    Params { capacity: 8, journals_kept: true, ..Params::default() }
}

async fn world() -> World {
    World::of(1, &[b"m".to_vec()], params()).await
}

fn client(world: &World, name: &str) -> Client {
    let channel = world.net.connector("auditor").channel(name);
    Client::over(vec![(name.to_owned(), channel)], 1, &Options::new(format!("http://{name}:1")))
}

async fn audit(world: &World, name: &str, from: u64) -> Report {
    let audit = Audit { key: world.key().verifier().clone(), from: Version(from), to: None };
    let mut seen = 0;
    let client = client(world, name);
    let report = client.audit(&audit, |progress| {
        assert!(progress.version.0 > seen, "progress is made");
        seen = progress.version.0;
    });
    timeout(LIMIT, report).await.expect("it ends").expect("the ledger answers")
}

/// Writes random batches to both shards until head is at `version`.
async fn fill(running: &mut Running, rng: &mut SimRng, version: u64) {
    loop {
        let mut operations = vec![put(&format!("a{}", rng.below(40)), &rng.next_u64().to_string())];
        for _ in 0..rng.below(4) {
            let key = format!("{}{}", if rng.below(2) == 0 { "a" } else { "z" }, rng.below(40));
            operations.push(if rng.below(3) == 0 { delete(&key) } else { put(&key, &rng.next_u64().to_string()) });
        }
        let answer = running.client.commit(commit(operations, Vec::new())).await.expect("it commits").into_inner();
        if answer.stamp.expect("a stamp").version >= version {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_ledger_passes_whatever_was_done_to_it() {
    let world = world().await;
    let mut running = world.leader().await;
    let mut rng = SimRng::new(3);
    fill(&mut running, &mut rng, 60).await;
    let prune = prune_before(40);
    running.client.prune(prune).await.expect("it prunes");
    fill(&mut running, &mut rng, 70).await;
    let rollback = roll_back(65);
    running.client.rollback(rollback).await.expect("it rolls back");
    fill(&mut running, &mut rng, 90).await;
    let report = audit(&world, "a", 0).await;
    assert_eq!((report.difference.clone(), report.to, report.compared), (None, Version(90), 90));
    assert!(report.records > 0 && report.checkpoint.size >= 90);
    // The audit also passes with data read from disk, and if it begins at a later version.
    for group in [GroupId::Shard(ShardId(0)), GroupId::Shard(ShardId(1)), GroupId::Root] {
        world.nodes[0].stop_replica(group).await.expect("it stops");
        world.nodes[0].start_replica(world.replica(1, group)).await.expect("it starts");
    }
    let again = audit(&world, "a", 80).await;
    assert_eq!((again.difference, again.to, again.compared), (None, Version(90), 11));
    assert_eq!(again.records, report.records);
    // An audit reads the state before its first version. If that version is pruned, the audit can't
    // start there.
    let first = audit(&world, "a", 41).await;
    assert_eq!((first.difference, first.compared, first.records), (None, 50, report.records));
    let pruned = Audit { key: world.key().verifier().clone(), from: Version(40), to: None };
    let error = client(&world, "a").audit(&pruned, |_| {}).await.expect_err("version 39 is pruned");
    assert!(
        error.reason() == Some(Reason::Pruned) && error.to_string().contains("begin later, or at genesis"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_to_begin_with_is_read_in_parts_and_is_the_same_forest() {
    let world = World::of(1, &[b"m".to_vec()], Params { capacity: 64, ..params() }).await;
    let mut running = world.leader().await;
    // More records than one part has, some superseded and some deleted, in several trees. The
    // second shard is empty.
    for round in 0..4 {
        let key = |item: u32| format!("k{:04}", item * 7 % 1500);
        let operations = (round * 300..round * 300 + 450).map(|item| match item % 9 {
            0 => delete(&key(item)),
            _ => put(&key(item), &format!("{round}-{item}")),
        });
        running.client.commit(commit(operations.collect(), Vec::new())).await.expect("it commits");
    }
    running.client.commit(commit(vec![put("k0001", "last")], Vec::new())).await.expect("it commits");
    let (whole, last) = (audit(&world, "a", 0).await, audit(&world, "a", 5).await);
    assert_eq!((whole.difference, last.difference), (None, None));
    assert_eq!((whole.to, last.to, last.compared), (Version(5), Version(5), 1));
    assert!(whole.records > 1000 && last.records == whole.records, "{} and {}", whole.records, last.records);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_journal_is_found_at_its_version_and_shard() {
    let world = world().await;
    let mut running = world.leader().await;
    let mut rng = SimRng::new(4);
    fill(&mut running, &mut rng, 10).await;
    let done = Arc::new(Mutex::new(false));
    world.faults.tamper(move |request| {
        // Shard 0 has the keys below m. The last byte of a list belongs to a value's hash or to a
        // key.
        if request.group == GroupId::Shard(ShardId(0)).number()
            && !std::mem::replace(&mut done.lock().expect("held"), true)
        {
            let mut list = request.journal[0].to_vec();
            *list.last_mut().expect("a list has a count") ^= 1;
            request.journal[0] = list.into();
        }
    });
    fill(&mut running, &mut rng, 20).await;
    let difference = audit(&world, "a", 0).await.difference.expect("it is found");
    assert_eq!((difference.stamp.version, difference.shard), (Version(11), Some(ShardId(0))), "{}", difference.what);
    assert!(difference.what.contains("operation list 0"), "{}", difference.what);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_lies_with_all_its_replicas_is_found_at_its_version() {
    let world = world().await;
    let mut running = world.leader().await;
    let mut rng = SimRng::new(5);
    fill(&mut running, &mut rng, 10).await;
    let lies = Arc::new(Mutex::new(0));
    let told = lies.clone();
    world.faults.tamper(move |request| {
        // The shard writes a different value than the batch has. The journal has the batch.
        if request.group == GroupId::Shard(ShardId(1)).number()
            && let Some(first) = request.operations.iter_mut().find(|it| it.key.starts_with(b"z"))
            && let Some(v1::operation::Change::Put(value)) = &mut first.change
        {
            let mut told = told.lock().expect("held");
            if *told == 0 {
                *told = request.stamp.as_ref().expect("a stamp").version;
                *value = "a lie".into();
            }
        }
    });
    fill(&mut running, &mut rng, 40).await;
    let version = *lies.lock().expect("held");
    assert!(version > 10, "a lie was told");
    let report = audit(&world, "a", 0).await;
    let difference = report.difference.expect("it is found");
    assert_eq!(
        (difference.stamp.version, difference.shard),
        (Version(version), Some(ShardId(1))),
        "{}",
        difference.what
    );
    assert!(difference.what.contains("its batches give"), "{}", difference.what);
    assert_eq!(report.compared, version - 1, "all before are right");
    let from = audit(&world, "a", version - 3).await;
    assert_eq!((from.difference.as_ref(), from.compared), (Some(&difference), 3), "it is the same from a version on");
    let after = audit(&world, "a", version + 1).await;
    assert_eq!((after.difference, after.compared), (None, 40 - version), "what was wrong before is not looked at");
    // Proofs of that version still verify for a reader. Only the auditor notices the difference.
    let read = v1::ReadOptions { at: Some(at(0, version)), ..v1::ReadOptions::default() };
    running.client.get(v1::GetRequest { key: "a1".into(), read: Some(read) }).await.expect("it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_without_journals_says_so() {
    let world = World::of(1, &[], Params::default()).await;
    let mut running = world.leader().await;
    running.client.commit(commit(vec![put("a", "1")], Vec::new())).await.expect("it commits");
    let audit = Audit { key: world.key().verifier().clone(), from: Version(0), to: None };
    let error = client(&world, "a").audit(&audit, |_| {}).await.expect_err("there is nothing to replay");
    assert!(error.to_string().contains("keeps no journals"), "{error}");
}

/// What a watcher was told about a commit.
#[derive(Default)]
struct Watched {
    entries: Vec<Bytes>,
    lists: BTreeMap<ShardId, Vec<Bytes>>,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    lists_gone: bool,
    rolled_back: bool,
}

/// Watches from a sequence on until the header of a version that stands, and gives what was told of
/// each commit on the way.
async fn watch(running: &Running, from_sequence: u64, until: u64) -> Vec<(Header, Watched)> {
    let want = v1::WatchHeadsRequest {
        from_sequence,
        follow: true,
        want_changed_values: true,
        want_journal: true,
        ..v1::WatchHeadsRequest::default()
    };
    let mut stream = running.client.clone().watch_heads(want).await.expect("it is served").into_inner();
    let (mut told, mut part) = (Vec::new(), Watched::default());
    loop {
        let message = timeout(LIMIT, stream.message()).await.expect("in time").expect("served").expect("it follows");
        let header = Header::decode(&message.header).expect("it is canonical");
        if let Some(journal) = message.journal {
            part.entries.extend(journal.entries);
            if !journal.lists.is_empty() {
                assert!(part.changes.is_empty(), "journals come before changes");
                part.lists.insert(ShardId(journal.shard), journal.lists);
            }
        }
        let change = |it: v1::Record| (it.key.to_vec(), it.found.then(|| it.value.to_vec()));
        part.changes.extend(message.changes.into_iter().map(change));
        if message.continued {
            continue;
        }
        (part.lists_gone, part.rolled_back) = (message.lists_gone, message.rolled_back);
        let (stamp, of_commit, whole) = (header.stamp, header.body == Body::Commit, std::mem::take(&mut part));
        let stands = of_commit && !whole.rolled_back;
        if of_commit {
            told.push((header, whole));
        }
        if stands && stamp.version == Version(until) {
            return told;
        }
    }
}

/// Compares what was told of a commit with its journal.
fn check(header: &Header, told: &Watched) {
    let written = journal::written(header, &told.entries, &told.lists).expect("the journal is whole");
    let hashes = |value: &Option<Vec<u8>>| value.as_ref().map(|value| sha256(value));
    let changes: BTreeMap<_, _> = told.changes.iter().map(|(key, value)| (key.clone(), hashes(value))).collect();
    let expected = |body: &RecordBody| match body {
        RecordBody::Put { value_hash, .. } => Some(*value_hash),
        RecordBody::Tombstone => None,
    };
    for (key, hash) in &changes {
        assert_eq!(*hash, expected(&written[key]), "{key:?}");
    }
    // What is written but not changed was deleted where nothing was.
    for (key, body) in written {
        assert!(changes.contains_key(&key) || body == RecordBody::Tombstone, "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_of_journals_see_all_that_a_version_wrote() {
    for journals_kept in [true, false] {
        let world = World::of(1, &[b"m".to_vec()], Params { capacity: 8, journals_kept, ..Params::default() }).await;
        let mut running = world.leader().await;
        let mut rng = SimRng::new(5);
        fill(&mut running, &mut rng, 12).await;
        let told = watch(&running, 0, 12).await;
        assert_eq!(told.len(), 12);
        for (header, told) in &told {
            assert!(!told.lists_gone && !told.rolled_back);
            check(header, told);
        }
        let (header, one) = told.iter().find(|(_, told)| told.lists.len() == 2).expect("of two shards");
        let lists = BTreeMap::from([one.lists.first_key_value().map(|(shard, it)| (*shard, it.clone())).expect("one")]);
        journal::written(header, &one.entries, &lists).expect_err("a shard's list is left out");
        let mut more = one.lists.clone();
        more.values_mut().for_each(|lists| lists.push(lists[0].clone()));
        journal::written(header, &one.entries, &more).expect_err("a list too many");
        let (other, _) = told.iter().find(|(other, _)| other.stamp != header.stamp).expect("there are several");
        journal::written(other, &one.entries, &one.lists).expect_err("of another version");
        running.client.rollback(roll_back(10)).await.expect("it rolls back");
        fill(&mut running, &mut rng, 13).await;
        let again = watch(&running, header.sequence.0, 13).await;
        assert_eq!(again.iter().filter(|(_, told)| told.rolled_back).count(), 2);
        again.iter().filter(|(_, told)| !told.rolled_back).for_each(|(header, told)| check(header, told));
        // Another coordinator knows of kept lists alone.
        let other = world.coordinator("b");
        let want = v1::WatchHeadsRequest { follow: true, want_journal: true, ..v1::WatchHeadsRequest::default() };
        if journals_kept {
            for (header, told) in watch(&other, 0, 13).await.iter().filter(|(_, told)| !told.rolled_back) {
                check(header, told);
            }
        } else {
            let refused = other.client.clone().watch_heads(want).await.expect("a stream").into_inner().message().await;
            assert_eq!(reason(&refused.expect_err("it does not lead")), Reason::NotLeader);
            let old = v1::WatchHeadsRequest { want_journal: true, ..v1::WatchHeadsRequest::default() };
            let mut stream = other.client.clone().watch_heads(old).await.expect("a stream").into_inner();
            let mut gone = 0;
            while let Some(message) = stream.message().await.expect("it is served") {
                assert!(message.journal.is_none_or(|journal| journal.lists.is_empty()));
                gone += u32::from(message.lists_gone);
            }
            assert_eq!(gone, 13);
        }
    }
}
