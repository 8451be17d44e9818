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
        // xorshift: no more is asked of it than that clients differ.
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let random = state.random;
        let Some(route) = state.routes.iter_mut().find(|route| route.address == pick.address) else { return };
        let rest = REST_MIN.saturating_mul(1 << route.failures.min(16)).min(REST_MAX);
        route.failures = route.failures.saturating_add(1);
        let rest = rest / 2 + rest.mul_f64((random >> 32) as f64 / f64::from(u32::MAX)) / 2;
        route.rests_until = Some(Instant::now() + rest);
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
