//! A load of clients on a ledger, and its measurement.
//!
//! A closed loop has a number of clients, each of which makes its next call when the last one is
//! answered. An open loop makes calls at fixed times, without waiting for answers, and counts
//! latency from the time at which a call was due.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use coppice_client::Error;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::pace::{Pace, due_at};

/// A pause that keeps clients of a dead ledger from spinning.
const PAUSE: Duration = Duration::from_millis(20);

/// The shape of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds of load before the measurement.
    pub warmup: f64,
    /// Calls a second in an open loop; `None` for a closed one.
    pub rate: Option<f64>,
}

/// Makes a client's call, by its number among the calls of all clients.
pub type Caller = Box<dyn FnMut(u64) -> BoxFuture<'static, Result<(), Error>> + Send>;

/// The measurements of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Number of answers within the time.
    pub calls: u64,
    /// Number of calls that were begun.
    pub begun: u64,
    report: Value,
}

impl Measured {
    /// Errors, latencies and the longest gap between answers, as JSON.
    pub fn into_json(self) -> Value {
        self.report
    }
}

/// State that all clients share.
struct Run {
    start: Instant,
    begin: Instant,
    end: Instant,
    tickets: AtomicU64,
    /// Times of an open loop, with its rate.
    pace: Option<(Pace, f64)>,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// The time of an answer, and its latency.
type Sample = (Instant, Duration);

/// Runs a load. Prints a line when the measurement begins, and one when it ends.
///
/// # Errors
/// If an open loop has no rate, or a client broke.
pub async fn run(shape: Shape, callers: Vec<Caller>) -> Result<Measured> {
    ensure!(shape.rate.is_none_or(|rate| rate > 0.0), "an open loop needs a rate");
    let start = Instant::now();
    let begin = start + Duration::from_secs_f64(shape.warmup);
    let end = begin + Duration::from_secs_f64(shape.seconds);
    let pace = shape.rate.map(|rate| Pace::start(start, end, rate).map(|pace| (pace, rate))).transpose()?;
    let (tickets, errors, first_error) = Default::default();
    let run = Arc::new(Run { start, begin, end, tickets, pace, errors, first_error });
    let tasks: Vec<_> = callers.into_iter().map(|caller| tokio::spawn(Arc::clone(&run).client(caller))).collect();
    sleep_until(run.begin).await;
    println!("{}", json!({ "event": "begin" }));
    sleep_until(run.end).await;
    println!("{}", json!({ "event": "end" }));
    let mut samples = Vec::new();
    for task in tasks {
        samples.extend(task.await.context("a client broke")?);
    }
    Ok(run.measured(samples))
}

impl Run {
    async fn client(self: Arc<Self>, mut caller: Caller) -> Vec<Sample> {
        let mut samples = Vec::new();
        while Instant::now() < self.end {
            if let Some((pace, _)) = &self.pace
                && !pace.due().await
            {
                break;
            }
            let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
            let due = self.pace.as_ref().map_or_else(Instant::now, |(_, rate)| self.start + due_at(ticket, *rate));
            let answer = caller(ticket).await;
            let now = Instant::now();
            match answer {
                Ok(()) if now > self.begin && now < self.end => samples.push((now, now - due)),
                Ok(()) => {}
                Err(error) => {
                    self.note(&error);
                    sleep(PAUSE).await;
                }
            }
        }
        samples
    }

    fn note(&self, error: &Error) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first_error.lock().expect("nobody panics while holding it");
        first.get_or_insert_with(|| error.to_string());
    }

    fn measured(&self, mut samples: Vec<Sample>) -> Measured {
        let mut latencies: Vec<Duration> = samples.iter().map(|sample| sample.1).collect();
        latencies.sort_unstable();
        let quantile = |part: f64| {
            let index = (part * latencies.len() as f64) as usize;
            latencies.get(index.min(latencies.len().saturating_sub(1))).map_or(0, Duration::as_micros) as u64
        };
        samples.sort_unstable();
        let (mut gap, mut before) = (Duration::ZERO, self.begin);
        for (at, _) in &samples {
            gap = gap.max(*at - before);
            before = *at;
        }
        gap = gap.max(self.end - before);
        let report = json!({
            "errors": self.errors.load(Ordering::Relaxed),
            "first_error": *self.first_error.lock().expect("nobody panics while holding it"),
            "calls": samples.len(),
            "latency_us": {
                "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "p999": quantile(0.999),
                "max": quantile(1.0),
            },
            "gap_ms": gap.as_micros() as f64 / 1000.0,
        });
        Measured { calls: samples.len() as u64, begun: self.tickets.load(Ordering::Relaxed), report }
    }
}
