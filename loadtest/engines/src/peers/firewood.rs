//! Firewood: a Merkle trie whose nodes are the index on disk. It keeps recent revisions.
//!
//! A commit returns before its revision is in the file: a thread persists it, and no call waits for
//! that. At most one revision may wait (`deferred_persistence_commit_count`), so the commit of an
//! empty batch returns only when the batch before it is in the file. Firewood never syncs its file,
//! so a put syncs it after that.

use std::{
    fs::File,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use coppice_env::{Clock, SystemClock};
use coppice_measure::{
    system::{Facts, Proofs, Reader, System},
    workload::Record,
};
use firewood::{
    Proof,
    api::{BatchOp, Db as _, DbView as _, FrozenProof, FrozenRangeProof, Proposal as _},
    db::{Db, DbConfig},
    manager::{CacheReadStrategy, RevisionManagerConfig},
};
use firewood_storage::{Committed, FileBacked, NodeHashAlgorithm, NodeStore};

use super::Reads;

type Revision = Arc<NodeStore<Committed, FileBacked>>;

pub struct Store {
    /// `None` while it is dropped.
    db: Option<Db>,
    /// The file of nodes, which is synced after each batch.
    file: File,
}

/// Makes a database.
///
/// # Errors
/// If Firewood fails.
pub fn create(dir: &Path, cache_bytes: usize) -> Result<Store> {
    let manager = RevisionManagerConfig::builder()
        .node_cache_memory_limit(NonZero::new(cache_bytes).context("a cache has bytes")?)
        .cache_read_strategy(CacheReadStrategy::All)
        .deferred_persistence_commit_count(NonZero::<u64>::MIN)
        .build();
    let config = DbConfig::builder().node_hash_algorithm(NodeHashAlgorithm::MerkleDB).manager(manager).build();
    let db = Db::new(dir, config)?;
    let file = File::open(file_in(dir))?;
    Ok(Store { db: Some(db), file })
}

fn file_in(dir: &Path) -> PathBuf {
    dir.join("firewood.db")
}

/// Facts for reports.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        name: "Firewood, synced".to_owned(),
        timed: "sort, a proposal with its root, commit, an empty commit that waits until it is in the file, fdatasync; SHA-256"
            .to_owned(),
        durable: "the batch, once it is answered; Firewood itself never syncs, so a power failure during a put may leave a header whose \
                  nodes are not on disk"
            .to_owned(),
        proven: "presence and absence of a key, and ranges, in recent revisions (128, the default; every second is an empty commit)"
            .to_owned(),
        memory: "node cache, for reads and writes; page cache".to_owned(),
    }
}

impl Store {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("only a drop takes it")
    }

    fn commit(&self, batch: Vec<BatchOp<Vec<u8>, Vec<u8>>>) -> Result<()> {
        Ok(self.db().propose(batch)?.commit()?)
    }

    fn newest(&self) -> Result<Option<Revision>> {
        Ok(self.db().root_hash().map(|root| self.db().revision(root)).transpose()?)
    }
}

impl System for Store {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let puts = super::sorted(batch).into_iter();
        self.commit(puts.map(|Record { key, value }| BatchOp::Put { key, value }).collect())?;
        self.commit(Vec::new())?;
        Ok(self.file.sync_data()?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(Reads(self.newest()?)))
    }

    fn prove(&self, keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        let newest = self.newest()?.context("nothing was put")?;
        let root = newest.root_hash().context("nothing was put")?;
        let clock = SystemClock::new();
        let mut proofs = Vec::with_capacity(keys.len());
        for key in keys {
            proofs.push((key, newest.single_key_proof(key)?));
        }
        let made_in = clock.now();
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(newest.val(key)?.context("a record is missing")?);
        }
        let begin = clock.now();
        for ((key, proof), value) in proofs.iter().zip(&values) {
            proof.verify(key, Some(value), &root).map_err(|error| anyhow!("a proof fails: {error:?}"))?;
        }
        let verified_in = clock.now() - begin;
        let bytes = proofs.into_iter().map(|(_, proof)| length(proof)).collect();
        Ok(Some(Proofs { bytes, made_in, verified_in }))
    }
}

/// The length of an encoded proof. Only proofs of ranges have an encoding, so the proof is encoded
/// as a part of one whose other parts are empty.
fn length(proof: FrozenProof) -> f64 {
    let written = |proof| {
        let mut out = Vec::new();
        FrozenRangeProof::new(proof, Proof::default(), Box::default()).write_to_vec(&mut out);
        out.len()
    };
    (written(proof) - written(Proof::default())) as f64
}

impl Reader for Reads<Option<Revision>> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let found = self.0.as_ref().map(|newest| newest.val(key)).transpose()?.flatten();
        value.clear();
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        let mut count = 0;
        let Some(newest) = &self.0 else { return Ok(Some(0)) };
        for item in newest.iter_from(from)?.take(limit) {
            let (key, value) = item?;
            visit(&key, &value);
            count += 1;
        }
        Ok(Some(count))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(db) = self.db.take() {
            // All that was put is on disk.
            let _ = db.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_file_at_the_end_of_a_put_has_the_batch() {
        let (dir, copy) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let mut store = create(dir.path(), 1 << 20).expect("opens");
        let mut value = Vec::new();
        for number in 0..200_u64 {
            let key = coppice_measure::workload::key(number);
            store.put(vec![Record { key: key.clone(), value: number.to_le_bytes().to_vec() }]).expect("puts");
            std::fs::copy(file_in(dir.path()), file_in(copy.path())).expect("copies");
            let copied = create(copy.path(), 1 << 20).expect("opens");
            assert!(
                copied.reader().expect("reads").get(&key, &mut value).expect("reads"),
                "batch {number} is not in the file"
            );
            assert_eq!(value, number.to_le_bytes());
        }
    }

    #[test]
    fn proofs_of_what_was_put_verify_and_ranges_are_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = create(dir.path(), 1 << 20).expect("opens");
        let keys: Vec<_> = (0..1000).map(coppice_measure::workload::key).collect();
        store.put(keys.iter().map(|key| Record { key: key.clone(), value: key.clone() }).collect()).expect("puts");
        let proofs = store.prove(&keys).expect("proves").expect("it can");
        ensure_sizes(&proofs.bytes);
        let mut seen = Vec::new();
        let mut reader = store.reader().expect("reads");
        assert_eq!(reader.range(&[], 10, &mut |key, _| seen.push(key.to_vec())).expect("reads"), Some(10));
        assert!(seen.is_sorted() && seen.len() == 10);
    }

    fn ensure_sizes(bytes: &[f64]) {
        // A proof has the hashes of at least one node's children.
        assert!(bytes.len() == 1000 && bytes.iter().all(|bytes| (32.0..100_000.0).contains(bytes)), "{bytes:?}");
    }
}
