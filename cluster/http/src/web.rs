//! gRPC-web: gRPC for pages in browsers, which see no trailers.
//!
//! **Invariants.** A call becomes one of gRPC before the limits, the guard and the services see it,
//! so they judge it as any other. A page, which states its `Origin`, calls only what changes
//! nothing. No page of another origin calls at all: what tells gRPC from other requests is a
//! media type for which a browser asks first, and nobody answers it.

use axum::http::{
    HeaderMap, HeaderValue, Method, Request, Response, Version,
    header::{CONTENT_TYPE, ORIGIN},
};
use coppice_proto::{page, status};
use coppice_types::Reason;
use tonic::{body::Body, codegen::Service};
use tonic_web::GrpcWebLayer;
use tower::Layer;

use crate::body::guard;

/// The media types of gRPC-web.
const WEB: [&str; 4] = [
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
];

/// The protocol of a request that is not for the HTTP API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    Grpc,
    Web,
    /// Neither. A page of another origin can send such a request.
    Foreign,
}

impl Spoken {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let kind = media_type(request.headers());
        if request.method() != Method::POST {
            return Self::Foreign;
        }
        if WEB.contains(&kind) {
            return Self::Web;
        }
        let is_grpc =
            kind.strip_prefix("application/grpc").is_some_and(|rest| rest.is_empty() || rest.starts_with('+'));
        // gRPC is spoken by HTTP/2 alone.
        if is_grpc && request.version() >= Version::HTTP_2 { Self::Grpc } else { Self::Foreign }
    }
}

fn media_type(headers: &HeaderMap) -> &str {
    headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// The answer to a call of gRPC-web by a service for gRPC, which is ready.
pub(crate) async fn answer<S>(service: S, request: Request<Body>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    let mut answer = if request.headers().contains_key(ORIGIN) && !page::may_call(request.uri().path()) {
        let why = "denied: a page in a browser, which states its Origin, may call only what changes nothing";
        let mut refused = status::refuse(Reason::Denied, why).into_http::<Body>();
        refused.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(WEB[1]));
        refused
    } else {
        GrpcWebLayer::new().layer(service).call(request).await?
    };
    guard(answer.headers_mut());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_a_browser_sends_unasked_is_no_call() {
        let of = |method: Method, version, kind: &str| {
            let request = Request::builder().method(method).version(version).header(CONTENT_TYPE, kind).body(());
            Spoken::of(&request.expect("a request"))
        };
        for version in [Version::HTTP_11, Version::HTTP_2] {
            for kind in WEB {
                assert_eq!(of(Method::POST, version, kind), Spoken::Web);
                assert_eq!(of(Method::OPTIONS, version, kind), Spoken::Foreign);
            }
            for kind in [
                "",
                "text/plain",
                "text/plain; application/grpc",
                "multipart/form-data",
                "application/x-www-form-urlencoded",
                "application/grpcx",
                "application/grpc-web; charset=utf-8",
            ] {
                assert_eq!(of(Method::POST, version, kind), Spoken::Foreign, "{kind}");
            }
        }
        for kind in ["application/grpc", "application/grpc+proto"] {
            assert_eq!(of(Method::POST, Version::HTTP_2, kind), Spoken::Grpc);
            assert_eq!(of(Method::POST, Version::HTTP_11, kind), Spoken::Foreign);
            assert_eq!(of(Method::GET, Version::HTTP_2, kind), Spoken::Foreign);
        }
    }
}
