//! The rules of the forest (`docs/verification.md` sections 4 to 6), tested one by one on the
//! model.

use coppice_types::{Digest, Params, Stamp};
use coppice_verify::{
    hash::{self, RecordBody},
    proof::TreeList,
    replay::{Error, Forest, Gathered, LiveForest, Node, Tree},
};

fn params() -> Params {
    Params { key_bytes_max: 20, node_bytes: 368, fanout: 4, capacity: 8, tier_ratio: 2, ..Params::default() }
}

fn put(forest: &mut Forest, version: u64, keys: &[&str]) {
    let operations = keys.iter().map(|key| (key.as_bytes(), RecordBody::put(key.as_bytes())));
    forest.prepare(Stamp::new(0, version), &[], operations).expect("no events");
}

fn delete(forest: &mut Forest, version: u64, keys: &[&str]) {
    let operations = keys.iter().map(|key| (key.as_bytes(), RecordBody::Tombstone));
    forest.prepare(Stamp::new(0, version), &[], operations).expect("no events");
}

fn keys(tree: &Tree) -> Vec<String> {
    let name = |key: &[u8]| String::from_utf8(key.to_vec()).expect("a text");
    tree.records().iter().map(|record| name(&record.key)).collect()
}

/// Three frozen trees of eight records each. The middle one has tombstones of two keys of the
/// oldest.
fn forest() -> Forest {
    let mut forest = Forest::new(&params());
    put(&mut forest, 1, &["a", "b", "c", "d", "e", "f", "g", "h"]);
    put(&mut forest, 2, &["i", "j", "k", "l", "m", "n"]);
    delete(&mut forest, 3, &["a", "b"]);
    put(&mut forest, 4, &["c", "d", "o", "p", "q", "r", "s", "t"]);
    put(&mut forest, 5, &["u"]);
    assert_eq!(forest.frozen.len(), 3);
    forest
}

#[test]
fn a_new_forest_is_one_empty_tree() {
    assert_eq!(Forest::new(&params()).digest(), hash::empty_shard_digest());
}

#[test]
fn the_active_tree_is_frozen_by_the_write_after_it_is_full() {
    let mut forest = Forest::new(&params());
    put(&mut forest, 1, &["a", "b", "c", "d", "e", "f", "g"]);
    put(&mut forest, 2, &["h", "i"]);
    assert_eq!((forest.frozen.len(), keys(&forest.active).len()), (0, 9), "a batch may go beyond the capacity");
    let before = forest.digest();
    put(&mut forest, 3, &[]);
    assert_eq!(forest.digest(), before, "a Prepare without writes freezes nothing");
    put(&mut forest, 4, &["a"]);
    assert_eq!((forest.frozen.len(), keys(&forest.active)), (1, vec!["a".to_owned()]));
}

#[test]
fn a_put_of_the_same_value_is_a_change() {
    let mut forest = Forest::new(&params());
    put(&mut forest, 1, &["a"]);
    let before = forest.digest();
    put(&mut forest, 2, &["a"]);
    assert_ne!(forest.digest(), before);
    assert_eq!(forest.get(b"a").map(|record| record.stamp), Some(Stamp::new(0, 2)));
}

#[test]
fn the_last_operation_on_a_key_wins() {
    let mut forest = Forest::new(&params());
    let operations = [(&b"a"[..], RecordBody::put(b"1")), (b"a", RecordBody::Tombstone), (b"a", RecordBody::put(b"2"))];
    forest.prepare(Stamp::new(0, 1), &[], operations).expect("no events");
    assert_eq!(forest.get(b"a").map(|record| record.body), Some(RecordBody::put(b"2")));
    let operations = [(&b"b"[..], RecordBody::put(b"1")), (b"b", RecordBody::Tombstone)];
    let before = forest.digest();
    forest.prepare(Stamp::new(0, 2), &[], operations).expect("no events");
    assert_eq!(forest.digest(), before, "put and deleted in one version: never there");
}

#[test]
fn a_delete_of_an_absent_key_changes_nothing() {
    let mut forest = forest();
    let before = forest.digest();
    delete(&mut forest, 6, &["a", "zz"]);
    assert_eq!(forest.digest(), before, "neither a deleted key nor one that never was");
}

#[test]
fn a_delete_leaves_a_tombstone_only_where_an_older_tree_may_have_the_key() {
    let mut forest = forest();
    delete(&mut forest, 6, &["u", "e"]);
    assert_eq!(keys(&forest.active), ["e"], "u is in no frozen tree, e is");
    assert_eq!(forest.newest(b"e").map(|record| record.body), Some(RecordBody::Tombstone));
    assert_eq!(forest.get(b"e"), None);
    assert_eq!(forest.newest(b"u"), None);
}

#[test]
fn a_merge_keeps_the_youngest_records_and_needed_tombstones() {
    let forest = forest();
    let live = forest.live();
    let younger = forest.merge(0, 2);
    assert_eq!(keys(&younger), ["a", "b", "c", "d", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"]);
    let all = forest.merge(0, 3);
    assert_eq!(keys(&all).len(), 18, "no older tree needs the tombstones of a and b");
    for (inputs, output) in [(0..2, younger), (1..3, forest.merge(1, 2)), (0..3, all)] {
        let mut merged = forest.clone();
        let digests = forest.frozen[inputs].iter().map(|frozen| frozen.tree.digest()).collect();
        merged.prepare(Stamp::new(0, 6), &[(digests, output.digest())], []).expect("a merge of neighbours");
        assert_eq!(merged.live(), live, "a merge changes no value");
        assert_ne!(merged.digest(), forest.digest());
    }
}

#[test]
fn a_merge_of_other_trees_or_with_another_output_is_refused() {
    let forest = forest();
    let digests: Vec<Digest> = forest.frozen.iter().map(|frozen| frozen.tree.digest()).collect();
    let output = forest.merge(0, 2).digest();
    let refused = |inputs: &[usize], output: Digest| {
        let mut merged = forest.clone();
        let inputs = inputs.iter().map(|index| digests[*index]).collect();
        let error = merged.prepare(Stamp::new(0, 6), &[(inputs, output)], []).expect_err("not a merge");
        assert_eq!(merged.digest(), forest.digest(), "nothing was changed");
        error
    };
    for inputs in [&[][..], &[0], &[1, 0], &[0, 2], &[0, 0]] {
        assert_eq!(refused(inputs, output), Error::Inputs);
    }
    let recorded = hash::sha256(b"another");
    assert_eq!(refused(&[0, 1], recorded), Error::Output { recorded, computed: output });
    let mut active = forest.clone();
    let inputs = vec![forest.active.digest(), digests[0]];
    assert_eq!(active.prepare(Stamp::new(0, 6), &[(inputs, output)], []), Err(Error::Inputs));
}

#[test]
fn a_merge_of_nothing_but_needless_tombstones_is_the_empty_tree() {
    let params = Params { capacity: 8, filter_bits: 32, ..params() };
    let mut forest = Forest::new(&params);
    let names: Vec<String> = (0..8).map(|index| format!("key-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    put(&mut forest, 1, &names);
    delete(&mut forest, 2, &names);
    put(&mut forest, 3, &["z"]);
    let merged = forest.merge(0, 2);
    assert_eq!(merged, Tree::empty());
    assert_eq!(merged.digest(), hash::empty_tree_digest());
}

#[test]
fn a_tree_shrinks_to_its_only_child_and_to_nothing() {
    let params = Params { capacity: 1000, ..params() };
    let mut forest = Forest::new(&params);
    let names: Vec<String> = (0..99).map(|index| format!("key-{index:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    put(&mut forest, 1, &names);
    assert!(forest.active.root.level() >= 3);
    delete(&mut forest, 2, &names[1..]);
    assert_eq!(forest.active.root.level(), 0, "a root with one child is not a root");
    delete(&mut forest, 3, &names[..1]);
    assert_eq!(forest.digest(), hash::empty_shard_digest());
}

fn smallest_inner(node: &Node) -> usize {
    match node {
        Node::Leaf(_) => usize::MAX,
        Node::Inner { entries, .. } => {
            entries.iter().map(|(_, child)| smallest_inner(child)).min().unwrap_or(0).min(entries.len())
        }
    }
}

/// With nodes narrower than genesis allows, descending inserts of longest keys would add a level
/// with each key.
#[test]
fn no_order_of_longest_keys_builds_a_tall_tree() {
    let params = Params { key_bytes_max: 512, node_bytes: 2336, fanout: 64, capacity: 1 << 20, ..Params::default() };
    assert_eq!(params.check(), Ok(()));
    let key = |index: usize| {
        let mut key = vec![b'k'; 512];
        key[..4].copy_from_slice(&(index as u32).to_be_bytes());
        key
    };
    let orders: [&dyn Fn(usize) -> usize; 3] = [&|n| n, &|n| 600 - n, &|n| n * 367 % 601];
    for order in orders {
        let mut forest = Forest::new(&params);
        for index in 0..600 {
            let operation = (&key(order(index))[..], RecordBody::put(&[0; 100]));
            forest.prepare(Stamp::new(0, index as u64 + 1), &[], [operation]).expect("no events");
        }
        assert!(smallest_inner(&forest.active.root) >= 2);
        assert!(forest.active.root.level() <= 9, "level {}", forest.active.root.level());
    }
}

/// Both replays give the same digests through freezes, merges, tombstones and removals, and refuse
/// the same merges.
#[test]
fn the_fast_replay_agrees_with_the_model() {
    let mut random = 9_u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    for capacity in [8, 30, 500] {
        let params = Params { capacity, ..params() };
        let (mut model, mut live) = (Forest::new(&params), LiveForest::new(&params));
        for version in 1..400 {
            let names: Vec<String> = (0..=below(12)).map(|_| format!("key-{}", below(90))).collect();
            let body = |index: u64| match below(3) {
                0 => RecordBody::Tombstone,
                _ => RecordBody::put(index.to_string().as_bytes()),
            };
            let bodies: Vec<RecordBody> = (0..names.len() as u64).map(body).collect();
            let operations = || names.iter().map(String::as_bytes).zip(bodies.iter().copied());
            let full = model.frozen.len() + 2 > usize::from(params.tree_limit);
            let merges: Vec<_> = model.planned_merge().filter(|_| full || version % 5 == 0).into_iter().collect();
            let stamp = Stamp::new(0, version);
            model.prepare(stamp, &merges, operations()).expect("events follow the state");
            live.prepare(stamp, &merges, operations()).expect("events follow the state");
            assert_eq!(live.digest(), model.digest(), "capacity {capacity}, version {version}");
        }
        let records: usize = model.trees().iter().map(|tree| tree.records().len()).sum();
        assert_eq!(live.records(), records as u64);
        let wrong = (vec![hash::sha256(b"no"), hash::sha256(b"tree")], hash::sha256(b"output"));
        assert_eq!(live.prepare(Stamp::new(0, 400), &[wrong], []), Err(Error::Inputs));
        if let Some((inputs, output)) = model.planned_merge() {
            let refused = live.prepare(Stamp::new(0, 400), &[(inputs, hash::sha256(b"other"))], []);
            assert_eq!(refused, Err(Error::Output { recorded: hash::sha256(b"other"), computed: output }));
        }
    }
}

#[test]
fn gathered_trees_have_as_many_records_as_they_say() {
    let forest = forest();
    let gather = |parts: &TreeList<'_>| {
        let mut gathered = Gathered::default();
        gathered.take(parts).expect("the first part");
        gathered.forest(&params())
    };
    let honest = forest.prove_range(b"", None);
    assert_eq!(gather(&honest).expect("all of it").digest(), forest.digest());
    for tree in 0..honest.trees.len() {
        for entries in [honest.trees[tree].entries + 1, 1, u64::MAX] {
            let mut parts = honest.clone();
            parts.trees[tree].entries = entries;
            let same = entries == honest.trees[tree].entries;
            assert_eq!(matches!(gather(&parts), Err(Error::Parts(_))), !same, "{entries} records in tree {tree}");
        }
    }
}
