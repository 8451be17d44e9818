//! Groups that sleep: they serve at once, and a dead leader is replaced.

use super::*;

async fn until_all_sleep(cluster: &Cluster) {
    let sleeps = |node: &crate::Handle, group| node.hosted().sleepers.is_asleep(group);
    let all = || cluster.nodes.values().all(|node| sleeps(node, GroupId::Root) && sleeps(node, SHARD));
    until("all replicas sleep", async || all().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_sleeps_serves_at_once_and_sleeps_again() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    for round in 0..3 {
        until_all_sleep(&cluster).await;
        let (before, key) = (cluster.leader(SHARD).await, format!("key-{round}"));
        leader.commit(&key, "x").await;
        leader.finalize().await;
        for ordinal in 1..=3 {
            leader.wait_for(ordinal, &key, "x").await;
        }
        assert_eq!(cluster.leader(SHARD).await, before, "no election was needed");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_group_whose_leader_dies_elects_another_one_unasked() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    until_all_sleep(&cluster).await;
    let dead = cluster.leader(SHARD).await;
    cluster.nodes.remove(&dead).expect("it runs").kill().await;
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != dead).collect();
    cluster.leader_among(SHARD, &others).await;
    leader.commit("b", "2").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_group_whose_leaders_replica_ends_alone_elects_another_one_unasked() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    until_all_sleep(&cluster).await;
    let ended = cluster.leader(SHARD).await;
    // Its node lives, and goes on to send beats.
    cluster.node(ended).stop_replica(SHARD).await.expect("it stops");
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != ended).collect();
    cluster.leader_among(SHARD, &others).await;
    leader.commit("b", "2").await;
    cluster.end().await;
}
