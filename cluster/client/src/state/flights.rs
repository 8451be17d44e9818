//! The calls that read keys, by versions.
//!
//! A key of a version is asked for once at a time. Reads that come while a call is under way share
//! the next one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coppice_types::Stamp;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::sleep,
};

use super::{error::Error, options::PART_KEYS};

/// Longest wait of a call for others to join it, while another one is under way. The timer of the
/// runtime rounds it up to its next millisecond.
const GATHER: Duration = Duration::from_micros(100);

/// The result of a call.
#[derive(Debug)]
pub(super) struct Landing {
    pub values: HashMap<Bytes, Option<Bytes>>,
    /// The number that a view of the version keeps of the answer.
    pub confirmed: u64,
}

type Outcome = Result<Arc<Landing>, Error>;

/// One call.
#[derive(Debug)]
pub(super) struct Flight {
    keys: Mutex<Vec<Bytes>>,
    full: Notify,
    done: watch::Sender<Option<Outcome>>,
}

impl Flight {
    fn new() -> Arc<Self> {
        let (keys, full) = (Mutex::default(), Notify::new());
        Arc::new(Self { keys, full, done: watch::Sender::new(None) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Bytes>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of the call. No more come once it is sent.
    pub(super) fn keys(&self) -> Vec<Bytes> {
        self.lock().clone()
    }

    /// Waits for the result. The call goes on if the caller gives up.
    pub(super) async fn landing(&self, at: Stamp) -> Outcome {
        let mut done = self.done.subscribe();
        let landed = done.wait_for(Option::is_some).await;
        landed.ok().and_then(|landed| landed.clone()).unwrap_or(Err(Error::GivenUp(at)))
    }
}

/// The calls of one version.
#[derive(Debug, Default)]
struct Lane {
    /// The keys of all calls that have not ended.
    wanted: HashMap<Bytes, Arc<Flight>>,
    /// The call that others may join.
    waiting: Option<Arc<Flight>>,
    /// Number of calls that were sent.
    airborne: usize,
    /// Wakes when one of them ends.
    landed: Arc<Notify>,
}

impl Lane {
    fn add(&mut self, flight: &Arc<Flight>, key: Bytes) -> usize {
        let mut keys = flight.lock();
        keys.push(key.clone());
        self.wanted.insert(key, flight.clone());
        keys.len()
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Flights {
    lanes: Mutex<HashMap<Stamp, Lane>>,
    /// Bounds the calls that are under way.
    pub slots: Semaphore,
}

impl Flights {
    pub(super) fn new(parallel: usize) -> Self {
        Self { lanes: Mutex::default(), slots: Semaphore::new(parallel) }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<Stamp, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call that has a key, or the next one, and whether the caller must send it.
    pub(super) fn join(&self, at: Stamp, key: &[u8]) -> (Arc<Flight>, bool) {
        let mut lanes = self.lanes();
        let lane = lanes.entry(at).or_default();
        if let Some(flight) = lane.wanted.get(key) {
            return (flight.clone(), false);
        }
        let (flight, new) = match &lane.waiting {
            Some(flight) => (flight.clone(), false),
            None => (Flight::new(), true),
        };
        let full = lane.add(&flight, Bytes::copy_from_slice(key)) == PART_KEYS;
        lane.waiting = (!full).then(|| flight.clone());
        if full {
            flight.full.notify_one();
        }
        (flight, new)
    }

    /// The calls that have these keys, and those of them that the caller must send. The keys
    /// ascend.
    pub(super) fn divide(&self, at: Stamp, keys: Vec<Bytes>) -> (Vec<Arc<Flight>>, Vec<Arc<Flight>>) {
        let mut lanes = self.lanes();
        let lane = lanes.entry(at).or_default();
        let (mut awaited, mut parts): (Vec<Arc<Flight>>, Vec<Arc<Flight>>) = (Vec::new(), Vec::new());
        let mut room = 0;
        for key in keys {
            if let Some(flight) = lane.wanted.get(&key) {
                if !awaited.iter().rev().any(|known| Arc::ptr_eq(known, flight)) {
                    awaited.push(flight.clone());
                }
                continue;
            }
            if room == 0 {
                parts.push(Flight::new());
            }
            if let Some(part) = parts.last() {
                room = PART_KEYS - lane.add(part, key);
            }
        }
        lane.airborne += parts.len();
        awaited.extend(parts.iter().cloned());
        (awaited, parts)
    }

    /// Waits for others to join a call if another one of the version is under way: until that
    /// lands, this one is full, or a short time is over.
    pub(super) async fn gather(&self, at: Stamp, flight: &Arc<Flight>) {
        let busy =
            self.lanes().get(&at).filter(|lane| lane.airborne > 0).map(|lane| lane.landed.clone().notified_owned());
        if let Some(landed) = busy {
            tokio::select! {
                () = landed => {}
                () = flight.full.notified() => {}
                () = sleep(GATHER) => {}
            }
        }
        if let Some(lane) = self.lanes().get_mut(&at) {
            lane.waiting.take_if(|waiting| Arc::ptr_eq(waiting, flight));
            lane.airborne += 1;
        }
    }

    /// Ends a call.
    pub(super) fn land(&self, at: Stamp, flight: &Arc<Flight>, outcome: Outcome) {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get_mut(&at) {
            lane.waiting.take_if(|waiting| Arc::ptr_eq(waiting, flight));
            for key in flight.lock().iter() {
                lane.wanted.remove(key);
            }
            // A call that was given up before it was sent was not counted.
            lane.airborne = lane.airborne.saturating_sub(1);
            lane.landed.notify_waiters();
            if lane.wanted.is_empty() {
                lanes.remove(&at);
            }
        }
        flight.done.send_replace(Some(outcome));
    }
}
