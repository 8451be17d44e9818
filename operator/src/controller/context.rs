//! The context that both controllers share: clients, the clock, events, and the intervals between
//! reconciliations.

use std::{sync::Arc, time::Duration};

use coppice_env::Clock;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder},
};

use super::leaders::Uneven;
use crate::lease::timestamp;

/// How long a ledger may take to answer: enough to find one coordinator dead, and to ask another.
pub(super) const PATIENCE: Duration = Duration::from_secs(6);
/// Time between two looks at a cluster that is ready and in which nothing is under way.
pub(super) const QUIET: Duration = Duration::from_secs(30);
/// Time between two looks at a cluster that is not ready, or at an operation that is not over.
pub(super) const BUSY: Duration = Duration::from_secs(3);
/// Time before a retry after an error.
pub(super) const AFTER_ERROR: Duration = Duration::from_secs(10);
/// The longest note of an event, in characters.
const NOTE_CHARACTERS_MAX: usize = 1000;

/// The context of every reconciliation.
pub struct Context {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) clock: Arc<dyn Clock>,
    /// How long a ledger may take to answer: one without a leader must not hold up the others.
    pub(super) patience: Duration,
    pub(super) uneven: Uneven,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn timestamp(&self) -> Timestamp {
        timestamp(self.clock.as_ref())
    }

    /// Publishes an event. A lost event is not a reason to stop.
    pub(super) async fn tell<K>(&self, about: &K, type_: EventType, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let note = Some(note.chars().take(NOTE_CHARACTERS_MAX).collect());
        let event = Event { type_, reason: reason.to_owned(), note, action: reason.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, &about.object_ref(&())).await {
            tracing::warn!(%error, reason, "an event could not be published");
        }
    }
}
