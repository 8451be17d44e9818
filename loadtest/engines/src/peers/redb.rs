//! redb: a copy-on-write B-tree.

use std::path::Path;

use anyhow::Result;
use coppice_measure::{
    system::{Facts, Reader, System},
    workload::Record,
};
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};

use super::Reads;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

#[derive(Debug)]
pub struct Store(Database);

/// Makes a database.
///
/// # Errors
/// If redb fails.
pub fn create(dir: &Path, cache_bytes: usize) -> Result<Store> {
    let db = Database::builder().set_cache_size(cache_bytes).create(dir.join("redb"))?;
    let transaction = db.begin_write()?;
    transaction.open_table(TABLE)?;
    transaction.commit()?;
    Ok(Store(db))
}

/// Facts for reports.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        name: "redb".to_owned(),
        timed: "sort, one write transaction; no root".to_owned(),
        durable: "the batch (Durability::Immediate)".to_owned(),
        proven: "nothing; the newest version alone".to_owned(),
        memory: "its page cache; the kernel's page cache".to_owned(),
    }
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for record in super::sorted(batch) {
                table.insert(record.key.as_slice(), record.value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(self.0.begin_read()?.open_table(TABLE)?)))
    }
}

impl Reader for Reads<ReadOnlyTable<&'static [u8], &'static [u8]>> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.get(key)?;
        value.clear();
        if let Some(found) = &found {
            value.extend_from_slice(found.value());
        }
        Ok(found.is_some())
    }

    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        let mut count = 0;
        for item in self.0.range::<&[u8]>(from..)?.take(limit) {
            let (key, value) = item?;
            visit(key.value(), value.value());
            count += 1;
        }
        Ok(Some(count))
    }
}
