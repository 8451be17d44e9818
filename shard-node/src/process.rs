//! The process of a node: its settings, sockets and directory, from start to stop.
//!
//! A start claims the directory, listens, starts the replicas in it, and forms or joins the others
//! in the background ([`formation`]). A stop hands leaderships over and flushes. It ends within
//! `stop_timeout_ms`, and leaves the directory at worst as a crash would.

mod config;
mod connect;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use coppice_env::{Clock, DiskStorage, Rng, Shortage, Storage, SystemClock, SystemRng, TieredStorage};
use coppice_process::{
    Code, Failure, Stop,
    health::{self, Health},
    net,
};
use coppice_types::ErrorKind;

pub use config::{Bootstrap, Config, PROGRAM};

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
    let (guard, log) = config.access.open(config.tls.is_some())?;
    let tls = config.tls.as_ref().map(|tls| tls.acceptor(log)).transpose()?;
    let ways = connect::ways(&config)?;
    // Health is served from the beginning, since opening the replicas may take long.
    let started: Arc<OnceLock<Handle>> = Arc::default();
    let _health = match config.health_listen {
        None => None,
        Some(address) => {
            let (listener, started) = (net::listen(address).await?, Arc::clone(&started));
            Some(health::serve(listener, stop.clone(), move || match started.get() {
                None => Health::Starting("the replicas are being opened".to_owned()),
                Some(node) => node.liveness().map_or_else(Health::Broken, |()| node.readiness().into()),
            }))
        }
    };
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
    let nodes: BTreeMap<u32, String> = config.nodes.iter().map(|(name, node)| (node.ordinal, name.clone())).collect();
    let options = Options {
        node: config.node.clone(),
        cluster_id: owner.cluster,
        params: config.ledger.params()?,
        nodes,
        storage,
        connector: Arc::new(ways.clone()),
        clock,
        seed: SystemRng.next_u64(),
        replicas,
        tuning: config.tuning(),
    };
    let node = Node::start_guarded(options, net::incoming(listener, tls), Some(guard)).await.map_err(refused)?;
    node.form(&config.formation()?, &pending);
    // The cell is set only here.
    let _ = started.set(node.clone());
    let registered = store.map(|store| connect::Registered::keep(&config, store, ways));
    tracing::info!(node = config.node, listen = %config.listen, cluster = %owner.cluster, "serving");
    stop.asked().await;
    let limit = Duration::from_millis(config.stop_timeout_ms);
    let stopped = tokio::time::timeout(limit, node.stop()).await;
    drop((registered, claim));
    match stopped {
        Ok(()) => {
            tracing::info!("stopped in order");
            Ok(())
        }
        Err(_) => {
            let message = format!("not stopped in order within {} ms", config.stop_timeout_ms);
            Err(Failure::new(Code::Unavailable, message)
                .hint("Nothing acknowledged is lost: the next start goes on as after a crash."))
        }
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
