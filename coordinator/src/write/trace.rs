//! The spans of versions. A version has many batches, each with its own trace. The version's span
//! is a child of the first traced batch, and linked to the others.

use coppice_proto::telemetry::{child, is_traced};
use coppice_types::Stamp;
use opentelemetry::{
    KeyValue,
    trace::{Link, SpanBuilder, TraceContextExt},
};

pub use opentelemetry::Context as Trace;

/// Limit on the number of batches that a version's span is linked to.
const LINKS_MAX: usize = 64;

/// The span of a version whose batches have these traces.
pub fn version<'a>(batches: impl Iterator<Item = &'a Trace>, stamp: Stamp) -> Trace {
    let mut traced = batches.filter(|trace| is_traced(trace));
    let Some(first) = traced.next() else { return Trace::new() };
    let links = traced.take(LINKS_MAX).map(|trace| Link::with_context(trace.span().span_context().clone()));
    let number = |name: &'static str, number: u64| KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX));
    let span = SpanBuilder::from_name("version")
        .with_links(links.collect())
        .with_attributes([number("coppice.epoch", stamp.epoch.0), number("coppice.version", stamp.version.0)]);
    child(first, span)
}
