//! Readers with memory modules: their proofs are the voters', whatever happens meanwhile.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_pim::BatcherOptions;
use coppice_proto::{status, v1};
use coppice_types::{Digest, Reason, ShardState, Version};
use tonic::Status;

use super::cluster::{Cluster, Leader, SHARD, until};
use crate::{
    limits::READ_PARTS_MAX,
    pim::{Outcome, PimOptions, Prover, Source},
};

/// The ordinal of the reader beside three voters.
const READER: u32 = 4;
/// Records of the first version: leaves for each of the DPUs.
const KEYS: u64 = 300;

/// Keys that are asked for: those of the records, and those between them.
const ASKED: u64 = 2 * KEYS + 1;

/// Emulated modules that take every tree and every batch, and have time for it.
fn modules() -> PimOptions {
    PimOptions {
        source: Source::Emulator,
        profile: "dpusPerRank=2".to_owned(),
        dpus: 4,
        records_min: 1,
        versions_max: 8,
        nodes_max: 10_000,
        batches: BatcherOptions { queries_min: 64, wait_max: Duration::from_millis(1), queries_max: 256 },
        answer_wait: Duration::from_secs(10),
        small_batches: true,
    }
}

fn key(number: u64) -> String {
    format!("account/{number:04}")
}

/// Three voters with records, and a reader with these modules that has joined.
async fn with_reader(pim: PimOptions) -> (Cluster, Leader) {
    let mut cluster = Cluster::start_with_readers(3, 1, |_| ()).await;
    cluster.pim = Some(pim);
    let mut leader = Leader::new(&cluster, 1).await;
    let records: Vec<_> = (0..KEYS).map(|number| (key(2 * number), "1".to_owned())).collect();
    let base = leader.decided();
    let first = leader.prepare(base.version + 1, base, &records).await.expect("it follows genesis");
    leader.context.decided = Some(first);
    leader.finalize().await;
    let node = cluster.open(READER, super::cluster::CLUSTER).await.expect("the node starts");
    cluster.nodes.insert(READER, node);
    cluster.node(READER).replace_replica(SHARD).await.expect("it joins");
    leader.wait_for(READER, &key(0), "1").await;
    (cluster, leader)
}

fn prover(cluster: &Cluster) -> Arc<Prover> {
    cluster.node(READER).hosted().prover(SHARD).expect("the reader has modules")
}

/// Waits until the modules have the decided version.
async fn until_served(cluster: &Cluster, leader: &Leader) {
    let newest = leader.decided().version;
    until("the modules have the newest version", async || (prover(cluster).figures().newest == newest).then_some(()))
        .await;
}

/// The answers of one replica to all keys, also absent ones, each with its own proof.
async fn read(leader: &Leader, ordinal: u32) -> Result<Vec<v1::ReadAnswer>, Status> {
    let part = |number: &u64| v1::ReadPart { keys: vec![Bytes::from(key(*number))] };
    let numbers: Vec<u64> = (0..ASKED).collect();
    let mut answers = Vec::new();
    for numbers in numbers.chunks(READ_PARTS_MAX) {
        let request = v1::ShardReadRequest {
            group: SHARD.number(),
            context: Some(leader.context.clone()),
            state: leader.context.decided.clone(),
            parts: numbers.iter().map(part).collect(),
            want_proof: true,
            want_values: true,
            bytes_max: 0,
        };
        answers.extend(leader.caller.shard(ordinal).read(request).await?.into_inner().answers);
    }
    Ok(answers)
}

/// Compares the reader's answers with a voter's.
async fn compare(leader: &Leader) {
    let voter = until("a voter answers", async || read(leader, 1).await.ok()).await;
    let reader = until("the reader answers", async || read(leader, READER).await.ok()).await;
    assert_eq!(reader, voter);
    assert!(reader.iter().all(|answer| !answer.trees.is_empty()));
}

fn answered(cluster: &Cluster) -> u64 {
    prover(cluster).asked().count(Outcome::Answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modules_prove_what_voters_prove_under_load_and_through_rollback_and_prune() {
    let (cluster, mut leader) = with_reader(modules()).await;
    until_served(&cluster, &leader).await;
    compare(&leader).await;
    assert_eq!(answered(&cluster), ASKED, "modules answered all");
    assert!(prover(&cluster).figures().counts.pim_lookups > 0, "{:?}", prover(&cluster).figures());
    // Versions come faster than the modules take them in. What they lack, the engine proves.
    let fork = leader.decided();
    for number in 0..12 {
        leader.commit(&key(number), "2").await;
        compare(&leader).await;
    }
    leader.finalize().await;
    until_served(&cluster, &leader).await;
    let dead = leader.decided();
    leader
        .execute(v1::execute_command::Operation::RollbackTo(v1::Stamp { epoch: 1, version: fork.version }), fork)
        .await;
    leader.commit(&key(1), "3").await;
    leader.finalize().await;
    leader.wait_for(READER, &key(1), "3").await;
    // The version of before has gone, and another one has come in its place.
    let stands = leader.context.decided.replace(dead.clone());
    let before = answered(&cluster);
    let refused = read(&leader, READER).await.expect_err("it was rolled back");
    assert_eq!((status::reason(&refused), answered(&cluster)), (Some(Reason::StateMissing), before));
    leader.context.decided = stands;
    until_served(&cluster, &leader).await;
    compare(&leader).await;
    assert!(answered(&cluster) > before);
    // All versions but the newest are pruned.
    let decided = leader.decided();
    leader.execute(v1::execute_command::Operation::PruneBefore(decided.version), decided).await;
    until("older versions left the modules", async || (prover(&cluster).figures().versions == 1).then_some(())).await;
    compare(&leader).await;
    assert_eq!(prover(&cluster).figures().dpus, (4, 4), "nothing failed");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_pages_and_dead_dpus_reach_no_caller() {
    let (cluster, leader) = with_reader(modules()).await;
    until_served(&cluster, &leader).await;
    // Before the first query: what is asked for often moves to the host, where nothing is damaged.
    prover(&cluster).damage(|reader| {
        let dpus = reader.dpus_mut().expect("they are emulated");
        dpus.write(0, 0, &vec![0xa5; 8 << 20]).expect("it fits");
        dpus.kill_after(1, 1);
    });
    compare(&leader).await;
    let figures = prover(&cluster).figures();
    assert_eq!(figures.dpus, (4, 2), "both were seen: {figures:?}");
    let note = |report: v1::ReplicaReport| report.status.map(|status| status.note).unwrap_or_default();
    let told = cluster.replica(READER, SHARD).map(note).unwrap_or_default();
    assert!(told.starts_with("pim: 2 of 4 DPUs, newest version "), "{told}");
    cluster.end().await;

    let (cluster, leader) = with_reader(modules()).await;
    until_served(&cluster, &leader).await;
    prover(&cluster).damage(|reader| {
        let dpus = reader.dpus_mut().expect("they are emulated");
        (0..4).for_each(|dpu| dpus.kill_after(dpu, 1));
    });
    compare(&leader).await;
    let before = answered(&cluster);
    compare(&leader).await;
    assert_eq!((prover(&cluster).figures().dpus, answered(&cluster)), ((4, 0), before), "all are out of service");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_serves_without_the_library_without_room_and_without_demand() {
    let missing = Source::Library { library: PathBuf::from("libdpu-that-nobody-has.so"), program: String::new() };
    let (cluster, leader) = with_reader(PimOptions { source: missing, ..modules() }).await;
    assert!(cluster.node(READER).hosted().prover(SHARD).is_none());
    compare(&leader).await;
    cluster.end().await;

    let (cluster, leader) = with_reader(PimOptions { nodes_max: 1, ..modules() }).await;
    until("the version is too large", async || (prover(&cluster).figures().too_large > 0).then_some(())).await;
    compare(&leader).await;
    assert_eq!((answered(&cluster), prover(&cluster).asked().count(Outcome::Unserved)), (0, ASKED));
    cluster.end().await;

    // Four DPUs are never sooner than the processor.
    let (cluster, leader) = with_reader(PimOptions { small_batches: false, ..modules() }).await;
    until_served(&cluster, &leader).await;
    compare(&leader).await;
    assert_eq!((answered(&cluster), prover(&cluster).asked().count(Outcome::Small)), (0, ASKED));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_replica_frees_its_modules_and_answers_that_come_late_are_not_waited_for() {
    let (cluster, leader) = with_reader(PimOptions { answer_wait: Duration::from_nanos(1), ..modules() }).await;
    until_served(&cluster, &leader).await;
    compare(&leader).await;
    let first = prover(&cluster);
    assert!(first.asked().count(Outcome::Late) > 0, "nobody is that fast");
    cluster.restart(READER, SHARD).await;
    assert!(!Arc::ptr_eq(&first, &prover(&cluster)));
    let kept = first
        .prove(ShardState { version: Version(1), digest: Digest::default() }, vec![Bytes::from_static(b"k")])
        .await;
    assert_eq!(kept, [None], "its thread has ended");
    compare(&leader).await;
    cluster.end().await;
}
