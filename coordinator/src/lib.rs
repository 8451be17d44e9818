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
mod options;
pub mod plan;
mod proofs;
mod reads;
mod scans;
mod service;

use std::{sync::Arc, time::Duration};

use coppice_metadata::Metadata;
use coppice_proto::v1::ledger_server::LedgerServer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_stream::Stream;
use tonic::transport::{Server, server::Connected};

pub use error::Error;
pub use exec::context::{Leadership, Limits};
pub use options::{Connect, Genesis, Options};

use exec::{Command, context::Context, links::Links, root::Root};

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
    stop: watch::Receiver<bool>,
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
        let Options { name, nodes, connect, metadata, signing_key, limits, clock, rng, .. } = options;
        if nodes.is_empty() {
            return Err(Error::Options("there are no nodes".to_owned()));
        }
        let links = Arc::new(Links::new(&nodes, &connect, message_bytes, limits.attempt_timeout));
        let (root, views) = Root::new(links.clone(), limits.root_timeout);
        let mut tasks = JoinSet::new();
        tasks.spawn(views);
        let commands = mpsc::channel(limits.queue_max);
        let context = Arc::new(Context::new(name, links, root, signing_key, limits, clock, rng));
        let (stop, stopped) = watch::channel(false);
        let handle = Handle { context: context.clone(), stop: Arc::new(stop) };
        Ok((Self { context, metadata, genesis, commands, message_bytes, tasks, stop: stopped }, handle))
    }

    /// Serves until `shutdown` ends or the handle stops it; `incoming` may be any listener's connections.
    ///
    /// Dropped, it stops as if it had been killed.
    ///
    /// # Errors
    /// If the transport fails.
    pub async fn run<S, IO, E>(mut self, incoming: S, shutdown: impl Future<Output = ()>) -> Result<(), Error>
    where
        S: Stream<Item = Result<IO, E>>,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (sender, receiver) = self.commands;
        self.tasks.spawn(exec::lead(self.context.clone(), self.metadata, self.genesis, receiver));
        let api = service::Api::new(self.context.clone(), sender, self.message_bytes);
        let ledger = LedgerServer::new(api)
            .max_decoding_message_size(self.message_bytes)
            .max_encoding_message_size(self.message_bytes);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<LedgerServer<service::Api>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(coppice_proto::DESCRIPTOR)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|error| Error::Options(error.to_string()))?;
        let mut stop = self.stop.clone();
        let (begin, begun) = oneshot::channel();
        let server = Server::builder()
            .add_service(health_service)
            .add_service(reflection)
            .add_service(ledger)
            .serve_with_incoming_shutdown(incoming, async {
                // A dropped sender is a service that is dropped.
                let _ = begun.await;
            });
        let stopped = async {
            tokio::select! {
                () = shutdown => {}
                () = told_to_stop(&mut stop) => {}
            }
        };
        tokio::pin!(server);
        tokio::select! {
            ended = &mut server => return ended.map_err(Error::Transport),
            () = stopped => {}
        }
        // Calls under way may end; streams that never do are cut.
        let _ = begin.send(());
        let _ = tokio::time::timeout(STOP_TIMEOUT, server).await;
        Ok(())
    }
}

/// Ends when a handle says so; if there are none left, never.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

impl Handle {
    /// Who leads, as far as this coordinator knows.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.context.leadership.borrow().clone()
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
