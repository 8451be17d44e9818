//! A ledger that changes its key. A verifier that knows one of its keys can follow the changes to
//! the others, but not to a foreign key.

mod common;

use std::{borrow::Cow, fs, path::PathBuf};

use common::{Sample, params};
use coppice_types::{Digest, Stamp};
use coppice_verify::{
    Failure, Step,
    check::{Question, verify_known},
    hash::file_checksum,
    header::{Body, Header},
    keys::{KEY_CHANGES_MAX, KeyChange, Keys},
    merkle,
    note::{SignerKey, VerifierKey},
    proof::{HeaderPart, LogPart, Proof, ProofFile},
    verify,
};
use serde_json::{Value, json};

/// A ledger with versions 1 to 4 under its first key, 5 to 8 under the second, and 9 under the
/// third.
fn sample() -> Sample {
    let mut sample = Sample::new(&params(), 3);
    (0..4).for_each(|_| sample.commit_random(5));
    sample.ledger.rotate(&[8; 32]);
    (0..4).for_each(|_| sample.commit_random(5));
    sample.ledger.rotate(&[9; 32]);
    sample.commit_random(5);
    sample
}

const SIZE: u64 = 12;
/// Sequences of the key changes.
const CHANGES: [u64; 2] = [5, 10];

fn key(seed: u8) -> SignerKey {
    SignerKey::from_seed(sample().ledger.key.name(), &[seed; 32]).expect("a name")
}

fn trusted(seed: u8) -> VerifierKey {
    key(seed).verifier().clone()
}

fn log<'a, 'b>(file: &'b mut ProofFile<'a>) -> &'b mut LogPart<'a> {
    match &mut file.proof {
        Proof::Query(proof) => &mut proof.log,
        Proof::Receipt(proof) => &mut proof.log,
        Proof::Standing(proof) => &mut proof.log,
        Proof::Journals(_) | Proof::Time(_) | Proof::Lineage(_) | Proof::Interval(_) => {
            panic!("other tests have these kinds")
        }
    }
}

fn encode(file: &ProofFile<'_>) -> Vec<u8> {
    file.encode().expect("it fits")
}

/// The proof of an answer at version 2, made when the log had this many entries.
fn made_at(size: u64) -> ProofFile<'static> {
    let sample = sample();
    let ledger = &sample.ledger;
    let mut file = ledger.receipt(Stamp::new(0, 2), 1);
    let Proof::Receipt(proof) = &mut file.proof else { panic!("a receipt") };
    proof.log = ledger.log_part(size);
    proof.header = ledger.header_part(Stamp::new(0, 2), size);
    proof.epoch = ledger.epoch_part(Stamp::new(0, 2), size);
    file
}

/// A standing proof between two sizes.
fn standing(old: u64, size: u64) -> ProofFile<'static> {
    sample().ledger.standing(old, size)
}

#[test]
fn every_key_of_the_ledger_leads_to_the_newest() {
    let bytes = encode(&made_at(SIZE));
    for seed in [7, 8, 9] {
        let verified = verify(&bytes, &trusted(seed), None).expect("an honest proof");
        assert_eq!(verified.keys.newest(), &trusted(9));
        assert_eq!(verified.keys.first(), &trusted(7));
        let changes: Vec<_> = verified.keys.changes().map(|(at, key)| (at.0, key.clone())).collect();
        assert_eq!(changes, [(CHANGES[0], trusted(8)), (CHANGES[1], trusted(9))]);
    }
    let failure = verify(&bytes, &trusted(6), None).expect_err("never a key of this ledger");
    assert_eq!(failure.step, Step::Keys);
    assert!(failure.to_string().contains("is it a key of this ledger?"), "{failure}");
}

#[test]
fn a_checkpoint_is_signed_by_the_key_in_force_at_its_size() {
    // The new key signs the first checkpoint that contains the change.
    for (size, by) in [(3, 7), (5, 7), (6, 8), (10, 8), (11, 9), (12, 9)] {
        let bytes = encode(&made_at(size));
        let verified = verify(&bytes, &trusted(7), None).expect("an honest proof");
        assert_eq!(verified.keys.in_force(size), &trusted(by), "size {size}");
        for seed in [7, 8, 9] {
            let believed = verify(&bytes, &trusted(seed), None).is_ok();
            assert_eq!(believed, seed <= by, "size {size}, trusting {seed}");
        }
    }
}

/// A verifier that trusts only a newer key does not believe a replaced one. It accepts an older
/// checkpoint that is shown to be a beginning of the log.
#[test]
fn a_proof_from_before_a_key_change_holds_with_a_newer_checkpoint() {
    for old in [3, 5, 8, 11] {
        let (file, newer) = (encode(&made_at(old)), encode(&standing(old, SIZE)));
        for seed in [7, 8, 9] {
            let verified = verify(&file, &trusted(seed), Some(&newer)).expect("it is a beginning of the log");
            assert_eq!(verified.newer.expect("it was given").size, SIZE);
        }
        let failure = verify(&file, &trusted(9), None);
        assert_eq!(failure.is_err(), old < 11, "size {old}");
    }
    let known = verify(&encode(&made_at(SIZE)), &trusted(7), None).expect("an honest proof").keys.advanced();
    let before = made_at(5);
    let failure =
        verify_known(&before, &known, None, &Question::default()).expect_err("the first key is not believed any more");
    assert!(failure.to_string().contains("show a newer checkpoint"), "{failure}");
    assert!(verify_known(&before, &known, Some(&encode(&standing(5, SIZE))), &Question::default()).is_ok());
    assert!(verify_known(&made_at(11), &known, None, &Question::default()).is_ok());
}

/// The thief of the first key signs logs that the ledger never had: their sizes are beyond the
/// change of the key.
fn late() -> ProofFile<'static> {
    let mut file = made_at(SIZE);
    let part = log(&mut file);
    let checkpoint = sample().ledger.checkpoint(SIZE);
    part.checkpoint = Cow::Owned(checkpoint.sign(&key(7)).expect("the same name").into_bytes());
    file
}

#[test]
fn a_late_checkpoint_of_a_replaced_key_is_refused_once_the_change_is_known() {
    let failure = verify(&encode(&late()), &trusted(7), None).expect_err("the file itself tells");
    assert_eq!(failure.step, Step::Checkpoint);
    assert!(failure.to_string().contains("not in force at this size"), "{failure}");
    let mut hidden = late();
    log(&mut hidden).key_changes.clear();
    // A verifier that has only the first key, and has seen nothing else, can't know better.
    assert!(verify(&encode(&hidden), &trusted(7), None).is_ok());
    for known in [6, SIZE] {
        let keys = verify(&encode(&made_at(known)), &trusted(7), None).expect("an honest proof").keys;
        let failure = verify_known(&hidden, &keys, None, &Question::default()).expect_err("the change is known");
        assert_eq!(failure.step, Step::Checkpoint, "{failure}");
    }
    let newer = encode(&standing(SIZE, SIZE));
    let failure = verify(&encode(&hidden), &trusted(7), Some(&newer)).expect_err("the newer checkpoint tells");
    assert_eq!(failure.step, Step::Checkpoint, "{failure}");
    assert!(
        verify(&encode(&hidden), &trusted(8), None).is_err() && verify(&encode(&hidden), &trusted(9), None).is_err()
    );
}

#[test]
fn without_the_changes_the_message_says_what_to_do() {
    let mut file = made_at(SIZE);
    log(&mut file).key_changes.clear();
    assert!(verify(&encode(&file), &trusted(9), None).is_ok());
    let failure = verify(&encode(&file), &trusted(7), None).expect_err("nothing leads there");
    assert!(failure.to_string().contains("the changes are missing; ask for a new proof file"), "{failure}");
}

#[test]
fn two_logs_with_different_key_changes_do_not_fit_together() {
    let keys = verify(&encode(&made_at(SIZE)), &trusted(7), None).expect("an honest proof").keys;
    let mut fork = Sample::new(&params(), 3);
    (0..3).for_each(|_| fork.commit_random(5));
    fork.ledger.rotate(&[6; 32]);
    let size = fork.ledger.headers.len() as u64;
    let file = fork.ledger.standing(2, size);
    assert!(verify(&encode(&file), &trusted(7), None).is_ok(), "a thief of the first key could have signed it");
    let failure = verify_known(&file, &keys, None, &Question::default()).expect_err("a fork");
    assert!(failure.step == Step::Keys && failure.to_string().contains("evidence"), "{failure}");
}

struct Forgery {
    name: &'static str,
    step: &'static str,
    file: ProofFile<'static>,
}

/// Forged key changes of a server that has none of the keys, or only a stolen one.
fn forgeries() -> Vec<Forgery> {
    let sample = sample();
    let ledger = &sample.ledger;
    let entries: Vec<Digest> = ledger.headers.iter().map(Header::hash).collect();
    let part = |header: &Header| HeaderPart {
        header: Cow::Owned(header.encode()),
        path: merkle::inclusion_path(&entries, header.sequence.0.min(SIZE - 1)),
    };
    let mut list = Vec::new();
    let mut forge = |name, step, change: &dyn Fn(&mut LogPart<'static>)| {
        let mut file = made_at(SIZE);
        change(log(&mut file));
        list.push(Forgery { name, step, file });
    };
    let changed = |at: usize, edit: &dyn Fn(&mut Header, &mut KeyChange)| {
        let mut header = ledger.headers[CHANGES[at] as usize].clone();
        let Body::Key(mut change) = header.body.clone() else { panic!("a key change") };
        edit(&mut header, &mut change);
        header.body = Body::Key(change);
        header
    };
    // A header whose key change has this number and is signed with these keys.
    let signed = |at: usize, number: u32, old: &SignerKey, new: &SignerKey| {
        changed(at, &|_, change| *change = KeyChange::sign(number, &ledger.cluster, old, new))
    };
    forge("the first change left out", "keys", &|part| drop(part.key_changes.remove(0)));
    forge("the last change left out", "checkpoint", &|part| drop(part.key_changes.pop()));
    forge("the changes in another order", "keys", &|part| part.key_changes.swap(0, 1));
    forge("a change twice", "keys", &|part| part.key_changes.push(part.key_changes[1].clone()));
    forge("a commit among the changes", "keys", &|it| it.key_changes[0] = part(&ledger.headers[3]));
    forge("a change with another path", "keys", &|part| part.key_changes[0].path[0].0[0] ^= 1);
    forge("a change without its path", "keys", &|part| part.key_changes[1].path.clear());
    forge("a change that is not in the log", "keys", &|it| {
        it.key_changes[0] = part(&changed(0, &|header, _| header.timestamp_ms += 1));
    });
    forge("a change at another place of the log", "keys", &|it| {
        it.key_changes[0] = part(&changed(0, &|header, _| header.sequence.0 += 1));
    });
    forge("a change of another cluster", "keys", &|it| {
        it.key_changes[0] = part(&changed(0, &|header, _| header.cluster.0[0] ^= 1));
    });
    forge("another number", "keys", &|it| it.key_changes[0] = part(&changed(0, &|_, change| change.number = 2)));
    forge("number 0", "keys", &|it| it.key_changes[0] = part(&signed(0, 0, &key(7), &key(8))));
    forge("a number too high, soundly signed", "keys", &|it| it.key_changes[1] = part(&signed(1, 3, &key(8), &key(9))));
    forge("another old key", "keys", &|it| it.key_changes[0] = part(&changed(0, &|_, change| change.old[0] ^= 1)));
    forge("another new key", "keys", &|it| it.key_changes[1] = part(&changed(1, &|_, change| change.new[0] ^= 1)));
    forge("an old key that has not signed", "keys", &|it| {
        it.key_changes[1] = part(&changed(1, &|_, change| change.by_old = change.by_new));
    });
    forge("a new key that has not signed", "keys", &|it| {
        it.key_changes[1] = part(&changed(1, &|_, change| change.by_new = change.by_old));
    });
    forge("signatures of another change", "keys", &|it| {
        let Body::Key(first) = &ledger.headers[CHANGES[0] as usize].body else { panic!("a key change") };
        it.key_changes[1] =
            part(&changed(1, &|_, change| (change.by_old, change.by_new) = (first.by_old, first.by_new)));
    });
    forge("a thief's key, signed for by the thief alone", "keys", &|it| {
        it.key_changes[1] = part(&changed(1, &|_, change| {
            let own = KeyChange::sign(2, &ledger.cluster, &key(5), &key(5));
            (change.new, change.by_new) = (own.new, own.by_new);
        }));
    });
    forge("a change from a key that was replaced", "keys", &|it| {
        it.key_changes[1] = part(&signed(1, 2, &key(7), &key(5)))
    });
    forge("a change back to an earlier key", "keys", &|it| it.key_changes[1] = part(&signed(1, 2, &key(8), &key(7))));
    forge("a soundly signed change that is not in the log", "checkpoint", &|it| {
        it.key_changes[1] = part(&signed(1, 2, &key(8), &key(5)));
    });
    forge("a change of a small-order key", "keys", &|it| {
        it.key_changes[1] = part(&changed(1, &|_, change| {
            change.new = [0; 32];
            change.new[0] = 1;
        }));
    });
    forge("a checkpoint by the first key, late", "checkpoint", &|part| {
        part.checkpoint = late().proof.log().checkpoint.clone().into_owned().into();
    });
    forge("a checkpoint by the second key, late", "checkpoint", &|part| {
        let checkpoint = ledger.checkpoint(SIZE).sign(&key(8)).expect("the same name");
        part.checkpoint = Cow::Owned(checkpoint.into_bytes());
    });
    forge("a checkpoint by the third key, early", "checkpoint", &|part| {
        *part = ledger.log_part(8);
        part.checkpoint = Cow::Owned(ledger.checkpoint(8).sign(&key(9)).expect("the same name").into_bytes());
    });
    forge("a change above the checkpoint", "keys", &|part| {
        let all = part.key_changes.clone();
        *part = ledger.log_part(8);
        part.key_changes = all;
    });
    list
}

#[test]
fn every_forged_chain_is_refused_at_its_step() {
    for Forgery { name, step, file } in forgeries() {
        let failure: Failure = verify(&encode(&file), &trusted(7), None).expect_err(name);
        assert_eq!(failure.step.name(), step, "{name}: {failure}");
        for seed in [8, 9] {
            // Under the key that signed the checkpoint, changes that are left out may go unnoticed.
            // Nothing false is proven.
            let refused = verify(&encode(&file), &trusted(seed), None).is_err();
            assert!(refused || name == "a checkpoint by the third key, early", "{name}, trusting {seed}");
        }
    }
}

/// A liar repairs the checksum. No bit of the key changes is free even so.
#[test]
fn a_file_with_any_bit_of_its_key_changes_flipped_fails() {
    let file = made_at(SIZE);
    let bytes = encode(&file);
    for change in &file.proof.log().key_changes {
        let at = bytes.windows(change.header.len()).position(|window| window == &*change.header).expect("it is there");
        let content = bytes.len() - 8;
        for byte in at - 2..at + change.header.len() + 2 + 32 * change.path.len() {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (byte % 8);
            let checksum = file_checksum(&flipped[..content]);
            flipped[content..].copy_from_slice(&checksum.to_le_bytes());
            let failure = verify(&flipped, &trusted(7), None).expect_err("a flipped bit");
            // A change with another sequence is in force at other sizes.
            assert!(matches!(failure.step, Step::Keys | Step::Format | Step::Checkpoint), "byte {byte}: {failure}");
        }
    }
}

#[test]
fn a_file_of_another_format_is_refused_by_name() {
    for other in [0, 1, 2, 5] {
        let mut bytes = encode(&made_at(SIZE));
        bytes[13] = other;
        let content = bytes.len() - 8;
        let checksum = file_checksum(&bytes[..content]);
        bytes[content..].copy_from_slice(&checksum.to_le_bytes());
        let failure = verify(&bytes, &trusted(7), None).expect_err("another format").to_string();
        assert!(failure.contains("proof file format: this build reads only formats 3 and 4"), "{failure}");
    }
}

#[test]
fn the_number_of_key_changes_is_bounded() {
    let cluster = sample().ledger.cluster;
    let seeds = |at: usize| [(at % 256) as u8, (at / 256) as u8 + 1].repeat(16).try_into().expect("32 bytes");
    let signer = |at: usize| SignerKey::from_seed("ledger.example/x", &seeds(at)).expect("a name");
    let changes: Vec<KeyChange> = (0..=KEY_CHANGES_MAX)
        .map(|at| KeyChange::sign(at as u32 + 1, &cluster, &signer(at), &signer(at + 1)))
        .collect();
    let keys = Keys::new(signer(0).verifier().clone());
    let follow = |count: usize| {
        keys.follow(
            changes[..count].iter().enumerate().map(|(at, change)| (coppice_types::Sequence(at as u64 + 1), change)),
        )
    };
    assert!(follow(KEY_CHANGES_MAX).is_ok());
    assert!(follow(KEY_CHANGES_MAX + 1).is_err());
}

/// Files for strangers and for `second.py`.
#[test]
fn vectors() {
    let mut cases = Vec::new();
    let mut add = |name: &str, file: &ProofFile<'_>, newer: Option<ProofFile<'_>>| {
        let newer = newer.map(|newer| encode(&newer));
        let bytes = encode(file);
        let results: Vec<Value> = [7, 8, 9]
            .map(|seed| {
                let verified = verify(&bytes, &trusted(seed), newer.as_deref());
                let signer = verified.as_ref().ok().map(|it| it.keys.in_force(it.checkpoint.size).to_string());
                json!({
                    "key": trusted(seed).to_string(), "valid": verified.is_ok(), "signed by": signer,
                    "failed step": verified.err().map(|failure| failure.step.name()),
                })
            })
            .into();
        let newer = newer.as_ref().map(hex::encode);
        cases.push(json!({ "name": name, "file": hex::encode(&bytes), "newer": newer, "results": results }));
    };
    for size in [5, 6, 10, SIZE] {
        add(&format!("a receipt at {size} entries"), &made_at(size), None);
    }
    add("a receipt at 3 entries, with a newer checkpoint", &made_at(3), Some(standing(3, SIZE)));
    add("a receipt at 8 entries, with a newer checkpoint", &made_at(8), Some(standing(8, SIZE)));
    let mut hidden = late();
    log(&mut hidden).key_changes.clear();
    add(
        "a late checkpoint of the first key, with a newer one that tells of the change",
        &hidden,
        Some(standing(SIZE, SIZE)),
    );
    for Forgery { name, file, .. } in forgeries() {
        add(name, &file, None);
    }
    let vectors: Value = json!({
        "about": "Proof files of a ledger that changed its key at entries 5 and 10; seeds 32 bytes of 07, 08, 09. Each is verified under each of the keys.",
        "cases": cases,
    });
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors/rotation.json");
    if std::env::var_os("COPPICE_WRITE_VECTORS").is_some() {
        let text = serde_json::to_string_pretty(&vectors).expect("a value is JSON");
        fs::write(&path, text + "\n").expect("the file is written");
    }
    let text = fs::read_to_string(&path).expect("the file is there");
    let stored: Value = serde_json::from_str(&text).expect("the file is JSON");
    assert!(stored == vectors, "rotation.json is not what the code makes now");
}
