//! Spans of a command on the replica that proposed it. They are children of the sender's span.
//!
//! `replicate` lasts until raft has committed the command, then follows `apply`. Other replicas
//! apply the command without a trace.

use coppice_proto::telemetry::child;
use coppice_types::GroupId;
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanBuilder, TraceContextExt},
};

/// A command's spans.
#[derive(Clone, Debug, Default)]
pub struct Way {
    sender: Context,
    replicating: Context,
    labels: Vec<KeyValue>,
}

impl Way {
    /// Begins with the proposal of a sender's command at an index.
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

    /// Begins the span of applying the command, which is committed now. The caller ends the span.
    pub fn apply(&self) -> Context {
        self.replicating.span().end();
        child(&self.sender, SpanBuilder::from_name("apply").with_attributes(self.labels.clone()))
    }
}
