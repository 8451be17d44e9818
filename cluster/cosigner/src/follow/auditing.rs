//! The auditor's tasks: replays what the witness has mirrored, as soon as it is there.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coppice_client::Client;
use coppice_types::Backoff;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{sleep, timeout},
};

use super::{POLL, Shared, Which};
use crate::{
    audit::{Auditor, Counts, Verified},
    config::Config,
    error::Error,
    report::{Audited, Report},
    witness::{EVIDENCE_ENDING, Witness},
};

/// The pauses after failures in a row.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// The auditor of a member.
#[derive(Debug)]
pub struct Auditing {
    /// Its state machine. Its log is what was replayed.
    machine: Arc<Mutex<Witness>>,
    auditor: Arc<Mutex<Auditor>>,
    client: Client,
    counts: Mutex<Counts>,
    waits_for: Mutex<Option<String>>,
    /// Size of the audited log.
    audited: watch::Sender<u64>,
    /// Names of the witness's evidence files that the auditor has judged.
    shared: Mutex<BTreeSet<String>>,
}

fn locked<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Auditing {
    /// An auditor with these settings. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the settings name no API.
    pub fn new(machine: Witness, auditor: Auditor, config: &Config) -> Result<Self, Error> {
        let api = config.api.as_ref().ok_or_else(|| Error::Refused("the auditor needs `[api]`".to_owned()))?;
        let client = Client::new(api.options()?).map_err(|error| Error::Refused(format!("api: {error}")))?;
        Ok(Self {
            audited: watch::Sender::new(machine.size()),
            machine: Arc::new(Mutex::new(machine)),
            counts: Mutex::new(auditor.counts()),
            auditor: Arc::new(Mutex::new(auditor)),
            client,
            waits_for: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    pub(super) fn machine(&self) -> &Mutex<Witness> {
        &self.machine
    }
}

impl Shared {
    /// Whether this member has an auditor.
    #[must_use]
    pub fn audits(&self) -> bool {
        self.auditing.is_some()
    }

    /// The state of all cosigners.
    ///
    /// # Errors
    /// If the disk refuses.
    pub async fn report(self: &Arc<Self>) -> Result<Report, Error> {
        let witness = self.with(|witness| witness.status()).await?;
        let mut report = Report { witness, auditor: None };
        if let Some(auditing) = &self.auditing {
            let status = self.with_one(Which::Auditor, |machine| machine.status()).await?;
            let Counts { version, vanished, .. } = *locked(&auditing.counts);
            let waits_for = locked(&auditing.waits_for).clone();
            report.auditor = Some(Audited { status, version, vanished_versions: vanished, waits_for });
        }
        Ok(report)
    }

    /// The names of all evidence files.
    ///
    /// # Errors
    /// If the disk refuses.
    pub async fn evidence(self: &Arc<Self>) -> Result<BTreeSet<String>, Error> {
        let mut names = BTreeSet::new();
        for which in self.machines() {
            names.extend(self.with_one(which, |machine| machine.evidence()).await?);
        }
        Ok(names)
    }

    /// An evidence file; `None` if there is none of this name.
    ///
    /// # Errors
    /// If the disk refuses.
    pub async fn evidence_file(self: &Arc<Self>, name: String) -> Result<Option<Vec<u8>>, Error> {
        for which in self.machines() {
            let name = name.clone();
            if let Some(file) = self.with_one(which, move |machine| machine.evidence_file(&name)).await? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Shows the auditor the evidence that the witness has.
    ///
    /// # Errors
    /// If the disk refuses.
    pub(super) async fn share_evidence(self: &Arc<Self>) -> Result<(), Error> {
        let Some(auditing) = &self.auditing else { return Ok(()) };
        let mut names = self.with(|witness| witness.evidence()).await?;
        names.retain(|name| name.ends_with(EVIDENCE_ENDING) && !locked(&auditing.shared).contains(name));
        for name in names {
            let wanted = name.clone();
            let Some(file) = self.with(move |witness| witness.evidence_file(&wanted)).await? else { continue };
            match self.with_one(Which::Auditor, move |machine| machine.take_evidence(&file)).await {
                // A person may have put another file there.
                Ok(()) | Err(Error::Refused(_)) => {
                    locked(&auditing.shared).insert(name);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the log is audited up to a size.
    pub(super) async fn audited(&self, size: u64) {
        if let Some(auditing) = &self.auditing {
            // The sender lives as long as this.
            let _ = auditing.audited.subscribe().wait_for(|audited| *audited >= size).await;
        }
    }

    /// Audits the log as it grows. Never returns.
    pub async fn audit(self: Arc<Self>) {
        let Some(auditing) = &self.auditing else { return std::future::pending().await };
        let mut backoff = PAUSES;
        loop {
            match self.audit_once(auditing).await {
                Ok(true) => backoff.reset(),
                Ok(false) => {
                    let _ = timeout(POLL, self.grown.notified()).await;
                }
                Err(error) => {
                    self.judge_error(&error);
                    tracing::warn!(%error, "the log was not audited");
                    *locked(&auditing.waits_for) = Some(error.to_string());
                    sleep(backoff.next_pause()).await;
                }
            }
        }
    }

    /// Audits what was mirrored. Returns false if there is nothing to do.
    async fn audit_once(self: &Arc<Self>, auditing: &Auditing) -> Result<bool, Error> {
        self.share_evidence().await?;
        let Some(log) = self.with(|it| Ok(Verified::of(it))).await? else { return Ok(false) };
        let to = log.size;
        if to <= *auditing.audited.borrow() {
            return Ok(false);
        }
        let (machine, auditor) = (auditing.machine.clone(), auditing.auditor.clone());
        let (client, handle) = (auditing.client.clone(), Handle::current());
        let mut closing = self.closing.subscribe();
        // The replay computes for long, and reads from the disk.
        let work = move || {
            let mut auditor = auditor.lock().unwrap_or_else(PoisonError::into_inner);
            let done = handle.block_on(async {
                tokio::select! {
                    done = auditor.audit(&machine, &client, &log) => done,
                    _ = closing.wait_for(|closing| *closing) => Err(Error::Refused("stopped".to_owned())),
                }
            });
            Ok((done, auditor.counts()))
        };
        let (done, counts) = self.blocking(work).await?;
        *locked(&auditing.counts) = counts;
        if !done? {
            return Ok(false);
        }
        *locked(&auditing.waits_for) = None;
        auditing.audited.send_replace(to);
        Ok(true)
    }
}
