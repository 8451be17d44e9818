//! What one caller may have of what is scarce, so that no caller takes all of it from the others.
//!
//! A caller is the subject of its certificate, or the address that it connects from where nobody shows one. What it has is counted by each
//! coordinator for itself, in memory: sessions and pins live in the root group, which knows no callers, and a coordinator that starts
//! counts anew. The shares are so small that a caller who fills them at several coordinators leaves room for others.
//!
//! Invariant: an entry is dropped when its time is over or it is given back, and there are never more of them than `total_max`.

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

use crate::exec::context::Limits;

/// Name of a caller.
type Name = String;

/// A session in use counts for so long: the root group ends none before that to make room for another.
const SESSION_USE: Duration = Duration::from_secs(60);
/// Most sessions and pins that are counted: those of the root group.
const SESSIONS_MAX: usize = 4096;
const PINS_MAX: usize = 256;

/// What callers have of a coordinator.
#[derive(Debug)]
pub struct Quotas {
    /// Sessions that were opened or used within a minute.
    sessions: Kept<SessionId>,
    /// Pins, until their time is over.
    pins: Kept<PinId>,
    /// Stages.
    pub stages: Places,
    /// Streams that follow the log.
    pub follows: Places,
}

impl Quotas {
    /// Nobody has anything.
    pub fn new(limits: &Limits) -> Self {
        let quota = |name, advice, caller_max, total_max| Quota { name, advice, caller_max, total_max };
        let (stages, sessions) = (limits.stages_per_caller_max, limits.sessions_per_caller_max);
        // The sequencer knows how many stages there are.
        Self {
            sessions: Kept::new(quota("sessions in use", "use one of them again", sessions, SESSIONS_MAX)),
            pins: Kept::new(quota("pins", "unpin one", limits.pins_per_caller_max, PINS_MAX)),
            stages: Places::new(quota("stages", "finalize or discard one", stages, usize::MAX)),
            follows: Places::new(quota(
                "streams of heads",
                "end one",
                limits.follows_per_caller_max,
                limits.follows_max,
            )),
        }
    }

    /// A caller opens a session, or commits in it; whether it had it not.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn use_session(&self, caller: &str, id: SessionId) -> Result<bool, Status> {
        self.sessions.keep(caller, id, SESSION_USE)
    }

    /// The root group did not open it.
    pub fn forget_session(&self, caller: &str, id: SessionId) {
        self.sessions.give_back(caller, &id);
    }

    /// A caller pins a version, or renews its pin; whether it had it not.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn pin(&self, caller: &str, id: PinId, time: Duration) -> Result<bool, Status> {
        self.pins.keep(caller, id, time)
    }

    /// The pin is gone, or never came to be.
    pub fn unpin(&self, id: PinId) {
        self.pins.end(&id);
    }
}

/// Name of the caller of a request.
pub fn caller<T>(request: &tonic::Request<T>) -> String {
    Caller::of(request.extensions(), request.metadata()).name.to_string()
}

/// How many there may be of something.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// What it is called, in the plural.
    pub name: &'static str,
    /// What a caller that has too many can do.
    pub advice: &'static str,
    /// Most of one caller.
    pub caller_max: usize,
    /// Most of all callers together.
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

/// Places that are held while something goes on. Clones share them.
#[derive(Clone, Debug)]
pub struct Places {
    quota: Quota,
    held: Arc<Mutex<BTreeMap<Name, usize>>>,
}

/// A place of a caller, until it is dropped.
#[derive(Debug)]
pub struct Place {
    caller: Name,
    held: Arc<Mutex<BTreeMap<Name, usize>>>,
}

impl Places {
    /// None is held.
    pub fn new(quota: Quota) -> Self {
        Self { quota, held: Arc::default() }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`.
    pub fn take(&self, caller: &str) -> Result<Place, Status> {
        let mut held = lock(&self.held);
        if held.get(caller).is_some_and(|count| *count >= self.quota.caller_max) {
            return Err(self.quota.of_caller(caller, None));
        }
        if held.values().sum::<usize>() >= self.quota.total_max {
            return Err(self.quota.of_all(None));
        }
        *held.entry(caller.to_owned()).or_default() += 1;
        Ok(Place { caller: caller.to_owned(), held: Arc::clone(&self.held) })
    }
}

impl Drop for Place {
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

/// Things by name that callers have for a time.
#[derive(Debug)]
pub struct Kept<K> {
    quota: Quota,
    kept: Mutex<BTreeMap<Name, BTreeMap<K, Instant>>>,
}

impl<K: Ord> Kept<K> {
    /// Nobody has any.
    pub fn new(quota: Quota) -> Self {
        Self { quota, kept: Mutex::default() }
    }

    /// A caller has one of this name for so long from now on; whether it had it not.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, with the time after which the caller may have it.
    pub fn keep(&self, caller: &str, name: K, time: Duration) -> Result<bool, Status> {
        let (now, mut kept) = (Instant::now(), lock(&self.kept));
        let own = kept.get(caller).map_or(0, BTreeMap::len);
        let all: usize = kept.values().map(BTreeMap::len).sum();
        if own >= self.quota.caller_max || all >= self.quota.total_max {
            // Only then: what is over is otherwise dropped a little at a time.
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

    /// A caller has it no more.
    pub fn give_back(&self, caller: &str, name: &K) {
        let mut kept = lock(&self.kept);
        if let Some(names) = kept.get_mut(caller) {
            names.remove(name);
            if names.is_empty() {
                kept.remove(caller);
            }
        }
    }

    /// Nobody has it any more.
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
        let places = Places::new(QUOTA);
        let first = [places.take("a").expect("there is room"), places.take("a").expect("there is room")];
        assert_eq!(message(places.take("a")), "a has 2 things, as many as one caller may have: end one");
        let others = ["b", "b", "c"].map(|caller| places.take(caller).expect("it has a share of its own"));
        assert_eq!(message(places.take("d")), "there are 5 things, as many as there may be: try again later");
        drop(first);
        let again = places.take("d").expect("a place was given back");
        drop((others, again));
        assert!(lock(&places.held).is_empty(), "nothing is left of callers that have gone");
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
