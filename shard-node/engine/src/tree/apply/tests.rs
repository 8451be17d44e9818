use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::{Change, Operation};
use coppice_verify::{hash::RecordBody, replay};

use super::*;
use crate::{
    Engine,
    testing::{commit, create, delete, deletes, key, put, puts, small, stage, used},
    tree::cursor::Cursor,
};

/// Parameters with one active tree that takes everything.
fn params() -> Params {
    Params { capacity: 1000, ..small() }
}

fn active(engine: &Engine) -> Tree {
    engine.meta.tip().trees[0].clone()
}

/// Versions of a few or many changes at random places, compared with the model of the rules.
#[test]
fn a_tree_follows_the_rules_after_each_version() {
    for seed in 0..20 {
        let mut rng = SimRng::new(seed);
        let mut engine = create(&SimStorage::new(), params());
        let mut model = replay::Forest::new(&params());
        for version in 1..30 {
            let count = [1, 2, 10, 60][rng.below(4) as usize];
            let mut operations = std::collections::BTreeMap::new();
            for _ in 0..count {
                let key = key(rng.below(120) as u32);
                let operation = if rng.chance(500) { delete(&key) } else { put(&key, rng.below(12) as usize) };
                operations.insert(key, operation);
            }
            let operations: Vec<Operation> = operations.into_values().collect();
            let bodies = operations.iter().map(|own| (own.key.as_ref(), RecordBody::of(&own.change)));
            model.prepare(coppice_types::Stamp::new(0, version), &[], bodies).expect("no merge");
            commit(&mut engine, version, operations);
            assert_eq!(engine.decided().digest, model.digest(), "seed {seed}, version {version}");
        }
    }
}

#[test]
fn a_tree_that_loses_all_its_records_is_empty_and_takes_no_page() {
    let mut engine = create(&SimStorage::new(), params());
    let before = used(&engine);
    commit(&mut engine, 1, puts(0..100, 100));
    assert!(active(&engine).level >= 2);
    commit(&mut engine, 2, deletes(0..100));
    assert_eq!(active(&engine), Tree::empty());
    engine.prune(Version(2)).expect("usable");
    assert_eq!(used(&engine), before);
}

#[test]
fn a_tree_gets_lower_as_it_loses_records() {
    let mut engine = create(&SimStorage::new(), params());
    commit(&mut engine, 1, puts(0..100, 5));
    let high = active(&engine).level;
    commit(&mut engine, 2, deletes(1..100));
    assert!(high >= 2);
    assert_eq!((active(&engine).level, active(&engine).entries), (0, 1));
    engine.prune(Version(2)).expect("usable");
    assert!(used(&engine).0.iter().sum::<u64>() <= 2, "a patch and its base");
}

#[test]
fn a_change_replaces_the_nodes_of_its_path_alone() {
    let mut engine = create(&SimStorage::new(), params());
    commit(&mut engine, 1, puts(0..100, 5));
    let level = active(&engine).level;
    for number in [0, 37, 99] {
        stage(&mut engine, 2, vec![put(&key(number), 6)]);
        let staged = *engine.meta.staged.first().expect("one");
        let delta = &engine.meta.versions[&staged].delta;
        assert_eq!(delta.allocated.len(), usize::from(level) + 1, "{number}");
        assert!(delta.pended.len() <= 2 * (usize::from(level) + 1), "the nodes and their bases");
        engine.abort_all_staged();
    }
}

#[test]
fn a_value_that_is_replaced_or_deleted_is_pended() {
    let mut engine = create(&SimStorage::new(), params());
    commit(&mut engine, 1, vec![put("a", 100), put("b", 100), put("c", 100)]);
    stage(&mut engine, 2, vec![put("a", 5), delete("b"), put("d", 100)]);
    let staged = *engine.meta.staged.first().expect("one");
    let delta = &engine.meta.versions[&staged].delta;
    assert_eq!((delta.values_allocated.values().sum(), delta.values_pended.values().sum()), (116_u64, 232_u64));
}

#[test]
fn many_threads_make_the_same_tree_as_one() {
    let operations = puts(0..900, 5);
    let states = [Workers::Inline, Workers::of_this_machine()].map(|workers| {
        let options = crate::Options { workers, ..crate::testing::options() };
        let mut engine = crate::testing::create_with(&SimStorage::new(), params(), options);
        commit(&mut engine, 1, operations.clone());
        commit(&mut engine, 2, puts(100..800, 6));
        (engine.decided(), used(&engine), active(&engine))
    });
    assert_eq!(states[0], states[1]);
}

#[test]
fn separators_lead_to_every_key_after_many_splits() {
    let mut engine = create(&SimStorage::new(), params());
    // Keys that share long prefixes, in an order that splits everywhere.
    for version in 1..100_u64 {
        let key = format!("{}{:03}", "k".repeat(1 + version as usize % 3 * 4), version * 37 % 100);
        commit(&mut engine, version, vec![put(&key, 5)]);
    }
    let tree = active(&engine);
    let mut cursor = Cursor::seek(&engine.store, &tree, b"").expect("sound pages");
    let mut keys = Vec::new();
    while let Some(found) = cursor.next(&engine.store).expect("sound pages") {
        keys.push(found.key);
    }
    assert!(keys.len() == 99 && keys.is_sorted_by(|a, b| a < b));
    assert!(keys.iter().all(|key| tree.has(&engine.store, key).expect("sound pages")));
}

#[test]
fn the_number_of_keys_before_another_is_that_of_a_plain_count() {
    let keys: Vec<[u8; 1]> = (0..40).map(|n| [2 * n]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 1]>::as_slice).collect();
    for len in 0..=keys.len() {
        for key in 0..=82 {
            let before = keys[..len].iter().filter(|other| **other < [key].as_slice()).count();
            assert_eq!(keys_before(&keys[..len], &[key]), before, "{key} among {len}");
        }
    }
}

#[test]
fn a_put_of_the_same_value_makes_a_new_record() {
    let mut engine = create(&SimStorage::new(), params());
    commit(&mut engine, 1, vec![put("a", 5)]);
    let before = engine.decided();
    commit(&mut engine, 2, vec![Operation { key: b"a".to_vec().into(), change: Change::Put(vec![5; 5].into()) }]);
    assert_ne!(engine.decided().digest, before.digest, "its stamp is another");
}
