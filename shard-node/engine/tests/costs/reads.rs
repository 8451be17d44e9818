//! Costs of reads, of the check of a directory, and of the scrubber.

use std::io::ErrorKind;

use coppice_engine::{MergeProgress, fsck};
use coppice_env::{Fault, Operation as Call, Rng, SimRng};

use super::*;

#[test]
fn a_diff_reads_what_has_changed_and_not_what_is_there() {
    let mut shard = Shard::loaded();
    let from = shard.engine.decided();
    for round in 0..200 {
        shard.commit(vec![put(7, &[round]), put(3000, &[round])]);
    }
    shard.commit(vec![Operation { key: key(1234).into(), change: Change::Delete }]);
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
            100 => operations.insert(0, Operation { key: key(50).into(), change: Change::Delete }),
            200 => operations.insert(0, put(50, b"again")),
            250 => operations.insert(0, Operation { key: key(50).into(), change: Change::Delete }),
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
    // Each record takes 1,016 bytes: 129 fit in a read, 1,032 in a segment.
    assert_eq!(reads(&range(&mut shard, 0, 1).0), (1, 1));
    assert_eq!(reads(&range(&mut shard, 3, 100).0), (100, 1));
    let (all, records) = range(&mut shard, 0, 2000);
    assert_eq!((records, reads(&all)), (2000, (2000, 16)));
    // Some new values lie after all others. The gaps that they leave are read with their
    // neighbours.
    shard.commit((0..2000).step_by(10).map(|number| put(number, &[7; 1000])).collect());
    shard.flush();
    let (all, records) = range(&mut shard, 0, 2000);
    assert_eq!((records, reads(&all)), (2000, (2000, 18)));
    // Gaps of two kilobytes are read with their neighbours; larger gaps cost a separate read.
    shard.commit((0..2000).filter(|number| number % 4 != 1).map(|number| put(number, b"inline")).collect());
    let (some, records) = range(&mut shard, 0, 400);
    assert_eq!((records, reads(&some)), (400, (100, 100)));
}

/// Merges two trees of 2,000 records each. Every third value is too short to have a name.
#[test]
fn a_get_of_a_named_value_in_a_merged_tree_reads_none_of_its_nodes() {
    const NAMED: usize = 1000;
    let params = Params { capacity: 2000, ..Params::default() };
    // The cache has room for the leaves, but the tree takes more than a quarter of it.
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
        match cost.span_reads + cost.node_old_hits {
            0 => straight += 1,
            _ => leaves += 1,
        }
    }
    assert!(straight > 4000 * 6 / 10 && leaves > 4000 / 4, "{straight}, {leaves}");
}

/// The reads of 2,000 random gets, after as many to warm up, and the bytes of filters in memory.
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

/// Records of the merged tree, the oldest of three.
const MERGED: u64 = 40_000;
/// The filters of the merge's inputs, of the younger tree and of the active tree's keys take fewer
/// bytes together. With the filter of the merged tree, of 50 KB, they take more.
const FILTERS_BYTES: u64 = 200_000;

#[test]
fn a_get_reads_a_leaf_and_nothing_else_with_a_hundredth_of_the_data_in_memory() {
    // Leaves take 7 MB, inner nodes 200 KB and the filter 50 KB.
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

/// Gets go around in a set of leaves that is larger than the cache. The cache still answers most of
/// them.
#[test]
fn gets_that_go_around_in_more_than_the_cache_find_what_it_holds() {
    let (cost, _) = reads_of_merged_tree(1 << 20, |number| 2 * (number % 6500));
    assert!(cost.span_reads < 1000, "{cost:?}");
}

/// Every version of a leaf refers to all its values, including the unchanged ones.
#[test]
fn fsck_reads_each_value_once() {
    const VALUES: u64 = 40;
    const VERSIONS: u64 = 60;
    let sim = SimStorage::new();
    let mut shard = Shard::on(&sim, Params::default(), Options::default());
    shard.commit((0..VALUES).map(|number| put(number, &[1; 1000])).collect());
    for version in 1..VERSIONS {
        shard.commit(vec![put(version % VALUES, &[2; 1000])]);
    }
    shard.flush();
    drop(shard);
    let values = VALUES + VERSIONS - 1;
    // The state of the older superblock is also checked, but it has no values.
    let one_too_many =
        Fault { operation: Call::Read, path_part: "values-".to_owned(), skip: values, kind: ErrorKind::Other };
    sim.inject(one_too_many);
    let report = fsck(sim.storage()).expect("a directory");
    assert_eq!((report.findings, report.values), (vec![], values));
}

/// Limit on the bytes of one step: a path of nodes with their bases, and a page. A long record of
/// the log is read in parts.
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
