//! HTTP/1.1 beside gRPC: connections of the same listener, whose calls pass the same [`Front`].
//!
//! **Invariants.** A connection has one call at a time: further requests wait unread. The head of a
//! request, and the pause before it, have a time limit. Heads and unsent parts of answers have a
//! limit of bytes for each connection.

use std::{convert::Infallible, io, time::Duration};

use coppice_proto::telemetry::Serving;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{sync::watch, task::JoinSet};
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
    let (stopping, told) = watch::channel(false);
    let mut open = JoinSet::new();
    tokio::pin!(connections, stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = open.join_next() => {}
            connection = connections.next() => match connection {
                Some(Ok(connection)) => drop(open.spawn(serve_one(connection, service.clone(), told.clone()))),
                Some(Err(_)) => {}
                None => break,
            }
        }
    }
    stopping.send_replace(true);
    while open.join_next().await.is_some() {}
}

async fn serve_one<S>(io: Accepted, service: S, mut stopping: watch::Receiver<bool>)
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
        ended = &mut connection => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection failed");
    }
}
