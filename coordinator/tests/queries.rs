//! Batches of queries against real nodes, compared with a model. The client verifies every part.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_client::{Client, Options, QueryStream};
use coppice_proto::v1::{self, moment::Moment};
use coppice_types::{Params, Reason};
use coppice_verify::header::Header;

mod common;

use common::{LIMIT, Running, World, bytes, commit, delete, prune_before, put, roll_back};

/// The states of a place, newest first: the versions from and to which each holds, and its value.
type States = Vec<(u64, u64, Option<Bytes>)>;

#[derive(Debug, Default)]
struct Reply {
    states: BTreeMap<(usize, usize), States>,
    failures: BTreeMap<(usize, usize), Option<Reason>>,
    parts: usize,
    /// Bytes of values in the largest part.
    part_max: usize,
}

fn client(world: &World, trusting: bool) -> Client {
    let routes = vec![("http://a:1".to_owned(), world.net.connector("client").channel("a"))];
    let trust = trusting.then(|| world.key().verifier().clone());
    Client::over(routes, 1, &Options { trust, ..Options::new("") })
}

async fn ask(client: &Client, queries: Vec<v1::Query>) -> Reply {
    let request = v1::QueryBatchRequest { queries, want_proof: false };
    let mut stream: QueryStream = client.query_batch(request).await.expect("a stream");
    let mut reply = Reply::default();
    while let Some(part) = stream.next().await.expect("an honest reply") {
        reply.parts += usize::from(!part.answers.is_empty());
        let values = part.answers.iter().flat_map(|answer| &answer.outcome).map(|state| state.record.value.len());
        reply.part_max = reply.part_max.max(values.sum());
        for answer in part.answers {
            let place = (answer.query, answer.key);
            match answer.outcome {
                Ok(state) => {
                    let value = state.record.found.then_some(state.record.value);
                    let states = reply.states.entry(place).or_default();
                    states.push((state.unchanged_since, state.read_at.version, value));
                }
                Err(failure) => assert!(reply.failures.insert(place, failure.reason).is_none()),
            }
        }
    }
    reply
}

fn version(version: u64) -> Option<v1::Moment> {
    Some(v1::Moment { moment: Some(Moment::Version(version)) })
}

fn time(time_ms: u64) -> Option<v1::Moment> {
    Some(v1::Moment { moment: Some(Moment::TimeMs(time_ms)) })
}

fn query(keys: &[&str], at: Option<v1::Moment>, since: Option<v1::Moment>) -> v1::Query {
    v1::Query { keys: keys.iter().map(|key| bytes(key)).collect(), at, since, limit: 0 }
}

/// A ledger of 24 versions of which each changes one of five keys, and the values by version and
/// key.
struct Scene {
    world: World,
    running: Running,
    model: Vec<BTreeMap<&'static str, String>>,
    times: Vec<u64>,
}

const KEYS: [&str; 5] = ["a", "b", "m", "x", "never"];

async fn scene() -> Scene {
    let world = World::new(Params::default()).await;
    let mut running = world.leader().await;
    let mut model = vec![BTreeMap::new()];
    for version in 1..=24_usize {
        let mut state = model[version - 1].clone();
        let key = KEYS[version * 7 % 4];
        let change = if version % 5 == 0 {
            state.remove(key);
            delete(key)
        } else {
            state.insert(key, version.to_string());
            put(key, &version.to_string())
        };
        running.client.commit(commit(vec![change], Vec::new())).await.expect("committed");
        model.push(state);
    }
    let mut times = Vec::new();
    for version in 0..=24 {
        let which = Some(v1::get_header_request::Which::Version(version));
        let header = running.client.get_header(v1::GetHeaderRequest { which }).await.expect("it is there").into_inner();
        times.push(Header::decode(&header.header).expect("canonical").timestamp_ms);
    }
    Scene { world, running, model, times }
}

impl Scene {
    fn value(&self, key: &str, version: u64) -> Option<Bytes> {
        self.model[usize::try_from(version).expect("small")].get(key).map(|value| bytes(value))
    }

    /// Checks that the states of a key fit the model, and that they leave no version out.
    fn check(&self, key: &str, states: &States, (from, to): (u64, u64)) {
        assert_eq!(states.first().map(|state| state.1), Some(to), "{key}: {states:?}");
        let last = states.last().expect("a state").0;
        assert!(last <= from && states.windows(2).all(|pair| pair[1].1 + 1 == pair[0].0), "{key}: {states:?}");
        assert!(states.iter().rev().skip(1).all(|state| state.0 > from), "none more than was asked for: {states:?}");
        for (from, to, value) in states {
            for version in *from..=*to {
                assert_eq!(*value, self.value(key, version), "{key} at {version}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn single_queries_at_versions_and_times_are_what_gets_would_say() {
    let scene = scene().await;
    let newest = *scene.times.last().expect("times");
    let mut queries = Vec::new();
    for at in (0..=24).rev() {
        queries.extend(KEYS.map(|key| query(&[key], version(at), None)));
        queries.push(query(&KEYS, time(scene.times[usize::try_from(at).expect("small")]), None));
    }
    queries.push(query(&["a", "x"], None, None));
    for trusting in [true, false] {
        let client = client(&scene.world, trusting);
        let reply = ask(&client, queries.clone()).await;
        assert!(reply.parts <= 26, "a version is one part: {}", reply.parts);
        let mut settled = 0;
        for (at, asked) in queries.iter().enumerate() {
            for (number, key) in asked.keys.iter().enumerate() {
                let key = std::str::from_utf8(key).expect("text");
                let version = match asked.at.and_then(|at| at.moment) {
                    Some(Moment::Version(version)) => version,
                    // Several versions may have one time: the newest counts.
                    Some(Moment::TimeMs(time_ms)) if time_ms < newest => {
                        settled += 1;
                        scene.times.iter().rposition(|time| *time <= time_ms).expect("genesis is older") as u64
                    }
                    Some(Moment::TimeMs(_)) => {
                        assert_eq!(reply.failures[&(at, number)], Some(Reason::NotYet));
                        continue;
                    }
                    None => 24,
                };
                let states = &reply.states[&(at, number)];
                assert_eq!(states.len(), 1);
                scene.check(key, states, (version, version));
            }
        }
        assert!(settled > 0 || newest == scene.times[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn walks_show_every_state_of_their_keys() {
    let scene = scene().await;
    let (client, times) = (client(&scene.world, true), &scene.times);
    let ranges = [(0, 24), (3, 17), (9, 9), (23, 24), (0, 0)];
    let mut queries: Vec<_> = ranges.iter().map(|(from, to)| query(&KEYS, version(*to), version(*from))).collect();
    queries.push(query(&["a"], None, version(20)));
    let reply = ask(&client, queries).await;
    assert!(reply.failures.is_empty(), "{:?}", reply.failures);
    for (at, range) in ranges.iter().enumerate() {
        for (number, key) in KEYS.iter().enumerate() {
            scene.check(key, &reply.states[&(at, number)], *range);
        }
    }
    scene.check("a", &reply.states[&(ranges.len(), 0)], (20, 24));
    let newest_at = |time_ms: u64| times.iter().rposition(|time| *time <= time_ms).expect("genesis") as u64;
    if times[20] < times[24] {
        let reply = ask(&client, vec![query(&KEYS, time(times[20]), time(times[6]))]).await;
        for (number, key) in KEYS.iter().enumerate() {
            let range = (newest_at(times[6]), newest_at(times[20]));
            scene.check(key, &reply.states[&(0, number)], range);
        }
    }
    let limited = v1::Query { limit: 2, ..query(&["a"], version(24), version(0)) };
    assert_eq!(ask(&client, vec![limited]).await.states[&(0, 0)].len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_or_version_lacks_fails_it_alone() {
    let mut scene = scene().await;
    let client = client(&scene.world, true);
    scene.running.client.prune(prune_before(10)).await.expect("pruned");
    let long = "k".repeat(600);
    let queries = vec![
        query(&["a"], version(3), None),
        query(&["a"], version(99), None),
        query(&["a", &long, ""], version(12), None),
        query(&["a"], time(1), None),
        query(&["b"], version(24), version(0)),
        query(&["b"], version(24), time(1)),
        v1::Query { at: Some(v1::Moment::default()), ..query(&["b"], None, None) },
        query(&["x"], version(20), None),
    ];
    let reply = ask(&client, queries).await;
    let expected = [
        ((0, 0), Reason::Pruned),
        ((1, 0), Reason::NotYet),
        ((2, 1), Reason::LimitExceeded),
        ((2, 2), Reason::InvalidArgument),
        ((3, 0), Reason::NotFound),
        ((4, 0), Reason::Pruned),
        ((5, 0), Reason::NotFound),
        ((6, 0), Reason::InvalidArgument),
    ];
    assert_eq!(reply.failures, expected.map(|(place, reason)| (place, Some(reason))).into());
    assert_eq!(reply.states.keys().copied().collect::<Vec<_>>(), [(2, 0), (4, 0), (7, 0)]);
    let walk = &reply.states[&(4, 0)];
    assert!(walk.last().is_some_and(|state| state.1 >= 10 && state.0 <= 10), "as far as versions are kept: {walk:?}");
    // After a rollback, a version is the one that stands.
    scene.running.client.rollback(roll_back(20)).await.expect("rolled back");
    let reply = ask(&client, vec![query(&["a"], version(22), None), query(&["a"], None, version(15))]).await;
    assert_eq!(reply.failures, [((0, 0), Some(Reason::RolledBack))].into());
    scene.check("a", &reply.states[&(1, 0)], (15, 20));
    for queries in [Vec::new(), vec![v1::Query::default()], vec![query(&["a"; 4097], None, None); 4]] {
        let request = v1::QueryBatchRequest { queries, want_proof: false };
        let mut stream = client.query_batch(request).await.expect("a stream");
        let error = stream.next().await.expect_err("it is refused as a whole");
        assert!(matches!(error.reason(), Some(Reason::InvalidArgument | Reason::LimitExceeded)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_of_one_version_come_in_parts() {
    let mut world = World::new(Params::default()).await;
    (world.limits.prepare_timeout, world.limits.attempt_timeout) = (LIMIT, LIMIT);
    let mut running = world.leader().await;
    let value = |number: usize| "v".repeat(60_000 + number);
    let keys: Vec<String> = (0..256).map(|number| format!("{}{number}", ["a", "x"][number % 2])).collect();
    for some in keys.chunks(8) {
        let puts = some.iter().map(|key| put(key, &value(key[1..].parse().expect("a number")))).collect();
        running.client.commit(commit(puts, Vec::new())).await.expect("committed");
    }
    let large = ["huge 1", "huge 2", "huge 3"];
    for key in large {
        running.client.commit(commit(vec![put(key, &"h".repeat(1 << 20))], Vec::new())).await.expect("committed");
    }
    let all: Vec<&str> = keys.iter().map(String::as_str).chain(large).collect();
    for trusting in [true, false] {
        let client = client(&world, trusting);
        let reply = ask(&client, vec![query(&all, None, None)]).await;
        assert!(reply.failures.is_empty() && reply.states.len() == all.len());
        let lengths = reply.states.values().map(|states| states[0].2.as_ref().map_or(0, Bytes::len));
        let expected = (0..256).map(|number| 60_000 + number).chain([1 << 20; 3]);
        assert!(lengths.eq(expected), "each key has its own value");
        assert!(reply.part_max <= 1 << 20, "{} bytes", reply.part_max);
    }
}
