//! Costs of flushes and writes ahead: which bytes are written, which are not, and which space waits
//! for them.

use std::{collections::BTreeSet, io::ErrorKind};

use coppice_engine::{MergeProgress, SnapshotReceiver, fsck};
use coppice_env::{Fault, OpenMode, Operation as Call, Rng, SimRng, Storage, Workers};

use super::*;

#[test]
fn nodes_that_die_before_a_flush_are_never_written() {
    let mut shard = Shard::loaded();
    let (staging, ()) = shard.cost(|shard| {
        for _ in 0..5 {
            shard.stage(&(0..RECORDS).map(|number| put(number, b"lost")).collect::<Vec<_>>());
            shard.engine.abort_all_staged();
        }
    });
    assert!(staging.nodes_made > 500);
    let (cost, ()) = shard.cost(Shard::flush);
    assert_eq!(cost.span_writes, 0);
}

#[test]
fn a_change_of_a_few_records_of_each_leaf_writes_a_small_part_of_the_tree() {
    let mut shard = Shard::loaded();
    let before = shard.engine.disk_usage().expect("readable");
    let tree = before.index_bytes + before.data_bytes + before.patch_bytes;
    let mut written = Vec::new();
    // The first round splits leaves that are slightly too full.
    for round in 0..41 {
        shard.commit((0..RECORDS).step_by(40).map(|number| put(number + round, b"next")).collect());
        let start = shard.engine.counters().span_write_bytes;
        shard.flush();
        written.push(shard.engine.counters().span_write_bytes - start);
    }
    assert!(written[1] < tree / 10, "{written:?} of {tree}");
    assert!(written[1..].iter().sum::<u64>() < 40 * tree / 3, "{written:?} of {tree}");
}

#[test]
fn nodes_that_were_written_ahead_are_not_written_again() {
    let mut shard = Shard::loaded();
    // After this flush, the engine knows that nothing is pruned.
    shard.flush();
    let puts: Vec<Operation> = (0..RECORDS).map(|number| put(number, b"next")).collect();
    shard.commit(puts);
    let ahead = shard.engine.begin_ahead();
    shard.commit(vec![put(7, b"later")]);
    let (written, ()) = shard.cost(|shard| shard.write(ahead));
    assert!(written.span_writes > 100, "{written:?}");
    let (rest, ()) = shard.cost(Shard::flush);
    assert!((1..10).contains(&rest.span_writes), "{rest:?}");
    let (nothing, ()) = shard.cost(Shard::flush);
    assert_eq!(nothing.span_writes, 0);
}

#[test]
fn nodes_of_the_active_tree_that_a_prune_may_free_are_not_written_ahead() {
    let params = Params { capacity: 1000, ..Params::default() };
    let mut shard = Shard::new(params, Options::default());
    for round in 0..8 {
        shard.commit((0..500).map(|number| put(round * 500 + number, b"value")).collect());
        while shard.engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    }
    let all = shard.engine.unflushed_bytes();
    let ahead = shard.engine.begin_ahead();
    let (lasting, ()) = shard.cost(|shard| shard.write(ahead));
    assert_eq!(shard.engine.behind_bytes(), 0);
    assert!(lasting.span_writes > 20 && shard.engine.unflushed_bytes() > all / 4, "{lasting:?}");
    // Every version but the last one is dropped, and with them most of the bytes that are left to
    // write.
    shard.engine.prune(Version(8)).expect("usable");
    let (rest, ()) = shard.cost(Shard::flush);
    assert!((1..40).contains(&rest.span_writes), "{rest:?}");
}

#[test]
fn where_no_version_is_pruned_the_active_tree_is_written_ahead_too() {
    let mut shard = Shard::loaded();
    let puts = || (0..RECORDS).map(|number| put(number, b"next")).collect();
    let behind = |shard: &Shard| [shard.engine.behind_bytes(), shard.engine.unflushed_bytes()];
    shard.commit(puts());
    let [lasting, all] = behind(&shard);
    assert!(lasting < all / 4, "after one flush nobody knows: {lasting} of {all}");
    shard.flush();
    shard.commit(puts());
    let [lasting, all] = behind(&shard);
    // The bytes are everything except the meta log.
    assert!(lasting > all / 10 * 9, "{lasting} of {all}");
    let ahead = shard.engine.begin_ahead();
    shard.write(ahead);
    let (rest, ()) = shard.cost(Shard::flush);
    assert_eq!(rest.span_writes, 0);
    // After a prune, the second flush is the first to see none.
    shard.commit(puts());
    shard.engine.prune(Version(2)).expect("usable");
    for _ in 0..2 {
        let [lasting, all] = behind(&shard);
        assert!(lasting < all / 4, "{lasting} of {all}");
        shard.flush();
        shard.commit(puts());
    }
    let [lasting, all] = behind(&shard);
    assert!(lasting > all / 10 * 9, "{lasting} of {all}");
}

#[test]
fn changes_during_a_flush_are_written_by_the_next_one() {
    let mut shard = Shard::loaded();
    shard.commit((0..RECORDS).map(|number| put(number, b"next")).collect());
    let before = shard.engine.unflushed_bytes();
    let flush = shard.engine.begin_flush(Position { index: shard.index, term: 1 }, b"").expect("opens files");
    // The first commit replaces nodes that the flush writes. The second one replaces nodes of the
    // first, which no superblock will name.
    shard.commit(vec![put(7, b"later")]);
    shard.commit(vec![put(7, b"last")]);
    let (written, ()) = shard.cost(|shard| shard.write(flush));
    assert!(written.span_writes > 100, "{written:?}");
    assert!(shard.engine.unflushed_bytes() < before / 20, "{} of {before}", shard.engine.unflushed_bytes());
    let (rest, ()) = shard.cost(Shard::flush);
    assert!((1..10).contains(&rest.span_writes), "{rest:?}");
    let (nothing, ()) = shard.cost(Shard::flush);
    assert_eq!(nothing.span_writes, 0);
}

#[test]
fn where_much_waits_a_flush_frees_it_and_either_slot_has_its_state() {
    let sim = SimStorage::new();
    let options = Options { waiting_percent_max: 10, free_bytes_kept_min: 0, ..Options::default() };
    let mut shard = Shard::on(&sim, Params::default(), options.clone());
    for round in 1..=4_u8 {
        shard.commit((0..RECORDS).map(|number| put(number, &[round; 256])).collect());
        shard.engine.prune(Version(round.into())).expect("usable");
        assert_eq!(shard.engine.much_waits(), round > 1);
        shard.flush();
        let usage = shard.engine.disk_usage().expect("readable");
        assert_eq!((shard.engine.much_waits(), usage.waiting_bytes), (false, 0));
        // The first flush had nothing to free.
        let older = shard.engine.fallback_position().index;
        assert_eq!(older, if round == 1 { 0 } else { u64::from(round) });
    }
    let state = shard.engine.decided();
    drop(shard);
    // First the slot of the newest generation, 5; opening repairs it.
    for slot in [1, 0] {
        damage_superblock(&sim, slot);
        let report = fsck(sim.storage()).expect("a directory");
        assert!(report.is_clean() && report.notes.len() == 1, "{report:?}");
        let engine = Engine::open(sim.storage(), options.clone()).expect("the other slot has it");
        assert_eq!((engine.decided(), engine.durable_position().index), (state, 4));
    }
}

/// Flips a bit in one of the two slots of the superblock.
fn damage_superblock(sim: &SimStorage, slot: u64) {
    let slot_bytes = sim.open("superblock", OpenMode::Existing).and_then(|file| file.len()).expect("readable") / 2;
    sim.flip_bit("superblock", slot * slot_bytes + 100, 3);
}

/// A shard with segments of 64 KiB, whose versions each replace all values. All free space is given
/// back.
fn shard_of_small_segments(sim: &SimStorage) -> Shard {
    let options = Options {
        segment_bytes_max: 64 << 10,
        free_bytes_kept_min: 0,
        waiting_percent_max: u32::MAX,
        ..Options::default()
    };
    Shard::on(sim, Params::default(), options)
}

#[test]
fn a_snapshot_that_is_pinned_during_a_flush_has_what_the_flush_gives_up() {
    let sim = SimStorage::new();
    let mut shard = shard_of_small_segments(&sim);
    let puts = |round: u8| (0..500).map(|number| put(number, &[round; 256])).collect();
    shard.commit(puts(1));
    shard.flush();
    let state = shard.engine.decided();
    shard.commit(puts(2));
    shard.engine.prune(Version(2)).expect("usable");
    let flush = shard.engine.begin_flush(Position { index: 2, term: 1 }, b"").expect("opens files");
    let manifest = shard.engine.pin_snapshot().expect("pins");
    shard.write(flush);
    // Without the pin, the segments' files would be deleted by the second of these flushes.
    for index in 3..6 {
        shard.index = index;
        shard.flush();
    }
    let target = SimStorage::new();
    let mut receiver = SnapshotReceiver::new(target.storage(), manifest.clone(), u64::MAX).expect("an empty directory");
    while let Some((file, offset)) = receiver.next() {
        let file = file.to_owned();
        let bytes = shard.engine.read_snapshot(manifest.id, &file, offset, 10_000).expect("it is pinned");
        receiver.write(&file, offset, &bytes).expect("written");
    }
    receiver.finish(|key| Some(key.to_vec())).expect("every byte is as it was");
    let engine = Engine::open(target.storage(), Options::default()).expect("a directory");
    assert_eq!((engine.decided(), engine.durable_position().index), (state, 1));
}

#[test]
fn while_a_flush_goes_on_the_older_superblock_keeps_what_it_names() {
    let sim = SimStorage::new();
    let mut shard = shard_of_small_segments(&sim);
    shard.commit((0..RECORDS).map(|number| put(number, b"value")).collect());
    shard.flush();
    let state = shard.engine.decided();
    shard.commit((100..RECORDS).map(|number| Operation { key: key(number).into(), change: Change::Delete }).collect());
    shard.engine.prune(Version(2)).expect("usable");
    shard.flush();
    let manifest = shard.engine.pin_snapshot().expect("pins");
    assert!(shard.engine.disk_usage().expect("readable").waiting_bytes > 100 << 10);
    let flush = shard.engine.begin_flush(Position { index: 3, term: 1 }, b"").expect("opens files");
    shard.engine.unpin_snapshot(manifest.id);
    drop((flush, shard));
    // The slot of the newest generation, 3.
    damage_superblock(&sim, 1);
    let report = fsck(sim.storage()).expect("a directory");
    assert!(report.is_clean(), "{report:?}");
    let engine = Engine::open(sim.storage(), Options::default()).expect("the other slot has it");
    assert_eq!((engine.decided(), engine.durable_position().index), (state, 1));
}

#[test]
fn values_that_were_written_ahead_and_died_wait_for_a_flush_too() {
    let options = Options { segment_bytes_max: 64 << 10, free_bytes_kept_min: 0, ..Options::default() };
    let mut shard = Shard::new(Params::default(), options);
    for round in 1..=3_u8 {
        shard.commit((0..500).map(|number| put(number, &[round; 256])).collect());
        shard.engine.prune(Version(round.into())).expect("usable");
        let ahead = shard.engine.begin_ahead();
        shard.write(ahead);
        // No superblock knows these segments. After two rounds one half is dead, after three rounds
        // two thirds are.
        assert_eq!(shard.engine.much_waits(), round > 1);
    }
    let live = 500 * (16 + 256);
    assert!(shard.engine.disk_usage().expect("readable").value_bytes >= 3 * live);
    shard.flush();
    assert!(shard.engine.disk_usage().expect("readable").value_bytes < 2 * live);
}

/// Random updates of 8,000 keys of 256 B in batches of 40, with the last 40 versions kept: a small
/// version of the workload in `docs/engine-design.md`.
#[test]
fn endless_updates_rest_on_little_disk_and_write_little() {
    const BATCH: u64 = 40;
    const RETAIN: u64 = 40;
    let params = Params { capacity: 2600, ..Params::default() };
    // If there were threads, chance would decide when a merge ends.
    let workers = Workers::Inline;
    let options =
        Options { segment_bytes_max: 128 << 10, free_bytes_kept_min: 128 << 10, workers, ..Options::default() };
    let mut shard = Shard::new(params, options);
    let mut rng = SimRng::new(5);
    let record = 12 + 256;
    let (mut disk_max, mut before) = (0, Counters::default());
    let batches = RECORDS / BATCH;
    for version in 1..=7 * batches {
        let mut numbers: Vec<u64> = match version <= batches {
            true => ((version - 1) * BATCH..version * BATCH).collect(),
            false => (0..BATCH).map(|_| rng.below(RECORDS)).collect(),
        };
        numbers.sort_unstable();
        numbers.dedup();
        shard.commit(numbers.iter().map(|number| put(*number, &[version as u8; 256])).collect());
        shard.engine.prune(Version(version.saturating_sub(RETAIN))).expect("usable");
        let _: MergeProgress = shard.engine.merge_step(10 * BATCH as usize).expect("sound pages");
        let ahead = shard.engine.begin_ahead();
        shard.write(ahead);
        if shard.engine.unflushed_bytes() > 3 << 19 || shard.engine.much_waits() {
            shard.flush();
        }
        if version == 2 * batches {
            before = shard.engine.counters();
        }
        if version > 2 * batches {
            let usage = shard.engine.disk_usage().expect("readable");
            let pages = usage.index_bytes + usage.data_bytes + usage.patch_bytes;
            disk_max = disk_max.max(pages + usage.value_bytes + usage.meta_bytes);
        }
    }
    let after = shard.engine.counters();
    // Superblocks of 72 KiB matter only at this small size.
    let written = |all: &Counters| all.span_write_bytes + all.value_write_bytes;
    let user = after.user_bytes - before.user_bytes;
    let amplification = (written(&after) - written(&before)) as f64 / user as f64;
    let disk = disk_max as f64 / ((RECORDS + RETAIN * BATCH) * record) as f64;
    assert!(disk < 4.1 && amplification < 3.8, "{disk} of disk, {amplification} written");
}

/// Journals share no segment with other records, also after a restart.
#[test]
fn kept_journals_keep_no_values() {
    const LEN: usize = 8000;
    let params = Params { journals_kept: true, capacity: 64, ..Params::default() };
    let options = Options { segment_bytes_max: 64 << 10, workers: Workers::Inline, ..Options::default() };
    let sim = SimStorage::new();
    let mut shard = Shard::on(&sim, params, options.clone());
    let journal = |version: u64| vec![version as u8; 300];
    let mut value_bytes = Vec::new();
    for version in 1..=600 {
        let state = shard.stage(&[put(version % 8, &[version as u8; LEN])]);
        let prepare_id = PrepareId { term: Term(1), attempt: version };
        shard.engine.keep_journal(&state, prepare_id, &journal(version)).expect("it was just staged");
        shard.engine.settle(&state).expect("staged");
        shard.engine.prune(Version(version.saturating_sub(3))).expect("usable");
        let _: MergeProgress = shard.engine.merge_step(1000).expect("sound pages");
        if version % 10 == 0 {
            shard.flush();
            value_bytes.push(shard.engine.disk_usage().expect("readable").value_bytes);
        }
        if version % 150 == 0 {
            shard.flush();
            drop(shard.engine);
            shard.engine = Engine::open(sim.storage(), options.clone()).expect("it was flushed");
        }
    }
    let most = value_bytes.into_iter().max().expect("it was flushed");
    // Of 4.8 MB of values, 64 KB are live; journals take 190 KB.
    assert!(most < 800_000, "{most} bytes of values and journals");
    let state = shard.engine.decided();
    let kept = shard.engine.journals(&state, Version(1), Version(600), usize::MAX).expect("sound");
    let expected = (1..=600).map(|version| (Version(version), journal(version)));
    assert!(kept.into_iter().map(|kept| (kept.version, kept.bytes)).eq(expected));
}

/// Filters of retained versions stay on disk, not in memory.
#[test]
fn filters_of_old_trees_leave_memory() {
    let params = Params { capacity: 64, ..Params::default() };
    let options = Options { filters_cached_max: 4, workers: Workers::Inline, ..Options::default() };
    let mut shard = Shard::new(params, options);
    let filters = |shard: &Shard| shard.engine.disk_usage().expect("readable").filter_bytes;
    let mut rng = SimRng::new(3);
    let mut states = Vec::new();
    for version in 1..=2000 {
        let numbers: BTreeSet<u64> = (0..16).map(|_| rng.below(1000)).collect();
        shard.commit(numbers.into_iter().map(|number| put(number, &[version as u8; 8])).collect());
        states.push(shard.engine.decided());
        let _: MergeProgress = shard.engine.merge_step(100_000).expect("sound pages");
        if version % 500 == 0 {
            shard.flush();
        }
    }
    // Filters of active trees, which have their own bound, take 54 KB. Filters of all retained
    // trees would take 283 KB.
    assert!(filters(&shard) < 80_000, "{}", filters(&shard));
    // Filters that left memory are read again.
    for state in states.iter().step_by(37) {
        let view = shard.engine.view(state).expect("it is kept");
        assert_eq!(view.get(b"no such key", true).expect("sound"), None);
    }
}

/// A superblock whose sync failed may still be durable. The pages that it needs must stay, even if
/// nothing in memory needs them.
#[test]
fn what_a_superblock_of_unknown_fate_needs_is_not_given_back() {
    let sim = SimStorage::new();
    let mut shard = Shard::on(&sim, Params::default(), Options { free_bytes_kept_min: 0, ..Options::default() });
    shard.flush();
    let pin = shard.engine.pin_snapshot().expect("a flushed state");
    shard.stage(&(0..RECORDS).map(|number| put(number, b"staged")).collect::<Vec<_>>());
    let kind = ErrorKind::StorageFull;
    sim.inject(Fault { operation: Call::Sync, path_part: "superblock".to_owned(), skip: 0, kind });
    let position = Position { index: shard.index + 1, term: 1 };
    assert!(shard.engine.flush(position, b"").is_err());
    assert_eq!(shard.engine.abort_all_staged(), 1);
    shard.engine.unpin_snapshot(pin.id);
    drop(shard);
    let report = fsck(sim.storage()).expect("a directory");
    assert!(report.is_clean() && report.records == RECORDS, "{report:?}");
}
