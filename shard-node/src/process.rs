//! The process of a node: its settings, sockets and directory, from start to stop.
//!
//! A start claims the directory, listens, starts the replicas in it, and forms or joins the others
//! in the background ([`formation`]). A stop hands leaderships over and flushes. It ends within
//! `stop_timeout_ms`, and leaves the directory at worst as a crash would.

mod config;
mod connect;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use coppice_env::{Clock, DiskStorage, Rng, Shortage, Storage, SystemClock, SystemRng, TieredStorage};
use coppice_process::{
    Code, Failure, Stop,
    access::{AccessLog, Guard},
    health::{self, Health},
    ledger,
    net::{self, Services},
    nodes::Ways,
    tls::Acceptor,
};
use coppice_types::ErrorKind;

pub use config::{Bootstrap, Cold, Config, PROGRAM, Pim, SmallBatches, Tuning, stop_timeout_ms};

use crate::{
    Error, Handle, Node, Options,
    node::claim::Claim,
    node::formation::{self, Survey},
};

/// Serves until the process is told to stop.
///
/// # Errors
/// If the directory is another node's or damaged, the address can't be bound, or a certificate
/// can't be read.
pub async fn serve(config: Config, stop: Stop) -> Result<(), Failure> {
    let access = config.access.open(config.tls.is_some())?;
    let health_listen = config.health_listen;
    let (prepared, progress) = Prepared::new(config, access)?;
    // Health is served from the beginning, since opening the replicas may take long.
    let _health = match health_listen {
        None => None,
        Some(address) => Some(health::serve(net::listen(address).await?, stop.clone(), move || progress.health())),
    };
    let (running, _) = prepared.start().await?;
    stop.asked().await;
    running.stop().await
}

/// How far a node has come. Clones are of the same node.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    started: Arc<OnceLock<Handle>>,
}

impl Progress {
    /// The health of the node.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.started.get() {
            None => Health::Starting("the replicas are being opened".to_owned()),
            Some(node) => node.liveness().map_or_else(Health::Broken, |()| node.readiness().into()),
        }
    }
}

/// A node that has read its certificates, and has opened nothing else yet.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    guard: Guard,
    tls: Option<Acceptor>,
    ways: Ways,
    progress: Progress,
}

impl Prepared {
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a certificate can't be read, or is for another process.
    pub fn new(config: Config, (guard, log): (Guard, AccessLog)) -> Result<(Self, Progress), Failure> {
        let tls = config.tls.as_ref().map(|tls| tls.acceptor(log)).transpose()?;
        let ways = connect::ways(&config)?;
        let progress = Progress::default();
        Ok((Self { config, guard, tls, ways, progress: progress.clone() }, progress))
    }

    /// Opens the replicas and serves them. Returns the services for callers in this process, too.
    ///
    /// # Errors
    /// If the directory is another node's or damaged, or the address can't be bound.
    pub async fn start(self) -> Result<(Running, Services), Failure> {
        let Self { config, guard, tls, ways, progress } = self;
        let disk = Arc::new(DiskStorage::new(&config.data_dir));
        let storage: Arc<dyn Storage> = match &config.cold {
            None => disk,
            Some(cold) => Arc::new(TieredStorage::new(disk, Arc::new(DiskStorage::new(&cold.dir)))),
        };
        let owner = config.owner()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = config.metadata.as_ref().map(|store| store.open(&owner.cluster, Arc::clone(&clock))).transpose()?;
        let refused = |error: Error| failed(&config, &error);
        let claim = Claim::take(storage.as_ref(), &owner).map_err(refused)?;
        let Survey { replicas, pending } =
            formation::survey(storage.as_ref(), &owner, config.groups()?).map_err(refused)?;
        let listener = net::listen(config.listen).await?;
        let options = Options {
            node: config.node.clone(),
            cluster_id: owner.cluster,
            params: config.ledger.params()?,
            nodes: config.nodes.iter().map(|(name, node)| (node.ordinal, name.clone())).collect(),
            readers: ledger::readers(&config.nodes),
            storage,
            connector: Arc::new(ways.clone()),
            clock,
            seed: SystemRng.next_u64(),
            replicas,
            tuning: config.tuning(),
            pim: config.pim.as_ref().map(Pim::options),
        };
        let started = Node::start_guarded(options, net::incoming(listener, tls), Some(guard)).await;
        let (node, services) = started.map_err(refused)?;
        node.form(&config.formation()?, &pending);
        // The cell is set only here.
        let _ = progress.started.set(node.clone());
        let registered = store.map(|store| connect::Registered::keep(&config, store, ways));
        tracing::info!(node = config.node, listen = %config.listen, cluster = %owner.cluster, "serving");
        let stop_timeout = Duration::from_millis(config.stop_timeout_ms);
        Ok((Running { node, registered, claim, stop_timeout }, services))
    }
}

/// A node that serves. If this is dropped, the node ends as if its process had died.
#[derive(Debug)]
pub struct Running {
    node: Handle,
    registered: Option<connect::Registered>,
    claim: Claim,
    stop_timeout: Duration,
}

impl Running {
    /// Stops the node in order, within a limited time.
    ///
    /// # Errors
    /// If it does not end in time.
    pub async fn stop(self) -> Result<(), Failure> {
        let Self { node, registered, claim, stop_timeout } = self;
        let stopped = tokio::time::timeout(stop_timeout, node.stop()).await;
        drop((registered, claim));
        if stopped.is_ok() {
            tracing::info!("stopped in order");
            return Ok(());
        }
        let message = format!("not stopped in order within {} ms", stop_timeout.as_millis());
        Err(Failure::new(Code::Unavailable, message)
            .hint("Nothing acknowledged is lost: the next start goes on as after a crash."))
    }
}

/// The failure for an error of the start, with a hint about what to do.
fn failed(config: &Config, error: &Error) -> Failure {
    let message = format!("{}: {}", config.data_dir.display(), error.chain());
    let (code, hint) = match error {
        Error::InUse => {
            (Code::Refused, "Another process uses the directory: stop it, or give this one a data_dir of its own.")
        }
        Error::Identity(_) => (
            Code::Refused,
            "Give this process its own data_dir (and [cold] dir), or correct cluster_id, node and [ledger]. To replace the node, start with an empty directory.",
        ),
        Error::Engine(coppice_engine::Error::ColdMissing { .. }) => (
            Code::Refused,
            "Mount the disk that had the cold directory, and name it in [cold] dir. If it is lost, replace the node: start with both directories empty.",
        ),
        _ if error.kind() == ErrorKind::Corrupted => (
            Code::Unavailable,
            "Move the damaged group's directory away: with bootstrap = \"existing\" the replica comes back from the others.",
        ),
        _ if error.shortage() == Some(Shortage::Space) => (Code::Unavailable, "The disk is full: make room."),
        _ if error.shortage() == Some(Shortage::Handles) => {
            (Code::Unavailable, "File descriptors or memory ran out: raise the limits of the process (`ulimit -n`).")
        }
        _ => (Code::Unavailable, "docs/operations.md lists failures and what to do."),
    };
    Failure::new(code, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::process::config::tests::config;

    #[test]
    fn a_start_that_fails_says_what_to_do_about_it() {
        let storage = |kind: io::ErrorKind| Error::Storage { what: "write", source: kind.into() };
        let damaged = Error::Damaged { file: "floor", what: "a bit is flipped".to_owned() };
        let cases = [
            (Error::InUse, Code::Refused, "Another process"),
            (Error::Identity("it is node-1's".to_owned()), Code::Refused, "its own data_dir"),
            (damaged, Code::Unavailable, "Move the damaged group's directory away"),
            (storage(io::ErrorKind::StorageFull), Code::Unavailable, "make room"),
            (storage(io::ErrorKind::OutOfMemory), Code::Unavailable, "ulimit -n"),
            (storage(io::ErrorKind::PermissionDenied), Code::Unavailable, "docs/operations.md"),
        ];
        for (error, code, advice) in cases {
            let Failure { code: found, message, hint } = failed(&config(), &error);
            assert_eq!(found, code, "{error}");
            assert!(message.contains("/data/coppice") && message.contains(&error.chain()), "{message}");
            assert!(hint.is_some_and(|hint| hint.contains(advice)), "{error}");
        }
    }
}
