//! HTTP/1.1 on connections of any kind. How many there are at once, and how long each may take and last, is bounded.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::{Stream, StreamExt};

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// How long a client may take to send the head of a request.
    pub head_timeout: Duration,
    /// How long a connection may last, however busy.
    pub connection_age_max: Duration,
}

/// Serves connections as long as they come.
pub async fn serve<S, IO, E>(incoming: S, routes: Router, limits: Limits)
where
    S: Stream<Item = Result<IO, E>>,
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::pin!(incoming);
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= limits.connections_max {
            connections.join_next().await;
        }
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = incoming.next() => match accepted {
                Some(Ok(io)) => {
                    connections.spawn(serve_one(io, routes.clone(), limits));
                }
                // Such as too many open files: that passes.
                Some(Err(_)) => sleep(ACCEPT_PAUSE).await,
                None => break,
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn serve_one<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: IO, routes: Router, limits: Limits) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
    match timeout(limits.connection_age_max, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection was closed for its age"),
    }
}
