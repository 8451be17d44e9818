//! Durations that replicas record as they happen, by group. `docs/metrics.md` lists them.

use coppice_proto::telemetry::{DURATIONS_S, SCOPE};
use coppice_types::GroupId;
use opentelemetry::{KeyValue, global, metrics::Histogram};

/// The label of a group.
pub fn group_label(group: GroupId) -> KeyValue {
    KeyValue::new("group", group.to_string())
}

/// The histograms. If the process has no meter, nothing is recorded.
#[derive(Clone, Debug)]
pub struct Durations {
    /// Durations of writing and syncing a batch of the raft log.
    pub persist: Histogram<f64>,
    /// Durations of applying an entry.
    pub apply: Histogram<f64>,
}

impl Durations {
    /// Histograms of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter(SCOPE);
        let histogram = |name: &'static str, help: &'static str| {
            let named = meter.f64_histogram(name).with_unit("s").with_description(help);
            named.with_boundaries(DURATIONS_S.to_vec()).build()
        };
        Self {
            persist: histogram(
                "coppice.raft.persist.duration",
                "How long it took to write and sync a batch of the raft log",
            ),
            apply: histogram("coppice.raft.apply.duration", "How long the state machine took for an entry"),
        }
    }
}
