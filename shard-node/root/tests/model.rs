//! Random sequences of commands against a model that keeps everything.

mod common;

use common::{Model, check::check, options};
use coppice_env::{Rng, SimStorage};
use coppice_root::{Root, fsck};

/// Runs `commands` valid commands with flushes and restarts between them.
fn run(seed: u64, commands: u64) {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(seed, &mut root);
    for _ in 0..commands {
        let command = model.any();
        model.accept(&mut root, &command);
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
    for seed in 0..8 {
        run(seed, 120);
    }
}

#[test]
fn random_commands_over_several_tiles_answer_as_the_model() {
    run(100, 900);
}
