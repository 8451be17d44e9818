//! A command's way through the replica that it was proposed on, as spans below that of whoever sent it: `replicate`, until raft has committed
//! it, and `apply`. Other replicas apply it without a trace.

use coppice_proto::telemetry::child;
use coppice_types::GroupId;
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanBuilder, TraceContextExt},
};

/// Where a command is on its way.
#[derive(Clone, Debug, Default)]
pub struct Way {
    sender: Context,
    replicating: Context,
    labels: Vec<KeyValue>,
}

impl Way {
    /// The command of a sender was proposed at an index.
    pub fn begin(sender: Context, group: GroupId, index: u64) -> Self {
        if !coppice_proto::telemetry::is_traced(&sender) {
            return Self::default();
        }
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        let labels =
            vec![KeyValue::new("coppice.group", group.to_string()), KeyValue::new("coppice.raft.index", index)];
        let replicating = child(&sender, SpanBuilder::from_name("replicate").with_attributes(labels.clone()));
        Self { sender, replicating, labels }
    }

    /// It is committed, and applied from now on; the span is the caller's to end.
    pub fn apply(&self) -> Context {
        self.replicating.span().end();
        child(&self.sender, SpanBuilder::from_name("apply").with_attributes(self.labels.clone()))
    }
}
