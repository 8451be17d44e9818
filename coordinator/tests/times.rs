//! Reads at a time and proofs of its version, against real nodes.

use coppice_proto::v1;
use coppice_types::{Params, Reason, Stamp};
use coppice_verify::{
    check::{Claim, Question, Subject, TimeClaim},
    header::Header,
    note::SignerKey,
    verify, verify_answer,
};

mod common;

use common::{World, at, bytes, commit, get, prune_before, put, reason, roll_back};

type Client = v1::ledger_client::LedgerClient<coppice_proto::Channel>;

/// The headers of the versions that stand, by version.
async fn timeline(client: &mut Client) -> Vec<Header> {
    let head = client.head(v1::HeadRequest::default()).await.expect("it is read").into_inner().stamp.expect("a head");
    let mut headers = Vec::new();
    for version in 0..=head.version {
        let which = Some(v1::get_header_request::Which::Version(version));
        // Below the pruned boundary, headers come from the log.
        if let Ok(answer) = client.get_header(v1::GetHeaderRequest { which }).await {
            headers.push(Header::decode(&answer.into_inner().header).expect("it is canonical"));
        }
    }
    headers
}

async fn proven(client: &mut Client, key: &SignerKey, time_ms: u64) -> (v1::TimeResponse, TimeClaim) {
    let request = v1::TimeRequest { time_ms, want_proof: true, cosigned: false };
    let answer = client.time(request).await.expect("there is one").into_inner();
    let question = Question::about(Subject::Time(time_ms));
    let claim = verify_answer(&answer.proof, key.verifier(), None, &question).expect("the proof is sound").claim;
    let Claim::Time(claim) = claim else { panic!("of a time") };
    assert_eq!(answer.stamp, Some(at(claim.header.stamp.epoch.0, claim.header.stamp.version.0)));
    assert_eq!((answer.timestamp_ms, answer.is_final), (claim.header.timestamp_ms, claim.is_final()));
    assert_eq!(answer.next.is_some(), claim.next.is_some());
    let plain = client.time(v1::TimeRequest { time_ms, ..v1::TimeRequest::default() }).await;
    assert_eq!(plain.expect("there is one").into_inner(), v1::TimeResponse { proof: bytes(""), ..answer.clone() });
    (answer, claim)
}

fn get_at(time_ms: u64) -> v1::GetRequest {
    let read = Some(v1::ReadOptions { want_proof: true, at_time_ms: Some(time_ms), ..v1::ReadOptions::default() });
    v1::GetRequest { key: bytes("a"), read }
}

/// Compares every time around the headers with a naive search.
async fn check(client: &mut Client, key: &SignerKey, headers: &[Header]) -> usize {
    let newest = client.head(v1::HeadRequest::default()).await.expect("it is read").into_inner().timestamp_ms;
    let (mut read, genesis) = (0, headers[0].timestamp_ms);
    let around = |header: &Header| [header.timestamp_ms - 1, header.timestamp_ms, header.timestamp_ms + 1];
    for time_ms in headers.iter().flat_map(around).filter(|time_ms| *time_ms >= genesis).chain([u64::MAX]) {
        let naive = headers.iter().rev().find(|header| header.timestamp_ms <= time_ms).expect("genesis is as old");
        let (answer, claim) = proven(client, key, time_ms).await;
        assert_eq!(claim.header, *naive, "{time_ms}");
        assert_eq!(answer.is_final, time_ms < newest);
        match client.get(get_at(time_ms)).await {
            Ok(got) => {
                let got = got.into_inner();
                assert!(answer.is_final && got.read_at == answer.stamp, "{time_ms}: {got:?}");
                verify(&got.proof, key.verifier(), None).expect("the proof is sound");
                read += 1;
            }
            Err(error) => assert!(!answer.is_final && reason(&error) == Reason::NotYet, "{time_ms}: {error}"),
        }
    }
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_at_a_time_is_of_its_newest_version_and_never_changes() {
    let world = World::new(Params::default()).await;
    let (mut client, key) = (world.leader().await.client, world.key());
    for version in 1..=6 {
        client.commit(commit(vec![put("a", &version.to_string())], Vec::new())).await.expect("committed");
    }
    let headers = timeline(&mut client).await;
    let genesis = headers[0].timestamp_ms;
    assert!(check(&mut client, &key, &headers).await > 6);
    // The newest version is not final at its own time, since the next one may have it, too.
    let newest = headers[6].timestamp_ms;
    assert_eq!(reason(&client.get(get_at(newest)).await.expect_err("it may change")), Reason::NotYet);
    assert_eq!(reason(&client.get(get_at(genesis - 1)).await.expect_err("before genesis")), Reason::NotFound);
    let error = client.time(v1::TimeRequest { time_ms: 0, ..v1::TimeRequest::default() }).await;
    assert_eq!(reason(&error.expect_err("before genesis")), Reason::NotFound);
    for (stamp, any_epoch) in [(Some(at(0, 1)), false), (None, true)] {
        let mut both = get_at(genesis);
        let read = both.read.as_mut().expect("it has options");
        (read.at, read.any_epoch) = (stamp, any_epoch);
        assert_eq!(reason(&client.get(both).await.expect_err("two names")), Reason::InvalidArgument);
    }

    // Every read with options knows times.
    let read = get_at(headers[2].timestamp_ms).read;
    let expected = client.get(get_at(headers[2].timestamp_ms)).await.expect("it is read").into_inner().read_at;
    let many = client.batch_get(v1::BatchGetRequest { keys: vec![bytes("a")], read }).await.expect("it is read");
    assert_eq!(many.into_inner().read_at, expected);
    let request = v1::RangeRequest { read, ..v1::RangeRequest::default() };
    let mut range = client.range(request).await.expect("it is served").into_inner();
    let mut end = None;
    while let Some(message) = range.message().await.expect("it is served") {
        end = message.end;
    }
    assert_eq!(end.expect("an end").read_at, expected);
    let read = read.map(|read| v1::ReadOptions { want_proof: false, ..read });
    let request = v1::HistoryRequest { key: bytes("a"), limit: 1, read };
    let mut history = client.history(request).await.expect("it is served").into_inner();
    let change = history.message().await.expect("it is served").expect("a change").change.expect("a change");
    assert_eq!(change.last_changed, expected);

    // A rollback changes the answer for the times of the versions that it removes, and no other.
    client.rollback(roll_back(3)).await.expect("rolled back");
    let after = timeline(&mut client).await;
    assert_eq!(after, headers[..4]);
    assert!(check(&mut client, &key, &after).await > 3);
    let (_, claim) = proven(&mut client, &key, newest).await;
    assert_eq!(claim.header.stamp, Stamp::new(0, 3), "dead versions do not count");
    client.commit(commit(vec![put("a", "new")], Vec::new())).await.expect("committed");
    let after = timeline(&mut client).await;
    assert_eq!(after.last().map(|header| header.stamp), Some(Stamp::new(1, 4)));
    check(&mut client, &key, &after).await;

    // A pruned version can't be read, and is proven all the same.
    let pruned = after[1].timestamp_ms;
    client.prune(prune_before(3)).await.expect("pruned");
    let (answer, claim) = proven(&mut client, &key, pruned).await;
    assert!(answer.is_final && claim.header.stamp.version.0 < 3, "{claim:?}");
    assert_eq!(reason(&client.get(get_at(pruned)).await.expect_err("it is pruned")), Reason::Pruned);
    let kept = client.get(get_at(after[3].timestamp_ms)).await.expect("it is kept").into_inner();
    assert_eq!(kept.read_at, Some(at(0, 3)));
    let old = client.get(get("a", Some(at(0, 3)))).await.expect("it is kept").into_inner();
    assert_eq!(kept.record, old.record);
}
