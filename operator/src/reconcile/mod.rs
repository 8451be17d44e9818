//! From a `LedgerCluster` to what makes it true, in steps: `dereference -> validate -> build -> apply -> status`.

pub mod apply;
pub mod build;
pub mod dereference;
pub mod observe;
pub mod status;
pub mod validate;
