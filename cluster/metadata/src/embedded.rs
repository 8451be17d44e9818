//! A metadata store for one process: a state in memory, saved as one small file at every change.
//!
//! A change is written under a temporary name, synced, and renamed into place before anyone sees
//! it. So a crash leaves the state before or after it. Leases are saved without their remaining
//! time: after a restart, each has its full time again. The history for watches is not saved: after
//! a restart, a watch begins with a snapshot.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use coppice_env::{Clock, OpenMode, Storage, watch};
use twox_hash::XxHash3_64;

use crate::{
    Changes, Error, LEASE_TTL_MAX, LEASE_TTL_MIN, Leader, LeaseId, Member, Metadata, Revision, Snapshot, Watch,
    state::State,
};

/// The file with the state.
const STORE: &str = "store";
/// The file in which the next state is written.
const TEMPORARY: &str = "incoming";
/// The file whose lock keeps other processes out.
const LOCK: &str = "lock";
/// The first bytes of the file.
const MAGIC: &[u8; 8] = b"copmet01";
/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The pause between two checks by a waiting call whether a lease has ended.
const EXPIRY_CHECK: Duration = Duration::from_millis(10);

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    held: Mutex<Held>,
    changed: watch::Sender<Revision>,
    _lock: Box<dyn Send + Sync>,
}

/// The state, and the time by the clock at which each lease ends.
struct Held {
    state: State,
    ends: BTreeMap<LeaseId, Duration>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store in a directory. An empty directory becomes a new store.
    ///
    /// # Errors
    /// If another process holds it, or its file is damaged or can't be read.
    pub fn open(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        storage.create_dir_all("").map_err(Error::Unavailable)?;
        let lock = storage.lock(LOCK).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::InUse,
            _ => Error::Unavailable(error),
        })?;
        // A process that was killed may have renamed the file without syncing the directory.
        storage.sync_dir("").map_err(Error::Unavailable)?;
        let state = load(&*storage)?;
        let now = clock.now();
        let ends = state.leases().iter().map(|(lease, ttl)| (*lease, now.saturating_add(*ttl))).collect();
        let (changed, _) = watch::channel(state.revision());
        let held = Mutex::new(Held { state, ends });
        Ok(Self { inner: Arc::new(Inner { storage, clock, held, changed, _lock: lock }) })
    }

    /// Drops the history: a watch from an older revision must begin with a snapshot.
    pub fn compact(&self) {
        self.inner.lock().state.compact();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, after leases whose time is over have been ended.
    fn settled(&self) -> Result<MutexGuard<'_, Held>, Error> {
        let mut held = self.lock();
        let now = self.clock.now();
        let ended: Vec<_> = held.ends.iter().filter(|(_, end)| **end <= now).map(|(lease, _)| *lease).collect();
        if !ended.is_empty() {
            let mut next = held.state.clone();
            next.end(&ended);
            self.replace(&mut held, next)?;
        }
        Ok(held)
    }

    /// Changes the state: first on disk, then in memory.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        let mut held = self.settled()?;
        let mut next = held.state.clone();
        let answer = change(&mut next)?;
        if next != held.state {
            self.replace(&mut held, next)?;
        }
        Ok(answer)
    }

    fn replace(&self, held: &mut Held, next: State) -> Result<(), Error> {
        save(&*self.storage, &next).map_err(Error::Unavailable)?;
        let now = self.clock.now();
        held.ends.retain(|lease, _| next.leases().contains_key(lease));
        for (lease, ttl) in next.leases() {
            held.ends.entry(*lease).or_insert_with(|| now.saturating_add(*ttl));
        }
        held.state = next;
        self.changed.send_replace(held.state.revision());
        Ok(())
    }

    /// Waits until `look` returns something. It is called after each change, and when leases may
    /// have ended.
    async fn wait<T>(&self, look: impl Fn(&State) -> Result<Option<T>, Error>) -> Result<T, Error> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = look(&self.settled()?.state)? {
                return Ok(found);
            }
            tokio::select! {
                biased;
                _ = changed.changed() => {}
                () = tokio::time::sleep(EXPIRY_CHECK) => {}
            }
        }
    }
}

#[async_trait]
impl Metadata for EmbeddedStore {
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            return Err(Error::Invalid("time of a lease"));
        }
        self.inner.change(|state| state.grant(ttl))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let mut held = self.inner.settled()?;
        let ttl = *held.state.leases().get(&lease).ok_or(Error::LeaseLost(lease))?;
        let end = self.inner.clock.now().saturating_add(ttl);
        held.ends.insert(lease, end);
        Ok(())
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.change(|state| {
            state.end(&[lease]);
            Ok(())
        })
    }

    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        self.inner.change(|state| state.register(lease, member))
    }

    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error> {
        let token = self.inner.change(|state| state.stand(lease, name))?;
        self.inner.wait(|state| state.picked(lease, token).ok_or(Error::LeaseLost(lease))).await
    }

    async fn resign(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.change(|state| {
            state.resign(lease);
            Ok(())
        })
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        Ok(self.inner.settled()?.state.snapshot())
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.inner.settled()?.state.after(after)?;
        Ok(Box::new(EmbeddedWatch { inner: Arc::clone(&self.inner), after }))
    }
}

#[derive(Debug)]
struct EmbeddedWatch {
    inner: Arc<Inner>,
    after: Revision,
}

#[async_trait]
impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> Result<Changes, Error> {
        let changes = self.inner.wait(|state| state.after(self.after)).await?;
        self.after = changes.revision;
        Ok(changes)
    }
}

fn save(storage: &dyn Storage, state: &State) -> io::Result<()> {
    let mut bytes = [MAGIC, state.encode().as_slice()].concat();
    let checksum = XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    let file = match storage.open(TEMPORARY, OpenMode::CreateNew) {
        // A file whose sync failed before can't be trusted to keep what is written to it now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            storage.remove(TEMPORARY)?;
            storage.open(TEMPORARY, OpenMode::CreateNew)?
        }
        other => other?,
    };
    file.write_all_at(&bytes, 0)?;
    file.sync_data()?;
    storage.rename(TEMPORARY, STORE)?;
    storage.sync_dir("")
}

fn load(storage: &dyn Storage) -> Result<State, Error> {
    let file = match storage.open(STORE, OpenMode::Existing) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(error) => return Err(Error::Unavailable(error)),
    };
    let len = file.len().map_err(Error::Unavailable)?;
    let len = usize::try_from(len.min(FILE_BYTES_MAX)).map_err(|_| Error::Corrupted("length"))?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).map_err(Error::Unavailable)?;
    decode(&bytes)
}

fn decode(bytes: &[u8]) -> Result<State, Error> {
    let (body, checksum) = bytes.split_last_chunk::<8>().ok_or(Error::Corrupted("length"))?;
    if XxHash3_64::oneshot(body) != u64::from_le_bytes(*checksum) {
        return Err(Error::Corrupted("checksum"));
    }
    let state = body.strip_prefix(MAGIC).ok_or(Error::Corrupted("first bytes"))?;
    State::decode(state).map_err(|_| Error::Corrupted("state"))
}
