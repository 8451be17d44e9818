//! The choice of a coordinator for a call: the one that answered last, until it fails.
//!
//! A coordinator that failed rests. The rest grows with every failure in a row, and part of it is
//! random, so that many clients do not come back at once. While all coordinators rest, the one
//! whose rest ends first is asked, so there always is one to ask.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use coppice_proto::{Channel, v1::ledger_client::LedgerClient};
use coppice_types::Backoff;
use tokio::time::Instant;

/// The rests of a coordinator after failures in a row.
const RESTS: Backoff = Backoff::new(Duration::from_millis(100), REST_MAX);
const REST_MAX: Duration = Duration::from_secs(10);
/// Most coordinators that a client knows.
const ROUTES_MAX: usize = 16;

type Ledger = LedgerClient<Channel>;

/// One coordinator.
#[derive(Debug)]
struct Route {
    address: String,
    ledger: Ledger,
    backoff: Backoff,
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct Table {
    routes: Vec<Route>,
    at: usize,
    random: u64,
}

/// The coordinators that a client knows.
#[derive(Debug)]
pub(crate) struct Routes {
    table: Mutex<Table>,
}

/// The coordinator that was chosen for a call.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub address: String,
    pub ledger: Ledger,
}

impl Routes {
    /// The table of these coordinators, by address; there must be at least one. `seed` is the
    /// source of all randomness.
    pub(crate) fn new(routes: Vec<(String, Ledger)>, seed: u64) -> Self {
        assert!(!routes.is_empty(), "a client has an endpoint");
        let route = |(address, ledger)| Route { address, ledger, backoff: RESTS, rests_until: None };
        let routes = routes.into_iter().take(ROUTES_MAX).map(route).collect();
        Self { table: Mutex::new(Table { routes, at: 0, random: seed | 1 }) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether more than one coordinator is known.
    pub(crate) fn are_several(&self) -> bool {
        self.table().routes.len() > 1
    }

    /// Chooses the coordinator to ask now.
    pub(crate) fn pick(&self) -> Pick {
        let mut table = self.table();
        let now = Instant::now();
        let rests = |route: &Route| route.rests_until.filter(|until| *until > now);
        if rests(&table.routes[table.at]).is_some() {
            let count = table.routes.len();
            let order = (0..count).map(|offset| (table.at + offset) % count);
            // The first of equals is taken. Coordinators that do not rest come before the others.
            let at = order.min_by_key(|at| rests(&table.routes[*at]));
            table.at = at.unwrap_or(table.at);
        }
        let route = &table.routes[table.at];
        Pick { address: route.address.clone(), ledger: route.ledger.clone() }
    }

    /// Notes that a coordinator answered.
    pub(crate) fn succeeded(&self, pick: &Pick) {
        let mut table = self.table();
        if let Some(route) = table.routes.iter_mut().find(|route| route.address == pick.address) {
            route.backoff.reset();
            route.rests_until = None;
        }
    }

    /// Notes that a coordinator did not answer, or could not serve the call. Others are asked for a
    /// while.
    pub(crate) fn failed(&self, pick: &Pick) {
        let mut table = self.table();
        let part = table.random_part();
        let Some(route) = table.routes.iter_mut().find(|route| route.address == pick.address) else { return };
        route.rests_until = Some(Instant::now() + spread(route.backoff.next_pause(), part));
    }

    /// A pause of between half of `about` and all of it, so that clients that failed together
    /// come back at different ones.
    pub(crate) fn pause(&self, about: Duration) -> Duration {
        spread(about, self.table().random_part())
    }

    /// Adds a coordinator, unless it is known or the table is full.
    pub(crate) fn learn(&self, address: String, ledger: impl FnOnce() -> Ledger) {
        let mut table = self.table();
        if table.routes.len() < ROUTES_MAX && table.routes.iter().all(|route| route.address != address) {
            table.routes.push(Route { address, ledger: ledger(), backoff: RESTS, rests_until: None });
        }
    }

    /// The addresses of all known coordinators.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.table().routes.iter().map(|route| route.address.clone()).collect()
    }
}

impl Table {
    /// A random number from 0 to 1.
    fn random_part(&mut self) -> f64 {
        // xorshift is good enough: clients must only differ from each other.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as f64 / f64::from(u32::MAX)
    }
}

/// A time between half of `time` and all of it, by `part` from 0 to 1.
fn spread(time: Duration, part: f64) -> Duration {
    time / 2 + time.mul_f64(part) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        LedgerClient::new(tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy().into())
    }

    fn routes(names: &[&str]) -> Routes {
        Routes::new(names.iter().map(|name| ((*name).to_owned(), ledger())).collect(), 1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_failed_rests_and_is_asked_again_later() {
        let routes = routes(&["a", "b"]);
        let first = routes.pick();
        assert_eq!(first.address, "a");
        routes.failed(&first);
        assert_eq!(routes.pick().address, "b", "another one is asked");
        routes.succeeded(&routes.pick());
        assert_eq!(routes.pick().address, "b", "and stays");
        tokio::time::advance(REST_MAX).await;
        routes.failed(&routes.pick());
        assert_eq!(routes.pick().address, "a", "its rest is over");
    }

    #[tokio::test(start_paused = true)]
    async fn while_all_rest_the_one_that_rested_longest_is_asked() {
        let routes = routes(&["a", "b", "c"]);
        for _ in 0..3 {
            routes.failed(&routes.pick());
        }
        let first = routes.pick();
        for _ in 0..6 {
            routes.failed(&first);
        }
        assert_ne!(routes.pick().address, first.address);
    }

    #[tokio::test]
    async fn coordinators_are_learnt_once_and_up_to_a_limit() {
        let routes = routes(&["a"]);
        assert!(!routes.are_several());
        for number in 0..100 {
            routes.learn(format!("n{}", number / 2), ledger);
        }
        assert_eq!(routes.addresses().len(), ROUTES_MAX);
        assert!(routes.are_several());
    }
}
