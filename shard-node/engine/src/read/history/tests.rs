use std::collections::BTreeMap;

use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::{Change, Operation, Params, ShardId};

use super::*;
use crate::{Engine, Options, testing};

fn commit(engine: &mut Engine, version: u64, changes: &[(u8, Option<usize>)]) {
    let operation = |(key, len): &(u8, Option<usize>)| Operation {
        key: vec![*key].into(),
        change: len.map_or(Change::Delete, |len| Change::Put(vec![version as u8; len].into())),
    };
    testing::commit(engine, version, changes.iter().map(operation).collect());
}

#[test]
fn parts_end_by_their_bytes_and_add_up_to_the_whole() {
    let sim = SimStorage::new();
    let mut engine =
        Engine::create(sim.storage(), ShardId(0), Params::default(), Options::default()).expect("an empty directory");
    let all = |len| [(1, Some(1)), (2, Some(1)), (3, Some(len)), (4, Some(len)), (5, Some(len))];
    commit(&mut engine, 1, &all(500));
    let lens = [Some(700), None, Some(10), Some(10), Some(900), None, Some(1)];
    for (version, len) in (2..).zip(lens) {
        commit(&mut engine, version, &[(9, len)]);
    }
    commit(&mut engine, 9, &all(600));
    let older = engine.view_at(Version(1)).expect("kept");
    let newer = engine.view_at(Version(9)).expect("kept");

    let read = engine.counters().value_reads;
    let page = newer.range_part(b"", None, 100, 1210, true).expect("sound pages");
    let keys: Vec<u8> = page.records.iter().map(|record| record.key[0]).collect();
    assert_eq!((keys.as_slice(), page.more), (&[1, 2, 3, 4][..], true), "the next value is too much");
    assert_eq!(engine.counters().value_reads - read, 2, "and is not read");
    let page = newer.range_part(&[5], None, 100, 10, true).expect("sound pages");
    assert_eq!((page.records.len(), page.more), (1, true), "at least one");
    let page = newer.range_part(b"", None, 100, 6, false).expect("sound pages");
    assert_eq!((page.records.len(), page.more), (6, false), "values that are not wanted do not count");

    for (limit, bytes_max) in [(100, 1), (100, 15), (100, 800), (1, 800), (2, 800), (3, 30)] {
        let whole = newer.history(&[9], 100).expect("sound pages");
        let (mut changes, mut below, mut more) = (Vec::new(), None, true);
        while more {
            let page = newer.history_part(&[9], below, limit, bytes_max).expect("sound pages");
            let bytes = |change: &KeyChange| change.record.as_ref().map_or(1, record_bytes);
            let before_last = page.changes.iter().rev().skip(1).map(bytes).sum::<usize>();
            assert!(page.changes.len() <= limit && before_last < bytes_max, "{page:?}");
            changes.extend(page.changes);
            (below, more) = (changes.last().map(|change| change.stamp.version), page.more);
        }
        assert_eq!((changes.len(), changes), (7, whole.changes));

        let whole = newer.diff(&older, b"", None).expect("an ancestor");
        let (mut differences, mut low) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = low {
            let page = newer.diff_part(&older, &from, None, limit, bytes_max).expect("an ancestor");
            let bytes = |(before, after): &(Option<Record>, Option<Record>)| {
                [before, after].into_iter().flatten().map(record_bytes).sum::<usize>()
            };
            let before_last = page.differences.iter().rev().skip(1).map(bytes).sum::<usize>();
            assert!(page.differences.len() <= limit && before_last < bytes_max, "{page:?}");
            differences.extend(page.differences);
            low = page.next;
        }
        assert_eq!((differences.len(), differences), (6, whole));
    }
}

/// Keys 1 and 2 with a put in version 1, and these changes of key 1 in the versions after it.
fn with_changes(changes: &[Option<usize>]) -> Engine {
    let mut engine = testing::create(&SimStorage::new(), testing::small());
    commit(&mut engine, 1, &[(1, Some(1)), (2, Some(1))]);
    for (version, len) in (2..).zip(changes) {
        commit(&mut engine, version, &[(1, *len)]);
    }
    engine
}

/// The versions of a key's changes, and the length of each value.
fn history(view: &View<'_>, key: u8) -> Vec<(u64, Option<u32>)> {
    let page = view.history(&[key], 99).expect("sound pages");
    assert!(!page.more);
    let told = |it: &KeyChange| (it.stamp.version.0, it.record.as_ref().map(|record| record.value_len));
    page.changes.iter().map(told).collect()
}

#[test]
fn a_history_has_every_put_and_every_delete_newest_first() {
    let engine = with_changes(&[Some(2), None, Some(100), None]);
    let newest = engine.view_at(Version(5)).expect("kept");
    let changes = [(5, None), (4, Some(100)), (3, None), (2, Some(2)), (1, Some(1))];
    assert_eq!(history(&newest, 1), changes);
    for version in 1..=4 {
        let view = engine.view_at(Version(version)).expect("kept");
        assert_eq!(history(&view, 1), changes[5 - version as usize..], "up to version {version}");
    }
    assert_eq!(history(&newest, 2), [(1, Some(1))], "the other key");
    assert_eq!(history(&newest, 3), [], "a key that never was");
}

#[test]
fn a_delete_of_a_key_that_is_not_there_is_no_change() {
    let engine = with_changes(&[None, None, None]);
    assert_eq!(history(&engine.view_at(Version(4)).expect("kept"), 1), [(2, None), (1, Some(1))]);
}

#[test]
fn a_history_goes_back_to_the_oldest_version_that_is_kept() {
    let mut engine = with_changes(&[Some(2), None, Some(4)]);
    engine.prune(Version(2)).expect("usable");
    let changes = |engine: &Engine| history(&engine.view_at(Version(4)).expect("kept"), 1);
    assert_eq!(changes(&engine), [(4, Some(4)), (3, None), (2, Some(2))]);
    engine.prune(Version(3)).expect("usable");
    assert_eq!(changes(&engine), [(4, Some(4))], "the delete of the oldest version is not told");
    let mut put_before = with_changes(&[]);
    commit(&mut put_before, 2, &[(2, Some(2))]);
    put_before.prune(Version(2)).expect("usable");
    let kept = history(&put_before.view_at(Version(2)).expect("kept"), 1);
    assert_eq!(kept, [(1, Some(1))], "an older version has put it");
}

#[test]
fn a_staged_version_has_the_history_of_its_own_line() {
    let mut engine = with_changes(&[Some(2)]);
    let base = engine.decided();
    let operation = |change| [Operation { key: vec![1].into(), change }];
    let put = |len: usize| Change::Put(vec![7; len].into());
    let child = testing::stage_on(&mut engine, base, 3, 1, &operation(put(5))).expect("it follows");
    let grandchild = testing::stage_on(&mut engine, child, 4, 2, &operation(Change::Delete)).expect("it follows");
    let sibling = testing::stage_on(&mut engine, base, 3, 3, &operation(put(6))).expect("it follows");
    let of = |state| history(&engine.view(state).expect("here"), 1);
    assert_eq!(of(&grandchild), [(4, None), (3, Some(5)), (2, Some(2)), (1, Some(1))]);
    assert_eq!(of(&sibling), [(3, Some(6)), (2, Some(2)), (1, Some(1))]);
    assert_eq!(of(&base), [(2, Some(2)), (1, Some(1))]);
}

/// The differences between two versions: keys, and the length of each value before and after.
fn diff(engine: &Engine, from: u64, to: u64, low: &[u8], high: Option<&[u8]>) -> Vec<(u8, [Option<u32>; 2])> {
    let [older, newer] = [from, to].map(|version| engine.view_at(Version(version)).expect("kept"));
    let told = |(before, after): &(Option<Record>, Option<Record>)| {
        let key = before.as_ref().or(after.as_ref()).expect("at least one side").key[0];
        (key, [before, after].map(|record| record.as_ref().map(|record| record.value_len)))
    };
    newer.diff(&older, low, high).expect("an ancestor").iter().map(told).collect()
}

/// Version 1 puts keys 1 to 4. Version 2 changes 1, deletes 2 and adds 5. Version 3 takes that
/// back.
fn three_versions() -> Engine {
    let mut engine = testing::create(&SimStorage::new(), testing::small());
    commit(&mut engine, 1, &[(1, Some(1)), (2, Some(1)), (3, Some(1)), (4, Some(1))]);
    commit(&mut engine, 2, &[(1, Some(100)), (2, None), (5, Some(2))]);
    commit(&mut engine, 3, &[(1, Some(1)), (2, Some(1)), (5, None)]);
    engine
}

#[test]
fn a_diff_has_the_records_before_and_after() {
    let engine = three_versions();
    let forth = [(1, [Some(1), Some(100)]), (2, [Some(1), None]), (5, [None, Some(2)])];
    assert_eq!(diff(&engine, 1, 2, b"", None), forth);
    let back = [(1, [Some(100), Some(1)]), (2, [None, Some(1)]), (5, [Some(2), None])];
    assert_eq!(diff(&engine, 2, 3, b"", None), back);
    assert_eq!(diff(&engine, 0, 1, b"", None), [1, 2, 3, 4].map(|key| (key, [None, Some(1)])));
    assert_eq!(diff(&engine, 2, 2, b"", None), []);
}

/// A record that was put again has another stamp, so it differs though its value is the same. A
/// key that was added and deleted in between does not.
#[test]
fn a_diff_compares_the_records_of_its_two_versions_alone() {
    let engine = three_versions();
    assert_eq!(diff(&engine, 1, 3, b"", None), [1, 2].map(|key| (key, [Some(1), Some(1)])));
}

#[test]
fn a_diff_goes_from_its_low_key_up_to_but_without_its_high_key() {
    let engine = three_versions();
    let keys = |low: &[u8], high| diff(&engine, 1, 2, low, high).iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(keys(&[2], None), [2, 5]);
    assert_eq!(keys(&[2], Some(&[5])), [2]);
    assert_eq!(keys(&[1, 0], Some(&[5, 0])), [2, 5], "bounds that are not keys");
    assert_eq!(keys(&[3], Some(&[5])), [0; 0]);
    assert_eq!(keys(&[5], Some(&[1])), [0; 0]);
}

#[test]
fn a_diff_is_taken_from_an_ancestor_alone() {
    let mut engine = three_versions();
    let base = engine.decided();
    let operation = |len: usize| [Operation { key: vec![9].into(), change: Change::Put(vec![7; len].into()) }];
    let [one, other] = [(1, 5), (2, 6)]
        .map(|(attempt, len)| testing::stage_on(&mut engine, base, 4, attempt, &operation(len)).expect("it follows"));
    let view = |state| engine.view(state).expect("here");
    assert_eq!(view(&one).diff(&view(&base), b"", None).expect("an ancestor").len(), 1);
    for (newer, older) in [(&one, &other), (&base, &one)] {
        let refused = view(newer).diff(&view(older), b"", None);
        assert!(matches!(refused, Err(Error::NotAncestor { .. })), "{refused:?}");
    }
}

/// Keys come and go over many freezes, so histories and diffs span several active trees.
#[test]
fn histories_and_diffs_are_those_of_a_plain_list_of_changes() {
    const VERSIONS: u64 = 40;
    for seed in 1..=4 {
        let mut rng = SimRng::new(seed);
        let mut engine = testing::create(&SimStorage::new(), testing::small());
        let mut states: Vec<BTreeMap<u8, (u64, u32)>> = vec![BTreeMap::new()];
        let mut changes: BTreeMap<u8, Vec<(u64, Option<u32>)>> = BTreeMap::new();
        for version in 1..=VERSIONS {
            let mut state = states.last().expect("at least one").clone();
            let keys: BTreeSet<u8> = (0..3).map(|_| rng.below(16) as u8).collect();
            let operations = keys.into_iter().map(|key| {
                let len = (!rng.chance(400)).then(|| 1 + rng.below(20) as u32);
                let before = state.remove(&key);
                if let Some(len) = len {
                    state.insert(key, (version, len));
                }
                if before.is_some() || len.is_some() {
                    changes.entry(key).or_default().insert(0, (version, len));
                }
                (key, len.map(|len| len as usize))
            });
            let operations: Vec<(u8, Option<usize>)> = operations.collect();
            commit(&mut engine, version, &operations);
            testing::merge(&mut engine);
            states.push(state);
        }
        assert!(engine.shape(&engine.decided()).expect("decided").entries.len() > 1, "trees were frozen");
        let newest = engine.view_at(Version(VERSIONS)).expect("kept");
        for key in 0..16 {
            assert_eq!(history(&newest, key), changes.remove(&key).unwrap_or_default(), "seed {seed}, key {key}");
        }
        for (from, to) in [(0, VERSIONS), (1, 2), (7, 12), (20, 38), (39, 40)] {
            let [before, after] = [from, to].map(|version| &states[version as usize]);
            let keys = (0..16).filter(|key| before.get(key) != after.get(key));
            let lens = |key| [before, after].map(|state| state.get(&key).map(|it| it.1));
            let expected: Vec<_> = keys.map(|key| (key, lens(key))).collect();
            assert_eq!(diff(&engine, from, to, b"", None), expected, "seed {seed}, {from} to {to}");
        }
    }
}
