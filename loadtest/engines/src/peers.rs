//! Other stores. Each is set up as its documentation advises, and all get caches of equal size.

#[cfg(feature = "firewood")]
pub mod firewood;
pub mod fjall;
pub mod nomt;
pub mod qmdb;
pub mod redb;
pub mod rocksdb;

use coppice_measure::workload::Record;

/// Sorts a batch by key, which trees handle best.
fn sorted(mut batch: Vec<Record>) -> Vec<Record> {
    batch.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    batch
}

/// A reader over a handle of another crate.
struct Reads<T>(T);
