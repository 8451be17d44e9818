//! A full disk: versions are refused, and operations that free space still work.

use std::time::Duration;

use coppice_proto::v1::execute_command;

use super::*;
use crate::Tuning;

/// Prepares and decides versions with a large record each, until one is refused.
async fn prepare_until_refused(leader: &mut Leader) -> tonic::Status {
    let long = "v".repeat(64 << 10);
    until("the disk is full", async || {
        let version = leader.decided().version + 1;
        let state = leader.prepare(version, leader.decided(), &[record("b", &long)]).await;
        match state {
            Ok(state) => {
                leader.context.decided = Some(state);
                None
            }
            Err(refusal) => Some(refusal),
        }
    })
    .await
}

/// The size of a node's reserve.
fn reserve_bytes(disk: &SimStorage) -> u64 {
    let file = disk.storage().open("reserve", coppice_env::OpenMode::Existing);
    file.map_or(0, |file| file.len().expect("a length"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_versions_while_reads_and_the_rest_go_on() {
    let cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    let disk = &cluster.disks[&1];
    disk.set_capacity(Some(disk.used_bytes() + (64 << 10)));
    let refusal = prepare_until_refused(&mut leader).await;
    assert_eq!(status::reason(&refusal), Some(Reason::DiskFull), "{refusal}");
    assert_eq!(leader.get(1, "a").await.expect("reads go on"), Some("1".to_owned()));
    leader.finalize().await;
    let boundary = leader.decided();
    leader.execute(execute_command::Operation::PruneBefore(boundary.version), boundary).await;
    // Other writes have used up the room that the prune freed.
    disk.set_capacity(Some(0));
    let refusal = prepare_until_refused(&mut leader).await;
    assert_eq!(status::reason(&refusal), Some(Reason::DiskFull), "{refusal}");
    disk.set_capacity(None);
    until("versions are taken again", async || {
        leader.prepare(leader.decided().version + 1, leader.decided(), &[record("c", "3")]).await.ok()
    })
    .await;
    cluster.end().await;
}

/// Holds for any amount of data that waits for a flush when the disk is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_prune_or_rollback_frees_of_a_full_disk_is_written_anew() {
    let seldom = |tuning: &mut Tuning| {
        (tuning.flush_interval, tuning.flush_entries_max) = (Duration::from_secs(3600), u64::MAX);
        tuning.flush_bytes_max = 32 << 20;
    };
    let cluster = Cluster::start_tuned(1, seldom).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    let disk = &cluster.disks[&1];
    let quiet = cluster.tuning.share_bytes(0, 0, 0);
    until("both have their shares", async || (reserve_bytes(disk) == 2 * quiet).then_some(())).await;
    for (room_bytes, takes_back) in [(4, false), (12, false), (24, false), (4, true), (24, true)] {
        let first = leader.decided();
        let stamp = v1::Stamp { epoch: leader.epoch, version: first.version };
        disk.set_capacity(Some(disk.used_bytes() + (room_bytes << 20)));
        let refusal = prepare_until_refused(&mut leader).await;
        assert_eq!(status::reason(&refusal), Some(Reason::DiskFull), "{refusal}");
        leader.finalize().await;
        // The operation drops all versions but one, and no version follows it.
        if takes_back {
            leader.execute(execute_command::Operation::RollbackTo(stamp), first).await;
        } else {
            let last = leader.decided();
            leader.execute(execute_command::Operation::PruneBefore(last.version), last).await;
        }
        until("versions are taken again", async || {
            let version = leader.decided().version + 1;
            leader.prepare(version, leader.decided(), &[record("c", "3")]).await.ok()
        })
        .await;
        leader.commit("d", "4").await;
    }
    cluster.end().await;
}

/// Commits long values until a condition holds.
async fn fill(leader: &mut Leader, what: &str, mut is_so: impl FnMut() -> bool) {
    let long = "v".repeat(32 << 10);
    until(what, async || {
        leader.commit("filler", &long).await;
        is_so().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_hands_over_and_follows_again_when_there_is_room() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    let full = cluster.leader(SHARD).await;
    let others: Vec<u32> = (1..=3).filter(|&ordinal| ordinal != full).collect();
    let disk = &cluster.disks[&full];
    disk.set_capacity(Some(disk.used_bytes()));
    // A refused commit would panic, so none is refused meanwhile.
    fill(&mut leader, "it noticed", || note(&cluster, full) == "the disk is full").await;
    cluster.leader_among(SHARD, &others).await;
    for at in 0..20 {
        leader.commit(&format!("key-{at}"), "x").await;
    }
    assert_eq!(cluster.role(full, SHARD), "follower", "it is there, and takes no leadership back");
    assert_eq!(leader.get(others[0], "key-3").await.expect("read"), Some("x".to_owned()));
    disk.set_capacity(None);
    leader.finalize().await;
    leader.wait_for(full, "key-19", "x").await;
    until("it is well again", async || note(&cluster, full).is_empty().then_some(())).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_with_a_full_disk_acknowledges_nothing_serves_what_it_has_and_goes_on_when_there_is_room() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    let old = leader.decided();
    let full = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    leader.wait_for(full, "a", "1").await;
    let disk = &cluster.disks[&full];
    disk.set_capacity(Some(disk.used_bytes()));
    fill(&mut leader, "it noticed", || note(&cluster, full) == "the disk is full").await;
    // A flush can't add room, either. Then the log uses up the space that it has prepared: its
    // segment and the next one.
    disk.set_capacity(Some(0));
    let mut left = 16;
    fill(&mut leader, "more than that is committed", || {
        left -= 1;
        left == 0
    })
    .await;
    leader.commit("b", "2").await;
    leader.finalize().await;
    let applied = |ordinal| cluster.replica(ordinal, SHARD).and_then(|it| it.status).expect("it runs").applied;
    let other = (1..=3).find(|&it| it != full && cluster.role(it, SHARD) != "leader").expect("there are three");
    leader.wait_for(other, "b", "2").await;
    assert!(applied(full) < applied(other), "there was no room for so much");
    assert_eq!(cluster.role(full, SHARD), "follower", "{}", note(&cluster, full));
    let newest = leader.context.decided.replace(old);
    assert_eq!(leader.get(full, "a").await.expect("it serves"), Some("1".to_owned()));
    leader.context.decided = newest;
    disk.set_capacity(None);
    leader.wait_for(full, "b", "2").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_grows_with_its_ledger_and_a_disk_without_room_for_that_counts_as_full() {
    let tune = |tuning: &mut Tuning| (tuning.spare_bytes, tuning.engine.old_cache_bytes) = (64 << 10, 64 << 10);
    let cluster = Cluster::start_tuned(1, tune).await;
    let mut leader = Leader::new(&cluster, 1).await;
    let disk = &cluster.disks[&1];
    let quiet = cluster.tuning.share_bytes(0, 0, 0);
    for (room_bytes, more_records) in [(None, 300), (Some(512 << 10), 400), (None, 1)] {
        disk.set_capacity(room_bytes.map(|bytes| disk.used_bytes() + bytes));
        let last = leader.decided().version + more_records;
        let is_full = until("all is committed, or the disk is full", async || {
            let version = leader.decided().version + 1;
            let prepared = leader.prepare(version, leader.decided(), &[record(&format!("key-{version}"), "x")]).await;
            match prepared {
                Ok(state) => leader.context.decided = Some(state),
                // The forest is full until a merge is built, or there is no room yet.
                Err(_) => leader.finalize().await,
            }
            let is_full = note(&cluster, 1) == "the disk is full";
            (is_full && room_bytes.is_some() || leader.decided().version == last).then_some(is_full)
        })
        .await;
        assert_eq!(is_full, room_bytes.is_some());
        if is_full {
            continue;
        }
        let least = 2 * quiet + 10 * last;
        until("the reserve has grown", async || {
            leader.finalize().await;
            (reserve_bytes(disk) >= least).then_some(())
        })
        .await;
    }
    cluster.end().await;
}

/// The disk has room for a snapshot, but not for the reserve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_new_disk_is_too_small_says_so_and_joins_when_there_is_room() {
    let cluster = Cluster::start(3).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    leader.finalize().await;
    let lost = if cluster.leader(SHARD).await == 1 { 2 } else { 1 };
    cluster.node(lost).wipe_replica(SHARD).await.expect("wiped");
    let disk = &cluster.disks[&lost];
    disk.set_capacity(Some(disk.used_bytes() + (1 << 20)));
    let make_room = async {
        until("it says why it does not join", async || {
            (note(&cluster, lost) == "waits for a snapshot; the disk is full").then_some(())
        })
        .await;
        assert_eq!(cluster.role(lost, SHARD), "learner");
        disk.set_capacity(None);
    };
    let (joined, ()) = tokio::join!(cluster.node(lost).replace_replica(SHARD), make_room);
    joined.expect("it joined");
    leader.wait_for(lost, "a", "1").await;
    until("it is well", async || note(&cluster, lost).is_empty().then_some(())).await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_log_finds_no_room_starts_again_by_itself_and_has_lost_nothing() {
    use coppice_env::{Fault, Operation};
    let mut cluster = Cluster::start(1).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit("a", "1").await;
    for operation in [Operation::Sync, Operation::Write] {
        let fault =
            Fault { operation, path_part: "group-1/raft/".to_owned(), skip: 0, kind: std::io::ErrorKind::StorageFull };
        cluster.disks[&1].inject(fault);
        let stopped = async || {
            cluster.replica(1, SHARD).filter(|replica| replica.status.as_ref().is_some_and(|it| it.role == "stopped"))
        };
        let (version, _) = tokio::join!(leader.commit("b", "2"), until("it stopped", stopped));
        assert_eq!(leader.decided().version, version);
    }
    leader.finalize().await;
    // The entries of the failed sync were written again.
    let disk = cluster.disks[&1].power_loss(7);
    cluster.nodes.remove(&1).expect("it runs").kill().await;
    cluster.disks.insert(1, disk);
    let node = cluster.open(1, CLUSTER).await.expect("it starts again");
    cluster.nodes.insert(1, node);
    leader.caller = cluster.caller();
    leader.adopt().await;
    leader.wait_for(1, "b", "2").await;
}
