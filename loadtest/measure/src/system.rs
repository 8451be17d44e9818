//! What a store must do to be compared with others.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::workload::Record;

/// What is said of a system beside its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its name in reports.
    pub name: String,
    /// What one put comprises.
    pub timed: String,
    /// What holds after a power failure, once a put has returned.
    pub durable: String,
    /// What a reader can have proven.
    pub proven: String,
    /// Where its memory goes, and how it reads.
    pub memory: String,
}

/// An open store.
pub trait System: Send + Sync {
    /// Writes a batch, as one; its keys are in no order, none of them twice.
    ///
    /// # Errors
    /// If it fails.
    fn put(&mut self, batch: Vec<Record>) -> Result<()>;

    /// Ends what goes on in the background, as far as it can be asked to. Not a part of a put.
    ///
    /// # Errors
    /// If it fails.
    fn settle(&mut self) -> Result<()>;

    /// Something to read through, for one thread.
    ///
    /// # Errors
    /// If it fails.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Proves that keys have their records, one by one; none if the system proves nothing.
    ///
    /// # Errors
    /// If it fails.
    fn prove(&self, _keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        Ok(None)
    }
}

/// Reads of one thread.
pub trait Reader {
    /// Puts the key's value into `value`; false if there is none.
    ///
    /// # Errors
    /// If it fails.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Shows the first `limit` records from `from` on, in order; how many there were, or none if the system keeps no order.
    ///
    /// # Errors
    /// If it fails.
    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>>;
}

/// What proofs cost.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    /// Length of each.
    pub bytes: Vec<f64>,
    /// To make all of them.
    pub made_in: Duration,
    /// To verify all of them.
    pub verified_in: Duration,
}

/// Makes a store in an empty directory, with so many bytes for its caches.
pub type Open<'o> = &'o dyn Fn(&Path, usize) -> Result<Box<dyn System>>;
