//! The layers that a call passes before it reaches a service: measurement and tracing, and the
//! limits on calls. They are the same for calls over the network and for those of this process.

use coppice_proto::telemetry::Served;

use super::calls::{Bounded, Limits};

/// The front of some services. Clones count together, so all callers share the limits.
#[derive(Clone, Debug)]
pub struct Front {
    pub(super) served: Served,
    pub(super) bounded: Bounded,
}

impl Front {
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::within(Limits::default())
    }

    /// A front with these limits. Must be called within a tokio runtime.
    pub(super) fn within(limits: Limits) -> Self {
        Self { served: Served::new(), bounded: Bounded::new(limits) }
    }
}

impl Default for Front {
    fn default() -> Self {
        Self::new()
    }
}
