//! Readers take reads off the voters. One that lags, fails or lies costs time and no answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use coppice_client::{Client, Options};
use coppice_proto::v1;
use coppice_types::Params;

mod common;

use common::{LIMIT, Running, World, at, bytes, commit, get, proxy::Said, put};

/// Three nodes with voters, and these with readers.
async fn world(readers: usize) -> (World, Running, Vec<coppice_shard_node::Handle>) {
    let mut world = World::new(Params::default()).await;
    let founder = world.leader().await;
    founder.client.clone().commit(commit(vec![put("a", "1"), put("z", "1")], Vec::new())).await.expect("committed");
    let mut nodes = Vec::new();
    for _ in 0..readers {
        nodes.push(world.add_reader().await);
    }
    founder.kill();
    let leader = world.leader().await;
    (world, leader, nodes)
}

/// Counts the shard reads that each node answers from now on.
fn count(world: &World) -> Arc<Mutex<BTreeMap<String, u32>>> {
    let counts: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let counted = counts.clone();
    world.faults.lie(move |node, said| {
        if matches!(said, Said::Shard(_)) {
            *counted.lock().expect("nobody panics").entry(node.to_owned()).or_default() += 1;
        }
    });
    counts
}

fn is_reader(node: &str) -> bool {
    node > "node-3"
}

async fn read(leader: &Running, key: &str) -> v1::Record {
    let answer = tokio::time::timeout(LIMIT, leader.client.clone().get(get(key, None))).await;
    answer.expect("in time").expect("it is read").into_inner().record.expect("a record")
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_take_turns_and_voters_are_spared() {
    let (world, leader, _nodes) = world(2).await;
    let counts = count(&world);
    for round in 0..30 {
        let value = round.to_string();
        leader.client.clone().commit(commit(vec![put("a", &value)], Vec::new())).await.expect("committed");
        assert_eq!(read(&leader, "a").await.value, bytes(&value), "what was acknowledged is read");
        read(&leader, "z").await;
    }
    let counts = counts.lock().expect("nobody panics").clone();
    let by_readers: u32 = counts.iter().filter(|(node, _)| is_reader(node)).map(|(_, count)| count).sum();
    let all: u32 = counts.values().sum();
    assert!(by_readers * 10 >= all * 6, "60 percent and more: {counts:?}");
    assert!(counts.iter().filter(|(node, count)| is_reader(node) && **count > 5).count() == 2, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nearest_replicas_are_preferred_and_of_these_the_readers() {
    let (mut world, first, _nodes) = world(2).await;
    first.kill();
    for (zones, expected) in [
        (&[("node-4", "here"), ("node-5", "there"), ("node-1", "here")][..], "node-4"),
        (&[("node-4", "there"), ("node-5", "there"), ("node-2", "here")], "node-2"),
    ] {
        world.routing.zone = Some("here".to_owned());
        world.routing.zones = zones.iter().map(|(node, zone)| ((*node).to_owned(), (*zone).to_owned())).collect();
        let leader = world.leader().await;
        let counts = count(&world);
        for _ in 0..10 {
            read(&leader, "z").await;
        }
        let counts = counts.lock().expect("nobody panics").clone();
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(node, _)| node.as_str());
        assert_eq!(most, Some(expected), "{counts:?}");
        leader.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_lags_is_passed_over_and_so_is_one_that_is_gone() {
    let (world, leader, nodes) = world(1).await;
    for node in ["node-1", "node-2", "node-3"] {
        world.net.cut("node-4", node);
    }
    for round in 0..20 {
        let value = round.to_string();
        leader.client.clone().commit(commit(vec![put("a", &value)], Vec::new())).await.expect("commits wait for none");
        assert_eq!(read(&leader, "a").await.value, bytes(&value));
    }
    let before = leader.client.clone().get(get("a", Some(at(0, 1)))).await.expect("it has the older version");
    assert_eq!(before.into_inner().record.expect("a record").value, bytes("1"));
    nodes[0].kill().await;
    let began = tokio::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(read(&leader, "a").await.value, bytes("19"));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "a voter answers: {:?}", began.elapsed());
}

/// A change of a reader's answer.
type Lie = fn(&mut v1::ShardReadResponse);

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_reader_gets_no_wrong_answer_past_a_client() {
    let (world, leader, _nodes) = world(1).await;
    let connector = world.net.connector("sdk");
    let options = Options {
        trust: Some(world.key().verifier().clone()),
        patience: Duration::from_millis(200),
        ..Options::new("http://ledger:1")
    };
    let client = Client::over(vec![("a".to_owned(), connector.channel("a"))], 1, &options);
    leader.client.clone().commit(commit(vec![put("a", "2"), put("b", "1")], Vec::new())).await.expect("committed");
    fn records(answer: &mut v1::ShardReadResponse) -> impl Iterator<Item = &mut v1::ShardRecord> {
        answer.answers.iter_mut().flat_map(|answer| &mut answer.records)
    }
    let lies: [(&str, Lie); 5] = [
        ("another value", |answer| records(answer).for_each(|record| record.value = "lie".into())),
        ("no record", |answer| records(answer).for_each(|record| (record.found, record.value) = (false, "".into()))),
        ("no answer", |answer| answer.answers.clear()),
        ("no proof", |answer| answer.answers.iter_mut().for_each(|answer| answer.trees.clear())),
        ("another proof", |answer| {
            for answer in &mut answer.answers {
                let mut trees = answer.trees.to_vec();
                trees.iter_mut().step_by(7).for_each(|byte| *byte ^= 1);
                answer.trees = trees.into();
            }
        }),
    ];
    for (name, lie) in lies {
        let told = Arc::new(Mutex::new(0));
        let count = told.clone();
        world.faults.lie(move |node, said| {
            if let (true, Said::Shard(answer)) = (is_reader(node), said) {
                lie(answer);
                *count.lock().expect("nobody panics") += 1;
            }
        });
        if let Ok(answer) = client.get(get("a", None)).await {
            let record = answer.record.expect("a record");
            assert_eq!((record.found, record.value), (true, bytes("2")), "{name}");
        }
        assert!(*told.lock().expect("nobody panics") > 0, "{name}: the reader was asked");
        world.faults.tell_the_truth();
        let record = client.get(get("a", None)).await.expect("the truth").record.expect("a record");
        assert_eq!(record.value, bytes("2"));
    }
}
