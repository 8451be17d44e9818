//! Anchors: their bytes, the rules along a log, and proofs of the stamps around an entry. The
//! vectors are in `vectors/anchors.json`; `COPPICE_WRITE_VECTORS=1` writes them again.

mod common;

use std::borrow::Cow;

use common::{
    Sample, params,
    vectors::{compare, text},
};
use coppice_types::Digest;
use coppice_verify::{
    Step,
    anchor::{Anchor, Stamps, Token},
    audit::Chain,
    check::{AnchorClaim, Claim, Question, Subject},
    checkpoint::Checkpoint,
    hash::sha256,
    header::{Body, Header},
    merkle,
    proof::{ANCHORS_MAX, IntervalProof, Proof, ProofFile},
    report, verify,
};
use serde_json::{Value, json};

fn token(text: &str) -> Token {
    Token { kind: 1, chain: 0, bytes: text.as_bytes().to_vec() }
}

/// Versions 1 to 3 at entries 1 to 3; an anchor of 3 entries at 4; versions 4 to 6 at 5 to 7; an
/// anchor of 7 entries with a token of a later kind at 8; version 7 at 9; a chain at 10; an anchor
/// of 11 entries at 11; version 8 at 12.
fn sample() -> Sample {
    let mut sample = Sample::new(&params(), 5);
    (0..3).for_each(|_| sample.commit_random(4));
    sample.ledger.anchor(3, vec![token("one"), token("by another")]);
    (0..3).for_each(|_| sample.commit_random(4));
    sample.ledger.anchor(7, vec![token("two"), Token { kind: 9, chain: 7, bytes: b"later".to_vec() }]);
    sample.commit_random(4);
    let chain = Body::Anchor(Anchor::Chain(vec![b"certificate".to_vec(), b"another".to_vec()]));
    let ledger = &mut sample.ledger;
    let header = ledger.next_header(ledger.head(), ledger.newest().state_root, &[], chain);
    ledger.append(header);
    ledger.anchor(11, vec![token("three")]);
    sample.commit_random(4);
    sample
}

fn interval<'a, 'b>(file: &'b mut ProofFile<'a>) -> &'b mut IntervalProof<'a> {
    match &mut file.proof {
        Proof::Interval(proof) => proof,
        other => panic!("not an interval: {other:?}"),
    }
}

fn claim(file: &ProofFile<'_>, sample: &Sample) -> Value {
    let bytes = file.encode().expect("it fits");
    let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("it holds");
    let Claim::Interval(claim) = &verified.claim else { panic!("an interval") };
    let anchor = |anchor: &AnchorClaim| {
        let tokens = anchor.stamps.tokens.iter().map(|token| json!([token.kind, token.chain, text(&token.bytes)]));
        json!({
            "sequence": anchor.sequence.0, "size": anchor.stamps.size, "root": anchor.stamps.root.to_string(),
            "imprint": anchor.imprint.to_string(), "tokens": tokens.collect::<Value>(),
        })
    };
    let stamp = claim.header.stamp;
    json!({
        "kind": "interval", "version": [stamp.epoch.0, stamp.version.0], "sequence": claim.header.sequence.0,
        "below": claim.below.iter().map(anchor).collect::<Value>(),
        "above": claim.above.iter().map(anchor).collect::<Value>(),
    })
}

/// Honest files: name and file.
fn honest(sample: &Sample) -> Vec<(&'static str, ProofFile<'static>)> {
    let of = |sequence, below: &[u64], above: &[u64]| sample.ledger.interval(sequence, below, above);
    vec![
        ("a version between two anchors", of(5, &[4], &[8])),
        ("a version with all anchors", of(6, &[4], &[8, 11])),
        ("a version that no anchor stamps", of(12, &[8, 11], &[])),
        ("a version before all anchors", of(1, &[], &[4])),
        ("genesis", of(0, &[], &[4, 8, 11])),
        ("the last entry that an anchor stamps", of(2, &[], &[4])),
        ("an anchor itself", of(8, &[4], &[11])),
        ("no anchors", of(5, &[], &[])),
    ]
}

/// Lies: name, step and file.
fn lies(sample: &Sample) -> Vec<(&'static str, Step, ProofFile<'static>)> {
    let ledger = &sample.ledger;
    let edited = |sequence, below: &[u64], above: &[u64], edit: &dyn Fn(&mut IntervalProof<'static>)| {
        let mut file = ledger.interval(sequence, below, above);
        edit(interval(&mut file));
        file
    };
    let swapped = |header: Header| Cow::Owned(header.encode());
    let restamped = |size: u64| {
        let Body::Anchor(Anchor::Stamps(stamps)) = &ledger.headers[8].body else { panic!("an anchor") };
        let body = Body::Anchor(Anchor::Stamps(Stamps { size, ..stamps.clone() }));
        swapped(Header { body, ..ledger.headers[8].clone() })
    };
    let stamped_root = ledger.checkpoint(7).root;
    assert_ne!(stamped_root, Digest::default());
    vec![
        ("an anchor below that lies above", Step::Anchors, ledger.interval(5, &[8], &[])),
        ("the entry's own anchor below", Step::Anchors, ledger.interval(8, &[8], &[])),
        ("a commit for an anchor", Step::Anchors, ledger.interval(5, &[3], &[])),
        ("a chain for stamps", Step::Anchors, ledger.interval(12, &[10], &[])),
        ("anchors below out of order", Step::Anchors, ledger.interval(12, &[11, 8], &[])),
        ("an anchor below twice", Step::Anchors, ledger.interval(12, &[8, 8], &[])),
        ("anchors above out of order", Step::Anchors, ledger.interval(5, &[], &[11, 8])),
        ("an anchor above that stamps fewer entries", Step::Anchors, {
            let mut file = ledger.interval(5, &[], &[8]);
            let other = ledger.interval(2, &[], &[4]);
            let Proof::Interval(other) = other.proof else { panic!("an interval") };
            interval(&mut file).above = other.above;
            file
        }),
        ("an anchor above with the path of another entry", Step::Anchors, {
            edited(5, &[], &[8], &|proof| {
                let entries: Vec<Digest> = ledger.headers[..7].iter().map(Header::hash).collect();
                proof.above[0].1 = merkle::inclusion_path(&entries, 6);
            })
        }),
        ("a hash too many in the path", Step::Anchors, {
            edited(5, &[], &[8], &|proof| proof.above[0].1.push(Digest::default()))
        }),
        ("an anchor that is not in the log", Step::Anchors, {
            edited(5, &[], &[8], &|proof| proof.above[0].0.header = restamped(8))
        }),
        ("an anchor at another place", Step::Anchors, {
            edited(12, &[8], &[], &|proof| {
                let header = Header { sequence: coppice_types::Sequence(9), ..ledger.headers[8].clone() };
                proof.below[0].header = swapped(header);
            })
        }),
        ("another entry's path", Step::Header, { edited(5, &[4], &[8], &|proof| proof.header.path.swap(0, 1)) }),
        ("an entry that is not in the log", Step::Header, {
            edited(5, &[4], &[8], &|proof| {
                let header = Header { timestamp_ms: 1, ..ledger.headers[5].clone() };
                proof.header.header = swapped(header);
            })
        }),
    ]
}

/// Bodies of anchors that no decoder takes: why, and the header.
fn broken(sample: &Sample) -> Vec<(&'static str, Vec<u8>)> {
    let header = &sample.ledger.headers[8];
    let Body::Anchor(Anchor::Stamps(stamps)) = &header.body else { panic!("an anchor") };
    let with = |edit: &dyn Fn(&mut Stamps)| {
        let mut stamps = stamps.clone();
        edit(&mut stamps);
        Header { body: Body::Anchor(Anchor::Stamps(stamps)), ..header.clone() }.encode()
    };
    let chain = |certificates: Vec<Vec<u8>>| {
        Header { body: Body::Anchor(Anchor::Chain(certificates)), ..header.clone() }.encode()
    };
    let tokens = |count: usize, bytes: usize| {
        with(&|stamps| stamps.tokens = vec![Token { kind: 1, chain: 0, bytes: vec![7; bytes] }; count])
    };
    let mut form = header.encode();
    let body = form.len() - (1 + 8 + 32 + 2 + 2 * 6 + 3 + 5);
    form[body] = 2;
    vec![
        ("another form", form),
        ("nothing stamped", with(&|stamps| stamps.size = 0)),
        ("a stamped size above its sequence", with(&|stamps| stamps.size = 9)),
        ("no token", tokens(0, 1)),
        ("33 tokens", tokens(33, 1)),
        ("an empty token", tokens(1, 0)),
        ("a token of 16,385 bytes", tokens(1, 16_385)),
        ("tokens of 64,004 bytes", tokens(4, 16_001)),
        ("no certificate", chain(Vec::new())),
        ("33 certificates", chain(vec![vec![1]; 33])),
        ("an empty certificate", chain(vec![Vec::new()])),
        ("a journal", Header { journal_leaves: 1, ..header.clone() }.encode()),
    ]
}

#[test]
fn vectors() {
    let sample = sample();
    let entries: Value = sample.ledger.headers.iter().map(|header| text(&header.encode())).collect();
    let invalid: Value = broken(&sample)
        .into_iter()
        .map(|(why, bytes)| {
            assert!(Header::decode(&bytes).is_err(), "{why}");
            json!({ "why": why, "bytes": text(&bytes) })
        })
        .collect();
    let good = honest(&sample).into_iter().map(|(name, file)| {
        json!({ "name": name, "file": text(&file.encode().expect("it fits")), "claim": claim(&file, &sample) })
    });
    let bad = lies(&sample).into_iter().map(|(name, step, file)| {
        let bytes = file.encode().expect("it fits");
        let failure = verify(&bytes, sample.ledger.key.verifier(), None).expect_err(name);
        assert_eq!(failure.step, step, "{name}: {failure}");
        json!({ "name": name, "file": text(&bytes), "failed step": step.name() })
    });
    compare(
        "anchors.json",
        &json!({
            "about": "A log with anchors, whose tokens are words; headers of anchors that no decoder takes; interval proofs, honest ones and lies with the step that refuses them.",
            "vkey": sample.ledger.key.verifier().to_string(),
            "entries": entries, "invalid headers": invalid,
            "proofs": good.collect::<Value>(), "lies": bad.collect::<Value>(),
        }),
    );
}

#[test]
fn a_log_with_anchors_keeps_the_rules_of_an_audit() {
    let sample = sample();
    let mut chain = Chain::default();
    for header in &sample.ledger.headers {
        chain.take(header.clone()).expect("a sound log");
    }
    // The same size again, and a smaller one.
    for size in [11, 7, 12] {
        let (mut chain, mut again) = (chain.clone(), common_log(&sample));
        again.ledger.anchor(size, vec![token("again")]);
        let verdict = chain.take(again.ledger.newest().clone());
        assert_eq!(verdict.is_ok(), size == 12, "{size}: {verdict:?}");
    }
}

/// The sample again: a ledger can't be cloned.
fn common_log(sample: &Sample) -> Sample {
    let again = self::sample();
    assert_eq!(again.ledger.headers, sample.ledger.headers);
    again
}

#[test]
fn any_flipped_bit_behind_the_checksum_is_found() {
    let sample = sample();
    let file = sample.ledger.interval(5, &[4], &[8]);
    let bytes = file.encode().expect("it fits");
    let content = &bytes[..bytes.len() - 8];
    let known = claim(&file, &sample);
    for bit in 0..content.len() * 8 {
        let mut flipped = content.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped.extend(coppice_verify::hash::file_checksum(&flipped.clone()).to_le_bytes());
        if let Ok(verified) = verify(&flipped, sample.ledger.key.verifier(), None) {
            panic!("bit {bit} of {known} leaves {verified:?}");
        }
    }
}

#[test]
fn a_file_has_few_anchors_on_each_side() {
    let sample = sample();
    let mut file = sample.ledger.interval(12, &[8], &[]);
    let one = interval(&mut file).below[0].clone();
    interval(&mut file).below = vec![one.clone(); ANCHORS_MAX];
    assert!(ProofFile::decode(&file.encode().expect("it fits")).is_ok());
    interval(&mut file).below.push(one);
    assert!(file.encode().is_err());
}

#[test]
fn the_report_and_the_question_know_intervals() {
    let sample = sample();
    let bytes = sample.ledger.interval(5, &[4], &[8]).encode().expect("it fits");
    let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("it holds");
    let report: Value =
        serde_json::from_str(&report::proven(&verified, None, None).expect("no bytes")).expect("reports are JSON");
    assert_eq!((&report["kind"], &report["sequence"]), (&json!("interval"), &json!(5)));
    assert_eq!(report["below"][0]["tokens"].as_array().map(Vec::len), Some(2));
    let imprint = report["above"][0]["imprint"].as_str().expect("a hash").to_owned();
    let Checkpoint { origin, .. } = sample.ledger.checkpoint(1);
    let stamped = Checkpoint { origin, ..sample.ledger.checkpoint(7) };
    assert_eq!(imprint, sha256(stamped.text().as_bytes()).to_string());
    let version = verified.header().expect("an entry").stamp.version;
    assert!(verified.answers(&Question { version: Some(version), ..Question::default() }).is_ok());
    let keys = Question::about(Subject::Keys(vec![b"key"]));
    assert_eq!(verified.answers(&keys).expect_err("another kind").step, Step::Question);
}
