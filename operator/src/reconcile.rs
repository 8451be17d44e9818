//! The way from a `LedgerCluster` to the objects that make it true: `dereference -> validate ->
//! build -> apply -> status`.

pub mod apply;
pub mod build;
pub mod dereference;
pub mod observe;
pub mod retire;
pub mod status;
pub mod validate;
