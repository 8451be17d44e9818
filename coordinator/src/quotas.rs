//! Quotas of scarce resources, so that no caller takes all of them from the others.
//!
//! A caller is the subject of its certificate, or its address if it shows none. Each coordinator
//! counts for itself and in memory: sessions and pins live in the root group, which does not know
//! callers. A coordinator that starts begins at zero. The quotas are so small that a caller that
//! fills them at several coordinators leaves room for others.
//!
//! Invariant: an entry is dropped when its time is over or it is given back, and there are never
//! more of them than `total_max`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use coppice_process::access::Caller;
use coppice_proto::status;
use coppice_types::{PinId, Reason, SessionId};
use tokio::time::Instant;
use tonic::Status;

use crate::options::Limits;

type Name = String;

/// How long a session counts as used. The root group ends no session sooner to make room for
/// another.
const SESSION_USE: Duration = Duration::from_secs(60);
/// Limit on the number of sessions and pins that are counted, as many as the root group holds.
const SESSIONS_MAX: usize = 4096;
const PINS_MAX: usize = 256;

/// The use of scarce resources at one coordinator, by caller.
#[derive(Debug)]
pub struct Quotas {
    /// Sessions that were opened or used within a minute.
    sessions: Kept<SessionId>,
    /// Pins, until their time is over.
    pins: Kept<PinId>,
    pub stages: Slots,
    /// Streams that follow the log.
    pub follows: Slots,
}

impl Quotas {
    /// Quotas that are all unused.
    pub fn new(limits: &Limits) -> Self {
        let quota = |name, advice, caller_max, total_max| Quota { name, advice, caller_max, total_max };
        let (stages, sessions) = (limits.stages_per_caller_max, limits.sessions_per_caller_max);
        // The sequencer bounds the number of all stages.
        Self {
            sessions: Kept::new(quota("sessions in use", "use one of them again", sessions, SESSIONS_MAX)),
            pins: Kept::new(quota("pins", "unpin one", limits.pins_per_caller_max, PINS_MAX)),
            stages: Slots::new(quota("stages", "finalize or discard one", stages, usize::MAX)),
            follows: Slots::new(quota(
                "streams of heads",
                "end one",
                limits.follows_per_caller_max,
                limits.follows_max,
            )),
        }
    }

    /// Counts a session that a caller opens or commits in. Returns whether it is new to the caller.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn use_session(&self, caller: &str, id: SessionId) -> Result<bool, Status> {
        self.sessions.keep(caller, id, SESSION_USE)
    }

    /// Gives back a session that the root group did not open.
    pub fn forget_session(&self, caller: &str, id: SessionId) {
        self.sessions.give_back(caller, &id);
    }

    /// Counts a pin that a caller sets or renews. Returns whether it is new to the caller.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn pin(&self, caller: &str, id: PinId, time: Duration) -> Result<bool, Status> {
        self.pins.keep(caller, id, time)
    }

    /// Gives back a pin that is gone, or was never set.
    pub fn unpin(&self, id: PinId) {
        self.pins.end(&id);
    }
}

/// Name of the caller of a request.
pub fn caller<T>(request: &tonic::Request<T>) -> String {
    Caller::of(request.extensions(), request.metadata()).name.to_string()
}

/// The bounds of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// The resource's name, in the plural.
    pub name: &'static str,
    /// The advice for a caller that is over its quota.
    pub advice: &'static str,
    /// Limit for one caller.
    pub caller_max: usize,
    /// Limit for all callers together.
    pub total_max: usize,
}

impl Quota {
    fn of_caller(&self, caller: &str, wait: Option<Duration>) -> Status {
        let Self { name, advice, caller_max, .. } = self;
        refuse(format!("{caller} has {caller_max} {name}, as many as one caller may have: {advice}{}", or_wait(wait)))
    }

    fn of_all(&self, wait: Option<Duration>) -> Status {
        let Self { name, total_max, .. } = self;
        refuse(format!("there are {total_max} {name}, as many as there may be: try again later{}", or_wait(wait)))
    }
}

fn refuse(message: String) -> Status {
    status::refuse(Reason::QuotaExceeded, message)
}

fn or_wait(wait: Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!(", or wait {} s", wait.as_secs() + 1))
}

/// Slots that callers hold while they use a resource. Clones share them.
#[derive(Clone, Debug)]
pub struct Slots {
    quota: Quota,
    held: Arc<Mutex<BTreeMap<Name, usize>>>,
}

/// A caller's slot, held until this value is dropped.
#[derive(Debug)]
pub struct Slot {
    caller: Name,
    held: Arc<Mutex<BTreeMap<Name, usize>>>,
}

impl Slots {
    pub fn new(quota: Quota) -> Self {
        Self { quota, held: Arc::default() }
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn take(&self, caller: &str) -> Result<Slot, Status> {
        let mut held = lock(&self.held);
        if held.get(caller).is_some_and(|count| *count >= self.quota.caller_max) {
            return Err(self.quota.of_caller(caller, None));
        }
        if held.values().sum::<usize>() >= self.quota.total_max {
            return Err(self.quota.of_all(None));
        }
        *held.entry(caller.to_owned()).or_default() += 1;
        Ok(Slot { caller: caller.to_owned(), held: Arc::clone(&self.held) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(count) = held.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.caller);
            }
        }
    }
}

/// Named entries that callers hold for a time.
#[derive(Debug)]
pub struct Kept<K> {
    quota: Quota,
    kept: Mutex<BTreeMap<Name, BTreeMap<K, Instant>>>,
}

impl<K: Ord> Kept<K> {
    pub fn new(quota: Quota) -> Self {
        Self { quota, kept: Mutex::default() }
    }

    /// Gives a caller an entry of this name for `time` from now on. Returns whether it is new to
    /// the caller.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, with the time after which the caller may have it.
    pub fn keep(&self, caller: &str, name: K, time: Duration) -> Result<bool, Status> {
        let (now, mut kept) = (Instant::now(), lock(&self.kept));
        let own = kept.get(caller).map_or(0, BTreeMap::len);
        let all: usize = kept.values().map(BTreeMap::len).sum();
        if own >= self.quota.caller_max || all >= self.quota.total_max {
            // Expired entries are dropped only if there is no room, so the usual call is cheap.
            kept.values_mut().for_each(|names| names.retain(|_, until| *until > now));
            kept.retain(|_, names| !names.is_empty());
        }
        let own = kept.get(caller);
        let is_new = own.is_none_or(|names| !names.contains_key(&name));
        let wait = |until: Option<&Instant>| until.map(|until| until.saturating_duration_since(now));
        if is_new && own.map_or(0, BTreeMap::len) >= self.quota.caller_max {
            return Err(self.quota.of_caller(caller, wait(own.and_then(|names| names.values().min()))));
        }
        if is_new && kept.values().map(BTreeMap::len).sum::<usize>() >= self.quota.total_max {
            return Err(self.quota.of_all(wait(kept.values().flat_map(BTreeMap::values).min())));
        }
        kept.entry(caller.to_owned()).or_default().insert(name, now + time);
        Ok(is_new)
    }

    /// Takes an entry away from a caller.
    pub fn give_back(&self, caller: &str, name: &K) {
        let mut kept = lock(&self.kept);
        if let Some(names) = kept.get_mut(caller) {
            names.remove(name);
            if names.is_empty() {
                kept.remove(caller);
            }
        }
    }

    /// Takes an entry away from all callers.
    pub fn end(&self, name: &K) {
        let mut kept = lock(&self.kept);
        kept.values_mut().for_each(|names| names.retain(|kept, _| kept != name));
        kept.retain(|_, names| !names.is_empty());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota { name: "things", advice: "end one", caller_max: 2, total_max: 5 };

    fn message<T: std::fmt::Debug>(refused: Result<T, Status>) -> String {
        let refused = refused.expect_err("there are enough");
        assert_eq!(status::reason(&refused), Some(Reason::QuotaExceeded));
        refused.message().to_owned()
    }

    #[test]
    fn a_caller_that_has_its_share_leaves_the_others_theirs() {
        let slots = Slots::new(QUOTA);
        let first = [slots.take("a").expect("there is room"), slots.take("a").expect("there is room")];
        assert_eq!(message(slots.take("a")), "a has 2 things, as many as one caller may have: end one");
        let others = ["b", "b", "c"].map(|caller| slots.take(caller).expect("it has a share of its own"));
        assert_eq!(message(slots.take("d")), "there are 5 things, as many as there may be: try again later");
        drop(first);
        let again = slots.take("d").expect("a place was given back");
        drop((others, again));
        assert!(lock(&slots.held).is_empty(), "nothing is left of callers that have gone");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_ends_by_time_or_by_name_and_is_counted_once() {
        let kept = Kept::new(QUOTA);
        let minute = Duration::from_secs(60);
        for name in [1, 2, 2, 1] {
            kept.keep("a", name, minute).expect("it has them");
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        let refused = message(kept.keep("a", 3, minute));
        assert_eq!(refused, "a has 2 things, as many as one caller may have: end one, or wait 41 s");
        kept.keep("b", 3, minute).expect("another caller has a share of its own");
        kept.end(&1);
        kept.keep("a", 4, minute).expect("one was ended");
        tokio::time::advance(minute).await;
        for name in [5, 6] {
            kept.keep("a", name, minute).expect("the time of the others is over");
        }
        assert_eq!(lock(&kept.kept).len(), 1, "nothing is left of what is over");
    }
}
