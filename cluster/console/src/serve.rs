//! The server of one user: the files of the pages, and an allow-list of reads.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    response::Response,
};
use coppice_http::{Problems, Telling};
use coppice_process::{
    http,
    net::{Bounds, incoming_within},
};
use coppice_proto::{rest::Resource, v1::ledger_server::Ledger};
use serde::Serialize;
use tokio::{net::TcpListener, sync::Semaphore};
use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};

use crate::{
    assets::{Front, protect, refusal},
    guard::Guard,
    ledgers::Asked,
};

/// Most requests about the ledger at once. Further ones are asked to come again.
const CALLS_MAX: usize = 64;
/// Longest wait for the beginning of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Bounds of one connection.
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(15), connection_age_max: Duration::from_secs(3600) };
/// Bounds of all connections. One browser opens at most a few to one address.
const BOUNDS: Bounds = Bounds {
    name: "console",
    connections_max: 128,
    caller_max: 128,
    silent_max: 32,
    greeting_timeout: Duration::from_secs(5),
    greeting_bytes: 1,
    idle_max: Duration::from_secs(300),
    write_timeout: Duration::from_secs(30),
};
/// No request of a page has a body.
const BODY_BYTES_MAX: usize = 0;

/// What the user's own side tells the pages.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// The ledger's public key that the user trusts.
    pub key: Option<String>,
    /// Text of the user's policy, which names witnesses.
    pub policy: Option<String>,
    /// The version of this program.
    pub program: String,
    /// The coordinators that are asked.
    pub endpoints: Vec<String>,
}

type Tonic = tonic::body::Body;
type Inner = BoxCloneSyncService<axum::http::Request<Tonic>, axum::http::Response<Tonic>, std::convert::Infallible>;

struct Shared<L> {
    ledger: L,
    guard: Guard,
    settings: String,
    calls: Semaphore,
    api: Telling<Inner>,
}

/// The routes of a console that reads this ledger.
pub fn routes<L: Ledger + Clone>(ledger: L, guard: Guard, settings: &Settings) -> Router {
    let api = coppice_http::routes(ledger.clone(), BODY_BYTES_MAX);
    let inner = tower::service_fn(move |request: axum::http::Request<Tonic>| {
        let api = api.clone();
        async move { Ok(api.oneshot(request.map(Body::new)).await.unwrap_or_else(|never| match never {}).map(Tonic::new)) }
    });
    let shared = Shared {
        ledger,
        guard,
        settings: serde_json::to_string(settings).expect("texts are JSON"),
        calls: Semaphore::new(CALLS_MAX),
        api: Problems { http: true }.layer(BoxCloneSyncService::new(inner)),
    };
    Router::new().fallback(answer::<L>).with_state(Arc::new(shared))
}

/// Serves the connections of a listener on the loopback interface.
///
/// # Panics
/// If the listener is on an address that other machines can reach.
pub async fn serve(listener: TcpListener, routes: Router) {
    let address = listener.local_addr().expect("a bound listener has an address");
    assert!(address.ip().is_loopback(), "a console is for this machine alone");
    http::serve(incoming_within(listener, None, BOUNDS), routes, LIMITS).await;
}

async fn answer<L: Ledger>(State(shared): State<Arc<Shared<L>>>, request: Request) -> Response {
    let (uri, headers) = (request.uri(), request.headers());
    if let Err((code, words)) = shared.guard.check_page(uri, headers) {
        return refusal(code, words);
    }
    if request.method() != Method::GET {
        let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, "a console only reads");
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    if let Some(file) = Front::Console.answer(uri.path()) {
        return file;
    }
    if let Err((code, words)) = shared.guard.check_call(uri, headers) {
        return refusal(code, words);
    }
    if uri.path() == "/settings.json" {
        let mut answer = Response::new(Body::from(shared.settings.clone()));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return protect(answer);
    }
    let of_members = Asked::at(uri);
    if of_members.is_none() && !is_read(uri.path()) {
        return refusal(StatusCode::NOT_FOUND, "there is nothing at this path");
    }
    let Ok(_permit) = shared.calls.try_acquire() else { return busy() };
    let asked = async {
        match of_members {
            Some(asked) => asked.answer(&shared.ledger).await,
            None => {
                let answer = shared.api.clone().call(request.map(Tonic::new)).await;
                protect(answer.unwrap_or_else(|never| match never {}).map(Body::new))
            }
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or_else(|_| busy())
}

fn busy() -> Response {
    let mut later =
        refusal(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once, or no answer in time; try again");
    later.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    later
}

/// Whether a page may ask for this resource. All of these need no role beyond that of a reader.
fn is_read(path: &str) -> bool {
    use Resource::{Checkpoint, Diff, Head, History, Log, Record, Records, Status};
    matches!(Resource::at(path), Some(Record(_) | History(_) | Records | Diff | Head | Log | Checkpoint | Status))
}
