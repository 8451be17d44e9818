//! The metadata store of a simulated cluster: the embedded store, reached over a link that delays
//! and loses calls. Now and then it restarts or is wiped.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use coppice_env::{Clock, Rng, SimRng, SimStorage, watch};
use coppice_metadata::{EmbeddedStore, Error, Leader, LeaseId, Member, Metadata, Revision, Snapshot, Watch};
use tokio::time::sleep;
use tonic::codegen::BoxFuture;

use crate::{event, life::Life, trace::Trace};

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    present: Mutex<Present>,
    wiped: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    trace: Trace,
    rng: Mutex<SimRng>,
    /// Failing calls per thousand.
    lose_per_mille: Mutex<u64>,
}

#[derive(Debug)]
struct Present {
    store: EmbeddedStore,
    storage: SimStorage,
}

fn open(storage: &SimStorage, clock: &Arc<dyn Clock>) -> EmbeddedStore {
    EmbeddedStore::open(storage.storage(), Arc::clone(clock)).expect("a store opens on a sound disk")
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, seed: u64, trace: Trace) -> Self {
        let storage = SimStorage::new();
        let present = Mutex::new(Present { store: open(&storage, &clock), storage });
        let (wiped, _) = watch::channel(0);
        let rng = Mutex::new(SimRng::new(seed));
        Self(Arc::new(Inner { present, wiped, clock, trace, rng, lose_per_mille: Mutex::new(0) }))
    }

    /// Sets how many calls in a thousand fail from now on.
    pub fn set_loss(&self, per_mille: u64) {
        *self.0.lose_per_mille.lock().unwrap_or_else(PoisonError::into_inner) = per_mille;
    }

    /// Restarts the store after a loss of power, or empty if it is wiped.
    pub fn restart(&self, wipe: bool, seed: u64) {
        event!(self.0.trace, "metadata {}", if wipe { "wiped" } else { "restarted" });
        let mut present = self.0.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.storage.halt();
        let storage = if wipe { SimStorage::new() } else { present.storage.power_loss(seed) };
        *present = Present { store: open(&storage, &self.0.clock), storage };
        drop(present);
        self.0.wiped.send_modify(|times| *times += 1);
    }

    /// A process's link to the store.
    #[must_use]
    pub fn link(&self, life: &Life) -> Arc<dyn Metadata> {
        Arc::new(Way { store: self.clone(), life: life.clone() })
    }
}

#[derive(Debug)]
struct Way {
    store: Store,
    life: Life,
}

impl Way {
    /// Calls the store that exists now. The call breaks if the store restarts before it ends.
    async fn call<T>(
        &self,
        what: &str,
        call: impl FnOnce(EmbeddedStore) -> BoxFuture<T, Error> + Send,
    ) -> Result<T, Error>
    where
        T: Send,
    {
        if !self.life.message() {
            std::future::pending::<()>().await;
        }
        let inner = &self.store.0;
        let per_mille = *inner.lose_per_mille.lock().unwrap_or_else(PoisonError::into_inner);
        let (delay, lost, answer_lost) = {
            let mut rng = inner.rng.lock().unwrap_or_else(PoisonError::into_inner);
            (Duration::from_millis(rng.below(4)), rng.chance(per_mille), rng.chance(per_mille))
        };
        event!(inner.trace, "{} > metadata {what} lost {lost} {answer_lost}", self.life.name());
        sleep(delay).await;
        let mut wiped = inner.wiped.subscribe();
        let store = inner.present.lock().unwrap_or_else(PoisonError::into_inner).store.clone();
        let broken = || Error::Unavailable(io::Error::new(io::ErrorKind::ConnectionReset, "the store is gone"));
        if lost {
            return Err(broken());
        }
        let answer = tokio::select! {
            biased;
            _ = wiped.changed() => Err(broken()),
            answer = call(store) => answer,
        };
        if !self.life.message() {
            std::future::pending::<()>().await;
        }
        if answer_lost { Err(broken()) } else { answer }
    }
}

#[async_trait]
impl Metadata for Way {
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        self.call("grant", move |store| Box::pin(async move { store.grant(ttl).await })).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.call("keep alive", move |store| Box::pin(async move { store.keep_alive(lease).await })).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.call("revoke", move |store| Box::pin(async move { store.revoke(lease).await })).await
    }

    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        self.call("register", move |store| Box::pin(async move { store.register(lease, member).await })).await
    }

    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error> {
        let name = name.to_owned();
        self.call("campaign", move |store| Box::pin(async move { store.campaign(lease, &name).await })).await
    }

    async fn resign(&self, lease: LeaseId) -> Result<(), Error> {
        self.call("resign", move |store| Box::pin(async move { store.resign(lease).await })).await
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        self.call("snapshot", move |store| Box::pin(async move { store.snapshot().await })).await
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.call("watch", move |store| Box::pin(async move { store.watch(after).await })).await
    }
}
