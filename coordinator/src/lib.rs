//! Routes keys, forms versions, runs the commit protocol, signs checkpoints.
//!
//! A coordinator keeps no state of its own except caches. It may be stopped at any point and
//! started again anywhere. Any coordinator answers reads; the one that leads takes writes.
//!
//! ```text
//! process            settings, sockets and key of the binary
//!    │
//!  [lib]             Service: joins all parts; Handle: shows and stops them
//!    │
//!   api              gRPC: intake, forwarding to the leader, status, health; HTTP by coppice-http
//!    │      log      the root log over HTTP, and its witnesses
//!  anchor    │       time stamps over the log, by authorities
//!    ▼       │
//!  write     │       the leader: order, prepare, append, answer
//!    ▼       │
//!  read      │       records, scans, journals, proof files
//!    ▼       ▼
//!  groups            the root group and the shards; the gate for signatures
//!    ▼
//!  plan              the commit protocol as pure functions
//! ```
//!
//! Arrows point from a layer to those that it uses. `metrics`, `shown`, `quotas`, `random`,
//! `lock`, `post`, `options` and `error` serve several layers. No layer uses one above it.
//!
//! Invariants: a checkpoint is signed only over a committed prefix of the root log; an answer is
//! sent only when its content is decided; a read names the exact state that it wants.

pub mod process;

mod anchor;
mod api;
mod groups;
mod log;
mod metrics;
pub mod plan;
mod read;
mod write;

mod error;
mod lock;
mod options;
mod post;
mod quotas;
mod random;
mod shown;

use std::{io, sync::Arc, time::Duration};

use coppice_env::watch;
use coppice_http::Problems;
use coppice_metadata::{Kind, Member, Metadata, Presence, Snapshot};
use coppice_process::{
    access::Guard,
    net::{Accepted, Front, serve_http1},
    tls::Acceptor,
};
use coppice_proto::v1::ledger_server::LedgerServer;
use coppice_types::Term;
use futures::{FutureExt, future::OptionFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{service::Routes, transport::server::Connected};
use tower::Layer;

pub use anchor::{Anchoring, OpenChannel, TimeLedger, Tsa};
pub use api::forward::Dial;
pub use error::Error;
use log::witness::streams::Streams;
pub use log::witness::{Quorum, WITNESS_LINES_BYTES_MAX, WITNESSES_MAX, Witness};
pub use options::{Connect, Genesis, Limits, Options, Retention, Routing};
pub use post::Post;
pub use shown::Leadership;

use api::{forward, health, intake::Intake, service};
use groups::{attested::Attested, keys::KeyRing, links::Links, root::Root, root_log::RootLog, shards::Shards};
use log::{http, publish, witness};
use metrics::Metrics;
use random::Random;
use read::reads::Reads;
use shown::Shown;
use write::{
    command::{Command, TASKS_MAX},
    leader,
    resources::Resources,
    retention,
};

/// The number of bytes by which the transport's limit exceeds the largest message.
const MESSAGE_SLACK_BYTES: usize = 1 << 20;
/// How long the service waits for open calls when it stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A coordinator that is ready to run.
#[derive(Debug)]
pub struct Service {
    resources: Resources,
    links: Arc<Links>,
    shown: Arc<Shown>,
    metadata: Arc<dyn Metadata>,
    genesis: Vec<u8>,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
    message_bytes: usize,
    tasks: JoinSet<()>,
    others: Option<forward::Others>,
    guard: Option<Guard>,
    http1: Option<ReceiverStream<io::Result<Accepted>>>,
    anchors: Option<anchor::Orders>,
    /// The streams of cosigners that can't be reached.
    streams: Streams,
    stop: Arc<watch::Sender<bool>>,
}

/// Shows the state of a running coordinator, and stops it.
#[derive(Clone, Debug)]
pub struct Handle {
    shown: Arc<Shown>,
    log: Arc<RootLog>,
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
        let Options { name, nodes, routing, connect, metadata, signing_key, next_signing_key, .. } = options;
        let Options { limits, clock, rng, .. } = options;
        if nodes.iter().all(|node| routing.readers.contains(node)) {
            return Err(Error::Options("there are no nodes with voters".to_owned()));
        }
        let links = Arc::new(Links::new(&nodes, &routing, &connect, message_bytes, limits.attempt_timeout));
        let keys = Arc::new(KeyRing::new(signing_key, next_signing_key));
        let attested = Arc::new(Attested::new(links.clone(), keys.clone()));
        let (root, views) = Root::new(links.clone(), keys.clone(), attested.clone(), limits.root_timeout);
        let mut tasks = JoinSet::new();
        tasks.spawn(views);
        tasks.spawn(attested.clone().look_around());
        let commands = mpsc::channel(limits.queue_max + TASKS_MAX);
        let shards = Shards::new(links.clone(), root.clone());
        let log = Arc::new(RootLog::new(root, keys, attested, limits.root_timeout));
        let shown = Arc::new(Shown::new(name));
        metrics::show(&shown, &log);
        metrics::show_reads(&links);
        let stop = Arc::new(watch::Sender::new(false));
        let handle = Handle { shown: shown.clone(), log: log.clone(), stop: stop.clone() };
        let resources = Resources {
            log,
            shards,
            limits: Arc::new(limits),
            metrics: Arc::new(Metrics::new()),
            clock,
            random: Arc::new(Random::new(rng)),
        };
        let streams = Streams::default();
        let of = streams.clone();
        metrics::show_streams(move || of.expects_any().then(|| of.open()));
        let service = Self {
            resources,
            links,
            shown,
            metadata,
            genesis,
            commands,
            message_bytes,
            tasks,
            others: None,
            guard: None,
            http1: None,
            anchors: None,
            streams,
            stop,
        };
        Ok((service, handle))
    }

    /// Serves the root log to the public, too (C2SP `tlog-tiles` over HTTP/1.1), on a separate
    /// listener, as long as the service lives.
    pub fn serve_log(&mut self, listener: TcpListener, tls: Option<Acceptor>) {
        let log = &self.resources.log;
        let publisher = Arc::new(publish::Publisher::new(log.clone(), self.shown.clone()));
        self.tasks.spawn(http::serve(listener, tls, http::routes(log.clone(), publisher)));
    }

    /// Serves the API over HTTP, too: gRPC-web and resources, by HTTP/2 as by HTTP/1.1 on
    /// connections that a listener for both protocols has accepted.
    pub fn serve_http1(&mut self, connections: ReceiverStream<io::Result<Accepted>>) {
        self.http1 = Some(connections);
    }

    /// Asks these witnesses for cosignatures: often while this coordinator leads, and seldom while
    /// it does not. A checkpoint whose cosignatures reach `quorum` is published.
    ///
    /// # Errors
    /// If the quorum can't be reached, or there are more than [`WITNESSES_MAX`].
    pub fn ask_witnesses(&mut self, witnesses: Vec<Witness>, quorum: impl Into<Quorum>) -> Result<(), Error> {
        self.ask_witnesses_by(witness::over_http()?, witnesses, quorum)
    }

    /// Like [`ask_witnesses`](Self::ask_witnesses), but sends requests with `post`.
    ///
    /// # Errors
    /// Those of [`ask_witnesses`](Self::ask_witnesses).
    pub fn ask_witnesses_by(
        &mut self,
        post: Post,
        witnesses: Vec<Witness>,
        quorum: impl Into<Quorum>,
    ) -> Result<(), Error> {
        let quorum = quorum.into();
        check_witnesses(&witnesses, &quorum)?;
        self.shown.set_asks_witnesses();
        self.streams.expect(&witnesses);
        let post = self.streams.post(post);
        let Resources { log, metrics, random, .. } = self.resources.clone();
        let means = witness::Means { log, shown: self.shown.clone(), metrics, random };
        self.tasks.spawn(witness::run(means, post, witnesses, quorum));
        Ok(())
    }

    /// Has authorities stamp checkpoints while this coordinator leads, and keeps their tokens in
    /// the root log.
    ///
    /// # Errors
    /// Those of [`Anchoring::check`].
    pub fn anchor(&mut self, anchoring: Anchoring) -> Result<(), Error> {
        self.anchor_by(anchor::over_http()?, anchoring)
    }

    /// Like [`anchor`](Self::anchor), but sends requests with `post`.
    ///
    /// # Errors
    /// Those of [`anchor`](Self::anchor).
    pub fn anchor_by(&mut self, post: Post, anchoring: Anchoring) -> Result<(), Error> {
        anchoring.check()?;
        if anchoring.cosigned && !self.shown.asks_witnesses() {
            return Err(Error::Options("anchors of cosigned checkpoints need witnesses".to_owned()));
        }
        let stampers = anchoring.stampers()?;
        let (orders, receiver) = anchor::Orders::channel();
        metrics::show_anchors(&self.shown);
        let means = anchor::Means {
            resources: self.resources.clone(),
            links: self.links.clone(),
            shown: self.shown.clone(),
            commands: self.commands.0.clone(),
        };
        self.tasks.spawn(anchor::run(means, post, (anchoring, stampers), receiver));
        self.anchors = Some(orders);
        Ok(())
    }

    /// Joins other coordinators: registers itself under `address` in the metadata store, and
    /// forwards writes to the coordinator that leads.
    pub fn join_others(&mut self, address: String, dial: Dial) {
        self.others = Some(forward::Others { address, dial });
    }

    /// Uses the subject of the coordinator's certificate as its name in the root log.
    pub fn name(&mut self, subject: String) {
        self.shown.set_subject(subject);
    }

    /// Demands roles of callers, on connections that show a certificate.
    pub fn guard(&mut self, guard: Guard) {
        self.guard = Some(guard);
    }

    /// Serves until `shutdown` ends or the handle stops it. `incoming` may be the connections of
    /// any listener.
    ///
    /// If the future is dropped, the coordinator stops as if it had been killed.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn run<S, IO, E>(mut self, incoming: S, shutdown: impl Future<Output = ()>) -> Result<(), Error>
    where
        S: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (stop, guard, http1) = (self.stop.clone(), self.guard.clone(), self.http1.take());
        let (routes, _tasks, resigned) = self.start().await?;
        let routes = match guard {
            Some(guard) => guard.over(routes),
            None => routes,
        };
        let (begin, begun) = oneshot::channel();
        // The sender is dropped only with the service.
        let begun = begun.map(drop).shared();
        let front = Front::new();
        let problems = Problems { http: http1.is_some() };
        let beside = http1.map(|connections| {
            let service = problems.layer(front.behind(routes.clone()));
            serve_http1(connections, service, begun.clone())
        });
        let server = front.server_behind(problems).add_routes(routes);
        let server = server.serve_with_incoming_shutdown(incoming, begun);
        let server = async { tokio::join!(server, OptionFuture::from(beside)).0 };
        let stopped = async {
            let mut told = stop.subscribe();
            tokio::select! {
                biased;
                () = shutdown => {}
                // This function holds the sender, so the wait can't fail.
                _ = told.wait_for(|stop| *stop) => {}
            }
        };
        tokio::pin!(server);
        tokio::select! {
            biased;
            ended = &mut server => return ended.map_err(Error::Transport),
            () = stopped => {}
        }
        // The leadership is given up before open calls end: calls that wait are forwarded to the
        // next leader.
        stop.send_replace(true);
        let resigning = tokio::time::timeout(STOP_TIMEOUT, resigned);
        tokio::pin!(resigning);
        tokio::select! {
            biased;
            ended = &mut server => return ended.map_err(Error::Transport),
            _ = &mut resigning => {}
        }
        // Calls under way may end. Streams that never end are cut off.
        let _ = begin.send(());
        let _ = tokio::time::timeout(STOP_TIMEOUT, server).await;
        Ok(())
    }

    /// Starts the background tasks, and returns them with the services, for the caller's own
    /// transport. If the tasks are dropped, the coordinator stops as if it had been killed.
    ///
    /// # Errors
    /// If the services can't be made.
    pub async fn open(self) -> Result<(Routes, JoinSet<()>), Error> {
        let (routes, tasks, _) = self.start().await?;
        Ok((routes, tasks))
    }

    /// Like [`Service::open`]. The receiver ends when the leadership was given up after the order
    /// to stop.
    async fn start(mut self) -> Result<(Routes, JoinSet<()>, oneshot::Receiver<()>), Error> {
        let (sender, receiver) = self.commands;
        let (resign, resigned) = oneshot::channel();
        let (shown, metadata, stop) = (&self.shown, &self.metadata, self.stop.subscribe());
        let Resources { log, shards, limits, metrics, random, .. } = self.resources.clone();
        self.tasks.spawn(leader::lead(
            shown.clone(),
            self.resources.clone(),
            metadata.clone(),
            self.genesis,
            receiver,
            stop,
            resign,
        ));
        self.tasks.spawn(shown::follow(shown.clone(), metadata.clone()));
        if let Some(rule) = limits.retention {
            let resources = self.resources.clone();
            self.tasks.spawn(retention::run(shown.clone(), resources, rule, sender.clone()));
        }
        let dial = self.others.map(|forward::Others { address, dial }| {
            let me = Member { kind: Kind::Coordinator, name: shown.name().to_owned(), address };
            let (metadata, lease) = (metadata.clone(), limits.lease);
            let mut stop = self.stop.subscribe();
            self.tasks.spawn(async move {
                let _presence = Presence::keep(metadata, lease, me);
                // Waits until the coordinator is told to stop, or is dropped.
                if stop.wait_for(|stop| *stop).await.is_err() {
                    std::future::pending().await
                }
            });
            dial
        });
        let forward = forward::Forward::new(shown.clone(), limits.clone(), random, dial, self.message_bytes);
        let reads = Reads::new(log.clone(), shards, shown.clone(), metrics.clone(), limits.read_timeout);
        let intake = Intake::new(log.clone(), limits, metrics, sender, self.message_bytes);
        let api = service::Api::new(intake, reads, forward, self.links, shown.clone(), self.anchors, self.streams);
        let resources = coppice_http::routes(api.clone(), self.message_bytes);
        let ledger = LedgerServer::new(api)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes);
        let (health, health_service) = tonic_health::server::health_reporter();
        self.tasks.spawn(health::report(log, shown.clone(), health, self.stop.subscribe()));
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(coppice_proto::DESCRIPTOR)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                // The details of errors.
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        };
        let refused = |error: tonic_reflection::server::Error| Error::Options(error.to_string());
        let reflection = described().build_v1().map_err(refused)?;
        let reflection_alpha = described().build_v1alpha().map_err(refused)?;
        let mut routes = Routes::new(health_service);
        routes = routes.add_service(reflection).add_service(reflection_alpha).add_service(ledger);
        let routes = routes.into_axum_router().merge(resources).into();
        Ok((routes, self.tasks, resigned))
    }
}

/// Checks that witnesses can be asked, before anything is started.
///
/// # Errors
/// If there are too many, two are the same, the quorum can't be reached, or a note can't hold the
/// lines of all.
pub fn check_witnesses(witnesses: &[Witness], quorum: &Quorum) -> Result<(), Error> {
    if witnesses.len() > WITNESSES_MAX {
        return Err(Error::Options(format!("there are {} witnesses, at most {WITNESSES_MAX}", witnesses.len())));
    }
    let all: Vec<_> = witnesses.iter().map(|witness| &witness.key).collect();
    if quorum.is_reached_by(&[]) || !quorum.is_reached_by(&all) {
        return Err(Error::Options(match quorum {
            Quorum::Count(count) => format!("{count} of {} witnesses can't be a quorum", witnesses.len()),
            Quorum::Policy(_) => "the policy's quorum needs no witness, or witnesses that can't be asked".to_owned(),
        }));
    }
    let twice = |(at, witness): (usize, &Witness)| witnesses[..at].iter().any(|other| other.key == witness.key);
    if witnesses.iter().enumerate().any(twice) {
        return Err(Error::Options("two witnesses have the same key".to_owned()));
    }
    let bytes: usize = witnesses.iter().map(|witness| witness.key.line_bytes()).sum();
    if bytes > WITNESS_LINES_BYTES_MAX {
        let most = format!("{bytes} bytes, at most {WITNESS_LINES_BYTES_MAX}");
        return Err(Error::Options(format!("the cosignatures of all witnesses take {most}")));
    }
    Ok(())
}

impl Handle {
    /// The leading coordinator, as far as this one knows.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.shown.leadership.borrow().clone()
    }

    /// The newest answer of the metadata store, and its changes.
    #[must_use]
    pub fn registry(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.shown.registry()
    }

    /// Whether this coordinator can serve its role.
    ///
    /// # Errors
    /// The reason why it can't.
    pub fn readiness(&self) -> Result<(), String> {
        self.shown.readiness.borrow().clone()
    }

    /// Waits until this coordinator leads. Returns the term.
    pub async fn leading(&self) -> Term {
        let mut leadership = self.shown.leadership.subscribe();
        loop {
            if let Some(term) = leadership.borrow_and_update().term {
                return term;
            }
            if leadership.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the leader changes, or is lost.
    pub async fn leadership_changed(&self) {
        // The sender lives as long as this handle.
        let _ = self.shown.leadership.subscribe().changed().await;
    }

    /// Entries of the root log, as far as this coordinator knows.
    #[must_use]
    pub fn log_size(&self) -> u64 {
        self.log.size()
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}
