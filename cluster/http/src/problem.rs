//! Refusals as problem documents (RFC 9457), with the reasons of the gRPC API.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use bytes::Bytes;
use coppice_proto::{
    rest::{Resource, is_rest},
    status,
    telemetry::name_of,
};
use coppice_types::{ErrorKind, Reason};
use futures::future::Either;
use http_body::{Body as HttpBody, Frame, SizeHint};
use serde_json::{Value, json};
use tonic::{Code, Status, body::Body, codegen::Service, metadata::MetadataValue};
use tower::Layer;

use crate::{
    body::{VERSION, guard, line},
    unread::{self, Unread},
    web::{self, Spoken},
};

/// How long a caller should wait before it repeats a request, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The HTTP status code of a refusal.
#[must_use]
pub fn code_of(status: &Status) -> StatusCode {
    if status.code() == Code::Unimplemented {
        let elsewhere = status.metadata().contains_key(header::ALLOW.as_str());
        return if elsewhere { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
    }
    match status::reason(status) {
        Some(Reason::LimitExceeded) => return StatusCode::PAYLOAD_TOO_LARGE,
        Some(Reason::PreconditionFailed) => return StatusCode::PRECONDITION_FAILED,
        Some(Reason::NotYet) => return StatusCode::TOO_EARLY,
        Some(Reason::Pruned | Reason::PurgedJournal) => return StatusCode::GONE,
        Some(Reason::DiskFull) => return StatusCode::SERVICE_UNAVAILABLE,
        _ => {}
    }
    match status::kind(status) {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unavailable | ErrorKind::Fenced => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupted | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The problem document of a refusal.
pub(crate) fn document(status: &Status) -> Value {
    let code = code_of(status);
    json!({
        "type": "about:blank",
        "title": code.canonical_reason().unwrap_or_default(),
        "status": code.as_u16(),
        "reason": status::reason(status).map_or(name_of(status.code()), Reason::name),
        "detail": status.message(),
    })
}

/// The answer that a refusal becomes.
fn answer(status: &Status) -> Response<Body> {
    let code = code_of(status);
    let document = line(&document(status));
    let length = document.len().into();
    let mut answer = Response::new(Body::new(axum::body::Body::from(document)));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CONTENT_LENGTH, length);
    guard(headers);
    let again = [StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    if again.contains(&code) {
        headers.insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    for name in [VERSION, header::ALLOW] {
        let said =
            status.metadata().get(name.as_str()).and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        if let Some(value) = said {
            headers.insert(name, value);
        }
    }
    answer
}

/// Adds a header to the answer that a refusal becomes: [`VERSION`] or `Allow`.
pub(crate) fn with_header(mut status: Status, name: &'static str, value: &str) -> Status {
    if let Ok(value) = MetadataValue::try_from(value) {
        status.metadata_mut().insert(name, value);
    }
    status
}

/// There is nothing at a path.
pub(crate) fn no_resource() -> Status {
    Status::unimplemented("there is nothing at this path; /v1/openapi.json lists what there is")
}

/// A resource has other methods.
pub(crate) fn no_method(resource: Resource<'_>) -> Status {
    let methods: Vec<&str> = resource.methods().iter().map(|(method, _)| method.as_str()).collect();
    let methods = methods.join(", ");
    let refused = Status::unimplemented(format!("the methods here are: {methods}"));
    with_header(refused, "allow", &methods)
}

/// The outermost layer of a server for gRPC, gRPC-web and HTTP. It leaves calls of gRPC as they
/// are.
#[derive(Clone, Copy, Debug)]
pub struct Problems {
    /// Whether gRPC-web and HTTP are spoken. If not, there is nothing at their paths.
    pub http: bool,
}

impl<S> Layer<S> for Problems {
    type Service = Telling<S>;

    fn layer(&self, inner: S) -> Telling<S> {
        Telling { inner, http: self.http }
    }
}

/// A service behind [`Problems`].
#[derive(Clone, Debug)]
pub struct Telling<S> {
    inner: S,
    http: bool,
}

type Boxed<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Telling<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Boxed<S::Error>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_rest = is_rest(request.uri().path());
        let spoken = Spoken::of(&request);
        if spoken == Spoken::Grpc && !is_rest {
            return Either::Left(self.inner.call(request));
        }
        if !self.http || !(is_rest || spoken == Spoken::Web) {
            return Either::Right(Box::pin(async {
                unread::drain(request.into_body()).await;
                Ok(answer(&no_resource()))
            }));
        }
        let (request, unread) = Unread::of(request);
        // The clone may not be ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Either::Right(Box::pin(async move {
            let answered = if is_rest {
                let answered = inner.call(request).await?;
                match refusal(answered.headers()) {
                    Some(status) => answer(&status),
                    None => answered.map(|body| Body::new(Unbroken { body })),
                }
            } else {
                web::answer(inner, request).await?
            };
            unread.drain().await;
            Ok(answered)
        }))
    }
}

/// The refusal in headers of gRPC.
fn refusal(headers: &HeaderMap) -> Option<Status> {
    let refused = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)?;
    // The services of gRPC say nothing where they have no method.
    let is_silent = refused.code() == Code::Unimplemented && refused.message().is_empty();
    Some(if is_silent { no_resource() } else { refused })
}

/// A body that fails where gRPC would say in trailers that it broke off. Most readers of HTTP don't
/// look at trailers.
struct Unbroken {
    body: Body,
}

impl HttpBody for Unbroken {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(task));
        Poll::Ready(frame.map(|frame| match frame?.into_trailers() {
            Ok(trailers) => Err(refusal(&trailers).unwrap_or_else(|| Status::internal("the answer has trailers"))),
            Err(frame) => Ok(frame),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_status_code_that_says_what_to_do() {
        for &reason in Reason::ALL {
            let code = code_of(&status::refuse(reason, ""));
            let theirs = matches!(
                reason.kind(),
                ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Conflict
            );
            assert_eq!(code.is_client_error() && code != StatusCode::TOO_MANY_REQUESTS, theirs, "{reason}: {code}");
        }
        let of = |reason| code_of(&status::refuse(reason, "")).as_u16();
        let expected = [
            (Reason::InvalidArgument, 400),
            (Reason::LimitExceeded, 413),
            (Reason::Denied, 403),
            (Reason::NotFound, 404),
            (Reason::PreconditionFailed, 412),
            (Reason::RolledBack, 409),
            (Reason::Pruned, 410),
            (Reason::NotYet, 425),
            (Reason::QuotaExceeded, 429),
            (Reason::NotLeader, 503),
            (Reason::Internal, 500),
        ];
        for (reason, code) in expected {
            assert_eq!(of(reason), code, "{reason}");
        }
        assert_eq!(code_of(&Status::deadline_exceeded("")), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn a_method_that_is_not_there_names_those_that_are() {
        let refused = no_method(Resource::Record("k"));
        // The layers in between know a refusal by its headers alone.
        let sent = refused.into_http::<axum::body::Body>();
        let answer = answer(&refusal(sent.headers()).expect("it is refused"));
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(answer.headers()["allow"], "GET, PUT, DELETE");
    }
}
