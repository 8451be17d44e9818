//! A lying server is caught, at the step that the attack is on; a damaged file never verifies.

mod common;

use std::collections::BTreeSet;

use common::{
    Sample,
    attacks::{attacks, targets},
    is_true,
};
use coppice_types::{Stamp, Version};
use coppice_verify::{Step, check::Claim, hash::file_checksum, verify};

#[test]
fn every_attack_fails_at_its_step() {
    let sample = Sample::standard();
    let attacks = attacks(&sample);
    let mut names = BTreeSet::new();
    let (mut steps, mut wrong) = (BTreeSet::new(), Vec::new());
    for attack in &attacks {
        let bytes = attack.file.encode().expect("it fits");
        match verify(&bytes, sample.ledger.key.verifier(), attack.newer.as_deref()) {
            Ok(verified) => wrong.push(format!("{}: verified {:?}", attack.name, verified.claim)),
            Err(failure) if failure.step.name() != attack.step => {
                wrong.push(format!("{}: not at {}, but {failure}", attack.name, attack.step));
            }
            Err(failure) => drop(steps.insert(failure.step)),
        }
        assert!(names.insert(attack.name), "{} twice", attack.name);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The first step has the test of damaged files.
    steps.insert(Step::Format);
    assert_eq!(steps.into_iter().collect::<Vec<_>>(), Step::ALL, "every step catches something");
}

/// The proof files whose bits are flipped: name, file, and whether other questions than the one asked may be answered by it.
fn kinds(sample: &Sample) -> Vec<(&'static str, Vec<u8>, bool)> {
    let ledger = &sample.ledger;
    let targets = targets(sample);
    let genesis = Stamp::default();
    let range = ledger.prove_range(targets.stamp, &targets.absent, Some(&[&targets.absent[..4], b"99"].concat()), true);
    [
        ("a present key", ledger.prove_keys(targets.stamp, &[&targets.updated], true), true),
        ("an absent key", ledger.prove_keys(targets.stamp, &[&targets.absent], true), true),
        ("keys in two shards", ledger.prove_keys(targets.stamp, &[&targets.old, b"key-01"], false), true),
        ("a range", range, true),
        ("an empty range", ledger.prove_range(genesis, b"a", Some(b"b"), true), true),
        ("a receipt", ledger.receipt(targets.stamp, 1), false),
        ("a standing proof", ledger.standing(11, ledger.headers.len() as u64), false),
    ]
    .map(|(name, file, free)| (name, file.encode().expect("it fits"), free))
    .into()
}

#[test]
fn a_file_with_any_bit_flipped_fails() {
    let sample = Sample::standard();
    for (name, bytes, _) in kinds(&sample) {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let failure = verify(&flipped, sample.ledger.key.verifier(), None).expect_err(name);
            assert_eq!(failure.step, Step::Format, "{name} {bit}: {failure}");
        }
        for len in 0..bytes.len() {
            let failure = verify(&bytes[..len], sample.ledger.key.verifier(), None).expect_err(name);
            assert_eq!(failure.step, Step::Format, "{name} {len}: {failure}");
        }
    }
}

/// A liar repairs the checksum. Then only bits of the question are free, and only for another question whose true answer the file proves.
#[test]
fn a_file_with_any_bit_flipped_and_its_checksum_repaired_proves_nothing_false() {
    let sample = Sample::standard();
    let key = sample.ledger.key.verifier();
    for (name, bytes, free) in kinds(&sample) {
        let honest = verify(&bytes, key, None).expect("an honest proof");
        let content = bytes.len() - 8;
        let mut other_questions = 0;
        for bit in 0..content * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let checksum = file_checksum(&flipped[..content]);
            flipped[content..].copy_from_slice(&checksum.to_le_bytes());
            let Ok(verified) = verify(&flipped, key, None) else { continue };
            let Claim::Query(claim) = &verified.claim else { panic!("{name}: bit {bit} is free") };
            assert!(free && is_true(claim, &sample.states), "{name}: bit {bit} proves {claim:?}");
            assert_ne!(verified.claim, honest.claim, "{name}: bit {bit} is checked by nothing");
            assert_eq!(verified.checkpoint, honest.checkpoint);
            other_questions += 1;
        }
        // At most the bits of two bounds, or of the absent keys.
        assert!(other_questions <= 8 * 16, "{name}: {other_questions} other questions");
    }
}

#[test]
fn a_proof_of_another_key_or_cluster_is_not_believed() {
    let sample = Sample::standard();
    let (_, bytes, _) = kinds(&sample).remove(0);
    let other = coppice_verify::note::SignerKey::from_seed(sample.ledger.key.name(), &[9; 32]).expect("a name");
    let failure = verify(&bytes, other.verifier(), None).expect_err("another key");
    assert_eq!(failure.to_string(), "checkpoint: no signature of the trusted key");
}

/// Whatever versions an honest server once proved, it can't prove them any more after a rollback.
#[test]
fn no_rolled_back_version_has_an_epoch_part() {
    let sample = Sample::standard();
    for stamp in sample.states.keys() {
        let part = coppice_verify::proof::EpochPart::new(&sample.ledger.epochs, *stamp);
        assert_eq!(part.is_some(), sample.ledger.epochs.stands(*stamp));
    }
    assert!(!sample.ledger.epochs.stands(Stamp::new(0, 25)));
    assert!(sample.ledger.epochs.stands(Stamp { epoch: sample.ledger.epoch(), version: Version(25) }));
}
