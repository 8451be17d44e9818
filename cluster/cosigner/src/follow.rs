//! Follows the log and asks others: the asynchronous part around the state machine.
//!
//! Every coordinator's checkpoint is looked at in turn, since they could show different logs. A log
//! that has grown is fetched, hashed and compared with its signed root before anything counts.
//!
//! **Invariants.** One task at a time lets the mirror grow, and no wait of a caller ends that task
//! early: a write that goes on behind it could reach entries that are verified by then. Every fetch
//! has a limit of bytes and of time.

mod answer;
mod auditing;
mod grow;
mod others;
mod stream;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use coppice_env::{Clock, Storage};
use coppice_verify::note::NOTE_BYTES_MAX;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, watch},
    time::sleep,
};

pub use self::{auditing::Auditing, stream::Streams};
use crate::{
    config::{Config, origin_hash},
    convict::Judged,
    error::Error,
    fetch::Web,
    mirror::Mirror,
    sightings::Sightings,
    witness::{Own, Witness},
};

/// How often coordinators are looked at.
const POLL: Duration = Duration::from_secs(1);

/// Another member that is asked.
#[derive(Clone, Debug)]
struct Peer {
    url: String,
    /// Whether it has an auditor, too.
    audits: bool,
}

/// One of the two state machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Witness,
    Auditor,
}

/// What the tasks of a cosigner share.
#[derive(Debug)]
pub struct Shared {
    witness: Mutex<Witness>,
    auditing: Option<Auditing>,
    sightings: Mutex<Sightings>,
    clock: Arc<dyn Clock>,
    web: Web,
    logs: Vec<String>,
    peers: Vec<Peer>,
    gossip: Duration,
    /// Hash of the origin, as in paths.
    hash: String,
    growing: Arc<AsyncMutex<()>>,
    /// The mirror has grown.
    grown: Notify,
    /// A checkpoint by an unknown key was shown: the ledger may have changed its key.
    wake: Notify,
    /// The error that ends the process.
    broken: Mutex<Option<Error>>,
    fell: Notify,
    /// Work on the disk holds it for reading. True once the folder was given up.
    closed: Arc<RwLock<bool>>,
    /// True once the folder is to be given up: work that waits for others ends then.
    closing: watch::Sender<bool>,
}

impl Shared {
    /// The shared state of a cosigner with these settings.
    ///
    /// # Errors
    /// If a setting is wrong or the disk refuses.
    pub fn new(
        witness: Witness,
        auditing: Option<Auditing>,
        config: &Config,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let keys = config.peer_keys()?;
        let peers = config.peers.iter().map(|peer| Peer { url: peer.url.clone(), audits: peer.auditor.is_some() });
        Ok(Arc::new(Self {
            hash: origin_hash(config.ledger()?.name()),
            peers: peers.collect(),
            sightings: Mutex::new(Sightings::open(storage, keys)?),
            witness: Mutex::new(witness),
            auditing,
            clock,
            web: Web::new(config.ca.as_deref())?,
            logs: config.logs.clone(),
            gossip: Duration::from_secs(config.gossip_seconds),
            growing: Arc::default(),
            grown: Notify::new(),
            wake: Notify::new(),
            broken: Mutex::default(),
            fell: Notify::new(),
            closed: Arc::default(),
            closing: watch::Sender::new(false),
        }))
    }

    /// The hash of the origin, as in paths.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Runs something on the witness, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// Those of the work. An error of the disk, or damage, ends the process.
    pub async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Witness) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.with_one(Which::Witness, work).await
    }

    /// Runs something on one of the two state machines.
    ///
    /// # Errors
    /// Those of [`Shared::with`], and [`Error::Refused`] if there is no auditor.
    pub async fn with_one<T: Send + 'static>(
        self: &Arc<Self>,
        which: Which,
        work: impl FnOnce(&mut Witness) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.clone();
        let done = self.blocking(move || work(&mut *shared.machine(which)?)).await;
        done.inspect_err(|error| self.judge_error(error))
    }

    fn machine(&self, which: Which) -> Result<MutexGuard<'_, Witness>, Error> {
        let machine = match (which, &self.auditing) {
            (Which::Witness, _) => &self.witness,
            (Which::Auditor, Some(auditing)) => auditing.machine(),
            (Which::Auditor, None) => return Err(Error::Refused("there is no auditor".to_owned())),
        };
        Ok(machine.lock().expect("no holder panics"))
    }

    /// The state machines that there are.
    fn machines(&self) -> impl Iterator<Item = Which> + use<> {
        std::iter::once(Which::Witness).chain(self.auditing.is_some().then_some(Which::Auditor))
    }

    /// Reads the mirror on a thread that may wait for the disk.
    ///
    /// # Errors
    /// Like [`Shared::with`].
    pub async fn with_mirror<T: Send + 'static>(
        &self,
        mirror: Mirror,
        work: impl FnOnce(&Mirror) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.blocking(move || work(&mirror)).await.inspect_err(|error| self.judge_error(error))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let closed = self.closed.clone();
        let unless_closed = move || {
            let closed = closed.read().unwrap_or_else(PoisonError::into_inner);
            if *closed { Err(Error::Refused("the cosigner was stopped".to_owned())) } else { work() }
        };
        let joined = tokio::task::spawn_blocking(unless_closed).await;
        joined.unwrap_or_else(|_| Err(Error::Damaged("the cosigner's state: a thread panicked".to_owned())))
    }

    /// Gives up the folder once no work on its disk is going on. Connections and tasks that are
    /// left do nothing any more.
    pub async fn close(self: &Arc<Self>) {
        self.closing.send_replace(true);
        let shared = self.clone();
        let release = move || {
            *shared.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
            for which in shared.machines() {
                if let Ok(mut machine) = shared.machine(which) {
                    machine.release();
                }
            }
        };
        if tokio::task::spawn_blocking(release).await.is_err() {
            tracing::error!("the folder is held until the process ends: a thread panicked");
        }
    }

    /// Ends the process if its disk can't be believed any more.
    fn judge_error(&self, error: &Error) {
        let grave = match error {
            Error::Disk(error) => Error::Disk(std::io::Error::new(error.kind(), error.to_string())),
            Error::Damaged(what) => Error::Damaged(what.clone()),
            Error::Refused(_) | Error::Unavailable(_) => return,
        };
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get_or_insert(grave);
        self.fell.notify_one();
    }

    /// Waits until the process can't go on, and says why.
    pub async fn broken(&self) -> Error {
        loop {
            self.fell.notified().await;
            if let Some(error) = self.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return error;
            }
        }
    }

    /// Looks at coordinators soon.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Says what was seen of this peer.
    #[must_use]
    pub fn seen(&self, key_hash: &str) -> Option<Vec<u8>> {
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner).of(key_hash)
    }

    /// Follows the log, and asks others. Never returns.
    pub async fn run(self: Arc<Self>) {
        let mut next_gossip = Duration::ZERO;
        loop {
            let (mut answered, mut open) = (false, false);
            for url in &self.logs {
                match self.look(url, "checkpoint").await {
                    Ok(settled) => (answered, open) = (true, open || !settled),
                    Err(error) => tracing::warn!(%error, url = printable(url), "a log was not followed"),
                }
            }
            if answered && !open {
                self.ask_for_floor().await;
            }
            if self.clock.now() >= next_gossip {
                next_gossip = self.clock.now() + self.gossip;
                self.gossip().await;
            }
            tokio::select! {
                () = sleep(POLL) => {}
                () = self.wake.notified() => sleep(POLL / 10).await,
            }
        }
    }

    /// Looks at the checkpoint of a server. Returns false if it has a later line of this cosigner
    /// that could not be adopted.
    async fn look(self: &Arc<Self>, base: &str, path: &str) -> Result<bool, Error> {
        let note = self.web.get(base, path, NOTE_BYTES_MAX).await?;
        match note {
            Some(note) if !note.is_empty() => self.offer(note).await,
            _ => Ok(true),
        }
    }

    /// Takes a note that a server shows, whatever it is worth. Returns false if it has a later line
    /// of this cosigner that could not be adopted.
    async fn offer(self: &Arc<Self>, note: Vec<u8>) -> Result<bool, Error> {
        let shown = note.clone();
        let judged = self.with(move |witness| witness.show(&shown)).await?;
        if judged != Judged::Fine && !matches!(judged, Judged::Evidence(_)) {
            let place: OwnedMutexGuard<()> = self.growing.clone().lock_owned().await;
            if let Err(error) = self.grow(&note, &self.logs, place).await {
                let kept = note.clone();
                self.with(move |witness| witness.put_off(&kept)).await?;
                tracing::warn!(%error, "a checkpoint was not reached");
            }
        }
        let seen = note.clone();
        let judged = self.with(move |witness| {
            let judged = witness.judge(&seen)?;
            if judged == Judged::Fine {
                witness.keep_lines(&seen);
            }
            Ok(judged)
        });
        if judged.await? != Judged::Unsigned {
            let (shared, seen) = (self.clone(), note.clone());
            let look = move || shared.sightings.lock().unwrap_or_else(PoisonError::into_inner).look(&seen);
            self.blocking(look).await.inspect_err(|error| self.judge_error(error))?;
        }
        let mut settled = true;
        for which in self.machines() {
            settled &= self.settle_own(which, note.clone()).await?;
        }
        Ok(settled)
    }

    /// Goes on from a line of this cosigner's key on a note, if it is later than what is known.
    /// Returns false if it is, and could not be adopted.
    async fn settle_own(self: &Arc<Self>, which: Which, note: Vec<u8>) -> Result<bool, Error> {
        let seen = note.clone();
        if self.with_one(which, move |machine| machine.own(&seen)).await? != Own::Later {
            return Ok(true);
        }
        match self.with_one(which, move |machine| machine.adopt(&note)).await {
            Ok(()) => Ok(true),
            Err(Error::Refused(why)) => {
                tracing::warn!(why, "a later line of this cosigner was not adopted");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// An address without what may be secret in it.
fn printable(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(0)),
        Err(_) => "?".to_owned(),
    }
}
