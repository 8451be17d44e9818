//! Compares a batch of queries with as many `Get`s: the CPU time of all nodes, the coordinator and
//! the client, which run in this one process. Every answer is proven and verified.
//!
//! `cargo bench -p coppice-coordinator --bench queries`

use std::{fs, time::Duration};

use bytes::Bytes;
use coppice_client::{Client, Options};
use coppice_proto::v1::{self, moment::Moment};
use coppice_types::Params;
use futures::{StreamExt, TryStreamExt, stream};

#[path = "../tests/common/mod.rs"]
mod common;

use common::World;

/// Number of queries of a run.
const QUERIES: u64 = 10_000;
/// Number of versions of the ledger, each with this many puts of its own.
const VERSIONS: u64 = 1_000;
const PUTS: u64 = 100;
/// Calls of `Get` that are under way at one time.
const GETS_AHEAD: usize = 16;
/// Ticks of `/proc/self/stat` in a second.
const TICKS: u64 = 100;

/// CPU time of this process so far.
#[expect(clippy::disallowed_methods, reason = "the kernel's figures are files outside any storage")]
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux shows it");
    let (_, fields) = stat.rsplit_once(')').expect("the name of the process ends");
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(|it| it.parse().expect("a number")).collect();
    Duration::from_millis(ticks.iter().sum::<u64>() * 1000 / TICKS)
}

/// Numbers that look random, from 0.
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn key(number: u64) -> Bytes {
    // Both shards have keys.
    let shard = ["a", "x"][usize::from(number % 2 == 1)];
    format!("{shard}{:08}", mixed(number) % 100_000_000).into()
}

/// The key and version of a query, among the newest `versions` ones.
fn asked(number: u64, versions: u64) -> (Bytes, u64) {
    let version = VERSIONS - mixed(number) % versions;
    (key(mixed(number + QUERIES) % (version * PUTS)), version)
}

async fn load(world: &World, running: &mut common::Running) {
    for version in 0..VERSIONS {
        let put = |number| v1::Operation {
            key: key(number),
            change: Some(v1::operation::Change::Put(Bytes::from(vec![7; 100]))),
        };
        let operations = (version * PUTS..(version + 1) * PUTS).map(put).collect();
        running.client.commit(common::commit(operations, Vec::new())).await.expect("committed");
    }
    assert_eq!(world.nodes.len(), 3);
}

async fn gets(client: &Client, versions: u64) {
    let get = |number| async move {
        let (key, version) = asked(number, versions);
        let read = v1::ReadOptions { at: Some(v1::Stamp { epoch: 0, version }), any_epoch: true, ..Default::default() };
        let answer = client.get(v1::GetRequest { key, read: Some(read) }).await?;
        assert!(answer.record.is_some_and(|record| record.found));
        Ok::<_, coppice_client::Error>(())
    };
    let calls = stream::iter(0..QUERIES).map(get).buffer_unordered(GETS_AHEAD);
    calls.try_collect::<()>().await.expect("every answer is proven");
}

async fn queries(client: &Client, versions: u64) {
    let query = |number| {
        let (key, version) = asked(number, versions);
        let at = Some(v1::Moment { moment: Some(Moment::Version(version)) });
        v1::Query { keys: vec![key], at, ..Default::default() }
    };
    let request = v1::QueryBatchRequest { queries: (0..QUERIES).map(query).collect(), want_proof: true };
    let mut stream = client.query_batch(request).await.expect("a stream");
    let mut found = 0;
    while let Some(part) = stream.next().await.expect("every answer is proven") {
        found += part.answers.iter().filter(|it| it.outcome.as_ref().is_ok_and(|state| state.record.found)).count();
    }
    assert_eq!(found as u64, QUERIES);
}

#[tokio::main]
async fn main() {
    let world = World::new(Params::default()).await;
    let mut running = world.leader().await;
    load(&world, &mut running).await;
    let routes = vec![("http://a:1".to_owned(), world.net.connector("client").channel("a"))];
    let trust = Some(world.key().verifier().clone());
    let client = Client::over(routes, 1, &Options { trust, ..Options::new("") });
    println!("{QUERIES} single queries, {} keys, 2 shards, 3 nodes; CPU time of all in s", VERSIONS * PUTS);
    println!("versions  gets  batch  ratio");
    for versions in [1, 10, 100, VERSIONS] {
        // The first run warms the caches.
        let mut taken = [Duration::ZERO; 2];
        for _ in 0..2 {
            let began = cpu();
            gets(&client, versions).await;
            let between = cpu();
            queries(&client, versions).await;
            taken = [between - began, cpu() - between];
        }
        let [gets, batch] = taken.map(|it| it.as_secs_f64());
        println!("{versions:8}  {gets:4.2}  {batch:5.2}  {:5.2}", batch / gets);
    }
}
