//! An auditor's test: a naive model recomputes every state root from the batches that clients sent
//! and the journals of the root log. The ledger goes through freezes, merges, rollbacks, prunes,
//! and coordinators that die.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use coppice_env::{Rng, SimRng};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient, read_root_request::Read, root_client::RootClient},
};
use coppice_types::{Digest, Params, ShardId, Version};
use coppice_verify::{
    hash::{self, RecordBody},
    header::{Body, Header},
    journal::Entry,
    replay::Forest,
    shard_map::{StateLeaf, state_root},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

mod common;

use common::{World, commit, delete, proxy::Fate, prune_before, put, roll_back};

type Operations = Vec<(Vec<u8>, RecordBody)>;
/// Inputs and output of merges.
type Merges = Vec<(Vec<Digest>, Digest)>;
/// The operations that clients sent, committed or not, by shard and hash of the operation list.
type Sent = Arc<Mutex<BTreeMap<(ShardId, Digest), Operations>>>;

fn body(operation: &v1::Operation) -> RecordBody {
    match &operation.change {
        Some(v1::operation::Change::Put(value)) => RecordBody::put(value),
        _ => RecordBody::Tombstone,
    }
}

/// A batch of writes and deletes on few keys, so that shards freeze, merge and leave tombstones.
fn batch(rng: &mut SimRng, client: u64, number: u64) -> Vec<v1::Operation> {
    let count = 1 + rng.below(6);
    let mut operations = Vec::new();
    for item in 0..count {
        let key = format!("{}{}", if rng.below(2) == 0 { "a" } else { "z" }, rng.below(60));
        let value = format!("{client}-{number}-{item}");
        operations.push(if rng.below(4) == 0 { delete(&key) } else { put(&key, &value) });
    }
    // A write that makes the batch unique, on both shards.
    operations.push(put(&format!("a-{client}"), &format!("{client}-{number}")));
    operations.push(put(&format!("z-{client}"), &format!("{client}-{number}")));
    operations
}

fn remember(sent: &Sent, world: &Routes, operations: &[v1::Operation]) {
    let mut by_shard: BTreeMap<ShardId, Operations> = BTreeMap::new();
    for operation in operations {
        let shard = world.route(&operation.key);
        by_shard.entry(shard).or_default().push((operation.key.to_vec(), body(operation)));
    }
    let mut sent = sent.lock().expect("no client panics with it");
    for (shard, list) in by_shard {
        let hash = hash::operation_list_hash(list.iter().map(|(key, body)| (key.as_slice(), *body)));
        sent.insert((shard, hash), list);
    }
}

/// The shards of the test.
#[derive(Clone)]
struct Routes(coppice_verify::shard_map::ShardMap);

impl Routes {
    fn route(&self, key: &[u8]) -> ShardId {
        self.0.shard_of(key).id
    }
}

/// The model's state of one version.
#[derive(Clone)]
struct State {
    forests: BTreeMap<ShardId, (Forest, Version)>,
}

impl State {
    fn root(&self, routes: &Routes) -> Digest {
        let leaf = |shard: &coppice_verify::shard_map::Shard| {
            let (forest, version) = &self.forests[&shard.id];
            let (low, high) = (shard.low.clone(), shard.high.clone());
            StateLeaf { shard: shard.id, low, high, version: *version, digest: forest.digest() }
        };
        state_root(&routes.0.shards().iter().map(leaf).collect::<Vec<_>>())
    }

    /// Applies a version's journal.
    fn apply(&mut self, header: &Header, journal: &[Entry], sent: &Sent) {
        let mut touched: BTreeMap<ShardId, (Operations, Merges)> = BTreeMap::new();
        let sent = sent.lock().expect("no client panics with it");
        for entry in journal {
            match entry {
                Entry::Batch(batch) => {
                    for (shard, hash) in &batch.shards {
                        let list = sent.get(&(*shard, *hash)).expect("only what was sent is committed");
                        touched.entry(*shard).or_default().0.extend(list.iter().cloned());
                    }
                }
                Entry::Append(_) | Entry::Head(_) => panic!("the cluster has no ledgers"),
                Entry::Merge(merge) => {
                    touched.entry(merge.shard).or_default().1.push((merge.inputs.clone(), merge.output));
                }
            }
        }
        for (shard, (operations, merges)) in touched {
            let (forest, version) = self.forests.get_mut(&shard).expect("the shard is one of the map's");
            let operations = operations.iter().map(|(key, body)| (key.as_slice(), *body));
            forest.prepare(header.stamp, &merges, operations).expect("events follow the state");
            *version = header.stamp.version;
        }
    }
}

async fn read_root(client: &mut RootClient<Channel>, read: Read) -> v1::ReadRootResponse {
    let request = v1::ReadRootRequest { stale_ok: false, read: Some(read) };
    timeout(common::LIMIT, async {
        loop {
            if let Ok(answer) = client.read_root(request.clone()).await {
                return answer.into_inner();
            }
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the root group answers")
}

/// Recomputes every state root. Returns how many merges, rollbacks and versions there were.
async fn audit(world: &World, sent: &Sent) -> (usize, usize, usize) {
    let routes = Routes(world.map.clone());
    let mut client = RootClient::new(world.net.connector("auditor").channel("node-1"));
    let new = || (Forest::new(&world.params), Version(0));
    let mut state = State { forests: world.map.shards().iter().map(|shard| (shard.id, new())).collect() };
    let mut states = BTreeMap::from([(Version(0), state.clone())]);
    let (mut sequence, mut before, mut counts) = (0, None::<Header>, (0, 0, 0));
    loop {
        let read = Read::Headers(v1::HeadersRead { from_sequence: sequence, limit: 100 });
        let headers = read_root(&mut client, read).await.headers;
        if headers.is_empty() {
            return counts;
        }
        for bytes in headers {
            let header = Header::decode(&bytes).expect("headers are canonical");
            if let Some(before) = &before {
                header.check_follows(before).expect("headers follow each other");
            }
            match &header.body {
                Body::Commit => {
                    let read = Read::Journal(v1::JournalRead { sequence });
                    let journal = read_root(&mut client, read).await.journal;
                    let journal: Vec<Entry> =
                        journal.iter().map(|bytes| Entry::decode(bytes).expect("entries are canonical")).collect();
                    state.apply(&header, &journal, sent);
                    counts.0 += journal.iter().filter(|entry| matches!(entry, Entry::Merge(_))).count();
                    counts.2 += 1;
                }
                Body::Rollback(rollback) => {
                    state = states[&rollback.target.version].clone();
                    counts.1 += 1;
                }
                _ => {}
            }
            assert_eq!(state.root(&routes), header.state_root, "the state root of header {sequence}");
            states.insert(header.stamp.version, state.clone());
            before = Some(header);
            sequence += 1;
        }
    }
}

async fn write(mut client: LedgerClient<Channel>, routes: Routes, sent: Sent, seed: u64) {
    let mut rng = SimRng::new(seed);
    let (mut number, mut acknowledged) = (0, 0);
    while acknowledged < 40 {
        let operations = batch(&mut rng, seed, number);
        remember(&sent, &routes, &operations);
        // Some batches are refused, and some are lost with their coordinator. The log shows which
        // were committed.
        match timeout(Duration::from_secs(3), client.commit(commit(operations, Vec::new()))).await {
            Ok(Ok(_)) => acknowledged += 1,
            _ => sleep(Duration::from_millis(5)).await,
        }
        number += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_root_follows_from_batches_and_events() {
    let world = World::new(Params { capacity: 8, ..Params::default() }).await;
    let mut running = world.leader().await;
    let sent = Sent::default();
    let routes = Routes(world.map.clone());
    let mut writers = JoinSet::new();
    for seed in 0..6 {
        writers.spawn(write(running.client.clone(), routes.clone(), sent.clone(), seed));
    }
    let mut rng = SimRng::new(99);
    let mut round = 0;
    let mut reached = world.faults.after(1 + rng.below(30), Fate::Pass);
    loop {
        tokio::select! {
            _ = reached.recv() => reached = world.faults.after(1 + rng.below(30), Fate::Pass),
            ended = writers.join_next() => match ended {
                Some(writer) => {
                    writer.expect("no writer panics");
                    continue;
                }
                None => break,
            },
        }
        let mut client = running.client.clone();
        let Ok(head) = client.head(v1::HeadRequest::default()).await else { continue };
        let head = head.into_inner();
        let version = head.stamp.expect("a stamp").version;
        round += 1;
        match round % 3 {
            0 if version > head.pruned_boundary + 2 => {
                let to = version - 1 - rng.below((version - head.pruned_boundary - 1).min(5));
                let request = roll_back(to);
                // The coordinator dies only in other rounds, but a busy cluster may still refuse
                // the rollback.
                let _ = client.rollback(request).await;
            }
            1 if version > head.pruned_boundary + 8 => {
                let before = version - 8;
                let _ = client.prune(prune_before(before)).await;
            }
            _ => {
                running.kill();
                running = world.leader().await;
            }
        }
    }
    let (merges, rollbacks, versions) = audit(&world, &sent).await;
    assert!(
        merges > 0 && rollbacks > 0 && versions > 20,
        "{merges} merges, {rollbacks} rollbacks, {versions} versions"
    );
    // Reads agree with the log.
    let mut client = running.client.clone();
    for node in &world.nodes {
        assert!(
            !node
                .status()
                .replicas
                .iter()
                .any(|replica| { replica.status.as_ref().is_some_and(|status| status.role == "quarantined") })
        );
    }
    let operations = vec![put("a", "last"), put("z", "last")];
    remember(&sent, &routes, &operations);
    client.commit(commit(operations, Vec::new())).await.expect("commits go on");
    audit(&world, &sent).await;
}
