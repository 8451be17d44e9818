//! Proofs of the version that stood at a time: honest ones hold and agree with a naive search, and
//! lies are refused, also those of a coordinator that holds the ledger's key.

mod common;

use common::{
    grain, lies,
    vectors::{compare, stored, text},
};
use coppice_types::{Stamp, Version as Number};
use coppice_verify::{
    check::{Claim, Failure, Question, Step, Subject, TimeClaim},
    hash::file_checksum,
    header::{Body, Header},
    merkle,
    note::VerifierKey,
    proof::{HeaderPart, Proof, ProofFile, TimeProof},
    replay::{Ledger, Version},
    verify, verify_answer,
};
use serde_json::{Value, json};

/// Time of genesis, in ms.
const START: u64 = 1_700_000_000_000;

/// Commits a version at this many ms after genesis.
fn commit_at(ledger: &mut Ledger, after_ms: u64) {
    let stamp = ledger.next_stamp();
    commit_as(ledger, stamp, after_ms);
}

/// Appends a commit under any name.
fn commit_as(ledger: &mut Ledger, stamp: Stamp, after_ms: u64) {
    let head = ledger.versions.values().next_back().expect("genesis is a version").clone();
    let mut header = ledger.next_header(stamp, ledger.newest().state_root, &[], Body::Commit);
    header.timestamp_ms = START + after_ms;
    ledger.versions.insert(stamp, Version { header: header.clone(), journal: Vec::new(), ..head });
    ledger.append(header);
}

/// Three versions of one time, two that were rolled back, and a prune. The head is the newest
/// header.
fn fill(ledger: &mut Ledger) {
    [10, 10, 10, 20, 30, 30].into_iter().for_each(|at| commit_at(ledger, at));
    ledger.roll_back(Number(4)); // at 1,030
    [1030, 1040].into_iter().for_each(|at| commit_at(ledger, at));
    ledger.prune(Number(2)); // at 2,040
    commit_at(ledger, 3000);
}

fn sample() -> Ledger {
    let mut ledger = lies::ledger(&[]);
    fill(&mut ledger);
    ledger
}

/// Like [`sample`], of protocol version 3.
fn with_ledgers() -> Ledger {
    let mut ledger = grain::empty();
    fill(&mut ledger);
    ledger
}

/// Like [`sample`], with a header behind the head.
fn passed() -> Ledger {
    let mut ledger = sample();
    ledger.append_unknown(9, b"of a kind to come".to_vec()); // at 4,000
    ledger
}

fn trusted(ledger: &Ledger) -> VerifierKey {
    ledger.key.verifier().clone()
}

fn encode(file: &ProofFile<'_>) -> Vec<u8> {
    file.encode().expect("it fits")
}

fn time<'a>(file: &'a mut ProofFile<'static>) -> &'a mut TimeProof<'static> {
    let Proof::Time(proof) = &mut file.proof else { panic!("not of a time") };
    proof
}

fn judged(ledger: &Ledger, file: &ProofFile<'_>, newer: Option<&[u8]>) -> Result<TimeClaim, Failure> {
    let bytes = encode(file);
    match verify(&bytes, &trusted(ledger), newer)?.claim {
        Claim::Time(claim) => Ok(claim),
        other => panic!("not of a time: {other:?}"),
    }
}

/// The newest version that stands and is not later, by a look at all of them.
fn naive(ledger: &Ledger, time_ms: u64) -> Option<Stamp> {
    let mut standing = (0..=ledger.head().version.0).map(|version| ledger.epochs.stamp_of(Number(version)));
    standing.rfind(|stamp| ledger.versions[stamp].header.timestamp_ms <= time_ms)
}

#[test]
fn the_version_of_every_time_is_proven() {
    for ledger in [sample(), with_ledgers(), passed()] {
        let newest = ledger.newest().timestamp_ms;
        for after in (0..50).chain(1020..1050).chain(2030..2050).chain(2990..3010).chain(3990..4010) {
            let claim = judged(&ledger, &ledger.prove_time(START + after), None).expect("it holds");
            assert_eq!(Some(claim.header.stamp), naive(&ledger, START + after), "{after}");
            assert_eq!(claim.is_final(), START + after < newest, "{after}");
            assert_eq!(claim.next.is_none(), claim.header.stamp.version == ledger.head().version, "{after}");
        }
    }
    assert_eq!(naive(&sample(), START + 10), Some(Stamp::new(0, 3)), "the last of a tie");
    assert_eq!(naive(&sample(), START + 1029), Some(Stamp::new(0, 4)), "dead versions do not count");
}

#[test]
fn a_proof_answers_no_other_question() {
    let ledger = sample();
    let file = encode(&ledger.prove_time(START + 15));
    let asked = |question| {
        let answer = verify_answer(&file, &trusted(&ledger), None, &question);
        answer.map(drop).map_err(|failure| failure.to_string())
    };
    assert_eq!(asked(Question::about(Subject::Time(START + 15))), Ok(()));
    assert_eq!(
        asked(Question::about(Subject::Time(START + 16))),
        Err("question: the proof is for another time".to_owned())
    );
    assert_eq!(asked(Question::about(Subject::Growth(1))), Err("question: the proof is of another kind".to_owned()));
    let version = Question { version: Some(Number(4)), ..Question::default() };
    assert_eq!(asked(version), Err("question: the proof is for another version".to_owned()));
}

/// Every bit of a file, with a checksum that fits: it is refused, or says the same. Only the time
/// may be another one between the two versions.
#[test]
fn no_flipped_bit_proves_anything_else() {
    let ledger = sample();
    for after in [15, 3001] {
        let bytes = encode(&ledger.prove_time(START + after));
        let content = bytes.len() - 8;
        let honest = judged(&ledger, &ledger.prove_time(START + after), None).expect("it holds");
        let mut others = 0;
        for bit in 0..content * 8 {
            let mut flipped = bytes[..content].to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&[&flipped, &bytes[content..]].concat(), &trusted(&ledger), None).is_err(), "bit {bit}");
            flipped.extend(file_checksum(&flipped).to_le_bytes());
            let Ok(verified) = verify(&flipped, &trusted(&ledger), None) else { continue };
            let Claim::Time(claim) = verified.claim else { panic!("bit {bit}: of another kind") };
            assert_eq!(Some(claim.header.stamp), naive(&ledger, claim.time_ms), "bit {bit}");
            others += u32::from(claim.time_ms != honest.time_ms);
            assert_eq!(TimeClaim { time_ms: honest.time_ms, ..claim }, honest, "bit {bit}");
        }
        assert!(others > 0, "some other times have the same version");
    }
}

type Lie = (&'static str, Ledger, ProofFile<'static>, Step);

/// The part of any header of the log.
fn part_of(ledger: &Ledger, at: usize) -> HeaderPart<'static> {
    let entries: Vec<_> = ledger.headers.iter().map(Header::hash).collect();
    let path = merkle::inclusion_path(&entries, at as u64);
    HeaderPart { header: ledger.headers[at].encode().into(), path }
}

/// A proof that shows these versions for a time, as a liar would put it together.
fn told(ledger: &Ledger, after: u64, stamp: (u64, u64), next: Option<(u64, u64)>) -> ProofFile<'static> {
    let size = ledger.headers.len() as u64;
    let stamp = Stamp::new(stamp.0, stamp.1);
    let mut file = ledger.prove_time(START + after);
    let proof = time(&mut file);
    proof.header = ledger.header_part(stamp, size);
    if ledger.epochs.stands(stamp) {
        proof.epoch = ledger.epoch_part(stamp, size);
    }
    proof.next = next.map(|next| ledger.header_part(Stamp::new(next.0, next.1), size));
    file
}

/// Lies of a server that does not hold the ledger's key.
fn lies() -> Vec<Lie> {
    let mut lies = Vec::new();
    for (name, after, stamp, next, step) in [
        ("a tie: the first version of the time", 10, (0, 1), Some((0, 2)), Step::Time),
        ("a tie: the last but one of the time", 10, (0, 2), Some((0, 3)), Step::Time),
        ("a tie: the version after the last", 10, (0, 4), Some((1, 5)), Step::Time),
        ("a tie: the version before the first", 10, (0, 0), Some((0, 1)), Step::Time),
        ("a version left out between the two", 10, (0, 3), Some((1, 5)), Step::Time),
        ("the version after it of a dead epoch", 25, (0, 4), Some((0, 5)), Step::Time),
        ("a dead version", 30, (0, 6), Some((1, 5)), Step::Epoch),
        ("a dead version and the dead one before it", 30, (0, 5), Some((0, 6)), Step::Epoch),
        ("no next version, though it is not head", 10, (0, 3), None, Step::Time),
        ("no next version of a version below it", 25, (0, 4), None, Step::Time),
        ("the version twice", 10, (0, 3), Some((0, 3)), Step::Time),
        ("the version before it as the next", 25, (0, 4), Some((0, 3)), Step::Time),
        ("genesis for a later time", 12, (0, 0), Some((0, 1)), Step::Time),
        ("genesis as the next version", 12, (0, 3), Some((0, 0)), Step::Header),
    ] {
        let ledger = sample();
        let file = told(&ledger, after, stamp, next);
        lies.push((name, ledger, file, step));
    }
    let mut lie = |name, step, after, change: &dyn Fn(&Ledger, &mut TimeProof<'static>)| {
        let ledger = sample();
        let mut file = ledger.prove_time(START + after);
        change(&ledger, time(&mut file));
        lies.push((name, ledger, file, step));
    };
    lie("a time before genesis", Step::Time, 0, &|_, it| it.time_ms = START - 1);
    lie("a time after the next version", Step::Time, 15, &|_, it| it.time_ms = START + 20);
    lie("the rollback as the version", Step::Header, 1030, &|ledger, it| it.header = part_of(ledger, 7));
    lie("the rollback as the next version", Step::Header, 25, &|ledger, it| it.next = Some(part_of(ledger, 7)));
    lie("the prune as the next version", Step::Header, 1050, &|ledger, it| it.next = Some(part_of(ledger, 10)));
    lie("the path of the next version cut short", Step::Header, 15, &|_, it| {
        assert!(it.next.as_mut().is_some_and(|next| next.path.pop().is_some()));
    });
    lie("the path of the next version on the version", Step::Header, 15, &|_, it| {
        it.header.path = it.next.as_ref().expect("there is one").path.clone();
    });
    lie("the epoch of the next version", Step::Epoch, 25, &|ledger, it| {
        it.epoch = ledger.epoch_part(Stamp::new(1, 5), ledger.headers.len() as u64);
    });
    lies
}

/// Lies that the holder of the ledger's key has signed.
fn signed_lies() -> Vec<Lie> {
    let mut back = sample();
    commit_at(&mut back, 2000);
    let file = told(&back, 2500, (1, 6), Some((1, 7)));
    let decreasing = ("times that decrease along the log", back, file, Step::Time);

    let mut crossed = sample();
    commit_as(&mut crossed, Stamp::new(1, 9), 3010);
    commit_as(&mut crossed, Stamp::new(1, 8), 3005);
    let body = Body::Other { kind: 9, bytes: Vec::new() };
    let last = crossed.next_header(Stamp::new(1, 9), crossed.newest().state_root, &[], body);
    crossed.append(Header { timestamp_ms: START + 3020, ..last });
    let file = told(&crossed, 3007, (1, 8), Some((1, 9)));
    let order = ("a next version that lies before it in the log", crossed, file, Step::Time);

    let mut above = sample();
    commit_as(&mut above, Stamp::new(1, 8), 3010);
    let body = Body::Other { kind: 9, bytes: Vec::new() };
    let last = above.next_header(Stamp::new(1, 7), above.newest().state_root, &[], body);
    above.append(last);
    let file = told(&above, 3005, (1, 7), Some((1, 8)));
    vec![decreasing, order, ("a next version above the newest header's", above, file, Step::Time)]
}

#[test]
fn lies_are_refused() {
    for (name, ledger, file, step) in lies().into_iter().chain(signed_lies()) {
        assert_eq!(judged(&ledger, &file, None).err().map(|failure| failure.step), Some(step), "{name}");
    }
}

type Newer = (&'static str, Ledger, ProofFile<'static>, Vec<u8>, Option<Step>);

/// Proofs with a newer checkpoint.
fn newer() -> Vec<Newer> {
    let mut cases = Vec::new();
    let mut case = |name, after, step, change: &dyn Fn(&mut Ledger)| {
        let mut ledger = sample();
        let (file, size) = (ledger.prove_time(START + after), ledger.headers.len() as u64);
        change(&mut ledger);
        let newest = ledger.headers.len() as u64;
        let newer = encode(&ledger.standing(size, newest));
        cases.push((name, ledger, file, newer, step));
    };
    case("newer: a final answer that stands", 1030, None, &|ledger| commit_at(ledger, 5000));
    case("newer: a final answer, rolled back to it", 1030, None, &|ledger| ledger.roll_back(Number(5)));
    case("newer: a final answer, rolled back", 1030, Some(Step::Standing), &|ledger| ledger.roll_back(Number(4)));
    case("newer: an answer that is not final", 3005, Some(Step::Standing), &|ledger| commit_at(ledger, 3002));
    case("newer: an answer that is not final, at the same size", 3005, None, &|_| ());
    cases
}

#[test]
fn a_newer_checkpoint_confirms_final_answers_alone() {
    for (name, ledger, file, newer, step) in newer() {
        assert_eq!(judged(&ledger, &file, Some(&newer)).err().map(|failure| failure.step), step, "{name}");
    }
}

fn claim(claim: &TimeClaim) -> Value {
    let stamp = |stamp: Stamp| json!([stamp.epoch.0, stamp.version.0]);
    json!({
        "kind": "time", "version": stamp(claim.header.stamp), "time": claim.time_ms,
        "committed": claim.header.timestamp_ms, "next": claim.next.map(|(next, at)| json!([stamp(next), at])),
        "final": claim.is_final(),
    })
}

#[test]
fn vectors_of_times() {
    let mut cases = Vec::new();
    let mut case = |name: &str, ledger: &Ledger, file: &ProofFile<'_>, newer: Option<&[u8]>| {
        let (step, claim) = match judged(ledger, file, newer) {
            Ok(found) => (None, Some(claim(&found))),
            Err(failure) => (Some(failure.step.name()), None),
        };
        cases.push(json!({
            "name": name, "file": text(&encode(file)), "newer": newer.map(text), "failed step": step, "claim": claim,
        }));
    };
    for (name, after) in [
        ("genesis", 0),
        ("just before the first version", 9),
        ("a tie", 10),
        ("between two versions", 15),
        ("the version that was rolled back to", 25),
        ("a version behind a rollback, at its time", 1030),
        ("a version below a prune", 2500),
        ("the head at its time", 3000),
        ("the head, not final", 3500),
    ] {
        let ledger = sample();
        case(name, &ledger, &ledger.prove_time(START + after), None);
    }
    let ledger = passed();
    case("the head, final", &ledger, &ledger.prove_time(START + 3500), None);
    case("the head, no longer final", &ledger, &ledger.prove_time(START + 4000), None);
    case("the end of time", &ledger, &ledger.prove_time(u64::MAX), None);
    let ledger = with_ledgers();
    case("version 3: a tie", &ledger, &ledger.prove_time(START + 10), None);
    case("version 3: the head", &ledger, &ledger.prove_time(START + 3500), None);
    for (name, ledger, file, _) in lies().into_iter().chain(signed_lies()) {
        case(name, &ledger, &file, None);
    }
    for (name, ledger, file, newer, _) in newer() {
        case(name, &ledger, &file, Some(&newer));
    }
    compare(
        "times.json",
        &json!({
            "about": "Proofs of the version that stood at a time (kind 4), with what they claim, and lies with the step at which each fails. Times are ms since 1970; `next` is the version after it with its time.",
            "vkey": trusted(&sample()).to_string(),
            "cases": cases,
        }),
    );
}

/// Verifies the files alone, as a stranger would, independently of the model.
#[test]
fn stored_times_are_judged_as_stored() {
    let stored = stored("times.json");
    let key = VerifierKey::parse(stored["vkey"].as_str().expect("a text")).expect("a key");
    let cases = stored["cases"].as_array().expect("a list");
    assert!(cases.len() > 40);
    let bytes = |value: &Value| value.as_str().map(|text| hex::decode(text).expect("hex"));
    for case in cases {
        let file = bytes(&case["file"]).expect("a file");
        match verify(&file, &key, bytes(&case["newer"]).as_deref()) {
            Ok(verified) => {
                let Claim::Time(found) = &verified.claim else { panic!("not of a time") };
                assert_eq!(claim(found), case["claim"], "{}", case["name"]);
            }
            Err(failure) => assert_eq!(failure.step.name(), case["failed step"], "{}: {failure}", case["name"]),
        }
    }
}
