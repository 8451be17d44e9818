//! HTTP/1.1 beside gRPC: connections of the same listener, whose calls pass the same [`Front`].
//!
//! **Invariants.** A connection has one call at a time: further requests wait unread. The head of a
//! request, and the pause before it, have a time limit, and so has the life of a connection. Heads
//! and unsent parts of answers have a limit of bytes for each connection.

use std::{convert::Infallible, io, time::Duration};

use coppice_proto::telemetry::Serving;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::{Stream, StreamExt};
use tonic::{
    body::Body,
    codegen::{Service, http},
    service::Routes,
    transport::server::Connected,
};
use tower::{Layer, ServiceExt, service_fn};

use super::{Accepted, calls::Within, front::Front};

/// Longest time for a client to send the head of a request, including the pause before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may live.
#[derive(Clone, Copy, Debug)]
struct Ages {
    /// The age after which it takes no further call.
    calls: Duration,
    /// How long the last call may then take, which is a watch in most cases.
    last_call: Duration,
}

const AGES: Ages = Ages { calls: Duration::from_secs(3600), last_call: Duration::from_secs(3600) };
/// Most bytes of the head of a request. The same size bounds what is read of a body, and written of
/// an answer, ahead of need.
const BUFFER_BYTES: usize = 32 << 10;

impl Front {
    /// Services behind this front, for calls that come by another way than [`Front::server`].
    #[must_use]
    pub fn behind(&self, routes: Routes) -> Serving<Within<Routes>> {
        self.served.layer(self.bounded.layer(routes.prepare()))
    }
}

/// Serves HTTP/1.1 connections until no more arrive, or until `stop` ends. Then calls under way may
/// end. If the future is dropped, they are cut off.
pub async fn serve_http1<S>(
    connections: impl Stream<Item = io::Result<Accepted>>,
    service: S,
    stop: impl Future<Output = ()>,
) where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    serve_within(connections, service, stop, AGES).await;
}

async fn serve_within<S>(
    connections: impl Stream<Item = io::Result<Accepted>>,
    service: S,
    stop: impl Future<Output = ()>,
    ages: Ages,
) where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let (stopping, told) = watch::channel(false);
    let mut open = JoinSet::new();
    tokio::pin!(connections, stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = open.join_next() => {}
            connection = connections.next() => match connection {
                Some(Ok(connection)) => drop(open.spawn(serve_one(connection, service.clone(), told.clone(), ages))),
                Some(Err(_)) => {}
                None => break,
            }
        }
    }
    stopping.send_replace(true);
    while open.join_next().await.is_some() {}
}

async fn serve_one<S>(io: Accepted, service: S, mut stopping: watch::Receiver<bool>, ages: Ages)
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let peer = io.connect_info();
    let answer = service_fn(move |request: http::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        service.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(answer));
    tokio::pin!(connection);
    // The sender is dropped only after it has told.
    let stopped = async { drop(stopping.wait_for(|stopping| *stopping).await) };
    let ended = tokio::select! {
        ended = &mut connection => Ok(ended),
        () = async { tokio::select! { () = stopped => {}, () = sleep(ages.calls) => {} } } => {
            connection.as_mut().graceful_shutdown();
            timeout(ages.last_call, connection).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection was closed at its age, within a call"),
    }
}

#[cfg(test)]
mod tests;
