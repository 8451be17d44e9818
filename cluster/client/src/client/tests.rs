//! Calls against a coordinator that is honest, lies, stays silent, or answers too much.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use coppice_proto::status;
use coppice_types::{ClusterId, Params, Reason};
use coppice_verify::{replay::Ledger, shard_map::ShardMap};
use tokio::time::timeout;
use tonic::Status;

use super::*;
use crate::fake::{self, Fake, get, many, put, range, record};

/// The sample ledger, its honest coordinator, and a client that trusts its key.
fn scene() -> (Arc<Mutex<Ledger>>, Fake, Client) {
    let ledger = Arc::new(Mutex::new(fake::ledger()));
    let trust = Some(ledger.lock().expect("no panic").key.verifier().clone());
    let fake = Fake::honest(&ledger);
    let client = fake::client(&[&fake], &Options { trust, ..Options::new("") });
    (ledger, fake, client)
}

fn key(key: &str) -> v1::GetRequest {
    v1::GetRequest { key: key.as_bytes().to_vec().into(), read: None }
}

fn all() -> v1::RangeRequest {
    v1::RangeRequest::default()
}

fn disbelieved<T: std::fmt::Debug>(result: Result<T, Error>, what: &str) {
    let error = result.expect_err(what);
    assert!(matches!(error, Error::Unproven(_) | Error::Untrusted(_) | Error::Malformed(_)), "{what}: {error:?}");
    assert!(error.kind() == ErrorKind::Corrupted && error.outcome_unknown(), "{what}: {error:?}");
}

#[tokio::test]
async fn endpoints_are_checked_before_the_first_call() {
    for good in ["http://127.0.0.1:4100", "127.0.0.1:4100", "localhost:1", "http://a:1, b:2"] {
        assert!(Client::new(Options::new(good)).is_ok(), "{good}");
    }
    for bad in ["", "a:1,", "a:1,b", "http://", "https://localhost:1", "localhost", "http://a b:1", "ftp://localhost:1"]
    {
        let error = Client::new(Options::new(bad)).err();
        assert!(matches!(error, Some(Error::Endpoint { .. })), "{bad}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn honest_answers_are_believed() {
    let (_, _, client) = scene();
    assert_eq!(client.get(key("a")).await.expect("a proof").record, Some(record(b"a")));
    let absent = client.get(key("nothing")).await.expect("a proof of absence").record;
    assert_eq!(absent.map(|record| record.found), Some(false));
    let keys = [&b"x"[..], b"nothing", b"a"].map(Bytes::from_static).to_vec();
    let records = client.batch_get(v1::BatchGetRequest { keys, read: None }).await.expect("a proof").records;
    assert_eq!(records, [record(b"x"), record(b"nothing"), record(b"a")]);
    let (records, end) = client.range_all(all()).await.expect("a proof");
    assert_eq!((records, end.more), (vec![record(b"a"), record(b"b"), record(b"x")], false));
}

#[tokio::test(start_paused = true)]
async fn a_read_asks_for_a_proof_only_if_a_key_is_trusted() {
    let (ledger, fake, trusting) = scene();
    let asked = Arc::<Mutex<Vec<bool>>>::default();
    let noted = Arc::clone(&asked);
    fake.get.set(move |request: v1::GetRequest| {
        noted.lock().expect("no panic").push(request.read.is_some_and(|read| read.want_proof));
        Ok(get(&ledger.lock().expect("no panic"), &request.key))
    });
    trusting.get(key("a")).await.expect("a proof");
    fake::client(&[&fake], &Options::new("")).get(key("a")).await.expect("an answer");
    assert_eq!(*asked.lock().expect("no panic"), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_lie_about_a_key_is_believed_only_by_a_client_without_a_key() {
    type Lie = fn(&Ledger, &mut v1::GetResponse);
    let lies: [(&str, Lie); 7] = [
        ("another value", |_, answer| answer.record.as_mut().expect("a record").value = Bytes::from_static(b"no")),
        ("an absent key", |_, answer| answer.record = Some(v1::Record { found: false, ..record(b"a") })),
        ("the record of another key", |_, answer| answer.record = Some(record(b"b"))),
        ("the proof of another key", |ledger, answer| answer.proof = get(ledger, b"b").proof),
        ("no proof", |_, answer| answer.proof = Bytes::new()),
        ("another version", |_, answer| answer.read_at = Some(v1::Stamp { epoch: 0, version: 9 })),
        ("no record", |_, answer| answer.record = None),
    ];
    for (what, lie) in lies {
        let (ledger, fake, client) = scene();
        fake.get.set(move |request: v1::GetRequest| {
            let ledger = ledger.lock().expect("no panic");
            let mut answer = get(&ledger, &request.key);
            lie(&ledger, &mut answer);
            Ok(answer)
        });
        disbelieved(client.get(key("a")).await, what);
        fake::client(&[&fake], &Options::new("")).get(key("a")).await.expect(what);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lie_about_a_range_is_not_believed() {
    type Lie = fn(&mut Vec<v1::RangeResponse>);
    let lies: [(&str, Lie); 6] = [
        ("a record left out", |answer| drop(answer[0].records.remove(1))),
        ("an empty range", |answer| answer[0].records.clear()),
        ("another value", |answer| answer[0].records[0].value = Bytes::from_static(b"no")),
        ("keys that fall", |answer| answer[0].records.reverse()),
        ("more to come without a limit", |answer| answer[0].end.as_mut().expect("an end").more = true),
        ("no end", |answer| answer[0].end = None),
    ];
    for (what, lie) in lies {
        let (ledger, fake, client) = scene();
        fake.range.set(move |request: v1::RangeRequest| {
            let mut answer = range(&ledger.lock().expect("no panic"), &request);
            lie(&mut answer);
            Ok(many(answer))
        });
        disbelieved(client.range_all(all()).await, what);
    }
}

#[tokio::test(start_paused = true)]
async fn a_range_that_is_too_large_is_given_up_and_not_collected() {
    let fake = Fake::default();
    fake.range.set(|_| {
        let value = Bytes::from(vec![7; 1 << 20]);
        let part = move |number: u32| {
            let key = number.to_be_bytes().to_vec().into();
            let record = v1::Record { key, found: true, value: value.clone(), ..v1::Record::default() };
            Ok(v1::RangeResponse { records: vec![record], end: None })
        };
        Ok(Box::pin(tokio_stream::iter((0..).map(part))))
    });
    let error = fake::client(&[&fake], &Options::new("")).range_all(all()).await.expect_err("it never ends");
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("128 MiB"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_ends_unless_it_follows_the_log() {
    let fake = Fake::default();
    fake.range.set(|_| Ok(Box::pin(tokio_stream::pending())));
    fake.watch_heads.set(|_| Ok(Box::pin(tokio_stream::pending())));
    let client = fake::client(&[&fake], &Options::new(""));
    let mut stream = client.range(all()).await.expect("a stream");
    let error = stream.next().await.expect_err("nothing comes");
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::Unavailable, "the server sent nothing for 30 s".to_owned())
    );
    for (follow, waits) in [(false, false), (true, true)] {
        let request = v1::WatchHeadsRequest { follow, ..v1::WatchHeadsRequest::default() };
        let mut stream = client.watch(request).await.expect("a stream");
        let next = timeout(Duration::from_secs(86_400), stream.next()).await;
        assert_eq!(next.is_err(), waits, "follow: {follow}");
    }
}

#[tokio::test(start_paused = true)]
async fn commits_are_believed_by_their_receipts_and_genesis_is_read_once() {
    let (ledger, fake, client) = scene();
    let (asked, of) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&ledger));
    let count = Arc::clone(&asked);
    fake.get_header.set(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(v1::GetHeaderResponse { header: of.lock().expect("no panic").headers[0].encode().into() })
    });
    for version in 2..5 {
        let answer = client.commit(put("k"), false).await.expect("an honest receipt");
        assert_eq!(answer.stamp, Some(v1::Stamp { epoch: 0, version }));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_receipt_for_another_batch_is_not_believed_and_a_missing_one_leaves_the_outcome_open() {
    let (_, fake, client) = scene();
    let honest = fake::client(&[&fake], &Options::new(""));
    let other = honest.commit(put("other"), true).await.expect("it is committed");
    let lie = other.clone();
    fake.commit.set(move |_| Ok(lie.clone()));
    disbelieved(client.commit(put("k"), false).await, "the receipt of another batch");
    fake.commit.set(move |_| Ok(v1::CommitResponse { receipt: Bytes::new(), ..other.clone() }));
    let error = client.commit(put("k"), false).await.expect_err("there is no receipt");
    assert_eq!((error.reason(), error.outcome_unknown()), (Some(Reason::Unavailable), true));
}

#[tokio::test(start_paused = true)]
async fn a_stage_is_committed_only_by_a_receipt_for_its_batch() {
    let (ledger, fake, client) = scene();
    fake.finalize.set(move |request: v1::FinalizeRequest| {
        assert!(request.want_receipt);
        let mut ledger = ledger.lock().expect("no panic");
        Ok(fake::commit(&mut ledger, b"", 0, Some(put("staged"))))
    });
    let stage = v1::FinalizeRequest { stage_id: Bytes::from_static(b"stage"), want_receipt: false };
    let answer = client.finalize(stage.clone(), &put("staged")).await.expect("an honest receipt");
    assert_eq!(answer.stamp, Some(v1::Stamp { epoch: 0, version: 2 }));
    disbelieved(client.finalize(stage.clone(), &put("other")).await, "the receipt of another batch");
    fake.finalize.set(move |_| Ok(v1::CommitResponse { receipt: Bytes::new(), ..answer.clone() }));
    let error = client.finalize(stage, &put("staged")).await.expect_err("there is no receipt");
    assert_eq!((error.reason(), error.outcome_unknown()), (Some(Reason::Unavailable), true));
}

#[tokio::test(start_paused = true)]
async fn the_newest_header_is_believed_under_a_checkpoint_of_the_trusted_key_alone() {
    let (ledger, fake, client) = scene();
    let growth = |ledger: &Ledger| {
        let size = ledger.headers.len() as u64;
        ledger.standing(1, size).encode().expect("a small file").into()
    };
    let of = Arc::clone(&ledger);
    fake.get_checkpoint.set(move |request: v1::GetCheckpointRequest| {
        assert_eq!(request.old_size, 1);
        Ok(v1::GetCheckpointResponse { standing: growth(&of.lock().expect("no panic")), ..Default::default() })
    });
    let newest = client.newest().await.expect("a proof");
    assert_eq!(newest, *ledger.lock().expect("no panic").newest());
    client.commit(put("k"), false).await.expect("an honest receipt");
    let of = fake::ledger();
    fake.get_checkpoint.set(move |_| Ok(v1::GetCheckpointResponse { standing: growth(&of), ..Default::default() }));
    disbelieved(client.newest().await, "a log that is older than the receipt's");
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let other = Ledger::new("model", ClusterId([7; 16]), &[2; 32], &Params::default(), map);
    fake.get_checkpoint.set(move |_| Ok(v1::GetCheckpointResponse { standing: growth(&other), ..Default::default() }));
    disbelieved(client.newest().await, "a log under another key");
    disbelieved(fake::client(&[&fake], &Options::new("")).newest().await, "no key is trusted");
}

#[tokio::test(start_paused = true)]
async fn an_unnumbered_batch_is_sent_again_only_if_it_had_no_effect() {
    for (status, attempts) in [
        (Status::unavailable("connection reset"), 1),
        (status::refuse(Reason::NotLeader, "ask another one"), 2),
        (status::refuse(Reason::ResourceExhausted, "the queue is full"), 2),
        (status::refuse(Reason::Denied, "no role"), 1),
    ] {
        let (fake, asked) = (Fake::default(), Arc::new(AtomicUsize::new(0)));
        let (count, first) = (Arc::clone(&asked), status.clone());
        fake.commit.set(move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err(first.clone()),
            _ => Ok(v1::CommitResponse::default()),
        });
        let result = fake::client(&[&fake], &Options::new("")).commit(put("k"), false).await;
        assert_eq!((result.is_ok(), asked.load(Ordering::SeqCst)), (attempts > 1, attempts), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn coordinators_are_learnt_from_the_status_if_they_are_endpoints_for_this_client() {
    let fake = Fake::default();
    fake.status.set(|_| {
        let of = |address: &str| v1::CoordinatorStatus { address: address.to_owned(), ..Default::default() };
        let coordinators = vec![of("b:2"), of("no port"), of("https://c:3"), of("b:2")];
        Ok(v1::StatusResponse { coordinators, ..Default::default() })
    });
    let client = fake::client(&[&fake], &Options::new(""));
    client.learn_endpoints().await.expect("a status");
    assert_eq!(client.endpoints(), ["http://coordinator-0:1", "http://b:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_pin_lasts_for_whole_milliseconds_and_must_be_in_the_answer() {
    let fake = Fake::default();
    fake.pin.set(|request: v1::PinRequest| {
        let pin = v1::VersionPin { expires_ms: request.ttl_ms, ..Default::default() };
        Ok(v1::PinResponse { pin: Some(pin).filter(|_| request.version == Some(3)) })
    });
    let client = fake::client(&[&fake], &Options::new(""));
    let pin = client.pin(PinId([1; 16]), 3, Duration::from_micros(1_999)).await.expect("a pin");
    assert_eq!(pin.expires_ms, 1);
    let endless = client.pin(PinId([1; 16]), 3, Duration::MAX).await.expect("a pin");
    assert_eq!(endless.expires_ms, u64::MAX, "the cluster refuses it");
    let result = client.pin(PinId([1; 16]), 4, Duration::ZERO).await;
    assert!(matches!(result, Err(Error::Malformed(_))), "{result:?}");
}
