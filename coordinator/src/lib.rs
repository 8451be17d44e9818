//! Routes keys, forms versions, runs the commit protocol, signs checkpoints.
//!
//! A coordinator keeps no state of its own but caches: it may be stopped at any point and started again anywhere. Any
//! coordinator answers reads; the one that leads takes writes. [`plan`] decides, synchronously and without I/O; the rest
//! carries out what it decided, over the connections that the caller gives.
//!
//! Invariants: a checkpoint is signed only over a prefix of the root log that is committed; an answer leaves only when
//! what it says is decided; a read names the exact state that it wants.

mod error;
mod exec;
mod forward;
mod health;
mod http;
mod journals;
mod lead;
mod metrics;
mod options;
mod pages;
pub mod plan;
pub mod process;
mod proofs;
mod publish;
mod quotas;
mod reads;
mod room;
mod scans;
mod service;
mod stream;
mod survey;
mod witness;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coppice_env::watch;
use coppice_metadata::{Kind, Member, Metadata, Presence, Snapshot};
use coppice_process::{access::Guard, tls::Acceptor};
use coppice_proto::v1::ledger_server::LedgerServer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_stream::Stream;
use tonic::{service::Routes, transport::server::Connected};

pub use error::Error;
pub use exec::{
    context::{Leadership, Limits},
    retention::Retention,
};
pub use forward::Dial;
pub use options::{Connect, Genesis, Options};
pub use witness::{Post, WITNESSES_MAX, Witness};

use exec::{Command, attested::Attested, context::Context, keys::KeyRing, links::Links, root::Root};

/// How much larger than the largest message the transport's limit is.
const MESSAGE_SLACK_BYTES: usize = 1 << 20;
/// How long open calls may take to end when the service stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A coordinator that is ready to run.
#[derive(Debug)]
pub struct Service {
    context: Arc<Context>,
    metadata: Arc<dyn Metadata>,
    genesis: Vec<u8>,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
    message_bytes: usize,
    tasks: JoinSet<()>,
    others: Option<forward::Others>,
    guard: Option<Guard>,
    stop: Arc<watch::Sender<bool>>,
}

/// Tells of a running coordinator, and stops it.
#[derive(Clone, Debug)]
pub struct Handle {
    context: Arc<Context>,
    stop: Arc<watch::Sender<bool>>,
}

impl Service {
    /// Checks the options and makes the parts. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the options can't found a ledger.
    pub fn new(options: Options) -> Result<(Self, Handle), Error> {
        let genesis = options.genesis_header()?;
        let message_bytes = options.genesis.params.message_bytes_max as usize + MESSAGE_SLACK_BYTES;
        let Options { name, nodes, connect, metadata, signing_key, next_signing_key, limits, clock, rng, .. } = options;
        if nodes.is_empty() {
            return Err(Error::Options("there are no nodes".to_owned()));
        }
        let links = Arc::new(Links::new(&nodes, &connect, message_bytes, limits.attempt_timeout));
        let keys = Arc::new(KeyRing::new(signing_key, next_signing_key));
        let attested = Arc::new(Attested::new(links.clone(), keys.clone()));
        let (root, views) = Root::new(links.clone(), keys.clone(), attested.clone(), limits.root_timeout);
        let mut tasks = JoinSet::new();
        tasks.spawn(views);
        tasks.spawn(attested.clone().look_around());
        let commands = mpsc::channel(limits.queue_max + exec::TASKS_MAX);
        let context = Arc::new(Context::new(name, links, root, (keys, attested), limits, clock, rng));
        metrics::show(&context);
        let stop = Arc::new(watch::Sender::new(false));
        let handle = Handle { context: context.clone(), stop: stop.clone() };
        Ok((
            Self { context, metadata, genesis, commands, message_bytes, tasks, others: None, guard: None, stop },
            handle,
        ))
    }

    /// Also serves the root log to strangers (C2SP `tlog-tiles` over HTTP/1.1) on a listener of its own, from now on and as
    /// long as the service lives.
    pub fn serve_log(&mut self, listener: TcpListener, tls: Option<Acceptor>) {
        let publisher = Arc::new(publish::Publisher::new(self.context.clone()));
        self.tasks.spawn(http::serve(listener, tls, http::routes(self.context.clone(), publisher)));
    }

    /// Also asks these witnesses for cosignatures, often while this coordinator leads and now and then while it does not; a
    /// checkpoint that `quorum` of them have cosigned is published.
    ///
    /// # Errors
    /// If the quorum can't be reached, or there are more than [`WITNESSES_MAX`].
    pub fn ask_witnesses(&mut self, witnesses: Vec<Witness>, quorum: usize) -> Result<(), Error> {
        self.ask_witnesses_by(witness::over_http()?, witnesses, quorum)
    }

    /// As [`ask_witnesses`](Self::ask_witnesses), by a way of the caller's.
    ///
    /// # Errors
    /// As there.
    pub fn ask_witnesses_by(&mut self, post: Post, witnesses: Vec<Witness>, quorum: usize) -> Result<(), Error> {
        check_witnesses(&witnesses, quorum)?;
        self.context.asks_witnesses.store(true, Ordering::Relaxed);
        self.tasks.spawn(witness::run(self.context.clone(), post, witnesses, quorum));
        Ok(())
    }

    /// Also works together with other coordinators: registered in the metadata store as reached at `address`, it forwards writes to the one
    /// that leads.
    pub fn join_others(&mut self, address: String, dial: Dial) {
        self.others = Some(forward::Others { address, dial });
    }

    /// Also names itself in the root log by the subject of its certificate.
    pub fn name(&mut self, subject: String) {
        // It has one certificate.
        let _ = self.context.subject.set(subject);
    }

    /// Also asks callers for their roles, on connections that tell who they are.
    pub fn guard(&mut self, guard: Guard) {
        self.guard = Some(guard);
    }

    /// Serves until `shutdown` ends or the handle stops it; `incoming` may be any listener's connections.
    ///
    /// Dropped, it stops as if it had been killed.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn run<S, IO, E>(self, incoming: S, shutdown: impl Future<Output = ()>) -> Result<(), Error>
    where
        S: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (stop, guard) = (self.stop.clone(), self.guard.clone());
        let (routes, _tasks, resigned) = self.start().await?;
        let routes = match guard {
            Some(guard) => guard.over(routes),
            None => routes,
        };
        let (begin, begun) = oneshot::channel();
        let server = coppice_process::net::server().add_routes(routes);
        let server = server.serve_with_incoming_shutdown(incoming, async {
            // A dropped sender is a service that is dropped.
            let _ = begun.await;
        });
        let stopped = async {
            let mut told = stop.subscribe();
            tokio::select! {
                biased;
                () = shutdown => {}
                // This function holds the sender too.
                _ = told.wait_for(|stop| *stop) => {}
            }
        };
        tokio::pin!(server);
        tokio::select! {
            biased;
            ended = &mut server => return ended.map_err(Error::Transport),
            () = stopped => {}
        }
        // Another leads before this one's calls are ended: those that wait are forwarded to it.
        stop.send_replace(true);
        let resigning = tokio::time::timeout(STOP_TIMEOUT, resigned);
        tokio::pin!(resigning);
        tokio::select! {
            biased;
            ended = &mut server => return ended.map_err(Error::Transport),
            _ = &mut resigning => {}
        }
        // Calls under way may end; streams that never do are cut.
        let _ = begin.send(());
        let _ = tokio::time::timeout(STOP_TIMEOUT, server).await;
        Ok(())
    }

    /// Starts the work behind the services and gives both, for a transport of the caller's. The coordinator stops as if it had been
    /// killed when the tasks are dropped.
    ///
    /// # Errors
    /// If the services can't be made.
    pub async fn open(self) -> Result<(Routes, JoinSet<()>), Error> {
        let (routes, tasks, _) = self.start().await?;
        Ok((routes, tasks))
    }

    /// As [`Service::open`]; the receiver ends when the leadership was given up after the order to stop.
    async fn start(mut self) -> Result<(Routes, JoinSet<()>, oneshot::Receiver<()>), Error> {
        let (sender, receiver) = self.commands;
        let (resign, resigned) = oneshot::channel();
        let (context, metadata, stop) = (&self.context, &self.metadata, self.stop.subscribe());
        self.tasks.spawn(exec::lead(context.clone(), metadata.clone(), self.genesis, receiver, stop, resign));
        self.tasks.spawn(exec::follow(context.clone(), metadata.clone()));
        if let Some(retention) = context.limits.retention {
            self.tasks.spawn(exec::retention::run(context.clone(), retention, sender.clone()));
        }
        let dial = self.others.map(|forward::Others { address, dial }| {
            let me = Member { kind: Kind::Coordinator, name: context.name.clone(), address };
            let (metadata, lease) = (metadata.clone(), context.limits.lease);
            let mut stop = self.stop.subscribe();
            self.tasks.spawn(async move {
                let _presence = Presence::keep(metadata, lease, me);
                // Until it is told to stop, or dropped.
                if stop.wait_for(|stop| *stop).await.is_err() {
                    std::future::pending().await
                }
            });
            dial
        });
        let forward = forward::Forward::new(context.clone(), dial, self.message_bytes);
        let api = service::Api::new(context.clone(), sender, self.message_bytes, forward);
        let ledger = LedgerServer::new(api)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes);
        let (health, health_service) = tonic_health::server::health_reporter();
        self.tasks.spawn(health::report(context.clone(), health, self.stop.subscribe()));
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(coppice_proto::DESCRIPTOR)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|error| Error::Options(error.to_string()))?;
        let mut routes = Routes::new(health_service);
        routes = routes.add_service(reflection).add_service(ledger);
        Ok((routes, self.tasks, resigned))
    }
}

/// Checks that witnesses can be asked, before anything is started.
///
/// # Errors
/// If there are too many, two are the same, or the quorum can't be reached.
pub fn check_witnesses(witnesses: &[Witness], quorum: usize) -> Result<(), Error> {
    if witnesses.len() > WITNESSES_MAX {
        return Err(Error::Options(format!("there are {} witnesses, at most {WITNESSES_MAX}", witnesses.len())));
    }
    if !(1..=witnesses.len()).contains(&quorum) {
        return Err(Error::Options(format!("{quorum} of {} witnesses can't be a quorum", witnesses.len())));
    }
    let twice = |(at, witness): (usize, &Witness)| witnesses[..at].iter().any(|other| other.key == witness.key);
    if witnesses.iter().enumerate().any(twice) {
        return Err(Error::Options("two witnesses have one key".to_owned()));
    }
    Ok(())
}

impl Handle {
    /// Who leads, as far as this coordinator knows.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.context.leadership.borrow().clone()
    }

    /// What the metadata store said last, and whenever it says something else.
    #[must_use]
    pub fn registry(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.context.registry.subscribe()
    }

    /// Whether this coordinator can serve its role.
    ///
    /// # Errors
    /// Says why it can't.
    pub fn readiness(&self) -> Result<(), String> {
        self.context.readiness.borrow().clone()
    }

    /// Waits until this coordinator leads; gives the term.
    pub async fn leading(&self) -> u64 {
        let mut leadership = self.context.leadership.subscribe();
        loop {
            if let Some(term) = leadership.borrow_and_update().term {
                return term;
            }
            if leadership.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until another leads, or none.
    pub async fn leadership_changed(&self) {
        // The sender lives in the same context as this handle.
        let _ = self.context.leadership.subscribe().changed().await;
    }

    /// Entries of the root log, as far as this coordinator knows.
    #[must_use]
    pub fn log_size(&self) -> u64 {
        *self.context.log_size.borrow()
    }

    /// Stops the service.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}
