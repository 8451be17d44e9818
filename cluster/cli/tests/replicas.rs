//! One process: each replica in turn, including leaders, is stopped and started again under load,
//! with its disk and without. Nothing acknowledged is lost or applied twice, and commits go on. A
//! full disk refuses writes and serves reads. One replica per group works, too.

mod common;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use coppice::dev::{Cluster, Listener, Options, home::new_key, shape::Wanted};
use coppice_client::{Client, Options as ClientOptions};
use coppice_env::{DiskStorage, Rng, SimRng, SimStorage, Storage};
use coppice_proto::v1;
use coppice_shard_node::{Tuning, pim::Outcome};
use coppice_types::{Batch, Change, ErrorKind, Operation, SessionId};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// Number of commits that must succeed while a replica is away, and again when it is back.
const PROGRESS: u64 = 8;

fn options(storage: Arc<dyn Storage>, replicas: u32, seed: u64) -> Options {
    let wanted = Wanted {
        splits: vec![b"k5".to_vec()],
        replicas: Some(replicas),
        partition_capacity: Some(64),
        ..Wanted::default()
    };
    Options {
        storage,
        shape: wanted.shape().expect("a shape"),
        readers: 0,
        pim: false,
        key: new_key(None, &mut SimRng::new(seed)).expect("a key"),
        next_key: None,
        listen: Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--listen").expect("a free port"),
        http_listen: None,
        witnesses: None,
        anchoring: None,
        retention: None,
        tuning: Tuning { flush_entries_max: 16, flush_bytes_max: 4 << 20, ..Tuning::default() },
    }
}

fn client(cluster: &Cluster) -> Client {
    let options = ClientOptions { patience: common::LIMIT, ..ClientOptions::new(cluster.endpoint()) };
    Client::new(options).expect("an endpoint")
}

fn put(pairs: &[(String, Vec<u8>)]) -> v1::Batch {
    let operations = pairs.iter().map(|(key, value)| Operation {
        key: key.as_bytes().to_vec().into(),
        change: Change::Put(value.clone().into()),
    });
    coppice_client::batch(Batch { operations: operations.collect(), ..Batch::default() })
}

/// A client that commits one batch after the other, and remembers what it was told.
struct Load {
    acknowledged: watch::Receiver<u64>,
    stop: watch::Sender<bool>,
    task: JoinHandle<BTreeMap<String, Vec<u8>>>,
}

impl Load {
    fn start(client: Client) -> Self {
        let (told, acknowledged) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut session = client.open_session(SessionId([3; 16])).await.expect("a session");
            let (mut state, mut rng) = (BTreeMap::new(), SimRng::new(5));
            while !*stopped.borrow() {
                let number = session.highest() + 1;
                let pairs: Vec<(String, Vec<u8>)> = (0..4)
                    .map(|_| {
                        (
                            format!("k{:03}", rng.below(1000)),
                            format!("{number} {}", "v".repeat(usize::try_from(rng.below(300)).expect("small")))
                                .into_bytes(),
                        )
                    })
                    .collect();
                let done =
                    session.commit(put(&pairs), false).await.unwrap_or_else(|error| panic!("batch {number}: {error}"));
                assert_eq!(done.stamp.map(|stamp| stamp.version), Some(number), "one batch, one version, each once");
                state.extend(pairs);
                told.send_replace(number);
            }
            state
        });
        Self { acknowledged, stop, task }
    }

    /// Waits until more commits have succeeded.
    async fn progress(&mut self, what: &str) {
        let target = *self.acknowledged.borrow() + PROGRESS;
        let reached = timeout(common::LIMIT, self.acknowledged.wait_for(|told| *told >= target)).await;
        assert!(matches!(reached, Ok(Ok(_))), "{what}: no progress to {target}");
    }

    async fn finish(self) -> BTreeMap<String, Vec<u8>> {
        self.stop.send_replace(true);
        self.task.await.expect("the load does not fail")
    }
}

async fn assert_state(client: &Client, state: &BTreeMap<String, Vec<u8>>, versions: u64) {
    let (records, end) = client.range_all(v1::RangeRequest::default()).await.expect("a range");
    assert_eq!(end.read_at.map(|stamp| stamp.version), Some(versions));
    let found: BTreeMap<String, Vec<u8>> = records
        .iter()
        .map(|record| (String::from_utf8_lossy(&record.key).into_owned(), record.value.to_vec()))
        .collect();
    assert_eq!(found.len(), state.len());
    assert!(found == *state, "a value is not the one that was acknowledged last");
}

/// Waits until all replicas of a group have applied the same entries and none is missing.
async fn settled(client: &Client, replicas: usize) {
    let whole = async {
        loop {
            let status = client.status().await.expect("a status");
            let fine = status.groups.iter().all(|group| {
                group.replicas.len() == replicas
                    && group.replicas.iter().all(|replica| matches!(replica.role.as_str(), "leader" | "follower"))
            });
            if fine {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(common::LIMIT, whole).await.is_ok(), "a replica is missing: {:?}", client.status().await);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

#[test]
fn every_replica_may_go_with_and_without_its_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    runtime().block_on(async {
        let cluster = Cluster::start(options(Arc::new(DiskStorage::new(dir.path())), 3, 1)).await.expect("a cluster");
        let client = client(&cluster);
        let mut load = Load::start(client.clone());
        load.progress("at the start").await;
        for &group in cluster.groups() {
            for (&ordinal, node) in cluster.nodes() {
                let what = format!("{group} on node {ordinal}");
                node.stop_replica(group).await.expect("it runs");
                load.progress(&format!("{what} stopped")).await;
                cluster.start_replica(ordinal, group).await.expect("its directory is there");
                load.progress(&format!("{what} back with its disk")).await;
            }
        }
        for &group in cluster.groups() {
            for (&ordinal, node) in cluster.nodes() {
                let what = format!("{group} on node {ordinal}");
                node.wipe_replica(group).await.expect("it can be removed");
                load.progress(&format!("{what} wiped")).await;
                let id = node.replace_replica(group).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(id.incarnation() >= 2, "{what}: a raft id is never used twice");
                load.progress(&format!("{what} replaced")).await;
            }
        }
        let versions = *load.acknowledged.borrow();
        let state = load.finish().await;
        let versions = versions.max(client.head().await.expect("a head").stamp.expect("a stamp").version);
        settled(&client, 3).await;
        assert_state(&client, &state, versions).await;
        cluster.stop().await.expect("a clean stop");
    });
}

#[test]
fn a_cluster_that_lost_a_minority_of_directories_brings_them_back() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let storage = || -> Arc<dyn Storage> { Arc::new(DiskStorage::new(dir.path())) };
    runtime().block_on(async {
        let cluster = Cluster::start(options(storage(), 3, 1)).await.expect("a cluster");
        client(&cluster)
            .commit(put(&[("a".to_owned(), b"1".to_vec()), ("z".to_owned(), b"1".to_vec())]), false)
            .await
            .expect("a commit");
        cluster.stop().await.expect("a clean stop");
        std::fs::remove_dir_all(dir.path().join("node-2")).expect("it is there");
        let cluster = Cluster::start(options(storage(), 3, 1)).await.expect("two of three are enough");
        let client = client(&cluster);
        settled(&client, 3).await;
        client.commit(put(&[("a".to_owned(), b"2".to_vec())]), false).await.expect("a commit");
        cluster.stop().await.expect("a clean stop");
        for node in ["node-1", "node-3"] {
            std::fs::remove_dir_all(dir.path().join(node)).expect("it is there");
        }
        let failure = Cluster::start(options(storage(), 3, 1)).await.expect_err("one of three is not enough");
        assert!(failure.message.contains("has lost 2 of 3"), "{}", failure.message);
    });
}

#[test]
fn a_cluster_with_one_replica_for_each_group_works_and_restarts() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let storage = || -> Arc<dyn Storage> { Arc::new(DiskStorage::new(dir.path())) };
    runtime().block_on(async {
        let mut state = BTreeMap::new();
        for round in 0..3_u8 {
            let cluster = Cluster::start(options(storage(), 1, 1)).await.expect("a cluster");
            let client = client(&cluster);
            let pairs = [("a".to_owned(), vec![round]), (format!("z{round}"), vec![round])];
            client.commit(put(&pairs), false).await.expect("a commit");
            state.extend(pairs);
            assert_state(&client, &state, u64::from(round) + 1).await;
            cluster.stop().await.expect("a clean stop");
        }
    });
}

#[test]
fn readers_come_and_go_with_each_start_and_voters_stay() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let storage = || -> Arc<dyn Storage> { Arc::new(DiskStorage::new(dir.path())) };
    runtime().block_on(async {
        let mut state = BTreeMap::new();
        for (round, readers) in [2, 0, 1].into_iter().enumerate() {
            let with_readers = Options { readers, ..options(storage(), 3, 1) };
            let cluster = Cluster::start(with_readers).await.expect("a cluster");
            let client = client(&cluster);
            let pairs = [("a".to_owned(), vec![u8::try_from(round).expect("small")]), (format!("z{round}"), vec![7])];
            client.commit(put(&pairs), false).await.expect("a commit");
            state.extend(pairs);
            let there = async {
                loop {
                    let status = client.status().await.expect("a status");
                    let fine = status.groups.iter().all(|group| {
                        let learners = group.replicas.iter().filter(|replica| replica.role == "learner").count();
                        let expected = if group.group == "root" { 0 } else { readers as usize };
                        learners == expected && group.voters.len() == 3
                    });
                    if fine {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            assert!(timeout(common::LIMIT, there).await.is_ok(), "{readers}: {:?}", client.status().await);
            assert_state(&client, &state, round as u64 + 1).await;
            cluster.stop().await.expect("a clean stop");
        }
    });
}

#[test]
fn emulated_modules_of_readers_make_proofs_and_voters_have_none() {
    let disk = SimStorage::new();
    runtime().block_on(async {
        let with_modules = Options { readers: 1, pim: true, ..options(disk.storage(), 1, 1) };
        let cluster = Cluster::start(with_modules).await.expect("a cluster");
        let client = client(&cluster);
        let records: Vec<_> = (0..200).map(|number| (format!("k{number:03}"), b"v".to_vec())).collect();
        client.commit(put(&records), false).await.expect("a commit");
        let shard = cluster.groups()[1];
        let prover = |node: u32| cluster.nodes()[&node].hosted().prover(shard);
        let answered = async {
            loop {
                let read = Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() });
                let got = client.get(v1::GetRequest { key: b"k100".to_vec().into(), read }).await.expect("a read");
                assert!(!got.proof.is_empty());
                if prover(2).is_some_and(|prover| prover.asked().count(Outcome::Answered) > 0) {
                    return;
                }
            }
        };
        assert!(timeout(common::LIMIT, answered).await.is_ok(), "{:?}", prover(2).map(|prover| prover.figures()));
        assert!(prover(1).is_none(), "a voter has none");
        cluster.stop().await.expect("a clean stop");
    });
}

#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    let disk = SimStorage::new();
    runtime().block_on(async {
        let cluster = Cluster::start(options(disk.storage(), 1, 1)).await.expect("a cluster");
        let patient = client(&cluster);
        let big = |number: u32| put(&[("a".to_owned(), vec![7; 200_000]), (format!("z{number}"), vec![7; 200_000])]);
        patient.commit(big(0), false).await.expect("a commit");
        let before = patient.head().await.expect("a head");
        disk.set_capacity(Some(disk.used_bytes() + 300_000));
        let hasty = ClientOptions {
            patience: Duration::from_millis(200),
            attempt_timeout: Duration::from_secs(20),
            ..ClientOptions::new(cluster.endpoint())
        };
        let hasty = Client::new(hasty).expect("an endpoint");
        let mut refused = None;
        for number in 1..20 {
            if let Err(error) = hasty.commit(big(number), false).await {
                refused = Some(error);
                break;
            }
        }
        let refused = refused.expect("the disk is full");
        assert!(matches!(refused.kind(), ErrorKind::Exhausted | ErrorKind::Unavailable), "{refused}");
        let got = patient.get(v1::GetRequest { key: "a".into(), read: None }).await.expect("reads go on");
        assert!(got.record.is_some_and(|record| record.found));
        assert!(patient.head().await.expect("a head").log_size >= before.log_size);
        disk.set_capacity(None);
        let mut session = patient.open_session(SessionId([8; 16])).await.expect("a session");
        session
            .commit(put(&[("a".to_owned(), b"after".to_vec())]), false)
            .await
            .expect("writes go on once there is room");
        cluster.stop().await.expect("a clean stop");
    });
}
