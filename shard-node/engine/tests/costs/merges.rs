//! Merges: their reads, their pace, and the work that runs at the same time.

use std::{io::ErrorKind, num::NonZero};

use coppice_engine::{Error, MergePace, MergeProgress, fsck};
use coppice_env::{Fault, OpenMode, Operation as Call, Rng, SimRng, Workers};
use coppice_types::Epoch;

use super::*;

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
        // No tree can freeze before this merge is installed.
        last.push(shard.engine.counters().merge_records - read);
        if shape.entries[0] > CAPACITY / 8 * 7 {
            assert_eq!(shard.engine.merge_pace(), MergePace::Idle, "with {:?}", shape.entries);
        }
        let sum = last.iter().sum::<u64>();
        // Some merges are almost complete when the forest reaches its limit.
        if !shape.ready.is_empty() && sum > 2 * CAPACITY {
            // A step takes whole leaves, and some records may be owed, so several batches are
            // averaged.
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
        let mut shard = Shard::on(&sim, params, options);
        let mut states = Vec::new();
        for round in 0..12_u64 {
            let change = |number: u64| match (number * 31 + round) % 11 {
                0 => Operation { key: key(number).into(), change: Change::Delete },
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
    assert!(inline == run(threads, 1 << 20), "the outcome depends on the threads");
    // It does not matter either which thread reads a merge's input, and when.
    let (inline, threads) = (run(Workers::Inline, 0), run(threads, 0));
    assert!(inline == threads, "the outcome depends on the reader");
}

/// A directory with two trees to merge, one of them a merge output, and an engine that has nothing
/// of them in memory.
fn two_trees(workers: Workers) -> (SimStorage, Shard) {
    let (params, sim) = (Params { capacity: 4000, ..Params::default() }, SimStorage::new());
    let options = Options { workers, ..Options::default() };
    let mut shard = Shard::on(&sim, params, options.clone());
    let part = |of: u64| (0..RECORDS).filter(|n| n % 2 == of).map(|n| put(n, &[9; 60])).collect();
    // The third round makes two frozen trees, which are merged. The fifth makes another one.
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
        // The fault is too far away to occur. The number of reads follows from the remaining
        // distance.
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
            // The merge needs none of the damaged nodes.
            Ok(MergeProgress::Built(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(named > 5, "{named} of {pages} pages");
}

/// An engine with one extra thread and no cache for frozen trees.
fn with_a_thread() -> (SimStorage, Shard) {
    let thread = NonZero::new(1).map_or(Workers::Inline, Workers::Threads);
    let (params, sim) = (Params { capacity: 6000, ..Params::default() }, SimStorage::new());
    let options = Options { workers: thread, old_cache_bytes: 0, ..Options::default() };
    let shard = Shard::on(&sim, params, options);
    (sim, shard)
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
        // One step reads everything. The next step finds out whether the end is complete.
        let step = shard.engine.merge_step(usize::MAX).expect("sound pages");
        ended_elsewhere += u32::from(step == MergeProgress::Working);
        match round % 4 {
            // The rollback removes an input, or the merge continues without the version.
            0 => {
                let epoch = Epoch(shard.engine.epoch().0 + 1);
                assert_eq!(shard.engine.rollback(Version(version), epoch).expect("it is kept"), before);
                shard.version = version;
                shard.commit(half(1, round));
            }
            1 => shard.flush(),
            // A version installs the merge, if it is complete.
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
        // A leader waits like this before a version that would be refused.
        let trees = shard.engine.shape(&shard.engine.decided()).expect("decided").entries.len();
        if trees == usize::from(shard.engine.params().tree_limit) && shard.engine.built_merges().is_empty() {
            while shard.engine.merge_step(64).expect("sound pages") == MergeProgress::Working {}
            ended += 1;
        }
        let (before, version) = (shard.engine.decided(), shard.version);
        shard.commit(half(u64::from(round % 2), round));
        let mut steps = 0;
        // The writes have put merging behind, so each step has more work done ahead.
        let progress = loop {
            let progress = shard.engine.merge_step(64).expect("sound pages");
            steps += 1;
            if progress != MergeProgress::Working || steps == 10 * usize::from(round % 5) + 1 {
                break progress;
            }
        };
        unfinished += u32::from(progress == MergeProgress::Working);
        match round % 6 {
            // The rollback may remove inputs while they are read, and free their pages.
            2 | 5 => {
                let epoch = Epoch(shard.engine.epoch().0 + 1);
                assert_eq!(shard.engine.rollback(Version(version), epoch).expect("it is kept"), before);
                shard.version = version;
                shard.commit(half(u64::from(round % 2), round));
            }
            // Some leaves are in no file; some have a place but are not made yet.
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
