//! The process: opens the folder, follows, serves, until it is told to stop.

use std::{future::Future, path::Path, sync::Arc};

use coppice_env::{Clock, DiskStorage, Storage, SystemClock};
use coppice_process::{
    access::AccessLog,
    net,
    tls::{Acceptor, Believed, Protocol, ServerTls},
};

use crate::{
    audit::{Auditor, progress::Progress},
    config::{AUDIT, AUDITOR_KEY, Config, KEY, Tls, read_key},
    error::{Error, disk},
    follow::{Auditing, Shared, Streams},
    mirror::Mirror,
    record::Record,
    report::{Audited, Report},
    server,
    witness::{self, LOG, Means, Status, Witness},
};

/// How often a state is looked at before it is called damaged.
const LOOKS_MAX: usize = 50;

/// The state machines of a folder.
#[derive(Debug)]
pub struct Cosigners {
    /// The witness.
    pub witness: Witness,
    /// The auditor's, whose log grows by replay alone.
    pub auditor: Option<Witness>,
}

impl Cosigners {
    /// Both state machines, the witness first.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Witness> {
        std::iter::once(&mut self.witness).chain(&mut self.auditor)
    }
}

/// Opens the cosigners of a folder.
///
/// # Errors
/// If the folder is in use, its settings are wrong, or its state is damaged.
pub fn open(dir: &Path) -> Result<(Cosigners, Config), Error> {
    let config = Config::read(dir)?;
    let witness = Witness::open(means(dir, &config)?)?;
    let auditor = auditor_means(dir, &config)?.map(Witness::open).transpose()?;
    Ok((Cosigners { witness, auditor }, config))
}

/// The status of a cosigner, which may run meanwhile.
///
/// # Errors
/// If its settings are wrong, or its state is damaged.
pub fn status(dir: &Path) -> Result<Report, Error> {
    let config = Config::read(dir)?;
    // The auditor is looked at first: its log is never larger than the witness's.
    let auditor = match auditor_means(dir, &config)? {
        None => None,
        Some(_) => {
            let status = look(|| auditor_means(dir, &config)?.ok_or_else(|| Error::Refused("no auditor".to_owned())))?;
            let Progress { at, vanished, .. } = Progress::read(&*audit_folder(dir)?)?;
            let version = at.map_or(0, |place| place.version.0);
            Some(Audited { status, version, vanished_versions: vanished, waits_for: None })
        }
    };
    Ok(Report { witness: look(|| means(dir, &config))?, auditor })
}

fn look(means: impl Fn() -> Result<Means, Error>) -> Result<Status, Error> {
    let mut last = None;
    for _ in 0..LOOKS_MAX {
        // A look between two writes of a running cosigner may find them half done.
        match Witness::look(means()?) {
            Ok(witness) => return witness.status(),
            Err(error) => last = Some(error),
        }
        std::thread::yield_now();
    }
    Err(last.unwrap_or_else(|| Error::Refused("not looked".to_owned())))
}

/// Writes new states from what is left of damaged ones. A mirror that does not lead to its signed
/// root is dropped. Returns the witness's.
///
/// # Errors
/// Those of [`witness::recover`].
pub fn recover(dir: &Path) -> Result<Record, Error> {
    let config = Config::read(dir)?;
    let (storage, ledger) = (DiskStorage::new(dir), config.ledger()?);
    let mirror = mirror(dir)?;
    let recovered = |storage: &dyn Storage, name| {
        let key = read_key(dir, name)?.verifier().public_key();
        witness::recover(storage, &mirror, ledger.name(), key)
    };
    let record = recovered(&storage, KEY)?;
    if record.tip.is_none() {
        storage.remove_dir_all(LOG).map_err(disk(LOG))?;
    }
    if config.audit {
        recovered(&*audit_folder(dir)?, AUDITOR_KEY)?;
    }
    Ok(record)
}

fn mirror(dir: &Path) -> Result<Mirror, Error> {
    Ok(Mirror::new(DiskStorage::new(dir).subdir(LOG).map_err(disk(LOG))?))
}

fn audit_folder(dir: &Path) -> Result<Arc<dyn Storage>, Error> {
    DiskStorage::new(dir).subdir(AUDIT).map_err(disk(AUDIT))
}

fn means(dir: &Path, config: &Config) -> Result<Means, Error> {
    Ok(Means {
        storage: Arc::new(DiskStorage::new(dir)),
        mirror: mirror(dir)?,
        clock: Arc::new(SystemClock::new()),
        signer: read_key(dir, KEY)?,
        ledger: config.ledger()?,
        key_changes: config.key_changes,
        floor_peers: config.floor(),
    })
}

fn auditor_means(dir: &Path, config: &Config) -> Result<Option<Means>, Error> {
    if !config.audit {
        return Ok(None);
    }
    let (storage, signer) = (audit_folder(dir)?, read_key(dir, AUDITOR_KEY)?);
    Ok(Some(Means { storage, signer, ..means(dir, config)? }))
}

/// TLS for whoever connects. Files that change are read again.
fn acceptor(tls: &Tls) -> Result<Acceptor, Error> {
    let shown = ServerTls { cert: tls.cert.clone(), key: tls.key.clone(), client_ca: None };
    let acceptor = shown.acceptor(Protocol::Http, Believed::default(), AccessLog::to_log());
    acceptor.map_err(|failure| Error::Refused(failure.message))
}

/// Runs the cosigner of a folder until `stop` ends. Tells `ready` the URL once it serves.
///
/// # Errors
/// Those of [`open`], and if the address is taken, the certificate is unusable, or the disk fails.
pub async fn run(dir: &Path, stop: impl Future<Output = ()>, ready: impl FnOnce(&str, &Status)) -> Result<(), Error> {
    let (Cosigners { witness, auditor }, config) = open(dir)?;
    let status = witness.status()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(dir));
    let listener = net::listen(config.listen).await.map_err(|failure| Error::Refused(failure.message))?;
    let address = listener.local_addr()?;
    let tls = config.tls.as_ref().map(acceptor).transpose()?;
    let auditing = match auditor {
        Some(mut machine) => {
            let auditor = Auditor::open(audit_folder(dir)?, mirror(dir)?, &mut machine)?;
            Some(Auditing::new(machine, auditor, &config)?)
        }
        None => None,
    };
    let shared = Shared::new(witness, auditing, &config, storage, clock.clone())?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    ready(&format!("{scheme}://{address}"), &status);
    let routes = server::routes(shared.clone(), clock);
    let ended = tokio::select! {
        () = stop => Ok(()),
        error = shared.broken() => Err(error),
        () = server::serve(listener, tls, routes) => Err(Error::Unavailable("the listener was lost".to_owned())),
        () = shared.clone().run() => Err(Error::Unavailable("the log is no longer followed".to_owned())),
        () = shared.clone().stream(Streams::of(&config)) => Err(Error::Unavailable("no stream is kept open".to_owned())),
        () = shared.clone().audit() => Err(Error::Unavailable("the log is no longer audited".to_owned())),
    };
    // Connections and the work of other threads may outlive this. The folder is free nevertheless.
    shared.close().await;
    ended
}
