//! Erased values: after a mark is decided, no disk of any replica has a byte of them.

use std::time::Duration;

use coppice_env::{OpenMode, Storage};

use super::*;

/// The key of an envelope, or of the mark that erases it.
fn key(kind: u8, number: u8) -> String {
    let bytes = [&[0, 1][..], &[7; 16], &[kind], &[0; 7], &[number]].concat();
    String::from_utf8(bytes).expect("all of it is ASCII")
}

fn envelope(number: u8) -> String {
    key(2, number)
}

fn mark(number: u8) -> String {
    key(3, number)
}

/// A value that nothing else begins with.
fn marked(number: u8) -> String {
    let digest = coppice_verify::hash::sha256(&[number]);
    format!("{digest}{}", "e".repeat(200))
}

fn is_on(disk: &SimStorage, number: u8) -> Option<String> {
    let value = marked(number).into_bytes();
    disk.files().into_iter().find(|name| {
        // A file may be removed meanwhile.
        let Ok(file) = disk.open(name, OpenMode::Existing) else { return false };
        let mut bytes = vec![0; usize::try_from(file.len().unwrap_or_default()).expect("small")];
        file.read_exact_at(&mut bytes, 0).is_ok() && bytes.windows(24).any(|window| window == &value[..24])
    })
}

/// Waits until a replica says that an erasure by a version is done, and looks at its disk.
async fn is_erased(cluster: &Cluster, ordinal: u32, version: u64, number: u8) {
    let done = |report: &v1::ReplicaReport| report.erasures_open == 0 && report.erased_through >= version;
    until("it is erased", async || cluster.replica(ordinal, SHARD).filter(done)).await;
    assert_eq!(is_on(&cluster.disks[&ordinal], number), None, "node {ordinal} has the value");
    let lost = cluster.disks[&ordinal].power_loss(u64::from(ordinal));
    assert_eq!(is_on(&lost, number), None, "node {ordinal} has the value after a loss of power");
}

/// The record of a key as a replica answers it at the decided state.
async fn get(leader: &Leader, ordinal: u32, key: &str) -> v1::ShardRecord {
    let request = v1::ShardReadRequest {
        group: SHARD.number(),
        context: Some(leader.context.clone()),
        state: leader.context.decided.clone(),
        parts: vec![v1::ReadPart { keys: vec![key.to_owned().into_bytes().into()] }],
        want_proof: false,
        want_values: true,
        bytes_max: 0,
    };
    let answer = until("an answer", async || leader.caller.shard(ordinal).read(request.clone()).await.ok()).await;
    answer.into_inner().answers.remove(0).records.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decided_mark_erases_a_value_from_every_disk_and_an_aborted_one_from_none() {
    let small = |tuning: &mut crate::Tuning| {
        tuning.flush_interval = Duration::from_secs(3600);
        tuning.engine.segment_bytes_max = 16 << 10;
    };
    let cluster = Cluster::start_tuned(3, small).await;
    let mut leader = Leader::new(&cluster, 1).await;
    leader.commit(&envelope(1), &marked(1)).await;
    leader.commit(&envelope(2), &marked(2)).await;
    // One follower has a state that was quarantined, one is not there when the mark is decided.
    let leads = cluster.leader(SHARD).await;
    let [spoiled, away] = [1, 2].map(|step| (leads + step - 1) % 3 + 1);
    spoil(&cluster, spoiled);
    fill_two_keys(&mut leader).await;
    is_rebuilt(&cluster, &leader, spoiled).await;
    for number in 0..40 {
        leader.commit(&format!("key {}", number % 9), &"v".repeat(1000)).await;
    }
    let base = leader.decided();
    leader.prepare(base.version + 1, base.clone(), &[record(&mark(2), "why")]).await.expect("prepared");
    let (version, prepare_attempt) = (base.version + 1, leader.attempt);
    leader.command(Wire::Abort(v1::AbortCommand { version, prepare_term: 1, prepare_attempt })).await.expect("aborted");
    assert!((1..=3).all(|ordinal| is_on(&cluster.disks[&ordinal], 1).is_some()), "all have it so far");

    let id = cluster.replica(away, SHARD).and_then(|report| report.status).expect("it runs").raft_id;
    cluster.node(away).stop_replica(SHARD).await.expect("it stops");
    let version = leader.commit(&mark(1), "why").await;
    let before = get(&leader, leads, &envelope(1)).await;
    assert!(!before.erased && !before.value.is_empty(), "it is not decided there");
    leader.finalize().await;
    for ordinal in [leads, spoiled] {
        is_erased(&cluster, ordinal, version, 1).await;
        let after = get(&leader, ordinal, &envelope(1)).await;
        assert!(after.erased && after.value.is_empty() && after.found);
        assert_eq!((after.value_sha256, after.last_changed), (before.value_sha256.clone(), before.last_changed));
        assert_eq!(after.erased_bytes as usize, marked(1).len());
        assert_eq!(leader.get(ordinal, &envelope(2)).await.expect("read"), Some(marked(2)), "its mark was aborted");
    }
    assert!(is_on(&cluster.disks[&away], 1).is_some(), "it does not know yet");
    let options = ReplicaOptions { group: SHARD, raft_id: RaftId(id), bootstrap: Bootstrap::Join };
    cluster.node(away).start_replica(options).await.expect("it starts");
    is_erased(&cluster, away, version, 1).await;

    // A replica is filled from a snapshot of a replica whose erasure is done.
    let replica = cluster.node(spoiled).hosted().shard(SHARD).expect("it runs");
    let quarantines = || replica.shared.counts.quarantines.load(std::sync::atomic::Ordering::Relaxed);
    let before = quarantines();
    spoil(&cluster, spoiled);
    fill_two_keys(&mut leader).await;
    until("it is rebuilt", async || caught_up(&cluster, spoiled).filter(|()| quarantines() > before)).await;
    is_erased(&cluster, spoiled, version, 1).await;
    for ordinal in 1..=3 {
        assert!(get(&leader, ordinal, &envelope(1)).await.erased);
        assert!(is_on(&cluster.disks[&ordinal], 2).is_some(), "nothing else is gone");
    }
    cluster.end().await;
}
