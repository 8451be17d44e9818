//! A client that asks batches of queries, of an honest coordinator and of ones that lie.

use std::collections::BTreeSet;

use coppice_proto::convert;
use coppice_types::{Change, ClusterId, ErrorKind, Operation, Params, Stamp};
use coppice_verify::{
    check::{Answer, verify},
    proof::split_log,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};
use prost::Message;

use super::*;
use crate::{
    Options,
    fake::{self, Fake, many},
};

type Messages = Vec<v1::QueryBatchResponse>;

/// The changes of the sample ledger: version, key, and the value that was put.
const CHANGES: [(u64, &str, Option<&str>); 9] = [
    (1, "a", Some("one")),
    (2, "x", Some("two")),
    (3, "a", Some("three")),
    (4, "a", None),
    (5, "b", Some("five")),
    (6, "a", Some("six")),
    (7, "x", Some("seven")),
    (8, "x", None),
    (9, "b", Some("nine")),
];

/// Two shards, split at `m`, and a header behind the versions.
fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
    for (_, key, value) in CHANGES {
        let change = value.map_or(Change::Delete, |value| Change::Put(value.into()));
        let operations = vec![Operation { key: key.into(), change }];
        ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("a batch");
    }
    ledger.append_unknown(9, Vec::new());
    ledger
}

/// The value of a key at a version, by the list of changes.
fn model(key: &[u8], version: u64) -> Option<&'static str> {
    let newest = CHANGES.iter().rev().find(|(at, changed, _)| *at <= version && changed.as_bytes() == key);
    newest.and_then(|(_, _, value)| *value)
}

fn time_of(ledger: &Ledger, version: u64) -> u64 {
    ledger.headers[usize::try_from(version).expect("small")].timestamp_ms
}

fn version(version: u64) -> v1::Moment {
    v1::Moment { moment: Some(Moment::Version(version)) }
}

fn time(time_ms: u64) -> v1::Moment {
    v1::Moment { moment: Some(Moment::TimeMs(time_ms)) }
}

fn query(keys: &[&'static str], at: Option<v1::Moment>, since: Option<v1::Moment>) -> v1::Query {
    let keys = keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
    v1::Query { keys, at, since, limit: 0 }
}

/// All kinds of queries: 8 places, of which 3 are walked through.
fn request(ledger: &Ledger) -> v1::QueryBatchRequest {
    let queries = vec![
        query(&["a"], Some(version(3)), None),
        query(&["b", "nothing"], None, None),
        query(&["x"], Some(time(time_of(ledger, 7) + 1)), None),
        query(&["a"], Some(version(9)), Some(version(2))),
        query(&["x", "b"], Some(time(time_of(ledger, 9))), Some(time(time_of(ledger, 3)))),
        query(&["a"], Some(version(12)), None),
    ];
    v1::QueryBatchRequest { queries, want_proof: true }
}

/// Splits a proof file as a coordinator does. The first one gives its log part to the message.
fn shared(log: &mut Option<Bytes>, file: &[u8]) -> (Bytes, Bytes) {
    let (part, rest) = split_log(file).expect("a file");
    let first = log.replace(Bytes::copy_from_slice(part)).is_none();
    (if first { Bytes::copy_from_slice(part) } else { Bytes::new() }, rest.into())
}

fn tell_time(ledger: &Ledger, time_ms: u64, log: &mut Option<Bytes>) -> (u64, v1::QueryBatchResponse) {
    let file = ledger.prove_time(time_ms).encode().expect("small");
    let Claim::Time(claim) = verify(&file, ledger.key.verifier(), None).expect("it holds").claim else {
        panic!("of a time")
    };
    let (log, proof) = shared(log, &file);
    let answer = v1::TimeResponse {
        stamp: Some(convert::to_stamp(claim.header.stamp)),
        timestamp_ms: claim.header.timestamp_ms,
        next: claim.next.map(|(stamp, _)| convert::to_stamp(stamp)),
        next_timestamp_ms: claim.next.map_or(0, |(_, time_ms)| time_ms),
        is_final: claim.is_final(),
        proof,
    };
    let times = vec![v1::QueryTime { time_ms, version: Some(answer) }];
    (claim.header.stamp.version.0, v1::QueryBatchResponse { log, times, ..Default::default() })
}

/// The answers of an honest coordinator: one message for each version, from the newest one back.
fn honest(ledger: &Ledger, request: &v1::QueryBatchRequest) -> Messages {
    let (mut log, mut messages, mut times) = (None, Vec::new(), BTreeMap::new());
    let moments = request.queries.iter().flat_map(|query| [query.at, query.since]).flatten();
    let asked: BTreeSet<u64> = moments
        .filter_map(|moment| match moment.moment {
            Some(Moment::TimeMs(time_ms)) => Some(time_ms),
            _ => None,
        })
        .collect();
    for time_ms in asked {
        let (version, message) = tell_time(ledger, time_ms, &mut log);
        times.insert(time_ms, version);
        messages.push(message);
    }
    let number = |moment: v1::Moment| match moment.moment.expect("a moment") {
        Moment::Version(version) => version,
        Moment::TimeMs(time_ms) => times[&time_ms],
    };
    let head = ledger.head().version.0;
    let mut places = Vec::new();
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for query in &request.queries {
        for key in &query.keys {
            open.entry(query.at.map_or(head, number)).or_default().push(places.len());
            let left = if query.limit == 0 { u32::MAX } else { query.limit };
            places.push((key.clone(), query.since.map(number), left));
        }
    }
    while let Some((version, own)) = open.pop_last() {
        let numbers = own.iter().map(|place| u32::try_from(*place).expect("few")).collect();
        if version > head {
            let failure = v1::QueryFailure { reason: "NOT_YET".to_owned(), message: "above head".to_owned() };
            messages.push(v1::QueryBatchResponse { places: numbers, failure: Some(failure), ..Default::default() });
            continue;
        }
        let keys: Vec<&[u8]> = own.iter().map(|place| &*places[*place].0).collect();
        let stamp = Stamp::new(0, version);
        let file = ledger.prove_keys(stamp, &keys, true).encode().expect("small");
        let verified = verify(&file, ledger.key.verifier(), None).expect("it holds");
        let (Claim::Query(claim), Proof::Query(proof)) =
            (verified.claim, ProofFile::decode(&file).expect("it is").proof)
        else {
            panic!("of keys")
        };
        let Answer::Keys(found) = claim.answer else { panic!("of keys") };
        let mut message = v1::QueryBatchResponse { places: numbers, ..Default::default() };
        for place in own {
            let (key, since, left) = &mut places[place];
            let (_, record) = found.iter().find(|(found, _)| **found == **key).expect("it was asked for");
            let unchanged = match record {
                Some(record) => record.stamp.version.0,
                None => proof.shards.iter().rfind(|part| *part.low <= **key).expect("a shard").version.0,
            };
            let last_changed = record.as_ref().map(|record| convert::to_stamp(record.stamp));
            let record = v1::Record { key: key.clone(), found: record.is_some(), last_changed, ..Default::default() };
            message.records.push(record);
            message.unchanged_since.push(unchanged);
            *left -= 1;
            if *left > 0 && since.is_some_and(|since| unchanged > since) {
                open.entry(unchanged - 1).or_default().push(place);
            }
        }
        (message.log, message.proof) = shared(&mut log, &file);
        message.read_at = Some(convert::to_stamp(stamp));
        messages.push(message);
    }
    messages
}

/// What a client gets of these messages, and how the reply ends.
async fn replied(
    ledger: &Ledger,
    request: &v1::QueryBatchRequest,
    messages: Messages,
    trusting: bool,
) -> (Vec<QueryPart>, Result<(), Error>) {
    let fake = Fake::default();
    fake.query_batch.set(move |_| Ok(many(messages.clone())));
    let trust = trusting.then(|| ledger.key.verifier().clone());
    let client = fake::client(&[&fake], &Options { trust, ..Options::new("") });
    let mut stream = client.query_batch(request.clone()).await.expect("a stream");
    let mut parts = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(part)) => parts.push(part),
            Ok(None) => return (parts, Ok(())),
            Err(error) => return (parts, Err(error)),
        }
    }
}

/// The versions from and to which a state holds, and its value.
type Held = (u64, u64, Option<Bytes>);

/// The states of each place, newest first.
fn states(parts: &[QueryPart]) -> BTreeMap<(usize, usize), Vec<Held>> {
    let mut states: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for answer in parts.iter().flat_map(|part| &part.answers) {
        let of = states.entry((answer.query, answer.key)).or_default();
        if let Ok(state) = &answer.outcome {
            let value = state.record.found.then(|| state.record.value.clone());
            of.push((state.unchanged_since, state.read_at.version, value));
        }
    }
    states
}

#[tokio::test(start_paused = true)]
async fn an_honest_reply_has_every_state_of_every_key_with_proofs_that_stand_alone() {
    let ledger = ledger();
    let request = request(&ledger);
    let messages = honest(&ledger, &request);
    let (parts, end) = replied(&ledger, &request, messages.clone(), true).await;
    end.expect("an honest reply");
    let states = states(&parts);
    assert_eq!(states.len(), 8, "every place has answers");
    for ((at, number), states) in &states {
        let query = &request.queries[*at];
        let key = &query.keys[*number];
        for (from, to, value) in states {
            for version in *from..=*to {
                let expected = model(key, version).map(str::as_bytes);
                assert_eq!(value.as_deref(), expected, "{key:?} at {version}");
            }
        }
        let joined = states.windows(2).all(|pair| pair[1].1 + 1 == pair[0].0);
        assert!(joined, "no version lies between two states: {states:?}");
    }
    let ends = |place| {
        let states = &states[&place];
        (states.first().map(|state| state.1), states.last().map(|state| state.0))
    };
    assert_eq!(ends((0, 0)), (Some(3), Some(3)));
    assert_eq!(ends((2, 0)), (Some(7), Some(7)));
    assert_eq!(ends((3, 0)), (Some(9), Some(1)), "the walk ends with the state that was in force");
    assert_eq!(ends((4, 0)), (Some(9), Some(2)));
    assert_eq!(ends((4, 1)), (Some(9), Some(3)), "without a value, a state is known as far as its shard's");
    let failed: Vec<_> = parts.iter().flat_map(|part| &part.answers).filter(|it| it.outcome.is_err()).collect();
    assert_eq!(failed.iter().map(|it| (it.query, it.more)).collect::<Vec<_>>(), [(5, false)]);
    assert!(failed.iter().all(|it| it.outcome.as_ref().is_err_and(|it| it.reason == Some(Reason::NotYet))));
    let files = parts.iter().flat_map(|part| {
        let times = part.times.iter().filter_map(|time| time.version.as_ref()).map(|version| &version.proof);
        times.chain([&part.proof]).filter(|proof| !proof.is_empty())
    });
    let proven: Vec<_> = files.map(|file| verify(file, ledger.key.verifier(), None).expect("a whole file")).collect();
    assert_eq!(proven.len(), messages.len() - 1, "all but the failure");
    // A client without a key gets the same, and takes the values from the proofs.
    let (plain, end) = replied(&ledger, &request, messages, false).await;
    assert!(end.is_ok() && plain == parts, "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_walk_ends_at_its_limit() {
    let ledger = ledger();
    let walk = |limit| v1::Query { limit, ..query(&["a"], Some(version(9)), Some(version(0))) };
    for (limit, count) in [(1, 1), (2, 2), (3, 3), (0, 6)] {
        let request = v1::QueryBatchRequest { queries: vec![walk(limit)], want_proof: true };
        let (parts, end) = replied(&ledger, &request, honest(&ledger, &request), true).await;
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(states(&parts)[&(0, 0)].len(), count, "limit {limit}");
    }
}

/// Where the messages about records begin, and of the version with this number.
fn of_version(messages: &Messages, version: u64) -> usize {
    let is = |message: &v1::QueryBatchResponse| message.read_at.is_some_and(|at| at.version == version);
    messages.iter().position(is).expect("there is one")
}

type Lie = fn(&Ledger, &mut Messages);

const LIES: &[(&str, Lie)] = &[
    ("another value", |_, all| {
        let at = of_version(all, 3);
        all[at].records[0].value = Bytes::from_static(b"no");
    }),
    ("a key that is said to be absent", |_, all| {
        let at = of_version(all, 9);
        let found = all[at].records.iter_mut().find(|record| record.found).expect("one is there");
        found.found = false;
    }),
    ("a change that is withheld", |_, all| {
        // The walk through `a` leaves its deletion and its first value out.
        let at = of_version(all, 9);
        let walk = all[at].places.iter().position(|place| *place == 4).expect("the walk");
        all[at].unchanged_since[walk] = 2;
    }),
    ("a walk that skips a version", |_, all| drop(all.remove(of_version(all, 5)))),
    ("an older state in the place of a newer one", |ledger, all| {
        let request = v1::QueryBatchRequest { queries: vec![query(&["a"], Some(version(1)), None)], want_proof: true };
        let older = honest(ledger, &request).remove(0);
        let at = of_version(all, 3);
        all[at] = v1::QueryBatchResponse { log: Bytes::new(), ..older };
    }),
    ("the answer to another query", |_, all| {
        let at = of_version(all, 9);
        all[at].places.swap(0, 1);
        all[at].records.swap(0, 1);
        all[at].places.swap(1, 2);
    }),
    ("records in another order", |_, all| {
        let at = of_version(all, 9);
        all[at].records.swap(0, 1);
    }),
    ("places in another order", |_, all| {
        let at = of_version(all, 9);
        all[at].places.rotate_left(1);
    }),
    ("a missing answer", |_, all| drop(all.pop())),
    ("no answer", |_, all| all.clear()),
    ("one answer twice", |_, all| all.push(all[of_version(all, 3)].clone())),
    ("one place twice in a part", |_, all| {
        let at = of_version(all, 3);
        let first = all[at].clone();
        all[at].places.extend(&first.places);
        all[at].records.extend(first.records);
        all[at].unchanged_since.extend(first.unchanged_since);
    }),
    ("a place that was not asked for", |_, all| {
        let at = of_version(all, 3);
        all[at].places[0] = 99;
    }),
    ("fewer records than places", |_, all| {
        let at = of_version(all, 9);
        all[at].records.pop();
    }),
    ("no records", |_, all| {
        let at = of_version(all, 9);
        all[at].records.clear();
    }),
    ("a failure with records", |_, all| {
        let at = of_version(all, 3);
        all[at].failure = Some(v1::QueryFailure::default());
    }),
    ("a failure about no key", |_, all| {
        all.push(v1::QueryBatchResponse { failure: Some(v1::QueryFailure::default()), ..Default::default() })
    }),
    ("nothing", |_, all| all.insert(1, v1::QueryBatchResponse::default())),
    ("no version", |_, all| {
        let at = of_version(all, 3);
        all[at].read_at = None;
    }),
    ("no proof", |_, all| {
        let at = of_version(all, 3);
        all[at].proof = Bytes::new();
    }),
    ("no log part", |_, all| all[0].log = Bytes::new()),
    ("a second log part", |_, all| all[1].log = all[0].log.clone()),
    ("the log part of another ledger", |_, all| {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let other = Ledger::new("model", ClusterId([7; 16]), &[2; 32], &Params::default(), map);
        let file = other.prove_keys(other.head(), &[b"a"], true).encode().expect("small");
        all[0].log = Bytes::copy_from_slice(split_log(&file).expect("a file").0);
    }),
    ("records before the versions of their times", |_, all| all.reverse()),
    ("another version for a time", |ledger, all| {
        let other = tell_time(ledger, time_of(ledger, 6), &mut Some(Bytes::new())).1;
        let told = other.times[0].version.clone();
        let at = all.iter().position(|it| it.times.iter().any(|time| time.time_ms > time_of(ledger, 6))).expect("one");
        all[at].times[0].version = told;
    }),
    ("a time that is not settled", |_, all| {
        all[0].times[0].version.as_mut().expect("a version").is_final = false;
    }),
    ("times again and again", |_, all| {
        let again = v1::QueryBatchResponse { log: Bytes::new(), ..all[0].clone() };
        all.splice(1..1, std::iter::repeat_n(again, 1000));
    }),
];

#[tokio::test(start_paused = true)]
async fn no_lie_about_a_batch_is_believed_and_what_came_before_it_holds() {
    let ledger = ledger();
    let request = request(&ledger);
    let truth = honest(&ledger, &request);
    let (parts, _) = replied(&ledger, &request, truth.clone(), true).await;
    let known = states(&parts);
    for (what, lie) in LIES {
        let mut messages = truth.clone();
        lie(&ledger, &mut messages);
        assert_ne!(messages, truth, "{what}");
        let (parts, end) = replied(&ledger, &request, messages, true).await;
        let error = end.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{what}: {error:?}");
        for (place, told) in states(&parts) {
            assert!(known[&place].starts_with(&told), "{what}: {place:?} has {told:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_is_seen_or_changes_nothing() {
    let ledger = ledger();
    let queries = vec![query(&["a", "b", "x", "nothing"], Some(version(7)), Some(version(2)))];
    let request = v1::QueryBatchRequest { queries, want_proof: true };
    let truth = honest(&ledger, &request);
    let known = states(&replied(&ledger, &request, truth.clone(), true).await.0);
    let (mut seen, mut flips) = (0, 0);
    for at in 0..truth.len() {
        let bytes = truth[at].encode_to_vec();
        for byte in (0..bytes.len()).step_by(11) {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (byte % 8);
            let Ok(message) = v1::QueryBatchResponse::decode(&*flipped) else { continue };
            // A coordinator may refuse any key.
            if message.failure.is_some() {
                continue;
            }
            let mut messages = truth.clone();
            messages[at] = message;
            let (parts, end) = replied(&ledger, &request, messages, true).await;
            for (place, told) in states(&parts) {
                assert!(known[&place].starts_with(&told), "byte {byte} of message {at}");
            }
            flips += 1;
            seen += usize::from(end.is_err());
        }
    }
    assert!(flips > 300 && seen * 10 > flips * 9, "{seen} of {flips} are seen");
}

#[tokio::test(start_paused = true)]
async fn a_reply_without_end_is_ended_by_a_client_that_trusts_no_key_too() {
    let walk = query(&["a"], Some(version(u64::MAX - 1)), Some(version(0)));
    let request = v1::QueryBatchRequest { queries: vec![walk], want_proof: false };
    let fake = Fake::default();
    fake.query_batch.set(|_| {
        let state = |at: u64| {
            let version = u64::MAX - 1 - at;
            Ok(v1::QueryBatchResponse {
                places: vec![0],
                records: vec![v1::Record { key: Bytes::from_static(b"a"), ..Default::default() }],
                unchanged_since: vec![version],
                read_at: Some(v1::Stamp { epoch: 0, version }),
                ..Default::default()
            })
        };
        Ok(Box::pin(tokio_stream::iter((0..).map(state))))
    });
    let client = fake::client(&[&fake], &Options::new(""));
    let mut stream = client.query_batch(request).await.expect("a stream");
    let mut count = 0;
    let error = loop {
        match stream.next().await {
            Ok(part) => count += part.expect("it never ends").answers.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Malformed("too many answers")), "{error:?}");
    assert_eq!(count, STEPS_MAX + 1);
}
