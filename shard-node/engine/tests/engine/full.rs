//! A full disk: the flush says so, nothing is lost, reads go on, and a prune frees what the next flushes need.

use coppice_engine::{Engine, Error};
use coppice_env::{Rng, SimRng};
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
            // Commands go on in memory while the disk is full.
            assert_eq!(replica.apply(&command), expected);
            let mut reader = generator.with_rng(SimRng::new(rng.next_u64()));
            check_some(replica.engine(), &model, &mut reader);
            if !rng.chance(300) {
                continue;
            }
            // Some room, often too little.
            let room = replica.sim.used_bytes() + rng.below(12_000);
            replica.sim.set_capacity(Some(room));
            let at = replica.log.len() as u64;
            let result = if rng.chance(500) {
                replica.flush()
            } else {
                // Some of what comes beside the flush gives up what it writes.
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
    Operation { key: vec![b'k', key], change: Change::Put(vec![key; len]) }
}

/// Stages on the tip, settles.
pub fn commit(replica: &mut Replica, model: &mut Model, operations: Vec<Operation>) {
    let tip = model.tip().state;
    let stage = Command::Stage(crate::common::workload::Stage {
        stamp: Stamp::new(0, tip.version.0 + 1),
        prepare_id: Default::default(),
        base: tip,
        merges: Vec::new(),
        operations,
    });
    let expected = model.apply(&stage);
    assert_eq!(replica.apply(&stage), expected);
    let Outcome::State(state) = expected else { panic!("the stage follows on the tip") };
    model.apply(&Command::Settle(state));
    assert_eq!(replica.apply(&Command::Settle(state)), Outcome::Done);
}

/// The room that flushes of pruned states need is what copy-on-write takes for one small change: the rest is reused.
#[test]
fn a_prune_frees_what_a_full_disk_lacks() {
    let params = Params { capacity: 1000, ..Params::default() };
    let mut rng = SimRng::new(1);
    let options = coppice_engine::Options { segment_bytes_max: 8 << 10, ..tiny_options(&mut rng) };
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, options));
    // Every version replaces all values: the log fills with dead ones, and pages with old nodes.
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
    // Half a megabyte of old versions goes. The first flush must fit into what is left: an operator frees a little.
    let prune = Command::Prune { before: Version(versions as u64) };
    assert_eq!(replica.apply(&prune), model.apply(&prune));
    replica.sim.set_capacity(Some((1 << 20) + (64 << 10)));
    for _ in 0..3 {
        replica.flush().expect("a prune leaves little to write");
    }
    let used = replica.sim.used_bytes();
    assert!(used < 700 << 10, "{used} bytes are still used");
    // From now on the old limit is enough for as many versions again, as long as old ones are pruned.
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
