//! Lies that only an auditor can find: `vectors/audits.json`.
//!
//! Each log is signed, and its journals and state roots fit it. Each log except the sound ones
//! breaks exactly one rule of `docs/verification.md` section 8, as its name says.

mod common;

use std::collections::BTreeMap;

use common::{
    liar::{Liar, Told},
    vectors::{compare, stored, text},
};
use coppice_types::{Epoch, SessionId, ShardId, Stamp, Version};
use coppice_verify::{
    Question, Subject,
    check::{Answer, Claim, verify_answer},
    hash::{RecordBody, sha256},
    header::{Body, Header, Prune, Rollback},
    journal::{Entry, MergeEntry},
    keys::KeyChange,
    note::SignerKey,
    replay::{Audited, Ledger, audit},
};
use serde_json::{Value, json};

/// A log, with the first wrong entry and the number of the broken rule; `None` for a sound log.
struct Case {
    name: &'static str,
    log: Vec<Audited>,
    broken: Option<(usize, u8)>,
}

const NOBODY: fn() -> String = || String::from("nobody");

fn next(ledger: &Ledger, body: Body) -> Header {
    ledger.next_header(ledger.head(), ledger.newest().state_root, &[], body)
}

fn prune(ledger: &Ledger, boundary: u64) -> Header {
    let body = Body::Prune(Prune { boundary: Version(boundary), principal: NOBODY(), reason: NOBODY() });
    next(ledger, body)
}

/// A rollback that names its target by the stamp `target`.
fn rollback(ledger: &Ledger, target: Stamp) -> Header {
    let mut epochs = ledger.epochs.clone();
    let (before, real) = (ledger.head(), ledger.epochs.stamp_of(target.version));
    let stamp = Stamp { epoch: before.epoch.next(), version: target.version };
    epochs.roll_back(stamp.epoch, target.version);
    let body = Body::Rollback(Rollback { target, head_before: before, principal: NOBODY(), reason: NOBODY() });
    let root = ledger.versions[&real].header.state_root;
    let header = ledger.next_header(stamp, root, &[], body);
    Header { epochs_root: epochs.root(), epoch_pairs: epochs.pairs().len() as u32, ..header }
}

/// Three versions with one record each.
fn short() -> Liar {
    let mut liar = Liar::new();
    for key in [b"a", b"b", b"z"] {
        let shard = u32::from(key == b"z");
        liar.commit(&[Told::of(shard, &[key])], |_| {});
    }
    liar
}

/// A log with every kind of event.
fn sound() -> Liar {
    let mut liar = Liar::new();
    let fill = |liar: &mut Liar, versions: std::ops::Range<u32>| {
        for version in versions {
            let key = |shard: u32, item: u32| {
                format!("{}{:02}", if shard == 0 { 'a' } else { 'z' }, (version * 7 + item * 3) % 40).into_bytes()
            };
            let list = |shard: u32| (shard, (0..4).map(|item| (key(shard, item), body(version + item))).collect());
            let session = Some((SessionId([3; 16]), u64::from(version) + 1));
            let batches = [
                Told { session, shards: vec![list(0), list(1)] },
                Told { session: None, shards: vec![list(version % 2)] },
                Told::default(),
            ];
            liar.commit_merging(&batches, true, |_| {});
        }
    };
    fill(&mut liar, 0..14);
    liar.honestly(|ledger| ledger.prune(Version(3)));
    liar.honestly(|ledger| ledger.rotate(&[8; 32]));
    liar.honestly(|ledger| ledger.roll_back(Version(9)));
    fill(&mut liar, 20..24);
    liar.append(|ledger| next(ledger, Body::Other { kind: 9, bytes: b"of a kind to come".to_vec() }));
    liar.honestly(|ledger| ledger.prune(Version(9)));
    liar.honestly(|ledger| ledger.roll_back(Version(9)));
    fill(&mut liar, 30..33);
    liar
}

fn body(number: u32) -> RecordBody {
    if number.is_multiple_of(5) { RecordBody::Tombstone } else { RecordBody::put(format!("{number}").as_bytes()) }
}

/// A log whose last entry breaks this rule.
fn last(name: &'static str, rule: u8, lie: impl FnOnce(&mut Liar)) -> Case {
    let mut liar = short();
    lie(&mut liar);
    let log = liar.log();
    Case { name, broken: Some((log.len() - 1, rule)), log }
}

fn headers() -> Vec<Case> {
    let other = |kind: u8| Body::Other { kind, bytes: Vec::new() };
    let beyond = |ledger: &Ledger| Stamp { epoch: Epoch(0), version: ledger.head().version.next() };
    vec![
        last("a header of kind 5 that moves the head", 2, |liar| {
            liar.append(|ledger| ledger.next_header(beyond(ledger), ledger.newest().state_root, &[], other(5)));
        }),
        last("a header of kind 9 with another state root", 2, |liar| {
            liar.append(|ledger| ledger.next_header(ledger.head(), sha256(b"other"), &[], other(9)));
        }),
        last("a header of kind 9 with another shard map", 2, |liar| {
            liar.append(|ledger| Header { shard_map: sha256(b"other"), ..next(ledger, other(9)) });
        }),
        last("a header of kind 9 with other epochs", 2, |liar| {
            liar.append(|ledger| Header { epochs_root: sha256(b"other"), ..next(ledger, other(9)) });
        }),
        last("a prune with another state root", 2, |liar| {
            liar.append(|ledger| Header { state_root: sha256(b"other"), ..prune(ledger, 1) });
        }),
        last("a rollback with another shard map", 2, |liar| {
            liar.append(|ledger| Header { shard_map: sha256(b"other"), ..rollback(ledger, Stamp::new(0, 2)) });
        }),
        last("a prune that is not counted", 2, |liar| {
            liar.honestly(|ledger| ledger.prune(Version(1)));
            liar.append(|ledger| Header { admin_sequence: 1, ..prune(ledger, 2) });
        }),
        last("a commit that leaves a version out", 2, |liar| {
            let mut stamp = beyond(&liar.ledger);
            stamp.version = stamp.version.next();
            liar.append(|ledger| ledger.next_header(stamp, ledger.newest().state_root, &[], Body::Commit));
        }),
        last("a time before that of the entry before", 2, |liar| {
            liar.append(|ledger| Header { timestamp_ms: 1, ..next(ledger, other(9)) });
        }),
        last("a rollback that names its target by another epoch", 3, |liar| {
            liar.honestly(|ledger| ledger.roll_back(Version(2)));
            liar.append(|ledger| rollback(ledger, Stamp::new(1, 1)));
        }),
        last("a rollback to another state root than its target's", 3, |liar| {
            liar.append(|ledger| Header { state_root: sha256(b"other"), ..rollback(ledger, Stamp::new(0, 2)) });
        }),
        last("a rollback to below the boundary of a prune", 4, |liar| {
            liar.honestly(|ledger| ledger.prune(Version(2)));
            liar.append(|ledger| rollback(ledger, Stamp::new(0, 1)));
        }),
        last("a prune to the boundary of the one before", 4, |liar| {
            liar.honestly(|ledger| ledger.prune(Version(2)));
            liar.append(|ledger| prune(ledger, 2));
        }),
        last("a prune to below the boundary of the one before", 4, |liar| {
            liar.honestly(|ledger| ledger.prune(Version(2)));
            liar.append(|ledger| prune(ledger, 1));
        }),
        last("a prune to version 0", 4, |liar| liar.append(|ledger| prune(ledger, 0))),
        last("a key change numbered 2 before any other", 5, |liar| change_key(liar, 2, 7, 8)),
        last("a key change from a key that is not the ledger's", 5, |liar| change_key(liar, 1, 9, 8)),
        last("a key change to an earlier key", 5, |liar| {
            liar.honestly(|ledger| ledger.rotate(&[8; 32]));
            change_key(liar, 2, 8, 7);
        }),
        last("epochs that keep a pair that the rollback removes", 6, |liar| {
            liar.honestly(|ledger| ledger.roll_back(Version(2)));
            liar.append(|ledger| {
                let pairs =
                    [ledger.epochs.pairs(), &[coppice_verify::epochs::Pair { epoch: Epoch(2), base: Version(1) }]];
                let leaves: Vec<_> = pairs.concat().iter().map(coppice_verify::epochs::Pair::hash).collect();
                let header = rollback(ledger, Stamp::new(0, 1));
                Header { epochs_root: coppice_verify::merkle::mth(&leaves), epoch_pairs: 3, ..header }
            });
        }),
        last("another number of epoch pairs than there are", 6, |liar| {
            liar.append(|ledger| Header { epoch_pairs: 3, ..rollback(ledger, Stamp::new(0, 1)) });
        }),
    ]
}

fn change_key(liar: &mut Liar, number: u32, old: u8, new: u8) {
    let key = |seed: u8| SignerKey::from_seed("ledger.example/x", &[seed; 32]).expect("a name");
    liar.append(|ledger| next(ledger, Body::Key(KeyChange::sign(number, &ledger.cluster, &key(old), &key(new)))));
}

fn journals() -> Vec<Case> {
    let merge = |shard: u32| MergeEntry {
        shard: ShardId(shard),
        inputs: vec![sha256(b"a"), sha256(b"b")],
        output: sha256(b"c"),
    };
    let numbered = |number: u64| Told { session: Some((SessionId([5; 16]), number)), ..Told::of(0, &[b"c"]) };
    let put = |key: &[u8], value: usize| (key.to_vec(), RecordBody::put(&vec![b'v'; value]));
    let told = |shards| Told { session: None, shards };
    let batch = || [Told::of(0, &[b"c"])];
    vec![
        last("a journal without one of its entries", 7, |liar| {
            liar.commit(&[Told::of(0, &[b"c"]), Told::of(0, &[b"d"])], |_| {});
            liar.newest().journal.pop();
        }),
        last("an event before a batch", 8, |liar| {
            liar.commit(&batch(), |journal| journal.insert(0, Entry::Merge(merge(0))));
        }),
        last("number 0 of a session", 8, |liar| liar.commit(&[numbered(0)], |_| {})),
        last("a number of a session twice", 8, |liar| liar.commit(&[numbered(4), numbered(4)], |_| {})),
        last("a batch on an unknown shard", 9, |liar| {
            liar.commit(&[Told::of(7, &[b"c"])], |_| {});
        }),
        last("a merge on an unknown shard", 9, |liar| {
            liar.commit(&batch(), |journal| journal.push(Entry::Merge(merge(7))));
        }),
        last("an operation list that is not kept", 10, |liar| {
            liar.commit(&batch(), |_| {});
            liar.newest().lists.clear();
        }),
        last("another operation list than was committed", 10, |liar| {
            liar.commit(&batch(), |_| {});
            let lists = liar.newest().lists.get_mut(&ShardId(0)).expect("the shard was written to");
            *lists[0].last_mut().expect("a list has a count") ^= 1;
        }),
        last("a key in the shard below its own", 11, |liar| liar.commit(&[Told::of(0, &[b"z"])], |_| {})),
        last("a key in the shard above its own", 11, |liar| liar.commit(&[Told::of(1, &[b"a"])], |_| {})),
        last("the bound of two shards in the one below", 11, |liar| liar.commit(&[Told::of(0, &[b"m"])], |_| {})),
        last("an empty operation list", 11, |liar| liar.commit(&[told(vec![(0, Vec::new())])], |_| {})),
        last("an empty key", 12, |liar| liar.commit(&[told(vec![(0, vec![put(b"", 1)])])], |_| {})),
        last("a key of 21 bytes, where 20 are the limit", 12, |liar| {
            liar.commit(&[told(vec![(0, vec![put(&[b'k'; 21], 1)])])], |_| {});
        }),
        last("a value of 65 bytes, where 64 are the limit", 12, |liar| {
            liar.commit(&[told(vec![(0, vec![put(b"k", 65)])])], |_| {});
        }),
        last("a batch of 102 bytes on two shards, where 100 are the limit", 12, |liar| {
            liar.commit(&[told(vec![(0, vec![put(b"k", 50)]), (1, vec![put(b"z", 50)])])], |_| {});
        }),
        last("a merge of unknown trees", 13, |liar| {
            liar.commit(&batch(), |journal| journal.push(Entry::Merge(merge(0))));
        }),
        merged_otherwise(),
        last("five trees, where four are the limit", 14, |liar| {
            for version in 0..5_u8 {
                let keys: Vec<Vec<u8>> = (0..8).map(|item| vec![b'a' + version, item]).collect();
                liar.commit(&[Told::of(0, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>())], |_| {});
            }
        }),
        state_of_others(),
    ]
}

/// A merge whose recorded output does not follow from its inputs.
fn merged_otherwise() -> Case {
    let mut liar = Liar::new();
    for version in 0..40_u8 {
        let keys: Vec<Vec<u8>> = (0..8).map(|item| vec![b'a', version, item]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = false;
        liar.commit_merging(&[Told::of(0, &keys)], true, |journal| {
            if let Some(Entry::Merge(merge)) = journal.last_mut() {
                (found, merge.output) = (true, sha256(b"other"));
            }
        });
        if found {
            let log = liar.log();
            return Case {
                name: "a merge with another output than its inputs give",
                broken: Some((log.len() - 1, 13)),
                log,
            };
        }
    }
    panic!("40 full trees are merged")
}

/// A state with a record that differs from the journal's.
fn state_of_others() -> Case {
    last("another state than the batches give", 15, |liar| {
        liar.commit(&[Told::of(0, &[b"c"])], |_| {});
        let mut other = short();
        other.commit(&[Told::of(0, &[b"d"])], |_| {});
        let root = other.ledger.newest().state_root;
        let header = liar.ledger.headers.last_mut().expect("a commit");
        header.state_root = root;
    })
}

/// A lie in a version that was rolled back does not count, since nobody can read that version.
fn rolled_back() -> Case {
    let mut liar = short();
    liar.commit(&[Told::of(0, &[b"z"])], |_| {});
    liar.honestly(|ledger| ledger.roll_back(Version(3)));
    Case { name: "a wrong version that was rolled back", log: liar.log(), broken: None }
}

fn cases() -> Vec<Case> {
    let whole = Case { name: "a sound ledger", log: sound().log(), broken: None };
    [vec![whole, rolled_back()], headers(), journals()].into_iter().flatten().collect()
}

#[test]
fn audits() {
    let cases = cases().into_iter().map(|case| {
        let entry = |entry: &Audited| {
            let list = |list: &Vec<u8>| text(list);
            let lists: BTreeMap<String, Vec<String>> = entry
                .lists
                .iter()
                .map(|(shard, lists)| (shard.0.to_string(), lists.iter().map(list).collect()))
                .collect();
            let journal: Vec<String> = entry.journal.iter().map(list).collect();
            json!({ "header": text(&entry.header), "journal": journal, "lists": lists })
        };
        let (sequence, rule) = case.broken.unzip();
        json!({
            "name": case.name, "log": case.log.iter().map(entry).collect::<Vec<_>>(),
            "sound": case.broken.is_none(), "sequence": sequence, "rule": rule,
        })
    });
    compare(
        "audits.json",
        &json!({
            "about": "Whole logs, with the journal entries of each commit and the operation lists that each shard keeps of it. The numbers of rules are those of section 8; `sequence` is the entry that breaks the rule. Hashes and state roots fit each other in all of them, but where a rule is about that.",
            "cases": cases.collect::<Vec<_>>(),
        }),
    );
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("a text")).expect("hex")
}

fn list(value: &Value) -> Vec<Vec<u8>> {
    value.as_array().expect("a list").iter().map(bytes).collect()
}

/// The naive auditor, which follows the list of rules, finds what the vectors say.
#[test]
fn every_stored_log_is_judged_as_the_page_says() {
    let vectors = ["audits.json", "ledger-audits.json"].map(stored);
    let cases: Vec<&Value> = vectors.iter().flat_map(|file| file["cases"].as_array().expect("a list")).collect();
    assert!(cases.len() > 80, "{}", cases.len());
    for case in cases {
        let entry = |entry: &Value| {
            let lists = entry["lists"].as_object().expect("an object").iter();
            let lists = lists.map(|(shard, lists)| (ShardId(shard.parse().expect("a number")), list(lists)));
            Audited { header: bytes(&entry["header"]), journal: list(&entry["journal"]), lists: lists.collect() }
        };
        let log: Vec<Audited> = case["log"].as_array().expect("a list").iter().map(entry).collect();
        let found = audit(&log).err();
        let numbers = found.as_ref().map(|found| (found.sequence as u64, u64::from(found.rule)));
        let expected = case["sequence"].as_u64().zip(case["rule"].as_u64());
        assert_eq!(numbers, expected, "{}: {found:?}", case["name"]);
        assert_eq!(found.is_none(), case["sound"] == json!(true), "{}", case["name"]);
    }
}

/// Each of the two files alone is correct and signed, so a reader of only one can't see the lie.
/// The audit refuses the ledger.
#[test]
fn a_key_in_the_wrong_shard_is_found_by_the_audit_alone() {
    let mut liar = Liar::new();
    liar.commit(&[Told::of(0, &[b"z"])], |_| {});
    let (ledger, stamp) = (&liar.ledger, Stamp::new(0, 1));
    let key = ledger.key.verifier();
    let batch = ledger.versions[&stamp].journal[0].hash();
    let receipt = ledger.receipt(stamp, 0).encode().expect("it fits");
    let question = Question::about(Subject::Batch(batch));
    verify_answer(&receipt, key, None, &question).expect("the batch that put `z` was committed");
    let absence = ledger.prove_keys(stamp, &[b"z"], true).encode().expect("it fits");
    let question = Question::about(Subject::Keys(vec![b"z"]));
    let verified = verify_answer(&absence, key, None, &question).expect("`z` is absent at that version");
    let Claim::Query(claim) = &verified.claim else { panic!("a query") };
    assert!(matches!(&claim.answer, Answer::Keys(keys) if keys[0].1.is_none()));
    let finding = audit(&liar.log()).expect_err("the audit refuses the two together");
    assert_eq!((finding.sequence, finding.rule), (1, 11), "{finding}");
}
