//! Views of a version, or of batches that are staged on it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use coppice_types::Stamp;

use super::{error::Error, flights::Landing, lineage::Place, metrics::count, shared::Shared, store::Writes};

/// The state of one version, or of batches that are staged on it. Clones are the same view.
#[derive(Clone)]
pub struct View {
    shared: Arc<Shared>,
    at: Place,
    known: Arc<Known>,
    /// The newest batch over the version.
    staged: Option<Arc<Staged>>,
}

/// The facts that a view has learned.
#[derive(Debug, Default)]
struct Known {
    /// One above the epoch of the frontier when the ledger answered a read at the stamp; 0 before
    /// that.
    confirmed: AtomicU64,
    /// A read has waited for the frontier in vain. Others then do not.
    waited: AtomicBool,
}

/// A batch that is not committed.
#[derive(Debug)]
struct Staged {
    parent: Option<Arc<Staged>>,
    writes: Writes,
    dropped: AtomicBool,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("at", &self.at).field("staged", &self.staged).finish_non_exhaustive()
    }
}

impl View {
    pub(super) fn new(shared: Arc<Shared>, stamp: Stamp) -> Self {
        let at = shared.store().line().place(stamp);
        Self { shared, at, known: Arc::default(), staged: None }
    }

    /// Takes the stamp for the name of a version that stands now.
    pub(super) fn confirm(&self) {
        self.known.confirmed.store(self.shared.store().line().confirmed(), Ordering::Relaxed);
    }

    /// The version that the view reads.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.at.stamp
    }

    /// Reads a key; `None` if it has no value.
    ///
    /// # Errors
    /// [`Error::Ledger`] if the ledger refuses the read or its proof does not hold,
    /// [`Error::Evidence`] if the ledger was caught in a contradiction, and [`Error::Dropped`] if
    /// the view or one below it was discarded.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        if let Some(value) = self.look(key).await? {
            count(&self.shared.counts.hits, 1);
            return Ok(value);
        }
        count(&self.shared.counts.misses, 1);
        let (value, confirmed) = self.shared.get(self.at, key).await?;
        self.known.confirmed.store(confirmed, Ordering::Relaxed);
        Ok(value)
    }

    /// Reads keys, many at one time. The result has a value for each key in the order of the keys,
    /// or `None` for a key without one. A key may be named twice.
    ///
    /// # Errors
    /// Like [`View::get`], with the first error.
    pub async fn get_all(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, Error> {
        let (mut values, mut places) = (vec![None; keys.len()], Vec::new());
        for (place, key) in keys.iter().enumerate() {
            match self.look(key).await? {
                Some(value) => values[place] = value,
                None => places.push(place),
            }
        }
        count(&self.shared.counts.hits, (keys.len() - places.len()) as u64);
        count(&self.shared.counts.misses, places.len() as u64);
        let landings = self.read(places.iter().map(|place| keys[*place].clone()).collect()).await?;
        for place in places {
            let read = landings.iter().find_map(|landing| landing.values.get(&keys[place]));
            values[place] = read.cloned().ok_or(Error::GivenUp(self.at.stamp))?;
        }
        Ok(values)
    }

    /// Reads keys into the cache, many at one time. Keys that are known already cost nothing, and a
    /// key may be named twice. Values of a version that is not cached are read again by
    /// [`View::get`].
    ///
    /// # Errors
    /// Like [`View::get`], with the first error.
    pub async fn prefetch(&self, keys: impl IntoIterator<Item = Bytes>) -> Result<(), Error> {
        let mut missing = Vec::new();
        for key in keys {
            if self.look(&key).await?.is_none() {
                missing.push(key);
            }
        }
        self.read(missing).await.map(|_| ())
    }

    /// Reads keys that the cache does not have. A key may be named twice.
    async fn read(&self, mut missing: Vec<Bytes>) -> Result<Vec<Arc<Landing>>, Error> {
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        missing.sort_unstable();
        missing.dedup();
        let landings = self.shared.get_all(self.at, missing).await?;
        if let Some(last) = landings.last() {
            self.known.confirmed.store(last.confirmed, Ordering::Relaxed);
        }
        Ok(landings)
    }

    /// A view of a batch that is staged on this one, and not committed: see
    /// [`writes`](super::writes). The ledger has no reads of stages, so they are answered from the
    /// batch, and from the version below it.
    #[must_use]
    pub fn over(&self, writes: Writes) -> Self {
        let known = Known { confirmed: self.known.confirmed.load(Ordering::Relaxed).into(), ..Known::default() };
        let staged = Staged { parent: self.staged.clone(), writes, dropped: AtomicBool::new(false) };
        Self { known: Arc::new(known), staged: Some(Arc::new(staged)), ..self.clone() }
    }

    /// Refuses all further reads of this view and of those over it, as the ledger does after
    /// `Discard` or if the stage is lost. A view of a version has nothing to discard.
    pub fn discard(&self) {
        if let Some(staged) = &self.staged {
            staged.dropped.store(true, Ordering::Relaxed);
        }
    }

    /// Reads a key without a call of the ledger; `None` if its value is unknown.
    async fn look(&self, key: &[u8]) -> Result<Option<Option<Bytes>>, Error> {
        let mut found = None;
        let mut next = self.staged.as_ref();
        while let Some(batch) = next {
            if batch.dropped.load(Ordering::Relaxed) {
                return Err(Error::Dropped);
            }
            found = found.or_else(|| batch.writes.get(key));
            next = batch.parent.as_ref();
        }
        if let Some(value) = found {
            return Ok(Some(value.clone()));
        }
        if !self.known.waited.load(Ordering::Relaxed) && self.shared.wait_for(self.at.stamp).await {
            self.known.waited.store(true, Ordering::Relaxed);
        }
        self.shared.evidence()?;
        let confirmed = self.known.confirmed.load(Ordering::Relaxed);
        Ok(self.shared.store().get(key, self.at, confirmed))
    }
}
