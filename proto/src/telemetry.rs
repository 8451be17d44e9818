//! Traces and measurements of calls at both ends, by OpenTelemetry's conventions for RPC.
//!
//! A call that is made while a span is active gets a child span, and carries its context in the
//! headers (W3C trace context). The server continues that trace. [`child`] makes spans for the work
//! in between.
//!
//! All of this uses the API of OpenTelemetry, which does nothing in a program without an SDK: it
//! records nothing and sends nothing. Without an SDK only [`Served`] reads a clock, and does not
//! ask the API for spans.

use std::{
    task::{Context as Task, Poll},
    time::Instant,
};

use opentelemetry::{
    Context, KeyValue,
    context::FutureExt,
    global::{self, BoxedTracer},
    metrics::Histogram,
    propagation::{Extractor, Injector},
    trace::{SpanBuilder, SpanKind, Status as SpanStatus, TraceContextExt, Tracer},
};
use tonic::{
    Code, Status,
    codegen::{
        BoxFuture, Service,
        http::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use tower::Layer;

use crate::rest;

/// The name of the project's instruments and spans.
pub const SCOPE: &str = "coppice";
/// Upper bounds of the histograms of durations, in seconds.
pub const DURATIONS_S: [f64; 15] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Stands for methods that no service has. Their names are chosen by callers, so they must not
/// become attribute values.
const OTHER_METHOD: &str = "_OTHER";

fn tracer() -> BoxedTracer {
    global::tracer(SCOPE)
}

/// Whether the context has an active span.
#[must_use]
pub fn is_traced(context: &Context) -> bool {
    context.span().span_context().is_valid()
}

/// The context of a new span below that of `parent`. Without an active trace, no span begins.
#[must_use]
pub fn child(parent: &Context, span: SpanBuilder) -> Context {
    if !is_traced(parent) {
        return parent.clone();
    }
    parent.with_span(tracer().build_with_context(span, parent))
}

/// The context of a new span, which begins a trace if none is active.
#[must_use]
pub fn root(span: SpanBuilder) -> Context {
    let parent = Context::current();
    parent.with_span(tracer().build_with_context(span, &parent))
}

/// The span of a call that is about to be made, if the call is part of a trace. Adds the span to
/// the headers.
pub(crate) fn called<B>(request: &mut http::Request<B>) -> Option<Context> {
    let parent = Context::current();
    if !is_traced(&parent) {
        return None;
    }
    let context = child(&parent, span_of(request.uri().path(), SpanKind::Client));
    let mut headers = Headers(request.headers_mut());
    global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut headers));
    Some(context)
}

/// Ends the span of a call when its answer begins to arrive, or when the call fails.
pub(crate) fn answered<B>(context: &Context, answer: Option<&http::Response<B>>) {
    let code = answer.map_or(Code::Unavailable, code_of);
    end(context, code, code != Code::Ok);
}

fn span_of(path: &str, kind: SpanKind) -> SpanBuilder {
    let method = method_of(path);
    let attributes = [KeyValue::new("rpc.system.name", "grpc"), KeyValue::new("rpc.method", method.to_owned())];
    SpanBuilder::from_name(method.to_owned()).with_kind(kind).with_attributes(attributes)
}

fn end(context: &Context, code: Code, is_error: bool) {
    let span = context.span();
    span.set_attribute(KeyValue::new("rpc.response.status_code", name_of(code)));
    if is_error {
        span.set_attribute(KeyValue::new("error.type", name_of(code)));
        span.set_status(SpanStatus::error(""));
    }
    span.end();
}

fn method_of(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

/// The code in the head of an answer. The code of a stream that fails later comes after its
/// messages.
fn code_of<B>(answer: &http::Response<B>) -> Code {
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

/// Whether the code says that the server failed, rather than its caller.
fn is_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The name of a code in gRPC.
#[must_use]
pub fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Headers as the carrier of a trace context.
struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(key.as_bytes()), HeaderValue::from_str(&value)) {
            self.0.insert(name, value);
        }
    }
}

struct Received<'a>(&'a HeaderMap);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// A layer of a server that measures and traces its calls. A call with a stream of answers counts
/// until the stream begins.
#[derive(Clone, Debug)]
pub struct Served {
    duration: Histogram<f64>,
    has_spans: bool,
}

impl Served {
    /// Measures by the meter that the process has set. If no propagator is set yet, calls are
    /// counted but not traced.
    #[must_use]
    pub fn new() -> Self {
        let duration = global::meter(SCOPE)
            .f64_histogram("rpc.server.call.duration")
            .with_unit("s")
            .with_description("How long calls took to be answered, or until their stream of answers began")
            .with_boundaries(DURATIONS_S.to_vec())
            .build();
        Self { duration, has_spans: global::get_text_map_propagator(|propagator| propagator.fields().next().is_some()) }
    }
}

impl Default for Served {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for Served {
    type Service = Serving<S>;

    fn layer(&self, inner: S) -> Serving<S> {
        Serving { inner, served: self.clone() }
    }
}

/// A service behind [`Served`].
#[derive(Clone, Debug)]
pub struct Serving<S> {
    inner: S,
    served: Served,
}

impl<S, A, B> Service<http::Request<A>> for Serving<S>
where
    S: Service<http::Request<A>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: http::Request<A>) -> Self::Future {
        let called = rest::called(request.method(), request.uri().path());
        let call = Call::begin(&self.served, called, request.headers());
        let context = call.context.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = match context {
                Some(context) if is_traced(&context) => answer.with_context(context).await,
                _ => answer.await,
            };
            call.answered(answer.as_ref().map_or(Code::Unknown, code_of));
            answer
        })
    }
}

/// A call that is being served. It is counted when this is dropped.
struct Call {
    duration: Histogram<f64>,
    began: Instant,
    method: String,
    /// The context with the call's span; `None` if the call is not traced.
    context: Option<Context>,
    code: Code,
}

impl Call {
    fn begin(served: &Served, path: &str, headers: &HeaderMap) -> Self {
        let context = served.has_spans.then(|| {
            let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Received(headers)));
            let span = tracer().build_with_context(span_of(path, SpanKind::Server), &parent);
            parent.with_span(span)
        });
        Self {
            duration: served.duration.clone(),
            began: now(),
            method: method_of(path).to_owned(),
            context,
            // Stays if the call is dropped without an answer.
            code: Code::Cancelled,
        }
    }

    fn answered(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            end(context, self.code, is_fault(self.code));
        }
        let known = self.code != Code::Unimplemented;
        let method = if known { std::mem::take(&mut self.method) } else { OTHER_METHOD.to_owned() };
        let attributes = [
            KeyValue::new("rpc.method", method),
            KeyValue::new("rpc.response.status_code", name_of(self.code)),
            KeyValue::new("rpc.system.name", "grpc"),
        ];
        self.duration.record(self.began.elapsed().as_secs_f64(), &attributes);
    }
}

#[expect(clippy::disallowed_methods, reason = "a duration that people are told, and that nothing follows from")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracerProvider};

    use super::*;

    /// One test for all cases, because the whole process shares its telemetry settings.
    #[test]
    fn calls_have_spans_only_where_the_process_traces() {
        let mut headers = HeaderMap::new();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", HeaderValue::from_static(parent));
        let untraced = Served::new();
        global::set_text_map_propagator(TraceContextPropagator::new());
        global::set_tracer_provider(SdkTracerProvider::builder().build());
        let traced = Served::new();
        let context = |served: &Served| Call::begin(served, "/coppice.v1.Ledger/Commit", &headers).context.clone();
        assert!(context(&untraced).is_none(), "nothing is made, whatever the caller says");
        let context = context(&traced).expect("there is a span");
        assert_eq!(context.span().span_context().trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(context.span().span_context().is_sampled());
    }
}
