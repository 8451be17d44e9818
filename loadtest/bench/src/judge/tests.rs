//! Honest answers of a model ledger, then the same posts with every byte changed.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use coppice_types::{Change, ClusterId, Operation, Params, SessionId, Stamp};
use coppice_verify::{
    hash::file_checksum,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

use super::*;

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A ledger with one account, changed twice in a session.
fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
    for number in 1..3 {
        let operation =
            |key: &[u8]| Operation { key: key.to_vec().into(), change: Change::Put(vec![number; 3].into()) };
        let session = Some((SessionId([6; 16]), u64::from(number)));
        let commit = Commit { session, operations: vec![operation(b"alice"), operation(b"zoe")], ..Commit::default() };
        ledger.commit(&[commit]).expect("a batch");
    }
    ledger
}

fn judge(ledger: &Ledger) -> Judge {
    Judge { key: ledger.key.verifier().clone(), evidence: None, seen: Mutex::default() }
}

fn record(key: &[u8]) -> Value {
    let changed = json!({ "epoch": "0", "version": "2" });
    json!({ "key": base64(key), "found": true, "value": base64(&[2; 3]), "lastChanged": changed })
}

fn keys(ledger: &Ledger) -> Value {
    let proof = ledger.prove_keys(Stamp::new(0, 2), &[b"alice"], false).encode().expect("a small file");
    let read_at = json!({ "epoch": "0", "version": "2" });
    json!({ "keys": [base64(b"alice")], "records": [record(b"alice")], "readAt": read_at, "proof": base64(&proof) })
}

fn range(ledger: &Ledger) -> Value {
    let proof = ledger.prove_range(Stamp::new(0, 2), b"a", Some(b"alice\0"), false).encode().expect("a small file");
    let read_at = json!({ "epoch": "0", "version": "2" });
    json!({ "low": base64(b"a"), "limit": 1, "records": [record(b"alice")], "more": true, "readAt": read_at, "proof": base64(&proof) })
}

fn commit(ledger: &Ledger) -> Value {
    let receipt = ledger.receipt(Stamp::new(0, 2), 0).encode().expect("a small file");
    let put = |key: &[u8]| json!({ "key": base64(key), "put": base64(&[2; 3]) });
    json!({
        "genesis": base64(&ledger.headers[0].encode()), "sessionId": base64(&[6; 16]), "number": "2",
        "operations": [put(b"alice"), put(b"zoe")], "stamp": { "epoch": "0", "version": "2" },
        "header": base64(&ledger.newest().encode()), "receipt": base64(&receipt),
    })
}

fn told(judge: &Judge, kind: Kind, post: &Value) -> StatusCode {
    judge.answer(kind, post.to_string().as_bytes()).0
}

#[test]
fn honest_answers_are_believed_and_counted() {
    let ledger = ledger();
    let judge = judge(&ledger);
    assert_eq!(told(&judge, Kind::Keys, &keys(&ledger)), StatusCode::NO_CONTENT);
    assert_eq!(told(&judge, Kind::Range, &range(&ledger)), StatusCode::NO_CONTENT);
    assert_eq!(told(&judge, Kind::Commit, &commit(&ledger)), StatusCode::NO_CONTENT);
    let counts = json!({ "event": "counts", "reads": 2, "commits": 1, "unproven": 0, "bad": 0, "first_bad": "" });
    assert_eq!(judge.counts(), counts);
}

/// A coordinator that lost its shards right after a commit makes no receipt.
#[test]
fn a_commit_without_a_receipt_is_unproven_and_not_a_lie() {
    let ledger = ledger();
    let judge = judge(&ledger);
    let mut post = commit(&ledger);
    post["receipt"] = json!("");
    assert_eq!(told(&judge, Kind::Commit, &post), StatusCode::FAILED_DEPENDENCY);
    let counts = judge.counts();
    assert_eq!((&counts["unproven"], &counts["bad"]), (&json!(1), &json!(0)));
}

#[test]
fn every_flipped_byte_of_a_proof_is_found() {
    let ledger = ledger();
    for (kind, honest, field) in [
        (Kind::Keys, keys(&ledger), "proof"),
        (Kind::Range, range(&ledger), "proof"),
        (Kind::Commit, commit(&ledger), "receipt"),
        (Kind::Commit, commit(&ledger), "header"),
    ] {
        let proof = STANDARD.decode(honest[field].as_str().expect("text")).expect("base64");
        let judge = judge(&ledger);
        let sealed = field != "header";
        let content = if sealed { proof.len() - 8 } else { proof.len() };
        for at in 0..content {
            let mut flipped = proof.clone();
            flipped[at] ^= 1;
            if sealed {
                // A liar repairs the checksum.
                let checksum = file_checksum(&flipped[..content]).to_le_bytes();
                flipped[content..].copy_from_slice(&checksum);
            }
            let mut post = honest.clone();
            post[field] = json!(base64(&flipped));
            assert_eq!(told(&judge, kind, &post), StatusCode::UNPROCESSABLE_ENTITY, "{kind:?} {field} byte {at}");
        }
        assert_eq!(judge.counts()["bad"], json!(content));
    }
}

#[test]
fn an_answer_that_its_proof_does_not_cover_is_bad() {
    let ledger = ledger();
    let judge = judge(&ledger);
    for (kind, honest, at, lie) in [
        (Kind::Keys, keys(&ledger), "/records/0/value", json!(base64(b"more"))),
        (Kind::Keys, keys(&ledger), "/records/0/found", json!(false)),
        (Kind::Keys, keys(&ledger), "/records/0/lastChanged/version", json!("1")),
        (Kind::Keys, keys(&ledger), "/readAt/version", json!("1")),
        (Kind::Keys, keys(&ledger), "/keys/0", json!(base64(b"bob"))),
        (Kind::Keys, keys(&ledger), "/proof", json!("")),
        (Kind::Range, range(&ledger), "/more", json!(false)),
        (Kind::Range, range(&ledger), "/records", json!([])),
        (Kind::Commit, commit(&ledger), "/operations/1/put", json!(base64(b"less"))),
        (Kind::Commit, commit(&ledger), "/number", json!("1")),
    ] {
        let mut post = honest;
        *post.pointer_mut(at).expect("the field is there") = lie;
        assert_eq!(told(&judge, kind, &post), StatusCode::UNPROCESSABLE_ENTITY, "{kind:?} {at}");
    }
    assert_eq!(told(&judge, Kind::Keys, &json!("nothing")), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(judge.counts()["bad"], json!(11));
}

#[test]
fn two_roots_of_the_same_size_are_a_lie() {
    let mut seen = Seen::default();
    let checkpoint = |size, root| Checkpoint { origin: "model".to_owned(), size, root: Digest([root; 32]) };
    seen.note(&checkpoint(5, 1)).expect("the first");
    seen.note(&checkpoint(6, 2)).expect("it grew");
    seen.note(&checkpoint(5, 1)).expect("known");
    seen.note(&checkpoint(5, 2)).expect_err("another root");
}
