//! Readers: they get the data and serve it, and nothing waits for them.

use std::{sync::atomic::Ordering, time::Duration};

use coppice_proto::v1;
use coppice_types::{RaftId, Reason};

use super::cluster::{CLUSTER, Cluster, LIMIT, Leader, SHARD, until};
use crate::replica::Change;

/// The ordinal of the first reader beside three voters.
const READER: u32 = 4;

/// Starts the node of a reader, from what its disk has.
async fn open(cluster: &mut Cluster, ordinal: u32) {
    let node = cluster.open(ordinal, CLUSTER).await.expect("the node starts");
    cluster.nodes.insert(ordinal, node);
}

/// Three voters with a reader that has joined.
async fn with_reader() -> (Cluster, Leader) {
    let mut cluster = Cluster::start_with_readers(3, 1, |_| ()).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    open(&mut cluster, READER).await;
    cluster.node(READER).replace_replica(SHARD).await.expect("it joins");
    leader.wait_for(READER, "a", "1").await;
    (cluster, leader)
}

/// The raft ids of the voters and learners, as the leader knows them.
async fn members(cluster: &Cluster) -> (Vec<RaftId>, Vec<RaftId>) {
    let leads = cluster.leader(SHARD).await;
    let report = cluster.replica(leads, SHARD).expect("it leads");
    let ids = |ids: &[u64]| ids.iter().copied().map(RaftId).collect();
    (ids(&report.voters), ids(&report.learners))
}

fn voters() -> Vec<RaftId> {
    (1..=3).map(|ordinal| RaftId::new(ordinal, 1)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_serves_every_version_that_it_has_and_never_votes() {
    let (cluster, mut leader) = with_reader().await;
    let first = leader.decided();
    leader.commit("a", "2").await;
    leader.finalize().await;
    leader.wait_for(READER, "a", "2").await;
    let newest = leader.context.decided.replace(first);
    assert_eq!(leader.get(READER, "a").await.expect("it has the older version"), Some("1".to_owned()));
    leader.context.decided = newest;
    assert_eq!(cluster.role(READER, SHARD), "learner");
    assert_eq!(cluster.node(READER).readiness(), Ok(()));
    let (voting, learning) = members(&cluster).await;
    assert_eq!((voting, learning.len(), learning[0].ordinal()), (voters(), 1, READER));
    let leads = cluster.leader(SHARD).await;
    let replica = cluster.node(leads).hosted().replica(SHARD).expect("it leads");
    let refused = replica.change(LIMIT, Change::Promote(learning[0])).await.expect_err("a reader never votes");
    assert_eq!(refused.reason, Reason::Unavailable);
    assert!(replica.status().readers.is_some_and(|readers| readers.silent == 0), "{:?}", replica.status().readers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_lost_its_disk_comes_back_in_its_own_place() {
    let (cluster, mut leader) = with_reader().await;
    let (_, before) = members(&cluster).await;
    cluster.node(READER).wipe_replica(SHARD).await.expect("wiped");
    let id = cluster.node(READER).replace_replica(SHARD).await.expect("it joins again");
    leader.commit("b", "2").await;
    leader.finalize().await;
    leader.wait_for(READER, "b", "2").await;
    assert_ne!(before, [id]);
    assert_eq!(members(&cluster).await, (voters(), vec![id]), "its former replica has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_no_part_of_a_majority() {
    let (mut cluster, mut leader) = with_reader().await;
    let leads = cluster.leader(SHARD).await;
    for ordinal in (1..=3).filter(|ordinal| *ordinal != leads) {
        cluster.nodes.remove(&ordinal).expect("it runs").kill().await;
    }
    leader.attempt += 1;
    let request = leader.request(2, leader.decided(), &[("b".to_owned(), "2".to_owned())]);
    let mut shard = leader.caller.shard(leads);
    let answered = tokio::time::timeout(Duration::from_secs(2), shard.prepare(request)).await;
    assert!(!matches!(answered, Ok(Ok(_))), "one of three voters has it: {answered:?}");
    assert_eq!(leader.get(READER, "a").await.expect("reads go on"), Some("1".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_and_cuts_of_the_log_go_on_without_a_reader_and_it_is_refilled() {
    let (mut cluster, mut leader) = with_reader().await;
    cluster.nodes.remove(&READER).expect("it runs").kill().await;
    let first_is_gone = |ordinal: u32| {
        let files = cluster.disks[&ordinal].files();
        let segments: Vec<&String> =
            files.iter().filter(|file| file.starts_with("group-1/raft/") && file.ends_with(".log")).collect();
        !segments.is_empty() && !segments.iter().any(|file| file.ends_with("/0000000000000001.log"))
    };
    let long = "v".repeat(8 << 10);
    until("the logs of all voters are cut", async || {
        leader.commit("long", &long).await;
        (1..=3).all(first_is_gone).then_some(())
    })
    .await;
    let leads = cluster.leader(SHARD).await;
    let silent = async || {
        let readers = cluster.node(leads).hosted().replica(SHARD)?.status().readers?;
        (readers.silent == 1 && readers.lag > 0).then_some(())
    };
    until("the leader knows that it is away", silent).await;
    open(&mut cluster, READER).await;
    leader.finalize().await;
    leader.wait_for(READER, "long", &long).await;
    let replica = cluster.node(READER).hosted().replica(SHARD).expect("it runs");
    assert!(replica.traffic().installed.load(Ordering::Relaxed) > 0, "it caught up without a snapshot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_with_another_digest_is_quarantined_and_rebuilt_and_commits_go_on() {
    let (cluster, mut leader) = with_reader().await;
    super::spoil(&cluster, READER);
    leader.commit("b", "2").await;
    leader.finalize().await;
    until("it is quarantined, and then rebuilt", async || {
        let evidence = cluster.disks[&READER].files().iter().any(|file| file.contains("/evidence/"));
        (evidence && cluster.role(READER, SHARD) == "learner").then_some(())
    })
    .await;
    leader.wait_for(READER, "b", "2").await;
    leader.commit("c", "3").await;
    assert_eq!(members(&cluster).await.0, voters());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_founded_without_readers_gets_one_and_starts_in_any_order() {
    let mut cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    // Only the reader knows the new configuration. The others learn of it at their next start.
    cluster.readers = 1;
    cluster.disks.insert(READER, coppice_env::SimStorage::new());
    open(&mut cluster, READER).await;
    cluster.node(READER).replace_replica(SHARD).await.expect("it joins");
    leader.caller = cluster.caller();
    leader.wait_for(READER, "a", "1").await;
    for (round, order) in [[READER, 1, 2, 3], [1, READER, 2, 3], [3, 2, 1, READER]].into_iter().enumerate() {
        for node in std::mem::take(&mut cluster.nodes).into_values() {
            node.kill().await;
        }
        for ordinal in order {
            open(&mut cluster, ordinal).await;
        }
        leader.caller = cluster.caller();
        leader.adopt().await;
        let value = format!("{round}");
        leader.commit("b", &value).await;
        leader.finalize().await;
        leader.wait_for(READER, "b", &value).await;
        let (voting, learning) = members(&cluster).await;
        assert_eq!((voting, learning.len()), (voters(), 1), "after {order:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_reader_is_given_no_vote_and_deposes_nobody() {
    use coppice_consensus::Message;
    use v1::peer_message::Body;

    let (cluster, mut leader) = with_reader().await;
    let leads = cluster.leader(SHARD).await;
    let replica = cluster.node(leads).hosted().replica(SHARD).expect("it leads");
    let term = replica.status().term;
    let (_, learning) = members(&cluster).await;
    let mut sent = Vec::new();
    for kind in 1..=12_u8 {
        // Format, kind, group, from, to, term, and fields that are zero.
        let mut bytes = vec![1, kind];
        bytes.extend(SHARD.number().to_le_bytes());
        for number in [learning[0].0, RaftId::new(leads, 1).0, term + 7, 0, 0, 0, 0, 0, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([0; 8]);
        let Ok(message) = Message::decode(&bytes) else { continue };
        sent.push(message.kind());
        let message = v1::PeerMessage {
            cluster_id: CLUSTER.as_bytes().to_vec().into(),
            group: SHARD.number(),
            from_raft_id: learning[0].0,
            to_raft_id: RaftId::new(leads, 1).0,
            unfit: false,
            body: Some(Body::Raft(bytes.into())),
        };
        replica.peer(message, "node-4");
    }
    assert!(["append_response", "heartbeat", "vote"].iter().all(|kind| sent.contains(kind)), "{sent:?}");
    leader.commit("b", "2").await;
    assert_eq!((cluster.leader(SHARD).await, replica.status().term), (leads, term));
}
