//! Helpers for unit tests of the engine.

use std::{ops::Range, sync::Arc};

use coppice_env::{OpenMode, SimStorage, Storage, Workers};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term};

use crate::{
    Engine, Manifest, MergeProgress, Options, Position, PrepareId, Result, ShardState, SnapshotReceiver, StageRequest,
    Staged,
    place::page::{PAGE_BYTES, PageFile},
};

/// Parameters with which few records make much: four entries in a node, eight records in a tree
/// before it is frozen, and values of more than eight bytes in the value log.
pub(crate) fn small() -> Params {
    Params {
        key_bytes_max: 16,
        node_bytes: 352,
        fanout: 4,
        inline_bytes: 8,
        capacity: 8,
        tier_ratio: 2,
        ..Params::default()
    }
}

/// Options without threads.
pub(crate) fn options() -> Options {
    Options { workers: Workers::Inline, ..Options::default() }
}

/// A new engine in an empty directory.
pub(crate) fn create(sim: &SimStorage, params: Params) -> Engine {
    create_with(sim, params, options())
}

pub(crate) fn create_with(sim: &SimStorage, params: Params, options: Options) -> Engine {
    Engine::create(sim.storage(), ShardId(3), params, options).expect("an empty directory")
}

pub(crate) fn open(sim: &SimStorage) -> Engine {
    Engine::open(sim.storage(), options()).expect("a sound directory")
}

/// A put of a value with this many bytes. Values of different lengths have different bytes.
pub(crate) fn put(key: &str, len: usize) -> Operation {
    Operation { key: key.as_bytes().to_vec().into(), change: Change::Put(vec![len as u8; len].into()) }
}

/// Puts of the keys with these numbers.
pub(crate) fn puts(numbers: Range<u32>, len: usize) -> Vec<Operation> {
    numbers.map(|number| put(&key(number), len)).collect()
}

/// A closed directory after two flushed versions. The newest superblock is in slot 1.
pub(crate) fn two_versions() -> SimStorage {
    let sim = SimStorage::new();
    let mut engine = create(&sim, small());
    for version in 1..=2 {
        commit(&mut engine, version, puts(0..4, 100));
        flush(&mut engine, version);
    }
    assert_eq!(engine.superblock.generation, 3);
    sim
}

/// Puts of long keys: a node has few, so inner nodes are too large for patches.
pub(crate) fn long_keys(count: u32) -> Vec<Operation> {
    (0..count).map(|number| put(&format!("{number:0100}"), 9)).collect()
}

/// The key with a number; keys ascend with their numbers.
pub(crate) fn key(number: u32) -> String {
    format!("{number:04}")
}

pub(crate) fn delete(key: &str) -> Operation {
    Operation { key: key.as_bytes().to_vec().into(), change: Change::Delete }
}

pub(crate) fn prepare_id(attempt: u64) -> PrepareId {
    PrepareId { term: Term(1), attempt }
}

/// Stages the next version on the decided one, and installs all built merges.
pub(crate) fn stage(engine: &mut Engine, version: u64, mut operations: Vec<Operation>) -> Staged {
    operations.sort_by(|a, b| a.key.cmp(&b.key));
    let request = StageRequest {
        stamp: Stamp::new(0, version),
        prepare_id: prepare_id(version),
        base: engine.decided(),
        merges: &engine.built_merges(),
        operations: &operations,
        erases: &[],
    };
    engine.stage(&request).expect("it follows the decided state")
}

/// Stages a version without merges on any base.
pub(crate) fn stage_on(
    engine: &mut Engine,
    base: ShardState,
    version: u64,
    attempt: u64,
    operations: &[Operation],
) -> Result<ShardState> {
    let stamp = Stamp::new(engine.epoch().0, version);
    let request = StageRequest { stamp, prepare_id: prepare_id(attempt), base, merges: &[], operations, erases: &[] };
    engine.stage(&request).map(|staged| staged.state)
}

/// Stages and settles the next version.
pub(crate) fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
    let staged = stage(engine, version, operations);
    engine.settle(&staged.state).expect("it is staged");
}

/// Flushes the state as that of a raft entry.
pub(crate) fn flush(engine: &mut Engine, index: u64) {
    engine.flush(Position { index, term: 1 }, b"").expect("room");
}

/// Merges until there is nothing more to merge.
pub(crate) fn merge(engine: &mut Engine) {
    while engine.merge_step(100).expect("sound pages") != MergeProgress::Idle {}
}

/// Pages in use of each file, and live bytes of the value log.
pub(crate) fn used(engine: &Engine) -> ([u64; 3], u64) {
    let live = engine.meta.segments.values().map(|segment| segment.live).sum();
    (PageFile::ALL.map(|file| engine.meta.space(file).used_pages()), live)
}

/// Deletes of the keys with these numbers.
pub(crate) fn deletes(numbers: Range<u32>) -> Vec<Operation> {
    numbers.map(|number| delete(&key(number))).collect()
}

/// Flips a bit in each page of a file.
pub(crate) fn damage(sim: &SimStorage, file: &str) {
    let len = sim.open(file, OpenMode::Existing).and_then(|file| file.len()).expect("it is there");
    assert!(len > 0, "{file} is empty");
    (0..len / PAGE_BYTES as u64).for_each(|page| sim.flip_bit(file, page * PAGE_BYTES as u64 + 200, 3));
}

/// Sends all bytes of a pinned snapshot to a directory.
pub(crate) fn send(engine: &Engine, manifest: &Manifest, to: Arc<dyn Storage>) -> SnapshotReceiver {
    let mut receiver = SnapshotReceiver::new(to, manifest.clone(), u64::MAX).expect("no engine is there");
    while let Some((file, offset)) = receiver.next().map(|(file, offset)| (file.to_owned(), offset)) {
        let bytes = engine.read_snapshot(manifest.id, &file, offset, 5000).expect("it is pinned");
        receiver.write(&file, offset, &bytes).expect("the next bytes");
    }
    receiver
}
