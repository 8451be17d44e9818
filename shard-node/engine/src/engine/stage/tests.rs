use coppice_env::SimStorage;
use coppice_types::{Epoch, Params, Version};

use super::*;
use crate::{
    ShardState,
    testing::{
        commit, create, damage, delete, flush, key, merge, open, prepare_id, put, puts, small, stage, stage_on, used,
    },
};

fn entries(engine: &Engine) -> Vec<u64> {
    engine.shape(&engine.decided()).expect("decided").entries
}

#[test]
fn a_base_that_is_neither_decided_last_nor_staged_is_refused() {
    let mut engine = create(&SimStorage::new(), small());
    let genesis = engine.decided();
    commit(&mut engine, 1, vec![put("a", 5)]);
    let tip = engine.decided();
    for base in [genesis, ShardState { digest: Digest([9; 32]), ..tip }, ShardState { version: Version(2), ..tip }] {
        let refused = stage_on(&mut engine, base, 3, 1, &[put("a", 6)]);
        assert!(matches!(refused, Err(Error::BaseMismatch { decided, .. }) if decided == tip), "{base:?}");
    }
    assert!(engine.staged().is_empty());
}

#[test]
fn a_stamp_follows_the_base_the_boundary_and_the_last_rollback() {
    let mut engine = create(&SimStorage::new(), small());
    commit(&mut engine, 3, vec![put("a", 5)]);
    engine.rollback(Version(3), Epoch(2)).expect("it is kept");
    engine.prune(Version(5)).expect("usable");
    let mut with = |epoch, version| {
        let (stamp, base) = (Stamp::new(epoch, version), engine.decided());
        let request =
            StageRequest { stamp, prepare_id: prepare_id(1), base, merges: &[], operations: &[], erases: &[] };
        engine.stage(&request)
    };
    for (epoch, version) in [(2, 3), (2, 5), (1, 6)] {
        let refused = with(epoch, version);
        assert!(matches!(refused, Err(Error::StampMismatch { epoch: Epoch(2) })), "{epoch} {version}");
    }
    with(2, 6).expect("it follows");
}

/// The shard's own epoch is that of its last rollback, and is lower here.
#[test]
fn an_epoch_is_not_below_that_of_the_base() {
    let mut engine = create(&SimStorage::new(), small());
    let mut with = |base, epoch, version| {
        let stamp = Stamp::new(epoch, version);
        let request =
            StageRequest { stamp, prepare_id: prepare_id(version), base, merges: &[], operations: &[], erases: &[] };
        engine.stage(&request).map(|staged| staged.state)
    };
    let genesis = ShardState { version: Version(0), digest: hash::empty_shard_digest() };
    let staged = with(genesis, 5, 1).expect("it follows");
    assert!(matches!(with(staged, 4, 2), Err(Error::StampMismatch { epoch: Epoch(0) })));
    with(staged, 5, 2).expect("the same epoch");
    with(staged, 6, 3).expect("a later one");
}

#[test]
fn a_version_is_staged_once_under_a_prepare_id_and_again_under_another() {
    let mut engine = create(&SimStorage::new(), small());
    let base = engine.decided();
    stage_on(&mut engine, base, 1, 7, &[put("a", 5)]).expect("it follows");
    let again = stage_on(&mut engine, base, 1, 7, &[put("b", 5)]);
    assert!(matches!(again, Err(Error::AlreadyStaged { version: Version(1) })));
    stage_on(&mut engine, base, 1, 8, &[put("b", 5)]).expect("another prepare id");
    assert_eq!(engine.staged().len(), 2);
}

#[test]
fn keys_values_and_their_order_are_checked_at_their_limits() {
    let params = Params { value_bytes_max: 50, ..small() };
    let mut engine = create(&SimStorage::new(), params);
    let base = engine.decided();
    let (longest, longer) = ("k".repeat(16), "k".repeat(17));
    for operations in [
        vec![put("", 5)],
        vec![put(&longer, 5)],
        vec![delete(&longer)],
        vec![put("a", 51)],
        vec![put("b", 5), put("a", 5)],
        vec![put("a", 5), delete("a")],
    ] {
        assert!(matches!(stage_on(&mut engine, base, 1, 1, &operations), Err(Error::Invalid(_))), "{operations:?}");
    }
    stage_on(&mut engine, base, 1, 1, &[put("a", 0), put("b", 50), put(&longest, 5)]).expect("within the limits");
}

#[test]
fn a_full_active_tree_is_frozen_by_the_next_writes_alone() {
    let mut engine = create(&SimStorage::new(), small());
    commit(&mut engine, 1, puts(0..7, 5));
    // A version may exceed the capacity; the tree is frozen after it.
    commit(&mut engine, 2, puts(5..10, 5));
    assert_eq!(entries(&engine), [10]);
    let full = engine.decided();
    commit(&mut engine, 3, vec![]);
    assert_eq!((entries(&engine), engine.decided().digest), (vec![10], full.digest));
    commit(&mut engine, 4, vec![put("z", 5)]);
    assert_eq!(entries(&engine), [1, 10]);
}

#[test]
fn a_delete_leaves_a_tombstone_only_over_a_record_of_a_frozen_tree() {
    let mut engine = create(&SimStorage::new(), small());
    commit(&mut engine, 1, puts(0..8, 5));
    commit(&mut engine, 2, vec![put("z", 5)]);
    commit(&mut engine, 3, vec![delete("absent")]);
    assert_eq!(entries(&engine), [1, 8], "an absent key");
    commit(&mut engine, 4, vec![delete("z")]);
    assert_eq!(entries(&engine), [0, 8], "a key of only the active tree");
    commit(&mut engine, 5, vec![delete(&key(3))]);
    assert_eq!(entries(&engine), [1, 8], "a key of the frozen tree");
    commit(&mut engine, 6, vec![delete(&key(3))]);
    assert_eq!(entries(&engine), [1, 8], "a key that is deleted already");
}

#[test]
fn a_tree_above_the_limit_is_refused_and_nothing_is_kept_of_the_version() {
    let mut engine = create(&SimStorage::new(), Params { tree_limit: 3, ..small() });
    (0..3).for_each(|n| commit(&mut engine, 1 + u64::from(n), puts(8 * n..8 * n + 8, 100)));
    let (base, before) = (engine.decided(), used(&engine));
    let refused = stage_on(&mut engine, base, 4, 1, &[put("z", 100)]);
    assert!(matches!(refused, Err(Error::TreeLimit { limit: 3 })));
    assert_eq!((engine.staged().len(), used(&engine)), (0, before));
    stage_on(&mut engine, base, 4, 1, &[]).expect("a version without writes freezes nothing");
    merge(&mut engine);
    assert_eq!(stage(&mut engine, 5, vec![put("z", 100)]).shape.entries, [1, 8, 16], "a merge made room");
}

/// Three frozen trees and an active one.
fn forest() -> Engine {
    let mut engine = create(&SimStorage::new(), small());
    (0..4).for_each(|n| commit(&mut engine, 1 + u64::from(n), puts(5 * n..5 * n + 8, 100)));
    engine
}

fn stage_merge(engine: &mut Engine, inputs: &[usize], output: Digest) -> Result<Staged> {
    let inputs = inputs.iter().map(|at| engine.meta.tip().trees[*at].digest).collect();
    let (stamp, base) = (Stamp::new(0, 9), engine.decided());
    let merges = [MergeName { inputs, output }];
    engine.stage(&StageRequest {
        stamp,
        prepare_id: prepare_id(1),
        base,
        merges: &merges,
        operations: &[],
        erases: &[],
    })
}

#[test]
fn the_inputs_of_a_merge_are_frozen_neighbours_youngest_first() {
    let mut engine = forest();
    for inputs in [&[][..], &[1], &[0, 1], &[1, 3], &[2, 1], &[1, 2, 3, 3]] {
        let refused = stage_merge(&mut engine, inputs, Digest::default());
        assert!(matches!(refused, Err(Error::MergeInputs)), "{inputs:?}");
    }
    assert!(engine.staged().is_empty() && engine.built_merges().is_empty());
}

#[test]
fn a_merge_that_gives_another_tree_is_refused_and_its_output_can_be_installed_by_its_name() {
    let mut engine = forest();
    let refused = stage_merge(&mut engine, &[2, 3], Digest([9; 32]));
    let Err(Error::MergeOutput { expected: Digest([9, ..]), found }) = refused else { panic!("{refused:?}") };
    assert!(engine.staged().is_empty());
    let built = engine.counters().merges_built;
    let staged = stage_merge(&mut engine, &[2, 3], found).expect("its own output");
    // Keys 5 to 7 are in both inputs.
    assert_eq!(staged.shape.entries, [8, 8, 13]);
    assert_eq!(engine.counters().merges_built, built, "it was kept");
}

#[test]
fn a_merge_that_this_replica_lacks_is_built_when_it_is_installed() {
    let [mut one, mut other] = [forest(), forest()];
    merge(&mut one);
    let names = one.built_merges();
    assert!(!names.is_empty() && other.built_merges().is_empty());
    let staged = [&mut one, &mut other].map(|engine| {
        let base = engine.decided();
        let request = StageRequest {
            stamp: Stamp::new(0, 9),
            prepare_id: prepare_id(1),
            base,
            merges: &names,
            operations: &[put("z", 100)],
            erases: &[],
        };
        engine.stage(&request).expect("they are neighbours")
    });
    assert_eq!(staged[0].state, staged[1].state);
    assert_eq!(staged[0].shape, staged[1].shape);
}

#[test]
fn a_merge_is_freed_with_the_last_version_that_could_install_it() {
    let mut engine = create(&SimStorage::new(), small());
    commit(&mut engine, 1, puts(0..8, 100));
    let before = used(&engine);
    (1..4).for_each(|n| commit(&mut engine, 1 + u64::from(n), puts(5 * n..5 * n + 8, 100)));
    assert!(stage_merge(&mut engine, &[2, 3], Digest([9; 32])).is_err(), "its output is kept");
    engine.rollback(Version(1), Epoch(1)).expect("it is kept");
    assert_ne!(used(&engine), before);
    engine.merge_step(1).expect("usable");
    assert_eq!(used(&engine), before);
}

#[test]
fn a_stage_that_meets_damage_leaves_nothing_behind() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, Params::default());
    commit(&mut engine, 1, puts(0..1000, 9));
    flush(&mut engine, 1);
    drop(engine);
    damage(&sim, "data");
    let mut engine = open(&sim);
    let (base, before, unflushed) = (engine.decided(), used(&engine), engine.unflushed_bytes());
    let refused = stage_on(&mut engine, base, 2, 1, &[put(&key(1), 9)]);
    assert!(matches!(refused, Err(Error::Corrupted { file, .. }) if file == "data"));
    assert_eq!((engine.decided(), engine.staged().len()), (base, 0));
    assert_eq!((used(&engine), engine.unflushed_bytes()), (before, unflushed));
}

#[test]
fn the_place_of_a_value_does_not_change_the_digest() {
    // Records of the value log with and without names.
    let states = [0, 6, 10_000].map(|name_percent_max| {
        let options = crate::Options { name_percent_max, ..crate::testing::options() };
        let mut engine = crate::testing::create_with(&SimStorage::new(), small(), options);
        commit(&mut engine, 1, vec![put("a", 0), put("b", 8), put("c", 9), put("d", 4000)]);
        let view = engine.view_at(Version(1)).expect("decided");
        let page = view.range(b"", None, 9, true).expect("sound pages");
        assert_eq!(page.records.iter().map(|it| it.value_len).collect::<Vec<_>>(), [0, 8, 9, 4000]);
        engine.decided()
    });
    assert!(states.iter().all(|state| *state == states[0]));
}
