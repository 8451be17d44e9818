use coppice_env::SimStorage;
use coppice_types::Digest;

use super::*;
use crate::{
    fsck,
    testing::{create, flush, open, options, small, two_versions},
};

fn try_open(sim: &SimStorage) -> Result<Engine> {
    Engine::open(sim.storage(), options())
}

fn try_create(sim: &SimStorage, params: Params) -> Result<Engine> {
    Engine::create(sim.storage(), ShardId(3), params, options())
}

fn flip_slot(sim: &SimStorage, slot: u64) {
    sim.flip_bit(superblock::FILE, slot * superblock::SLOT_BYTES as u64 + 30, 0);
}

#[test]
fn a_new_engine_has_version_0_without_records() {
    let sim = SimStorage::new();
    drop(create(&sim, small()));
    let engine = open(&sim);
    assert_eq!((engine.shard(), engine.params()), (ShardId(3), &small()));
    let genesis = ShardState { version: Version(0), digest: hash::empty_shard_digest() };
    assert_eq!((engine.decided(), engine.boundary(), engine.epoch()), (genesis, Version(0), Epoch(0)));
    assert_eq!((engine.staged(), engine.durable_position()), (vec![], Position::default()));
    assert_eq!(
        engine.shape(&genesis).expect("decided"),
        ForestShape { entries: vec![0], ready: vec![], erasures_left: 1 << 20 }
    );
}

#[test]
fn a_directory_takes_one_engine_at_a_time() {
    let sim = SimStorage::new();
    let engine = create(&sim, small());
    assert!(matches!(try_open(&sim), Err(Error::Locked)));
    assert!(matches!(try_create(&sim, small()), Err(Error::Locked)));
    drop(engine);
    assert!(matches!(try_create(&sim, small()), Err(Error::AlreadyExists)));
    open(&sim);
}

#[test]
fn parameters_out_of_their_range_create_nothing() {
    let sim = SimStorage::new();
    assert!(matches!(try_create(&sim, Params { capacity: 7, ..small() }), Err(Error::Invalid(_))));
    assert_eq!(sim.files(), [""; 0]);
    assert!(matches!(try_open(&sim), Err(Error::Missing)));
}

#[test]
fn a_crash_in_create_leaves_an_engine_or_a_directory_for_one() {
    let mut outcomes = [0; 2];
    for calls in 0.. {
        let sim = SimStorage::new();
        sim.crash_after(calls);
        let created = try_create(&sim, small()).is_ok();
        let loss = sim.power_loss(calls);
        let exists = Engine::exists(&loss).expect("readable");
        assert!(exists || !created, "after {calls} calls");
        let engine = if exists { try_open(&loss) } else { try_create(&loss, small()) };
        assert_eq!(engine.expect("either is possible").decided().version, Version(0), "after {calls} calls");
        let report = fsck(loss.storage()).expect("a directory");
        assert!(report.is_clean(), "after {calls} calls: {report:?}");
        outcomes[usize::from(exists)] += 1;
        if created {
            break;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[test]
fn the_older_superblock_is_opened_if_the_newest_is_damaged() {
    let sim = two_versions();
    flip_slot(&sim, 1);
    let engine = open(&sim);
    assert_eq!((engine.decided().version, engine.durable_position().index), (Version(1), 1));
    assert_eq!(engine.fallback_position(), engine.durable_position(), "there is no other");
    let page = engine.view_at(Version(1)).expect("decided").range(b"", None, 9, true).expect("sound pages");
    assert_eq!(page.records.len(), 4);
}

#[test]
fn a_damaged_older_superblock_does_no_harm() {
    let sim = two_versions();
    flip_slot(&sim, 0);
    let mut engine = open(&sim);
    assert_eq!((engine.decided().version, engine.fallback_position().index), (Version(2), 2));
    flush(&mut engine, 3);
    assert_eq!(engine.fallback_position().index, 2);
}

#[test]
fn without_a_sound_superblock_or_its_log_there_is_no_engine() {
    let sim = two_versions();
    (0..2).for_each(|slot| flip_slot(&sim, slot));
    assert!(matches!(try_open(&sim), Err(Error::Corrupted { file, .. }) if file == superblock::FILE));
    let sim = two_versions();
    sim.flip_bit("meta-1", 50, 0);
    assert!(matches!(try_open(&sim), Err(Error::Corrupted { file, .. }) if file == "meta-1"));
    for file in ["data", "index", "patches"] {
        let sim = two_versions();
        sim.storage().remove(file).expect("it is there");
        assert!(matches!(try_open(&sim), Err(Error::Corrupted { file: lost, .. }) if lost == file));
    }
}

#[test]
fn a_failed_open_lets_the_directory_go() {
    let sim = two_versions();
    sim.set_opens_left(Some(3));
    assert!(matches!(try_open(&sim), Err(Error::Io { .. })));
    sim.set_opens_left(None);
    assert_eq!(open(&sim).decided().version, Version(2));
}

#[test]
fn a_state_that_is_not_here_has_neither_shape_nor_view() {
    let engine = create(&SimStorage::new(), small());
    let unknown = ShardState { digest: Digest([9; 32]), ..engine.decided() };
    assert!(!engine.has(&unknown).expect("readable"));
    assert!(matches!(engine.shape(&unknown), Err(Error::StateMissing(state)) if state == unknown));
    assert!(matches!(engine.view(&unknown), Err(Error::StateMissing(state)) if state == unknown));
}

#[test]
fn the_use_of_the_disk_is_that_of_its_files() {
    let sim = two_versions();
    let engine = open(&sim);
    let usage = engine.disk_usage().expect("readable");
    let len =
        |name: &str| sim.storage().open(name, OpenMode::Existing).and_then(|file| file.len()).expect("it is there");
    assert_eq!((usage.value_bytes, usage.value_live_bytes), (len("values-0"), 8 * 116));
    assert_eq!((usage.patch_bytes, usage.meta_bytes), (len("patches"), len("meta-1")));
    assert_eq!((usage.versions, usage.waiting_bytes, usage.cold_value_bytes), (3, 0, 0));
}
