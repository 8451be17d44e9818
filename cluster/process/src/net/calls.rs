//! Limits on the open calls of a server: their number by kind, the memory that they hold while they
//! are received and sent, and the time that they may wait for their callers.
//!
//! **Invariants.** No kind of call uses up the places of another kind. No caller uses up all places
//! or all bytes. A request that is not complete within [`Limits::receive_max`] is refused. An
//! answer that nobody reads for [`Limits::stall_max`] is cut off: its producer ends, and its
//! memory is freed. A stream that has nothing to send is not cut off.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::rest;
use tonic::{
    body::Body,
    codegen::{BoxFuture, Service, http},
};
use tower::Layer;

use super::{
    answers::Answers,
    budget::Budget,
    places::Places,
    requests::{Framing, Incoming},
};
use crate::peer::{self, Peer, Used};

pub use super::places::{Kind, Place};
pub use crate::peer::Party;

/// Most open calls of each kind, for all callers together. A stream keeps several pages in memory.
const COMMITS_MAX: usize = 16_384;
const READS_MAX: usize = 16_384;
const STREAMS_MAX: usize = 256;
const WATCHES_MAX: usize = 4096;
/// Bytes of requests that are being received or not answered yet, and of answers that wait to be
/// sent.
const RECEIVED_BYTES_MAX: usize = 256 << 20;
const UNSENT_BYTES_MAX: usize = 256 << 20;
/// How long a request may take to arrive, or each message of a stream once it has begun.
const RECEIVE_MAX: Duration = Duration::from_secs(30);
/// How long an answer may wait for its caller to read more of it.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most open calls of each kind, in the order of [`Kind::ALL`].
    pub calls_max: [usize; 4],
    /// Bytes of requests that are being received or not answered yet.
    pub received_bytes_max: usize,
    /// Bytes of answers that wait to be sent.
    pub unsent_bytes_max: usize,
    /// How long a request may take to arrive, or each message of a stream once it has begun.
    pub receive_max: Duration,
    /// How long an answer may wait for its caller to read more of it.
    pub stall_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_max: [COMMITS_MAX, READS_MAX, STREAMS_MAX, WATCHES_MAX],
            received_bytes_max: RECEIVED_BYTES_MAX,
            unsent_bytes_max: UNSENT_BYTES_MAX,
            receive_max: RECEIVE_MAX,
            stall_max: STALL_MAX,
        }
    }
}

/// A layer of a server that applies the limits to its calls. Clones count together.
#[derive(Clone, Debug)]
pub struct Bounded {
    places: Arc<Places>,
    receive_max: Duration,
    received: Budget,
    answers: Answers,
}

impl Bounded {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let unsent = Budget::new("answers", limits.unsent_bytes_max);
        let received = Budget::new("requests", limits.received_bytes_max);
        let (places, answers) = (Places::new(limits.calls_max), Answers::new(limits.stall_max, unsent));
        Self { places, receive_max: limits.receive_max, received, answers }
    }
}

impl<S> Layer<S> for Bounded {
    type Service = Within<S>;

    fn layer(&self, inner: S) -> Within<S> {
        Within { inner, bounded: self.clone() }
    }
}

/// A service behind [`Bounded`].
#[derive(Clone, Debug)]
pub struct Within<S> {
    inner: S,
    bounded: Bounded,
}

impl<S> Service<http::Request<Body>> for Within<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let kind = Kind::of(rest::called(request.method(), path));
        let framing = match path {
            path if rest::is_rest(path) => Framing::Bare,
            path if is_stream(path) => Framing::Stream,
            _ => Framing::Message,
        };
        let caller = peer::party_of(request.extensions());
        let line = request.extensions().get::<Peer>().and_then(|peer| peer.line.as_ref()).map(Used::begin);
        let place = match self.bounded.places.enter(kind, caller.clone()) {
            Ok(place) => (place, line),
            Err(refused) => return Box::pin(std::future::ready(Ok(refused.into_http()))),
        };
        let kept = Arc::new(Mutex::new(self.bounded.received.held(&caller)));
        let limit = self.bounded.receive_max;
        let request = request.map(|body| Body::new(Incoming::new(body, Arc::clone(&kept), framing, limit)));
        let (answer, answers) = (self.inner.call(request), self.bounded.answers.clone());
        Box::pin(async move {
            let answer = answer.await?;
            // The service has read the request, or the request is dropped with the answer.
            drop(kept);
            Ok(answer.map(|body| answers.watch(body, &caller, place)))
        })
    }
}

/// Whether the caller of this method sends a stream.
fn is_stream(path: &str) -> bool {
    matches!(
        path,
        "/coppice.v1.Ledger/CommitStream"
            | "/coppice.v1.Ledger/Witness"
            | "/coppice.v1.Peer/Exchange"
            | "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
}

#[cfg(test)]
mod tests;
