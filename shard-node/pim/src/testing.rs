//! Ledgers and readers for tests.

use std::collections::BTreeSet;

use coppice_engine::{Engine, MergeProgress, PrepareId, ShardState, StageRequest};
use coppice_env::{Rng, SimRng, SimStorage, Workers};
use coppice_types::{Change, Epoch, Operation, Params, ShardId, Stamp, Term, Version};

use crate::{Calibration, DpuApi, Dpus, ImageOptions, Options, Query, Reader};

/// An engine that commits.
pub(crate) struct Ledger {
    pub(crate) engine: Engine,
    version: u64,
    attempt: u64,
}

impl Ledger {
    pub(crate) fn new(params: Params) -> Self {
        let options = coppice_engine::Options { workers: Workers::Inline, ..coppice_engine::Options::default() };
        let storage = SimStorage::new().storage();
        let engine = Engine::create(storage, ShardId(3), params, options).expect("an empty directory");
        Self { engine, version: 0, attempt: 0 }
    }

    /// Commits the next version, with all merges that are built. Many trees are merged before it.
    pub(crate) fn commit(&mut self, mut operations: Vec<Operation>) -> ShardState {
        if self.engine.shape(&self.engine.decided()).expect("decided").entries.len() > 8 {
            self.merge();
        }
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        operations.dedup_by(|a, b| a.key == b.key);
        (self.version, self.attempt) = (self.version + 1, self.attempt + 1);
        let request = StageRequest {
            stamp: Stamp::new(self.engine.epoch().0, self.version),
            prepare_id: PrepareId { term: Term(1), attempt: self.attempt },
            base: self.engine.decided(),
            merges: &self.engine.built_merges(),
            operations: &operations,
            erases: &[],
        };
        let state = self.engine.stage(&request).expect("it follows the decided state").state;
        self.engine.settle(&state).expect("it is staged");
        state
    }

    /// Merges until there is nothing more to merge.
    pub(crate) fn merge(&mut self) {
        while self.engine.merge_step(1000).expect("sound pages") != MergeProgress::Idle {}
    }

    pub(crate) fn roll_back(&mut self, to: Version) {
        let epoch = Epoch(self.engine.epoch().0 + 1);
        self.engine.rollback(to, epoch).expect("the version stands");
        self.version = to.0;
    }

    /// The engine's own proof.
    pub(crate) fn proof(&self, query: &Query) -> Vec<u8> {
        self.engine.view(&query.state).expect("retained").prove_keys(&[&query.key]).expect("sound pages")
    }
}

pub(crate) fn put(key: &[u8], value: u64) -> Operation {
    Operation { key: key.to_vec().into(), change: Change::Put(value.to_le_bytes().to_vec().into()) }
}

pub(crate) fn delete(key: &[u8]) -> Operation {
    Operation { key: key.to_vec().into(), change: Change::Delete }
}

pub(crate) fn pick(rng: &mut SimRng, len: usize) -> usize {
    rng.below(len as u64) as usize
}

/// Parameters with which few records make deep trees, wide nodes, or long keys.
pub(crate) fn some_params(rng: &mut SimRng) -> Params {
    let base = Params { tier_ratio: 2, tree_limit: 16, ..Params::default() };
    match rng.below(4) {
        0 => Params { key_bytes_max: 16, node_bytes: 352, fanout: 4, inline_bytes: 8, capacity: 12, ..base },
        1 => Params { key_bytes_max: 24, node_bytes: 512, fanout: 6, inline_bytes: 32, capacity: 40, ..base },
        2 => Params { key_bytes_max: 512, node_bytes: 8192, fanout: 1024, capacity: 400, ..base },
        _ => Params { capacity: 150, ..base },
    }
}

/// A key that shares beginnings with others and may hold zero bytes.
pub(crate) fn some_key(rng: &mut SimRng, bytes_max: usize) -> Vec<u8> {
    let mut key = [&b""[..], b"account/", b"account/0000", b"\0\0\0\0\0\0\0\0\0"][pick(rng, 4)].to_vec();
    let len = key.len() + 1 + pick(rng, 6);
    key.resize_with(len, || [0, 1, b'0', b'z', 0xff][pick(rng, 5)]);
    if rng.chance(20) {
        key.resize(bytes_max, b'l');
    }
    key.truncate(bytes_max);
    key
}

/// Keys that are asked for: those given, and keys just beside them.
pub(crate) fn asked_keys(keys: &BTreeSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut asked: BTreeSet<Vec<u8>> = [b"\0".to_vec(), vec![0xff; 40], b"account/".to_vec()].into();
    for key in keys {
        asked.insert(key.clone());
        asked.insert([key.as_slice(), b"\0"].concat());
        let mut before = key.clone();
        match before.last_mut() {
            Some(0) | None => drop(before.pop()),
            Some(last) => *last -= 1,
        }
        asked.insert(before);
    }
    asked.into_iter().filter(|key| !key.is_empty()).collect()
}

/// Options with which nearly everything is asked of DPUs: the host is slow by the cost model.
pub(crate) fn eager(cut_level: u8) -> Options {
    Options {
        image: ImageOptions { cut_level, entries_min: 1, ..ImageOptions::default() },
        mram_bytes: 16 << 20,
        dpu_lookups_max: 1024,
        result_bytes: 2048,
        small_batches_on_host: false,
        calibration: Calibration { host_lookup_s: 1.0, ..Calibration::default() },
        ..Options::default()
    }
}

pub(crate) fn emulated(dpus: u32, profile: &str) -> Dpus {
    Dpus::allocate(&DpuApi::emulator(), dpus, profile, "emulator:kernel").expect("the emulator has memory")
}

pub(crate) fn reader(dpus: Dpus, options: Options) -> Reader {
    Reader::new(Some(dpus), options, Box::new(SimRng::new(7))).expect("sound options")
}

/// Asks for all keys in all states, and compares the proofs with the engine's.
pub(crate) fn compare(reader: &mut Reader, ledger: &Ledger, states: &[ShardState], keys: &[Vec<u8>]) {
    for keys in keys.chunks(300) {
        let query = |state: &ShardState, key: &Vec<u8>| Query { state: *state, key: key.clone() };
        let queries: Vec<Query> = states.iter().flat_map(|state| keys.iter().map(|key| query(state, key))).collect();
        for (query, proof) in queries.iter().zip(reader.answer(&queries)) {
            assert_eq!(proof.expect("it is served"), ledger.proof(query), "{query:?}");
        }
    }
}
