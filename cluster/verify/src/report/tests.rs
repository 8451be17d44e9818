//! Reports say what bytes are, and control nothing. `cli/tests/verify.rs` has their fields.

use alloc::string::ToString;

use coppice_types::{ClusterId, Params, text::is_control};
use serde_json::{Value, json};

use super::*;
use crate::{check::verify, policy::Cosigned, replay::Ledger, shard_map::ShardMap};

fn parsed(report: &str) -> Value {
    assert!(!report.chars().any(is_control), "{report:?}");
    serde_json::from_str(report).expect("a report is JSON")
}

#[test]
fn every_character_comes_back_and_none_controls_a_terminal() {
    for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
        let text = c.to_string();
        let report = words(|object| object.text("text", &text));
        assert_eq!(parsed(&report)["text"], text);
    }
}

#[test]
fn bytes_are_written_in_the_encoding_that_is_asked_for() {
    let write = |encoding, bytes: &[u8]| {
        let report = json::object(encoding, |object| {
            let encoding = object.bytes("bytes", bytes);
            object.text("encoding", encoding);
        });
        report.map(|report| parsed(&report))
    };
    let text = |text: &str, encoding: &str| Some(json!({ "bytes": text, "encoding": encoding }));
    assert_eq!(write(None, "\"ä\\\u{1b}".as_bytes()), text("\"ä\\\u{1b}", "utf8"));
    assert_eq!(write(None, b"\xff\0"), text("0xff00", "hex"));
    assert_eq!(write(Some(Encoding::Hex), b"ab"), text("0x6162", "hex"));
    assert_eq!(write(Some(Encoding::Utf8), b"ab"), text("ab", "utf8"));
    assert_eq!(write(Some(Encoding::Utf8), b"\xff"), None);
}

#[test]
fn objects_and_lists_nest() {
    let report = words(|object| {
        object.null("nothing");
        object.flag("flag", true);
        object.number("largest", u64::MAX);
        object.list("empty", [0_u32; 0], |object, item| object.number("item", item));
        object.list("list", [1_u32, 2], |object, item| object.number("item", item));
        object.optional("there", Some(3_u32), |object, item| object.number("item", item));
        object.optional("not", None::<u32>, |object, item| object.number("item", item));
        object.object("last", |_| ());
    });
    let expected = json!({
        "nothing": null, "flag": true, "largest": u64::MAX, "empty": [], "list": [{ "item": 1 }, { "item": 2 }],
        "there": { "item": 3 }, "not": null, "last": {},
    });
    assert_eq!(parsed(&report), expected);
}

#[test]
fn a_time_is_shown_with_its_versions() {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &Params::default(), map);
    ledger.commit(&[]).expect("a version");
    let shown = |time_ms| {
        let file = ledger.prove_time(time_ms).encode().expect("it fits");
        let verified = verify(&file, ledger.key.verifier(), None).expect("an honest proof");
        parsed(&proven(&verified, None, None).expect("it has no bytes"))
    };
    let (genesis, first) = (1_700_000_000_000_u64, 1_700_000_001_000_u64);
    let report = shown(genesis + 1);
    assert_eq!(
        (&report["kind"], &report["time_ms"], &report["final"]),
        (&json!("time"), &json!(genesis + 1), &json!(true))
    );
    assert_eq!((&report["version"], &report["timestamp_ms"]), (&json!(0), &json!(genesis)));
    assert_eq!(report["next"], json!({ "epoch": 0, "version": 1, "timestamp_ms": first }));
    let report = shown(u64::MAX);
    assert_eq!((&report["version"], &report["time_ms"]), (&json!(1), &json!(u64::MAX)));
    assert_eq!((&report["next"], &report["final"]), (&Value::Null, &json!(false)));
}

#[test]
fn witnesses_are_named_under_a_policy_alone() {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &Params::default(), map);
    let file = ledger.standing(1, 1).encode().expect("it fits");
    let verified = verify(&file, ledger.key.verifier(), None).expect("an honest proof");
    let cosigned = Cosigned { witness: b"w\xff\x1b".to_vec(), key_name: "w.example/k".into(), time: 7 };
    let examined = Examined {
        checkpoint: verified.checkpoint.clone(),
        log: ledger.key.verifier().clone(),
        cosignatures: [cosigned].into(),
        quorum: true,
    };
    let cosignatures = |examined| {
        let report = proven(&verified, examined, None).expect("it has no bytes");
        parsed(&report)["cosignatures"].clone()
    };
    assert_eq!(cosignatures(None), Value::Null);
    let named = json!([{ "witness": "w\u{fffd}\u{1b}", "key_name": "w.example/k", "time": 7 }]);
    assert_eq!(cosignatures(Some(&examined)), named);
}
