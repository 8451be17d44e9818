//! Which coordinator a call goes to: one that answered last, until it fails.
//!
//! A coordinator that fails rests, longer with every failure in a row, and with a random part, so that many clients do not come
//! back at once. While all rest, the one whose rest ends first is asked: a client never gives up by itself.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use coppice_proto::{Channel, v1::ledger_client::LedgerClient};
use tokio::time::Instant;

/// The first rest of a coordinator that failed; each is twice the one before.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);
/// Most coordinators that are known.
const ROUTES_MAX: usize = 16;

type Ledger = LedgerClient<Channel>;

/// One coordinator.
#[derive(Debug)]
struct Route {
    address: String,
    ledger: Ledger,
    failures: u32,
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct State {
    routes: Vec<Route>,
    at: usize,
    random: u64,
}

/// The coordinators that a client knows.
#[derive(Debug)]
pub(crate) struct Routes {
    state: Mutex<State>,
}

/// A coordinator to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub address: String,
    pub ledger: Ledger,
}

impl Routes {
    /// At least one coordinator, by address. What is random follows from `seed`.
    pub(crate) fn new(routes: Vec<(String, Ledger)>, seed: u64) -> Self {
        assert!(!routes.is_empty(), "a client has an endpoint");
        let route = |(address, ledger)| Route { address, ledger, failures: 0, rests_until: None };
        let routes = routes.into_iter().take(ROUTES_MAX).map(route).collect();
        Self { state: Mutex::new(State { routes, at: 0, random: seed | 1 }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More than one is known.
    pub(crate) fn are_several(&self) -> bool {
        self.state().routes.len() > 1
    }

    /// Whom to ask now.
    pub(crate) fn pick(&self) -> Pick {
        let mut state = self.state();
        let now = Instant::now();
        let rests = |route: &Route| route.rests_until.filter(|until| *until > now);
        if rests(&state.routes[state.at]).is_some() {
            let count = state.routes.len();
            let order = (0..count).map(|offset| (state.at + offset) % count);
            // Of equals the first: those that do not rest at all come before the others.
            let at = order.min_by_key(|at| rests(&state.routes[*at]));
            state.at = at.unwrap_or(state.at);
        }
        let route = &state.routes[state.at];
        Pick { address: route.address.clone(), ledger: route.ledger.clone() }
    }

    /// It answered.
    pub(crate) fn succeeded(&self, pick: &Pick) {
        let mut state = self.state();
        if let Some(route) = state.routes.iter_mut().find(|route| route.address == pick.address) {
            route.failures = 0;
            route.rests_until = None;
        }
    }

    /// It did not answer, or could not do what it was asked for: others are asked for a while.
    pub(crate) fn failed(&self, pick: &Pick) {
        let mut state = self.state();
        let part = state.random_part();
        let Some(route) = state.routes.iter_mut().find(|route| route.address == pick.address) else { return };
        let rest = REST_MIN.saturating_mul(1 << route.failures.min(16)).min(REST_MAX);
        route.failures = route.failures.saturating_add(1);
        route.rests_until = Some(Instant::now() + spread(rest, part));
    }

    /// A pause of about this, so that clients that failed at one moment do not come back at one.
    pub(crate) fn pause(&self, about: Duration) -> Duration {
        spread(about, self.state().random_part())
    }

    /// Adds a coordinator that was not known.
    pub(crate) fn learn(&self, address: String, ledger: impl FnOnce() -> Ledger) {
        let mut state = self.state();
        if state.routes.len() < ROUTES_MAX && state.routes.iter().all(|route| route.address != address) {
            state.routes.push(Route { address, ledger: ledger(), failures: 0, rests_until: None });
        }
    }

    /// The addresses that are known.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.state().routes.iter().map(|route| route.address.clone()).collect()
    }
}

impl State {
    /// From 0 to 1.
    fn random_part(&mut self) -> f64 {
        // xorshift: no more is asked of it than that clients differ.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as f64 / f64::from(u32::MAX)
    }
}

/// Between half of a time and all of it.
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
    async fn coordinators_are_learnt_once_and_not_without_end() {
        let routes = routes(&["a"]);
        assert!(!routes.are_several());
        for number in 0..100 {
            routes.learn(format!("n{}", number / 2), ledger);
        }
        assert_eq!(routes.addresses().len(), ROUTES_MAX);
        assert!(routes.are_several());
    }
}
