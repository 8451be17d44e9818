use std::io::ErrorKind;

use coppice_env::{Fault, Operation, SimStorage};
use coppice_types::{Epoch, Params, Version};

use super::*;
use crate::{
    Options, fsck,
    testing::{
        commit, create, create_with, deletes, flush, open, options, prepare_id, put, puts, small, stage_on, used,
    },
};

fn fault(operation: Operation, path_part: &str) -> Fault {
    Fault { operation, path_part: path_part.to_owned(), skip: 0, kind: ErrorKind::TimedOut }
}

fn at(index: u64) -> Position {
    Position { index, term: 1 }
}

fn names(sim: &SimStorage, prefix: &str) -> Vec<String> {
    sim.files().into_iter().filter(|name| name.starts_with(prefix)).collect()
}

/// Each value in a segment of its own.
fn short_segments() -> Options {
    Options { segment_bytes_max: 200, ..options() }
}

#[test]
fn a_flush_makes_the_state_its_position_and_the_callers_bytes_durable() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, small());
    for (version, state) in [(1, b"one"), (2, b"two")] {
        commit(&mut engine, version, puts(0..9, 100));
        engine.flush(at(10 * version), state).expect("room");
    }
    assert_eq!(engine.unflushed_bytes(), 0);
    let decided = engine.decided();
    let found = open(&sim.power_loss(1));
    assert_eq!((found.decided(), found.durable_position(), found.machine_state()), (decided, at(20), &b"two"[..]));
    assert_eq!(found.fallback_position(), at(10));
}

#[test]
fn what_was_not_flushed_is_gone_after_a_power_failure_and_its_places_are_free() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, small());
    commit(&mut engine, 1, puts(0..4, 100));
    flush(&mut engine, 1);
    let (kept, before) = (engine.decided(), used(&engine));
    commit(&mut engine, 2, puts(0..9, 100));
    assert!(engine.unflushed_bytes() > 0);
    let found = open(&sim.power_loss(1));
    assert_eq!((found.decided(), used(&found), found.unflushed_bytes()), (kept, before, 0));
}

#[test]
fn staged_versions_and_merges_are_flushed_too() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, small());
    (0..3).for_each(|n| commit(&mut engine, 1 + u64::from(n), puts(8 * n..8 * n + 8, 100)));
    crate::testing::merge(&mut engine);
    let base = engine.decided();
    stage_on(&mut engine, base, 9, 1, &[put("z", 100)]).expect("it follows");
    flush(&mut engine, 1);
    let (staged, built, before) = (engine.staged(), engine.built_merges(), used(&engine));
    assert!(!built.is_empty());
    let found = open(&sim.power_loss(1));
    assert_eq!((found.staged(), found.built_merges(), used(&found)), (staged, built, before));
}

#[test]
fn the_callers_bytes_have_a_limit_and_beyond_it_nothing_is_begun() {
    let mut engine = create(&SimStorage::new(), small());
    let refused = engine.flush(at(1), &vec![1; MACHINE_STATE_BYTES_MAX + 1]);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    engine.flush(at(1), &vec![1; MACHINE_STATE_BYTES_MAX]).expect("at the limit");
    assert_eq!(engine.machine_state().len(), MACHINE_STATE_BYTES_MAX);
}

#[test]
#[should_panic(expected = "raft positions never go back")]
fn a_flush_of_an_older_position_is_a_bug() {
    let mut engine = create(&SimStorage::new(), small());
    flush(&mut engine, 2);
    flush(&mut engine, 1);
}

/// One failure at each kind of file that is written before the superblock.
#[test]
fn a_flush_that_fails_before_its_superblock_can_be_repeated() {
    let failures = [
        (Operation::Write, "patches"),
        (Operation::Sync, "patches"),
        (Operation::Write, "values-0"),
        (Operation::Sync, "values-0"),
        (Operation::Name, "values-0"),
        (Operation::Write, "meta-1"),
        (Operation::Sync, "meta-1"),
        (Operation::SyncDir, ""),
    ];
    for (operation, path) in failures {
        let sim = SimStorage::new();
        let mut engine = create(&sim, small());
        commit(&mut engine, 1, puts(0..4, 100));
        let before = used(&engine);
        sim.inject(fault(operation, path));
        let failed = engine.flush(at(1), b"");
        assert!(matches!(failed, Err(Error::Io { .. })), "{operation:?} {path}: {failed:?}");
        assert_eq!((engine.durable_position().index, used(&engine)), (0, before));
        commit(&mut engine, 2, puts(2..6, 100));
        flush(&mut engine, 2);
        let (decided, before) = (engine.decided(), used(&engine));
        let found = open(&sim.power_loss(1));
        assert_eq!((found.decided(), used(&found)), (decided, before), "{operation:?} {path}");
        drop(found);
        assert!(fsck(sim.process_loss().storage()).expect("a directory").is_clean());
    }
}

#[test]
fn after_a_failed_superblock_reads_go_on_and_changes_are_refused_until_the_next_open() {
    for operation in [Operation::Write, Operation::Sync] {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params { journals_kept: true, ..small() });
        commit(&mut engine, 1, puts(0..4, 100));
        flush(&mut engine, 1);
        commit(&mut engine, 2, puts(2..6, 100));
        let decided = engine.decided();
        let staged = stage_on(&mut engine, decided, 3, 1, &[put("z", 5)]).expect("it follows");
        sim.inject(fault(operation, superblock::FILE));
        assert!(matches!(engine.flush(at(2), b""), Err(Error::Io { file, .. }) if file == superblock::FILE));
        assert!(matches!(engine.flush(at(2), b""), Err(Error::Poisoned)));
        assert!(matches!(stage_on(&mut engine, decided, 3, 2, &[]), Err(Error::Poisoned)));
        assert!(matches!(engine.keep_journal(&staged, prepare_id(1), b"journal"), Err(Error::Poisoned)));
        assert!(matches!(engine.prune(Version(2)), Err(Error::Poisoned)));
        assert!(matches!(engine.rollback(Version(1), Epoch(1)), Err(Error::Poisoned)));
        assert!(matches!(engine.merge_step(1), Err(Error::Poisoned)));
        let view = engine.view(&staged).expect("it is staged");
        assert!(view.get(b"z", true).expect("sound pages").is_some());
        drop(engine);
        let version = open(&sim).decided().version;
        assert!([Version(1), Version(2)].contains(&version), "{operation:?}");
        assert!(fsck(sim.storage()).expect("a directory").is_clean());
    }
}

/// The superblock may be on disk although its write failed, and it may need what looks free.
#[test]
fn after_a_failed_superblock_no_file_is_deleted_until_the_next_open() {
    let sim = SimStorage::new();
    let mut engine = create_with(&sim, small(), short_segments());
    commit(&mut engine, 1, vec![put("a", 101)]);
    flush(&mut engine, 1);
    let pin = engine.pin_snapshot().expect("readable").id;
    commit(&mut engine, 2, vec![put("a", 102)]);
    engine.prune(Version(2)).expect("usable");
    (2..=4).for_each(|index| flush(&mut engine, index));
    sim.inject(fault(Operation::Sync, superblock::FILE));
    assert!(engine.flush(at(5), b"").is_err());
    let files = sim.files();
    engine.unpin_snapshot(pin);
    assert_eq!(sim.files(), files);
    drop(engine);
    drop(open(&sim));
    assert!(files.contains(&"values-0".to_owned()) && !sim.files().contains(&"values-0".to_owned()));
}

#[test]
fn a_freed_page_is_reused_when_neither_superblock_names_it() {
    let sim = SimStorage::new();
    let mut engine = create(&sim, Params::default());
    commit(&mut engine, 1, puts(0..1000, 9));
    flush(&mut engine, 1);
    commit(&mut engine, 2, deletes(0..1000));
    engine.prune(Version(2)).expect("usable");
    let waiting = |engine: &Engine| engine.disk_usage().expect("readable").waiting_bytes;
    let first = waiting(&engine);
    assert!(first > 0);
    flush(&mut engine, 2);
    assert_eq!(waiting(&engine), first, "the older superblock names them");
    flush(&mut engine, 3);
    assert_eq!(waiting(&engine), 0);
    let high = engine.meta.space(PageFile::Data).high;
    commit(&mut engine, 3, puts(0..500, 7));
    assert_eq!(engine.meta.space(PageFile::Data).high, high);
}

#[test]
fn a_dead_segment_is_deleted_when_neither_superblock_names_it() {
    let sim = SimStorage::new();
    let mut engine = create_with(&sim, small(), short_segments());
    commit(&mut engine, 1, vec![put("a", 101)]);
    flush(&mut engine, 1);
    commit(&mut engine, 2, vec![put("a", 102)]);
    engine.prune(Version(2)).expect("usable");
    flush(&mut engine, 2);
    assert_eq!(names(&sim, "values"), ["values-0", "values-1"]);
    flush(&mut engine, 3);
    assert_eq!(names(&sim, "values"), ["values-1"]);
    let value = engine.view_at(Version(2)).expect("decided").get(b"a", true).expect("sound pages");
    assert_eq!(value.and_then(|record| record.value), Some(vec![102; 102]));
}

#[test]
fn an_open_deletes_the_files_that_a_crash_left() {
    let sim = SimStorage::new();
    let mut engine = create_with(&sim, small(), short_segments());
    commit(&mut engine, 1, vec![put("a", 101)]);
    let mut writes = engine.begin_ahead();
    writes.run();
    engine.end_writes(writes).expect("room");
    drop(engine);
    sim.storage().open("meta-7", coppice_env::OpenMode::CreateNew).expect("a new file");
    assert_eq!((names(&sim, "values"), names(&sim, "meta").len()), (vec!["values-0".to_owned()], 2));
    drop(open(&sim));
    assert_eq!((names(&sim, "values"), names(&sim, "meta").len()), (vec![], 1));
}

#[test]
fn a_long_meta_log_is_rewritten_and_the_old_one_goes_a_flush_later() {
    let sim = SimStorage::new();
    let mut engine = create_with(&sim, small(), Options { meta_compaction_bytes_min: 0, ..options() });
    let mut index = 0;
    while engine.superblock.meta_file == 1 {
        index += 1;
        assert!(index < 100, "it is never rewritten");
        commit(&mut engine, index, vec![put("a", 5)]);
        engine.prune(Version(index)).expect("usable");
        flush(&mut engine, index);
    }
    let new = meta_log::file_name(engine.superblock.meta_file);
    assert_eq!(engine.superblock.meta_file, engine.superblock.generation);
    assert_eq!(names(&sim, "meta"), ["meta-1", &new], "the older superblock names the old one");
    flush(&mut engine, index + 1);
    assert_eq!(names(&sim, "meta"), [new]);
    let decided = engine.decided();
    assert_eq!(open(&sim.power_loss(1)).decided(), decided);
}

#[test]
fn nothing_is_said_to_wait_for_a_flush_while_a_snapshot_is_pinned() {
    let sim = SimStorage::new();
    let eager = Options { free_bytes_kept_min: 0, waiting_percent_max: 0, ..options() };
    let mut engine = create_with(&sim, small(), eager);
    commit(&mut engine, 1, puts(0..7, 100));
    flush(&mut engine, 1);
    assert!(!engine.much_waits());
    commit(&mut engine, 2, deletes(0..7));
    engine.prune(Version(2)).expect("usable");
    assert!(engine.much_waits());
    let pin = engine.pin_snapshot().expect("readable").id;
    assert!(!engine.much_waits());
    engine.unpin_snapshot(pin);
    assert!(engine.much_waits());
}

#[test]
fn a_superblock_for_which_much_waits_is_copied_and_a_failed_copy_only_leaves_it_waiting() {
    for fails in [false, true] {
        let sim = SimStorage::new();
        let eager = Options { free_bytes_kept_min: 0, waiting_percent_max: 0, ..options() };
        let mut engine = create_with(&sim, small(), eager);
        commit(&mut engine, 1, puts(0..7, 100));
        flush(&mut engine, 1);
        commit(&mut engine, 2, deletes(0..7));
        engine.prune(Version(2)).expect("usable");
        if fails {
            sim.inject(Fault { skip: 1, ..fault(Operation::Write, superblock::FILE) });
        }
        flush(&mut engine, 2);
        assert_eq!(engine.fallback_position(), at(2), "the other slot is given up either way");
        let waiting = engine.disk_usage().expect("readable").waiting_bytes;
        assert_eq!(waiting > 0, fails);
        let decided = engine.decided();
        assert_eq!(open(&sim.power_loss(1)).decided(), decided);
        commit(&mut engine, 3, puts(0..9, 100));
        flush(&mut engine, 3);
        drop(engine);
        assert!(fsck(sim.storage()).expect("a directory").is_clean());
    }
}

#[test]
fn free_pages_beyond_those_to_keep_go_back_to_the_file_system_once() {
    let sim = SimStorage::new();
    let mut engine = create_with(&sim, Params::default(), Options { free_bytes_kept_min: 0, ..options() });
    commit(&mut engine, 1, puts(0..2000, 9));
    flush(&mut engine, 1);
    engine.rollback(Version(0), Epoch(1)).expect("it is kept");
    (2..=3).for_each(|index| flush(&mut engine, index));
    let discarded = engine.counters().discarded_bytes;
    assert!(discarded > 0);
    assert_eq!(engine.disk_usage().expect("readable").data_free_bytes, 0);
    flush(&mut engine, 4);
    assert_eq!(engine.counters().discarded_bytes, discarded);
}
