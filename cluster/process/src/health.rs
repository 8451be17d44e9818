//! The health of a process, for kubelets and load balancers, over plain HTTP/1.1 on a port of its
//! own:
//!
//! - `/livez`: the process can still serve without a restart, though it may have to wait. It fails
//!   after a panic, when a listener is lost, and when a replica has stopped for good. It does not
//!   fail for a full disk or a lack of descriptors, which end by themselves.
//! - `/startupz`: the process has opened its files and accepts calls.
//! - `/readyz`: the process serves its role. It fails while the process stops.
//! - `/metrics`: the metrics, in the text format of Prometheus.
//!
//! The probes answer 200 or 503 with a short JSON body that says why. The port has no TLS and asks
//! for no certificate. So an answer names groups and what they wait for, but nothing of the
//! ledger's content. The port is served from the beginning of the process to its end.

use std::{sync::Arc, time::Duration};

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
    Stop, broken, http,
    net::{Accepted, Bounds, incoming_within},
    telemetry::metrics_text,
};

pub use crate::broken::{broken, cannot_recover, note_panics};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A probe is one short request.
const LIMITS: http::Limits =
    http::Limits { head_timeout: Duration::from_secs(2), connection_age_max: Duration::from_secs(10) };
/// Probes may share one address with other callers.
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

/// The health of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The process can't serve its role until it starts again.
    Broken(String),
    /// The process will accept calls once this step is done.
    Starting(String),
    /// The process accepts calls, but can't serve its role.
    NotReady(String),
    /// The process serves its role.
    Ready,
}

impl Health {
    /// The health of a process with two parts: that of the part that is worse off. The first one
    /// counts if both are in the same state.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.rank() <= other.rank() { self } else { other }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Broken(_) => 0,
            Self::Starting(_) => 1,
            Self::NotReady(_) => 2,
            Self::Ready => 3,
        }
    }
}

impl From<Result<(), String>> for Health {
    fn from(readiness: Result<(), String>) -> Self {
        readiness.map_or_else(Self::NotReady, |()| Self::Ready)
    }
}

/// A running health server, which stops when the value is dropped.
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

/// Serves the health that `look` returns on `listener`; `look` must be quick. Once `stop` is asked
/// for, the process is not ready.
pub fn serve(listener: TcpListener, stop: Stop, look: impl Fn() -> Health + Send + Sync + 'static) -> Server {
    let look = move || match broken::why().map_or_else(&look, Health::Broken) {
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

/// Collecting the metrics may wait for locks of their writers, so it has a thread of its own.
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

    #[test]
    fn a_process_is_as_well_as_the_part_that_is_worse_off() {
        let (broken, starting) = (Health::Broken("a".to_owned()), Health::Starting("b".to_owned()));
        let worse_first = [broken, starting, Health::NotReady("c".to_owned()), Health::Ready];
        for (rank, worse) in worse_first.iter().enumerate() {
            for better in &worse_first[rank..] {
                assert_eq!(&worse.clone().and(better.clone()), worse);
                assert_eq!(&better.clone().and(worse.clone()), worse);
            }
        }
    }

    #[tokio::test]
    async fn each_probe_asks_its_own_question_and_is_told_the_reason() {
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
    async fn silent_connections_keep_nobody_out() {
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
