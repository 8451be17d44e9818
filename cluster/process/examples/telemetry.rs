//! The default cost of a process's telemetry, item by item: one JSON object with the processor time
//! of each kind of recording, in nanoseconds. It includes making the label and reading the clock.
//! `loadtest/telemetry.py` says how many of each a commit needs.

#![expect(clippy::disallowed_methods, reason = "it measures what real clocks and recordings take")]

use std::{
    convert::Infallible,
    error::Error,
    fs,
    hint::black_box,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context as Task, Poll, Waker},
    time::Instant,
};

use coppice_process::{Program, Telemetry};
use coppice_proto::telemetry::{DURATIONS_S, SCOPE, Served, is_traced};
use opentelemetry::{Context, KeyValue, context::FutureExt, global};
use tonic::codegen::{Service, http};
use tower::{Layer, service_fn};

/// The number of timed calls. With this many calls, the clock's accuracy of a few milliseconds does
/// not matter.
const CALLS: u32 = 5_000_000;
const PROGRAM: Program =
    Program { name: "telemetry", version: "0", about: "Measures telemetry.", serves_clients: false, flags: &[] };

/// Processor time of this thread so far, accurate to a few milliseconds.
fn processor_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells of its threads");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("processor time comes first")
}

/// Processor time of one call.
fn cost(mut call: impl FnMut()) -> f64 {
    let before = processor_ns();
    (0..CALLS).for_each(|_| call());
    (processor_ns() - before) as f64 / f64::from(CALLS)
}

/// The output of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Task::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

fn request() -> http::Request<()> {
    let mut request = http::Request::new(());
    *request.uri_mut() = http::Uri::from_static("/coppice.v1.Ledger/Commit");
    request
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let running = Telemetry::default().start(&PROGRAM, "measured").map_err(|failure| failure.to_string())?;
    let meter = global::meter(SCOPE);
    let histogram = meter.f64_histogram("measured.duration").with_boundaries(DURATIONS_S.to_vec()).build();
    let counter = meter.u64_counter("measured.events").build();
    let group = [KeyValue::new("group", "shard-0".to_owned())];
    let plain = AtomicU64::new(0);
    let began = Instant::now();
    let mut bare = service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(())));
    let mut served = Served::new().layer(bare);
    let untraced = Context::new();
    let served_ns = cost(|| drop(black_box(now(served.call(black_box(request()))))));
    let bare_ns = cost(|| drop(black_box(now(bare.call(black_box(request()))))));
    let costs = serde_json::json!({
        "duration": cost(|| histogram.record(began.elapsed().as_secs_f64(), &[])),
        "duration_of_stage": cost(|| {
            histogram.record(began.elapsed().as_secs_f64(), &[KeyValue::new("stage", black_box("prepare"))]);
        }),
        // A replica keeps its label, and reads the clock before and after.
        "duration_of_group": cost(|| {
            let began = black_box(Instant::now());
            histogram.record(began.elapsed().as_secs_f64(), &group);
        }),
        "counter": cost(|| counter.add(black_box(1), &[])),
        "counter_with_label": cost(|| counter.add(1, &[KeyValue::new("outcome", black_box("committed"))])),
        "plain_counter": cost(|| {
            plain.fetch_add(black_box(1), Ordering::Relaxed);
        }),
        "served_call": served_ns - bare_ns,
        "made_call": cost(|| assert!(!is_traced(&black_box(Context::current())))),
        "poll_with_context": cost(|| now(async {}.with_context(black_box(&untraced).clone()))),
    });
    println!("{costs:#}");
    running.stop();
    Ok(())
}
