//! A cluster that may hold ledgers of members: its reserved keys are closed to every call that
//! reads or writes keys, and all else works as in a cluster without them.

mod common;

use bytes::Bytes;
use common::{World, commit, delete, put, reason};
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{Params, Reason, Version};
use coppice_verify::{
    check::{Answer, Claim},
    header::Header,
    verify,
};
use tonic::{Status, Streaming};

async fn world() -> World {
    let params = Params { ledgers: true, journals_kept: true, ..Params::default() };
    World::of(1, &[vec![0, 0x80], vec![1]], params).await
}

/// The refusal of a stream: at its opening, or instead of its first message.
async fn refusal<T>(opened: Result<tonic::Response<Streaming<T>>, Status>) -> Status {
    match opened {
        Err(status) => status,
        Ok(stream) => stream.into_inner().message().await.err().expect("the stream is refused"),
    }
}

fn get(key: &[u8]) -> v1::GetRequest {
    let read = Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() });
    v1::GetRequest { key: Bytes::copy_from_slice(key), read }
}

async fn refusals(client: &mut LedgerClient<Channel>, key: &[u8]) -> Vec<(&'static str, Status)> {
    let name = std::str::from_utf8(key).expect("text");
    let absent = v1::Precondition {
        key: Bytes::copy_from_slice(key),
        condition: Some(v1::precondition::Condition::Absent(true)),
    };
    let (low, read) = (Bytes::copy_from_slice(key), Some(v1::ReadOptions::default()));
    let range = v1::RangeRequest { low: low.clone(), read, ..v1::RangeRequest::default() };
    let history = v1::HistoryRequest { key: low.clone(), ..v1::HistoryRequest::default() };
    let from = Some(v1::Stamp { epoch: 0, version: 0 });
    let diff = v1::DiffRequest { from, low: low.clone(), ..v1::DiffRequest::default() };
    let batch = v1::BatchGetRequest { keys: vec![low, Bytes::from_static(b"open")], read };
    vec![
        ("put", client.commit(commit(vec![put(name, "x")], Vec::new())).await.expect_err("reserved")),
        ("delete", client.commit(commit(vec![delete(name)], Vec::new())).await.expect_err("reserved")),
        ("precondition", client.commit(commit(vec![put("k", "x")], vec![absent])).await.expect_err("reserved")),
        ("get", client.get(get(key)).await.expect_err("reserved")),
        ("batch get", client.batch_get(batch).await.expect_err("reserved")),
        ("range", refusal(client.range(range).await).await),
        ("history", refusal(client.history(history).await).await),
        ("diff", refusal(client.diff(diff).await).await),
    ]
}

#[tokio::test]
async fn reserved_keys_are_closed_to_every_call() {
    let world = world().await;
    let mut running = world.leader().await;
    for key in [&b"\0"[..], b"\0grain", b"\0\x7f", b"\0\x01aaaaaaaaaaaaaaaa\0"] {
        for (call, status) in refusals(&mut running.client, key).await {
            assert_eq!(reason(&status), Reason::Reserved, "{call} of {key:?}: {status}");
        }
    }
    // A range from the first key on would show them, too.
    let whole = refusal(running.client.range(v1::RangeRequest::default()).await).await;
    assert_eq!(reason(&whole), Reason::Reserved);
    let head = running.client.head(v1::HeadRequest::default()).await.expect("a head").into_inner();
    assert_eq!(head.stamp.expect("a stamp").version, 0, "nothing was committed");
    // An auditor reads them without their values. Here nobody checks roles.
    let read = Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() });
    let whole = v1::RangeRequest { read, without_values: true, ..v1::RangeRequest::default() };
    running.client.commit(commit(vec![put("k", "value")], Vec::new())).await.expect("an open key");
    let mut answer = running.client.range(whole).await.expect("a range").into_inner();
    let (mut records, mut proof) = (Vec::new(), Bytes::new());
    while let Some(message) = answer.message().await.expect("a message") {
        records.extend(message.records);
        proof = message.end.map_or(proof, |end| end.proof);
    }
    let found: Vec<_> = records.iter().map(|record| (&record.key[..], &record.value[..])).collect();
    assert_eq!(found, [(&b"k"[..], &b""[..])]);
    let verified = verify(&proof, world.key().verifier(), None).expect("the proof holds");
    let Claim::Query(claim) = verified.claim else { panic!("it is about records") };
    let Answer::Range { records, .. } = claim.answer else { panic!("it is about a range") };
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].value, None, "the proof shows no value");
}

#[tokio::test]
async fn all_other_keys_and_operations_work_under_headers_that_count_key_changes() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    for at in 0..4 {
        let operations = vec![put("\u{1}", "first"), put(&format!("k{at}"), "value")];
        client.commit(commit(operations, Vec::new())).await.expect("open keys");
    }
    let range = v1::RangeRequest { low: Bytes::from_static(&[1]), ..v1::RangeRequest::default() };
    let mut range = client.range(range).await.expect("a range").into_inner();
    assert_eq!(range.message().await.expect("a message").expect("records").records.len(), 5);
    let watch = v1::WatchHeadsRequest { want_changed_keys: true, from_sequence: 1, ..v1::WatchHeadsRequest::default() };
    let mut watch = client.watch_heads(watch).await.expect("a watch").into_inner();
    assert_eq!(watch.message().await.expect("a message").expect("changes").changes.len(), 2);
    let (principal, reason) = ("ops".to_owned(), "test".to_owned());
    let back =
        v1::RollbackRequest { to: Some(3), principal: principal.clone(), reason: reason.clone(), expected_head: None };
    client.rollback(back).await.expect("no ledger forbids it");
    let prune = v1::PruneRequest { before: Some(2), principal, reason, expected_head: None };
    client.prune(prune).await.expect("it prunes");
    let answer = client.get(get(b"k1")).await.expect("it is read").into_inner();
    let verified = verify(&answer.proof, world.key().verifier(), None).expect("the proof holds");
    assert_eq!(verified.newest.key_changes, Some(0));
    assert_eq!(verified.header().expect("of a version").stamp.version, Version(3));
    let which = Some(v1::get_header_request::Which::Sequence(0));
    let header = client.get_header(v1::GetHeaderRequest { which }).await.expect("genesis").into_inner().header;
    assert_eq!(Header::decode(&header).expect("a header").key_changes, Some(0));
}
