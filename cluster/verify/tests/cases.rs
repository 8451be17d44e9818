//! Files that are refused though a ledger signed them, and files that are valid though they look
//! odd: `vectors/cases.json`.
//!
//! A ledger whose own key signs a lie makes each refused file. So no signature or hash is wrong;
//! only the rule in the file's name is broken.

mod common;

use std::borrow::Cow;

use common::{
    Sample,
    lies::{self, encode, leaf, no_records, shard, state_of, with_a_record},
    mldsa::MlDsaWitness,
    params,
    vectors::{compare, stored, text},
};
use coppice_types::{Params, Stamp, Version};
use coppice_verify::{
    check::{Question, Subject, verify_answer, verify_under},
    checkpoint::Checkpoint,
    cosignature::{Cosigner, add_lines, mldsa44_message},
    header::{Body, Header, Prune, Rollback},
    keys::KeyChange,
    note::{SignerKey, VerifierKey},
    policy::Policy,
    proof::{Entry, NodePart, Proof, ProofFile, Subtree, Tree},
    replay::Ledger,
    verify,
};
use serde_json::json;

/// A file, the key or policy to trust, and the step that refuses it.
struct Case {
    name: &'static str,
    file: Vec<u8>,
    trust: Trust,
    step: Option<&'static str>,
}

enum Trust {
    Key(VerifierKey),
    Policy(String),
}

fn key() -> VerifierKey {
    lies::ledger(&[]).key.verifier().clone()
}

fn refused(name: &'static str, step: &'static str, file: &ProofFile<'_>) -> Case {
    Case { name, file: encode(file), trust: Trust::Key(key()), step: Some(step) }
}

fn valid(name: &'static str, file: &ProofFile<'_>) -> Case {
    Case { name, file: encode(file), trust: Trust::Key(key()), step: None }
}

fn trees() -> Vec<Case> {
    let one = |trees: Vec<Tree<'static>>| state_of(vec![shard(0, b"", None, trees)], &[b"k"]);
    let long = [b'k'; 513];
    let child = |separator: &[u8], keys: &[&[u8]]| Entry::Child {
        separator: Cow::Owned(separator.to_vec()),
        child: leaf(0, keys).root,
    };
    let two_leaves = |entries: u64, second: &[u8]| {
        let entries_of = vec![(0, child(b"", &[b"a", b"k"])), (1, child(second, &[b"z"]))];
        let node = NodePart { count: 2, entries: entries_of, hashes: Vec::new() };
        one(vec![Tree { level: 1, entries, root: Subtree::Expanded(node) }])
    };
    vec![
        valid("a tree of two leaves", &two_leaves(3, b"z")),
        refused("an empty leaf of a tree with 5 entries", "tree", &one(vec![leaf(5, &[])])),
        refused(
            "the hash of an empty leaf, of a tree with 5 entries",
            "tree",
            &one(vec![no_records(5), leaf(1, &[b"k"])]),
        ),
        refused("a tree without entries whose root holds a record", "tree", &one(vec![leaf(0, &[b"k"])])),
        refused("a leaf of one record, of a tree with 2 entries", "tree", &one(vec![leaf(2, &[b"k"])])),
        refused("three records shown of a tree with 2 entries", "tree", &two_leaves(2, b"z")),
        refused("all records shown of a tree with 4 entries", "tree", &two_leaves(4, b"z")),
        refused("a shard of no trees", "format", &one(Vec::new())),
        refused("a record without a key", "format", &one(vec![leaf(2, &[b"", b"k"])])),
        refused("a record with a key of 513 bytes", "format", &one(vec![leaf(2, &[b"k", &long])])),
        refused("a separator of 513 bytes", "format", &two_leaves(3, &[b'y'; 513])),
    ]
}

fn shards() -> Vec<Case> {
    let tree = || vec![leaf(1, &[b"k"])];
    let two = |first: (&[u8], Option<&[u8]>), second: (&[u8], Option<&[u8]>), keys: &[&[u8]]| {
        let empty = vec![no_records(0)];
        state_of(vec![shard(0, first.0, first.1, tree()), shard(1, second.0, second.1, empty)], keys)
    };
    let mut none = shard(0, b"", None, tree());
    none.shard.0 = u32::MAX;
    vec![
        valid("two shards that join", &two((b"", Some(b"m")), (b"m", None), &[b"k", b"z"])),
        refused(
            "a shard with a bound of 513 bytes",
            "format",
            &two((b"", Some(&[b'm'; 513])), (b"m", None), &[b"k", b"z"]),
        ),
        refused(
            "a shard that ends where it begins",
            "format",
            &two((b"", Some(b"m")), (b"m", Some(b"m")), &[b"k", b"z"]),
        ),
        refused("a shard of the number that means none", "format", &state_of(vec![none], &[b"k"])),
        refused("shards that overlap", "state", &two((b"", Some(b"m")), (b"l", None), &[b"k", b"z"])),
        refused("shards with a gap", "state", &two((b"", Some(b"m")), (b"n", None), &[b"k", b"z"])),
        refused(
            "a first shard that begins above the empty key",
            "state",
            &two((b"a", Some(b"m")), (b"m", None), &[b"k", b"z"]),
        ),
        refused("a last shard that ends", "state", &two((b"", Some(b"m")), (b"m", Some(b"zz")), &[b"k", b"z"])),
        refused("a shard without end before the last", "state", &two((b"", None), (b"m", None), &[b"k"])),
    ]
}

fn headers() -> Vec<Case> {
    let who = || (String::from("nobody"), String::from("no reason"));
    let prune = |boundary: u64| {
        let (principal, reason) = who();
        Body::Prune(Prune { boundary: Version(boundary), principal, reason })
    };
    let other = |kind: u8| Body::Other { kind, bytes: b"opaque".to_vec() };
    let next = |ledger: &Ledger, body| ledger.next_header(ledger.head(), ledger.newest().state_root, &[], body);
    let journal = |ledger: &Ledger, body| {
        let journal = &ledger.versions[&Stamp::new(0, 1)].journal;
        ledger.next_header(ledger.head(), ledger.newest().state_root, journal, body)
    };
    let rollback = |ledger: &Ledger, target: Stamp, before: Stamp, epoch: u64| {
        let (principal, reason) = who();
        let body = Body::Rollback(Rollback { target, head_before: before, principal, reason });
        let stamp = Stamp { epoch: coppice_types::Epoch(epoch), version: target.version };
        ledger.next_header(stamp, ledger.newest().state_root, &[], body)
    };
    let sixty = || Body::Other { kind: 4, bytes: vec![0; 65_300] };
    vec![
        valid("a newest header of kind 5", &lies::under(|ledger| next(ledger, other(5)))),
        valid("a newest header of kind 8", &lies::under(|ledger| next(ledger, other(8)))),
        valid("a newest header of kind 255", &lies::under(|ledger| next(ledger, other(255)))),
        valid(
            "a newest header of 65,534 bytes",
            &lies::under(|ledger| {
                let mut header = next(ledger, sixty());
                let missing = coppice_verify::header::HEADER_BYTES_MAX - header.encode().len();
                if let Body::Other { bytes, .. } = &mut header.body {
                    bytes.resize(bytes.len() + missing, 0);
                }
                header
            }),
        ),
        refused("a journal of a header of kind 5", "newest_header", &lies::under(|ledger| journal(ledger, other(5)))),
        refused("a journal of a header of kind 9", "newest_header", &lies::under(|ledger| journal(ledger, other(9)))),
        refused(
            "a prune with admin sequence 0",
            "newest_header",
            &lies::under(|ledger| Header { admin_sequence: 0, ..next(ledger, prune(1)) }),
        ),
        refused("a prune above the head", "newest_header", &lies::under(|ledger| next(ledger, prune(2)))),
        refused(
            "a rollback with admin sequence 0",
            "newest_header",
            &lies::under(|ledger| Header {
                admin_sequence: 0,
                ..rollback(ledger, Stamp::new(0, 1), Stamp::new(0, 1), 1)
            }),
        ),
        refused(
            "a rollback to a higher version of an older epoch",
            "newest_header",
            &lies::under(|ledger| rollback(ledger, Stamp::new(0, 9), Stamp::new(1, 5), 2)),
        ),
        refused(
            "a rollback to a lower version of a newer epoch",
            "newest_header",
            &lies::under(|ledger| rollback(ledger, Stamp::new(2, 1), Stamp::new(1, 5), 2)),
        ),
        refused(
            "a header without state leaves",
            "newest_header",
            &lies::under(|ledger| Header { state_leaves: 0, ..next(ledger, other(7)) }),
        ),
    ]
}

fn founding() -> Vec<Case> {
    let with = |change: &dyn Fn(&mut Params)| {
        let mut params = params();
        change(&mut params);
        lies::genesis_with(&params)
    };
    let mut strange = lies::ledger(&[]);
    let stranger = SignerKey::from_seed(strange.key.name(), &[8; 32]).expect("a name");
    let other_key = lies::log_of(strange.headers[0].encode(), &stranger);
    if let Body::Genesis(genesis) = &mut strange.headers[0].body {
        genesis.prefix = String::from("elsewhere.example");
    }
    let other_origin = lies::log_of(strange.headers[0].encode(), &strange.key);
    let by_stranger = Case {
        name: "genesis names another key than the one that signs",
        file: encode(&other_key),
        trust: Trust::Key(stranger.verifier().clone()),
        step: Some("newest_header"),
    };
    vec![
        valid("genesis", &with(&|_| {})),
        valid("genesis with the least capacity", &with(&|params| params.capacity = 8)),
        refused("genesis with capacity 0", "newest_header", &with(&|params| params.capacity = 0)),
        refused("genesis with capacity 7", "newest_header", &with(&|params| params.capacity = 7)),
        refused("genesis with keys of 513 bytes", "newest_header", &with(&|params| params.key_bytes_max = 513)),
        refused(
            "genesis with values of over 16 MiB",
            "newest_header",
            &with(&|params| {
                params.value_bytes_max = (16 << 20) + 1;
                (params.batch_bytes_max, params.message_bytes_max) = (32 << 20, 64 << 20);
            }),
        ),
        refused("genesis with a batch below a value", "newest_header", &with(&|params| params.batch_bytes_max = 1)),
        refused("genesis with 2 trees", "newest_header", &with(&|params| params.tree_limit = 2)),
        refused("genesis with 17 trees", "newest_header", &with(&|params| params.tree_limit = 17)),
        refused("genesis with nodes of three records", "newest_header", &with(&|params| params.node_bytes = 367)),
        refused(
            "genesis with a shard of the number that means none",
            "newest_header",
            &lies::genesis_with_shard_none(),
        ),
        refused("genesis names another origin", "newest_header", &other_origin),
        by_stranger,
    ]
}

fn keys() -> Vec<Case> {
    let mut hidden = with_a_record();
    let new = SignerKey::from_seed(hidden.key.name(), &[8; 32]).expect("a name");
    let change = KeyChange::sign(1, &hidden.cluster, &hidden.key, &new);
    let header = hidden.next_header(hidden.head(), hidden.newest().state_root, &[], Body::Key(change));
    // The old key goes on signing, as if it had not been changed.
    hidden.append(header);
    let mut changed = with_a_record();
    let (old, vkey) = (key(), key().to_string());
    changed.rotate(&[8; 32]);
    let file = encode(&changed.prove_keys(Stamp::new(0, 1), &[b"k", b"l"], true));
    let case = |name, trust| Case { name, file: file.clone(), trust, step: None };
    let elsewhere = SignerKey::from_seed("elsewhere.example/x", &[9; 32]).expect("a name");
    let of_another = format!("log {}\nquorum none\n", elsewhere.verifier());
    vec![
        refused(
            "a newest header that changes the key, hidden from a client that trusts the old one",
            "newest_header",
            &hidden.prove_keys(Stamp::new(0, 1), &[b"k"], true),
        ),
        case("a key change, shown to a client that trusts the old key", Trust::Key(old)),
        case("a key change, shown to a client that trusts the new key", Trust::Key(changed.key.verifier().clone())),
        case("a key change under a policy with the old key", Trust::Policy(format!("log {vkey}\nquorum none\n"))),
        case(
            "a key change under a policy with the new key",
            Trust::Policy(format!("log {}\nquorum none\n", changed.key.verifier())),
        ),
        Case { step: Some("checkpoint"), ..case("a policy of another log", Trust::Policy(of_another)) },
    ]
}

/// Files under policies whose quorum has ML-DSA keys. The keys of witnesses `m` and `e` have one
/// name.
fn mldsa() -> Vec<Case> {
    let ledger = with_a_record();
    let witness = MlDsaWitness::new("w.example", 1);
    let ed25519 = Cosigner::from_seed(witness.name, &[2; 32]).expect("a name");
    let other = Cosigner::from_seed("o.example", &[3; 32]).expect("a name");
    let checkpoint = ledger.checkpoint(ledger.headers.len() as u64);
    let (m, e, o) = (witness.vkey(), ed25519.verifier(), other.verifier());
    let keys = format!("witness m {m}\nwitness e {e}\nwitness o {o}\n");
    let case = |name, step, quorum: &str, lines: &[&String]| {
        let mut file = ledger.prove_keys(Stamp::new(0, 1), &[b"k", b"l"], true);
        let Proof::Query(proof) = &mut file.proof else { panic!("a query was asked") };
        let lines: Vec<String> = lines.iter().map(|line| (*line).clone()).collect();
        proof.log.checkpoint = add_lines(&proof.log.checkpoint, &lines).expect("lines").into();
        let policy = format!("log {}\n{keys}{quorum}\n", key());
        Case { name, file: encode(&file), trust: Trust::Policy(policy), step }
    };
    let sound = witness.cosign(&checkpoint, 7);
    let [of_ed25519, of_other] = [ed25519, other].map(|key| key.cosign(&checkpoint.text(), 7));
    let both = "group both all m e\nquorum both";
    let parties = "group party any m e\ngroup two 2 party o\nquorum two";
    let mut cases = vec![
        case("a witness with an ML-DSA key", None, "quorum m", &[&sound]),
        case("keys of both types under one name are two witnesses", None, both, &[&of_ed25519, &sound]),
        case("a quorum of both types, and only ML-DSA", Some("cosignatures"), both, &[&sound]),
        case("a quorum of both types, and only Ed25519", Some("cosignatures"), both, &[&of_ed25519]),
        case("a group joins keys of both types", None, parties, &[&sound, &of_other]),
        case("a group counts keys of both types once", Some("cosignatures"), parties, &[&of_ed25519, &sound]),
        case("an ML-DSA line of time 0", Some("cosignatures"), "quorum m", &[&witness.cosign(&checkpoint, 0)]),
    ];
    let bad = wrong_lines(&witness, &checkpoint);
    cases.extend(bad.iter().map(|(name, step, line)| case(name, Some(step), "quorum m", &[line])));
    let (_, _, flipped) = &bad[0];
    cases.push(case(
        "a wrong ML-DSA line that is not asked for",
        Some("checkpoint"),
        "quorum e",
        &[&of_ed25519, flipped],
    ));
    cases
}

/// Lines that are not the witness's on this checkpoint: names, steps, texts.
fn wrong_lines(witness: &MlDsaWitness, checkpoint: &Checkpoint) -> Vec<(&'static str, &'static str, String)> {
    let message = |name, time| mldsa44_message(name, time, checkpoint).expect("short names");
    let of = |message: &[u8]| witness.line(7, &witness.sign(message, b""));
    let own = message(witness.name, 7);
    let signature = witness.sign(&own, b"");
    let flipped = |bit: usize| {
        let mut flipped = signature.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        witness.line(7, &flipped)
    };
    // The places of hints are a set, and have one spelling. The first polynomial's number of them
    // is at 80.
    let (rest, hints) = signature.split_at(signature.len() - 84);
    assert!(hints[80] > 1 && hints[83] < 80, "there are two, and room for another");
    let mut swapped = hints.to_vec();
    swapped.swap(0, 1);
    let mut repeated = hints.to_vec();
    repeated.remove(79);
    repeated.insert(0, hints[0]);
    repeated[80..].iter_mut().for_each(|number| *number += 1);
    let [swapped, repeated] = [swapped, repeated].map(|hints| witness.line(7, &[rest, &hints].concat()));
    // The last byte of the index at which the part begins.
    let mut part = own.clone();
    let start = part.len() - 32 - 8 - 1;
    part[start] = 1;
    let ed25519 = format!("cosignature/v1\ntime 7\n{}", checkpoint.text()).into_bytes();
    let late = witness.line(1 << 63, &witness.sign(&message(witness.name, 1 << 63), b""));
    let with_more = [&signature[..], &[0]].concat();
    vec![
        ("an ML-DSA line with a flipped bit of the hash", "checkpoint", flipped(3)),
        ("an ML-DSA line with a flipped bit of the vector", "checkpoint", flipped(8 * 1000)),
        ("an ML-DSA line with a flipped bit of the hints", "checkpoint", flipped(8 * 2419)),
        ("an ML-DSA line with hints out of order", "checkpoint", swapped),
        ("an ML-DSA line with a hint twice", "checkpoint", repeated),
        ("an ML-DSA line that is a byte short", "checkpoint", witness.line(7, &signature[..2419])),
        ("an ML-DSA line that is a byte long", "checkpoint", witness.line(7, &with_more)),
        ("an ML-DSA line without a signature", "checkpoint", witness.line(7, b"")),
        ("an ML-DSA line with another time", "checkpoint", witness.line(8, &signature)),
        ("an ML-DSA line under another name", "checkpoint", of(&message("v.example", 7))),
        ("an ML-DSA line on a part of the log", "checkpoint", of(&part)),
        ("an ML-DSA line with the message of Ed25519", "checkpoint", of(&ed25519)),
        ("an ML-DSA line of a time of 2^63", "checkpoint", late),
        ("an ML-DSA line with a context", "checkpoint", witness.line(7, &witness.sign(&own, b"x"))),
        ("an ML-DSA line under another key id", "cosignatures", witness.line_of([1; 4], 7, &signature)),
    ]
}

fn epochs() -> Vec<Case> {
    let of = lies::pairs;
    let case = |name, stamp: (u64, u64), pairs: &[(u64, u64)], index, next| {
        refused(name, "epoch", &of(Stamp::new(stamp.0, stamp.1), pairs, index, next))
    };
    let standing = {
        let mut file = of(Stamp::new(3, 9), &[(0, 0), (2, 5), (3, 4)], 0, true);
        let Proof::Receipt(proof) = file.proof else { panic!("a receipt") };
        let pair = |(epoch, base): (u64, u64)| coppice_verify::epochs::Pair {
            epoch: coppice_types::Epoch(epoch),
            base: Version(base),
        };
        let ledger = with_a_record();
        let old = ledger.checkpoint(1);
        let entries = [ledger.headers[0].hash(), ledger.headers[1].hash(), {
            Header::decode(&proof.log.newest_header).expect("a header").hash()
        }];
        file.proof = Proof::Standing(coppice_verify::proof::StandingProof {
            path: coppice_verify::merkle::consistency_path(&entries, 1),
            log: proof.log,
            old_size: 1,
            old_root: old.root,
            pairs: [(0, 0), (2, 5), (3, 4)].map(pair).to_vec(),
        });
        file
    };
    vec![
        valid("a version below a rollback", &of(Stamp::new(1, 4), &[(0, 0), (1, 3)], 0, true)),
        case("a first pair with a base", (0, 9), &[(0, 3)], 0, false),
        case("a second pair of epoch 0", (1, 9), &[(0, 0), (0, 5), (1, 7)], 0, true),
        case("a next pair of an earlier epoch", (2, 9), &[(0, 0), (2, 5), (1, 7)], 0, true),
        case("a last pair of another epoch than the newest header's", (2, 9), &[(0, 0)], 0, false),
        case("a next pair of another epoch than the newest header's", (2, 9), &[(0, 0), (1, 5)], 0, true),
        case("a pair whose base is above the head", (1, 4), &[(0, 0), (1, 5)], 0, true),
        case("a version above the newest header's", (0, 0), &[(0, 0)], 0, false),
        refused("a standing proof with bases that fall", "standing", &standing),
    ]
}

/// A batch that puts `z` into the shard of the keys below `m`. It gives two files, neither of which
/// is wrong alone.
fn wrong_shard() -> Vec<Case> {
    let ledger = lies::wrong_shard();
    let stamp = Stamp::new(0, 1);
    vec![
        valid("a batch that wrote `z`, as its receipt says: see also the next", &ledger.receipt(stamp, 0)),
        valid("`z`, which that batch wrote elsewhere, is absent", &ledger.prove_keys(stamp, &[b"z"], true)),
    ]
}

/// Ranges whose low is the first record of a leaf, or of the whole ledger.
fn ranges() -> Vec<Case> {
    let sample = Sample::standard();
    let stamp = sample.ledger.epochs.stamp_of(sample.ledger.head().version);
    let records: Vec<Vec<u8>> = sample.states[&stamp].keys().cloned().collect();
    let low = &records[0];
    let high = [&low[..], b"\0"].concat();
    vec![
        valid(
            "a range that begins with the first record there is",
            &sample.ledger.prove_range(stamp, low, Some(&high), true),
        ),
        valid("a range below the first record there is", &sample.ledger.prove_range(stamp, b"", Some(low), true)),
        valid("a range of all records", &sample.ledger.prove_range(stamp, low, None, false)),
    ]
}

fn cases() -> Vec<Case> {
    [trees(), shards(), headers(), founding(), keys(), mldsa(), epochs(), wrong_shard(), ranges()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn the_page_s_cases() {
    let stored = cases().into_iter().map(|case| {
        let (vkey, policy) = match &case.trust {
            Trust::Key(key) => (Some(key.to_string()), None),
            Trust::Policy(policy) => (None, Some(policy.clone())),
        };
        json!({
            "name": case.name, "file": text(&case.file), "vkey": vkey, "policy": policy,
            "valid": case.step.is_none(), "failed step": case.step,
        })
    });
    compare(
        "cases.json",
        &json!({
            "about": "Proof files that a ledger signed itself, each with the key or the policy under which it is judged. All hashes, signatures and checksums are right: what is refused breaks the rule in its name.",
            "cases": stored.collect::<Vec<_>>(),
        }),
    );
}

/// Judges the files alone, as a stranger would.
#[test]
fn every_stored_case_is_judged_as_the_page_says() {
    let vectors = stored("cases.json");
    let cases = vectors["cases"].as_array().expect("a list");
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let text = |field: &str| case[field].as_str().map(str::to_owned);
        let file = hex::decode(text("file").expect("a file")).expect("hex");
        let judged = match (text("vkey"), text("policy")) {
            (Some(key), None) => verify(&file, &VerifierKey::parse(&key).expect("a key"), None).map(drop),
            (None, Some(policy)) => {
                verify_under(&file, &Policy::parse(policy.as_bytes()).expect("a policy"), None).map(drop)
            }
            trust => panic!("either a key or a policy: {trust:?}"),
        };
        let step = judged.err().map(|failure| (failure.step.name(), failure));
        assert_eq!(step.map(|(name, _)| name), case["failed step"].as_str(), "{}: {step:?}", case["name"]);
        assert_eq!(step.is_none(), case["valid"] == json!(true), "{}", case["name"]);
    }
}

/// Found by comparing verifiers on random states, pairs and key changes.
#[test]
fn lies_that_a_ledger_signed_are_refused() {
    let vectors = stored("lies.json");
    for case in vectors["cases"].as_array().expect("a list") {
        let bytes = |field: &str| case[field].as_str().map(|text| hex::decode(text).expect("hex"));
        let key = VerifierKey::parse(case["vkey"].as_str().expect("a key")).expect("a key");
        let (file, newer) = (bytes("file").expect("a file"), bytes("newer"));
        let judged = verify(&file, &key, newer.as_deref()).map(drop);
        let step = judged.expect_err("a lie").step.name();
        assert_eq!(Some(step), case["failed step"].as_str(), "{}", case["name"]);
    }
}

#[test]
fn a_proof_of_something_that_was_not_asked_is_not_an_answer() {
    let ledger = with_a_record();
    let (stamp, key) = (Stamp::new(0, 1), key());
    let (keys, range) =
        (ledger.prove_keys(stamp, &[b"k", b"l"], true), ledger.prove_range(stamp, b"a", Some(b"z"), true));
    let (receipt, growth) = (ledger.receipt(stamp, 0), ledger.standing(1, 2));
    let batch = ledger.versions[&stamp].journal[0].hash();
    let another = coppice_verify::hash::sha256(b"another");
    let range_of = |low, high| Subject::Range { low, high };
    let answers: [(&ProofFile<'_>, Subject<'_>, bool); 15] = [
        (&keys, Subject::Keys(vec![b"l", b"k"]), true),
        (&keys, Subject::Keys(vec![b"k"]), true),
        (&keys, Subject::Keys(vec![b"m"]), false),
        (&keys, range_of(b"k", Some(b"l")), false),
        (&range, range_of(b"a", Some(b"z")), true),
        (&range, range_of(b"a", None), false),
        (&range, range_of(b"b", Some(b"z")), false),
        (&range, Subject::Keys(vec![b"k"]), false),
        (&receipt, Subject::Batch(batch), true),
        (&receipt, Subject::Batch(another), false),
        (&receipt, Subject::Growth(1), false),
        (&growth, Subject::Growth(1), true),
        (&growth, Subject::Growth(2), false),
        (&growth, Subject::Keys(vec![b"k"]), false),
        (&keys, Subject::Batch(batch), false),
    ];
    for (file, subject, answered) in answers {
        let question = Question::about(subject);
        let judged = verify_answer(&encode(file), &key, None, &question).map(drop);
        assert_eq!(
            judged.map_err(|failure| failure.step.name()),
            if answered { Ok(()) } else { Err("question") },
            "{question:?}"
        );
    }
    let at = |version: u64, epoch: Option<u64>| Question {
        version: Some(Version(version)),
        epoch: epoch.map(coppice_types::Epoch),
        ..Question::default()
    };
    for (file, question, answered) in [
        (&keys, at(1, None), true),
        (&receipt, at(1, Some(0)), true),
        (&keys, at(2, None), false),
        (&keys, at(1, Some(1)), false),
        (&growth, at(1, None), false),
    ] {
        assert_eq!(verify_answer(&encode(file), &key, None, &question).is_ok(), answered, "{question:?}");
    }
}

/// The output of a merge with long separators (section 4): the weight of a node's first entry is
/// that of the entry's own separator.
#[test]
fn packing() {
    let params = Params::default();
    let key = |index: u32| {
        let mut key = vec![b'p'; 300];
        key.extend(format!("{:04}", 7 * index).into_bytes());
        key.extend([b'q'; 100]);
        key
    };
    let records = (0..400).map(|index| coppice_verify::replay::Record {
        key: key(index),
        stamp: Stamp::new(0, 1),
        body: coppice_verify::hash::RecordBody::put(b"x"),
    });
    let tree = coppice_verify::replay::Tree::pack(&params, records.collect());
    assert!(tree.root.level() == 2, "the separators of inner nodes count");
    compare(
        "packing.json",
        &json!({
            "about": "The packing of 400 puts under default parameters: key i is 300 letters p, the four digits of 7i and 100 letters q; its stamp is epoch 0, version 1, its value the letter x. The separators are so long that the nodes above the leaves are cut where the weight of each first entry, but that of the whole list, counts its own separator.",
            "level": tree.root.level(), "tree digest": tree.digest().to_string(),
        }),
    );
}
