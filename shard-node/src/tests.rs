//! Three nodes in one process: their promises when replicas stop, lose their disks, diverge or are
//! cut off.

mod cluster;
mod erase;
mod full;
mod pim;
mod readers;
mod shortage;
mod sleep;

use cluster::{CLUSTER, Cluster, LIMIT, Leader, SHARD, name, until};
use coppice_env::{Fault, Operation, SimStorage};
use coppice_proto::{
    status,
    v1::{self, read_root_request::Read, shard_command_request::Command as Wire},
};
use coppice_types::{ClusterId, Digest, GroupId, Params, RaftId, Reason};
use coppice_verify::{
    header::{Genesis, Header},
    shard_map::ShardMap,
};

use crate::{
    Bootstrap, DuplexNet, Error, Node, Options, ReplicaOptions, Role,
    node::formation::Formation,
    replica::{AnyReplica, machine::StateMachine},
};

fn record(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_prepared_finalized_aborted_and_read_from_every_replica() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.commit("a", "2").await;
    let base = leader.decided();
    leader.prepare(3, base.clone(), &[record("a", "3")]).await.expect("prepared");
    let abort = v1::AbortCommand { version: 3, prepare_term: 1, prepare_attempt: leader.attempt };
    leader.command(Wire::Abort(abort)).await.expect("aborted");
    let answer = leader.command(Wire::Finalize(v1::FinalizeCommand {})).await.expect("decided");
    assert_eq!(answer.decided, Some(base));
    for ordinal in 1..=3 {
        leader.wait_for(ordinal, "a", "2").await;
        assert_eq!(leader.get(ordinal, "b").await.expect("read"), None);
    }
    let follower = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    let request = leader.request(4, leader.decided(), &[record("a", "4")]);
    let refusal = leader.caller.shard(follower).prepare(request).await.expect_err("only the leader prepares");
    assert_eq!(status::reason(&refusal), Some(Reason::NotLeader));
}

/// All pages of a scan of the decided state at node 1.
async fn scan(leader: &Leader, mut scan: v1::shard_scan_request::Scan) -> Vec<v1::ShardScanResponse> {
    use v1::shard_scan_request::Scan;
    let mut pages = Vec::new();
    loop {
        let request = v1::ShardScanRequest {
            group: SHARD.number(),
            context: Some(leader.context.clone()),
            state: leader.context.decided.clone(),
            scan: Some(scan.clone()),
        };
        let page = leader.caller.shard(1).scan(request).await.expect("no page is too large").into_inner();
        let (last, count) = (page.records.last().cloned(), u32::try_from(page.records.len()).expect("it is small"));
        let (next, ended) = (page.next.clone(), page.end.is_some());
        pages.push(page);
        if ended {
            return pages;
        }
        match &mut scan {
            Scan::Range(range) => {
                range.from = last.map(|last| [&last.key[..], &[0]].concat().into());
                range.limit = range.limit.saturating_sub(count);
            }
            Scan::History(history) => {
                history.below = last.and_then(|last| last.last_changed).map(|stamp| stamp.version);
                history.limit = history.limit.saturating_sub(count);
            }
            Scan::Diff(diff) => diff.low = next.expect("there is more"),
            Scan::Journal(_) => unreachable!("no test scans journals here"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_of_large_values_come_in_small_pages() {
    use v1::shard_scan_request::Scan;
    let cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let before = leader.decided();
    let value = "x".repeat(900 << 10);
    for at in 10..30 {
        leader.commit(&format!("key-{at}"), if at < 20 { "small" } else { &value }).await;
    }
    for _ in 0..5 {
        leader.commit("key-29", &value).await;
    }
    leader.wait_for(1, "key-29", &value).await;
    let keys: Vec<String> = (10..30).map(|at| format!("key-{at}")).collect();
    let range = v1::RangeScan { want_proof: true, ..v1::RangeScan::default() };
    let diff = v1::DiffScan { from: Some(before), ..v1::DiffScan::default() };
    let history = |limit| Scan::History(v1::HistoryScan { key: b"key-29".to_vec().into(), limit, below: None });
    let again = vec!["key-29".to_owned(); 6];
    for (what, expected, more) in [
        (Scan::Range(range.clone()), &keys[..], false),
        (Scan::Range(v1::RangeScan { limit: 15, ..range }), &keys[..15], true),
        (Scan::Diff(diff), &keys[..], false),
        (history(0), &again[..], false),
        (history(4), &again[..4], true),
        (history(6), &again[..], false),
    ] {
        let messages = scan(&leader, what).await;
        let large = |message: &v1::ShardScanResponse| message.records.iter().filter(|r| r.value.len() > 9).count();
        assert!(messages.iter().all(|message| large(message) <= 1), "one value is more than a page's bytes");
        assert_eq!(messages.last().and_then(|last| last.end.as_ref()).map(|end| end.more), Some(more));
        let records = messages.into_iter().flat_map(|message| message.records);
        let found: Vec<String> = records.map(|record| String::from_utf8_lossy(&record.key).into_owned()).collect();
        assert_eq!(found, expected);
    }
}

/// The directory of the state that a node is receiving, and the bytes in it.
fn taken_in(cluster: &Cluster, ordinal: u32) -> Option<(String, u64)> {
    use coppice_env::OpenMode;
    let storage =
        cluster.disks[&ordinal].storage().subdir(&crate::replica::home::directory(SHARD)).expect("a directory");
    let states = storage.list("").ok()?.into_iter().filter(|name| name.starts_with("state-"));
    let newest = states.max()?;
    let files = storage.list(&newest).ok()?;
    let len = |name: &String| storage.open(&format!("{newest}/{name}"), OpenMode::Existing)?.len();
    Some((newest.clone(), files.iter().filter_map(|name| len(name).ok()).sum()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_whose_receiver_is_cut_off_and_restarted_goes_on_where_it_stood() {
    const VALUES: u64 = 24;
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let value = "x".repeat(900 << 10);
    for at in 0..VALUES {
        leader.commit(&format!("key-{at}"), &value).await;
    }
    let sender = cluster.leader(SHARD).await;
    let receiver = if sender == 3 { 2 } else { 3 };
    cluster.node(receiver).wipe_replica(SHARD).await.expect("wiped");
    let node = cluster.node(receiver).clone();
    let joining = tokio::spawn(async move { node.replace_replica(SHARD).await });
    let (directory, before) =
        until("some bytes are there", async || taken_in(&cluster, receiver).filter(|(_, bytes)| *bytes > 512 << 10))
            .await;
    cluster.net.cut(&name(sender), &name(receiver));
    cluster.node(receiver).stop_replica(SHARD).await.expect("stopped");
    let (_, kept) = taken_in(&cluster, receiver).expect("it is kept");
    assert!(kept >= before && kept < VALUES * (900 << 10), "it was cut off on its way: {kept} bytes");
    // Commits continue meanwhile.
    leader.commit("meanwhile", "y").await;
    let stored = crate::Node::stored_raft_id(cluster.disks[&receiver].storage().as_ref(), SHARD);
    let id = stored.expect("read").expect("it has begun");
    cluster.net.heal(&name(sender), &name(receiver));
    let options = ReplicaOptions { group: SHARD, raft_id: id, bootstrap: Bootstrap::Join };
    cluster.node(receiver).start_replica(options).await.expect("started");
    joining.await.expect("no panic").expect("it joined");
    leader.wait_for(receiver, "meanwhile", "y").await;
    leader.wait_for(receiver, "key-7", &value).await;
    let (now, _) = taken_in(&cluster, receiver).expect("it is installed");
    assert_eq!(now, directory, "what was there was used: a new transfer would have had a directory of its own");
}

/// Bytes of a snapshot that were received, and bytes that were on the disk already.
fn traffic(of: &crate::replica::Traffic) -> (u64, u64) {
    use std::sync::atomic::Ordering;
    (of.sent.load(Ordering::Relaxed), of.held.load(Ordering::Relaxed))
}

/// The part that stops in the middle of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Sender,
    Receiver,
    Both,
    Link,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_goes_on_with_what_is_there_whoever_stops_and_whoever_sends_then() {
    const VALUES: u64 = 40;
    const SIZE: u64 = VALUES * (900 << 10);
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    for at in 0..VALUES {
        leader.commit(&format!("key-{at}"), &"x".repeat(900 << 10)).await;
    }
    for (round, stopped) in [Stopped::Sender, Stopped::Receiver, Stopped::Both, Stopped::Link].into_iter().enumerate() {
        let sender = cluster.leader(SHARD).await;
        let receiver = if sender == 3 { 2 } else { 3 };
        cluster.node(receiver).wipe_replica(SHARD).await.expect("wiped");
        let node = cluster.node(receiver).clone();
        let joining = tokio::spawn(async move { node.replace_replica(SHARD).await });
        let first = until("a third is there", async || {
            let counted = &cluster.node(receiver).hosted().shard(SHARD).ok()?.shared.traffic;
            (traffic(counted).0 > SIZE / 3).then(|| std::sync::Arc::clone(counted))
        })
        .await;
        cluster.net.cut(&name(sender), &name(receiver));
        let id = crate::Node::stored_raft_id(cluster.disks[&receiver].storage().as_ref(), SHARD);
        if matches!(stopped, Stopped::Receiver | Stopped::Both) {
            cluster.node(receiver).stop_replica(SHARD).await.expect("stopped");
        }
        let (sent, _) = traffic(&first);
        assert!(sent < SIZE, "it was cut off on its way: {sent} bytes");
        if matches!(stopped, Stopped::Sender | Stopped::Both) {
            cluster.restart(sender, SHARD).await;
        }
        cluster.net.heal(&name(sender), &name(receiver));
        if matches!(stopped, Stopped::Receiver | Stopped::Both) {
            let raft_id = id.expect("read").expect("it has begun");
            let options = ReplicaOptions { group: SHARD, raft_id, bootstrap: Bootstrap::Join };
            cluster.node(receiver).start_replica(options).await.expect("started");
        }
        // Commits continue meanwhile.
        leader.commit("meanwhile", &round.to_string()).await;
        joining.await.expect("no panic").expect("it joined");
        leader.wait_for(receiver, "meanwhile", &round.to_string()).await;
        let second =
            std::sync::Arc::clone(&cluster.node(receiver).hosted().shard(SHARD).expect("it runs").shared.traffic);
        let all = match std::sync::Arc::ptr_eq(&first, &second) {
            true => traffic(&first).0,
            false => traffic(&first).0 + traffic(&second).0,
        };
        println!("{stopped:?}: {sent} bytes before, {all} in all, {} held, of {SIZE}", traffic(&second).1);
        // Each file's last part and changed parts may be sent again, but not the third that was
        // there.
        assert!(all < SIZE + SIZE / 6, "{stopped:?}: {sent} bytes were there, {all} were sent in all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_serving_while_its_replicas_vote_and_know_a_leader() {
    use tonic_health::{ServingStatus, pb::HealthCheckRequest, pb::health_client::HealthClient};
    let cluster = Cluster::start(3).await;
    let client = HealthClient::new(cluster.caller().channels[&1].clone());
    let serving = async || {
        let answer = client.clone().check(HealthCheckRequest { service: String::new() }).await;
        answer.expect("it answers").into_inner().status == ServingStatus::Serving as i32
    };
    until("it serves", async || serving().await.then_some(())).await;
    for ordinal in 2..=3 {
        cluster.node(ordinal).stop_replica(SHARD).await.expect("stopped");
    }
    until("it does not serve", async || (!serving().await).then_some(())).await;
    for ordinal in 2..=3 {
        let options = cluster.options(ordinal, CLUSTER).replicas.remove(1);
        cluster.node(ordinal).start_replica(options).await.expect("started");
    }
    until("it serves again", async || serving().await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_go_on_when_leaders_stop_and_stopped_replicas_catch_up() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    for round in 0..3 {
        let stopped = cluster.leader(SHARD).await;
        cluster.node(stopped).stop_replica(SHARD).await.expect("stopped");
        for at in 0..10 {
            leader.commit(&format!("key-{round}-{at}"), "x").await;
        }
        let options = cluster.options(stopped, CLUSTER).replicas.remove(1);
        cluster.node(stopped).start_replica(options).await.expect("started");
        leader.wait_for(stopped, &format!("key-{round}-9"), "x").await;
    }
    assert_eq!(leader.decided().version, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_stop_and_start_with_and_without_disk_under_load() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let load = async {
        while stopped.try_recv().is_err() {
            let version = leader.decided().version + 1;
            leader.commit(&format!("key-{version}"), &version.to_string()).await;
        }
        leader
    };
    let chaos = async {
        for ordinal in 1..=3 {
            cluster.restart(ordinal, SHARD).await;
            until("it has caught up", async || caught_up(&cluster, ordinal)).await;
        }
        let mut ids = Vec::new();
        for ordinal in 1..=3 {
            cluster.node(ordinal).wipe_replica(SHARD).await.expect("wiped");
            let id = cluster.node(ordinal).replace_replica(SHARD).await.expect("replaced");
            assert_eq!(id.ordinal(), ordinal);
            ids.push(id.0);
            until("it has caught up", async || caught_up(&cluster, ordinal)).await;
        }
        stop.send(()).expect("the load runs");
        ids
    };
    let (leader, ids) = tokio::join!(load, chaos);
    let last = leader.decided().version;
    assert!(last > 20, "the load did little: {last}");
    for ordinal in 1..=3 {
        leader.wait_for(ordinal, &format!("key-{last}"), &last.to_string()).await;
        for version in 1..=last {
            let value = leader.get(ordinal, &format!("key-{version}")).await.expect("read");
            assert_eq!(value, Some(version.to_string()), "node {ordinal} lost version {version}");
        }
    }
    let voters = cluster.replica(1, SHARD).expect("it runs").voters;
    assert_eq!(voters, ids);
}

/// `Some` if a replica votes or leads, and has applied about as many entries as the others.
fn caught_up(cluster: &Cluster, ordinal: u32) -> Option<()> {
    let applied = |ordinal| cluster.replica(ordinal, SHARD)?.status.map(|status| status.applied);
    let newest = (1..=3).filter_map(applied).max()?;
    let own = applied(ordinal)?;
    let role = cluster.role(ordinal, SHARD);
    (own + 5 >= newest && (role == "follower" || role == "leader")).then_some(())
}

/// Makes one replica compute another digest than the others.
fn spoil(cluster: &Cluster, ordinal: u32) {
    let replica = cluster.node(ordinal).hosted().shard(SHARD).expect("it runs");
    let mut machine = replica.shared.machine.write();
    machine.as_mut().expect("it serves").spoil_next = true;
}

/// Writes the records that [`is_rebuilt`] looks for.
async fn fill_two_keys(leader: &mut Leader) {
    leader.commit("a", "1").await;
    leader.commit("b", "2").await;
    leader.finalize().await;
}

async fn is_rebuilt(cluster: &Cluster, leader: &Leader, ordinal: u32) {
    until("it is quarantined, and then rebuilt", async || {
        let evidence = cluster.disks[&ordinal].files().iter().any(|file| file.contains("/evidence/"));
        (evidence && caught_up(cluster, ordinal).is_some()).then_some(())
    })
    .await;
    leader.wait_for(ordinal, "b", "2").await;
    let version = leader.decided().version;
    assert_eq!(leader.get(ordinal, "a").await.expect("read"), Some("1".to_owned()), "at version {version}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_with_another_digest_is_quarantined_and_rebuilt() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let follower = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    spoil(&cluster, follower);
    fill_two_keys(&mut leader).await;
    is_rebuilt(&cluster, &leader, follower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_another_digest_answers_nothing_steps_down_and_is_rebuilt() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let spoiled = cluster.leader(SHARD).await;
    spoil(&cluster, spoiled);
    fill_two_keys(&mut leader).await;
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != spoiled).collect();
    cluster.leader_among(SHARD, &others).await;
    is_rebuilt(&cluster, &leader, spoiled).await;
}

/// Waits until a replica has flushed all entries that the leader knows as committed. The replica
/// itself may not know of them yet.
async fn all_is_flushed(cluster: &Cluster, leads: u32, ordinal: u32) {
    let all = cluster.node(leads).hosted().shard(SHARD).expect("it is there").status().committed;
    until("all is flushed", async || {
        let replica = cluster.node(ordinal).hosted().shard(SHARD).ok()?;
        replica.read_now(|machine| Ok(machine.durable().index)).ok().filter(|&index| index >= all)
    })
    .await;
}

/// A follower that has flushed all committed entries.
async fn flushed_follower(cluster: &Cluster) -> u32 {
    let leads = cluster.leader(SHARD).await;
    let follower = if leads == 1 { 2 } else { 1 };
    all_is_flushed(cluster, leads, follower).await;
    follower
}

/// Flips a bit in every sector of some files of a shard's first state.
fn rot(cluster: &Cluster, ordinal: u32, files: &[&str]) {
    let disk = &cluster.disks[&ordinal];
    for file in files {
        let path = format!("group-1/state-1/{file}");
        let len =
            disk.storage().open(&path, coppice_env::OpenMode::Existing).expect("it exists").len().expect("measured");
        (0..len / 512).for_each(|sector| disk.flip_bit(&path, sector * 512 + 37, 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_nobody_reads_is_found_in_the_background() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    fill_two_keys(&mut leader).await;
    let damaged = flushed_follower(&cluster).await;
    rot(&cluster, damaged, &["data", "index", "patches"]);
    is_rebuilt(&cluster, &leader, damaged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_snapshots_are_refused_finds_the_page_that_nobody_reads_and_is_rebuilt() {
    let cluster = Cluster::start_tuned(3, |tuning| tuning.scrub_bytes_per_s = 0).await;
    let mut leader = Leader::new(&cluster, 1).await;
    fill_two_keys(&mut leader).await;
    let damaged = cluster.leader(SHARD).await;
    all_is_flushed(&cluster, damaged, damaged).await;
    // All nodes that reads and writes need are in memory, and the background check is off.
    rot(&cluster, damaged, &["data", "index", "patches"]);
    assert_eq!(leader.get(damaged, "a").await.expect("read"), Some("1".to_owned()));
    let receiver = if damaged == 3 { 2 } else { 3 };
    cluster.node(receiver).wipe_replica(SHARD).await.expect("wiped");
    let joining = cluster.node(receiver).replace_replica(SHARD);
    tokio::time::timeout(LIMIT, joining).await.expect("it joins in time").expect("it joined");
    is_rebuilt(&cluster, &leader, damaged).await;
    leader.wait_for(receiver, "b", "2").await;
    assert!(!cluster.disks[&receiver].files().iter().any(|file| file.contains("/evidence/")), "it was never damaged");
    leader.commit("c", "3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_leader_whose_snapshot_is_called_damaged_looks_and_stays() {
    use std::sync::atomic::Ordering;
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let value = "x".repeat(900 << 10);
    for at in 0..16 {
        leader.commit(&format!("key-{at}"), &value).await;
    }
    let sender = cluster.leader(SHARD).await;
    let receiver = if sender == 3 { 2 } else { 3 };
    let liar = 6 - sender - receiver;
    cluster.node(receiver).wipe_replica(SHARD).await.expect("wiped");
    let node = cluster.node(receiver).clone();
    let joining = tokio::spawn(async move { node.replace_replica(SHARD).await });
    until("some bytes are there", async || taken_in(&cluster, receiver).filter(|(_, bytes)| *bytes > 512 << 10)).await;
    // The sender keeps its pin.
    cluster.net.cut(&name(sender), &name(receiver));
    let replica = cluster.node(sender).hosted().shard(SHARD).expect("it runs");
    until("it has looked", async || {
        for snapshot_id in 1..9 {
            let refused = v1::SnapshotRefused { snapshot_id };
            replica.peer(cluster.message(liar, sender, v1::peer_message::Body::Refused(refused)), &name(liar));
        }
        (replica.shared.traffic.checked.load(Ordering::Relaxed) > 0).then_some(())
    })
    .await;
    leader.commit("after", "1").await;
    assert_eq!(cluster.role(sender, SHARD), "leader", "{}", note(&cluster, sender));
    assert!(!cluster.disks[&sender].files().iter().any(|file| file.contains("/evidence/")));
    cluster.net.heal(&name(sender), &name(receiver));
    joining.await.expect("no panic").expect("it joined");
    leader.wait_for(receiver, "after", "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_pages_never_become_an_answer_and_the_replica_is_rebuilt() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    fill_two_keys(&mut leader).await;
    let damaged = flushed_follower(&cluster).await;
    cluster.node(damaged).stop_replica(SHARD).await.expect("stopped");
    rot(&cluster, damaged, &["data", "index", "patches"]);
    let options = cluster.options(damaged, CLUSTER).replicas.remove(1);
    cluster.node(damaged).start_replica(options).await.expect("started");
    until("a right answer", async || match leader.get(damaged, "a").await {
        Ok(value) => {
            assert_eq!(value.as_deref(), Some("1"));
            Some(())
        }
        Err(_) => None,
    })
    .await;
    is_rebuilt(&cluster, &leader, damaged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_outlasts_a_restart() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let follower = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    // Cut off from the other replicas, it gets no snapshot and stays in quarantine.
    spoil(&cluster, follower);
    leader.commit("a", "1").await;
    until("it is quarantined", async || (cluster.role(follower, SHARD) == "quarantined").then_some(())).await;
    for other in (1..=3).filter(|&other| other != follower) {
        cluster.net.cut(&name(follower), &name(other));
    }
    if cluster.role(follower, SHARD) == "quarantined" {
        cluster.restart(follower, SHARD).await;
        let role =
            until("it shows a role", async || Some(cluster.role(follower, SHARD)).filter(|it| !it.is_empty())).await;
        assert_eq!(role, "quarantined");
        assert!(leader.get(follower, "a").await.is_err());
    }
    for other in (1..=3).filter(|&other| other != follower) {
        cluster.net.heal(&name(follower), &name(other));
    }
    leader.commit("b", "2").await;
    leader.finalize().await;
    is_rebuilt(&cluster, &leader, follower).await;
}

fn genesis() -> Header {
    let shard_map = ShardMap::from_splits(&[]).expect("one shard");
    let genesis =
        Genesis { prefix: "ledger.example".into(), public_key: [3; 32], params: Params::default(), shard_map };
    Header::genesis(CLUSTER, 1_000_000, genesis)
}

fn read_view(stale_ok: bool) -> v1::ReadRootRequest {
    v1::ReadRootRequest { stale_ok, read: Some(Read::View(true)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_group_takes_a_leader_and_every_replica_reads_what_was_acknowledged() {
    let cluster = Cluster::start(3).await;
    let mut caller = cluster.caller();
    let request = v1::TakeOverRequest { candidate: "c".to_owned(), genesis: genesis().encode().into() };
    for term in 1..=2 {
        let call = async |caller: &cluster::Caller, at: u32| caller.root(at).take_over(request.clone()).await;
        let answer = caller.call(call).await.expect("taken over").into_inner();
        assert!(answer.term >= term);
        assert_eq!(answer.clocks_ms.len(), 3);
        let view = answer.view.expect("always set");
        assert_eq!((view.log_size, view.term), (1, answer.term));
        for ordinal in 1..=3 {
            let read = async |caller: &cluster::Caller, _: u32| caller.root(ordinal).read_root(read_view(false)).await;
            let read = caller.call(read).await.expect("read").into_inner().view.expect("always set");
            assert_eq!((read.term, &read.newest), (answer.term, &view.newest), "node {ordinal}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_leader_that_is_cut_off_answers_no_linearizable_read() {
    let cluster = Cluster::start(3).await;
    let mut caller = cluster.caller();
    let stale = cluster.leader(GroupId::Root).await;
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != stale).collect();
    for other in &others {
        cluster.net.cut(&name(stale), &name(*other));
    }
    // The stale leader refuses at once while it still believes that it leads, and also after the
    // others have elected a leader.
    let refusal = caller.root(stale).read_root(read_view(false)).await.expect_err("nobody confirms it");
    assert_eq!(status::reason(&refusal), Some(Reason::Unavailable));
    cluster.leader_among(GroupId::Root, &others).await;
    let request = v1::TakeOverRequest { candidate: "c".to_owned(), genesis: genesis().encode().into() };
    let call = async |caller: &cluster::Caller, at: u32| match at == stale {
        true => Err(tonic::Status::unavailable("not asked")),
        false => caller.root(at).take_over(request.clone()).await,
    };
    let answer = caller.call(call).await.expect("taken over").into_inner();
    let refusal = caller.root(stale).read_root(read_view(false)).await.expect_err("nobody confirms it");
    assert_eq!(status::reason(&refusal), Some(Reason::Unavailable));
    let stale_view = caller.root(stale).read_root(read_view(true)).await.expect("allowed to be stale").into_inner();
    assert_eq!(stale_view.view.expect("always set").log_size, 0);
    for other in &others {
        cluster.net.heal(&name(stale), &name(*other));
    }
    let call = async |caller: &cluster::Caller, _: u32| caller.root(stale).read_root(read_view(false)).await;
    let read = caller.call(call).await.expect("it has rejoined").into_inner();
    assert_eq!(read.view.expect("always set").term, answer.term);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_is_a_group_too_and_keeps_its_state_over_restarts() {
    let mut cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    for at in 0..20 {
        leader.commit("a", &at.to_string()).await;
    }
    leader.finalize().await;
    for kill in [true, false] {
        let node = cluster.nodes.remove(&1).expect("it runs");
        if kill {
            node.kill().await
        } else {
            node.stop().await
        }
        let node = cluster.open(1, CLUSTER).await.expect("it starts again");
        cluster.nodes.insert(1, node);
        leader.caller = cluster.caller();
        leader.wait_for(1, "a", "19").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_ends_with_its_handle() {
    let mut cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    drop(cluster.nodes.remove(&1));
    let node = until("its directory is free", async || cluster.open(1, CLUSTER).await.ok()).await;
    cluster.nodes.insert(1, node);
    leader.caller = cluster.caller();
    leader.adopt().await;
    leader.wait_for(1, "a", "1").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_loss_of_power_of_all_nodes_at_once() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    for seed in 0..4 {
        for at in 0..25 {
            leader.commit(&format!("key-{seed}-{at}"), "x").await;
        }
        let disks = cluster.disks.iter().map(|(&ordinal, disk)| (ordinal, disk.power_loss(seed + u64::from(ordinal))));
        let disks = disks.collect();
        for node in std::mem::take(&mut cluster.nodes).into_values() {
            node.kill().await;
        }
        cluster.disks = disks;
        for ordinal in 1..=3 {
            let node = cluster.open(ordinal, CLUSTER).await.expect("it starts again");
            cluster.nodes.insert(ordinal, node);
        }
        leader.caller = cluster.caller();
        // The next leader knows the decided version from the root log. The shard kept that version,
        // although it had not been told of the decision.
        leader.adopt().await;
        for ordinal in 1..=3 {
            leader.wait_for(ordinal, &format!("key-{seed}-24"), "x").await;
        }
    }
    for seed in 0..4 {
        for at in 0..25 {
            let value = leader.get(1, &format!("key-{seed}-{at}")).await.expect("read");
            assert_eq!(value.as_deref(), Some("x"), "key-{seed}-{at} is lost");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_missed_what_the_log_no_longer_has_gets_a_snapshot() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let behind = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    leader.commit("first", "1").await;
    leader.finalize().await;
    leader.wait_for(behind, "first", "1").await;
    cluster.node(behind).stop_replica(SHARD).await.expect("stopped");
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != behind).collect();
    let first_is_gone = |ordinal: &u32| {
        let files = cluster.disks[ordinal].files();
        let segments: Vec<&String> =
            files.iter().filter(|file| file.starts_with("group-1/raft/") && file.ends_with(".log")).collect();
        !segments.is_empty() && !segments.iter().any(|file| file.ends_with("/0000000000000001.log"))
    };
    let long = "v".repeat(8 << 10);
    until("the logs are cut", async || {
        leader.commit("long", &long).await;
        others.iter().all(first_is_gone).then_some(())
    })
    .await;
    let options = cluster.options(behind, CLUSTER).replicas.remove(1);
    cluster.node(behind).start_replica(options).await.expect("started");
    leader.finalize().await;
    leader.wait_for(behind, "long", &long).await;
    let state = cluster.disks[&behind].files().into_iter().find(|file| file.starts_with("group-1/state-2/"));
    assert!(state.is_some(), "it caught up without a snapshot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_could_not_be_formed_is_formed_later_without_a_restart() {
    let (disk, net) = (SimStorage::new(), DuplexNet::new());
    // Each of these fails once: the pledge, the raft log, the first state.
    for path_part in ["group-1/identity", "group-1/raft/", "group-1/state-1/"] {
        let (operation, path_part) = (Operation::Write, path_part.to_owned());
        disk.inject(Fault { operation, path_part, skip: 0, kind: std::io::ErrorKind::StorageFull });
    }
    let cluster = Cluster::start(1).await;
    let options = Options {
        storage: disk.storage(),
        connector: net.connector(&name(1)),
        replicas: Vec::new(),
        ..cluster.options(1, CLUSTER)
    };
    let node = Node::start(options, net.listen(&name(1))).await.expect("it starts without replicas");
    let formation = Formation { groups: [(SHARD, [1].into())].into(), new: true, ledger: Digest::default() };
    node.form(&formation, &[(SHARD, false)].into());
    until("it is formed", async || {
        let replica = node.hosted().shard(SHARD).ok()?;
        (replica.status().role == Role::Leader).then_some(())
    })
    .await;
    node.kill().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_in_order_hands_its_leadership_over() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    let first = cluster.leader(SHARD).await;
    let node = cluster.nodes.remove(&first).expect("it runs");
    let replica = node.hosted().shard(SHARD).expect("it runs");
    node.stop().await;
    let last = replica.status();
    let heir = last.leader_node.clone();
    assert!(!heir.is_empty() && heir != name(first), "it followed nobody when it ended: {last:?}");
    leader.commit("b", "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raft_goes_on_while_a_long_read_holds_the_state_machine() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let replica = cluster.node(cluster.leader(SHARD).await).hosted().shard(SHARD).expect("it runs");
    let (entered, inside) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel();
    let reader = replica.clone();
    let read = tokio::spawn(async move {
        let long = move |_: &crate::shard::ShardMachine| {
            entered.send(()).expect("the test waits");
            left.recv().expect("the test says when");
            Ok(())
        };
        reader.read(long).await
    });
    inside.recv().expect("the read begins");
    let before = replica.status();
    let (version, ()) = tokio::join!(leader.commit("a", "1"), async {
        let committed = async || (replica.status().committed > before.committed).then_some(());
        until("raft commits during the read", committed).await;
        assert_eq!(replica.status().applied, before.applied, "the read sees one state");
        leave.send(()).expect("the read waits");
    });
    assert_eq!(version, 1);
    read.await.expect("it ends").expect("it is answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_joining_was_cut_off_goes_on_at_the_next_start() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    cluster.node(3).wipe_replica(SHARD).await.expect("wiped");
    let mut options = cluster.options(3, CLUSTER);
    options.replicas[1] = ReplicaOptions { group: SHARD, raft_id: RaftId::new(3, 2), bootstrap: Bootstrap::Join };
    cluster.node(3).start_replica(options.replicas[1].clone()).await.expect("started");
    cluster.nodes.remove(&3).expect("it runs").kill().await;
    let node = crate::Node::start(options, cluster.net.listen(&name(3))).await.expect("it starts again");
    cluster.nodes.insert(3, node);
    until("it votes", async || caught_up(&cluster, 3)).await;
    leader.wait_for(3, "a", "1").await;
    let alone = async || cluster.replica(3, SHARD).filter(|replica| replica.voters.len() == 3);
    let replica = until("the old replica has left", alone).await;
    assert_eq!(replica.voters, [RaftId::new(1, 1), RaftId::new(2, 1), RaftId::new(3, 2)].map(|id| id.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_held_or_of_another_cluster_or_replica_is_refused() {
    let mut cluster = Cluster::start(1).await;
    assert!(matches!(cluster.open(1, CLUSTER).await, Err(Error::InUse)));
    let node = cluster.nodes.remove(&1).expect("it runs");
    node.kill().await;
    let other = ClusterId([8; 16]);
    assert!(matches!(cluster.open(1, other).await, Err(Error::Identity(_))));
    let mut options = cluster.options(1, CLUSTER);
    options.replicas[0].raft_id = RaftId::new(1, 2);
    let refused = crate::Node::start(options, cluster.net.listen("node-1")).await;
    assert!(matches!(refused, Err(Error::Identity(_))));
    assert!(cluster.open(1, CLUSTER).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_not_listened_to() {
    let cluster = Cluster::start(1).await;
    let connector = cluster.net.connector("stranger");
    let mut peer = v1::peer_client::PeerClient::new(connector.channel("node-1"));
    let message = v1::PeerMessage { cluster_id: vec![8; 16].into(), ..v1::PeerMessage::default() };
    for named in [ClusterId([8; 16]), CLUSTER] {
        let mut request = tonic::Request::new(futures::stream::iter([message.clone()]));
        crate::net::peers::name_caller(&mut request, "stranger", named);
        let refusal = peer.exchange(request).await.expect_err("another cluster");
        assert_eq!(status::reason(&refusal), Some(Reason::WrongCluster));
    }
    let fetch = v1::FetchSnapshotRequest::default();
    let refusal = peer.fetch_snapshot(fetch).await.expect_err("no cluster is named");
    assert_eq!(status::reason(&refusal), Some(Reason::WrongCluster));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_refused_and_change_nothing() {
    let cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    let base = leader.decided();
    let good = leader.request(2, base, &[record("a", "2")]);
    let long = "k".repeat(600);
    let cases: Vec<(&str, Reason, v1::PrepareRequest)> = vec![
        ("no context", Reason::InvalidArgument, v1::PrepareRequest { context: None, ..good.clone() }),
        ("no base", Reason::InvalidArgument, v1::PrepareRequest { base: None, ..good.clone() }),
        ("no stamp", Reason::InvalidArgument, v1::PrepareRequest { stamp: None, ..good.clone() }),
        ("the root group", Reason::InvalidArgument, v1::PrepareRequest { group: 0, ..good.clone() }),
        ("an unknown group", Reason::Unavailable, v1::PrepareRequest { group: 77, ..good.clone() }),
        ("a long key", Reason::LimitExceeded, leader.request(2, leader.decided(), &[record(&long, "2")])),
        ("no key", Reason::LimitExceeded, leader.request(2, leader.decided(), &[record("", "2")])),
        (
            "a key twice",
            Reason::InvalidArgument,
            leader.request(2, leader.decided(), &[record("a", "2"), record("a", "3")]),
        ),
        (
            "a short digest",
            Reason::InvalidArgument,
            v1::PrepareRequest {
                base: Some(v1::ShardState { version: 1, digest: vec![1; 31].into() }),
                ..good.clone()
            },
        ),
        ("an older version", Reason::InvalidArgument, leader.request(1, leader.decided(), &[record("a", "2")])),
    ];
    for (what, reason, request) in cases {
        let refusal = leader.caller.shard(1).prepare(request).await.expect_err(what);
        assert_eq!(status::reason(&refusal), Some(reason), "{what}");
    }
    let replica = cluster.replica(1, SHARD).expect("it runs");
    assert_eq!(replica.decided, leader.context.decided);
    let shape = replica.shape.expect("it serves");
    assert_eq!(shape.entries, vec![1]);
}

/// The note of a replica's status.
fn note(cluster: &Cluster, ordinal: u32) -> String {
    cluster.replica(ordinal, SHARD).and_then(|replica| replica.status).map(|status| status.note).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_stop_with_their_cluster_lose_nothing() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    for ordinal in 1..=3 {
        leader.wait_for(ordinal, "a", "1").await;
    }
    for node in std::mem::take(&mut cluster.nodes).into_values() {
        node.stop_with_cluster().await;
    }
    for ordinal in 1..=3 {
        let node = cluster.open(ordinal, CLUSTER).await.expect("it starts again");
        cluster.nodes.insert(ordinal, node);
    }
    leader.caller = cluster.caller();
    leader.adopt().await;
    leader.wait_for(2, "a", "1").await;
}
