//! What a cosigner serves over HTTP: the submission prefixes `/w` of the witness and `/a` of the
//! auditor, the monitoring prefix `/`, the mirrored log, evidence, status and metrics.
//!
//! Anybody may ask. Connections, open requests, their bodies, their time and their rate are
//! bounded.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use coppice_env::Clock;
use coppice_process::{
    http,
    net::{Bounds, incoming_within},
    tls::Acceptor,
};
use coppice_verify::{cosignature::REQUEST_BYTES_MAX, note::NOTE_BYTES_MAX, tile::TileName};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

use crate::{
    config::hex,
    convict::Judged,
    error::Error,
    follow::{Shared, Which},
    mirror::Mirror,
    witness::{Answer, EVIDENCE},
};

/// Most open requests. Further ones are asked to retry.
const REQUESTS_MAX: usize = 64;
/// How long a request may take, with the growth of the mirror that it waits for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Most posts a second, and at once.
const POSTS_PER_S: u32 = 100;
const POSTS_MAX: f64 = 200.0;
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(15), connection_age_max: Duration::from_secs(600) };
/// Callers are anonymous, so the shares are by address.
const BOUNDS: Bounds = Bounds {
    name: "cosigner",
    connections_max: 512,
    caller_max: 64,
    silent_max: 128,
    greeting_timeout: Duration::from_secs(5),
    greeting_bytes: 1,
    idle_max: Duration::from_secs(60),
    write_timeout: Duration::from_secs(15),
};
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The state that the handlers share.
#[derive(Debug)]
struct Door {
    shared: Arc<Shared>,
    slots: Semaphore,
    clock: Arc<dyn Clock>,
    /// Posts that may come now, and since when.
    posts: Mutex<(f64, Duration)>,
}

/// The routes of a cosigner.
pub fn routes(shared: Arc<Shared>, clock: Arc<dyn Clock>) -> Router {
    let posts = Mutex::new((POSTS_MAX, clock.now()));
    let door = Door { shared, slots: Semaphore::new(REQUESTS_MAX), clock, posts };
    Router::new().fallback(answer).with_state(Arc::new(door))
}

/// Serves the connections of a listener.
pub async fn serve(listener: TcpListener, tls: Option<Acceptor>, routes: Router) {
    http::serve(incoming_within(listener, tls, BOUNDS), routes, LIMITS).await;
}

async fn answer(State(door): State<Arc<Door>>, request: Request) -> Response {
    let Ok(_slot) = door.slots.try_acquire() else { return later("too many requests") };
    match timeout(REQUEST_TIMEOUT, door.route(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(Error::Refused(_))) | Err(_) => later("not now"),
        Ok(Err(error)) => {
            tracing::error!(%error, "a request could not be answered");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n".to_owned())
        }
    }
}

impl Door {
    async fn route(&self, request: Request) -> Result<Response, Error> {
        let target = request.uri().path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
        let path = target.strip_prefix('/').unwrap_or_default();
        let below = path.strip_prefix(self.shared.hash()).and_then(|rest| rest.strip_prefix('/'));
        match (request.method(), path, below) {
            (&Method::POST, "w/add-checkpoint", _) => self.post(request, Post::Checkpoint(Which::Witness)).await,
            (&Method::POST, "a/add-checkpoint", _) if self.shared.audits() => {
                self.post(request, Post::Checkpoint(Which::Auditor)).await
            }
            (&Method::POST, _, Some("report")) => self.post(request, Post::Report).await,
            (&Method::GET | &Method::HEAD, _, Some(rest)) => self.log(rest).await,
            (&Method::GET | &Method::HEAD, path, _) => self.about(path).await,
            _ => Ok(missing()),
        }
    }

    /// What is told about the log.
    async fn log(&self, path: &str) -> Result<Response, Error> {
        let which = match path {
            "checkpoint" => Some(Which::Witness),
            "audited" if self.shared.audits() => Some(Which::Auditor),
            _ => None,
        };
        if let Some(which) = which {
            let note = self.shared.with_one(which, |machine| Ok(machine.cosigned())).await?;
            return Ok(note.map_or_else(missing, |note| fresh(TEXT, note)));
        }
        if let Some(key) = path.strip_prefix("cosigned/") {
            let seen = self.shared.seen(key);
            return Ok(match seen {
                None => missing(),
                Some(note) if note.is_empty() => plain(StatusCode::NO_CONTENT, String::new()),
                Some(note) => fresh(TEXT, note),
            });
        }
        let Some(name) = TileName::parse(path) else { return Ok(missing()) };
        let (size, mirror) = self.shared.with(|witness| Ok((witness.size(), witness.mirror()))).await?;
        if !name.is_in(size) {
            return Ok(missing());
        }
        self.shared.with_mirror(mirror, move |mirror: &Mirror| mirror.read(name)).await.map(tile)
    }

    /// What is told about the cosigner.
    async fn about(&self, path: &str) -> Result<Response, Error> {
        let prefix = format!("{EVIDENCE}/");
        match path {
            "status" => {
                let text = serde_json::to_string(&self.shared.report().await?)
                    .map_err(|error| Error::Refused(error.to_string()))?;
                Ok(fresh(JSON, format!("{text}\n").into_bytes()))
            }
            "metrics" => {
                let text = self.shared.report().await?.metrics();
                Ok(fresh("text/plain; version=0.0.4; charset=utf-8", text.into_bytes()))
            }
            path if path == prefix => {
                let names = self.shared.evidence().await?;
                Ok(fresh(TEXT, names.iter().map(|name| format!("{name}\n")).collect::<String>().into_bytes()))
            }
            path => {
                let Some(name) = path.strip_prefix(&prefix).map(str::to_owned) else { return Ok(missing()) };
                let file = self.shared.evidence_file(name).await?;
                Ok(file.map_or_else(missing, |file| fresh(TEXT, file)))
            }
        }
    }

    async fn post(&self, request: Request, what: Post) -> Result<Response, Error> {
        if !self.may_post() {
            let mut response = later("too many posts");
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            return Ok(response);
        }
        let most = match what {
            Post::Checkpoint(_) => REQUEST_BYTES_MAX,
            Post::Report => NOTE_BYTES_MAX,
        };
        let Ok(body) = to_bytes(request.into_body(), most).await else {
            return Ok(plain(StatusCode::BAD_REQUEST, "the body is longer than 64 KiB, or was cut short\n".to_owned()));
        };
        match what {
            Post::Checkpoint(which) => self.shared.add_checkpoint(which, body).await.map(told),
            Post::Report => self.report(body).await,
        }
    }

    fn may_post(&self) -> bool {
        let mut posts = self.posts.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let gained = now.saturating_sub(posts.1).as_secs_f64() * f64::from(POSTS_PER_S);
        *posts = ((posts.0 + gained).min(POSTS_MAX), now);
        let may = posts.0 >= 1.0;
        posts.0 -= f64::from(u8::from(may));
        may
    }

    /// Judges a checkpoint that somebody was shown.
    async fn report(&self, body: Bytes) -> Result<Response, Error> {
        let shown = body.clone();
        let judged = self.shared.with(move |witness| witness.show(&shown)).await?;
        let (code, verdict, file) = match judged {
            Judged::Fine => (StatusCode::OK, "fine", None),
            Judged::Unsigned => (StatusCode::FORBIDDEN, "unsigned", None),
            Judged::Ahead => {
                self.shared.with(move |witness| witness.put_off(&body)).await?;
                self.shared.wake();
                (StatusCode::ACCEPTED, "unknown yet", None)
            }
            Judged::Evidence(file) => {
                let digest = coppice_verify::hash::sha256(&file);
                let name = format!("/{EVIDENCE}/{}{}", hex(&digest), crate::witness::EVIDENCE_ENDING);
                (StatusCode::OK, "evidence", Some(name))
            }
        };
        let text = serde_json::json!({ "verdict": verdict, "evidence": file });
        let mut response = plain(code, format!("{text}\n"));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        Ok(response)
    }
}

#[derive(Clone, Copy, Debug)]
enum Post {
    Checkpoint(Which),
    Report,
}

/// The answer to `add-checkpoint`.
fn told(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = plain(status, answer.text());
    let headers = response.headers_mut();
    match answer {
        Answer::Conflict(_) => drop(headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/x.tlog.size"))),
        Answer::NotNow(_) => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"))),
        _ => {}
    }
    response
}

fn tile(bytes: Vec<u8>) -> Response {
    let caching = "public, max-age=31536000, immutable";
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, caching)];
    (headers, Body::from(bytes)).into_response()
}

fn fresh(kind: &'static str, bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], Body::from(bytes)).into_response()
}

/// A response that no cache keeps.
fn plain(code: StatusCode, text: String) -> Response {
    let headers = [(header::CONTENT_TYPE, TEXT), (header::CACHE_CONTROL, "no-store")];
    (code, headers, text).into_response()
}

fn missing() -> Response {
    plain(StatusCode::NOT_FOUND, "not found\n".to_owned())
}

fn later(why: &str) -> Response {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
