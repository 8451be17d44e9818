//! The telemetry of processes. Every metric of a process is listed in `docs/metrics.md`, and every
//! listed metric exists, also at a collector. A commit is one trace, from the client to the state
//! machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use coppice_client::{Client, Options};
use coppice_proto::v1;
use coppice_verify::cosignature::Cosigner;
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::harness::{Cluster, until};

/// Spans are sent at once instead of after seconds, so that the test need not wait.
const AT_ONCE: [(&str, &str); 1] = [("OTEL_BSP_SCHEDULE_DELAY", "100")];
const NODE: &str = "coppice-shard-node";
const COORDINATOR: &str = "coppice-coordinator";

/// A metric as a process shows it.
#[derive(Debug, Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    processes: BTreeSet<&'static str>,
}

/// Adds the metrics of a process, in the text format of Prometheus.
fn read(text: &str, process: &'static str, into: &mut BTreeMap<String, Metric>) {
    let mut families = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            families.insert(name.to_owned());
            let metric = into.entry(name.to_owned()).or_default();
            help.clone_into(&mut metric.help);
            metric.processes.insert(process);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            kind.clone_into(&mut into.entry(name.to_owned()).or_default().kind);
        } else if !line.is_empty() {
            let name = line.split(['{', ' ']).next().expect("a name");
            let parts = ["_bucket", "_sum", "_count"];
            let family = parts.iter().find_map(|part| name.strip_suffix(part).filter(|name| families.contains(*name)));
            let metric = into.get_mut(family.unwrap_or(name)).unwrap_or_else(|| panic!("{line}: not described"));
            metric.labels.extend(labels_of(line).filter(|label| label != "le"));
        }
    }
}

fn labels_of(line: &str) -> impl Iterator<Item = String> + '_ {
    let inner = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(inner, _)| inner);
    inner.split("\",").filter_map(|pair| pair.split_once('=')).map(|(label, _)| label.to_owned())
}

impl Metric {
    /// The metric's line in the document.
    fn line(&self, name: &str) -> String {
        let base = name.strip_suffix("_total").unwrap_or(name);
        let unit = [("_bytes", "bytes"), ("_seconds", "seconds")];
        let unit = unit.iter().find(|(suffix, _)| base.ends_with(suffix)).map_or("", |(_, unit)| unit);
        let labels: Vec<String> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let shown = match (self.processes.contains(NODE), self.processes.contains(COORDINATOR)) {
            (true, true) => "both",
            (true, false) => "node",
            _ => "coordinator",
        };
        let (kind, help) = (&self.kind, &self.help);
        format!("| `{name}` | {shown} | {kind} | {unit} | {} | {help} |", labels.join(", "))
    }
}

fn document() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root");
    root.join("docs/metrics.md")
}

/// Returns the document with these lines in its table.
fn with_lines(text: &str, lines: &[String]) -> String {
    let is_line = |line: &&str| line.starts_with("| `");
    let before = text.lines().take_while(|line| !is_line(line));
    let after = text.lines().skip_while(|line| !is_line(line)).skip_while(is_line);
    before.chain(lines.iter().map(String::as_str)).chain(after).map(|line| format!("{line}\n")).collect()
}

/// Two witnesses and an authority that do not exist, in the coordinator's settings.
fn strangers(cluster: &Cluster) -> PathBuf {
    let path = cluster.path("witness.toml");
    let vkey = |name: &str| Cosigner::from_seed(name, &[7; 32]).expect("a name").verifier().to_string();
    let (asked, streams) = (vkey("witness.example"), vkey("streams.example"));
    let root = cluster.path("authority.pem");
    fs::write(&root, authority()).expect("a file can be written");
    let text = format!(
        "[[witnesses]]\nurl = \"http://127.0.0.1:1\"\nvkey = \"{asked}\"\n\
         [[witnesses]]\nurl = \"stream:nobody/w\"\nvkey = \"{streams}\"\n\
         [anchor]\nevery_s = 1\n[[anchor.tsa]]\nurl = \"http://127.0.0.1:1\"\nroot = {:?}\n",
        root.display().to_string()
    );
    fs::write(&path, text).expect("a file can be written");
    path
}

/// The certificate of a root, in PEM.
fn authority() -> String {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a root").pem()
}

#[test]
fn every_metric_is_listed_and_everything_listed_is_there() {
    let cluster = Cluster::plain();
    cluster.add_reader();
    let modules = ["--set", "pim.library=emulator", "--set", "pim.dpus=2"];
    let (_nodes, _reader) = (cluster.nodes(), cluster.node_with(5, &modules, &[]));
    let settings = strangers(&cluster);
    let _coordinator = cluster.coordinator_with(&["--config", &settings.display().to_string()], &[]);
    cluster.until_it_commits("key=value");
    cluster.until_whole();
    cluster.run(&["get", "key"]).expect(0);
    let led = |ordinal| cluster.metrics(ordinal).contains("coppice_raft_reader_lag");
    until("a leader knows the reader", || (1..=3).any(led).then_some(()));
    until("anchors were looked for", || cluster.metrics(4).contains("coppice_anchor_age").then_some(()));

    let has_modules = || cluster.metrics(5).contains("coppice_pim_dpus");
    until("the reader has modules", || has_modules().then_some(()));

    let mut metrics = BTreeMap::new();
    for (number, process) in [(1, NODE), (2, NODE), (3, NODE), (4, COORDINATOR), (5, NODE)] {
        read(&cluster.metrics(number), process, &mut metrics);
    }
    assert!(metrics.contains_key("target_info"), "it names the process");
    numbers_are_true(&cluster);
    let strange: Vec<&String> = metrics.keys().filter(|name| !named_as_they_should(name)).collect();
    assert_eq!(strange, Vec::<&String>::new(), "names begin with coppice_ and a subsystem");
    let lines: Vec<String> = metrics.iter().map(|(name, metric)| metric.line(name)).collect();
    let text = fs::read_to_string(document()).expect("the document is there");
    if env::var_os("BLESS").is_some() {
        fs::write(document(), with_lines(&text, &lines)).expect("the document can be written");
        return;
    }
    let listed: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let found: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    let (missing, gone) = (found.difference(&listed), listed.difference(&found));
    let (missing, gone): (Vec<_>, Vec<_>) = (missing.collect(), gone.collect());
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not listed: {missing:#?}\nlisted, and not there: {gone:#?}\nBLESS=1 writes the list again"
    );
}

/// The sum of a metric's series whose labels contain these words.
fn sum(text: &str, metric: &str, words: &[&str]) -> f64 {
    let of = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let fits = |line: &&str| words.iter().all(|word| line.contains(word));
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number");
    text.lines().filter(of).filter(fits).map(value).sum()
}

/// Checks the numbers of a cluster that has committed something and was read from.
fn numbers_are_true(cluster: &Cluster) {
    cluster.until_ready(4, "");
    let coordinator = until("the coordinator has learnt the head", || {
        let text = cluster.metrics(4);
        let version = sum(&text, "coppice_ledger_version", &[]);
        (version >= 1.0 && sum(&text, "coppice_commit_versions_total", &[]) == version).then_some(text)
    });
    for metric in ["ready", "leader", "has_leader", "signing_key_readable"] {
        assert_eq!(sum(&coordinator, &format!("coppice_coordinator_{metric}"), &[]), 1.0, "{metric}");
    }
    let version = sum(&coordinator, "coppice_ledger_version", &[]);
    assert_eq!(sum(&coordinator, "coppice_commit_batches_total", &[r#""committed""#]), version, "one batch each");
    assert_eq!(sum(&coordinator, "coppice_commit_duration_seconds_count", &[]), version);
    assert_eq!(sum(&coordinator, "coppice_read_keys_total", &[]), 1.0);
    let commits = [r#"rpc_method="coppice.v1.Ledger/Commit""#, r#"rpc_response_status_code="OK""#];
    assert_eq!(sum(&coordinator, "rpc_server_call_duration_seconds_count", &commits), version);
    until("each group has one leader, and all have applied what it has", || {
        let nodes = [1, 2, 3].map(|node| cluster.metrics(node));
        ["root", "shard-0", "shard-1"]
            .into_iter()
            .all(|group| {
                let group = format!("group=\"{group}\"");
                let leaders: f64 =
                    nodes.iter().map(|text| sum(text, "coppice_replica_role", &[&group, r#""leader""#])).sum();
                let applied = nodes.each_ref().map(|text| sum(text, "coppice_raft_index", &[&group, r#""applied""#]));
                leaders == 1.0 && applied[0] > 0.0 && applied.iter().all(|index| *index == applied[0])
            })
            .then_some(())
    });
    let node = cluster.metrics(1);
    assert_eq!(sum(&node, "coppice_replica_open", &[]), 3.0);
    assert_eq!(sum(&node, "coppice_replica_disk_full", &[]), 0.0);
    assert!(sum(&node, "coppice_raft_log_size_bytes", &[]) > 0.0);
    // The root group answers the coordinator all the time, and stays awake.
    let asleep = |group: &str| sum(&cluster.metrics(1), "coppice_replica_asleep", &[&format!("group=\"{group}\"")]);
    until("a quiet shard sleeps", || (asleep("shard-1") == 1.0).then_some(()));
    assert_eq!(asleep("root"), 0.0);
    // Shards learn a decision with the next request, or after a while.
    until("the record is decided", || (sum(&cluster.metrics(1), "coppice_engine_records", &[]) >= 1.0).then_some(()));
}

/// Names follow the project's rule, or the conventions of OpenTelemetry.
fn named_as_they_should(name: &str) -> bool {
    let ours = name.strip_prefix("coppice_").is_some_and(|rest| rest.contains('_'));
    ours || ["target_info", "rpc_server_call_duration_seconds"].contains(&name)
}

/// A collector that keeps what it receives.
#[derive(Clone, Default)]
struct Collector {
    /// Each span with the process that sent it.
    spans: Arc<Mutex<Vec<(String, Span)>>>,
    /// Names of metrics, with the process.
    metrics: Arc<Mutex<BTreeSet<(String, String)>>>,
}

fn text_of(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of in request.into_inner().resource_spans {
            let process = text_of(&of.resource.unwrap_or_default().attributes, "service.name");
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let spans = spans.map(|span| (process.clone(), span));
            self.spans.lock().expect("nobody panics").extend(spans);
        }
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        for of in request.into_inner().resource_metrics {
            let process = text_of(&of.resource.unwrap_or_default().attributes, "service.name");
            let metrics = of.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            let names = metrics.map(|metric| (process.clone(), metric.name));
            self.metrics.lock().expect("nobody panics").extend(names);
        }
        Ok(Response::new(Default::default()))
    }
}

/// Commits once, as an application that traces its calls. Returns the ids of trace and span.
async fn commit(endpoint: String) -> (Vec<u8>, Vec<u8>) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    opentelemetry::global::set_tracer_provider(provider.clone());
    let client = Client::new(Options::new(endpoint)).expect("an endpoint");
    let operation = v1::Operation {
        key: Bytes::from_static(b"traced"),
        change: Some(v1::operation::Change::Put(Bytes::from_static(b"value"))),
    };
    let batch = v1::Batch { operations: vec![operation], ..v1::Batch::default() };
    client.commit(batch, false).await.expect("it is committed");
    let spans = exporter.get_finished_spans().expect("they are kept");
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:?}"));
    let (operation, call) = (of("commit"), of("coppice.v1.Ledger/Commit"));
    let system = operation.attributes.iter().find(|attribute| attribute.key.as_str() == "db.system.name");
    assert_eq!(system.map(|system| system.value.as_str().into_owned()), Some("coppice".to_owned()));
    assert_eq!(call.parent_span_id, operation.span_context.span_id());
    let (trace, span) = (call.span_context.trace_id(), call.span_context.span_id());
    (trace.to_bytes().to_vec(), span.to_bytes().to_vec())
}

#[test]
fn a_commit_is_one_trace_from_the_client_to_the_state_machines() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let collector = Collector::default();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("there are free ports");
    let address = listener.local_addr().expect("it is bound");
    let services = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .add_service(MetricsServiceServer::new(collector.clone()));
    runtime.spawn(services.serve_with_incoming(TcpListenerStream::new(listener)));

    let cluster = Cluster::plain();
    let endpoint = format!("telemetry.otlp_endpoint=http://{address}");
    // Nothing is traced except the client's traces.
    let flags = ["--set", &endpoint, "--set", "telemetry.trace_ratio=0", "--set", "telemetry.metrics_interval_ms=200"];
    let _nodes: Vec<_> = (1..=3).map(|ordinal| cluster.node_with(ordinal, &flags, &AT_ONCE)).collect();
    let _coordinator = cluster.coordinator_with(&flags, &AT_ONCE);
    cluster.until_it_commits("ready=yes");
    let (trace, call) = runtime.block_on(commit(cluster.endpoint()));

    let wanted = [
        (COORDINATOR, "coppice.v1.Ledger/Commit"),
        (COORDINATOR, "version"),
        (COORDINATOR, "coppice.v1.Shard/Prepare"),
        (COORDINATOR, "coppice.v1.Root/AppendHeader"),
        (NODE, "coppice.v1.Shard/Prepare"),
        (NODE, "coppice.v1.Root/AppendHeader"),
        (NODE, "replicate"),
        (NODE, "apply"),
    ];
    let spans = until("all spans of the commit", || {
        let spans = collector.spans.lock().expect("nobody panics").clone();
        let there = |(process, name): &(&str, &str)| spans.iter().any(|(of, span)| of == process && span.name == *name);
        wanted.iter().all(there).then_some(spans)
    });
    assert!(spans.iter().all(|(_, span)| span.trace_id == trace), "nothing else is traced");
    let of = |process: &str, name: &str, parent: &[u8]| {
        let fits = |(of, span): &&(String, Span)| of == process && span.name == name && span.parent_span_id == parent;
        let found: Vec<&Span> = spans.iter().filter(fits).map(|(_, span)| span).collect();
        assert!(!found.is_empty(), "{name} of {process} below {parent:?}: {spans:#?}");
        found[0].clone()
    };
    let served = of(COORDINATOR, "coppice.v1.Ledger/Commit", &call);
    assert_eq!(text_of(&served.attributes, "rpc.system.name"), "grpc");
    assert_eq!(text_of(&served.attributes, "rpc.response.status_code"), "OK");
    let version = of(COORDINATOR, "version", &served.span_id);
    for name in ["coppice.v1.Shard/Prepare", "coppice.v1.Root/AppendHeader"] {
        // A coordinator that does not lead refuses the call. The answered call has the other spans
        // below it.
        let asked: Vec<_> =
            spans.iter().filter(|(process, span)| process == COORDINATOR && span.name == name).collect();
        assert!(asked.iter().all(|(_, span)| span.parent_span_id == version.span_id), "{asked:#?}");
        let answered = asked.iter().find(|(_, span)| text_of(&span.attributes, "rpc.response.status_code") == "OK");
        let done = of(NODE, name, &answered.expect("it was answered").1.span_id);
        let group = if name.contains("Root") { "root" } else { "shard-1" };
        for step in ["replicate", "apply"] {
            assert_eq!(text_of(&of(NODE, step, &done.span_id).attributes, "coppice.group"), group.to_owned());
        }
    }
    until("metrics of both", || {
        let metrics = collector.metrics.lock().expect("nobody panics");
        let there = |process: &str, name: &str| metrics.contains(&(process.to_owned(), name.to_owned()));
        (there(NODE, "coppice.raft.term") && there(COORDINATOR, "coppice.commit.versions")).then_some(())
    });
}
