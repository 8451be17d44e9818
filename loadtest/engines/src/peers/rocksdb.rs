//! RocksDB: a write-ahead log, synced or not, and levels of sorted files.

use std::path::Path;

use anyhow::{Result, anyhow};
use coppice_measure::{
    system::{Facts, Reader, System},
    workload::Record,
};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::Reads;

#[derive(Debug)]
pub struct Store {
    db: DB,
    sync: bool,
}

/// Makes a database.
///
/// # Errors
/// If RocksDB fails.
pub fn create(dir: &Path, cache_bytes: usize, sync: bool) -> Result<Store> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(cache_bytes));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_max_background_jobs(2);
    Ok(Store { db: DB::open(&options, dir)?, sync })
}

/// Facts for reports.
#[must_use]
pub fn facts(sync: bool) -> Facts {
    let (name, durable) = if sync {
        ("RocksDB, synced", "the batch: its write-ahead log is synced")
    } else {
        ("RocksDB, not synced", "nothing since the kernel wrote last")
    };
    Facts {
        name: name.to_owned(),
        timed: "WriteBatch; no root".to_owned(),
        durable: durable.to_owned(),
        proven: "nothing; the newest version alone".to_owned(),
        memory: "block cache, with indexes and filters in it, and 2 x 64 MiB of write buffers; no compression; 10 filter bits \
                 a key; page cache"
            .to_owned(),
    }
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let mut writes = WriteBatch::default();
        for record in &batch {
            writes.put(&record.key, &record.value);
        }
        let mut options = WriteOptions::default();
        options.set_sync(self.sync);
        Ok(self.db.write_opt(writes, &options)?)
    }

    fn settle(&mut self) -> Result<()> {
        self.db.flush()?;
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(&self.db)))
    }
}

impl Reader for Reads<&DB> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get_pinned(key)?;
        value.clear();
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        let mut iterator = self.0.raw_iterator();
        iterator.seek(from);
        let mut count = 0;
        while count < limit && iterator.valid() {
            let (key, value) = iterator.item().ok_or_else(|| anyhow!("a valid iterator has no item"))?;
            visit(key, value);
            count += 1;
            iterator.next();
        }
        iterator.status()?;
        Ok(Some(count))
    }
}
