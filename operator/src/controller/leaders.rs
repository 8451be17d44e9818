//! The time for which the leaders of each cluster have been unevenly spread.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Leaders stay unevenly spread for this long before one is moved, and again before the next one.
const SPREAD_AFTER: Duration = Duration::from_secs(60);

/// The clusters with unevenly spread leaders, by uid: since when, or when a leader was last moved.
#[derive(Debug, Default)]
pub struct Uneven(Mutex<BTreeMap<String, Duration>>);

impl Uneven {
    /// Whether a leader of this cluster is to be moved now. If so, the wait begins again.
    pub fn is_due(&self, uid: String, is_uneven: bool, now: Duration) -> bool {
        let mut uneven = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_uneven {
            uneven.remove(&uid);
            return false;
        }
        let since = uneven.entry(uid).or_insert(now);
        let due = now.saturating_sub(*since) >= SPREAD_AFTER;
        if due {
            *since = now;
        }
        due
    }
}
