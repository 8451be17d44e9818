//! What the cluster's processes share: how they are configured, log, tell how they do, listen, connect, and stop.
//!
//! A process is a [`Program`] (its name, flags and help) and a function that serves until it is told to stop; [`run`] does the rest.
//! Its settings come from TOML files, then the environment, then flags, each overriding the one before ([`config`]). An unknown key in any of them
//! is an error that names it. With certificates, every connection is mutually authenticated ([`tls`]), and every call needs a role ([`access`]).
//!
//! **Invariants.** Nothing here knows what a node or a coordinator does. A process that was asked to stop ends within a bounded time; a
//! second signal ends it at once. Where TLS is configured, no connection goes without.

pub mod access;
pub mod config;
mod connection;
mod failure;
pub mod health;
pub mod http;
pub mod ledger;
mod log;
pub mod net;
pub mod nodes;
mod program;
pub mod store;
pub mod telemetry;
pub mod tls;

pub use failure::{Code, Failure};
pub use log::{Format, Log};
pub use program::{Flag, Program, Settings, Stop, run};
pub use telemetry::Telemetry;
