//! Links between processes. Each call goes straight into the services of its receiver.

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
    /// The link from a process to another one, by name.
    #[must_use]
    pub fn channel(&self, from: &Life, to: &str) -> Channel {
        Channel::new(Link { net: self.clone(), from: from.clone(), to: to.to_owned() })
    }

    /// The links from a process to all others.
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

/// The link from one process to another.
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

/// Whether the request of a call is a stream.
fn streams(path: &str) -> bool {
    path.ends_with("/Exchange") || path.ends_with("/CommitStream")
}

/// Whether a call may arrive twice. By design, each call of the cluster's own processes may be
/// repeated; clients' calls may not.
fn may_double(path: &str) -> bool {
    !path.starts_with("/coppice.v1.Ledger/")
}

impl Link {
    async fn carry(&self, request: HttpRequest) -> Result<HttpResponse, Status> {
        if !self.from.message() {
            // A dead caller never goes on.
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
        let late = self.net.spring(&self.from, &endpoint.life, &path, &bytes);
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
        let (server, request) = (endpoint.clone(), request_of(&head, bytes));
        tokio::spawn(async move {
            if let Some(late) = late {
                sleep(late).await;
            }
            serve(server, request, answer, fate.detached || late.is_some()).await;
        });
        let answered = answered.await;
        self.bring_back(answered.ok(), &endpoint, fate, &path).await
    }

    /// Carries a call whose request is a stream, which the service reads as it comes.
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

/// Has a process serve a call until it dies. Unless `detached`, the service also stops when the
/// caller stops waiting.
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
