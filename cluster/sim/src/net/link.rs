//! Links between processes: each call is carried straight into the services of the process it is for.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use coppice_proto::{Channel, HttpRequest, HttpResponse};
use coppice_shard_node::Connector;
use http_body_util::BodyExt;
use tokio::{sync::oneshot, time::sleep};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, StdError, http},
};
use tower::ServiceExt;
use twox_hash::XxHash3_64;

use super::{
    body::{self, AnswerBody, MessagesBody},
    medium::{Endpoint, Fate, Net},
};
use crate::{event, life::Life};

impl Net {
    /// A way from a process to another, by its name.
    #[must_use]
    pub fn channel(&self, from: &Life, to: &str) -> Channel {
        Channel::new(Link { net: self.clone(), from: from.clone(), to: to.to_owned() })
    }

    /// The ways of a process to all others.
    #[must_use]
    pub fn connector(&self, from: &Life) -> Arc<dyn Connector> {
        Arc::new(SimConnector { net: self.clone(), from: from.clone() })
    }
}

#[derive(Debug)]
struct SimConnector {
    net: Net,
    from: Life,
}

impl Connector for SimConnector {
    fn channel(&self, node: &str) -> Channel {
        self.net.channel(&self.from, node)
    }
}

/// One process's way to another.
#[derive(Clone, Debug)]
struct Link {
    net: Net,
    from: Life,
    to: String,
}

impl Service<HttpRequest> for Link {
    type Response = HttpResponse;
    type Error = StdError;
    type Future = BoxFuture<HttpResponse, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let link = self.clone();
        Box::pin(async move { link.carry(request).await.map_err(StdError::from) })
    }
}

/// The calls whose requests are streams.
fn streams(path: &str) -> bool {
    path.ends_with("/Exchange") || path.ends_with("/CommitStream")
}

/// Calls of the cluster's own processes: each may be repeated by design. Clients' calls are not repeated for them.
fn may_double(path: &str) -> bool {
    !path.starts_with("/coppice.v1.Ledger/")
}

impl Link {
    async fn carry(&self, request: HttpRequest) -> Result<HttpResponse, Status> {
        if !self.from.message() {
            // Nobody is left who could go on.
            std::future::pending::<()>().await;
        }
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        if streams(&path) {
            return self.carry_stream(head, body, &path).await;
        }
        let bytes = body.collect().await?.to_bytes();
        let fate = self.net.fate(may_double(&path));
        let (from, to) = (self.from.name(), &self.to);
        event!(self.net.trace(), "{from} > {to} {path} {} {:016x} {fate:?}", bytes.len(), XxHash3_64::oneshot(&bytes));
        sleep(fate.there).await;
        let endpoint = if fate.lost { None } else { self.net.endpoint(&self.from, to) };
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.life.message()) else {
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{to} can't be reached")));
        };
        self.net.spring(&self.from, &endpoint.life, &path, &bytes);
        if let Some(again) = fate.again {
            let (link, endpoint, request) = (self.clone(), endpoint.clone(), request_of(&head, bytes.clone()));
            let path = path.clone();
            tokio::spawn(async move {
                sleep(again).await;
                event!(link.net.trace(), "{} > {} {path} once more", link.from.name(), link.to);
                let (unheard, _) = oneshot::channel();
                serve(endpoint, request, unheard, true).await;
            });
        }
        let (answer, answered) = oneshot::channel();
        tokio::spawn(serve(endpoint.clone(), request_of(&head, bytes), answer, fate.detached));
        let answered = answered.await;
        self.bring_back(answered.ok(), &endpoint, fate, &path).await
    }

    /// A call whose request is a stream: the service reads it as it comes.
    async fn carry_stream(&self, head: http::request::Parts, body: Body, path: &str) -> Result<HttpResponse, Status> {
        let fate = self.net.fate(false);
        event!(self.net.trace(), "{} > {} {path}", self.from.name(), self.to);
        sleep(fate.there).await;
        let Some(endpoint) = self.net.endpoint(&self.from, &self.to) else {
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{} can't be reached", self.to)));
        };
        let ordered = !path.ends_with("/Exchange");
        let body = MessagesBody::new(body, self.net.clone(), self.from.clone(), endpoint.life.clone(), ordered);
        let request = http::Request::from_parts(head, Body::new(body));
        let (answer, answered) = oneshot::channel();
        tokio::spawn(serve(endpoint.clone(), request, answer, false));
        let answered = answered.await;
        self.bring_back(answered.ok(), &endpoint, fate, path).await
    }

    async fn bring_back(
        &self,
        answer: Option<HttpResponse>,
        endpoint: &Endpoint,
        fate: Fate,
        path: &str,
    ) -> Result<HttpResponse, Status> {
        let (from, to) = (self.from.name(), &self.to);
        let Some(answer) = answer.filter(|_| endpoint.life.message()) else {
            event!(self.net.trace(), "{to} > {from} {path} breaks");
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("{to} has gone")));
        };
        sleep(fate.back).await;
        if fate.answer_lost || !self.net.carries(&endpoint.life, &self.from) {
            event!(self.net.trace(), "{to} > {from} {path} answer lost");
            sleep(fate.hang).await;
            return Err(Status::unavailable(format!("the answer of {to} was lost")));
        }
        if !self.from.message() {
            std::future::pending::<()>().await;
        }
        let header = |name| answer.headers().get(name).and_then(|text| text.to_str().ok()).unwrap_or("-");
        let (status, message) = (header("grpc-status"), header("grpc-message"));
        event!(self.net.trace(), "{to} > {from} {path} status {status} {message}");
        let (near, far) = (self.from.clone(), endpoint.life.clone());
        let (net, gone) = (self.net.clone(), body::gone(&far));
        Ok(answer.map(|inner| Body::new(AnswerBody { inner, net, near, far, frames: 0, gone })))
    }
}

fn request_of(head: &http::request::Parts, bytes: Bytes) -> HttpRequest {
    http::Request::from_parts(head.clone(), Body::new(http_body_util::Full::new(bytes)))
}

/// Has a process serve a call, until it is dead; and, unless `detached`, as long as somebody waits for the answer.
async fn serve(endpoint: Endpoint, request: HttpRequest, mut answer: oneshot::Sender<HttpResponse>, detached: bool) {
    let served = endpoint.routes.oneshot(request);
    let gone = async {
        if detached {
            std::future::pending::<()>().await;
        }
        answer.closed().await;
    };
    let response = tokio::select! {
        biased;
        () = endpoint.life.ended() => return,
        () = gone => return,
        response = served => response,
    };
    let Ok(response) = response;
    // A caller that has gone needs no answer.
    let _ = answer.send(response.map(Body::new));
}
