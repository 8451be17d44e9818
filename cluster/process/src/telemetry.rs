//! The telemetry of a process: where its metrics and spans go.
//!
//! All code counts and traces through the API of OpenTelemetry. Metrics are always served at
//! `/metrics` of the health port ([`crate::health`]). With an endpoint, they are also sent there by
//! OTLP over gRPC at intervals. So are the spans of traced calls: those whose caller traces them,
//! and a part of the others.
//!
//! Clients can have only a limited number of calls traced (`Limited`), because all they need for it
//! is a header. Processes of the cluster are trusted. Separate threads do the sending, from bounded
//! queues. Data that a collector does not take in time is dropped, and no call waits for it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry::{
    Context, KeyValue, global,
    trace::{Link, SpanKind, TraceId},
};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    propagation::TraceContextPropagator,
    trace::{Sampler, SamplingResult, SdkTracerProvider, ShouldSample},
};
use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::{Code, Failure, Program, config::read_text, net::check_address};

/// Longest wait for unsent data when a process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where metrics and spans are sent: a part of every process's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// A collector that accepts OTLP over gRPC: `http://HOST:PORT` or `https://HOST:PORT`. Without
    /// one, nothing is sent.
    pub otlp_endpoint: Option<String>,
    /// The authority of the collector's certificate, for `https`.
    pub otlp_ca: Option<PathBuf>,
    /// The part of calls to trace, from 0 to 1, among those whose callers don't send a trace
    /// context.
    pub trace_ratio: f64,
    /// Most calls a second that are traced because a client traces them. Nodes have no clients.
    pub client_traces_per_s: u32,
    /// The interval at which metrics are sent.
    pub metrics_interval_ms: u64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_ca: None,
            trace_ratio: 0.01,
            client_traces_per_s: 100,
            metrics_interval_ms: 30_000,
        }
    }
}

impl Telemetry {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// If settings contradict each other, or are out of range.
    pub fn check(&self) -> Result<(), Failure> {
        if !(0.0..=1.0).contains(&self.trace_ratio) {
            return Err(Failure::usage("telemetry: trace_ratio must be a fraction of all calls, from 0 to 1"));
        }
        if !(100..=3_600_000).contains(&self.metrics_interval_ms) {
            return Err(Failure::usage("telemetry: metrics_interval_ms must be 100 to 3600000"));
        }
        match (self.otlp_endpoint.as_deref(), &self.otlp_ca) {
            (None, Some(_)) => Err(Failure::usage("telemetry: otlp_ca without otlp_endpoint")),
            (Some(endpoint), ca) => {
                let scheme = if ca.is_some() { "https://" } else { "http://" };
                let address = endpoint.strip_prefix(scheme).ok_or_else(|| {
                    let message = format!("telemetry: otlp_endpoint = {endpoint:?} does not begin with {scheme}");
                    Failure::usage(message).hint("With otlp_ca it is https://HOST:PORT, without it http://HOST:PORT.")
                })?;
                check_address(address).map_err(|error| Failure::usage(format!("telemetry: otlp_endpoint: {error}")))
            }
            (None, None) => Ok(()),
        }
    }

    /// Starts counting and tracing. Must be called once in a process, before the first instrument
    /// is made, and within a tokio runtime that lasts until [`Running::stop`].
    ///
    /// # Errors
    /// If the authority's certificate can't be read.
    pub fn start(&self, program: &Program, instance: &str) -> Result<Running, Failure> {
        let failed = |error: String| Failure::new(Code::Unavailable, format!("telemetry: {error}"));
        let resource = Resource::builder()
            .with_service_name(program.name)
            .with_attribute(KeyValue::new("service.version", program.version))
            .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()))
            .build();
        let shown = opentelemetry_prometheus::exporter()
            .with_registry(prometheus::default_registry().clone())
            .scope_info_enabled(false)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut metrics = SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(shown);
        let mut traces = None;
        if let Some(channel) = self.channel()? {
            let exporter = MetricExporter::builder().with_tonic().with_channel(channel.clone()).build();
            let exporter = exporter.map_err(|error| failed(error.to_string()))?;
            let interval = Duration::from_millis(self.metrics_interval_ms);
            metrics = metrics.with_reader(PeriodicReader::builder(exporter).with_interval(interval).build());
            let exporter = SpanExporter::builder().with_tonic().with_channel(channel).build();
            let exporter = exporter.map_err(|error| failed(error.to_string()))?;
            let mut sampler = Sampler::parent_based(Sampler::TraceIdRatioBased(self.trace_ratio));
            if program.serves_clients {
                sampler = sampler.with_remote_parent_sampled(Limited::new(self.client_traces_per_s));
            }
            let provider = SdkTracerProvider::builder()
                .with_resource(resource)
                .with_sampler(sampler)
                .with_batch_exporter(exporter)
                .build();
            global::set_tracer_provider(provider.clone());
            global::set_text_map_propagator(TraceContextPropagator::new());
            traces = Some(provider);
        }
        let metrics = metrics.build();
        global::set_meter_provider(metrics.clone());
        Ok(Running { metrics, traces })
    }

    /// A channel to the collector. It connects when something is sent.
    fn channel(&self) -> Result<Option<Channel>, Failure> {
        let Some(address) = &self.otlp_endpoint else { return Ok(None) };
        let wrong = |error: tonic::transport::Error| {
            Failure::usage(format!("telemetry: {address}: {}", coppice_types::chain(&error)))
        };
        let mut endpoint = Endpoint::from_shared(address.clone()).map_err(wrong)?.connect_timeout(CONNECT_TIMEOUT);
        if let Some(ca) = &self.otlp_ca {
            let ca = Certificate::from_pem(read_text(ca)?);
            endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(ca)).map_err(wrong)?;
        }
        Ok(Some(endpoint.connect_lazy()))
    }
}

/// Samples a limited number of spans a second, and drops the others. Clones share the limit.
#[derive(Clone, Debug)]
struct Limited {
    per_second: u32,
    /// The beginning of the current second, and the number of spans in it.
    used: Arc<Mutex<(Instant, u32)>>,
}

impl Limited {
    fn new(per_second: u32) -> Self {
        Self { per_second, used: Arc::new(Mutex::new((now(), 0))) }
    }

    fn takes(&self, now: Instant) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(used.0) >= Duration::from_secs(1) {
            *used = (now, 0);
        }
        let takes = used.1 < self.per_second;
        used.1 += u32::from(takes);
        takes
    }
}

impl ShouldSample for Limited {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let sampler = if self.takes(now()) { Sampler::AlwaysOn } else { Sampler::AlwaysOff };
        sampler.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[expect(clippy::disallowed_methods, reason = "which calls are traced, and nothing follows from that")]
fn now() -> Instant {
    Instant::now()
}

/// The running telemetry of a process.
#[derive(Debug)]
pub struct Running {
    metrics: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
}

impl Running {
    /// Sends the remaining data, for a bounded time. Blocks.
    pub fn stop(self) {
        let spans = self.traces.map_or(Ok(()), |traces| traces.shutdown_with_timeout(STOP_TIMEOUT));
        for result in [spans, self.metrics.shutdown_with_timeout(STOP_TIMEOUT)] {
            if let Err(error) = result {
                tracing::debug!(%error, "the last telemetry was not sent");
            }
        }
    }
}

/// All metrics in the text format of Prometheus. Slow, since it collects every metric.
#[must_use]
pub fn metrics_text() -> String {
    let mut text = String::new();
    if let Err(error) = prometheus::TextEncoder::new().encode_utf8(&prometheus::gather(), &mut text) {
        tracing::warn!(%error, "metrics can't be written as text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_that_clients_ask_for_have_a_limit() {
        let begin = now();
        let limited = Limited::new(2);
        let after_ms = |ms| limited.clone().takes(begin + Duration::from_millis(ms));
        assert_eq!([0, 1, 999].map(after_ms), [true, true, false]);
        assert_eq!([1100, 1200, 2000].map(after_ms), [true, true, false], "a second begins with its first call");
        assert!(after_ms(2100));
        assert!(!Limited::new(0).takes(begin));
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let set = |endpoint: Option<&str>, ca: Option<&str>, trace_ratio: f64| Telemetry {
            otlp_endpoint: endpoint.map(str::to_owned),
            otlp_ca: ca.map(PathBuf::from),
            trace_ratio,
            ..Telemetry::default()
        };
        assert_eq!(Telemetry::default().check(), Ok(()));
        assert_eq!(set(Some("http://collector:4317"), None, 1.0).check(), Ok(()));
        assert_eq!(set(Some("https://collector:4317"), Some("ca.pem"), 0.0).check(), Ok(()));
        let refused = [
            (set(None, Some("ca.pem"), 0.0), "otlp_ca"),
            (set(Some("https://collector:4317"), None, 0.0), "http://"),
            (set(Some("http://collector:4317"), Some("ca.pem"), 0.0), "https://"),
            (set(Some("collector:4317"), None, 0.0), "otlp_endpoint"),
            (set(Some("http://collector"), None, 0.0), "HOST:PORT"),
            (set(None, None, 1.5), "trace_ratio"),
            (set(None, None, f64::NAN), "trace_ratio"),
            (Telemetry { metrics_interval_ms: 1, ..Telemetry::default() }, "metrics_interval_ms"),
        ];
        for (settings, word) in refused {
            let failure = settings.check().expect_err(word);
            assert!(failure.to_string().contains(word), "{failure}");
        }
    }
}
