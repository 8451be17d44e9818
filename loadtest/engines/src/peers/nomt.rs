//! NOMT: a binary Merkle trie whose pages hold several levels, and a B-tree of values. It keeps
//! only the newest version.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bitvec::{order::Msb0, view::BitView};
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    system::{Facts, Proofs, Reader, System},
    workload::Record,
};
use nomt::{
    KeyReadWrite, Nomt, Options, SessionParams,
    hasher::{Blake3Hasher, ValueHasher},
    trie::{KeyPath, LeafData},
};

use super::Reads;

pub struct Store(Nomt<Blake3Hasher>);

/// Makes a database for about this many records.
///
/// # Errors
/// If NOMT fails.
pub fn create(dir: &Path, cache_bytes: usize, records: u64) -> Result<Store> {
    let mut options = Options::new();
    options.path(dir.join("nomt"));
    options.commit_concurrency(2);
    // Evenly distributed keys fill about one page for every four of them; a full hash table fails.
    options.hashtable_buckets(u32::try_from(records * 2 / 5)?.max(64_000));
    let half_mib = (cache_bytes >> 21).max(1);
    options.page_cache_size(half_mib);
    options.leaf_cache_size(half_mib);
    Ok(Store(Nomt::open(options)?))
}

/// Facts for reports.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        name: "NOMT".to_owned(),
        timed: "sort, a session without witness, root, commit; BLAKE3, two commit workers".to_owned(),
        durable: "the batch".to_owned(),
        proven: "presence and absence of a key in the newest version; no ranges, no history".to_owned(),
        memory: "page cache and leaf cache, half each, beside its upper pages; direct I/O".to_owned(),
    }
}

fn path(key: &[u8]) -> Result<KeyPath> {
    key.try_into().context("a key path has 32 bytes")
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let session = self.0.begin_session(SessionParams::default());
        let writes = super::sorted(batch).into_iter();
        let writes = writes.map(|record| Ok((path(&record.key)?, KeyReadWrite::Write(Some(record.value)))));
        session.finish(writes.collect::<Result<Vec<_>>>()?)?.commit(&self.0)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(&self.0)))
    }

    fn prove(&self, keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        let session = self.0.begin_session(SessionParams::default());
        let clock = SystemClock::new();
        let mut proofs = Vec::with_capacity(keys.len());
        for key in keys {
            proofs.push((path(key)?, session.prove(path(key)?)?));
        }
        let made_in = clock.now();
        let root = self.0.root().into_inner();
        let mut leaves = Vec::with_capacity(keys.len());
        for (path, _) in &proofs {
            let value = self.0.read(*path)?.context("a record is missing")?;
            leaves.push(LeafData { key_path: *path, value_hash: Blake3Hasher::hash_value(&value) });
        }
        let begin = clock.now();
        for ((path, proof), leaf) in proofs.iter().zip(&leaves) {
            let verified = proof.verify::<Blake3Hasher>(path.view_bits::<Msb0>(), root);
            let verified = verified.map_err(|error| anyhow::anyhow!("a proof fails: {error:?}"))?;
            let there = verified.confirm_value(leaf).map_err(|_| anyhow::anyhow!("a proof of another key"))?;
            ensure!(there, "a proof of another value");
        }
        let verified_in = clock.now() - begin;
        let bytes: Result<Vec<f64>> = proofs.iter().map(|(_, proof)| Ok(borsh::to_vec(proof)?.len() as f64)).collect();
        Ok(Some(Proofs { bytes: bytes?, made_in, verified_in }))
    }
}

impl Reader for Reads<&Nomt<Blake3Hasher>> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.read(path(key)?)?;
        let there = found.is_some();
        *value = found.unwrap_or_default();
        Ok(there)
    }

    /// NOMT keeps its paths in order, but offers no iteration.
    fn range(&mut self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        Ok(None)
    }
}
