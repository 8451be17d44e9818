//! HTTP/1.1 on the connections of a listener. [`Bounds`](crate::net::Bounds) limit their number;
//! the time that each may take is limited here.

use std::time::Duration;

use axum::{Router, extract::Request};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::{Stream, StreamExt};
use tower::{ServiceExt, service_fn};

use crate::net::Accepted;

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time for a client to send the head of a request, including the idle time before it.
    pub head_timeout: Duration,
    /// Longest life of a connection, however busy it is.
    pub connection_age_max: Duration,
}

/// Serves connections until no more arrive.
pub async fn serve<E>(incoming: impl Stream<Item = Result<Accepted, E>>, routes: Router, limits: Limits) {
    tokio::pin!(incoming);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = incoming.next() => match accepted {
                Some(Ok(io)) => {
                    connections.spawn(serve_one(io, routes.clone(), limits));
                }
                // A passing error, for example too many open files.
                Some(Err(_)) => sleep(ACCEPT_PAUSE).await,
                None => break,
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn serve_one(io: Accepted, routes: Router, limits: Limits) {
    let used = io.used();
    let answer = service_fn(move |request: Request<Incoming>| {
        let (call, answer) = (used.begin(), routes.clone().oneshot(request));
        async move {
            let answer = answer.await;
            drop(call);
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(answer));
    match timeout(limits.connection_age_max, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection was closed because of its age"),
    }
}
