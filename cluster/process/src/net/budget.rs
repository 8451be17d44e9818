//! The bytes that a process holds for the calls of others. Each caller may have a share of them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use coppice_proto::{status, telemetry::SCOPE};
use coppice_types::Reason;
use opentelemetry::{KeyValue, global};
use tonic::Status;

use crate::{parts::Parts, peer::Party};

/// A caller may have at most this part of all places and bytes: 4 means a quarter. Processes of the
/// cluster may have all, since they call for others.
pub(super) const CALLER_SHARE: usize = 4;

/// The budgets of this process.
static BUDGETS: Parts<Shared> = Parts::new();

/// A limited number of bytes. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The purpose of the bytes, as messages and metrics name it.
    what: &'static str,
    bytes_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    of: BTreeMap<Party, usize>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub(super) fn new(what: &'static str, bytes_max: usize) -> Self {
        let shared = Arc::new(Shared { what, bytes_max, taken: Mutex::default() });
        BUDGETS.add(&shared);
        let meter = global::meter(SCOPE);
        let gauge = meter.u64_observable_gauge("coppice.calls.held").with_unit("By");
        let gauge =
            gauge.with_description("Bytes of requests that are being received, and of answers that wait to be sent");
        gauge
            .with_callback(move |observer| {
                let sum = BUDGETS.sum(|shared| (shared.what == what).then(|| shared.lock().total));
                if let Some(bytes) = sum {
                    observer.observe(bytes, &[KeyValue::new("of", what)]);
                }
            })
            .build();
        Self { shared }
    }

    /// A holding of this caller, empty at first.
    pub(super) fn held(&self, caller: &Party) -> Held {
        Held { shared: Arc::clone(&self.shared), caller: caller.clone(), bytes: 0 }
    }
}

/// Bytes that are held for a call, until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    caller: Party,
    bytes: usize,
}

impl Held {
    /// Takes more bytes.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the process or the caller would hold too many. Then none are taken.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Status> {
        let Shared { what, bytes_max: max, .. } = *self.shared;
        let share = if self.caller.has_all() { max } else { max / CALLER_SHARE };
        let mut taken = self.shared.lock();
        let own = taken.of.get(&self.caller).copied().unwrap_or_default();
        let refuse = |of: &str, limit: usize| {
            let message =
                format!("the {what} of {of} would take over {limit} bytes here: try again when other calls have ended");
            Err(status::refuse(Reason::ResourceExhausted, message))
        };
        if own + bytes > share {
            return refuse("this caller", share);
        }
        if taken.total + bytes > max {
            return refuse("all callers", max);
        }
        taken.total += bytes;
        *taken.of.entry(self.caller.clone()).or_default() += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back some bytes.
    pub(super) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut taken = self.shared.lock();
        taken.total -= bytes;
        if let Entry::Occupied(mut own) = taken.of.entry(self.caller.clone()) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Number of bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_a_share_and_released_bytes_can_be_taken_again() {
        let budget = Budget::new("requests", 400);
        let of = |name: &str| budget.held(&Party::Subject(name.to_owned()));
        let (mut first, mut second, mut other) = (of("a"), of("a"), of("b"));
        first.take(60).expect("it is in its share");
        second.take(40).expect("so is this");
        let refused = second.take(1).expect_err("they have one share");
        assert_eq!(status::reason(&refused), Some(Reason::ResourceExhausted));
        assert!(refused.message().contains("this caller would take over 100 bytes"), "{refused:?}");
        other.take(100).expect("another caller has its own");
        let mut inside = budget.held(&Party::Cluster("node".to_owned()));
        inside.take(200).expect("the cluster may have what is left");
        assert!(of("c").take(1).expect_err("nothing is left").message().contains("all callers"));
        first.give_back(10);
        second.take(10).expect("there is room again");
        drop((first, second, other, inside));
        let taken = budget.shared.lock();
        assert!(taken.total == 0 && taken.of.is_empty());
    }
}
