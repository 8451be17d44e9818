//! The engine's memory stays within its budget.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicIsize, Ordering},
    },
};

use coppice_engine::{Engine, MergeProgress, Options, Position, PrepareId, StageRequest};
use coppice_env::{SimStorage, Workers};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term, Version};

/// An allocator that counts the bytes in use.
struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);
/// Tests take turns, since they count the bytes of the whole process.
static TURN: Mutex<()> = Mutex::new(());

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one hands every call to the system's as it is"
)]
// SAFETY: all contracts are those of `System`, which does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn key(number: u64) -> Vec<u8> {
    format!("{number:032}").into_bytes()
}

/// A directory with a frozen tree and an active one, each with some megabytes of pages.
fn directory() -> SimStorage {
    let sim = SimStorage::new();
    let params = Params { capacity: 60_000, ..Params::default() };
    let mut engine = Engine::create(sim.storage(), ShardId(0), params, Options::default()).expect("an empty directory");
    for version in 1..=24_u64 {
        let put =
            |number: u64| Operation { key: key(number).into(), change: Change::Put(vec![version as u8; 64].into()) };
        let operations: Vec<Operation> = (version * 5000..(version + 1) * 5000).map(put).collect();
        let request = StageRequest {
            stamp: Stamp::new(0, version),
            prepare_id: PrepareId { term: Term(1), attempt: version },
            base: engine.decided(),
            merges: &engine.built_merges(),
            operations: &operations,
            erases: &[],
        };
        let staged = engine.stage(&request).expect("it follows the decided state");
        engine.settle(&staged.state).expect("it is staged");
        engine.prune(Version(version)).expect("usable");
        while engine.merge_step(1000).expect("sound pages") == MergeProgress::Working {}
    }
    engine.flush(Position { index: 1, term: 1 }, b"").expect("room");
    sim
}

/// The memory that an engine with this cache size holds after it has read everything, and the bytes
/// that it reports.
fn held(sim: &SimStorage, cache_bytes: usize) -> (isize, u64) {
    let before = HELD.load(Ordering::Relaxed);
    let options = Options {
        young_cache_bytes: cache_bytes,
        old_cache_bytes: cache_bytes,
        workers: Workers::Inline,
        ..Options::default()
    };
    let engine = Engine::open(sim.storage(), options).expect("a sound directory");
    let view = engine.view(&engine.decided()).expect("decided");
    for _ in 0..2 {
        for number in (5000..125_000).step_by(11) {
            assert!(view.get(&key(number), true).expect("sound pages").is_some(), "{number}");
        }
    }
    let usage = engine.disk_usage().expect("readable");
    assert!(usage.filter_bytes > 0);
    (HELD.load(Ordering::Relaxed) - before, usage.young_cache_bytes + usage.old_cache_bytes)
}

#[test]
fn caches_take_what_they_were_given() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = directory();
    let [(small, said_small), (large, said_large)] = [1 << 20, 4 << 20].map(|bytes| held(&sim, bytes));
    let (budget, taken) = ((2 * (3 << 20)) as f64, (large - small) as f64);
    assert!((taken / budget - 1.0).abs() < 0.05, "{taken} bytes for {budget}");
    let said = (said_large - said_small) as f64;
    assert!((said / budget - 1.0).abs() < 0.05, "{said} bytes for {budget}");
}

/// Bytes that an engine with this many versions of one record holds after it was opened.
fn held_with_versions(count: u64) -> isize {
    let sim = SimStorage::new();
    let params = Params { capacity: 500, ..Params::default() };
    let options = Options {
        young_cache_bytes: 0,
        old_cache_bytes: 0,
        hash_cache_bytes: 0,
        rows_held_min: 100,
        meta_compaction_bytes_min: 0,
        workers: Workers::Inline,
        ..Options::default()
    };
    let mut engine = Engine::create(sim.storage(), ShardId(0), params, options.clone()).expect("an empty directory");
    for version in 1..=count {
        let value = version.to_be_bytes().to_vec().into();
        let operations = [Operation { key: key(version % 400).into(), change: Change::Put(value) }];
        let request = StageRequest {
            stamp: Stamp::new(0, version),
            prepare_id: PrepareId { term: Term(1), attempt: version },
            base: engine.decided(),
            merges: &[],
            operations: &operations,
            erases: &[],
        };
        let staged = engine.stage(&request).expect("it follows the decided state");
        engine.settle(&staged.state).expect("it is staged");
        if version % 100 == 0 {
            engine.flush(Position { index: version, term: 1 }, b"").expect("room");
        }
    }
    drop(engine);
    let before = HELD.load(Ordering::Relaxed);
    let engine = Engine::open(sim.storage(), options).expect("a sound directory");
    let held = HELD.load(Ordering::Relaxed) - before;
    assert_eq!(engine.disk_usage().expect("readable").versions, count + 1);
    held
}

#[test]
fn a_kept_version_takes_few_bytes_of_memory() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let [few, many] = [2000, 12_000].map(held_with_versions);
    let each = (many - few) as f64 / 10_000.0;
    assert!(each < 48.0, "{each} bytes for each version");
}
