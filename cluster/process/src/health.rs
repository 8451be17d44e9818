//! How a process does, for kubelets and load balancers, over plain HTTP/1.1 on a port of its own:
//!
//! - `/livez`: the process can serve again without a restart, whatever it waits for. It fails after a panic, when a listener is lost, and when a
//!   replica has stopped for good; not for a full disk or want of descriptors, which end by themselves.
//! - `/startupz`: it has opened what it keeps, and takes calls.
//! - `/readyz`: it serves its role; not while it stops.
//! - `/metrics`: what it has counted, in the text format of Prometheus.
//!
//! Each but the last is 200 or 503, with a short JSON body that says why not. The port has no TLS and asks nobody who he is, so an answer names
//! groups and what they wait for, and nothing that is in the ledger. It is served from the beginning of the process to its end.

use std::{
    panic,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, task::AbortHandle};
use tokio_stream::Stream;

use crate::{
    Stop, http,
    net::{Accepted, Bounds, incoming_within},
    telemetry::metrics_text,
};

/// The text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A probe is one short request.
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(2), connection_age_max: Duration::from_secs(10) };
/// Of the connections. What asks here may have one address with others.
const BOUNDS: Bounds = Bounds {
    name: "health",
    connections_max: 64,
    caller_max: 48,
    silent_max: 48,
    greeting_timeout: Duration::from_secs(2),
    greeting_bytes: 1,
    idle_max: Duration::from_secs(10),
    write_timeout: Duration::from_secs(5),
};

/// Why this process has to start again, if it has to: the first reason.
static BROKEN: OnceLock<String> = OnceLock::new();

/// Notes that something failed which this process can't mend by itself: `/livez` fails from now on and says why.
pub fn cannot_recover(why: &str) {
    if BROKEN.set(why.to_owned()).is_ok() {
        tracing::error!(why, "this process can't recover by itself");
    }
}

/// Has every panic noted: one task has ended, and what it shared with others can't be trusted.
pub(crate) fn note_panics() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default(info);
        let place = info.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        cannot_recover(&format!("a task panicked{place}"));
    }));
}

/// How a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It can't serve its role before it starts again, for this reason.
    Broken(String),
    /// It is about to take calls, after this.
    Starting(String),
    /// It takes calls, but can't serve its role for this reason.
    NotReady(String),
    /// It serves its role.
    Ready,
}

impl From<Result<(), String>> for Health {
    fn from(readiness: Result<(), String>) -> Self {
        readiness.map_or_else(Self::NotReady, |()| Self::Ready)
    }
}

/// Answers as long as this is kept.
#[derive(Debug)]
pub struct Server {
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Look = Arc<dyn Fn() -> Health + Send + Sync>;

/// Answers on `listener` what `look` says, which must be quick; once `stop` is asked for, the process is not ready.
pub fn serve(listener: TcpListener, stop: Stop, look: impl Fn() -> Health + Send + Sync + 'static) -> Server {
    let look = move || match BROKEN.get().cloned().map_or_else(&look, Health::Broken) {
        Health::Ready if stop.is_asked() => Health::NotReady("stopping".to_owned()),
        health => health,
    };
    let task = tokio::spawn(answer(incoming_within(listener, None, BOUNDS), Arc::new(look)));
    Server { task: task.abort_handle() }
}

async fn answer(incoming: impl Stream<Item = std::io::Result<Accepted>>, look: Look) {
    http::serve(incoming, routes(look), LIMITS).await;
}

fn routes(look: Look) -> Router {
    let livez = |State(look): State<Look>| async move {
        response(match look() {
            Health::Ready | Health::NotReady(_) | Health::Starting(_) => Ok(()),
            Health::Broken(why) => Err(why),
        })
    };
    let readyz = |State(look): State<Look>| async move {
        response(match look() {
            Health::Ready => Ok(()),
            Health::NotReady(why) | Health::Starting(why) | Health::Broken(why) => Err(why),
        })
    };
    let startupz = |State(look): State<Look>| async move {
        response(match look() {
            Health::Ready | Health::NotReady(_) => Ok(()),
            Health::Starting(why) | Health::Broken(why) => Err(why),
        })
    };
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(startupz))
        .route("/metrics", get(metrics))
        .with_state(look)
}

/// Looking at everything may wait for what is written to meanwhile.
async fn metrics() -> Response {
    match tokio::task::spawn_blocking(metrics_text).await {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn response(verdict: Result<(), String>) -> Response {
    let (code, body) = match verdict {
        Ok(()) => (StatusCode::OK, serde_json::json!({ "ok": true })),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({ "ok": false, "why": why })),
    };
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (code, headers, format!("{body}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(io: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n");
        io.write_all(request.as_bytes()).await.expect("it is open");
        let mut text = String::new();
        io.read_to_string(&mut text).await.expect("an answer");
        text
    }

    #[tokio::test]
    async fn each_probe_asks_something_else_and_is_told_why_not() {
        let listener = crate::net::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let health = Arc::new(Mutex::new(Health::Starting("opening \"a\"".to_owned())));
        let (order, stop) = Stop::by_order();
        let shown = Arc::clone(&health);
        let server = serve(listener, stop, move || shown.lock().expect("no holder panics").clone());
        let probe = async |path: &str| {
            let mut io = tokio::net::TcpStream::connect(address).await.expect("it listens");
            let text = ask(&mut io, path).await;
            let (head, body) = text.split_once("\r\n\r\n").expect("a body");
            assert!(path == "/" || head.contains("application/json") && head.contains("no-store"), "{head}");
            (head[9..12].to_owned(), body.to_owned())
        };
        let ok = ("200".to_owned(), "{\"ok\":true}\n".to_owned());
        let not = |why: &str| ("503".to_owned(), format!("{{\"ok\":false,\"why\":\"{why}\"}}\n"));
        assert_eq!(probe("/livez").await, ok);
        assert_eq!(probe("/startupz").await, not("opening \\\"a\\\""));
        assert_eq!(probe("/readyz").await, not("opening \\\"a\\\""));
        *health.lock().expect("no holder panics") = Health::NotReady("no leader".to_owned());
        assert_eq!((probe("/livez").await, probe("/startupz").await), (ok.clone(), ok.clone()));
        assert_eq!(probe("/readyz").await, not("no leader"));
        *health.lock().expect("no holder panics") = Health::Ready;
        assert_eq!(probe("/readyz").await, ok);
        assert_eq!(probe("/").await.0, "404");
        *health.lock().expect("no holder panics") = Health::Broken("shard-1 has stopped".to_owned());
        for path in ["/livez", "/readyz", "/startupz"] {
            assert_eq!(probe(path).await, not("shard-1 has stopped"), "{path}");
        }
        *health.lock().expect("no holder panics") = Health::Ready;
        order.send_replace(true);
        assert_eq!((probe("/livez").await, probe("/readyz").await), (ok, not("stopping")));
        drop(server);
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_connects_and_says_nothing_keeps_nobody_out() {
        let listener = crate::net::listen("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let _server = serve(listener, Stop::by_order().1, || Health::Ready);
        let mut silent = Vec::new();
        for _ in 0..=BOUNDS.connections_max {
            silent.push(tokio::net::TcpStream::connect(address).await.expect("it listens"));
            let mut prober = tokio::net::TcpStream::connect(address).await.expect("it listens");
            assert!(ask(&mut prober, "/readyz").await.starts_with("HTTP/1.1 200"));
        }
    }
}
