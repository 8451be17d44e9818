//! fjall: an LSM tree in Rust.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    system::{Facts, Reader, System},
    workload::Record,
};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::Reads;

const SETTLE_MAX: Duration = Duration::from_secs(300);

pub struct Store {
    db: Database,
    records: Keyspace,
}

/// Makes a database.
///
/// # Errors
/// If fjall fails.
pub fn create(dir: &Path, cache_bytes: usize) -> Result<Store> {
    let db = Database::builder(dir).cache_size(cache_bytes as u64).open()?;
    let records = db.keyspace("records", KeyspaceCreateOptions::default)?;
    Ok(Store { db, records })
}

/// Facts for reports.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        name: "fjall".to_owned(),
        timed: "a write batch; no root".to_owned(),
        durable: "the batch: its journal is synced".to_owned(),
        proven: "nothing; the newest version alone".to_owned(),
        memory:
            "block cache and 64 MiB of write buffer; no compression; no key-value separation (its default); page cache"
                .to_owned(),
    }
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let mut writes = self.db.batch().durability(Some(PersistMode::SyncData));
        for record in batch {
            writes.insert(&self.records, record.key, record.value);
        }
        Ok(writes.commit()?)
    }

    fn settle(&mut self) -> Result<()> {
        self.records.rotate_memtable_and_wait()?;
        let clock = SystemClock::new();
        while self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0 {
            ensure!(clock.now() < SETTLE_MAX, "fjall compacts for longer than {SETTLE_MAX:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(&self.records)))
    }
}

impl Reader for Reads<&Keyspace> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get(key)?;
        value.clear();
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        let mut count = 0;
        for item in self.0.range(from..).take(limit) {
            let (key, value) = item.into_inner()?;
            visit(&key, &value);
            count += 1;
        }
        Ok(Some(count))
    }
}
