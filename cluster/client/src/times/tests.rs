//! A client that reads at a time, from an honest coordinator and from ones that lie about it.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_types::{Change, Operation, Reason, Stamp};
use coppice_verify::{
    check::{Claim, verify},
    replay::{Commit, Ledger},
};

use crate::{
    Client, Error, Options,
    fake::{self, Fake, record},
};

/// Time of genesis in the sample ledger; each header is a second later than the one before.
const START: u64 = 1_700_000_000_000;

/// The sample ledger with two more versions and a header behind them.
fn ledger() -> Ledger {
    let mut ledger = fake::ledger();
    for _ in 0..2 {
        let put = Operation { key: b"y".to_vec().into(), change: Change::Put(b"later".to_vec().into()) };
        ledger.commit(&[Commit { operations: vec![put], ..Commit::default() }]).expect("a batch");
    }
    ledger.append_unknown(9, Vec::new());
    ledger
}

fn answer(ledger: &Ledger, time_ms: u64) -> v1::TimeResponse {
    let proof = ledger.prove_time(time_ms).encode().expect("a small file");
    let verified = verify(&proof, ledger.key.verifier(), None).expect("it holds");
    let Claim::Time(claim) = verified.claim else { panic!("of a time") };
    v1::TimeResponse {
        stamp: Some(convert::to_stamp(claim.header.stamp)),
        timestamp_ms: claim.header.timestamp_ms,
        next: claim.next.map(|(stamp, _)| convert::to_stamp(stamp)),
        next_timestamp_ms: claim.next.map_or(0, |(_, time_ms)| time_ms),
        is_final: claim.is_final(),
        proof: proof.into(),
    }
}

/// The options of reads that arrived.
type Reads = Arc<Mutex<Vec<v1::ReadOptions>>>;

/// A coordinator that serves times and versions, a client that trusts its key, and the reads that
/// arrived.
fn scene() -> (Arc<Mutex<Ledger>>, Fake, Client, Reads) {
    let ledger = Arc::new(Mutex::new(ledger()));
    let trust = Some(ledger.lock().expect("no panic").key.verifier().clone());
    let (fake, reads) = (Fake::honest(&ledger), Arc::<Mutex<Vec<_>>>::default());
    let of = Arc::clone(&ledger);
    fake.time.set(move |request: v1::TimeRequest| Ok(answer(&of.lock().expect("no panic"), request.time_ms)));
    let (of, noted) = (Arc::clone(&ledger), Arc::clone(&reads));
    fake.get.set(move |request: v1::GetRequest| {
        let (ledger, read) = (of.lock().expect("no panic"), request.read.unwrap_or_default());
        noted.lock().expect("no panic").push(read);
        let at = read.at.map_or(ledger.head(), |at| Stamp::new(at.epoch, at.version));
        let proof = ledger.prove_keys(at, &[&request.key], true).encode().expect("a small file").into();
        Ok(v1::GetResponse { record: Some(record(&request.key)), read_at: Some(convert::to_stamp(at)), proof })
    });
    let client = fake::client(&[&fake], &Options { trust, ..Options::new("") });
    (ledger, fake, client, reads)
}

fn at_time(time_ms: u64) -> v1::GetRequest {
    let read = Some(v1::ReadOptions { at_time_ms: Some(time_ms), ..v1::ReadOptions::default() });
    v1::GetRequest { key: Bytes::from_static(b"a"), read }
}

fn ask(time_ms: u64) -> v1::TimeRequest {
    v1::TimeRequest { time_ms, ..v1::TimeRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn a_read_at_a_time_is_of_the_version_that_is_proven() {
    let (_, fake, client, reads) = scene();
    for (after, version) in [(1000, 1), (1999, 1), (2000, 2), (3999, 3)] {
        let answer = client.get(at_time(START + after)).await.expect("a proof");
        assert_eq!(answer.read_at, Some(v1::Stamp { epoch: 0, version }), "{after}");
    }
    assert!(reads.lock().expect("no panic").iter().all(|read| read.at.is_some() && read.at_time_ms.is_none()));
    let told = client.time(ask(START + 4000)).await.expect("a proof");
    assert!(!told.is_final);
    let error = client.get(at_time(START + 4000)).await.expect_err("a later version may have the time");
    assert_eq!(error.reason(), Some(Reason::NotYet));
    // Without a key, the coordinator is believed: it finds the version.
    reads.lock().expect("no panic").clear();
    fake::client(&[&fake], &Options::new("")).get(at_time(START + 1000)).await.expect("an answer");
    assert_eq!(reads.lock().expect("no panic")[0].at_time_ms, Some(START + 1000));
}

#[tokio::test(start_paused = true)]
async fn a_lie_about_a_time_is_not_believed() {
    type Lie = fn(&Ledger, &mut v1::TimeResponse);
    let lies: [(&str, Lie); 8] = [
        ("another version", |_, answer| answer.stamp = Some(v1::Stamp { epoch: 0, version: 1 })),
        ("another time of the version", |_, answer| answer.timestamp_ms -= 1),
        ("no next version", |_, answer| answer.next = None),
        ("another time of the next version", |_, answer| answer.next_timestamp_ms += 1),
        ("not final", |_, answer| answer.is_final = false),
        ("the answer for another time", |ledger, answer| *answer = super::tests::answer(ledger, START + 1000)),
        ("no proof", |_, answer| answer.proof = Bytes::new()),
        ("a proof of a key", |ledger, answer| {
            answer.proof = ledger.prove_keys(Stamp::new(0, 2), &[b"a"], true).encode().expect("small").into();
        }),
    ];
    for (what, lie) in lies {
        let (ledger, fake, client, reads) = scene();
        fake.time.set(move |request: v1::TimeRequest| {
            let ledger = ledger.lock().expect("no panic");
            let mut answer = answer(&ledger, request.time_ms);
            lie(&ledger, &mut answer);
            Ok(answer)
        });
        for result in
            [client.time(ask(START + 2500)).await.map(drop), client.get(at_time(START + 2500)).await.map(drop)]
        {
            let error = result.expect_err(what);
            assert!(matches!(error, Error::Unproven(_) | Error::Untrusted(_)), "{what}: {error:?}");
        }
        assert!(reads.lock().expect("no panic").is_empty(), "{what}: nothing is read at a version that is not proven");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_shrinks_shows_no_time() {
    let (ledger, fake, client, _) = scene();
    client.time(ask(START + 1000)).await.expect("a proof");
    let older = fake::ledger();
    assert!(older.headers.len() < ledger.lock().expect("no panic").headers.len());
    fake.time.set(move |request: v1::TimeRequest| Ok(answer(&older, request.time_ms)));
    let error = client.time(ask(START + 1000)).await.expect_err("an old checkpoint");
    assert!(matches!(error, Error::Untrusted(_)), "{error:?}");
}
