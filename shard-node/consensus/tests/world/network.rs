//! A simulated network of datagrams that may be lost, late, duplicated or out of order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use coppice_env::{Clock, Rng, SimClock, SimRng};

/// The faults that a simulated network applies to messages.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Number of messages in a thousand that are lost.
    pub drop_per_mille: u64,
    /// Number of messages in a thousand that arrive twice.
    pub duplicate_per_mille: u64,
    /// Shortest time on the way.
    pub delay_min: Duration,
    /// Longest time on the way. Messages with different delays overtake each other.
    pub delay_max: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self { drop_per_mille: 0, duplicate_per_mille: 0, delay_min: Duration::ZERO, delay_max: Duration::ZERO }
    }
}

#[derive(Debug)]
struct Hub {
    rng: SimRng,
    faults: Faults,
    /// Links that carry nothing, by (from, to).
    cut: BTreeSet<(String, String)>,
    /// Messages on the way, by (to, due, number), which is the order in which they are received.
    flying: BTreeMap<(String, Duration, u64), (String, Bytes)>,
    sent: u64,
}

/// A simulated network. Its behaviour follows from its seed, its clock and the calls made.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    hub: Arc<Mutex<Hub>>,
    clock: SimClock,
}

impl SimNetwork {
    /// A network without faults.
    #[must_use]
    pub fn new(seed: u64, clock: SimClock) -> Self {
        let hub = Hub {
            rng: SimRng::new(seed),
            faults: Faults::default(),
            cut: BTreeSet::new(),
            flying: BTreeMap::new(),
            sent: 0,
        };
        Self { hub: Arc::new(Mutex::new(hub)), clock }
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the faults of messages that are sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        assert!(faults.delay_min <= faults.delay_max, "the shortest delay is not above the longest");
        self.hub().faults = faults;
    }

    /// Cuts one direction of a link, or mends it. Messages on the way still arrive.
    pub fn set_cut(&self, from: &str, to: &str, cut: bool) {
        let link = (from.to_owned(), to.to_owned());
        let mut hub = self.hub();
        if cut {
            hub.cut.insert(link)
        } else {
            hub.cut.remove(&link)
        };
    }

    /// Cuts both directions between every node of `left` and every node of `right`.
    pub fn partition(&self, left: &[&str], right: &[&str]) {
        for a in left {
            for b in right {
                self.set_cut(a, b, true);
                self.set_cut(b, a, true);
            }
        }
    }

    /// Mends all links.
    pub fn heal(&self) {
        self.hub().cut.clear();
    }

    /// Drops the messages on the way to a node, as a restart of the node would.
    pub fn clear_inbox(&self, node: &str) {
        self.hub().flying.retain(|(to, _, _), _| to != node);
    }

    /// The access of one node.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Endpoint {
        Endpoint { network: self.clone(), name: name.to_owned() }
    }

    fn send(&self, from: &str, to: &str, bytes: &Bytes) {
        let now = self.clock.now();
        let mut hub = self.hub();
        let faults = hub.faults;
        if hub.cut.contains(&(from.to_owned(), to.to_owned())) || hub.rng.chance(faults.drop_per_mille) {
            return;
        }
        let copies = if hub.rng.chance(faults.duplicate_per_mille) { 2 } else { 1 };
        for _ in 0..copies {
            let spread = u64::try_from((faults.delay_max - faults.delay_min).as_nanos()).unwrap_or(u64::MAX - 1);
            let delay = faults.delay_min + Duration::from_nanos(hub.rng.below(spread.saturating_add(1)));
            hub.sent += 1;
            let key = (to.to_owned(), now + delay, hub.sent);
            hub.flying.insert(key, (from.to_owned(), bytes.clone()));
        }
    }

    fn receive(&self, node: &str) -> Option<(String, Bytes)> {
        let now = self.clock.now();
        let mut hub = self.hub();
        let from = (node.to_owned(), Duration::ZERO, 0);
        let until = (node.to_owned(), now, u64::MAX);
        let key = hub.flying.range(from..=until).next()?.0.clone();
        hub.flying.remove(&key)
    }
}

/// One node's access to the others.
#[derive(Debug)]
pub struct Endpoint {
    network: SimNetwork,
    name: String,
}

impl Endpoint {
    /// Sends bytes to the node of this name. Delivery is not guaranteed.
    pub fn send(&self, to: &str, bytes: Bytes) {
        self.network.send(&self.name, to, &bytes);
    }

    /// The next message that has arrived, with the name of its sender.
    pub fn receive(&self) -> Option<(String, Bytes)> {
        self.network.receive(&self.name)
    }
}
