use coppice_types::Params;

use super::*;
use crate::coppice::{Coppice, Durability, Settings};

fn scale(records: u64) -> Scale {
    Scale { records, value_bytes: 100, batch: 100, skew: 0.0, cache_bytes: 1 << 20, seconds: 0.01, seed: 1 }
}

fn store(dir: &Path, durability: Durability, retain: Option<u64>) -> Coppice {
    let params = Params { capacity: 128, ..Params::default() };
    Coppice::create(dir, Settings { params, cache_bytes: 1 << 20, durability, retain }).expect("creates")
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
fn proofs_grow_with_the_number_of_trees() {
    let dir = tempfile::tempdir().expect("a directory");
    let sample = proofs_by_trees(store(dir.path(), Durability::Later, None), &scale(3000)).expect("runs").sample;
    assert!(sample["proof_3_trees_bytes"] > sample["proof_2_trees_bytes"]);
    assert!(sample["proof_2_trees_oldest_entries"] > sample["proof_1_trees_oldest_entries"]);
    assert!(sample["multiproof_100_bytes_per_key"] < sample["proof_3_trees_bytes"]);
}

#[test]
fn the_plateau_has_a_point_for_each_look() {
    let dir = tempfile::tempdir().expect("a directory");
    let plateau_scale = PlateauScale { scale: scale(500), rounds: 20, retain: 5, looks: 10 };
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
