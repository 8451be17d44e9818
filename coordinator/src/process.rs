//! The process of a coordinator: its settings, sockets and key, from start to stop.
//!
//! The process keeps nothing on disk except the embedded metadata store, if it has one. So a crash
//! at any point costs only time. The process waits for the nodes and the metadata store however
//! long they take.

mod config;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use coppice_env::{Clock, SystemClock, SystemRng};
use coppice_process::{
    Code, Failure, Stop,
    access::{AccessLog, Guard, Identity, Peer, Role},
    config::read_secret,
    health::{self, Health},
    net::{self, Dialer, Services},
    nodes::Ways,
    tls::{Acceptor, Expected, Protocol, Tls},
};
use coppice_proto::Channel;
use coppice_types::{ClusterId, chain};
use coppice_verify::note::SignerKey;

use tokio::{net::TcpListener, task::JoinHandle};
use zeroize::Zeroizing;

pub use config::{Anchor, Config, Limits, PROGRAM, Retention, Tsa, Witness, witnesses_by_policy};

use crate::{
    Handle, Service,
    error::Error,
    metrics,
    options::{Connect, Genesis, Options, cluster_of},
};

/// How often a coordinator that waits logs the reason.
const WAITING_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
///
/// # Errors
/// If the key or a certificate can't be read, or an address is not available.
pub async fn serve(config: Config, stop: Stop) -> Result<(), Failure> {
    let access = config.access.open(config.tls.is_some())?;
    let health_listen = config.health_listen;
    let (prepared, progress) = Prepared::new(config, access).await?;
    let running = prepared.start(None)?;
    let _health = match health_listen {
        None => None,
        Some(address) => Some(health::serve(net::listen(address).await?, stop.clone(), move || progress.health())),
    };
    running.serve(stop.asked()).await
}

/// How far a coordinator has come. Clones are of the same one.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    started: Arc<OnceLock<Handle>>,
}

impl Progress {
    /// The health of the coordinator.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.started.get() {
            None => Health::Starting("the coordinator is being started".to_owned()),
            Some(handle) => handle.readiness().into(),
        }
    }
}

/// A node in the same process, which the coordinator calls without a connection.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The node's name.
    pub node: String,
    pub services: Services,
}

/// A coordinator that has read its keys and bound its addresses, and calls nobody yet.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    cluster: ClusterId,
    signing_keys: (SignerKey, Option<SignerKey>),
    guard: Guard,
    api: Bound,
    http: Option<Bound>,
    identity: Option<Identity>,
    dialer: Dialer,
    ways: Ways,
    progress: Progress,
}

/// A bound address, with TLS for its connections if the process uses it.
#[derive(Debug)]
struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
}

impl Bound {
    async fn new(address: SocketAddr, tls: Option<Acceptor>) -> Result<Self, Failure> {
        let listener = net::listen(address).await?;
        let address = listener.local_addr().map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
        Ok(Self { listener, address, tls })
    }
}

impl Prepared {
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the key or a certificate can't be read or is for another process, or an address is not
    /// available.
    pub async fn new(config: Config, (guard, log): (Guard, AccessLog)) -> Result<(Self, Progress), Failure> {
        let named = config.clone();
        metrics::show_key(move || signing_keys(&named).is_ok());
        let signing_keys = signing_keys(&config)?;
        let (_, cluster) = cluster_of(signing_keys.0.name())
            .ok_or_else(|| Failure::usage("the key's name is not <prefix>/<cluster id>").hint(KEY_HINT))?;
        config.check_cluster(&cluster)?;
        let api = Bound::new(config.listen, config.acceptor(Protocol::Api, &log)?).await?;
        let own = config.access.expects(Role::Coordinator, &config.name);
        let dialer = Dialer::new(&config.name, config.tls.as_ref().map(|tls| tls.client(own)).transpose()?);
        let ways = Ways::new(dialer.clone(), &config.nodes)?;
        let identity = config.tls.as_ref().map(Tls::identity).transpose()?;
        let http = match config.http_listen {
            None => None,
            Some(address) => Some(Bound::new(address, config.acceptor(Protocol::Http, &log)?).await?),
        };
        let progress = Progress::default();
        let shown = progress.clone();
        let prepared = Self { config, cluster, signing_keys, guard, api, http, identity, dialer, ways, progress };
        Ok((prepared, shown))
    }

    /// Starts all that runs in the background. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the embedded metadata store is in use, or the settings can't found a ledger.
    pub fn start(self, beside: Option<Beside>) -> Result<Running, Failure> {
        let connect = self.connect(beside);
        let Self { config, cluster, signing_keys: (signing_key, next_signing_key), .. } = self;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let options = Options {
            name: config.name.clone(),
            nodes: config.nodes.keys().cloned().collect(),
            routing: config.routing(),
            connect,
            metadata: config.metadata.open(&cluster, Arc::clone(&clock))?,
            signing_key,
            next_signing_key,
            genesis: Genesis { params: config.ledger.params()?, shard_map: config.ledger.shard_map()? },
            limits: config.limits(),
            clock,
            rng: Box::new(SystemRng),
        };
        let (mut service, handle) = Service::new(options).map_err(|error| failed(&error))?;
        service.guard(self.guard);
        if let Some(identity) = &self.identity {
            service.name(identity.name());
        }
        // An address from the registry counts only if the coordinator of that name answers there.
        let dial = Arc::new(move |name: &str, address: &str| {
            let expected = Expected::Process(Role::Coordinator, name.to_owned());
            self.dialer.channel(address, expected).map(Channel::from).ok()
        });
        service.join_others(config.advertise.clone().unwrap_or_else(|| self.api.address.to_string()), dial);
        if config.asks_witnesses() {
            let (witnesses, quorum) = config.witnesses()?;
            service.ask_witnesses(witnesses, quorum).map_err(|error| failed(&error))?;
        }
        if let Some(anchoring) = config.anchoring()? {
            service.anchor(anchoring).map_err(|error| failed(&error))?;
        }
        if let Some(Bound { listener, address, tls }) = self.http {
            service.serve_log(listener, tls);
            tracing::info!(%address, "serving the root log over HTTP");
        }
        // The cell is set only here.
        let _ = self.progress.started.set(handle.clone());
        tracing::info!(name = config.name, address = %self.api.address, %cluster, "serving");
        let http_api = config.http_api.unwrap_or(true);
        Ok(Running { service, handle, api: self.api, http_api, ways: self.ways })
    }

    /// The channels to nodes: over the network, except to the node in the same process. That node
    /// judges this coordinator by the same certificate as nodes elsewhere.
    fn connect(&self, beside: Option<Beside>) -> Connect {
        let caller = Peer { identity: self.identity.clone().map(Arc::new), ..Peer::default() };
        let ways = self.ways.clone();
        Arc::new(move |node| match &beside {
            Some(beside) if beside.node == node => beside.services.channel(caller.clone()),
            _ => Channel::from(ways.channel(node)),
        })
    }
}

/// A coordinator whose background tasks run. If this is dropped, it ends as if its process had
/// died.
#[derive(Debug)]
pub struct Running {
    service: Service,
    handle: Handle,
    api: Bound,
    /// Whether the API is served over HTTP, too.
    http_api: bool,
    ways: Ways,
}

impl Running {
    /// Serves clients until `stop` ends. Then it gives its leadership up, and answers open calls.
    ///
    /// # Errors
    /// If the listener is lost.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), Failure> {
        let Self { mut service, handle, api, http_api, ways } = self;
        let telling = [tokio::spawn(learn_places(handle.clone(), ways)), tokio::spawn(tell_leadership(handle))];
        let connections = if http_api {
            let connections = net::incoming_both(api.listener, api.tls);
            service.serve_http1(connections.http1);
            connections.grpc
        } else {
            net::incoming(api.listener, api.tls)
        };
        let served = service.run(connections, stop).await;
        telling.iter().for_each(JoinHandle::abort);
        served.map_err(|error| failed(&error))?;
        tracing::info!("stopped in order");
        Ok(())
    }
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
