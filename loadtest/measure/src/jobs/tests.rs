use std::path::Path;

use anyhow::Result;
use coppice_types::Params;

use super::{
    common::{LENGTHS, get_all},
    *,
};
use crate::{
    coppice::{Coppice, Durability, Settings},
    system::Reader,
};

fn scale(records: u64) -> Scale {
    Scale {
        records,
        value_bytes: 100,
        batch: 100,
        skew: 0.0,
        cache_bytes: 1 << 20,
        seconds: 0.01,
        put_seconds: 0.01,
        seed: 1,
    }
}

fn store(dir: &Path, durability: Durability, retain: Option<u64>) -> Coppice {
    let params = Params { capacity: 128, ..Params::default() };
    Coppice::create(dir, Settings { params, durability, retain, ..Settings::new(1 << 20) }).expect("creates")
}

#[test]
fn every_phase_of_the_comparison_gives_its_figure() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = store(dir.path(), Durability::Log, None);
    let sample = compare(&mut store, dir.path(), &scale(5000)).expect("runs").sample;
    for name in [
        "load_sorted",
        "range_100_loaded",
        "range_1000_updated",
        "put_4000",
        "put_500",
        "put_500_p99_ms",
        "get_1",
        "get_2",
        "memory_mib",
        "disk_per_live_byte",
    ] {
        assert!(sample[name].is_finite() && sample[name] > 0.0, "{name}: {}", sample[name]);
    }
}

#[test]
fn a_reader_that_misses_a_record_is_found_out() {
    struct Blind;
    impl Reader for Blind {
        fn get(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<bool> {
            Ok(false)
        }
        fn range(&mut self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
            Ok(None)
        }
    }
    assert!(get_all(&mut Blind, &[vec![1]], 1).is_err());
}

#[test]
fn history_is_read_then_dropped_without_reading_a_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let outcome = history(store(dir.path(), Durability::Later, None), &scale(500)).expect("runs");
    for age in [0, 10, 40, 1000] {
        assert!(outcome.sample[&format!("get_back_{age}")] > 0.0);
    }
    for name in ["prune_1", "prune_40", "rollback_5", "rollback_50", "rollback_1000"] {
        assert!(outcome.sample.contains_key(&format!("{name}_us_per_version")), "{name}");
    }
    assert_eq!(outcome.sample["drop_pages_read"] as u64, 0);
}

#[test]
fn versions_are_measured_as_they_grow() {
    let dir = tempfile::tempdir().expect("a directory");
    let outcome = versions(store(dir.path(), Durability::Later, None), dir.path(), &scale(800)).expect("runs");
    assert_eq!(outcome.series.iter().map(|series| series.lines.len()).collect::<Vec<_>>(), [1, 1, 1, 2]);
    assert!(outcome.series.iter().all(|series| series.lines.values().all(|points| points.len() == 8)));
    assert!(outcome.sample["version_disk_bytes"] > 100.0);
}

#[test]
fn proofs_grow_with_the_number_of_trees() {
    let dir = tempfile::tempdir().expect("a directory");
    let sample = proofs_by_trees(store(dir.path(), Durability::Later, None), &scale(3000)).expect("runs").sample;
    for trees in 2..=4 {
        assert!(sample[&format!("proof_{trees}_trees_bytes")] > sample[&format!("proof_{}_trees_bytes", trees - 1)]);
    }
    assert!(sample["proof_4_trees_oldest_entries"] > sample["proof_1_trees_oldest_entries"]);
    assert!(sample["multiproof_100_bytes_per_key"] < sample["proof_3_trees_bytes"]);
}

#[test]
fn the_plateau_has_a_point_for_each_look() {
    let dir = tempfile::tempdir().expect("a directory");
    let plateau_scale = PlateauScale {
        name: "plateau".to_owned(),
        scale: Scale { seconds: 600.0, ..scale(500) },
        rounds: 20,
        retain: 5,
        looks: 10,
        capacity: 128,
        flush_bytes: 32 << 20,
        waiting_percent: 25,
    };
    let outcome = plateau(store(dir.path(), Durability::Later, Some(5)), dir.path(), &plateau_scale).expect("runs");
    assert_eq!(outcome.series.len(), 5);
    for series in &outcome.series {
        let points = &series.lines["Coppice"];
        assert_eq!(points.len(), 10, "{}", series.id);
        assert!((points[9].0 - 20.0).abs() < 1e-9, "{points:?}");
    }
    assert!(outcome.sample["plateau_written"] > 0.0);
}

#[test]
fn more_memory_saves_reads() {
    let dir = tempfile::tempdir().expect("a directory");
    let scale = Scale { records: 20_000, ..scale(0) };
    let outcome = reads_per_get(store(dir.path(), Durability::Later, None), dir.path(), &scale).expect("runs");
    let at = |share: u32| outcome.sample[&format!("reads_100_at_{share}_per_mille")];
    assert!(at(100) < at(2), "{} and {}", at(100), at(2));
    assert!(at(2) >= 1.0);
    let absent = outcome.sample["reads_100_at_30_per_mille_absent"];
    assert!(absent < at(30), "filters save reads: {absent} and {}", at(30));
}

#[test]
fn data_that_grows_is_looked_at_on_its_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let outcome = growth_ours(store(dir.path(), Durability::Log, Some(1)), dir.path(), &scale(12_000), true);
    let outcome = outcome.expect("runs");
    let points = |id: &str| {
        let series = outcome.series.iter().find(|series| series.id == id).unwrap_or_else(|| panic!("no curve {id}"));
        series.lines.values().next().expect("a line").clone()
    };
    let disk = points("disk-by-records-100");
    assert_eq!(disk.iter().map(|(records, _)| *records as u64).collect::<Vec<_>>(), [10_000, 12_000]);
    assert!(disk.iter().all(|(_, bytes)| *bytes > 1.0), "{disk:?}");
    assert_eq!(points("range-by-length-12000").len(), LENGTHS.len());
    assert!(!points("reads-per-get-100").is_empty());
    assert!(outcome.sample["cache_of_budget"] > 0.0);
    assert!(outcome.sample["memory_beside_caches_mib"].is_finite());
}

#[test]
fn commits_and_gets_are_timed_while_merging_and_while_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let scale = Scale { seconds: 1.0, ..scale(2000) };
    let sample = beside_merges(store(dir.path(), Durability::Later, Some(5)), &scale).expect("runs").sample;
    for what in ["merging_commit", "merging_get"] {
        for name in ["p99_ms_without", "p99_ms_with", "p99_ratio"] {
            assert!(sample[&format!("{what}_{name}")] > 0.0, "{what}_{name}");
        }
    }
    assert!(sample["merging_records_merged"] > 0.0);
    assert!((0.0..1.0).contains(&sample["merging_share_of_commits"]));
}

#[test]
fn gets_are_timed_while_values_move_and_while_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let settings = Settings { hot_value_bytes: Some(64 << 10), ..Settings::new(1 << 20) };
    let store = Coppice::create(dir.path(), Settings { durability: Durability::Later, ..settings }).expect("creates");
    let scale = Scale { value_bytes: 1000, seconds: 2.0, ..scale(5000) };
    let sample = beside_moves(store, &scale).expect("runs").sample;
    assert!(sample["moving_mib"] > 0.0);
    for name in ["moving_get_p99_ratio", "moving_commit_p99_ratio"] {
        assert!(sample[name] > 0.0, "{name}");
    }
}
