//! The root log for the public, over HTTP: checkpoint, tiles and entries as C2SP `tlog-tiles`
//! defines them, and at the root the pages that show and verify them in a browser.
//!
//! Invariants: a checkpoint is shown only after its entries are committed in the root group, so its
//! tiles can already be fetched. Each resource has one path; everything else is 404. Responses that
//! never change say so (`immutable`); caches never keep the others. Connections, open requests,
//! their time and the cache are bounded.

mod tiles;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use coppice_console::Front;
use coppice_process::{
    http,
    net::{Bounds, incoming_within},
    tls::Acceptor,
};
use coppice_proto::status;
use coppice_types::ErrorKind;
use coppice_verify::tile::TileName;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tonic::Status;

use self::tiles::Tiles;
use super::publish::Publisher;
use crate::groups::root_log::RootLog;

/// Limit on the number of open requests. Further ones are asked to retry.
const REQUESTS_MAX: usize = 64;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bounds of one connection.
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(15), connection_age_max: Duration::from_secs(600) };
/// Bounds of all connections. Anybody may read the log, and callers are anonymous, so the shares
/// are by address.
const BOUNDS: Bounds = Bounds {
    name: "http",
    connections_max: 1024,
    caller_max: 64,
    silent_max: 256,
    greeting_timeout: Duration::from_secs(5),
    greeting_bytes: 1,
    idle_max: Duration::from_secs(60),
    write_timeout: Duration::from_secs(15),
};

/// The state that the handlers share.
#[derive(Debug)]
struct Shared {
    publisher: Arc<Publisher>,
    tiles: Tiles,
    request_slots: Semaphore,
}

/// The routes of the root log.
pub fn routes(log: Arc<RootLog>, publisher: Arc<Publisher>) -> Router {
    let shared = Shared { publisher, tiles: Tiles::new(log), request_slots: Semaphore::new(REQUESTS_MAX) };
    Router::new().fallback_service(get(answer).with_state(Arc::new(shared)))
}

/// Serves the connections of a listener.
pub async fn serve(listener: TcpListener, tls: Option<Acceptor>, routes: Router) {
    http::serve(incoming_within(listener, tls, BOUNDS), routes, LIMITS).await;
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Some(file) = page(&request) {
        return file;
    }
    let Some(resource) = Resource::of(&request) else { return missing() };
    let Ok(_permit) = shared.request_slots.try_acquire() else { return later() };
    let found = async {
        match resource {
            Resource::Checkpoint => shared.publisher.checkpoint().await.map(Some),
            Resource::Tile(name) => shared.tiles.get(name).await,
        }
    };
    match timeout(REQUEST_TIMEOUT, found).await {
        Ok(Ok(Some(bytes))) => resource.response(bytes),
        Ok(Ok(None)) => missing(),
        Ok(Err(error)) => failed(&error),
        Err(_) => later(),
    }
}

/// The file of the pages that a path names. They come from the program, so they take no slot.
fn page(request: &Request) -> Option<Response> {
    Front::Log.answer(request.uri().path_and_query()?.as_str())
}

/// The resource that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Checkpoint,
    Tile(TileName),
}

impl Resource {
    /// `None` unless path and query are spelled exactly like those of the resource.
    fn of(request: &Request) -> Option<Self> {
        match request.uri().path_and_query()?.as_str().strip_prefix('/')? {
            "checkpoint" => Some(Self::Checkpoint),
            path => TileName::parse(path).map(Self::Tile),
        }
    }

    fn response(self, bytes: Bytes) -> Response {
        let (kind, caching) = match self {
            Self::Checkpoint => ("text/plain; charset=utf-8", "no-cache"),
            Self::Tile(_) => ("application/octet-stream", "public, max-age=31536000, immutable"),
        };
        let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, caching)];
        (headers, Body::from(bytes)).into_response()
    }
}

/// A response that no cache keeps, since a missing resource may exist a moment later.
fn plain(code: StatusCode, text: &'static str) -> Response {
    let mut response = (code, text).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn missing() -> Response {
    plain(StatusCode::NOT_FOUND, "not found\n")
}

fn later() -> Response {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, "not now; try again\n");
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn failed(error: &Status) -> Response {
    match status::kind(error) {
        ErrorKind::NotFound => missing(),
        ErrorKind::Corrupted | ErrorKind::Internal => {
            tracing::error!(%error, "the root log could not be shown");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
        }
        _ => later(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(uri: &str) -> Option<Resource> {
        Resource::of(&Request::builder().uri(uri).body(Body::empty()).expect("a request"))
    }

    #[test]
    fn the_root_is_a_page_for_browsers() {
        let answered = |uri: &str| page(&Request::builder().uri(uri).body(Body::empty()).expect("a request"));
        let root = answered("/").expect("a page");
        assert_eq!(root.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(answered("/app.js").is_some() && answered("/verify.wasm").is_some());
        for other in ["/?x", "/app.js?x", "/index.html", "/checkpoint", "/tile/0/000"] {
            assert!(answered(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_resource_has_one_path() {
        assert_eq!(resource("/checkpoint"), Some(Resource::Checkpoint));
        assert!(matches!(resource("/tile/0/000"), Some(Resource::Tile(_))));
        assert!(matches!(resource("/tile/entries/x001/000.p/3"), Some(Resource::Tile(_))));
        for other in [
            "/",
            "/checkpoint/",
            "//checkpoint",
            "/checkpoint?",
            "/checkpoint?x=1",
            "/Checkpoint",
            "/%63heckpoint",
            "/tile/0/000?x",
            "/tile/0/%30%30%30",
            "/./tile/0/000",
            "/tile/0/../0/000",
        ] {
            assert_eq!(resource(other), None, "{other}");
        }
    }
}
