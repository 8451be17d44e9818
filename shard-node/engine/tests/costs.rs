//! What operations cost: nodes read and written, as the counters say. These are promises of the design, not tunings.

use std::{io::ErrorKind, num::NonZero};

use coppice_engine::{
    Counters, Engine, Error, MergePace, MergeProgress, Options, PrepareId, RaftPosition, SnapshotReceiver,
    StageRequest, fsck,
};
use coppice_env::{Fault, OpenMode, Operation as Call, Rng, SimRng, SimStorage, Storage, Workers};
use coppice_types::{Change, Epoch, Operation, Params, ShardId, Stamp, Version};

const RECORDS: u64 = 8000;

struct Shard {
    engine: Engine,
    version: u64,
    index: u64,
}

impl Shard {
    fn new(params: Params, options: Options) -> Self {
        let storage = SimStorage::new().storage();
        let engine = Engine::create(storage, ShardId(0), params, options).expect("an empty directory");
        Self { engine, version: 0, index: 0 }
    }

    /// One version with `RECORDS` records.
    fn loaded() -> Self {
        let mut shard = Self::new(Params::default(), Options::default());
        shard.commit((0..RECORDS).map(|number| put(number, b"first")).collect());
        shard.flush();
        shard
    }

    fn stage(&mut self, operations: &[Operation]) -> coppice_engine::ShardState {
        self.version += 1;
        let merges = self.engine.built_merges();
        let request = StageRequest {
            stamp: Stamp { epoch: self.engine.epoch(), version: Version(self.version) },
            prepare_id: PrepareId { term: 1, attempt: self.version },
            base: self.engine.decided(),
            merges: &merges,
            operations,
        };
        self.engine.stage(&request).expect("it follows on the decided state").state
    }

    fn commit(&mut self, operations: Vec<Operation>) {
        let state = self.stage(&operations);
        self.engine.settle(&state).expect("staged");
    }

    fn flush(&mut self) {
        self.index += 1;
        self.engine.flush(RaftPosition { index: self.index, term: 1 }, b"").expect("room");
    }

    /// What the counters gained, and what came out.
    fn cost<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> (Counters, T) {
        let before = self.engine.counters();
        let out = run(self);
        let after = self.engine.counters();
        let gained = Counters {
            nodes_made: after.nodes_made - before.nodes_made,
            span_reads: after.span_reads - before.span_reads,
            inner_reads: after.inner_reads - before.inner_reads,
            span_writes: after.span_writes - before.span_writes,
            node_dirty_hits: after.node_dirty_hits - before.node_dirty_hits,
            node_young_hits: after.node_young_hits - before.node_young_hits,
            node_old_hits: after.node_old_hits - before.node_old_hits,
            value_reads: after.value_reads - before.value_reads,
            value_file_reads: after.value_file_reads - before.value_file_reads,
            shortcut_reads: after.shortcut_reads - before.shortcut_reads,
            shortcut_hits: after.shortcut_hits - before.shortcut_hits,
            ..Counters::default()
        };
        (gained, out)
    }
}

fn nodes_read(counters: &Counters) -> u64 {
    counters.span_reads + counters.node_dirty_hits + counters.node_young_hits + counters.node_old_hits
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:08}").into_bytes()
}

fn put(number: u64, value: &[u8]) -> Operation {
    Operation { key: key(number), change: Change::Put(value.to_vec()) }
}

#[test]
fn prune_rollback_and_abort_read_and_write_no_page() {
    let mut shard = Shard::loaded();
    for round in 1..=30 {
        shard.commit(vec![put(round, b"next"), put(round * 100, b"next")]);
        if round % 7 == 0 {
            shard.flush();
        }
    }
    shard.stage(&[put(1, b"staged")]);
    let (cost, ()) = shard.cost(|shard| {
        shard.engine.prune(Version(10)).expect("usable");
        shard.engine.abort_all_staged();
        shard.engine.rollback(Version(20), Epoch(1)).expect("not pruned");
    });
    assert_eq!(cost, Counters::default());
}

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
    // The first one splits leaves that are a little too full.
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
    // Now it is known that nothing is pruned.
    shard.flush();
    let puts: Vec<Operation> = (0..RECORDS).map(|number| put(number, b"next")).collect();
    shard.commit(puts);
    let mut ahead = shard.engine.begin_ahead();
    shard.commit(vec![put(7, b"later")]);
    let (written, ()) = shard.cost(|shard| {
        ahead.run();
        shard.engine.end_writes(ahead).expect("nothing fails");
    });
    assert!(written.span_writes > 100, "{written:?}");
    let (rest, ()) = shard.cost(Shard::flush);
    assert!((1..10).contains(&rest.span_writes), "{rest:?}");
    let (nothing, ()) = shard.cost(Shard::flush);
    assert_eq!(nothing.span_writes, 0);
}

#[test]
fn of_the_active_tree_nothing_is_written_ahead_that_a_prune_may_take() {
    let params = Params { capacity: 1000, ..Params::default() };
    let mut shard = Shard::new(params, Options::default());
    for round in 0..8 {
        shard.commit((0..500).map(|number| put(round * 500 + number, b"value")).collect());
        while shard.engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    }
    let all = shard.engine.unflushed_bytes();
    let mut ahead = shard.engine.begin_ahead();
    let (lasting, ()) = shard.cost(|shard| {
        ahead.run();
        shard.engine.end_writes(ahead).expect("nothing fails");
    });
    assert_eq!(shard.engine.behind_bytes(), 0);
    assert!(lasting.span_writes > 20 && shard.engine.unflushed_bytes() > all / 4, "{lasting:?}");
    // Every version but the last one goes, and with them most of what is left to write.
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
    // All but what goes to the meta log.
    assert!(lasting > all / 10 * 9, "{lasting} of {all}");
    let mut ahead = shard.engine.begin_ahead();
    ahead.run();
    shard.engine.end_writes(ahead).expect("nothing fails");
    let (rest, ()) = shard.cost(Shard::flush);
    assert_eq!(rest.span_writes, 0);
    // From a prune on, the second flush after it is the first to know.
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
fn what_changes_beside_a_flush_comes_with_the_next_one_alone() {
    let mut shard = Shard::loaded();
    shard.commit((0..RECORDS).map(|number| put(number, b"next")).collect());
    let before = shard.engine.unflushed_bytes();
    let mut flush = shard.engine.begin_flush(RaftPosition { index: shard.index, term: 1 }, b"").expect("opens files");
    // The second one replaces nodes of the first one, which no superblock will name; the first one those that the flush writes.
    shard.commit(vec![put(7, b"later")]);
    shard.commit(vec![put(7, b"last")]);
    let (written, ()) = shard.cost(|shard| {
        flush.run();
        shard.engine.end_writes(flush).expect("nothing fails");
    });
    assert!(written.span_writes > 100, "{written:?}");
    assert!(shard.engine.unflushed_bytes() < before / 20, "{} of {before}", shard.engine.unflushed_bytes());
    let (rest, ()) = shard.cost(Shard::flush);
    assert!((1..10).contains(&rest.span_writes), "{rest:?}");
    let (nothing, ()) = shard.cost(Shard::flush);
    assert_eq!(nothing.span_writes, 0);
}

#[test]
fn a_merge_that_must_end_before_the_active_tree_freezes_goes_on_evenly_and_ends_early() {
    const CAPACITY: u64 = 8000;
    const BATCH: u64 = 200;
    let params = Params { capacity: CAPACITY as u32, ..Params::default() };
    let mut shard = Shard::new(params.clone(), Options { workers: Workers::Inline, ..Options::default() });
    let (mut rng, mut last, mut merges) = (SimRng::new(9), Vec::new(), 0);
    for _ in 0..600 {
        let mut numbers: Vec<u64> = (0..BATCH).map(|_| rng.below(80_000)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        shard.commit(numbers.iter().map(|number| put(*number, b"value")).collect());
        let read = shard.engine.counters().merge_records;
        while let MergePace::Behind(owed) = shard.engine.merge_pace() {
            let _: MergeProgress = shard.engine.merge_step(owed as usize).expect("sound pages");
        }
        let shape = shard.engine.shape(&shard.engine.decided()).expect("decided");
        if shape.entries.len() < usize::from(params.tree_limit) {
            last.clear();
            continue;
        }
        // Nothing can freeze before this merge is installed.
        last.push(shard.engine.counters().merge_records - read);
        if shape.entries[0] > CAPACITY / 8 * 7 {
            assert_eq!(shard.engine.merge_pace(), MergePace::Idle, "with {:?}", shape.entries);
        }
        let sum = last.iter().sum::<u64>();
        // Of some only the end is left when the forest comes to its limit.
        if !shape.ready.is_empty() && sum > 2 * CAPACITY {
            // A step takes whole leaves, and some records may be owed: so that several batches count.
            let most = last.windows(8).map(|batches| batches.iter().sum::<u64>()).max().unwrap_or(sum);
            assert!(most < sum * 8 / last.len() as u64 * 3 / 2, "{last:?}");
            merges += 1;
        }
    }
    assert!(merges > 2, "{merges} merges at the limit of trees");
}

#[test]
fn threads_change_no_byte_and_no_digest() {
    let run = |workers: Workers, old_cache_bytes: usize| {
        let params = Params { capacity: 3000, ..Params::default() };
        let sim = SimStorage::new();
        let options = Options { workers, old_cache_bytes, ..Options::default() };
        let engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
        let mut shard = Shard { engine, version: 0, index: 0 };
        let mut states = Vec::new();
        for round in 0..12_u64 {
            let change = |number: u64| match (number * 31 + round) % 11 {
                0 => Operation { key: key(number), change: Change::Delete },
                long => put(number, &vec![round as u8; 40 * long as usize]),
            };
            let operations: Vec<Operation> = (0..RECORDS).filter(|n| (n * 7 + round) % 5 == 0).map(change).collect();
            shard.commit(operations);
            while shard.engine.merge_step(700).expect("sound pages") == MergeProgress::Working {}
            shard.flush();
            states.push(shard.engine.decided());
        }
        let bytes = |name: String| {
            let file = sim.storage().open(&name, OpenMode::Existing).expect("it is listed");
            let mut bytes = vec![0; file.len().expect("a length") as usize];
            file.read_exact_at(&mut bytes, 0).expect("readable");
            (name, bytes)
        };
        (states, sim.files().into_iter().map(bytes).collect::<Vec<_>>())
    };
    let threads = NonZero::new(3).map_or(Workers::Inline, Workers::Threads);
    let inline = run(Workers::Inline, 1 << 20);
    assert!(inline == run(threads, 1 << 20), "the outcome depends on who worked");
    // Nor on who reads what a merge needs, and when.
    let (inline, threads) = (run(Workers::Inline, 0), run(threads, 0));
    assert!(inline == threads, "the outcome depends on who read");
}

/// A directory with two trees to merge, one of which a merge made, and an engine that has nothing of them in memory.
fn two_trees(workers: Workers) -> (SimStorage, Shard) {
    let (params, sim) = (Params { capacity: 4000, ..Params::default() }, SimStorage::new());
    let options = Options { workers, ..Options::default() };
    let engine = Engine::create(sim.storage(), ShardId(0), params, options.clone()).expect("an empty directory");
    let mut shard = Shard { engine, version: 0, index: 0 };
    let part = |of: u64| (0..RECORDS).filter(|n| n % 2 == of).map(|n| put(n, &[9; 60])).collect();
    // The third one makes two frozen trees of the first ones, which are merged, and the fifth one another beside that.
    for round in 0..5 {
        shard.commit(part(round % 2));
        if round == 2 {
            while shard.engine.merge_step(usize::MAX).expect("sound pages") == MergeProgress::Working {}
        }
    }
    shard.flush();
    let (version, index) = (shard.version, shard.index);
    drop(shard);
    let options = Options { old_cache_bytes: 0, ..options };
    let engine = Engine::open(sim.storage(), options).expect("a directory");
    (sim, Shard { engine, version, index })
}

#[test]
fn a_merge_reads_neighbouring_leaves_at_once() {
    for workers in [Workers::Inline, NonZero::new(1).map_or(Workers::Inline, Workers::Threads)] {
        const FAR: u64 = 10_000;
        let (sim, mut shard) = two_trees(workers);
        // An error that is too far off to come tells by how many reads it has come nearer.
        sim.inject(Fault { operation: Call::Read, path_part: "data".to_owned(), skip: FAR, kind: ErrorKind::Other });
        let (cost, ()) =
            shard.cost(|shard| while shard.engine.merge_step(512).expect("sound pages") == MergeProgress::Working {});
        let data = sim.storage().open("data", OpenMode::Existing).expect("it is there");
        let left = (0..=FAR).take_while(|_| data.read_exact_at(&mut [0], 0).is_ok()).count() as u64;
        let calls = FAR - left;
        assert!(cost.span_reads > 100 && calls * 4 < cost.span_reads, "{calls} calls, {cost:?}");
        assert_eq!(shard.engine.built_merges().len(), 1);
    }
}

#[test]
fn a_damaged_leaf_is_named_by_the_merge_that_reads_it() {
    let threads = NonZero::new(1).map_or(Workers::Inline, Workers::Threads);
    let (sim, _) = two_trees(Workers::Inline);
    let pages = sim.storage().open("data", OpenMode::Existing).and_then(|file| file.len()).expect("it is there") / 4096;
    let mut named = 0;
    for page in (0..pages).step_by(17) {
        let (sim, mut shard) = two_trees(if page % 2 == 0 { Workers::Inline } else { threads });
        sim.flip_bit("data", page * 4096 + 1000, 3);
        let outcome = loop {
            match shard.engine.merge_step(100) {
                Ok(MergeProgress::Working) => {}
                ended => break ended,
            }
        };
        match outcome {
            Err(Error::Corrupted { file, page: Some(at), .. }) => {
                assert!(file == "data" && at <= page && page < at + 4, "{at} instead of {page}");
                named += 1;
            }
            // No node that the merge needs is there.
            Ok(MergeProgress::Built(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(named > 5, "{named} of {pages} pages");
}

/// An engine with one thread beside it, and no cache for frozen trees.
fn with_a_thread() -> (SimStorage, Shard) {
    let thread = NonZero::new(1).map_or(Workers::Inline, Workers::Threads);
    let (params, sim) = (Params { capacity: 6000, ..Params::default() }, SimStorage::new());
    let options = Options { workers: thread, old_cache_bytes: 0, ..Options::default() };
    let engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
    (sim, Shard { engine, version: 0, index: 0 })
}

/// A value for every second key.
fn half(part: u64, byte: u8) -> Vec<Operation> {
    (0..RECORDS).filter(|n| n % 2 == part).map(|n| put(n, &[byte; 200])).collect()
}

#[test]
fn versions_come_and_go_while_a_merge_ends_on_another_thread() {
    let (sim, mut shard) = with_a_thread();
    let mut ended_elsewhere = 0;
    for round in 1..=20_u8 {
        shard.commit(half(0, round));
        let (before, version) = (shard.engine.decided(), shard.version);
        shard.commit(half(1, round));
        // All that there is to read of it: the next step finds it ended or not.
        let step = shard.engine.merge_step(usize::MAX).expect("sound pages");
        ended_elsewhere += u32::from(step == MergeProgress::Working);
        match round % 4 {
            // It has an input that is gone, or goes on without the version.
            0 => {
                let epoch = Epoch(shard.engine.epoch().0 + 1);
                assert_eq!(shard.engine.rollback(Version(version), epoch).expect("it is kept"), before);
                shard.version = version;
                shard.commit(half(1, round));
            }
            1 => shard.flush(),
            // A version installs it, if it has ended.
            2 => shard.commit(half(0, round)),
            _ => {}
        }
        while shard.engine.merge_step(1).expect("sound pages") == MergeProgress::Working {}
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        for number in (0..RECORDS).step_by(37) {
            let record = view.get(&key(number), true).expect("sound pages").expect("it was put");
            assert_eq!(record.value.as_deref(), Some(&[round; 200][..]));
        }
    }
    assert!(ended_elsewhere > 0, "a merge takes longer than the call that begins its end");
    shard.flush();
    drop(shard);
    let report = fsck(sim.storage()).expect("a directory");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn versions_come_and_go_while_others_merge_ahead() {
    let (sim, mut shard) = with_a_thread();
    let (mut unfinished, mut ended) = (0, 0);
    for round in 1..=24_u8 {
        // As a leader waits before a version that would be refused.
        let trees = shard.engine.shape(&shard.engine.decided()).expect("decided").entries.len();
        if trees == usize::from(shard.engine.params().tree_limit) && shard.engine.built_merges().is_empty() {
            while shard.engine.merge_step(64).expect("sound pages") == MergeProgress::Working {}
            ended += 1;
        }
        let (before, version) = (shard.engine.decided(), shard.version);
        shard.commit(half(u64::from(round % 2), round));
        let mut steps = 0;
        // What was written makes merges be behind, and each step has more done ahead.
        let progress = loop {
            let progress = shard.engine.merge_step(64).expect("sound pages");
            steps += 1;
            if progress != MergeProgress::Working || steps == 10 * usize::from(round % 5) + 1 {
                break progress;
            }
        };
        unfinished += u32::from(progress == MergeProgress::Working);
        match round % 6 {
            // Its inputs may be gone while they are read, and their pages free.
            2 | 5 => {
                let epoch = Epoch(shard.engine.epoch().0 + 1);
                assert_eq!(shard.engine.rollback(Version(version), epoch).expect("it is kept"), before);
                shard.version = version;
                shard.commit(half(u64::from(round % 2), round));
            }
            // Some leaves are in no file, some have a place and are not made.
            3 => shard.flush(),
            _ => {}
        }
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        for number in (0..RECORDS).step_by(37).filter(|n| n % 2 == u64::from(round % 2)) {
            let record = view.get(&key(number), true).expect("sound pages").expect("it was put");
            assert_eq!(record.value.as_deref(), Some(&[round; 200][..]));
        }
    }
    assert!(unfinished > 5 && ended > 2, "{unfinished} unfinished, {ended} ended");
    shard.flush();
    drop(shard);
    let report = fsck(sim.storage()).expect("a directory");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_commit_touches_every_node_once() {
    let mut shard = Shard::loaded();
    let (cost, ()) = shard.cost(|shard| shard.commit((0..RECORDS).map(|number| put(number, b"again")).collect()));
    let (all, _) = shard.cost(|shard| {
        let state = shard.engine.decided();
        shard.engine.view(&state).expect("decided").range(b"", None, usize::MAX, false).expect("sound pages").records
    });
    let nodes = nodes_read(&all);
    assert!(nodes > 100);
    assert!(nodes_read(&cost) <= nodes && cost.nodes_made <= nodes, "{cost:?} for {nodes} nodes");
}

#[test]
fn a_diff_reads_what_has_changed_and_not_what_is_there() {
    let mut shard = Shard::loaded();
    let from = shard.engine.decided();
    for round in 0..200 {
        shard.commit(vec![put(7, &[round]), put(3000, &[round])]);
    }
    shard.commit(vec![Operation { key: key(1234), change: Change::Delete }]);
    let (cost, changed) = shard.cost(|shard| {
        let older = shard.engine.view(&from).expect("decided");
        let newer = shard.engine.view(&shard.engine.decided()).expect("decided");
        newer.diff(&older, b"", None).expect("an ancestor")
    });
    let keys: Vec<Vec<u8>> = changed
        .iter()
        .map(|(before, after)| before.as_ref().or(after.as_ref()).expect("one of them").key.clone())
        .collect();
    assert_eq!(keys, [key(7), key(1234), key(3000)]);
    assert!(changed[1].1.is_none());
    assert!(nodes_read(&cost) < 60, "{cost:?}");
}

#[test]
fn history_jumps_over_versions_that_did_not_touch_the_key() {
    let mut shard = Shard::loaded();
    for round in 0..300 {
        let mut operations = vec![put(3500, &[round as u8])];
        match round {
            100 => operations.insert(0, Operation { key: key(50), change: Change::Delete }),
            200 => operations.insert(0, put(50, b"again")),
            250 => operations.insert(0, Operation { key: key(50), change: Change::Delete }),
            _ => {}
        }
        shard.commit(operations);
    }
    let (cost, page) = shard.cost(|shard| {
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        view.history(&key(50), usize::MAX).expect("sound pages")
    });
    let versions: Vec<(u64, bool)> =
        page.changes.iter().map(|change| (change.stamp.version.0, change.record.is_some())).collect();
    assert_eq!(versions, [(252, false), (202, true), (102, false), (1, true)]);
    assert!(nodes_read(&cost) < 60, "{cost:?}");
}

#[test]
fn a_scan_of_frozen_trees_leaves_the_young_cache_alone() {
    let params = Params { capacity: 1000, ..Params::default() };
    let options = Options { young_cache_bytes: 64 << 10, old_cache_bytes: 64 << 10, ..Options::default() };
    let mut shard = Shard::new(params, options);
    for round in 0..4 {
        shard.commit((round * 1000..(round + 1) * 1000).map(|number| put(number, b"value")).collect());
        while shard.engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    }
    shard.commit(vec![put(1, b"young"), put(2, b"young")]);
    shard.flush();
    let read_young = |shard: &mut Shard| {
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        view.get(&key(1), true).expect("sound pages").expect("it was put").value
    };
    read_young(&mut shard);
    let (scan, records) = shard.cost(|shard| {
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        view.range(b"", None, usize::MAX, false).expect("sound pages").records.len()
    });
    assert_eq!(records, 4000);
    assert!(scan.span_reads > 50, "the caches are too small for the scan: {scan:?}");
    let (cost, value) = shard.cost(read_young);
    assert_eq!(value, Some(b"young".to_vec()));
    assert_eq!((cost.span_reads, cost.node_old_hits), (0, 0), "{cost:?}");
}

#[test]
fn a_range_reads_values_that_are_neighbours_at_once() {
    let options = Options { segment_bytes_max: 1 << 20, name_percent_max: 0, ..Options::default() };
    let mut shard = Shard::new(Params::default(), options);
    shard.commit((0..2000).map(|number| put(number, &[number as u8; 1000])).collect());
    let range = |shard: &mut Shard, low: u64, limit: usize| {
        shard.cost(|shard| {
            let view = shard.engine.view(&shard.engine.decided()).expect("decided");
            view.range(&key(low), None, limit, true).expect("sound").records.len()
        })
    };
    let reads = |cost: &Counters| (cost.value_reads, cost.value_file_reads);
    assert_eq!(reads(&range(&mut shard, 0, 100).0), (100, 0), "all are in memory");
    shard.flush();
    // 1,016 bytes each: 129 with a read, and 1,032 in a segment.
    assert_eq!(reads(&range(&mut shard, 0, 1).0), (1, 1));
    assert_eq!(reads(&range(&mut shard, 3, 100).0), (100, 1));
    let (all, records) = range(&mut shard, 0, 2000);
    assert_eq!((records, reads(&all)), (2000, (2000, 16)));
    // The new values of some lie behind all others; what they leave is read with its neighbours.
    shard.commit((0..2000).step_by(10).map(|number| put(number, &[7; 1000])).collect());
    shard.flush();
    let (all, records) = range(&mut shard, 0, 2000);
    assert_eq!((records, reads(&all)), (2000, (2000, 18)));
    // Two kilobytes of others between each and the next are not worth their own reads, more are.
    shard.commit((0..2000).filter(|number| number % 4 != 1).map(|number| put(number, b"inline")).collect());
    let (some, records) = range(&mut shard, 0, 400);
    assert_eq!((records, reads(&some)), (400, (100, 100)));
}

/// Two trees of 2,000 records each, merged: every third value is too short for a name.
#[test]
fn a_get_of_a_named_value_in_a_merged_tree_reads_none_of_its_nodes() {
    const NAMED: usize = 1000;
    let params = Params { capacity: 2000, ..Params::default() };
    // The leaves would have room, but it is less than they may take of it.
    let options = Options { old_cache_bytes: 1 << 20, ..Options::default() };
    let mut shard = Shard::new(params, options);
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(3) { 300 } else { NAMED }];
    for round in 0..3 {
        shard.commit((0..2000).map(|number| number + 2000 * round).map(|number| put(number, &value(number))).collect());
    }
    while shard.engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    shard.commit(vec![put(9999, b"the merge is installed")]);
    shard.flush();
    let get = |shard: &mut Shard, number: u64| {
        shard.cost(|shard| {
            let view = shard.engine.view(&shard.engine.decided()).expect("decided");
            view.get(&key(number), true).expect("sound").and_then(|record| record.value)
        })
    };
    let (mut straight, mut leaves) = (0, 0);
    for number in 0..4000 {
        let (cost, found) = get(&mut shard, number);
        assert_eq!(found, Some(value(number)));
        assert!(cost.shortcut_hits + cost.shortcut_reads > 0, "{cost:?}");
        // The active tree is looked at first.
        match cost.span_reads + cost.node_old_hits {
            0 => straight += 1,
            _ => leaves += 1,
        }
    }
    assert!(straight > 4000 * 6 / 10 && leaves > 4000 / 4, "{straight}, {leaves}");
}

/// What 2,000 gets of keys at random read, each, once as many have been made; and the bytes of filters in memory then.
fn reads_of_merged_tree(old_cache_bytes: usize, keys: impl Fn(u64) -> u64) -> (Counters, u64) {
    const GETS: u64 = 2000;
    let params = Params { capacity: 20_000, ..Params::default() };
    let options = Options { young_cache_bytes: 8 << 10, old_cache_bytes, ..Options::default() };
    let mut shard = Shard::new(params, options);
    for round in 0..3 {
        let numbers = MERGED / 2 * round..MERGED / 2 * (round + 1);
        shard.commit(numbers.map(|number| put(2 * number, &[7; 100])).collect());
    }
    while shard.engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    shard.commit(vec![put(0, b"the merge is installed")]);
    shard.flush();
    let mut rng = SimRng::new(1);
    let mut get = |shard: &mut Shard| {
        let view = shard.engine.view(&shard.engine.decided()).expect("decided");
        for _ in 0..GETS {
            let number = keys(rng.below(MERGED));
            let found = view.get(&key(number), true).expect("sound").is_some();
            assert_eq!(found, number.is_multiple_of(2));
        }
    };
    get(&mut shard);
    let (cost, ()) = shard.cost(get);
    let usage = shard.engine.disk_usage().expect("readable");
    assert!(usage.young_cache_bytes + usage.old_cache_bytes <= (8 << 10) + old_cache_bytes as u64);
    (cost, usage.filter_bytes)
}

/// Records of the merged tree, which is the oldest of three.
const MERGED: u64 = 40_000;
/// More than all filters but the merged tree's have, which has 50 KB: those of both inputs, of the younger tree and of the active one's keys.
const FILTERS_BYTES: u64 = 200_000;

#[test]
fn a_get_reads_a_leaf_and_nothing_else_with_a_hundredth_of_the_data_in_memory() {
    // Some 7 MB of leaves, 200 KB of inner nodes, and a filter of 50 KB.
    let (cost, filter_bytes) = reads_of_merged_tree(48 << 10, |number| 2 * number);
    assert!(cost.inner_reads < 20, "{cost:?}");
    assert!((1900..2050).contains(&cost.span_reads), "{cost:?}");
    assert!(filter_bytes < FILTERS_BYTES, "{filter_bytes}");
}

#[test]
fn a_filter_that_fits_the_cache_keeps_gets_of_absent_keys_from_leaves() {
    let (cost, filter_bytes) = reads_of_merged_tree(96 << 10, |number| 2 * number + 1);
    assert!(cost.span_reads < 40, "{cost:?}");
    assert!(filter_bytes > FILTERS_BYTES, "{filter_bytes}");
    let (cost, _) = reads_of_merged_tree(48 << 10, |number| 2 * number + 1);
    assert!(cost.span_reads > 1900, "{cost:?}");
}

/// A cache of leaves that is a fifth too small for what gets go around in still answers most of them.
#[test]
fn gets_that_go_around_in_more_than_the_cache_find_what_it_holds() {
    let (cost, _) = reads_of_merged_tree(1 << 20, |number| 2 * (number % 6500));
    assert!(cost.span_reads < 1000, "{cost:?}");
}

/// Every version of a leaf names all of its values, those that it kept, too.
#[test]
fn fsck_reads_each_value_once() {
    const VALUES: u64 = 40;
    const VERSIONS: u64 = 60;
    let sim = SimStorage::new();
    let engine = Engine::create(sim.storage(), ShardId(0), Params::default(), Options::default()).expect("empty");
    let mut shard = Shard { engine, version: 0, index: 0 };
    shard.commit((0..VALUES).map(|number| put(number, &[1; 1000])).collect());
    for version in 1..VERSIONS {
        shard.commit(vec![put(version % VALUES, &[2; 1000])]);
    }
    shard.flush();
    drop(shard);
    let values = VALUES + VERSIONS - 1;
    // The state of the superblock before is checked, too, but it has no values.
    let one_too_many =
        Fault { operation: Call::Read, path_part: "values-".to_owned(), skip: values, kind: ErrorKind::Other };
    sim.inject(one_too_many);
    let report = fsck(sim.storage()).expect("a directory");
    assert_eq!((report.findings, report.values), (vec![], values));
}

/// A path of nodes, a base with each, and a page: a long record of the log is read in parts.
const SCRUB_STEP_MAX: u64 = 9 * 4096;

#[test]
fn the_scrubber_comes_to_an_end_in_steps_of_a_page() {
    let mut shard = Shard::loaded();
    shard.commit(vec![put(RECORDS, &[7; 200_000])]);
    shard.flush();
    let (mut steps, mut before) = (0, 0);
    while shard.engine.counters().scrubs == 0 {
        shard.engine.scrub(1).expect("all is sound");
        let after = shard.engine.counters().scrubbed_bytes;
        assert!(after - before <= SCRUB_STEP_MAX, "{} bytes in a step", after - before);
        (steps, before) = (steps + 1, after);
        assert!(steps < RECORDS, "it reads the same again and again");
    }
}

#[test]
fn where_much_waits_a_flush_frees_it_and_either_slot_has_its_state() {
    let sim = SimStorage::new();
    let options = Options { waiting_percent_max: 10, free_bytes_kept_min: 0, ..Options::default() };
    let engine =
        Engine::create(sim.storage(), ShardId(0), Params::default(), options.clone()).expect("an empty directory");
    let mut shard = Shard { engine, version: 0, index: 0 };
    for round in 1..=4_u8 {
        shard.commit((0..RECORDS).map(|number| put(number, &[round; 256])).collect());
        shard.engine.prune(Version(round.into())).expect("usable");
        assert_eq!(shard.engine.much_waits(), round > 1);
        shard.flush();
        let usage = shard.engine.disk_usage().expect("readable");
        assert_eq!((shard.engine.much_waits(), usage.waiting_bytes), (false, 0));
        // The first one had nothing to free.
        let older = shard.engine.fallback_position().index;
        assert_eq!(older, if round == 1 { 0 } else { u64::from(round) });
    }
    let state = shard.engine.decided();
    drop(shard);
    let slot_bytes = sim.open("superblock", OpenMode::Existing).and_then(|file| file.len()).expect("readable") / 2;
    // That of the newest generation, 5, first: opening mends it.
    for slot in [1, 0] {
        sim.flip_bit("superblock", slot * slot_bytes + 100, 3);
        let report = fsck(sim.storage()).expect("a directory");
        assert!(report.is_clean() && report.notes.len() == 1, "{report:?}");
        let engine = Engine::open(sim.storage(), options.clone()).expect("the other slot has it");
        assert_eq!((engine.decided(), engine.durable_position().index), (state, 4));
    }
}

/// A shard of which each version replaces all values, in a directory of segments of 64 KiB. All that is free is given back.
fn shard_of_small_segments(sim: &SimStorage) -> Shard {
    let options = Options {
        segment_bytes_max: 64 << 10,
        free_bytes_kept_min: 0,
        waiting_percent_max: u32::MAX,
        ..Options::default()
    };
    let engine = Engine::create(sim.storage(), ShardId(0), Params::default(), options).expect("an empty directory");
    Shard { engine, version: 0, index: 0 }
}

#[test]
fn a_snapshot_that_is_pinned_beside_a_flush_has_what_the_flush_gives_up() {
    let sim = SimStorage::new();
    let mut shard = shard_of_small_segments(&sim);
    let puts = |round: u8| (0..500).map(|number| put(number, &[round; 256])).collect();
    shard.commit(puts(1));
    shard.flush();
    let state = shard.engine.decided();
    shard.commit(puts(2));
    shard.engine.prune(Version(2)).expect("usable");
    let mut flush = shard.engine.begin_flush(RaftPosition { index: 2, term: 1 }, b"").expect("opens files");
    let manifest = shard.engine.pin_snapshot().expect("pins");
    flush.run();
    shard.engine.end_writes(flush).expect("nothing fails");
    // Their files would go with the second one from then on.
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
    receiver.finish().expect("every byte is as it was");
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
    shard.commit((100..RECORDS).map(|number| Operation { key: key(number), change: Change::Delete }).collect());
    shard.engine.prune(Version(2)).expect("usable");
    shard.flush();
    let manifest = shard.engine.pin_snapshot().expect("pins");
    assert!(shard.engine.disk_usage().expect("readable").waiting_bytes > 100 << 10);
    let flush = shard.engine.begin_flush(RaftPosition { index: 3, term: 1 }, b"").expect("opens files");
    shard.engine.unpin_snapshot(manifest.id);
    drop((flush, shard));
    let slot_bytes = sim.open("superblock", OpenMode::Existing).and_then(|file| file.len()).expect("readable") / 2;
    // That of the newest generation, 3.
    sim.flip_bit("superblock", slot_bytes + 100, 3);
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
        let mut ahead = shard.engine.begin_ahead();
        ahead.run();
        shard.engine.end_writes(ahead).expect("nothing fails");
        // No superblock knows their segments. Those of one of two rounds are dead, then those of two of three.
        assert_eq!(shard.engine.much_waits(), round > 1);
    }
    let live = 500 * (16 + 256);
    assert!(shard.engine.disk_usage().expect("readable").value_bytes >= 3 * live);
    shard.flush();
    assert!(shard.engine.disk_usage().expect("readable").value_bytes < 2 * live);
}

/// Random updates of 8,000 keys of 256 B in batches of 40, the last 40 versions kept: a small image of what
/// `docs/ENGINE-PROFILE.md` reports.
#[test]
fn endless_updates_rest_on_little_disk_and_write_little() {
    const BATCH: u64 = 40;
    const RETAIN: u64 = 40;
    let params = Params { capacity: 2600, ..Params::default() };
    // When a merge ends is chance with threads.
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
        let mut ahead = shard.engine.begin_ahead();
        ahead.run();
        shard.engine.end_writes(ahead).expect("nothing fails");
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
    // Superblocks of 72 KiB are much at this size only.
    let written = |all: &Counters| all.span_write_bytes + all.value_write_bytes;
    let user = after.user_bytes - before.user_bytes;
    let amplification = (written(&after) - written(&before)) as f64 / user as f64;
    let disk = disk_max as f64 / ((RECORDS + RETAIN * BATCH) * record) as f64;
    assert!(disk < 4.1 && amplification < 3.8, "{disk} of disk, {amplification} written");
}
