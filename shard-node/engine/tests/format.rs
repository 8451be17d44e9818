//! Golden files that hold the bytes of `docs/format.md`. `testdata/v6-rows` has the present
//! format.
//!
//! If a test fails here, directories of users can no longer be opened. A changed format needs a new
//! number. `COPPICE_BLESS=1` writes the golden files again.

use std::sync::Arc;

use coppice_engine::{Engine, Error, MergeProgress, Options, Position, PrepareId, ShardState, StageRequest, fsck};
use coppice_env::{DiskStorage, OpenMode, SimStorage, Storage};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term, Version};
use twox_hash::XxHash3_64;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v6-rows");

fn read(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name, OpenMode::Existing).expect("the file exists");
    let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("readable");
    bytes
}

/// Names of all files but the lock.
fn names(storage: &dyn Storage) -> Vec<String> {
    let mut names = storage.list("").expect("a directory");
    names.retain(|name| name != "lock");
    names
}

fn copy(from: &dyn Storage, to: &dyn Storage) {
    to.create_dir_all("").expect("a directory");
    for name in names(from) {
        let file = to.open(&name, OpenMode::CreateNew).expect("a new file");
        file.write_all_at(&read(from, &name), 0).expect("room");
    }
}

fn params() -> Params {
    Params { key_bytes_max: 8, node_bytes: 320, fanout: 4, capacity: 8, inline_bytes: 16, ..Params::default() }
}

fn commit(engine: &mut Engine, version: u64, operations: &[Operation]) -> ShardState {
    let merges = engine.built_merges();
    let request = StageRequest {
        stamp: Stamp::new(0, version),
        prepare_id: PrepareId { term: Term(1), attempt: version },
        base: engine.decided(),
        merges: &merges,
        operations,
        erases: &[],
    };
    let state = engine.stage(&request).expect("it follows the decided state").state;
    engine.settle(&state).expect("it is staged");
    state
}

fn put(key: &str, value: &[u8]) -> Operation {
    Operation { key: key.to_owned().into(), change: Change::Put(value.to_vec().into()) }
}

fn delete(key: &str) -> Operation {
    Operation { key: key.to_owned().into(), change: Change::Delete }
}

/// A directory with everything that the formats have: values in leaves, and in the log with and
/// without names; shortcuts; tombstones; frozen and merged trees; dropped and staged versions; rows
/// in the value log; dead pages.
fn build(sim: &SimStorage) -> (Engine, Vec<ShardState>) {
    let options = Options {
        segment_bytes_max: 1000,
        rows_held_min: 2,
        name_percent_max: 60,
        old_cache_bytes: 0,
        ..Options::default()
    };
    let mut engine = Engine::create(sim.storage(), ShardId(2), params(), options).expect("an empty directory");
    let mut states = Vec::new();
    for version in 1..=6 {
        let key = |at: u64| format!("k{}", (version * 5 + at) % 17);
        let mut operations: Vec<Operation> =
            (0..5).map(|at| put(&key(at), &vec![version as u8; 3 + 15 * at as usize])).collect();
        operations.push(delete(&key(7)));
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        states.push(commit(&mut engine, version, &operations));
        while engine.merge_step(5).expect("sound pages") == MergeProgress::Working {}
        engine.flush(Position { index: version, term: 1 }, b"machine state").expect("room");
    }
    engine.prune(Version(3)).expect("usable");
    let base = engine.decided();
    for attempt in 1..=2 {
        let request = StageRequest {
            stamp: Stamp::new(0, 7),
            prepare_id: PrepareId { term: Term(2), attempt },
            base,
            merges: &[],
            operations: &[put("staged", &[attempt as u8; 20])],
            erases: &[],
        };
        engine.stage(&request).expect("it follows the decided state");
    }
    engine.abort(Version(7), PrepareId { term: Term(2), attempt: 1 });
    engine.flush(Position { index: 10, term: 2 }, b"machine state").expect("room");
    (engine, states)
}

#[test]
fn the_same_commands_write_the_golden_files() {
    let sim = SimStorage::new();
    let (engine, _) = build(&sim);
    drop(engine);
    let golden = DiskStorage::new(GOLDEN);
    if std::env::var_os("COPPICE_BLESS").is_some() {
        copy(&sim, &golden);
    }
    assert_eq!(names(&sim), names(&golden));
    for name in names(&sim) {
        assert!(read(&sim, &name) == read(&golden, &name), "{name} has different bytes than the golden files");
    }
}

/// Changes the format number in both superblocks, and corrects their checksums.
fn set_format(sim: &SimStorage, format: u32) {
    const SLOT_BYTES: usize = 72 << 10;
    let mut bytes = read(sim, "superblock");
    for slot in bytes.chunks_exact_mut(SLOT_BYTES) {
        slot[16..20].copy_from_slice(&format.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&slot[16..]);
        slot[8..16].copy_from_slice(&checksum.to_le_bytes());
    }
    let file = sim.open("superblock", OpenMode::Existing).expect("it is there");
    file.write_all_at(&bytes, 0).expect("room");
}

#[test]
fn a_directory_of_another_format_is_refused_and_stays_as_it_is() {
    for format in [1, 5, 7] {
        let sim = SimStorage::new();
        drop(build(&sim));
        set_format(&sim, format);
        let before: Vec<_> = names(&sim).into_iter().map(|name| (read(&sim, &name), name)).collect();
        let engine = Engine::open(sim.storage(), Options::default()).map(|_| ());
        let checked = fsck(Arc::new(sim.clone())).map(|_| ());
        for refused in [engine, checked] {
            let error = refused.expect_err("a directory of another format");
            assert!(matches!(error, Error::OtherFormat { found, known: 6 } if found == format), "{error}");
            assert!(error.to_string().contains("use the build that wrote it"), "{error}");
        }
        let after: Vec<_> = names(&sim).into_iter().map(|name| (read(&sim, &name), name)).collect();
        assert!(after == before, "format {format}");
    }
}

#[test]
fn a_directory_that_lost_a_page_file_is_not_opened() {
    for name in ["index", "data", "patches"] {
        let sim = SimStorage::new();
        drop(build(&sim));
        sim.storage().remove(name).expect("it is there");
        let error = Engine::open(sim.storage(), Options::default()).map(|_| ()).expect_err("a file is missing");
        assert!(matches!(&error, Error::Corrupted { file, .. } if file == name), "{error}");
        assert!(!fsck(Arc::new(sim.clone())).expect("a directory").is_clean());
    }
}

#[test]
fn the_golden_files_are_opened_and_answer() {
    let sim = SimStorage::new();
    copy(&DiskStorage::new(GOLDEN), &sim);
    let report = fsck(Arc::new(sim.clone())).expect("a directory");
    assert_eq!((report.findings, report.versions), (vec![], 5));
    let mut engine = Engine::open(sim.storage(), Options::default()).expect("a sound directory");
    assert_eq!((engine.shard(), engine.params()), (ShardId(2), &params()));
    assert_eq!(engine.durable_position(), Position { index: 10, term: 2 });
    assert_eq!(engine.fallback_position(), Position { index: 6, term: 1 });
    assert_eq!((engine.machine_state(), engine.boundary()), (b"machine state".as_slice(), Version(3)));
    let (_, states) = build(&SimStorage::new());
    for state in &states[2..] {
        assert!(engine.has(state).expect("readable"), "version {}", state.version);
    }
    let staged = engine.staged();
    assert_eq!(staged.len(), 1);
    let view = engine.view(&staged[0].state).expect("staged");
    let record = view.get(b"staged", true).expect("sound pages").expect("it was put");
    assert_eq!(record.value, Some(vec![2; 20]));
    assert_eq!(view.range(b"", None, 100, true).expect("sound pages").records.len(), 17);
    commit_again(&mut engine);
    drop(engine);
    let report = fsck(Arc::new(sim.clone())).expect("a directory");
    assert_eq!(report.findings, vec![]);
    assert!(sim.files().contains(&"patches".to_owned()));
    let engine = Engine::open(sim.storage(), Options::default()).expect("a sound directory");
    assert!(engine.disk_usage().expect("readable").patch_bytes > 0);
    let view = engine.view(&engine.decided()).expect("decided");
    assert_eq!(view.get(b"k1", true).expect("sound pages").and_then(|record| record.value), Some(b"new".to_vec()));
}

/// Checks that the directory takes new versions.
fn commit_again(engine: &mut Engine) {
    let staged = engine.staged()[0].state;
    engine.settle(&staged).expect("staged");
    commit(engine, 8, &[put("k1", b"new")]);
    engine.flush(Position { index: 11, term: 2 }, b"").expect("room");
}
