//! The cold tier: old segments move to a second directory while all other work continues, also
//! after failures.

use std::{io, sync::Arc};

use coppice_engine::{Engine, Error, Options, fsck};
use coppice_env::{Fault, OpenMode, Operation as Call, SimRng, SimStorage, Storage, TieredStorage};
use coppice_types::{ErrorKind, Params, Version};

use crate::common::{
    checks::check_all,
    model::Model,
    replica::{COLD, Loss, Replica, SHARD, check_directory, dir, hot_dir, send, send_to},
    tiny_options,
    workload::Command,
};
use crate::full::{commit, put};

/// Moves all segments that should move.
///
/// # Errors
/// Those of the engine.
pub fn move_all(engine: &mut Engine) -> Result<(), Error> {
    while let Some(mut step) = engine.begin_cold_step(1000) {
        step.run();
        engine.end_cold_step(step)?;
    }
    assert!(!engine.cold_behind());
    Ok(())
}

fn options(hot_value_bytes_max: u64) -> Options {
    Options {
        segment_bytes_max: 8 << 10,
        hot_value_bytes_max,
        name_percent_max: 0,
        ..tiny_options(&mut SimRng::new(1))
    }
}

/// Several flushed versions of twenty keys, in more than ten segments. Each segment is needed by
/// some version.
fn filled(hot_value_bytes_max: u64) -> (Model, Replica) {
    let params = Params { capacity: 1000, ..Params::default() };
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, options(hot_value_bytes_max)));
    for round in 0..6 {
        commit(&mut replica, &mut model, (0..20).map(|key| put(key, 1000 + round)).collect());
        replica.flush().expect("flushes");
    }
    (model, replica)
}

fn names(sim: &SimStorage, path: &str) -> Vec<String> {
    let names = sim.list(path).unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with("values-")).collect()
}

fn hot(sim: &SimStorage) -> Vec<String> {
    names(sim, "shards/3")
}

fn full_cold_disk() -> Fault {
    Fault { operation: Call::Write, path_part: COLD.to_owned(), skip: 9, kind: io::ErrorKind::StorageFull }
}

#[test]
fn the_oldest_segments_go_until_the_rest_is_small_enough() {
    let (model, mut replica) = filled(32 << 10);
    let before = hot(&replica.sim);
    assert!(before.len() > 10 && replica.engine().cold_behind());
    move_all(replica.engine_mut()).expect("moves");
    let (stay, gone) = (hot(&replica.sim), names(&replica.sim, COLD));
    assert!((2..=4).contains(&stay.len()) && stay.len() + gone.len() == before.len(), "{stay:?}, {gone:?}");
    assert!(stay.contains(&format!("values-{}", before.len() - 1)), "the newest one stays: {stay:?}");
    assert!(gone.contains(&"values-0".to_owned()));
    let usage = replica.engine().disk_usage().expect("measured");
    let left = usage.value_bytes - usage.cold_value_bytes;
    assert!(left <= 32 << 10 && left > 20 << 10, "{usage:?}");
    assert_eq!(replica.engine().counters().cold_write_bytes, usage.cold_value_bytes);
    assert_eq!(replica.engine().counters().cold_segments, gone.len() as u64);
    check_all(replica.engine(), &model);
    let report = replica.check_directory();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    for loss in [Loss::Process, Loss::Power(1)] {
        replica.restart(loss);
        assert_eq!(replica.engine().disk_usage().expect("measured").cold_value_bytes, usage.cold_value_bytes);
        check_all(replica.engine(), &model);
    }
}

#[test]
fn nothing_moves_without_a_cold_directory_or_below_the_limit() {
    let (_, mut replica) = filled(u64::MAX);
    assert!(!replica.engine().cold_behind() && replica.engine_mut().begin_cold_step(1).is_none());
    let sim = replica.sim.process_loss();
    let mut engine = Engine::open(hot_dir(&sim), options(0)).expect("opens");
    assert!(!engine.cold_behind() && engine.begin_cold_step(1).is_none());
}

#[test]
fn a_crash_at_any_write_of_a_move_loses_nothing() {
    let (model, replica) = filled(32 << 10);
    let pristine = replica.sim.process_loss();
    let run = |sim: &SimStorage| {
        let mut engine = Engine::open(dir(sim), options(32 << 10))?;
        // Steps of this size cut each segment in two.
        while let Some(mut step) = engine.begin_cold_step(5000) {
            step.run();
            engine.end_cold_step(step)?;
        }
        Ok::<(), Error>(())
    };
    let whole = pristine.process_loss();
    run(&whole).expect("moves");
    assert!(whole.io_count() > 60);
    for ios in 0..whole.io_count() {
        let sim = pristine.process_loss();
        sim.crash_after(ios);
        assert!(run(&sim).is_err() && sim.crashed(), "write {ios} happens");
        for wreck in [sim.process_loss(), sim.power_loss(ios), sim.power_loss(ios + 1_000_000)] {
            check_directory(&wreck);
            let mut engine = Engine::open(dir(&wreck), options(32 << 10)).expect("opens after a crash");
            let (here, there) = (hot(&wreck), names(&wreck, COLD));
            assert!(there.iter().all(|name| !here.contains(name) && !name.ends_with(".new")), "{here:?}, {there:?}");
            check_all(&engine, &model);
            move_all(&mut engine).expect("it goes on");
            assert_eq!(hot(&wreck), hot(&whole), "the same segments are left");
            check_all(&engine, &model);
        }
    }
}

#[test]
fn a_missing_or_other_cold_disk_is_refused_by_name() {
    let (_, mut replica) = filled(32 << 10);
    move_all(replica.engine_mut()).expect("moves");
    let sim = replica.sim.process_loss();
    let empty = || Arc::new(TieredStorage::new(hot_dir(&sim), SimStorage::new().storage().subdir("x").expect("legal")));
    let storages: [Arc<dyn Storage>; 2] = [hot_dir(&sim), empty()];
    for storage in storages {
        for error in [Engine::open(Arc::clone(&storage), options(0)).err(), fsck(storage).err()] {
            let error = error.expect("it is refused");
            assert!(matches!(&error, Error::ColdMissing { file } if file == "values-0"), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "it is not damage: {error}");
        }
    }
    // A segment that is in neither directory is damage.
    sim.remove(&format!("{COLD}/values-0")).expect("removes");
    let error = Engine::open(dir(&sim), options(0)).expect_err("it is needed");
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(!fsck(dir(&sim)).expect("runs").is_clean());
}

#[test]
fn a_full_cold_disk_stops_the_moves_and_nothing_else() {
    let (mut model, mut replica) = filled(32 << 10);
    replica.sim.inject(full_cold_disk());
    let error = move_all(replica.engine_mut()).expect_err("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert_eq!(replica.engine().counters().cold_failures, 1);
    assert!(names(&replica.sim, COLD).iter().all(|name| !name.ends_with(".new")), "no room is kept in vain");
    commit(&mut replica, &mut model, vec![put(3, 500)]);
    replica.flush().expect("flushes");
    check_all(replica.engine(), &model);
    move_all(replica.engine_mut()).expect("there is room again");
    check_all(replica.engine(), &model);
    replica.check_directory();
}

/// A failed step must not leave a copy under its final name. It would stay when the segment dies in
/// the data directory.
#[test]
fn a_move_that_fails_in_the_end_leaves_no_copy() {
    let mut failures = 0;
    for (operation, path_part) in [(Call::SyncDir, COLD), (Call::Name, "shards/3/values-"), (Call::SyncDir, "shards/3")]
    {
        for skip in 0..6 {
            let (model, mut replica) = filled(32 << 10);
            replica.sim.inject(Fault { operation, path_part: path_part.to_owned(), skip, kind: io::ErrorKind::Other });
            failures += u32::from(move_all(replica.engine_mut()).is_err());
            let here = hot(&replica.sim);
            let twice: Vec<String> = names(&replica.sim, COLD).into_iter().filter(|name| here.contains(name)).collect();
            assert!(twice.is_empty(), "{operation:?} {path_part} {skip}: {twice:?}");
            replica.sim.clear_faults();
            check_all(replica.engine(), &model);
            replica.check_directory();
        }
    }
    assert!(failures > 5, "{failures} moves failed");
}

/// A prune frees the segment that is being moved: between two steps, within one, or when the last
/// one is done.
#[test]
fn a_segment_that_dies_on_its_way_is_gone_from_both() {
    for (steps, run_first) in [(1, false), (2, false), (2, true), (9, false), (9, true)] {
        let (mut model, mut replica) = filled(32 << 10);
        for _ in 1..steps {
            let mut step = replica.engine_mut().begin_cold_step(1000).expect("something is to move");
            step.run();
            replica.engine_mut().end_cold_step(step).expect("moves");
        }
        let mut step = replica.engine_mut().begin_cold_step(1000).expect("something is to move");
        if run_first {
            step.run();
        }
        // The last version needs none of the old values.
        let prune = Command::Prune { before: Version(6) };
        assert_eq!(replica.apply(&prune), model.apply(&prune));
        for _ in 0..4 {
            replica.flush().expect("flushes");
            commit(&mut replica, &mut model, vec![put(99, 4)]);
        }
        assert!(!hot(&replica.sim).contains(&"values-0".to_owned()), "it is dead");
        if !run_first {
            step.run();
        }
        replica.engine_mut().end_cold_step(step).expect("what died is not a failure");
        assert_eq!(names(&replica.sim, COLD), Vec::<String>::new(), "after {steps} steps");
        assert_eq!(replica.engine().counters().cold_failures, 0);
        check_all(replica.engine(), &model);
        move_all(replica.engine_mut()).expect("others go on");
        replica.flush().expect("flushes");
        replica.check_directory();
    }
}

#[test]
fn a_segment_that_is_cold_is_deleted_there() {
    let (mut model, mut replica) = filled(0);
    move_all(replica.engine_mut()).expect("moves");
    assert!(names(&replica.sim, COLD).len() > 10);
    let prune = Command::Prune { before: Version(6) };
    assert_eq!(replica.apply(&prune), model.apply(&prune));
    for _ in 0..4 {
        replica.flush().expect("flushes");
        commit(&mut replica, &mut model, vec![put(99, 4)]);
    }
    assert!(names(&replica.sim, COLD).len() < 5, "{:?}", names(&replica.sim, COLD));
    replica.restart(Loss::Power(7));
    check_all(replica.engine(), &model);
    replica.check_directory();
}

#[test]
fn a_snapshot_goes_to_nodes_with_and_without_a_cold_directory() {
    let (model, mut replica) = filled(32 << 10);
    let sizes = |sim: &SimStorage| (hot(sim).len(), names(sim, COLD).len());
    let all = hot(&replica.sim).len();
    for moved in [false, true] {
        if moved {
            move_all(replica.engine_mut()).expect("moves");
        }
        let manifest = replica.engine_mut().pin_snapshot().expect("pins");
        let (plain, tiered) = (SimStorage::new(), SimStorage::new());
        send_to(replica.engine(), &manifest, hot_dir(&plain), 3000).expect("received");
        assert_eq!(sizes(&plain), (all, 0), "without a cold directory everything is hot");
        // Files of another engine are in the way.
        tiered.create_dir_all(COLD).expect("makes");
        for name in ["values-0", "values-999", "values-3.new"] {
            tiered.open(&format!("{COLD}/{name}"), OpenMode::CreateNew).expect("makes");
        }
        send(replica.engine(), &manifest, &tiered, 3000).expect("received");
        assert_eq!(sizes(&tiered), (1, all - 1), "what is too much goes to the cold one at once");
        check_directory(&tiered);
        for (storage, budget) in [(hot_dir(&plain), 0), (dir(&tiered), u64::MAX)] {
            let engine = Engine::open(storage, options(budget)).expect("opens");
            check_all(&engine, &model);
        }
        // The sender's segments move. A check that began before stays valid.
        let check = replica.engine().check_of_snapshot(manifest.id).expect("it is pinned");
        move_all(replica.engine_mut()).expect("moves");
        check().expect("a move does not damage it");
        send(replica.engine(), &manifest, &SimStorage::new(), 3000).expect("received");
        replica.engine_mut().unpin_snapshot(manifest.id);
    }
}

#[test]
fn a_new_engine_has_nothing_of_an_older_one_in_its_cold_directory() {
    let (_, mut replica) = filled(0);
    move_all(replica.engine_mut()).expect("moves");
    let sim = replica.sim.process_loss();
    sim.remove_dir_all("shards/3").expect("removes");
    let params = Params { capacity: 1000, ..Params::default() };
    drop(Engine::create(dir(&sim), SHARD, params, options(0)).expect("is made"));
    assert_eq!(names(&sim, COLD), Vec::<String>::new());
    assert_eq!(names(&sim.power_loss(3), COLD), Vec::<String>::new(), "not even after a loss of power");
}

/// When the newer superblock is lost, the last segment of the older state may already be cold. It
/// must take no more records.
#[test]
fn a_state_whose_last_segment_is_cold_goes_on_in_a_new_one() {
    let (mut model, mut replica) = filled(0);
    let older = replica.engine().durable_position().index;
    commit(&mut replica, &mut model, (0..20).map(|key| put(key, 2000)).collect());
    replica.flush().expect("flushes");
    move_all(replica.engine_mut()).expect("moves");
    let cold = names(&replica.sim, COLD).len();
    let sim = replica.sim.process_loss();
    let slot = (0..2).find(|slot| {
        let damaged = sim.process_loss();
        damaged.flip_bit("shards/3/superblock", slot * (72 << 10) + 20, 1);
        Engine::open(dir(&damaged), options(0)).is_ok_and(|engine| engine.durable_position().index == older)
    });
    sim.flip_bit("shards/3/superblock", slot.expect("one is the newer") * (72 << 10) + 20, 1);
    let mut reopened = Replica::reopen(sim, options(0), replica.log.clone()).expect("opens and replays");
    check_all(reopened.engine(), &model);
    reopened.flush().expect("flushes");
    check_all(reopened.engine(), &model);
    move_all(reopened.engine_mut()).expect("moves");
    assert!(names(&reopened.sim, COLD).len() >= cold - 1);
    check_all(reopened.engine(), &model);
    reopened.check_directory();
}
