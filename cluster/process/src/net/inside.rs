//! Calls to services of this process: a function call in place of a connection.
//!
//! A call is what it would be over the network: messages with their limits of size, headers, and a
//! caller with a certificate. It passes the same [`Front`] as the calls of the listener, and the
//! same guard. These bounds of the network are kept here:
//!
//! - *Calls of one connection*: each channel has [`CALLS_PER_CONNECTION_MAX`] places, and further
//!   calls wait for one.
//! - *Deadlines*: a call with a `grpc-timeout` ends then, also while it waits for a place. A caller
//!   that no longer waits drops the call, which drops the work of the service.
//! - *Panics*: a service that panics fails that call, and not the task of its caller.
//!
//! And these have nothing to bound here:
//!
//! - *Connections*, handshakes and first bytes: there are none.
//! - *Flow control, windows, frames, resets*: a message is handed over as a whole, by code of this
//!   process. Its bytes count in the limits of the front.
//! - *Withdrawn and expired certificates*: the caller is this process. A process whose certificate
//!   is withdrawn loses its connections to all others.

use std::{
    convert::Infallible,
    fmt,
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll},
};

use coppice_proto::{Channel, HttpRequest, HttpResponse, status, telemetry::Serving, timeout};
use coppice_types::Reason;
use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tonic::{
    Status,
    codegen::{BoxFuture, Service},
    service::Routes,
};
use tower::ServiceExt as _;

use super::{calls::Within, front::Front, server::CALLS_PER_CONNECTION_MAX};
use crate::peer::Peer;

/// The services of a part of this process, for the other parts.
#[derive(Clone)]
pub struct Services {
    service: Serving<Within<Routes>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Front {
    /// Services that callers in this process reach through this front.
    #[must_use]
    pub fn services(&self, routes: Routes) -> Services {
        Services { service: self.behind(routes) }
    }
}

impl Services {
    /// A channel for this caller. Like a connection, it has places of its own.
    #[must_use]
    pub fn channel(&self, caller: Peer) -> Channel {
        let places = Arc::new(Semaphore::new(CALLS_PER_CONNECTION_MAX as usize));
        Channel::new(Inside { service: self.service.clone(), caller, places })
    }
}

/// The way of a channel's calls.
#[derive(Clone)]
struct Inside {
    service: Serving<Within<Routes>>,
    caller: Peer,
    places: Arc<Semaphore>,
}

impl Service<HttpRequest> for Inside {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = BoxFuture<HttpResponse, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A call waits for its place within its own time limit.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: HttpRequest) -> Self::Future {
        let limit = timeout::of(request.headers());
        request.extensions_mut().insert(self.caller.clone());
        let (service, places) = (self.service.clone(), Arc::clone(&self.places));
        let answer = async move {
            let _place = places.acquire().await.expect("the places are never closed");
            service.oneshot(request).await
        };
        // The state that a panic leaves behind is the same as after a panic on another task.
        let answer = AssertUnwindSafe(answer).catch_unwind();
        Box::pin(async move {
            let answer = match limit {
                Some(limit) => tokio::time::timeout(limit, answer).await,
                None => Ok(answer.await),
            };
            Ok(match answer {
                Ok(Ok(Ok(answer))) => answer,
                Ok(Ok(Err(never))) => match never {},
                Ok(Err(_)) => status::refuse(Reason::Internal, "the service panicked").into_http(),
                Err(_) => Status::deadline_exceeded("the call took longer than its caller waits").into_http(),
            })
        })
    }
}

#[cfg(test)]
mod tests;
