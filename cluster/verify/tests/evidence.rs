//! Evidence files: what convicts, whom, and that nothing else does.

mod common;

use std::borrow::Cow;

use common::{cluster, mldsa::MlDsaWitness, params, vectors};
use coppice_types::{ClusterId, Digest};
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{Cosigner, add_lines},
    evidence::{EVIDENCE_BYTES_MAX, Evidence, Ground, PATH_MAX, Shown, Step, verify},
    header::Header,
    keys::KeyChange,
    merkle,
    note::{SignerKey, VerifierKey},
    policy::Policy,
    proof::{Proof, StandingProof},
    replay::Ledger,
    report,
    shard_map::ShardMap,
};
use serde_json::{Value, json};

/// Entries of the log at which all logs here have changed their key, from 7 to 8 and then to 9.
const CHANGES: [u64; 2] = [8, 12];
/// Entries that the logs of all kinds have in common.
const COMMON: u64 = 4;

/// A log of the ledger. Logs of two kinds differ from entry [`COMMON`] on, and key changes are at
/// the same places.
fn log(kind: u64, entries: u64) -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", cluster(), &[7; 32], &params(), map);
    for at in 1..entries {
        if let Some(change) = CHANGES.iter().position(|change| *change == at) {
            ledger.rotate(&[8 + change as u8; 32]);
        } else {
            ledger.append_unknown(9, if at < COMMON { 0 } else { kind }.to_le_bytes().to_vec());
        }
    }
    ledger
}

const HONEST: u64 = 1;
const FORKED: u64 = 2;
const SIZE: u64 = 16;

fn signer(seed: u8) -> SignerKey {
    SignerKey::from_seed(log(HONEST, 1).key.name(), &[seed; 32]).expect("a name")
}

fn key(seed: u8) -> VerifierKey {
    signer(seed).verifier().clone()
}

fn entries(kind: u64, size: u64) -> Vec<Digest> {
    log(kind, size).headers.iter().map(Header::hash).collect()
}

fn checkpoint(kind: u64, size: u64) -> Checkpoint {
    log(kind, size.max(1)).checkpoint(size)
}

/// A checkpoint signed by the key of this seed.
fn signed(kind: u64, size: u64, by: u8) -> Vec<u8> {
    checkpoint(kind, size).sign(&signer(by)).expect("its own log").into_bytes()
}

/// The key changes numbered from 1 on.
fn changes(count: usize) -> Vec<KeyChange> {
    let change = |number: u8| KeyChange::sign(number.into(), &cluster(), &signer(6 + number), &signer(7 + number));
    (1..=count as u8).map(change).collect()
}

/// Note A of one log against note B of the other. Each is (size, seed of the key).
fn contradiction(a: (u64, u8), b: (u64, u8), changed: usize) -> Evidence<'static> {
    let hashes = entries(HONEST, b.0);
    Evidence {
        key_changes: changes(changed),
        shown: Shown::Root { size: a.0, root: merkle::mth(&hashes[..a.0 as usize]) },
        path: merkle::consistency_path(&hashes, a.0),
        a: Cow::Owned(signed(FORKED, a.0, a.1)),
        b: Cow::Owned(signed(HONEST, b.0, b.1)),
    }
}

/// A note that a replaced key signed, and the first key change in the log of note B.
fn late(a: Vec<u8>, b: Vec<u8>, b_size: u64, changed: usize) -> Evidence<'static> {
    let index = CHANGES[0];
    let entry = log(HONEST, b_size).headers[index as usize].encode();
    let path = merkle::inclusion_path(&entries(HONEST, b_size), index);
    let shown = Shown::KeyChange { index, entry: Cow::Owned(entry) };
    Evidence { key_changes: changes(changed), shown, path, a: Cow::Owned(a), b: Cow::Owned(b) }
}

/// The key 7 signed a checkpoint over the log that has replaced it.
fn self_convicting() -> Evidence<'static> {
    let note = signed(HONEST, 10, 7);
    late(note.clone(), note, 10, 0)
}

fn encode(evidence: &Evidence<'_>) -> Vec<u8> {
    evidence.encode().expect("it fits")
}

fn cosigner(seed: u8) -> Cosigner {
    Cosigner::from_seed(&format!("w{seed}.example"), &[seed; 32]).expect("a name")
}

/// A note with lines of these witnesses at these times.
fn cosigned(note: &[u8], lines: &[(u8, u64)]) -> Vec<u8> {
    let text = Checkpoint::claimed(note).expect("a checkpoint").text();
    let lines: Vec<String> = lines.iter().map(|(seed, time)| cosigner(*seed).cosign(&text, *time)).collect();
    add_lines(note, &lines).expect("lines")
}

/// A witness that cosigns by ML-DSA-44.
fn mldsa() -> MlDsaWitness {
    MlDsaWitness::new("ml.example/w", 25)
}

/// Witnesses 21 to 24 are in the policy, and one by ML-DSA; others are strangers.
fn policy() -> String {
    let witness = |seed: u8| format!("witness w{seed} {}\n", cosigner(seed).verifier());
    let mldsa = format!("witness m {}\n", mldsa().vkey());
    format!("log {}\n{}{mldsa}quorum none\n", key(7), (21..25).map(witness).collect::<String>())
}

/// A contradiction whose notes have lines of witnesses: 21 on both, 22 with time 0 on B, 23 on A
/// alone, 24 with a forged line on B, and strangers on both, on A, and on B.
fn with_witnesses() -> Evidence<'static> {
    let mut evidence = contradiction((6, 7), (7, 7), 0);
    let mut b = cosigned(&evidence.b, &[(31, 3), (33, 3), (22, 0), (21, 90), (21, 110)]);
    let forged = cosigner(24).cosign("another text\n", 5);
    b = add_lines(&b, &[forged]).expect("a line");
    evidence.a = Cow::Owned(cosigned(&evidence.a, &[(21, 100), (22, 100), (23, 100), (24, 100), (31, 3), (32, 3)]));
    evidence.b = Cow::Owned(b);
    evidence
}

/// A file with its name, the trusted key, and whether the policy is given.
struct Case {
    name: &'static str,
    file: Vec<u8>,
    key: VerifierKey,
    policy: bool,
}

/// A case under the key of this seed.
fn case(name: &'static str, file: Vec<u8>, seed: u8) -> Case {
    Case { name, file, key: key(seed), policy: false }
}

/// The key of a log that is no Coppice ledger.
fn elsewhere() -> SignerKey {
    SignerKey::from_seed("elsewhere", &[7; 32]).expect("a name")
}

/// Two checkpoints of a log that is no Coppice ledger.
fn of_another_log() -> Evidence<'static> {
    let note = |size, root| {
        let checkpoint = Checkpoint { origin: elsewhere().name().to_owned(), size, root };
        Cow::Owned(checkpoint.sign(&elsewhere()).expect("its own").into_bytes())
    };
    let (one, other) = (Digest([1; 32]), Digest([2; 32]));
    let shown = Shown::Root { size: 5, root: other };
    Evidence { key_changes: Vec::new(), shown, path: Vec::new(), a: note(5, one), b: note(5, other) }
}

fn valid() -> Vec<Case> {
    let fork = || contradiction((6, 7), (8, 7), 0);
    let mut both_keys = contradiction((8, 7), (9, 8), 1);
    both_keys.a = Cow::Owned(add_lines(&both_keys.a, &[line(&signed(FORKED, 8, 8))]).expect("a line"));
    let mut cases = vec![
        case("two roots of one size", encode(&contradiction((6, 7), (6, 7), 0)), 7),
        case("another log that has grown on", encode(&fork()), 7),
        case("the first entry that differs", encode(&contradiction((COMMON + 1, 7), (8, 7), 0)), 7),
        case("by two keys, trusting the first", encode(&contradiction((8, 7), (9, 8), 1)), 7),
        case("by two keys, trusting the second", encode(&contradiction((8, 7), (9, 8), 1)), 8),
        case("by two keys, trusting the third", encode(&contradiction((8, 7), (9, 8), 2)), 9),
        case(
            "key changes that begin with the newest",
            changed(contradiction((8, 7), (9, 8), 2), |it| it.key_changes.reverse()),
            7,
        ),
        case("by the third key alone, trusting the first", encode(&contradiction((14, 9), (SIZE, 9), 2)), 7),
        case("key changes that are not needed", encode(&contradiction((6, 7), (8, 7), 2)), 7),
        case("note a is signed by both keys", encode(&both_keys), 7),
        case("a replaced key signed the log that replaced it", encode(&self_convicting()), 7),
        case("a replaced key signed another log", encode(&late(signed(FORKED, 10, 7), signed(HONEST, 9, 8), 9, 1)), 7),
        case("the same, trusting the newer key", encode(&late(signed(FORKED, 10, 7), signed(HONEST, 9, 8), 9, 1)), 8),
        case("witnesses without a policy", encode(&with_witnesses()), 7),
    ];
    cases.push(Case { policy: true, ..case("a witness cosigned both notes", encode(&with_witnesses()), 7) });
    let mut by_mldsa = contradiction((6, 7), (7, 7), 0);
    for note in [&mut by_mldsa.a, &mut by_mldsa.b] {
        let line = mldsa().cosign(&Checkpoint::claimed(note).expect("a checkpoint"), 5);
        *note = Cow::Owned(add_lines(note, &[line]).expect("a line"));
    }
    cases.push(Case { policy: true, ..case("a witness cosigned both notes by ML-DSA", encode(&by_mldsa), 7) });
    let mut witnessed = self_convicting();
    witnessed.a = Cow::Owned(cosigned(&witnessed.a, &[(21, 5)]));
    witnessed.b = witnessed.a.clone();
    cases.push(Case {
        key: elsewhere().verifier().clone(),
        ..case("a log of other people", encode(&of_another_log()), 7)
    });
    cases
        .push(Case { policy: true, ..case("witnesses of a late checkpoint did nothing wrong", encode(&witnessed), 7) });
    cases
}

/// The signature line of a note with one.
fn line(note: &[u8]) -> String {
    let text = String::from_utf8(note.to_vec()).expect("text");
    text.split_once("\n\n").expect("a note").1.trim_end().to_owned()
}

/// The text of a valid file, with one part replaced.
fn replaced(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(file.to_vec()).expect("text");
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1).into_bytes()
}

fn changed(mut evidence: Evidence<'static>, change: impl FnOnce(&mut Evidence<'static>)) -> Vec<u8> {
    change(&mut evidence);
    encode(&evidence)
}

/// Files that break one rule of a step.
fn invalid() -> Vec<(Step, Case)> {
    let mut cases: Vec<(Step, Case)> = malformed().into_iter().map(|case| (Step::Format, case)).collect();
    cases.extend(of_keys().into_iter().map(|case| (Step::Keys, case)));
    cases.extend(of_notes().into_iter().map(|case| (Step::Notes, case)));
    cases.extend(of_proofs().into_iter().map(|case| (Step::Proof, case)));
    cases.extend(no_conflicts().into_iter().map(|case| (Step::Conflict, case)));
    cases
}

fn malformed() -> Vec<Case> {
    let good = encode(&contradiction((6, 7), (8, 7), 1));
    let of_key = encode(&self_convicting());
    let text = String::from_utf8(good.clone()).expect("text");
    let field = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
    let (root, change) = (field("root "), field("key "));
    let length = contradiction((6, 7), (8, 7), 1).a.len();
    let with = |from: &str, to: &str| replaced(&good, from, to);
    let path = vec![Digest([5; 32]); PATH_MAX + 1];
    let long_path: String = path.iter().map(|_| format!("proof {}\n", "A".repeat(43) + "=")).collect();
    vec![
        case("an empty file", Vec::new(), 7),
        case("another format", with("coppice-evidence/v1", "coppice-evidence/v2"), 7),
        case("another kind", with("contradiction", "fork"), 7),
        case("no size", with("size 6\n", ""), 7),
        case("a size with a zero in front", with("size 6", "size 06"), 7),
        case("a size with a sign", with("size 6", "size +6"), 7),
        case("a size of 2^63", with("size 6", "size 9223372036854775808"), 7),
        case("an index of 2^63", replaced(&of_key, "index 8", "index 9223372036854775808"), 7),
        case("a root of 31 bytes", with(&root, &format!("root {}==", "A".repeat(42))), 7),
        case("base64 without padding", with(&root, root.trim_end_matches('=')), 7),
        case("two spaces", with("size ", "size  "), 7),
        case("carriage returns", with("contradiction\n", "contradiction\r\n"), 7),
        case("fields in another order", with(&format!("{change}\nsize 6\n"), &format!("size 6\n{change}\n")), 7),
        case("bytes behind a key change", with(&change, &format!("{change}AAAA")), 7),
        case("65 hashes", with("proof ", &format!("{long_path}proof ")), 7),
        case("257 key changes", with(&change, &vec![change.as_str(); 257].join("\n")), 7),
        case("a length with a zero in front", with("a ", "a 0"), 7),
        case("a length that is too small", with(&format!("a {length}"), &format!("a {}", length - 1)), 7),
        case("a length beyond the end", with(&format!("a {length}"), "a 9999"), 7),
        case("a length above 64 KiB", with(&format!("a {length}"), "a 65537"), 7),
        case("cut off", good[..good.len() - 1].to_vec(), 7),
        case("a line behind the end", [&good[..], b"\n"].concat(), 7),
        case("longer than 256 KiB", [&good[..], &vec![b'\n'; EVIDENCE_BYTES_MAX]].concat(), 7),
    ]
}

fn of_keys() -> Vec<Case> {
    let two = || contradiction((8, 7), (9, 8), 1);
    let other = ClusterId([0xc1; 16]);
    let stranger = KeyChange::sign(1, &cluster(), &signer(70), &signer(71));
    let forged = |change: &mut KeyChange| change.by_old = change.by_new;
    let unnamed = changed(of_another_log(), |it| it.key_changes = changes(1));
    vec![
        Case { key: elsewhere().verifier().clone(), ..case("a key change of a log without cluster id", unnamed, 7) },
        case("a change between strangers", changed(two(), |it| it.key_changes = vec![stranger.clone()]), 7),
        case(
            "the change before it is missing",
            changed(contradiction((14, 9), (SIZE, 9), 2), |it| drop(it.key_changes.remove(0))),
            7,
        ),
        case("changes that do not hang together", changed(two(), |it| it.key_changes.push(stranger.clone())), 7),
        case("the old key has not signed its change", changed(two(), |it| forged(&mut it.key_changes[0])), 7),
        case("the new key has not signed its change", changed(two(), |it| it.key_changes[0].by_new[0] ^= 1), 7),
        case(
            "a change of number 0",
            changed(two(), |it| it.key_changes[0] = KeyChange::sign(0, &cluster(), &signer(7), &signer(8))),
            7,
        ),
        case(
            "a change of another cluster",
            changed(two(), |it| it.key_changes[0] = KeyChange::sign(1, &other, &signer(7), &signer(8))),
            7,
        ),
        case(
            "a change to the same key",
            changed(two(), |it| it.key_changes[0] = KeyChange::sign(1, &cluster(), &signer(7), &signer(7))),
            7,
        ),
    ]
}

fn of_notes() -> Vec<Case> {
    let fork = || contradiction((6, 7), (8, 7), 0);
    let foreign = Checkpoint { origin: "elsewhere".into(), ..checkpoint(FORKED, 6) };
    let borrowed = signer(7).sign_note(&foreign.text()).expect("a text");
    let foreign = foreign.sign(&elsewhere()).expect("its own");
    let mut backwards = contradiction((6, 7), (8, 7), 0);
    core::mem::swap(&mut backwards.a, &mut backwards.b);
    backwards.shown = Shown::Root { size: 8, root: checkpoint(HONEST, 6).root };
    let extended = signer(7).sign_note(&format!("{}more\n", checkpoint(FORKED, 6).text())).expect("a text");
    let nothing = signer(7).sign_note(&Checkpoint { root: Digest([1; 32]), ..checkpoint(FORKED, 0) }.text());
    let mut of_nothing = contradiction((1, 7), (6, 7), 0);
    of_nothing.shown = Shown::Root { size: 0, root: merkle::empty_root() };
    of_nothing.path.clear();
    of_nothing.a = Cow::Owned(nothing.expect("a text").into_bytes());
    let bad = |note: &[u8]| add_lines(note, &[line(&signed(FORKED, 5, 7))]).expect("a line");
    vec![
        case("a note a of a stranger", changed(fork(), |it| it.a = Cow::Owned(signed(FORKED, 6, 70))), 7),
        case("a note b of a stranger", changed(fork(), |it| it.b = Cow::Owned(signed(HONEST, 8, 70))), 7),
        case("another trusted key", encode(&fork()), 70),
        case("the key change to the key of b is missing", encode(&contradiction((8, 7), (9, 8), 0)), 7),
        case("a note a of another origin", changed(fork(), |it| it.a = Cow::Owned(foreign.into_bytes())), 7),
        case("the key signed another origin", changed(fork(), |it| it.a = Cow::Owned(borrowed.into_bytes())), 7),
        case("a further line of the key is wrong on a", changed(fork(), |it| it.a = Cow::Owned(bad(&it.a))), 7),
        case("a further line of the key is wrong on b", changed(fork(), |it| it.b = Cow::Owned(bad(&it.b))), 7),
        case("a checkpoint of four lines", changed(fork(), |it| it.a = Cow::Owned(extended.into_bytes())), 7),
        case("an empty log with entries", encode(&of_nothing), 7),
        case("an empty note", changed(fork(), |it| it.a = Cow::Borrowed(b"")), 7),
        case("note b is smaller", encode(&backwards), 7),
        case("the size is not that of note a", replaced(&encode(&fork()), "size 6", "size 7"), 7),
    ]
}

fn of_proofs() -> Vec<Case> {
    let fork = || contradiction((6, 7), (8, 7), 0);
    let unknown = log(HONEST, 10).headers[9].encode();
    let moved = |it: &mut Evidence<'static>, index| {
        if let Shown::KeyChange { index: at, .. } = &mut it.shown {
            *at = index;
        }
    };
    let entry = |it: &mut Evidence<'static>, bytes: Vec<u8>, at: u64| {
        it.shown = Shown::KeyChange { index: at, entry: Cow::Owned(bytes) };
        it.path = merkle::inclusion_path(&entries(HONEST, 10), at);
    };
    vec![
        case("a hash too few", changed(fork(), |it| it.path.truncate(1)), 7),
        case("a hash too many", changed(fork(), |it| it.path.push(Digest([1; 32]))), 7),
        case("a hash that differs", changed(fork(), |it| it.path[0] = Digest([1; 32])), 7),
        case(
            "a root that the log never had",
            changed(fork(), |it| it.shown = Shown::Root { size: 6, root: Digest([1; 32]) }),
            7,
        ),
        case(
            "another root of the same size",
            changed(contradiction((6, 7), (6, 7), 0), |it| it.shown = Shown::Root { size: 6, root: Digest([1; 32]) }),
            7,
        ),
        case(
            "a path between equal sizes",
            changed(contradiction((6, 7), (6, 7), 0), |it| it.path.push(Digest([1; 32]))),
            7,
        ),
        case(
            "the proof of the other log",
            changed(fork(), |it| it.path = merkle::consistency_path(&entries(FORKED, 8), 6)),
            7,
        ),
        case("an entry that is not a key change", changed(self_convicting(), |it| entry(it, unknown, 9)), 7),
        case("an entry that is no header", changed(self_convicting(), |it| entry(it, b"entry".to_vec(), 8)), 7),
        case("an entry at another index", changed(self_convicting(), |it| moved(it, 7)), 7),
        case("an entry that the log has not", changed(self_convicting(), |it| it.path[0] = Digest([1; 32])), 7),
        case(
            "an entry beyond the end of note b",
            changed(self_convicting(), |it| it.b = Cow::Owned(signed(HONEST, 8, 7))),
            7,
        ),
    ]
}

fn no_conflicts() -> Vec<Case> {
    let honest = |a: (u64, u8), b: (u64, u8), changed: usize| {
        let evidence = contradiction(a, b, changed);
        encode(&Evidence { a: Cow::Owned(signed(HONEST, a.0, a.1)), ..evidence })
    };
    let before = signed(HONEST, CHANGES[0], 7);
    vec![
        case("the same checkpoint twice", honest((6, 7), (6, 7), 0), 7),
        case("a log that has grown", honest((6, 7), (8, 7), 0), 7),
        case("a log that has changed its key", honest((6, 7), (SIZE, 9), 2), 7),
        case(
            "an empty log that has grown",
            {
                let mut evidence = contradiction((1, 7), (6, 7), 0);
                evidence.shown = Shown::Root { size: 0, root: merkle::empty_root() };
                evidence.path.clear();
                evidence.a = Cow::Owned(signed(HONEST, 0, 7));
                encode(&evidence)
            },
            7,
        ),
        case("logs that have differed only since", honest((COMMON, 7), (8, 7), 0), 7),
        case("the last checkpoint before the key change", encode(&late(before, signed(HONEST, 10, 8), 10, 1)), 7),
        case("the key in force signed", encode(&late(signed(HONEST, 10, 8), signed(HONEST, 10, 8), 10, 1)), 8),
        case("a change of another key", encode(&late(signed(HONEST, 14, 8), signed(HONEST, 14, 9), 14, 2)), 7),
    ]
}

fn judge(case: &Case) -> Result<Value, coppice_verify::evidence::Failure> {
    let policy = case.policy.then(|| Policy::parse(policy().as_bytes()).expect("a policy"));
    verify(&case.file, &case.key, policy.as_ref())
        .map(|verdict| serde_json::from_str(&report::evidence(&verdict)).expect("reports are JSON"))
}

fn vector(case: &Case, step: Option<Step>, verdict: Value) -> Value {
    json!({
        "name": case.name, "vkey": case.key.to_string(), "policy": case.policy.then(policy),
        "valid": step.is_none(), "failed step": step.map(Step::name), "verdict": verdict,
        "file": String::from_utf8(case.file.clone()).expect("text"),
    })
}

#[test]
fn every_rule_has_a_file_that_breaks_it() {
    let mut cases = Vec::new();
    for case in valid() {
        let verdict = judge(&case).unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
        cases.push(vector(&case, None, verdict));
    }
    for (step, case) in invalid() {
        match judge(&case) {
            Ok(verdict) => panic!("{}: {verdict}", case.name),
            Err(failure) => assert_eq!(failure.step, step, "{}: {failure}", case.name),
        }
        // The longest file is left to implementations themselves.
        if case.file.len() <= EVIDENCE_BYTES_MAX {
            cases.push(vector(&case, Some(step), Value::Null));
        }
    }
    let sample = vectors::path("sample.evidence");
    let found = valid().into_iter().find(|case| case.name == "another log that has grown on").expect("it is there");
    assert_eq!(std::fs::read(sample).expect("a file"), found.file, "the example of docs/proof-files.md");
    for step in Step::ALL {
        assert!(invalid().iter().any(|(of, _)| of == step), "no file fails at {step}");
    }
    vectors::compare(
        "evidence.json",
        &json!({
            "about": "Evidence files (section 20) with the key or keys that are trusted, and what they prove: \
                      `verdict` is the object of `coppice evidence verify --json`. Keys have seeds of 32 equal bytes: \
                      7, 8, 9 are the ledger's, one after the other.",
            "cases": cases,
        }),
    );
}

fn standing_of(log: &Ledger, old: u64, size: u64) -> StandingProof<'static> {
    match log.standing(old, size).proof {
        Proof::Standing(proof) => proof,
        other => panic!("not a standing proof: {other:?}"),
    }
}

/// The verdict on the evidence that a saved note and a standing proof of the honest log give.
fn found(saved: &[u8], old: u64, size: u64) -> Option<Ground> {
    let (log, keys) = (log(HONEST, size), [key(7), key(8), key(9)]);
    let proof = standing_of(&log, old, size);
    let evidence = Evidence::from_standing(saved, &keys, &proof)?;
    let verdict = verify(&encode(&evidence), &key(7), None);
    Some(verdict.unwrap_or_else(|failure| panic!("{failure}")).ground)
}

#[test]
fn a_standing_proof_that_contradicts_a_saved_note_becomes_evidence() {
    assert!(matches!(found(&signed(FORKED, 6, 7), 6, 6), Some(Ground::Contradiction { .. })), "of one size");
    assert!(matches!(found(&signed(FORKED, 6, 7), 6, SIZE), Some(Ground::Contradiction { .. })), "grown, keys changed");
    // A replaced key signed: in the same log, and in another that is larger.
    assert!(matches!(found(&signed(HONEST, 10, 7), 10, SIZE), Some(Ground::Late { index: 8, .. })));
    assert!(matches!(found(&signed(FORKED, 20, 7), 1, SIZE), Some(Ground::Late { index: 8, .. })));
}

#[test]
fn what_an_honest_ledger_does_is_no_evidence() {
    for (what, saved, old, size) in [
        ("growth", signed(HONEST, 6, 7), 6, 7),
        ("key changes", signed(HONEST, 6, 7), 6, SIZE),
        ("the same checkpoint", signed(HONEST, SIZE, 9), SIZE, SIZE),
        ("a smaller checkpoint", signed(HONEST, 14, 9), 1, 9),
        ("a smaller checkpoint of another log", signed(FORKED, 7, 7), 1, 6),
        ("a proof from another size, as after a refusal", signed(FORKED, 6, 7), 5, 7),
        ("an empty log", signed(HONEST, 0, 7), 1, 7),
    ] {
        assert_eq!(found(&saved, old, size), None, "{what}");
    }
    // A rollback and a prune that the log has.
    let mut log = log(HONEST, 6);
    let commit = coppice_verify::replay::Commit::default;
    log.commit(&[commit()]).expect("a version");
    log.commit(&[commit()]).expect("a version");
    let saved = log.log_part(8).checkpoint;
    log.roll_back(coppice_types::Version(1));
    log.prune(coppice_types::Version(1));
    let proof = standing_of(&log, 8, 10);
    assert_eq!(Evidence::from_standing(&saved, &[key(7)], &proof), None);
}

/// A generator of numbers that are the same in each run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

/// Another file made of valid ones: a flipped bit, swapped or repeated lines, a cut, or a splice.
fn mutant(numbers: &mut Numbers, files: &[Vec<u8>]) -> Vec<u8> {
    let file = &files[numbers.below(files.len())];
    let at = numbers.below(file.len());
    let mut lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    let (one, other) = (numbers.below(lines.len()), numbers.below(lines.len()));
    match numbers.below(6) {
        0 => {
            let mut flipped = file.clone();
            flipped[at] ^= 1 << numbers.below(8);
            flipped
        }
        1 => file[..at].to_vec(),
        2 => {
            lines.swap(one, other);
            lines.concat()
        }
        3 => {
            lines.insert(one, lines[other]);
            lines.concat()
        }
        4 => {
            lines.remove(one);
            lines.concat()
        }
        _ => {
            let second = &files[numbers.below(files.len())];
            [&file[..at], &second[numbers.below(second.len())..]].concat()
        }
    }
}

/// Whether the logs really contradict each other as the verdict says, by what was ever signed.
fn is_true(verdict: &coppice_verify::evidence::Verdict, logs: &[(u64, Vec<Digest>)]) -> bool {
    let log_of = |checkpoint: &Checkpoint| {
        let size = checkpoint.size as usize;
        logs.iter().find(|(_, hashes)| hashes.len() >= size && merkle::mth(&hashes[..size]) == checkpoint.root)
    };
    let (Some(_), Some((_, b))) = (log_of(&verdict.a.checkpoint), log_of(&verdict.b.checkpoint)) else { return false };
    let size = verdict.a.checkpoint.size as usize;
    match &verdict.ground {
        Ground::Contradiction { root } => merkle::mth(&b[..size]) == *root && *root != verdict.a.checkpoint.root,
        Ground::Late { index, .. } => *index == CHANGES[0] && size as u64 > *index && verdict.a.key == key(7),
    }
}

#[test]
fn a_changed_file_convicts_only_if_it_is_still_true() {
    let files: Vec<Vec<u8>> =
        valid().into_iter().filter(|case| case.key != *elsewhere().verifier()).map(|case| case.file).collect();
    let logs: Vec<(u64, Vec<Digest>)> = [HONEST, FORKED].map(|kind| (kind, entries(kind, SIZE))).to_vec();
    let mut numbers = Numbers(7);
    let (mut refused, mut convicted) = (0, 0);
    for _ in 0..4000 {
        let changed = mutant(&mut numbers, &files);
        match verify(&changed, &key(7), None) {
            Ok(verdict) => {
                assert!(is_true(&verdict, &logs), "{}", String::from_utf8_lossy(&changed));
                convicted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 3000 && convicted > 10, "{refused} refused, {convicted} convicted");
}

#[test]
fn every_flipped_bit_is_refused() {
    for evidence in [contradiction((6, 7), (8, 7), 0), self_convicting()] {
        let file = encode(&evidence);
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&flipped, &key(7), None).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn files_have_one_encoding_and_a_largest_size() {
    for case in valid() {
        let decoded = Evidence::decode(&case.file).expect("it is valid");
        assert_eq!(decoded.encode().as_deref(), Ok(&*case.file), "{}", case.name);
    }
    let mut long = contradiction((6, 7), (8, 7), 0);
    long.path = vec![Digest([1; 32]); PATH_MAX + 1];
    assert!(long.encode().is_err());
    let mut long = contradiction((6, 7), (8, 7), 0);
    long.a = Cow::Owned(vec![b'a'; 65_537]);
    assert!(long.encode().is_err());
}

#[test]
fn one_key_or_two_and_each_witness_on_both() {
    let judged = |evidence: &Evidence<'_>| {
        let policy = Policy::parse(policy().as_bytes()).expect("a policy");
        verify(&encode(evidence), &key(7), Some(&policy)).expect("it holds")
    };
    assert!(judged(&contradiction((6, 7), (8, 7), 0)).is_one_key());
    let two = judged(&contradiction((8, 7), (9, 8), 1));
    assert!(!two.is_one_key());
    assert_eq!((two.a.key, two.b.key), (key(7), key(8)));
    let witnessed = judged(&with_witnesses());
    let names: Vec<_> = witnessed.cosigners.iter().map(|it| (it.a.witness.clone(), it.a.time, it.b.time)).collect();
    assert_eq!(names, [(b"w21".to_vec(), 100, 110)]);
    let unknown: Vec<_> = witnessed.unknown.iter().map(|line| line.key_name.as_str()).collect();
    assert_eq!(unknown, ["w31.example"]);
}
