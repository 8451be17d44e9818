//! The process: opens the folder, follows, serves, until it is told to stop.

use std::{future::Future, net::SocketAddr, path::Path, sync::Arc};

use coppice_env::{Clock, DiskStorage, Storage, SystemClock};
use coppice_process::net;

use crate::{
    config::{Config, read_key},
    error::Error,
    follow::Shared,
    record::Record,
    server,
    witness::{self, Means, Status, Witness},
};

/// How often a state is looked at before it is called damaged.
const LOOKS_MAX: usize = 50;

/// Opens the cosigner of a folder.
///
/// # Errors
/// If the folder is in use, its settings are wrong, or its state is damaged.
pub fn open(dir: &Path) -> Result<(Witness, Config), Error> {
    let config = Config::read(dir)?;
    Ok((Witness::open(means(dir, &config)?)?, config))
}

/// The status of a cosigner, which may run meanwhile.
///
/// # Errors
/// If its settings are wrong, or its state is damaged.
pub fn status(dir: &Path) -> Result<Status, Error> {
    let config = Config::read(dir)?;
    let mut last = None;
    for _ in 0..LOOKS_MAX {
        // A look between two writes of a running cosigner may find them half done.
        match Witness::look(means(dir, &config)?) {
            Ok(witness) => return witness.status(),
            Err(error) => last = Some(error),
        }
        std::thread::yield_now();
    }
    Err(last.unwrap_or_else(|| Error::Refused("not looked".to_owned())))
}

/// Writes a new state from what is left of a damaged one.
///
/// # Errors
/// Those of [`witness::recover`].
pub fn recover(dir: &Path) -> Result<Record, Error> {
    let (config, key) = (Config::read(dir)?, read_key(dir)?);
    witness::recover(&DiskStorage::new(dir), config.ledger()?.name(), key.verifier().public_key())
}

fn means(dir: &Path, config: &Config) -> Result<Means, Error> {
    Ok(Means {
        storage: Arc::new(DiskStorage::new(dir)),
        clock: Arc::new(SystemClock::new()),
        signer: read_key(dir)?,
        ledger: config.ledger()?,
        key_changes: config.key_changes,
        floor_peers: config.floor(),
    })
}

/// Runs the cosigner of a folder until `stop` ends. Tells `ready` the address once it serves.
///
/// # Errors
/// Those of [`open`], and if the address is taken or the disk fails.
pub async fn run(
    dir: &Path,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr, &Status),
) -> Result<(), Error> {
    let (witness, config) = open(dir)?;
    let status = witness.status()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(dir));
    let listener = net::listen(config.listen).await.map_err(|failure| Error::Refused(failure.message))?;
    let address = listener.local_addr()?;
    let shared = Shared::new(witness, &config, storage, clock.clone())?;
    ready(address, &status);
    let routes = server::routes(shared.clone(), clock);
    tokio::select! {
        () = stop => Ok(()),
        error = shared.broken() => Err(error),
        () = server::serve(listener, routes) => Err(Error::Unavailable("the listener was lost".to_owned())),
        () = shared.clone().run() => Err(Error::Unavailable("the log is no longer followed".to_owned())),
    }
}
