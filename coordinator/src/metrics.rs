//! The metrics of a coordinator; `docs/metrics.md` lists them.
//!
//! If the process has no meter, nothing is recorded.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use coppice_proto::{
    status,
    telemetry::{DURATIONS_S, SCOPE, name_of},
};
use coppice_types::Reason;
use opentelemetry::{
    KeyValue, global,
    metrics::{AsyncInstrument, Counter, Histogram},
};
use tokio::{sync::Semaphore, time::Instant};
use tonic::Status;

use crate::{
    groups::{links::Links, root_log::RootLog},
    plan::Request,
    shown::Shown,
};

/// The phases of a commit that are measured separately.
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// A batch waits until it is taken into a version.
    Queue,
    /// The shards prepare a version.
    Prepare,
    /// The root group appends the version's header.
    Append,
    /// The log is signed, and the version's batches are answered.
    Answer,
}

impl Phase {
    fn label(self) -> KeyValue {
        let name = match self {
            Self::Queue => "queue",
            Self::Prepare => "prepare",
            Self::Append => "append",
            Self::Answer => "answer",
        };
        KeyValue::new("stage", name)
    }
}

/// Counters and histograms of events.
#[derive(Debug)]
pub struct Metrics {
    batches: Counter<u64>,
    refusals: Counter<u64>,
    duration: Histogram<f64>,
    stages: Histogram<f64>,
    versions: Counter<u64>,
    records: Counter<u64>,
    journals: Counter<u64>,
    bytes: Counter<u64>,
    takeovers: Counter<u64>,
    operations: Counter<u64>,
    keys: Counter<u64>,
    cosignatures: Counter<u64>,
    witness_failures: Counter<u64>,
    tokens: Counter<u64>,
    authority_failures: Counter<u64>,
}

impl Metrics {
    /// Registers the instruments with the meter of the process.
    pub fn new() -> Self {
        let meter = global::meter(SCOPE);
        let counter = |name: &'static str, unit: &'static str, help: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(help).build()
        };
        let durations = |name: &'static str, help: &'static str| {
            let named = meter.f64_histogram(name).with_unit("s").with_description(help);
            named.with_boundaries(DURATIONS_S.to_vec()).build()
        };
        let metrics = Self {
            batches: counter("coppice.commit.batches", "", "Batches by outcome"),
            refusals: counter("coppice.commit.refusals", "", "Batches that were refused, by reason"),
            duration: durations("coppice.commit.duration", "How long committed batches took, from arrival to answer"),
            stages: durations(
                "coppice.commit.stage.duration",
                "How long a batch waited in the queue; how long a version took to be prepared, appended, and answered",
            ),
            versions: counter("coppice.commit.versions", "", "Versions that were committed"),
            records: counter("coppice.commit.records", "", "Writes of batches in versions that were committed"),
            journals: counter("coppice.commit.journals", "", "Journals of members in versions that were committed"),
            bytes: counter("coppice.commit.payload", "By", "Bytes of the batches in versions that were committed"),
            takeovers: counter("coppice.coordinator.takeovers", "", "Terms that the coordinator has begun as leader"),
            operations: counter(
                "coppice.admin.operations",
                "",
                "Rollbacks, prunes, key changes and anchors that were done",
            ),
            keys: counter("coppice.read.keys", "", "Keys that were read, with a proof or without"),
            cosignatures: counter("coppice.witness.cosignatures", "", "Cosignatures that witnesses gave"),
            witness_failures: counter(
                "coppice.witness.failures",
                "",
                "Times that a witness was asked and did not cosign",
            ),
            tokens: counter("coppice.anchor.tokens", "", "Time stamps that authorities gave and that were judged good"),
            authority_failures: counter(
                "coppice.anchor.failures",
                "",
                "Times that an authority was asked and gave no good time stamp",
            ),
        };
        metrics.begin();
        metrics
    }

    /// Adds zero to each counter, so that the first event shows as an increase.
    fn begin(&self) {
        for outcome in ["committed", "replayed", "refused"] {
            self.batches.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        for reason in [Reason::PreconditionFailed, Reason::ResourceExhausted, Reason::Unavailable, Reason::Internal] {
            self.refusals.add(0, &[KeyValue::new("reason", reason.name())]);
        }
        for operation in ["rollback", "prune", "anchor"] {
            self.operations.add(0, &[KeyValue::new("operation", operation)]);
        }
        for proof in [false, true] {
            self.keys.add(0, &[KeyValue::new("proof", proof)]);
        }
        for counter in [&self.versions, &self.records, &self.bytes, &self.takeovers] {
            counter.add(0, &[]);
        }
    }

    /// Counts an answered batch, or a member's request, by whether it was applied before. One that
    /// belongs to another coordinator is counted there.
    pub fn answered(&self, came: Instant, answer: Result<bool, &Status>) {
        if answer.is_err_and(|error| status::reason(error) == Some(Reason::NotLeader)) {
            return;
        }
        let outcome = match answer {
            Ok(true) => "replayed",
            Ok(false) => {
                self.duration.record(came.elapsed().as_secs_f64(), &[]);
                "committed"
            }
            Err(error) => {
                let reason = status::reason(error).map_or(name_of(error.code()), |reason| reason.name());
                self.refusals.add(1, &[KeyValue::new("reason", reason)]);
                "refused"
            }
        };
        self.batches.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// Records the duration of a phase of a commit.
    pub fn took(&self, phase: Phase, time: Duration) {
        self.stages.record(time.as_secs_f64(), &[phase.label()]);
    }

    /// Counts a committed version of these batches.
    pub fn committed<'a>(&self, batches: impl Iterator<Item = &'a Request>) {
        let (mut records, mut journals, mut bytes) = (0, 0, 0);
        for batch in batches {
            journals += batch.append.as_ref().map_or(0, |append| append.items.len() as u64);
            records += batch.writes.values().map(|writes| writes.len() as u64).sum::<u64>();
            bytes += batch.bytes;
        }
        self.versions.add(1, &[]);
        self.records.add(records, &[]);
        self.journals.add(journals, &[]);
        self.bytes.add(bytes, &[]);
    }

    /// Counts the beginning of a term as leader.
    pub fn took_over(&self) {
        self.takeovers.add(1, &[]);
    }

    /// Counts an operation.
    pub fn administered(&self, operation: &'static str) {
        self.operations.add(1, &[KeyValue::new("operation", operation)]);
    }

    /// Counts keys that were read.
    pub fn read(&self, keys: usize, with_proof: bool) {
        self.keys.add(keys as u64, &[KeyValue::new("proof", with_proof)]);
    }

    /// Prepares the counters of a witness.
    pub fn has_witness(&self, name: &str) {
        let label = [KeyValue::new("witness", name.to_owned())];
        self.cosignatures.add(0, &label);
        self.witness_failures.add(0, &label);
    }

    /// Prepares the counters of an authority.
    pub fn has_authority(&self, name: &str) {
        let label = [KeyValue::new("authority", name.to_owned())];
        self.tokens.add(0, &label);
        self.authority_failures.add(0, &label);
    }

    /// Counts an attempt to get an authority's time stamp.
    pub fn asked_authority(&self, name: &str, stamped: bool) {
        let counter = if stamped { &self.tokens } else { &self.authority_failures };
        counter.add(1, &[KeyValue::new("authority", name.to_owned())]);
    }

    /// Counts an attempt to get a witness's cosignature.
    pub fn asked_witness(&self, name: &str, cosigned: bool) {
        let counter = if cosigned { &self.cosignatures } else { &self.witness_failures };
        counter.add(1, &[KeyValue::new("witness", name.to_owned())]);
    }
}

/// Shows the coordinator's state as gauges, as long as it runs.
pub fn show(shown: &Arc<Shown>, log: &Arc<RootLog>) {
    gauge(shown, "coppice.coordinator.ready", "", "1 if the coordinator serves its role", |shown| {
        Some(shown.readiness.borrow().is_ok().into())
    });
    gauge(shown, "coppice.coordinator.leader", "", "1 if the coordinator leads", |shown| Some(shown.leads().into()));
    gauge(shown, "coppice.coordinator.has_leader", "", "1 if the coordinator leads or knows who does", |shown| {
        Some((!shown.leadership.borrow().leader.is_empty()).into())
    });
    gauge(shown, "coppice.coordinator.metadata.age", "s", "Time since the metadata store last answered", |shown| {
        shown.registry_age().map(|age| age.as_secs())
    });
    gauge(log, "coppice.ledger.log.entries", "", "Entries of the root log that the coordinator knows of", |log| {
        Some(log.size())
    });
    gauge(log, "coppice.ledger.version", "", "The head's version, as it was last learnt", |log| {
        log.last_view().map(|view| view.head().version.0)
    });
    gauge(log, "coppice.ledger.epoch", "", "The head's epoch: a rollback begins another one", |log| {
        log.last_view().map(|view| view.head().epoch.0)
    });
    gauge(log, "coppice.ledger.pruned.version", "", "The oldest version that can be read", |log| {
        log.last_view().map(|view| view.boundary.0)
    });
    gauge(log, "coppice.ledger.term", "", "The leading coordinator's term", |log| {
        log.last_view().map(|view| view.term.0)
    });
    let meter = global::meter(SCOPE);
    let contradictions = meter.u64_observable_counter("coppice.coordinator.log.contradictions");
    let contradictions =
        contradictions.with_description("Times that a replica of the root group contradicted the signed log");
    contradictions.with_callback(observe(Arc::downgrade(log), |log| Some(log.attested.contradictions()))).build();
    gauge(
        shown,
        "coppice.witness.log.entries",
        "",
        "Entries of the newest log that enough witnesses have cosigned",
        |shown| {
            let cosigned = shown.cosigned.borrow().as_ref().map(|cosigned| cosigned.size);
            shown.asks_witnesses().then(|| cosigned.unwrap_or_default())
        },
    );
}

/// Shows how many cosigners have opened their streams. A coordinator without such cosigners shows
/// nothing.
pub fn show_streams(open: impl Fn() -> Option<u64> + Send + Sync + 'static) {
    let meter = global::meter(SCOPE);
    let gauge = meter.u64_observable_gauge("coppice.witness.streams");
    let gauge = gauge.with_description("Streams that cosigners have opened to be asked");
    let observe = move |observer: &dyn AsyncInstrument<u64>| {
        if let Some(open) = open() {
            observer.observe(open, &[]);
        }
    };
    gauge.with_callback(observe).build();
}

/// Shows which replicas answered reads of shards, and how often a preferred one was passed over.
pub fn show_reads(links: &Arc<Links>) {
    let meter = global::meter(SCOPE);
    let calls = meter.u64_observable_counter("coppice.read.calls");
    let calls = calls.with_description("Reads of shards that were answered, by the kind of the replica");
    let of = Arc::downgrade(links);
    let observe = move |observer: &dyn AsyncInstrument<u64>| {
        let Some(links) = of.upgrade() else { return };
        for (replica, count) in [("voter", links.reads(false)), ("reader", links.reads(true))] {
            observer.observe(count, &[KeyValue::new("replica", replica)]);
        }
    };
    calls.with_callback(observe).build();
    let passed = meter.u64_observable_counter("coppice.read.passed_over");
    let passed = passed.with_description("Times that a preferred replica failed or lagged, and another was asked");
    passed.with_callback(self::observe(Arc::downgrade(links), |links| Some(links.passed_over()))).build();
}

/// Shows how old the newest anchor is, and how long one has been due, while the coordinator leads.
pub fn show_anchors(shown: &Arc<Shown>) {
    gauge(
        shown,
        "coppice.anchor.age",
        "s",
        "Time since the newest anchor was made, or since one was first looked for",
        |shown| shown.leads().then(|| shown.anchors.age()).flatten().map(|age| age.as_secs()),
    );
    gauge(shown, "coppice.anchor.overdue", "s", "How long an anchor has been due that is not made yet", |shown| {
        shown.leads().then(|| shown.anchors.overdue().as_secs())
    });
}

/// Registers a gauge of a value of `of`. It shows nothing once `of` is dropped.
fn gauge<T: Send + Sync + 'static>(
    of: &Arc<T>,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&T) -> Option<u64>,
) {
    let meter = global::meter(SCOPE);
    let gauge = meter.u64_observable_gauge(name).with_unit(unit).with_description(help);
    gauge.with_callback(observe(Arc::downgrade(of), read)).build();
}

fn observe<T: Send + Sync + 'static>(
    of: Weak<T>,
    read: fn(&T) -> Option<u64>,
) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
    move |observer| {
        if let Some(value) = of.upgrade().as_deref().and_then(read) {
            observer.observe(value, &[]);
        }
    }
}

/// Shows how many slots and bytes of the queue are taken.
pub fn show_queue((slots, slots_max): (&Arc<Semaphore>, usize), (bytes, bytes_max): (&Arc<Semaphore>, usize)) {
    let meter = global::meter(SCOPE);
    let taken = |of: &Arc<Semaphore>, max: usize| {
        let of = Arc::downgrade(of);
        move |observer: &dyn AsyncInstrument<u64>| {
            if let Some(of) = of.upgrade() {
                observer.observe(max.saturating_sub(of.available_permits()) as u64, &[]);
            }
        }
    };
    let batches = meter.u64_observable_gauge("coppice.commit.queue.batches");
    let batches = batches.with_description("Batches that wait or are being decided");
    batches.with_callback(taken(slots, slots_max)).build();
    let size = meter.u64_observable_gauge("coppice.commit.queue.size").with_unit("By");
    let size = size.with_description("Bytes of the batches that wait or are being decided");
    size.with_callback(taken(bytes, bytes_max)).build();
}

/// Shows whether the signing key can be read, by calling `is_there`. A restarted process needs the
/// key.
pub fn show_key(is_there: impl Fn() -> bool + Send + Sync + 'static) {
    let meter = global::meter(SCOPE);
    let gauge = meter.u64_observable_gauge("coppice.coordinator.signing_key.readable");
    let gauge = gauge.with_description("1 if the file of the signing key is there and holds a key");
    gauge.with_callback(move |observer| observer.observe(is_there().into(), &[])).build();
}
