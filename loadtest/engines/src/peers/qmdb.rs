//! QMDB, as implemented by Commonware's storage crate: updates are appended to a log, and the log's
//! Merkle structure records which of them are current. All keys are in memory. QMDB keeps the order
//! of updates, but no order of keys.

use std::{num::NonZero, path::Path, sync::mpsc, thread::JoinHandle};

use anyhow::{Context as _, Result, ensure};
use commonware_codec::{EncodeSize, RangeCfg};
use commonware_cryptography::{Sha256, sha256::Digest};
use commonware_parallel::Rayon;
use commonware_runtime::{
    BLOB_PAGE_SIZE, Runner as _, Strategizer, Supervisor,
    buffer::paged::{CacheRef, page_size},
    tokio::{Config as Runtime, Context, Runner},
};
use commonware_storage::{
    journal::contiguous::variable::Config as Log,
    merkle::{full::Config as Merkle, mmr::Family},
    qmdb::{
        current::{VariableConfig, unordered::variable},
        floor::Proportional,
    },
    translator::EightCap,
};
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    system::{Facts, Proofs, Reader, System},
    workload::Record,
};
use tokio::{runtime::Handle, sync::oneshot};

use super::Reads;

/// Bytes of the bitmap for each part of the log.
const CHUNK_BYTES: usize = 32;
/// Updates in one file.
const ITEMS_PER_FILE: u64 = 250_000;
const BUFFER_BYTES: usize = 2 << 20;
/// The longest value.
const VALUE_BYTES_MAX: usize = 1 << 20;

type Db = variable::Db<Family, Context, Digest, Vec<u8>, Sha256, EightCap, CHUNK_BYTES, Rayon>;

/// An open database, and the runtime that it works in.
pub struct Store {
    /// `None` while the database is changed, or after a change failed.
    db: Option<Db>,
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Makes a database.
///
/// # Errors
/// If QMDB fails.
pub fn create(dir: &Path, cache_bytes: usize) -> Result<Store> {
    let config = Runtime::new().with_storage_directory(dir.join("qmdb")).with_worker_threads(2);
    let (opened, opens) = mpsc::channel();
    let (end, ends) = oneshot::channel::<()>();
    // The runtime lives as long as the task that it was started with.
    let thread = std::thread::Builder::new().name("qmdb".to_owned()).spawn(move || {
        Runner::new(config).start(|context| async move {
            let db = open(&context, cache_bytes).await;
            if opened.send((db, Handle::current())).is_ok() {
                let _ = ends.await;
            }
        });
    })?;
    let (db, runtime) = opens.recv().context("the runtime did not start")?;
    Ok(Store { db: Some(db?), runtime, end: Some(end), thread: Some(thread) })
}

async fn open(context: &Context, cache_bytes: usize) -> Result<Db> {
    let some = |count: usize| NonZero::new(count).context("a count is not zero");
    let items = NonZero::new(ITEMS_PER_FILE).context("a count is not zero")?;
    let page_bytes = page_size(BLOB_PAGE_SIZE);
    let page_cache = CacheRef::new(page_bytes, some((cache_bytes / usize::from(page_bytes.get())).max(16))?);
    let merkle_config = Merkle {
        journal_partition: "nodes".to_owned(),
        metadata_partition: "pinned".to_owned(),
        items_per_blob: items,
        write_buffer: some(BUFFER_BYTES)?,
        replay_buffer: some(BUFFER_BYTES)?,
        strategy: context.strategy(some(2)?),
        page_cache: page_cache.clone(),
    };
    let journal_config = Log {
        partition: "log".to_owned(),
        items_per_section: items,
        compression: None,
        codec_config: ((), (RangeCfg::from(0..=VALUE_BYTES_MAX), ())),
        page_cache,
        write_buffer: some(BUFFER_BYTES)?,
        replay_buffer: some(BUFFER_BYTES)?,
    };
    let config = VariableConfig {
        merkle_config,
        journal_config,
        grafted_metadata_partition: "grafted".to_owned(),
        translator: EightCap,
        init_cache: None,
        init_buffer: some(BUFFER_BYTES)?,
        init_concurrency: (),
    };
    Ok(Db::init(context.child("qmdb"), config, None).await?)
}

/// Facts for reports.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        name: "QMDB (Commonware)".to_owned(),
        timed: "a batch, its root, its application, commit; SHA-256, two threads".to_owned(),
        durable: "the batch: its log is synced".to_owned(),
        proven: "the current value of a key, and former ones by their place in the log; no absence (its ordered variant has it), no ranges"
            .to_owned(),
        memory: "page cache of its own, reads past the kernel's; an index of all keys beside it".to_owned(),
    }
}

fn digest(key: &[u8]) -> Result<Digest> {
    let key: [u8; 32] = key.try_into().context("a key has 32 bytes")?;
    Ok(Digest::from(key))
}

impl Store {
    fn db(&self) -> Result<&Db> {
        self.db.as_ref().context("a change failed before")
    }
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let db = self.db.take().context("a change failed before")?;
        let changed = self.runtime.block_on(async {
            let mut changes = db.new_batch();
            for Record { key, value } in batch {
                changes = changes.write(digest(&key)?, Some(value));
            }
            let changes = changes.merkleize(&db, None, &mut Proportional).await?;
            Ok::<_, anyhow::Error>(db.apply_batch(changes).await?.commit().await?)
        });
        self.db = Some(changed?);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        let db = self.db.take().context("a change failed before")?;
        self.db = Some(self.runtime.block_on(db.sync())?);
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(self)))
    }

    fn prove(&self, keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        let (db, clock) = (self.db()?, SystemClock::new());
        let mut proofs = Vec::with_capacity(keys.len());
        for key in keys {
            proofs.push((digest(key)?, self.runtime.block_on(db.key_value_proof(digest(key)?))?));
        }
        let made_in = clock.now();
        let mut values = Vec::with_capacity(keys.len());
        for (key, _) in &proofs {
            values.push(self.runtime.block_on(db.get(key))?.context("a record is missing")?);
        }
        let (root, begin) = (db.root(), clock.now());
        for ((key, proof), value) in proofs.iter().zip(values) {
            ensure!(Db::verify_key_value_proof(*key, value, proof, &root), "a proof fails");
        }
        let verified_in = clock.now() - begin;
        let bytes = proofs.iter().map(|(_, proof)| proof.encode_size() as f64).collect();
        Ok(Some(Proofs { bytes, made_in, verified_in }))
    }
}

impl Reader for Reads<&Store> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.runtime.block_on(self.0.db()?.get(&digest(key)?))?;
        let there = found.is_some();
        *value = found.unwrap_or_default();
        Ok(there)
    }

    fn range(&mut self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        Ok(None)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.db = None;
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
