//! The process of a coordinator: its settings, sockets and key, from start to stop.
//!
//! The process keeps nothing on disk except the embedded metadata store, if it has one. So a crash
//! at any point costs only time. The process waits for the nodes and the metadata store however
//! long they take.

mod config;

use std::{path::Path, sync::Arc, time::Duration};

use coppice_env::{Clock, SystemClock, SystemRng};
use coppice_process::{
    Code, Failure, Stop,
    access::Role,
    config::read_secret,
    health,
    net::{self, Dialer},
    nodes::Ways,
    tls::{Expected, Protocol},
};
use coppice_proto::Channel;
use coppice_types::chain;
use coppice_verify::note::SignerKey;

use tokio::task::JoinHandle;
use zeroize::Zeroizing;

pub use config::{Config, PROGRAM};

use crate::{
    Handle, Service,
    error::Error,
    metrics,
    options::{Genesis, Options, cluster_of},
};

/// How often a coordinator that waits logs the reason.
const WAITING_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
///
/// # Errors
/// If the key or a certificate can't be read, or an address is not available.
pub async fn serve(config: Config, stop: Stop) -> Result<(), Failure> {
    let named = config.clone();
    metrics::show_key(move || signing_keys(&named).is_ok());
    let (signing_key, next_signing_key) = signing_keys(&config)?;
    let (_, cluster) = cluster_of(signing_key.name())
        .ok_or_else(|| Failure::usage("the key's name is not <prefix>/<cluster id>").hint(KEY_HINT))?;
    config.check_cluster(&cluster)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (guard, log) = config.access.open(config.tls.is_some())?;
    let tls = config.acceptor(Protocol::Grpc, &log)?;
    let listener = net::listen(config.listen).await?;
    let address = listener.local_addr().map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
    let own = config.access.expects(Role::Coordinator, &config.name);
    let dialer = Dialer::new(&config.name, config.tls.as_ref().map(|tls| tls.client(own)).transpose()?);
    let ways = Ways::new(dialer.clone(), &config.nodes)?;
    let to_nodes = ways.clone();
    let options = Options {
        name: config.name.clone(),
        nodes: config.nodes.keys().cloned().collect(),
        connect: Arc::new(move |node| Channel::from(to_nodes.channel(node))),
        metadata: config.metadata.open(&cluster, Arc::clone(&clock))?,
        signing_key,
        next_signing_key,
        genesis: Genesis { params: config.ledger.params()?, shard_map: config.ledger.shard_map()? },
        limits: config.limits(),
        clock,
        rng: Box::new(SystemRng),
    };
    let (mut service, handle) = Service::new(options).map_err(|error| failed(&error))?;
    service.guard(guard);
    if let Some(tls) = &config.tls {
        service.name(tls.identity()?.name());
    }
    // An address from the registry counts only if the coordinator of that name answers there.
    let dial = Arc::new(move |name: &str, address: &str| {
        let expected = Expected::Process(Role::Coordinator, name.to_owned());
        dialer.channel(address, expected).map(Channel::from).ok()
    });
    service.join_others(config.advertise.clone().unwrap_or_else(|| address.to_string()), dial);
    if !config.witnesses.is_empty() {
        let (witnesses, quorum) = config.witnesses()?;
        service.ask_witnesses(witnesses, quorum).map_err(|error| failed(&error))?;
    }
    if let Some(http) = config.http_listen {
        let tls = config.acceptor(Protocol::Http, &log)?;
        let listener = net::listen(http).await?;
        let address = listener.local_addr().map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
        service.serve_log(listener, tls);
        tracing::info!(%address, "serving the root log over HTTP");
    }
    let _health = match config.health_listen {
        None => None,
        Some(address) => {
            let (listener, handle) = (net::listen(address).await?, handle.clone());
            Some(health::serve(listener, stop.clone(), move || handle.readiness().into()))
        }
    };
    tracing::info!(name = config.name, %address, %cluster, "serving");
    let telling = [tokio::spawn(learn_places(handle.clone(), ways)), tokio::spawn(tell_leadership(handle))];
    let served = service.run(net::incoming(listener, tls), stop.asked()).await;
    telling.iter().for_each(JoinHandle::abort);
    served.map_err(|error| failed(&error))?;
    tracing::info!("stopped in order");
    Ok(())
}

const KEY_HINT: &str = "`coppice keygen` makes a key whose name is right.";

fn signing_keys(config: &Config) -> Result<(SignerKey, Option<SignerKey>), Failure> {
    let next = config.next_signing_key_file.as_deref().map(read_key).transpose()?;
    Ok((read_key(&config.signing_key_file)?, next))
}

fn read_key(path: &Path) -> Result<SignerKey, Failure> {
    let text = read_secret(path).map(Zeroizing::new).map_err(|failure| failure.hint(KEY_HINT))?;
    let key = SignerKey::parse(text.trim_end_matches('\n'));
    key.map_err(|error| Failure::usage(format!("{}: {error}", path.display())).hint(KEY_HINT))
}

/// Keeps the addresses of the nodes up to date.
async fn learn_places(handle: Handle, ways: Ways) {
    let mut registry = handle.registry();
    loop {
        ways.learn(&registry.borrow_and_update().clone());
        if registry.changed().await.is_err() {
            return;
        }
    }
}

/// Logs which coordinator leads, or what this one waits for.
async fn tell_leadership(handle: Handle) {
    let mut told = None;
    loop {
        let now = handle.leadership();
        if told.as_ref() != Some(&now) {
            match (&now.term, now.leader.as_str()) {
                (Some(term), _) => tracing::info!(term = term.0, "this coordinator leads"),
                (None, "") => {
                    tracing::info!("waiting for a leader: for the metadata store, and a majority of the root group")
                }
                (None, leader) => tracing::info!(leader, "another coordinator leads"),
            }
            told = Some(now);
        }
        let _ = tokio::time::timeout(WAITING_INTERVAL, handle.leadership_changed()).await;
    }
}

fn failed(error: &Error) -> Failure {
    let code = match error {
        Error::Transport(_) => Code::Unavailable,
        Error::Options(_) | Error::Params(_) => Code::Usage,
    };
    Failure::new(code, chain(error))
}
