//! The interface of a store that is compared with others.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::workload::Record;

/// Facts about a system, in addition to its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The name in reports.
    pub name: String,
    /// The parts of one put.
    pub timed: String,
    /// The writes that survive a power failure.
    pub durable: String,
    /// The proofs that a reader can get.
    pub proven: String,
    /// The use of the memory, and the path of a read.
    pub memory: String,
}

/// An open store.
pub trait System: Send + Sync {
    /// Writes a batch atomically. Its keys are unordered, and each occurs once.
    ///
    /// # Errors
    /// If the store fails.
    fn put(&mut self, batch: Vec<Record>) -> Result<()>;

    /// Waits for the end of background work if the store has a call for that. It is not part of a
    /// put.
    ///
    /// # Errors
    /// If the store fails.
    fn settle(&mut self) -> Result<()>;

    /// A reader for one thread.
    ///
    /// # Errors
    /// If the store fails.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Proves that keys have their records, one by one; `None` if the system proves nothing.
    ///
    /// # Errors
    /// If the store fails.
    fn prove(&self, _keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        Ok(None)
    }
}

/// Reads of one thread.
pub trait Reader {
    /// Copies the key's value into `value`; false if there is none.
    ///
    /// # Errors
    /// If the store fails.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Shows the first `limit` records from `from` on, in order. Returns their number, or `None` if
    /// the system keeps no order.
    ///
    /// # Errors
    /// If the store fails.
    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>>;
}

/// The cost of proofs.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    /// The length of each proof.
    pub bytes: Vec<f64>,
    /// The time to make all of them.
    pub made_in: Duration,
    /// The time to verify all of them.
    pub verified_in: Duration,
}

/// Makes a store in an empty directory, with this many bytes for its caches.
pub type Open<'o> = &'o dyn Fn(&Path, usize) -> Result<Box<dyn System>>;
