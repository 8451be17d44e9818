use coppice_env::SimStorage;
use coppice_types::{Digest, Params};
use coppice_verify::{
    check::{Answer, verify_trees},
    proof::Query,
};

use super::*;
use crate::{
    Engine,
    testing::{commit, create, delete, key, puts, small},
};

/// Even numbers below 80 in a deep frozen tree, and a few records and a tombstone above it.
fn engine() -> Engine {
    let mut engine = create(&SimStorage::new(), Params { capacity: 40, ..small() });
    commit(&mut engine, 1, puts(0..80, 5).into_iter().step_by(2).collect());
    commit(&mut engine, 2, [puts(10..13, 6), vec![delete(&key(20))]].concat());
    assert_eq!(engine.shape(&engine.decided()).expect("decided").entries, [4, 40]);
    engine
}

fn view(engine: &Engine) -> View<'_> {
    engine.view(&engine.decided()).expect("decided")
}

/// The keys that a proof shows to have a value.
fn proven(view: &View<'_>, keys: &[&[u8]]) -> Vec<Vec<u8>> {
    let proof = view.prove_keys(keys).expect("sound pages");
    let query = Query::Keys(keys.iter().map(|key| Cow::Borrowed(*key)).collect());
    let trees = TreeList::decode(&proof).expect("its own");
    let answer = verify_trees(trees, &view.state().digest, view.stamp(), &query).expect("it shows the keys");
    let Answer::Keys(found) = answer else { panic!("keys were asked") };
    found.into_iter().filter(|(_, record)| record.is_some()).map(|(key, _)| key.into_owned()).collect()
}

fn proven_range(view: &View<'_>, low: &[u8], high: Option<&[u8]>) -> Vec<Vec<u8>> {
    let proof = view.prove_range(low, high).expect("sound pages");
    let query = Query::Range { low: Cow::Borrowed(low), high: high.map(Cow::Borrowed) };
    let trees = TreeList::decode(&proof).expect("its own");
    let answer = verify_trees(trees, &view.state().digest, view.stamp(), &query).expect("it shows the range");
    let Answer::Range { records, .. } = answer else { panic!("a range was asked") };
    records.iter().map(|record| record.key.to_vec()).collect()
}

#[test]
fn keys_to_prove_ascend_and_there_is_one() {
    let engine = engine();
    for keys in [&[][..], &[b"a", b"a"], &[b"b", b"a"]] {
        let keys: Vec<&[u8]> = keys.iter().map(|key: &&[u8; 1]| key.as_slice()).collect();
        assert!(matches!(view(&engine).prove_keys(&keys), Err(Error::Invalid(_))));
    }
}

#[test]
fn a_range_to_prove_ends_above_its_start() {
    let engine = engine();
    assert!(matches!(view(&engine).prove_range(b"a", Some(b"a")), Err(Error::Invalid(_))));
    assert!(matches!(view(&engine).prove_range(b"b", Some(b"a")), Err(Error::Invalid(_))));
}

/// Every gap between two records, including those between two leaves.
#[test]
fn each_key_is_proven_present_or_absent_alone() {
    let engine = engine();
    let has = |number| (number % 2 == 0 || number == 11) && number != 20;
    for number in 0..82 {
        let key = key(number);
        let expected = if has(number) && number < 80 { vec![key.clone().into_bytes()] } else { vec![] };
        assert_eq!(proven(&view(&engine), &[key.as_bytes()]), expected, "key {key}");
    }
    assert_eq!(proven(&view(&engine), &[b" "]), [b""; 0], "below all keys");
    assert_eq!(proven(&view(&engine), &[b"z"]), [b""; 0], "above all keys");
}

#[test]
fn many_keys_are_proven_at_once() {
    let engine = engine();
    for step in [1, 2, 3, 5, 7, 11, 40] {
        let keys: Vec<String> = (0..81).step_by(step).map(key).collect();
        let asked: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let alone = asked.iter().flat_map(|key| proven(&view(&engine), &[key])).collect::<Vec<_>>();
        assert_eq!(proven(&view(&engine), &asked), alone, "each {step}th key");
    }
}

#[test]
fn a_range_is_proven_with_the_records_that_a_read_has() {
    let engine = engine();
    for (low, high) in [("", None), ("0000", Some("0001")), ("0005", Some("0022")), ("0079", None), ("z", None)] {
        let high = high.map(str::as_bytes);
        let read = view(&engine).range(low.as_bytes(), high, usize::MAX, false).expect("sound pages");
        let read: Vec<Vec<u8>> = read.records.into_iter().map(|record| record.key).collect();
        assert_eq!(proven_range(&view(&engine), low.as_bytes(), high), read, "from {low:?} to {high:?}");
    }
}

#[test]
fn a_tree_is_not_opened_for_keys_that_a_younger_one_has_answered() {
    let engine = engine();
    let parts = |keys: &[&[u8]]| {
        let proof = view(&engine).prove_keys(keys).expect("sound pages");
        let trees = TreeList::decode(&proof).expect("its own").trees;
        trees.iter().map(|tree| matches!(tree.root, Subtree::Expanded(_))).collect::<Vec<_>>()
    };
    assert_eq!(parts(&[key(10).as_bytes()]), [true, false]);
    assert_eq!(parts(&[key(20).as_bytes()]), [true, false], "a tombstone answers, too");
    assert_eq!(parts(&[key(10).as_bytes(), key(30).as_bytes()]), [true, true]);
}

#[test]
fn an_empty_shard_proves_that_it_has_no_key() {
    let engine = create(&SimStorage::new(), small());
    assert_eq!(proven(&view(&engine), &[b"a", b"b"]), [b""; 0]);
    assert_eq!(proven_range(&view(&engine), b"", None), [b""; 0]);
}

#[test]
fn a_proof_of_another_version_does_not_verify() {
    let engine = engine();
    let proof =
        engine.view_at(coppice_types::Version(1)).expect("decided").prove_keys(&[b"0010"]).expect("sound pages");
    let query = Query::Keys(vec![Cow::Borrowed(b"0010")]);
    let trees = || TreeList::decode(&proof).expect("its own");
    let stamp = view(&engine).stamp();
    assert!(verify_trees(trees(), &engine.decided().digest, stamp, &query).is_err());
    assert!(verify_trees(trees(), &Digest::default(), stamp, &query).is_err());
}

#[test]
fn a_damaged_leaf_is_an_error_and_no_proof() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, Params::default());
    commit(&mut engine, 1, puts(0..1000, 9));
    crate::testing::flush(&mut engine, 1);
    drop(engine);
    crate::testing::damage(&sim, "data");
    let engine = crate::testing::open(&sim);
    assert!(matches!(view(&engine).prove_keys(&[b"0500"]), Err(Error::Corrupted { .. })));
    assert!(matches!(view(&engine).prove_range(b"0500", Some(b"0501")), Err(Error::Corrupted { .. })));
}
