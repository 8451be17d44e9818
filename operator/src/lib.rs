//! The operator: realizes `LedgerCluster` resources, and carries out `LedgerOperation`s.
//!
//! All decisions are pure functions of what was observed: which objects there should be
//! ([`reconcile::build`]), which pod may be restarted next ([`rollout`]), what an operation does
//! next ([`operation`]). The rest of the code reads, applies, and retries.
//!
//! Invariants: every step may be repeated; neither data nor the signing key is deleted unless the
//! resource says so.

pub mod certificates;
pub mod controller;
pub mod crd;
pub mod error;
pub mod lease;
pub mod ledger;
pub mod log;
pub mod operation;
pub mod reconcile;
pub mod rollout;
