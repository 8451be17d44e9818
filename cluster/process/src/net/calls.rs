//! Bounds on the calls that a server has open: how many there are of each kind, how much they hold
//! in memory while they are received and sent, and how long they may wait for their callers.
//!
//! **Invariants.** No kind of call uses up the places of another, and no caller those of all, nor
//! all bytes. A request that is not whole in [`Limits::receive_max`] is refused. An answer of which
//! nothing is taken for [`Limits::stall_max`] is cut off: what made it ends, and its memory is
//! freed. A stream that has nothing to say is not cut off.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::status;
use coppice_types::Reason;
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
};
use tower::Layer;

use super::{answers::Answers, budget::Budget, lines::Used, party_of, requests::Incoming};
use crate::access::Peer;

/// Calls of one kind that may be open at once, in all. Of a stream, several pages wait in memory.
const COMMITS_MAX: usize = 16_384;
const READS_MAX: usize = 16_384;
const STREAMS_MAX: usize = 256;
const WATCHES_MAX: usize = 4096;
/// The part of each that one caller may have. Processes of the cluster call for others, and may
/// have all.
pub(super) const CALLER_SHARE: usize = 4;
/// Bytes of requests that are being received or are not answered yet, and of answers that wait to
/// be sent.
const RECEIVED_BYTES_MAX: usize = 256 << 20;
const UNSENT_BYTES_MAX: usize = 256 << 20;
/// How long a request may take until it is whole, and the next message of a stream once it has
/// begun.
const RECEIVE_MAX: Duration = Duration::from_secs(30);
/// How long an answer may wait until its caller takes more of it.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// What a call is, as far as its bounds are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It writes, or is a part of writing.
    Commit,
    /// It asks one question.
    Read,
    /// It has a long answer.
    Stream,
    /// It waits for what is going to happen.
    Watch,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Read, Self::Stream, Self::Watch];

    /// The kind of a method, by its path.
    #[must_use]
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/coppice.v1.").unwrap_or(path) {
            "Ledger/Range" | "Ledger/History" | "Ledger/Diff" | "Ledger/Journal" | "Peer/FetchSnapshot" => Self::Stream,
            "Ledger/WatchHeads" | "/grpc.health.v1.Health/Watch" => Self::Watch,
            "Ledger/Get" | "Ledger/BatchGet" | "Ledger/Head" | "Ledger/GetHeader" | "Ledger/GetCheckpoint" => {
                Self::Read
            }
            "Ledger/Status" | "Ledger/ListPins" | "Shard/Read" | "Shard/Scan" | "Root/ReadRoot" => Self::Read,
            // What nobody knows waits for nothing.
            path if path.starts_with('/') => Self::Read,
            _ => Self::Commit,
        }
    }

    /// As in messages and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Read => "read",
            Self::Stream => "stream",
            Self::Watch => "watch",
        }
    }
}

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open calls of each kind, in the order of [`Kind::ALL`].
    pub calls_max: [usize; 4],
    /// Bytes of requests that are being received or are not answered yet.
    pub received_bytes_max: usize,
    /// Bytes of answers that wait to be sent.
    pub unsent_bytes_max: usize,
    /// How long a request may take until it is whole, and the next message of a stream once it has
    /// begun.
    pub receive_max: Duration,
    /// How long an answer may wait until its caller takes more of it.
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

/// Whom a call is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The subject of a certificate.
    Subject(String),
    /// An address without a certificate; of IPv6, its network.
    Address(IpAddr),
    /// It came by a way within this process.
    Inside,
    /// A node or coordinator: it calls for others.
    Cluster(String),
}

impl Party {
    /// Whether it may have all there is.
    #[must_use]
    pub fn has_all(&self) -> bool {
        matches!(self, Self::Inside | Self::Cluster(_))
    }
}

/// A layer of a server that holds its calls to their bounds. Clones count together.
#[derive(Clone, Debug)]
pub struct Bounded {
    calls: Arc<Calls>,
    received: Budget,
    answers: Answers,
}

impl Bounded {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let calls = Arc::new(Calls { limits, open: Mutex::default() });
        let unsent = Budget::new("answers", limits.unsent_bytes_max);
        let received = Budget::new("requests", limits.received_bytes_max);
        Self { calls, received, answers: Answers::new(limits.stall_max, unsent) }
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
        let (kind, is_stream) = (Kind::of(request.uri().path()), is_stream(request.uri().path()));
        let caller = party_of(request.extensions());
        let line = request.extensions().get::<Peer>().and_then(|peer| peer.line.as_ref()).map(Used::begin);
        let place = match self.bounded.calls.enter(kind, caller.clone()) {
            Ok(place) => (place, line),
            Err(refused) => return Box::pin(std::future::ready(Ok(refused.into_http()))),
        };
        let kept = Arc::new(Mutex::new(self.bounded.received.held(&caller)));
        let limit = self.bounded.calls.limits.receive_max;
        let request = request.map(|body| Body::new(Incoming::new(body, Arc::clone(&kept), is_stream, limit)));
        let (answer, answers) = (self.inner.call(request), self.bounded.answers.clone());
        Box::pin(async move {
            let answer = answer.await?;
            // The request was taken in, or is dropped with the answer.
            drop(kept);
            Ok(answer.map(|body| answers.watch(body, &caller, place)))
        })
    }
}

/// Whether the caller sends a stream, by the path of the method.
fn is_stream(path: &str) -> bool {
    matches!(
        path,
        "/coppice.v1.Ledger/CommitStream"
            | "/coppice.v1.Peer/Exchange"
            | "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    )
}

#[derive(Debug)]
struct Calls {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: [usize; 4],
    of: BTreeMap<(Kind, Party), usize>,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a call.
    fn enter(self: &Arc<Self>, kind: Kind, caller: Party) -> Result<Place, Status> {
        let max = self.limits.calls_max[kind as usize];
        let share = if caller.has_all() { max } else { max.div_ceil(CALLER_SHARE) };
        let mut open = self.lock();
        if open.total[kind as usize] >= max {
            let message = format!("{max} calls of this kind ({}) are open here: try again later", kind.name());
            return Err(status::refuse(Reason::ResourceExhausted, message));
        }
        let own = open.of.entry((kind, caller.clone())).or_default();
        if *own >= share {
            let message = format!(
                "{share} calls of this kind ({}) are open for this caller, its share of {max}: end some of them, or wait for their answers",
                kind.name()
            );
            return Err(status::refuse(Reason::ResourceExhausted, message));
        }
        *own += 1;
        open.total[kind as usize] += 1;
        Ok(Place { calls: Arc::clone(self), kind, caller })
    }
}

/// The place of an open call, until it is dropped.
#[derive(Debug)]
pub struct Place {
    calls: Arc<Calls>,
    kind: Kind,
    caller: Party,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.calls.lock();
        open.total[self.kind as usize] -= 1;
        if let Entry::Occupied(mut own) = open.of.entry((self.kind, self.caller.clone())) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;
