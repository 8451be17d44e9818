//! A full disk: the flush reports it, nothing is lost, reads still work, and a prune frees the
//! space that the next flushes need.

use std::io;

use coppice_engine::{Engine, Error, Options};
use coppice_env::{Fault, Rng, SimRng};
use coppice_types::{Change, ErrorKind, Operation, Params, Reason, Stamp, Version};

use crate::common::{
    checks::{check_all, check_some},
    for_each_seed,
    model::{Model, Outcome},
    replica::{Replica, check_directory, dir},
    tiny_options, tiny_params,
    workload::{Command, Generator},
};

fn assert_full(result: Result<(), Error>) {
    let error = result.expect_err("the disk is full");
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Exhausted, Reason::ResourceExhausted), "{error}");
    let source = std::error::Error::source(&error).expect("the storage's error");
    assert!(source.to_string().contains("no space left"), "{source}");
}

#[test]
fn a_flush_to_a_full_disk_fails_and_leaves_everything_intact() {
    for_each_seed("a_flush_to_a_full_disk_fails_and_leaves_everything_intact", 20, |seed| {
        let mut rng = SimRng::new(seed + 5_000_000);
        let params = tiny_params(&mut rng);
        let mut generator = Generator::new(SimRng::new(rng.next_u64()), &params, 40);
        let mut model = Model::new(&params);
        let mut replica = Replica::new(&params, tiny_options(&mut rng));
        let (mut flushed, mut failures) = (0, 0);
        for _ in 0..120 {
            let command = generator.next(&model);
            let expected = model.apply(&command);
            // Commands are still applied in memory while the disk is full.
            assert_eq!(replica.apply(&command), expected);
            let mut reader = generator.with_rng(SimRng::new(rng.next_u64()));
            check_some(replica.engine(), &model, &mut reader);
            if !rng.chance(300) {
                continue;
            }
            // The disk gets some room, often too little.
            let room = replica.sim.used_bytes() + rng.below(12_000);
            replica.sim.set_capacity(Some(room));
            let at = replica.log.len() as u64;
            let result = if rng.chance(500) {
                replica.flush()
            } else {
                // Commands during a flush may free pages that the flush writes.
                replica.begin_flush().and_then(|mut flush| {
                    for _ in 0..rng.below(4) {
                        let command = generator.next(&model);
                        assert_eq!(replica.apply(&command), model.apply(&command));
                    }
                    flush.run();
                    replica.engine_mut().end_writes(flush)
                })
            };
            if result.is_ok() {
                flushed = at;
            } else {
                failures += 1;
                assert_full(result);
            }
            assert_eq!(replica.engine().durable_position().index, flushed);
            check_all(replica.engine(), &model);
            let loss = replica.sim.power_loss(rng.next_u64());
            loss.set_capacity(None);
            check_directory(&loss);
            drop(Engine::open(dir(&loss), replica.options.clone()).expect("opens"));
            replica.sim.set_capacity(None);
            if rng.chance(500) {
                replica.flush().expect("there is room again");
                flushed = replica.log.len() as u64;
            }
        }
        replica.flush().expect("there is room again");
        replica.check_directory();
        assert!(failures > 0, "the disk was never full");
    });
}

pub fn put(key: u8, len: usize) -> Operation {
    Operation { key: vec![b'k', key].into(), change: Change::Put(vec![key; len].into()) }
}

/// Stages operations on the tip and settles the version.
pub fn commit(replica: &mut Replica, model: &mut Model, operations: Vec<Operation>) {
    let tip = model.tip().state;
    let stage = Command::Stage(crate::common::workload::Stage {
        erases: Vec::new(),
        stamp: Stamp::new(0, tip.version.0 + 1),
        prepare_id: Default::default(),
        base: tip,
        merges: Vec::new(),
        operations,
    });
    let expected = model.apply(&stage);
    assert_eq!(replica.apply(&stage), expected);
    let Outcome::State(state) = expected else { panic!("the stage follows the tip") };
    model.apply(&Command::Settle(state));
    assert_eq!(replica.apply(&Command::Settle(state)), Outcome::Done);
}

/// A flush after a prune needs only the space of one small copy-on-write change. The rest is
/// reused.
#[test]
fn a_prune_frees_what_a_full_disk_lacks() {
    let params = Params { capacity: 1000, ..Params::default() };
    let mut rng = SimRng::new(1);
    let options = Options { segment_bytes_max: 8 << 10, ..tiny_options(&mut rng) };
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, options));
    // Every version replaces all values, so the log fills with dead values and the page files with
    // old nodes.
    let mut versions = 0;
    replica.sim.set_capacity(Some(1 << 20));
    let full = loop {
        commit(&mut replica, &mut model, (0..20).map(|key| put(key, 1000 + versions)).collect());
        versions += 1;
        if let Err(error) = replica.flush() {
            break error;
        }
        assert!(versions < 200, "a megabyte holds all that");
    };
    assert_full(Err(full));
    check_all(replica.engine(), &model);
    assert_full(replica.flush());
    // The prune drops half a megabyte of old versions. The first flush must fit into the remaining
    // room, so an operator frees a little.
    let prune = Command::Prune { before: Version(versions as u64) };
    assert_eq!(replica.apply(&prune), model.apply(&prune));
    replica.sim.set_capacity(Some((1 << 20) + (64 << 10)));
    for _ in 0..3 {
        replica.flush().expect("a prune leaves little to write");
    }
    let used = replica.sim.used_bytes();
    assert!(used < 700 << 10, "{used} bytes are still used");
    // As long as old versions are pruned, the old limit is enough for any number of versions.
    replica.sim.set_capacity(Some(1 << 20));
    for _ in 0..200 {
        commit(&mut replica, &mut model, (0..20).map(|key| put(key, 1000 + versions)).collect());
        versions += 1;
        let prune = Command::Prune { before: Version(versions as u64) };
        assert_eq!(replica.apply(&prune), model.apply(&prune));
        replica.flush().expect("what was freed is used again");
    }
    check_all(replica.engine(), &model);
    replica.check_directory();
}

#[test]
fn a_meta_log_without_room_for_a_rewrite_is_appended_to() {
    let params = Params { capacity: 1000, ..Params::default() };
    let options = Options { meta_compaction_bytes_min: 0, ..Options::default() };
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, options));
    let meta_files = |replica: &Replica| {
        let files = replica.sim.files().into_iter();
        files.filter(|name| name.starts_with("meta-")).collect::<Vec<_>>()
    };
    // Every version is kept. The table soon outgrows the room for a flush, but new operations still
    // fit.
    let mut appended = 0;
    for version in 0..300 {
        commit(&mut replica, &mut model, vec![put(version as u8, 9)]);
        let before = meta_files(&replica);
        replica.sim.set_capacity(Some(replica.sim.used_bytes() + (24 << 10)));
        replica.flush().expect("there is room for a small change");
        appended = if meta_files(&replica) == before { appended + 1 } else { 0 };
    }
    assert!(appended > 100, "the log was rewritten {appended} flushes ago");
    replica.check_directory();
    // When there is room again, the log becomes short.
    replica.sim.set_capacity(None);
    let before = meta_files(&replica);
    for _ in 0..300 {
        commit(&mut replica, &mut model, vec![put(0, 9)]);
        replica.flush().expect("there is room");
    }
    assert!(meta_files(&replica).iter().all(|name| !before.contains(name)), "it was rewritten");
    check_all(replica.engine(), &model);
    replica.check_directory();
}

#[test]
fn what_is_written_ahead_says_that_the_disk_is_full_and_nothing_else() {
    let params = Params { capacity: 1000, ..Params::default() };
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, Options::default()));
    commit(&mut replica, &mut model, (0..20).map(|key| put(key, 4000)).collect());
    let ahead = |replica: &mut Replica| {
        let mut writes = replica.engine_mut().begin_ahead();
        writes.run();
        replica.engine_mut().end_writes(writes)
    };
    let operation = coppice_env::Operation::Write;
    replica.sim.inject(Fault { operation, path_part: "values-".to_owned(), skip: 0, kind: io::ErrorKind::Other });
    ahead(&mut replica).expect("the flush writes again");
    replica.sim.set_capacity(Some(replica.sim.used_bytes()));
    assert_full(ahead(&mut replica));
    replica.sim.set_capacity(None);
    ahead(&mut replica).expect("there is room");
    replica.flush().expect("there is room");
    check_all(replica.engine(), &model);
    replica.check_directory();
}
