//! Random sequences of commands against a model that keeps everything.

use crate::common::{Model, check::check, for_each_seed, options};
use coppice_env::{Rng, SimStorage};
use coppice_root::{Command, Error, Refusal, Root, fsck};
use coppice_types::{Epoch, Stamp, Version};

/// Runs `commands` valid commands with flushes and restarts between them.
fn run(seed: u64, commands: u64) {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(seed, &mut root);
    for _ in 0..commands {
        let command = match model.rng.below(100) {
            0..6 => model.set_pin(),
            6..8 => model.unpin(),
            _ => model.any(),
        };
        if model.is_pinned(&command) {
            let refusal = model.refuse(&mut root, &command);
            assert!(matches!(refusal, Refusal::Pinned { .. }), "{refusal}");
        } else {
            model.accept(&mut root, &command);
        }
        if model.rng.chance(60) {
            root.flush(model.position()).expect("flushes");
        }
        if model.rng.chance(5) {
            root.flush(model.position()).expect("flushes");
            drop(root);
            root = Root::open_with(disk.storage(), options()).expect("opens again");
            assert_eq!(root.applied_index(), model.index);
        }
    }
    check(&root, &mut model);
    root.flush(model.position()).expect("flushes");
    check(&root, &mut model);
    drop(root);
    let report = fsck::fsck(&disk.storage()).expect("runs");
    assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
    assert_eq!(report.headers, model.size());
    let root = Root::open_with(disk.storage(), options()).expect("opens again");
    check(&root, &mut model);
}

#[test]
fn random_commands_answer_as_the_model() {
    for_each_seed("random_commands_answer", 12, |seed| run(seed, 120));
}

#[test]
fn random_commands_over_several_tiles_answer_as_the_model() {
    for_each_seed("random_commands_over", 2, |seed| run(seed, 900));
}

/// PROTOCOL 2.4: if all pairs (0,0) (1,50) (2,20) were kept, the dead version (0,30) would pass.
#[test]
fn a_deeper_rollback_takes_the_epochs_above_it_away() {
    let mut root = Root::open_with(SimStorage::new().storage(), options()).expect("new");
    let mut model = Model::founded(60, &mut root);
    for (until, back_to) in [(60, Some(50)), (55, Some(20)), (40, None)] {
        while model.head().version.0 < until {
            let command = Command::AppendHeader(model.commit());
            model.accept(&mut root, &command);
        }
        if let Some(version) = back_to {
            let command = Command::AppendHeader(model.rollback(version));
            model.accept(&mut root, &command);
        }
    }
    let pairs: Vec<_> = root.view().expect("founded").epochs.iter().map(|pair| (pair.epoch.0, pair.base.0)).collect();
    assert_eq!(pairs, [(0, 0), (2, 20)]);
    for (epoch, version) in [(0, 30), (0, 60), (1, 51), (1, 55)] {
        let found = root.version(Version(version), Some(Epoch(epoch)));
        assert!(matches!(found, Err(Error::RolledBack { .. })), "({epoch}, {version}): {found:?}");
    }
    assert_eq!(root.version(Version(30), None).expect("stands").stamp, Stamp::new(2, 30));
    assert_eq!(root.version(Version(20), Some(Epoch(2))).expect("stands").stamp, Stamp::new(0, 20));
    check(&root, &mut model);
}

/// The index of times follows each command, and after a restart or a rollback it catches up.
#[test]
fn the_index_of_times_catches_up() {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(70, &mut root);
    let commit = |root: &mut Root, model: &mut Model| {
        let command = Command::AppendHeader(model.commit());
        model.accept(root, &command);
    };
    for _ in 0..700 {
        commit(&mut root, &mut model);
        assert_eq!(root.times_indexed(), model.head().version.next(), "the index follows");
    }
    let command = Command::AppendHeader(model.rollback(600));
    model.accept(&mut root, &command);
    assert_eq!(root.times_indexed(), Version(601), "what was rolled back is forgotten");
    commit(&mut root, &mut model);
    check(&root, &mut model);
    root.flush(model.position()).expect("flushes");
    drop(root);
    let mut root = Root::open_with(disk.storage(), options()).expect("opens again");
    check(&root, &mut model);
    let mut commands = 0;
    while root.times_indexed() <= model.head().version {
        assert!(commands < 6, "a bundle with each command");
        let command = model.open_session();
        model.accept(&mut root, &command);
        commands += 1;
        check(&root, &mut model);
    }
    assert!(commands > 2, "a command covers few headers");
}
