//! A lying server is caught at the step that its attack is aimed at, and a damaged file never
//! verifies.

mod common;

use std::{borrow::Cow, collections::BTreeSet};

use common::{
    Sample,
    attacks::{attacks, targets},
    is_true,
};
use coppice_types::{Stamp, Version};
use coppice_verify::{
    Step,
    check::{Answer, Claim, verify_trees},
    hash::{RecordBody, file_checksum},
    proof::{NodePart, Query, Subtree},
    replay::{self, Node},
    verify,
};

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
    // Step `format` has the test of damaged files. Key changes, questions, policies, ledgers, times
    // and anchors have test files of their own.
    steps.extend([Step::Format, Step::Keys, Step::Cosignatures, Step::Question]);
    steps.extend([Step::List, Step::Leaf, Step::Request, Step::Envelope, Step::Lineage, Step::Time, Step::Anchors]);
    assert_eq!(steps.into_iter().collect::<Vec<_>>(), Step::ALL, "every step catches something");
}

/// Proof files whose bits are flipped: name, file, and whether a change of the question may leave
/// another valid proof.
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

/// A liar repairs the checksum. Then only bits of the question are free, and only for another
/// question whose true answer the file proves.
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
    assert!(failure.to_string().starts_with("checkpoint: no signature of the trusted key"), "{failure}");
}

/// Reveals each entry, and expands each child, with these chances in 8.
fn random_part(sample: &mut Sample, node: &Node, reveal: u64, expand: u64) -> NodePart<'static> {
    let count = node.entry_hashes().len();
    let mut shown: BTreeSet<usize> = (0..count).filter(|_| sample.random(8) < reveal).collect();
    if shown.is_empty() && count > 0 {
        shown.insert(sample.random(count as u64) as usize);
    }
    replay::part(node, &shown, |_, child| match sample.random(8) < expand {
        true => Subtree::Expanded(random_part(sample, child, reveal, expand)),
        false => Subtree::Hash(child.hash()),
    })
}

/// A server may show and hide any parts of the trees that the ledger committed to: an answer is
/// either refused or true.
#[test]
fn no_choice_of_what_to_show_proves_anything_false() {
    let mut sample = Sample::standard();
    let targets = targets(&sample);
    let forest = sample.ledger.head_version().forests[sample.ledger.shard_map.index_of(&targets.updated)].clone();
    let (digest, stamp, live) = (forest.digest(), sample.ledger.head(), forest.live());
    let keys = Sample::keys();
    let mut proven = [0; 3];
    for round in 0..1500 {
        let (reveal, expand) = (4 + round % 5, 5 + round / 5 % 4);
        let mut list = forest.prove_range(b"", None);
        for (shown, tree) in list.trees.iter_mut().zip(forest.trees()) {
            let part = Subtree::Expanded(random_part(&mut sample, &tree.root, reveal, expand));
            let hidden = sample.random(8) == 0;
            shown.root = if hidden { Subtree::Hash(tree.root.hash()) } else { part };
        }
        let ask = |query: Query<'static>| verify_trees(list.clone(), &digest, stamp, &query);
        for key in &keys {
            let Ok(Answer::Keys(answers)) = ask(Query::Keys(vec![Cow::Owned(key.clone())])) else { continue };
            let record = live.iter().find(|record| record.key == *key);
            let shown = answers[0].1.as_ref().map(|shown| (shown.stamp, shown.value_hash));
            let expected = record.and_then(|record| match record.body {
                RecordBody::Put { value_hash, .. } => Some((record.stamp, value_hash)),
                RecordBody::Tombstone => None,
            });
            assert_eq!(shown, expected, "round {round}, {}", String::from_utf8_lossy(key));
            proven[usize::from(shown.is_some())] += 1;
        }
        for _ in 0..20 {
            let from = sample.random(keys.len() as u64 - 1) as usize;
            let to = from + 1 + sample.random(8) as usize;
            let (low, high) = (keys[from].clone(), keys.get(to).cloned().filter(|high| *high > keys[from]));
            let query = Query::Range { low: Cow::Owned(low.clone()), high: high.clone().map(Cow::Owned) };
            let Ok(Answer::Range { records, .. }) = ask(query) else { continue };
            let inside = |key: &[u8]| low[..] <= *key && high.as_ref().is_none_or(|high| *key < **high);
            let expected: Vec<&[u8]> = live.iter().map(|record| &record.key[..]).filter(|key| inside(key)).collect();
            let shown: Vec<&[u8]> = records.iter().map(|record| &*record.key).collect();
            assert_eq!(shown, expected, "round {round}");
            proven[2] += 1;
        }
    }
    assert!(proven.iter().all(|count| *count > 1000), "absences, values, ranges proven by chance: {proven:?}");
}

/// After a rollback, an honest server's proofs of the versions that it took back no longer verify.
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
