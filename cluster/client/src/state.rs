//! A cache of a ledger's state that follows the ledger's log and checks what it is told.
//!
//! A [`Cache`] holds values with the versions for which they hold. [`Cache::follow`] reads the root
//! log and moves the frontier, which is the newest version whose changes are all known.
//! [`Cache::head`] gives a [`View`] of that version, and [`Cache::at`] one of any version. A view
//! reads a key from the cache if it can, and otherwise from the ledger at exactly its version. So
//! all reads of a view are of one state, while the ledger goes on.
//!
//! ```no_run
//! use coppice_client::{Client, state};
//!
//! # async fn block(client: Client, keys: Vec<bytes::Bytes>) -> Result<(), state::Error> {
//! let cache = state::Cache::new(client, state::Options::default())?;
//! let follower = cache.clone();
//! tokio::spawn(async move { follower.follow().await });
//! let view = cache.head().await?;
//! let values = view.get_all(&keys).await?;
//! let value = view.get(b"account/alice").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Checks
//!
//! At [`Level::Proofs`], each read from the ledger comes with a proof. A version on the stream is
//! taken once its header is in the log under a signed checkpoint, and its journal has the root in
//! that header. The journal names every key that the version wrote, with the hash of its value: a
//! key that is left out or a value that is altered breaks a hash. The journal does not show that
//! the state follows from it. An [audit](crate::audit) shows that, and so do proofs of cached keys
//! (`Options::samples`).
//!
//! If two things contradict each other, everything is dropped. Reads and [`Cache::follow`] then
//! fail with an [`Evidence`], until [`Cache::follow`] or [`Cache::begin`] is called again.
//!
//! # Own writes
//!
//! A program that is the only writer needs no stream. It calls [`Cache::begin`] with the head that
//! it found, [`Cache::apply`] after each commit, and [`Cache::rolled_back`] after each rollback. A
//! batch that is staged and not committed is a view over its parent: [`View::over`].
//!
//! ```text
//!            Cache      the public calls
//!              |
//!    view   follow      reads of a version; the stream of headers -- check: journals
//!      |     |  |
//!     read---+  |       reads of the ledger that fill the cache
//!      |        |
//!     shared----+       standing, limits, waits -- flights: calls that readers share
//!      |
//!     store             intervals of versions -- lineage: stamps, window: newest keys
//!
//!     ledger -- calls   what the cache needs of a ledger; a client gives it
//! ```
//!
//! `docs/state-backend.md` in the repository has the rules of the cache in full.

mod calls;
mod check;
mod error;
mod flights;
mod follow;
mod ledger;
mod lineage;
mod metrics;
mod options;
mod read;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod view;
mod window;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::Stamp;
use tokio::time::timeout;

pub use self::{
    error::{Error, Evidence},
    metrics::Metrics,
    options::{Level, Options},
    store::Writes,
    view::View,
};
use self::{ledger::Ledger, metrics::count, shared::Shared, store::Written};
use crate::Client;

/// Values of a ledger's state. Clones share them.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache, which calls nothing. Proofs need a client that trusts a key.
    ///
    /// # Errors
    /// [`Error::Options`] if a setting makes no sense.
    pub fn new(client: Client, options: Options) -> Result<Self, Error> {
        Self::of(Box::new(client), options)
    }

    fn of(ledger: Box<dyn Ledger>, options: Options) -> Result<Self, Error> {
        Ok(Self { shared: Arc::new(Shared::new(ledger, options)?) })
    }

    /// Reads the root log, and moves the frontier. It goes on after broken streams, and ends if its
    /// future is dropped. It begins with an empty cache. The client must trust a key.
    ///
    /// # Errors
    /// Returns [`Error::Evidence`] once the ledger is caught in a contradiction, and
    /// [`Error::Following`] if the cache is followed already.
    pub async fn follow(&self) -> Error {
        follow::follow(&self.shared).await
    }

    /// Drops everything, and begins at a version: the head, as the only writer found it. Older
    /// views read through from then on.
    pub fn begin(&self, head: Stamp) {
        self.shared.status().evidence = None;
        count(&self.shared.counts.drops, 1);
        self.shared.store().begin(head, 0);
        self.shared.announce();
    }

    /// Takes a version that this program has committed, with everything that the version wrote: see
    /// [`writes`]. The batch must have been alone in its version (`exclusive`). While the cache is
    /// followed, a version that is not the next one is left to the stream. Otherwise the changes of
    /// the versions in between are unknown. The values are kept even if the stream has shown the
    /// version before.
    ///
    /// # Errors
    /// [`Error::Evidence`] if the writes contradict what is held.
    pub fn apply(&self, at: Stamp, writes: &Writes) -> Result<(), Error> {
        let gaps = !self.shared.status().following;
        if !self.shared.commit(at, Written::Values(writes), gaps, &[])? {
            let late = self.shared.store().late(at, writes);
            late.map_err(|why| self.shared.fail(Evidence::new(why, &[])))?;
        }
        Ok(())
    }

    /// Takes a rollback that this program has ordered. `head` is its base, in the epoch that
    /// begins.
    pub fn rolled_back(&self, head: Stamp) {
        self.shared.roll_back(head);
    }

    /// The evidence for which all reads are refused.
    #[must_use]
    pub fn evidence(&self) -> Option<Arc<Evidence>> {
        self.shared.status().evidence.clone()
    }

    /// A view of the frontier. Waits for the first one. If the stream has been broken for
    /// [`Options::stale_max`], it is a view of the head that the ledger names.
    ///
    /// # Errors
    /// [`Error::Evidence`] if reads are refused, or if the ledger names a head that is older than a
    /// checkpoint of it. [`Error::Timeout`] if no head is known in time.
    pub async fn head(&self) -> Result<View, Error> {
        let limit = self.shared.options.timeout;
        timeout(limit, self.find_head()).await.unwrap_or(Err(Error::Timeout("the wait for a head")))
    }

    async fn find_head(&self) -> Result<View, Error> {
        let mut moved = self.shared.moved.subscribe();
        loop {
            self.shared.evidence()?;
            let broken = self.shared.status().broken;
            if broken.is_some_and(|since| since.elapsed() >= self.shared.options.stale_max) {
                return self.ask_head().await;
            }
            let frontier = self.shared.store().line().frontier();
            if let Some(stamp) = frontier {
                return Ok(self.at(stamp));
            }
            // The sender lives as long as the cache.
            if moved.changed().await.is_err() {
                return Err(Error::Timeout("the wait for a head"));
            }
        }
    }

    async fn ask_head(&self) -> Result<View, Error> {
        let head = self.shared.ledger.head().await?;
        if let Some(grown) = self.shared.grown().filter(|grown| head.log_size < grown.size) {
            let why = "the ledger's head is older than a checkpoint of it";
            let known = grown.proof.clone();
            return Err(Evidence { known, ..Evidence::new(why, &[]) }.into());
        }
        Ok(self.at(head.stamp))
    }

    /// A view of a version. If the cache does not know that the stamp names a version, the first
    /// read asks the ledger.
    #[must_use]
    pub fn at(&self, stamp: Stamp) -> View {
        View::new(self.shared.clone(), stamp)
    }

    /// A view of a version that the caller knows to stand: for instance that of the last change of
    /// a record that was read at head.
    #[must_use]
    pub fn at_proven(&self, stamp: Stamp) -> View {
        let view = self.at(stamp);
        view.confirm();
        view
    }

    /// The counts so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let size = self.shared.store().size();
        self.shared.counts.read(size)
    }
}

/// The writes of a batch: the last value of each key, or `None` if the batch deletes it.
#[must_use]
pub fn writes(batch: &v1::Batch) -> Writes {
    let write = |operation: &v1::Operation| {
        let value = match &operation.change {
            Some(v1::operation::Change::Put(value)) => Some(value.clone()),
            _ => None::<Bytes>,
        };
        (operation.key.clone(), value)
    };
    batch.operations.iter().map(write).collect()
}
