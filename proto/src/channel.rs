//! The path of a call to another process: any service that answers HTTP requests with gRPC bodies.
//!
//! Clients of the generated code are built over a [`Channel`]. So a caller does not know what
//! carries its calls: a connection, a pipe within the process, or a simulated network. A call that
//! is part of a trace carries the trace context in its headers.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use tonic::{
    body::Body,
    codegen::{BoxFuture, Service, StdError, http},
};
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::{telemetry, timeout};

/// The request of a call.
pub type HttpRequest = http::Request<Body>;
/// The response to a call.
pub type HttpResponse = http::Response<Body>;

/// The path to one process. Clones share it.
#[derive(Clone)]
pub struct Channel(BoxCloneSyncService<HttpRequest, HttpResponse, StdError>);

impl Channel {
    /// A channel whose calls go to this service.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<HttpRequest, Response = HttpResponse> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<StdError>,
    {
        Self(BoxCloneSyncService::new(service.map_err(Into::into)))
    }
}

impl Channel {
    /// The same channel, with a time limit on its calls. A call without a `grpc-timeout` gets one
    /// of `limit`, so the server may stop work on it after that.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self::new(self.clone().map_request(move |mut request: HttpRequest| {
            timeout::ask(request.headers_mut(), limit);
            request
        }))
    }
}

impl From<tonic::transport::Channel> for Channel {
    fn from(channel: tonic::transport::Channel) -> Self {
        Self::new(channel)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Service<HttpRequest> for Channel {
    type Response = HttpResponse;
    type Error = StdError;
    type Future = BoxFuture<HttpResponse, StdError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: HttpRequest) -> Self::Future {
        let Some(span) = telemetry::called(&mut request) else { return self.0.call(request) };
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await;
            telemetry::answered(&span, answer.as_ref().ok());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::mpsc};

    use super::*;

    #[tokio::test]
    async fn a_call_says_how_long_its_answer_is_of_use_unless_it_says_so_itself() {
        let (told, heard) = mpsc::channel();
        let channel = Channel::new(tower::service_fn(move |request: HttpRequest| {
            told.send(request.headers().get(timeout::HEADER).cloned()).expect("the test listens");
            async { Ok::<_, Infallible>(HttpResponse::default()) }
        }));
        let call = |limit: Option<Duration>, own: Option<&'static str>| {
            let mut way = limit.map_or_else(|| channel.clone(), |limit| channel.within(limit));
            let mut request = HttpRequest::default();
            request.headers_mut().extend(
                own.map(|own| (http::HeaderName::from_static(timeout::HEADER), http::HeaderValue::from_static(own))),
            );
            async move { way.call(request).await }
        };
        for (limit, own, expected) in [
            (None, None, None),
            (Some(Duration::from_millis(1500)), None, Some("1500m")),
            (Some(Duration::ZERO), None, Some("1m")),
            (Some(Duration::MAX), None, Some("99999999m")),
            (Some(Duration::from_secs(1)), Some("2S"), Some("2S")),
        ] {
            call(limit, own).await.expect("it is answered");
            let value = heard.try_recv().expect("it was called");
            assert_eq!(value.as_ref().map(|value| value.to_str().expect("ASCII")), expected);
        }
    }
}
