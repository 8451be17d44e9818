//! Honest proofs of every kind verify, and their claims are true.

mod common;

use common::{Sample, is_true, params, query_claim};
use coppice_types::{Params, Stamp, Version};
use coppice_verify::{
    check::Claim,
    journal::Entry,
    proof::{Proof, ProofFile},
    replay::Ledger,
    verify,
};
use proptest::prelude::*;

fn check(ledger: &Ledger, file: &ProofFile<'_>) -> Vec<u8> {
    let bytes = file.encode().expect("it fits");
    assert_eq!(ProofFile::decode(&bytes).as_ref(), Ok(file), "a file survives encoding");
    assert_eq!(verify(&bytes, ledger.key.verifier(), None).map(|verified| verified.cluster), Ok(ledger.cluster));
    bytes
}

#[test]
fn the_sample_has_every_shape() {
    let sample = Sample::standard();
    let head = sample.ledger.head_version();
    let trees: Vec<usize> = head.forests.iter().map(|forest| forest.trees().len()).collect();
    assert!(trees.iter().any(|count| *count >= 3), "{trees:?}");
    let levels = head.forests.iter().flat_map(|forest| forest.trees()).map(|tree| tree.root.level()).max();
    assert!(levels >= Some(2), "{levels:?}");
    let merges = sample.ledger.versions.values().flat_map(|version| &version.journal);
    assert!(merges.filter(|entry| matches!(entry, Entry::Merge(_))).count() >= 5);
    let tombstones = head.forests.iter().flat_map(|forest| forest.trees()).flat_map(|tree| {
        tree.records().into_iter().filter(|record| record.body.value_len().is_none()).collect::<Vec<_>>()
    });
    assert!(tombstones.count() >= 2);
}

#[test]
fn every_key_at_every_version_is_proven_as_it_was() {
    let sample = Sample::standard();
    for stamp in sample.standing() {
        for key in Sample::keys() {
            let bytes = check(&sample.ledger, &sample.ledger.prove_keys(stamp, &[&key], true));
            let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("an honest proof");
            let claim = query_claim(verified.claim);
            assert_eq!(claim.header.stamp, stamp);
            assert!(is_true(&claim, &sample.states), "{stamp} {claim:?}");
        }
    }
}

#[test]
fn many_keys_and_ranges_are_proven_at_once() {
    let sample = Sample::standard();
    let keys = Sample::keys();
    for stamp in sample.standing() {
        for step in [1, 2, 5, 17] {
            let keys: Vec<&[u8]> = keys.iter().step_by(step).map(Vec::as_slice).collect();
            let bytes = check(&sample.ledger, &sample.ledger.prove_keys(stamp, &keys, step == 2));
            let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("an honest proof");
            assert!(is_true(&query_claim(verified.claim), &sample.states));
        }
        let bounds = ["", "a", "key-10", "key-1", "key-25", "key-49", "key-50", "key-5", "key-799", "x"];
        for low in bounds {
            for high in bounds.iter().filter(|high| **high > low).map(|high| Some(high.as_bytes())).chain([None]) {
                let file = sample.ledger.prove_range(stamp, low.as_bytes(), high, low.len() % 2 == 0);
                let bytes = check(&sample.ledger, &file);
                let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("an honest proof");
                assert!(is_true(&query_claim(verified.claim), &sample.states), "{stamp} {low} {high:?}");
            }
        }
    }
}

#[test]
fn genesis_is_provably_empty() {
    let sample = Sample::standard();
    let bytes = check(&sample.ledger, &sample.ledger.prove_range(Stamp::default(), b"", None, true));
    let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("an honest proof");
    assert!(is_true(&query_claim(verified.claim), &sample.states));
}

#[test]
fn every_batch_of_every_version_has_a_receipt() {
    let sample = Sample::standard();
    for stamp in sample.standing().into_iter().skip(1) {
        for (index, entry) in sample.ledger.versions[&stamp].journal.iter().enumerate() {
            let bytes = sample.ledger.receipt(stamp, index as u32).encode().expect("it fits");
            match (verify(&bytes, sample.ledger.key.verifier(), None), entry) {
                (Ok(verified), Entry::Batch(batch)) => {
                    let Claim::Receipt(claim) = verified.claim else { panic!("not a receipt") };
                    assert_eq!((&claim.batch, claim.index as usize, claim.header.stamp), (batch, index, stamp));
                }
                (Err(failure), Entry::Merge(_)) => assert_eq!(failure.to_string(), "journal: not a batch"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_newer_checkpoint_shows_what_still_stands() {
    let mut sample = Sample::standard();
    let key = sample.ledger.key.verifier().clone();
    let size = sample.ledger.headers.len() as u64;
    let proofs: Vec<_> = sample
        .standing()
        .into_iter()
        .map(|stamp| (stamp, sample.ledger.prove_keys(stamp, &[b"key-07"], true).encode().expect("it fits")))
        .collect();
    let same = sample.ledger.standing(size, size).encode().expect("it fits");
    let note = sample.ledger.log_part(size).checkpoint.into_owned();
    for (_, proof) in &proofs {
        for newer in [&same, &note] {
            let verified = verify(proof, &key, Some(newer)).expect("nothing changed");
            assert_eq!(verified.newer.as_ref(), Some(&verified.checkpoint));
        }
    }
    sample.commit_random(5);
    sample.ledger.roll_back(Version(18));
    sample.commit_random(5);
    let newer = sample.ledger.standing(size, size + 3).encode().expect("it fits");
    for (stamp, proof) in &proofs {
        let stands = verify(proof, &key, Some(&newer));
        assert_eq!(stands.is_ok(), stamp.version <= Version(18), "{stamp}");
        if let Err(failure) = stands {
            assert_eq!(failure.to_string(), "standing: the version was rolled back");
        }
    }
    let verified = verify(&newer, &key, None).expect("a standing proof stands alone");
    let Claim::Standing(claim) = verified.claim else { panic!("not a standing proof") };
    assert_eq!((claim.old_size, &claim.epochs), (size, &sample.ledger.epochs));
    // A newer checkpoint extends proof files of any kind, standing proofs included.
    let older = sample.ledger.standing(1, size).encode().expect("it fits");
    assert!(verify(&older, &key, Some(&newer)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Trees of other shapes: node sizes, fan-outs, capacities, key distributions.
    #[test]
    fn random_ledgers_answer_as_a_map_does(
        seed in 1_u64..u64::MAX,
        node_bytes in 368_u32..1500,
        fanout in 4_u16..40,
        capacity in 8_u32..60,
        tier_ratio in 2_u8..9,
    ) {
        let params = Params { node_bytes, fanout, capacity, tier_ratio, ..params() };
        let mut sample = Sample::new(&params, seed);
        for _ in 0..30 {
            sample.commit_random(25);
        }
        for stamp in sample.standing().into_iter().step_by(7) {
            let keys = Sample::keys();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for file in [sample.ledger.prove_keys(stamp, &keys, true), sample.ledger.prove_range(stamp, b"", None, true)] {
                let bytes = file.encode().expect("it fits");
                let verified = verify(&bytes, sample.ledger.key.verifier(), None).expect("an honest proof");
                prop_assert!(is_true(&query_claim(verified.claim), &sample.states));
            }
        }
    }
}

#[test]
fn proof_sizes_are_as_the_page_says() {
    let sample = Sample::standard();
    let head = sample.ledger.epochs.stamp_of(sample.ledger.head().version);
    let file = sample.ledger.prove_keys(head, &[b"key-07"], false);
    let Proof::Query(proof) = &file.proof else { panic!("not a query proof") };
    let trees = proof.shards[0].trees.encode().len();
    let all = file.encode().expect("it fits").len();
    println!("one key: {all} bytes, of which {trees} in trees");
}
