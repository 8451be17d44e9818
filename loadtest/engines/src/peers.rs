//! Other stores, each set up as its documentation advises, with the same bytes for caches.

pub mod fjall;
pub mod nomt;
pub mod qmdb;
pub mod redb;
pub mod rocksdb;

use coppice_measure::workload::Record;

/// In the order of keys, which trees take best.
fn sorted(mut batch: Vec<Record>) -> Vec<Record> {
    batch.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    batch
}

/// Something of another crate that is read through.
struct Reads<T>(T);
