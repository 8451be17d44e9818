//! What a cosigner serves over HTTP: the submission prefix `/w`, the monitoring prefix `/`, the
//! mirrored log, evidence, status and metrics.
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
};
use coppice_verify::{cosignature::REQUEST_BYTES_MAX, note::NOTE_BYTES_MAX, tile::TileName};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

use crate::{
    config::hex,
    convict::Judged,
    error::Error,
    follow::Shared,
    mirror::Mirror,
    witness::{Answer, EVIDENCE, Outcome, Status},
};

/// Most open requests. Further ones are asked to retry.
const REQUESTS_MAX: usize = 64;
/// How long a request may take, with the growth of the mirror that it waits for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request waits for the mirror to grow.
const GROWTH_WAIT: Duration = Duration::from_secs(5);
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
pub async fn serve(listener: TcpListener, routes: Router) {
    http::serve(incoming_within(listener, None, BOUNDS), routes, LIMITS).await;
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
            (&Method::POST, "w/add-checkpoint", _) => self.post(request, Post::Checkpoint).await,
            (&Method::POST, _, Some("report")) => self.post(request, Post::Report).await,
            (&Method::GET | &Method::HEAD, _, Some(rest)) => self.log(rest).await,
            (&Method::GET | &Method::HEAD, path, _) => self.about(path).await,
            _ => Ok(missing()),
        }
    }

    /// What is told about the log.
    async fn log(&self, path: &str) -> Result<Response, Error> {
        if path == "checkpoint" {
            let note = self.shared.with(|witness| Ok(witness.cosigned())).await?;
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
                let status = self.shared.with(|witness| witness.status()).await?;
                let text = serde_json::to_string(&status).map_err(|error| Error::Refused(error.to_string()))?;
                Ok(fresh(JSON, format!("{text}\n").into_bytes()))
            }
            "metrics" => {
                let status = self.shared.with(|witness| witness.status()).await?;
                Ok(fresh("text/plain; version=0.0.4; charset=utf-8", metrics(&status).into_bytes()))
            }
            path if path == prefix => {
                let names = self.shared.with(|witness| witness.evidence()).await?;
                Ok(fresh(TEXT, names.iter().map(|name| format!("{name}\n")).collect::<String>().into_bytes()))
            }
            path => {
                let Some(name) = path.strip_prefix(&prefix).map(str::to_owned) else { return Ok(missing()) };
                let file = self.shared.with(move |witness| witness.evidence_file(&name)).await?;
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
            Post::Checkpoint => REQUEST_BYTES_MAX,
            Post::Report => NOTE_BYTES_MAX,
        };
        let Ok(body) = to_bytes(request.into_body(), most).await else {
            return Ok(plain(StatusCode::BAD_REQUEST, "the body is longer than 64 KiB, or was cut short\n".to_owned()));
        };
        match what {
            Post::Checkpoint => self.add_checkpoint(body).await.map(told),
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

    async fn add_checkpoint(&self, body: Bytes) -> Result<Answer, Error> {
        let again = body.clone();
        match self.shared.with(move |witness| witness.add_checkpoint(&body)).await? {
            Outcome::Done(answer) => {
                if answer == Answer::Untrusted {
                    // The ledger may have changed its key.
                    self.shared.wake();
                }
                Ok(answer)
            }
            Outcome::Behind(note) => {
                if !self.shared.catch_up(note.clone(), GROWTH_WAIT).await? {
                    self.shared.with(move |witness| witness.put_off(&note)).await?;
                    return Ok(Answer::NotNow("the log of the checkpoint is not here yet"));
                }
                match self.shared.with(move |witness| witness.add_checkpoint(&again)).await? {
                    Outcome::Done(answer) => Ok(answer),
                    Outcome::Behind(_) => Ok(Answer::NotNow("the log of the checkpoint is not here yet")),
                }
            }
        }
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
    Checkpoint,
    Report,
}

/// The answer to `add-checkpoint`.
fn told(answer: Answer) -> Response {
    match answer {
        Answer::Line(line) => plain(StatusCode::OK, format!("{line}\n")),
        Answer::Malformed(why) => plain(StatusCode::BAD_REQUEST, format!("{why}\n")),
        Answer::Untrusted => plain(StatusCode::FORBIDDEN, "not signed by a trusted key of this log\n".to_owned()),
        Answer::Unknown => plain(StatusCode::NOT_FOUND, "unknown log\n".to_owned()),
        Answer::Inconsistent(why) => plain(StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n")),
        Answer::NotNow(why) => later(why),
        Answer::Conflict(size) => {
            let mut response = plain(StatusCode::CONFLICT, format!("{size}\n"));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/x.tlog.size"));
            response
        }
    }
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

/// The status in the text format of Prometheus.
fn metrics(status: &Status) -> String {
    let gauges = [
        ("log_entries", "Entries of the mirrored log", status.log_entries),
        ("cosigned_entries", "Entries of the log that was cosigned last", status.cosigned_entries),
        ("cosigned_time_seconds", "Time of the last cosignature since 1970", status.cosigned_at.unwrap_or(0)),
        ("halted", "Whether evidence has halted this cosigner", u64::from(status.halted.is_some())),
        ("evidence_files", "Evidence files that this cosigner has", status.evidence.len() as u64),
        ("may_sign", "Whether others have said what they saw of this cosigner", u64::from(status.floor == Some(true))),
        ("pending_checkpoints", "Signed checkpoints that are larger than the log", status.pending as u64),
    ];
    let one = |(name, help, value): (&str, &str, u64)| {
        let name = format!("coppice_cosigner_{name}");
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n")
    };
    gauges.into_iter().map(one).collect()
}
