//! Follows the log and asks others: the asynchronous part around the state machine.
//!
//! Every coordinator's checkpoint is looked at in turn, since they could show different logs. A log
//! that has grown is fetched, hashed and compared with its signed root before anything counts.
//!
//! **Invariants.** One task at a time lets the mirror grow, and no wait of a caller ends that task
//! early: a write that goes on behind it could reach entries that are verified by then. Every fetch
//! has a limit of bytes and of time.

mod grow;
mod others;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_env::{Clock, Storage};
use coppice_verify::{checkpoint::Checkpoint, cosignature::WitnessKey, note::NOTE_BYTES_MAX};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard},
    time::{sleep, timeout},
};

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

/// A server that is asked, and its key if it is a peer.
#[derive(Clone, Debug)]
pub struct Peer {
    pub url: String,
    pub key: WitnessKey,
}

/// What the tasks of a cosigner share.
#[derive(Debug)]
pub struct Shared {
    witness: Mutex<Witness>,
    sightings: Mutex<Sightings>,
    clock: Arc<dyn Clock>,
    web: Web,
    logs: Vec<String>,
    peers: Vec<Peer>,
    gossip: Duration,
    /// Hash of the origin, as in paths.
    hash: String,
    growing: Arc<AsyncMutex<()>>,
    /// A checkpoint by an unknown key was shown: the ledger may have changed its key.
    wake: Notify,
    /// The error that ends the process.
    broken: Mutex<Option<Error>>,
    fell: Notify,
}

impl Shared {
    /// The shared state of a cosigner with these settings.
    ///
    /// # Errors
    /// If a setting is wrong or the disk refuses.
    pub fn new(
        witness: Witness,
        config: &Config,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let keys = config.peer_keys()?;
        let peers = config.peers.iter().zip(&keys).map(|(peer, key)| Peer { url: peer.url.clone(), key: key.clone() });
        Ok(Arc::new(Self {
            hash: origin_hash(config.ledger()?.name()),
            peers: peers.collect(),
            sightings: Mutex::new(Sightings::open(storage, keys)?),
            witness: Mutex::new(witness),
            clock,
            web: Web::new(config.ca.as_deref())?,
            logs: config.logs.clone(),
            gossip: Duration::from_secs(config.gossip_seconds),
            growing: Arc::default(),
            wake: Notify::new(),
            broken: Mutex::default(),
            fell: Notify::new(),
        }))
    }

    /// The hash of the origin, as in paths.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Runs something on the state machine, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// Those of the work. An error of the disk, or damage, ends the process.
    pub async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Witness) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.clone();
        let done = self.blocking(move || work(&mut shared.witness.lock().expect("no holder panics"))).await;
        done.inspect_err(|error| self.judge_error(error))
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
        let joined = tokio::task::spawn_blocking(work).await;
        joined.unwrap_or_else(|_| Err(Error::Damaged("the cosigner's state: a thread panicked".to_owned())))
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

    /// Lets the mirror grow up to a signed note, and waits for that at most so long. Returns
    /// whether the log has the note's size now.
    ///
    /// # Errors
    /// If the disk refuses.
    pub async fn catch_up(self: &Arc<Self>, note: Vec<u8>, most: Duration) -> Result<bool, Error> {
        let size = Checkpoint::claimed(&note).map_or(0, |checkpoint| checkpoint.size);
        let grown = async {
            let place = self.growing.clone().lock_owned().await;
            if self.with(move |witness| Ok(witness.size() >= size)).await? {
                return Ok(true);
            }
            let shared = self.clone();
            // The task goes on if the wait for it ends.
            let task = tokio::spawn(async move { shared.grow(&note, &shared.logs, place).await });
            Ok(task.await.is_ok_and(|grown| grown.is_ok()))
        };
        timeout(most, grown).await.unwrap_or(Ok(false))
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

    fn has_floor(&self) -> bool {
        self.witness.lock().expect("no holder panics").has_floor()
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
        let own = self.with(move |witness| {
            let judged = witness.judge(&seen)?;
            if judged == Judged::Fine {
                witness.keep_lines(&seen);
            }
            Ok((judged, witness.own(&seen)?))
        });
        let own = own.await?;
        if own.0 != Judged::Unsigned {
            let (shared, seen) = (self.clone(), note.clone());
            let look = move || shared.sightings.lock().unwrap_or_else(PoisonError::into_inner).look(&seen);
            self.blocking(look).await.inspect_err(|error| self.judge_error(error))?;
        }
        if own.1 != Own::Later {
            return Ok(true);
        }
        match self.with(move |witness| witness.adopt(&note)).await {
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
