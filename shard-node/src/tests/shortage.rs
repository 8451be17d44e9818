//! Descriptors run out for a while: replicas come back by themselves, and no acknowledged write is
//! lost.

use std::time::Duration;

use super::*;
use crate::Tuning;

/// Makes files so small that replicas open new ones all the time.
fn small_files(tuning: &mut Tuning) {
    tuning.log_segment_bytes = 64 << 10;
    tuning.flush_interval = Duration::from_millis(100);
    tuning.engine.segment_bytes_max = 64 << 10;
}

/// Whether a replica has stopped, or its note names the shortage.
fn is_short(cluster: &Cluster, ordinal: u32, group: GroupId) -> bool {
    let status = cluster.replica(ordinal, group).and_then(|replica| replica.status);
    status.is_some_and(|it| it.role == "stopped" || it.note.contains("file descriptors or memory ran out"))
}

/// Commits long values until a condition holds.
async fn commit_until(leader: &mut Leader, acknowledged: &mut Vec<String>, what: &str, is_so: impl Fn() -> bool) {
    let long = "v".repeat(16 << 10);
    until(what, async || {
        let key = format!("key-{}", acknowledged.len());
        leader.commit(&key, &long).await;
        acknowledged.push(key);
        is_so().then_some(())
    })
    .await;
}

async fn holds(cluster: &Cluster, leader: &Leader, ordinal: u32, keys: &[String]) {
    until("it has caught up", async || caught_up(cluster, ordinal)).await;
    for key in keys {
        let value = until("it answers", async || leader.get(ordinal, key).await.ok()).await;
        assert_eq!(value.map(|value| value.len()), Some(16 << 10), "node {ordinal} lost {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_three_without_descriptors_holds_nobody_up_and_comes_back() {
    let cluster = Cluster::start_tuned(3, small_files).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let mut acknowledged = Vec::new();
    for opens in 0..4 {
        let short = cluster.leader(SHARD).await;
        let disk = &cluster.disks[&short];
        disk.set_opens_left(Some(opens));
        commit_until(&mut leader, &mut acknowledged, "it noticed", || is_short(&cluster, short, SHARD)).await;
        assert_eq!(cluster.node(short).liveness(), Ok(()), "a shortage ends");
        commit_until(&mut leader, &mut acknowledged, "commits go on", || true).await;
        disk.set_opens_left(None);
        leader.finalize().await;
        holds(&cluster, &leader, short, &acknowledged).await;
        until("it is well again", async || (!is_short(&cluster, short, SHARD)).then_some(())).await;
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_lack_descriptors_at_any_open_go_on_when_there_are_some_and_keep_what_was_acknowledged() {
    let mut cluster = Cluster::start_tuned(1, small_files).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let mut acknowledged = Vec::new();
    for opens in 0..12 {
        cluster.disks[&1].set_opens_left(Some(opens));
        let short = async {
            until("a replica noticed", async || {
                let short = is_short(&cluster, 1, SHARD) || is_short(&cluster, 1, GroupId::Root);
                short.then_some(())
            })
            .await;
            assert_eq!(cluster.node(1).liveness(), Ok(()), "a shortage ends");
            cluster.disks[&1].set_opens_left(None);
        };
        let noticed = std::sync::atomic::AtomicBool::new(false);
        let load = commit_until(&mut leader, &mut acknowledged, "it is over", || {
            noticed.load(std::sync::atomic::Ordering::Relaxed)
        });
        tokio::join!(load, async {
            short.await;
            noticed.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
    leader.finalize().await;
    holds(&cluster, &leader, 1, &acknowledged).await;
    // The data on the disk is complete, too.
    let disk = cluster.disks[&1].power_loss(7);
    cluster.nodes.remove(&1).expect("it runs").kill().await;
    cluster.disks.insert(1, disk);
    let node = cluster.open(1, CLUSTER).await.expect("it starts again");
    cluster.nodes.insert(1, node);
    leader.caller = cluster.caller();
    leader.adopt().await;
    holds(&cluster, &leader, 1, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stopped_for_good_is_said_not_to_live_and_why() {
    let cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    assert_eq!(cluster.node(1).liveness(), Ok(()));
    let (operation, path_part) = (Operation::Sync, "group-1/raft/".to_owned());
    cluster.disks[&1].inject(Fault { operation, path_part, skip: 0, kind: std::io::ErrorKind::Other });
    // The Prepare gets no answer.
    let _ = tokio::time::timeout(Duration::from_millis(500), leader.prepare(2, leader.decided(), &[record("a", "2")]))
        .await;
    let why = until("it has stopped", async || cluster.node(1).liveness().err()).await;
    assert!(why.starts_with("the replica of shard-0 has stopped for good: ") && why.contains("injected"), "{why}");
    cluster.end().await;
}
