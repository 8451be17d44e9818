//! The root log for strangers, over HTTP: checkpoint, tiles and entries as C2SP `tlog-tiles` says.
//!
//! Invariants: a checkpoint is shown only after what it covers is committed in the root group, so its tiles can be had from
//! then on; a resource has one path, and everything else is 404; what does not change says so (`immutable`), and what does
//! is never kept by caches. Connections, requests under way, their time and the cache are bounded.

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
use crate::{exec::context::Context, publish::Publisher};

/// Most requests under way at once; more are told to come again.
const REQUESTS_MAX: usize = 64;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Of one connection.
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(15), connection_age_max: Duration::from_secs(600) };
/// Of all connections. Everybody may read the log, and nobody says who he is: an address has a
/// share.
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

/// What the handlers share.
#[derive(Debug)]
struct Shared {
    publisher: Arc<Publisher>,
    tiles: Tiles,
    room: Semaphore,
}

/// The routes of the root log.
pub fn routes(context: Arc<Context>, publisher: Arc<Publisher>) -> Router {
    let shared = Shared { publisher, tiles: Tiles::new(context), room: Semaphore::new(REQUESTS_MAX) };
    Router::new().fallback_service(get(answer).with_state(Arc::new(shared)))
}

/// Serves the connections of a listener as long as they come.
pub async fn serve(listener: TcpListener, tls: Option<Acceptor>, routes: Router) {
    http::serve(incoming_within(listener, tls, BOUNDS), routes, LIMITS).await;
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let Some(resource) = Resource::of(&request) else { return missing() };
    let Ok(_permit) = shared.room.try_acquire() else { return later() };
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

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Checkpoint,
    Tile(TileName),
}

impl Resource {
    /// Nothing, unless path and query are exactly as the resource is spelt.
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

/// No cache keeps it: what is missing now may be there in a moment.
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
