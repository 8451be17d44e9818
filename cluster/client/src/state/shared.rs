//! The part of a cache that its views and its follower share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use coppice_types::Stamp;
use tokio::{
    sync::watch,
    time::{Duration, Instant, timeout, timeout_at},
};

use super::{
    error::{Error, Evidence},
    flights::Flights,
    ledger::{Grown, Ledger},
    metrics::{Counters, count},
    options::Options,
    store::{Store, Written},
};

/// Most reads that wait for the frontier without seeing it move. Then others read through at once,
/// until it moves.
pub(super) const WAITS_MAX: usize = 100;

/// See the head of this file.
pub(super) struct Shared {
    pub ledger: Box<dyn Ledger>,
    pub options: Options,
    pub flights: Flights,
    pub counts: Arc<Counters>,
    /// Number of entries of the log that the follower has applied.
    size: AtomicU64,
    /// The pause between two attempts. Between streams that break, it grows up to 200 times.
    pub pause: Duration,
    /// Changes when the frontier moves, or reads are refused.
    pub moved: watch::Sender<()>,
    store: Mutex<Store>,
    status: Mutex<Status>,
    /// The newest checkpoint that was proven.
    grown: Mutex<Option<Arc<Grown>>>,
}

/// The standing of a cache.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// The reason why all reads are refused.
    pub evidence: Option<Arc<Evidence>>,
    pub following: bool,
    /// Since when the stream has not reached the ledger's head; `None` if it has.
    pub broken: Option<Instant>,
    /// Number of reads that waited since the frontier moved.
    pub waits: usize,
}

impl Shared {
    pub(super) fn new(ledger: Box<dyn Ledger>, options: Options) -> Result<Self, Error> {
        options.check()?;
        let counts = Arc::<Counters>::default();
        Ok(Self {
            ledger,
            flights: Flights::new(options.parallel),
            store: Mutex::new(Store::new(options.bytes, counts.clone())),
            counts,
            size: AtomicU64::new(0),
            pause: Duration::from_millis(5),
            moved: watch::Sender::new(()),
            status: Mutex::default(),
            grown: Mutex::default(),
            options,
        })
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn grown(&self) -> Option<Arc<Grown>> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls the ledger, for a bounded time.
    pub(super) async fn limited<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout(self.options.timeout, call).await.unwrap_or(Err(Error::Timeout(what)))
    }

    /// Asks for the newest checkpoint, and keeps it.
    pub(super) async fn ask_grown(&self) -> Result<Arc<Grown>, Error> {
        let known = self.grown();
        let grown = self.limited("a checkpoint", self.ledger.grown(known.as_deref())).await?;
        let (grown, mut newest) = (Arc::new(grown), self.grown.lock().unwrap_or_else(PoisonError::into_inner));
        if newest.as_ref().is_none_or(|newest| newest.size < grown.size) {
            *newest = Some(grown.clone());
        }
        Ok(grown)
    }

    pub(super) fn evidence(&self) -> Result<(), Error> {
        self.status().evidence.clone().map_or(Ok(()), |evidence| Err(Error::Evidence(evidence)))
    }

    /// Drops everything, and refuses all reads.
    pub(super) fn fail(&self, mut evidence: Evidence) -> Error {
        if evidence.known.is_empty() {
            evidence.known = self.grown().map(|grown| grown.proof.clone()).unwrap_or_default();
        }
        let evidence = Arc::new(evidence);
        self.status().evidence.get_or_insert_with(|| evidence.clone());
        self.drop_all();
        Error::Evidence(evidence)
    }

    pub(super) fn drop_all(&self) {
        count(&self.counts.drops, 1);
        self.store().end();
        self.announce();
    }

    /// Wakes all that wait for the frontier.
    pub(super) fn announce(&self) {
        self.status().waits = 0;
        self.moved.send_replace(());
    }

    /// Moves the frontier to a version: see [`Store::commit`]. `shown` is the header that names it,
    /// if there is one.
    pub(super) fn commit(&self, at: Stamp, written: Written<'_>, gaps: bool, shown: &[u8]) -> Result<bool, Error> {
        let moved = self.store().commit(at, written, gaps);
        let moved = moved.map_err(|why| self.fail(Evidence::new(why, shown)))?;
        if moved {
            count(&self.counts.versions, 1);
            self.announce();
        }
        Ok(moved)
    }

    pub(super) fn roll_back(&self, head: Stamp) {
        if self.store().roll_back(head) {
            count(&self.counts.rollbacks, 1);
            self.announce();
        }
    }

    /// Waits a short time for a version that the stream has not reached. Returns whether that was
    /// in vain.
    pub(super) async fn wait_for(&self, at: Stamp) -> bool {
        let is_above = || self.store().line().is_above(at);
        if !is_above() {
            return false;
        }
        let until = Instant::now() + self.options.wait;
        let mut moved = self.moved.subscribe();
        let mut waited = false;
        loop {
            {
                let mut status = self.status();
                let too_many = !waited && status.waits >= WAITS_MAX;
                if !status.following || too_many || status.evidence.is_some() {
                    return false;
                }
                if !waited {
                    status.waits += 1;
                    count(&self.counts.waits, 1);
                }
            }
            if !is_above() {
                return false;
            }
            if timeout_at(until, moved.changed()).await.is_err() {
                return true;
            }
            waited = true;
        }
    }

    /// Notes how many entries of the log are applied.
    pub(super) fn note_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub(super) fn applied(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}
