//! The code that the cluster's processes share: settings, logs, health, listening, connecting,
//! stopping.
//!
//! A process is a [`Program`] (its name, flags and help) and a function that serves until it is
//! told to stop. [`run`] does the rest. Settings come from TOML files, then the environment, then
//! flags, and each source overrides those before it ([`config`]). An unknown key is an error that
//! names the key. With certificates, every connection is mutually authenticated ([`tls`]), and
//! every call needs a role ([`access`]).
//!
//! **Invariants.** Nothing here knows what a node or a coordinator does. A process that was asked
//! to stop ends within a bounded time; a second signal ends it at once. If TLS is configured, every
//! connection uses it.
//!
//! Layers, each using only those above it:
//!
//! - `description`, `failure`, `broken`, `identity`, `parts`: name and flags of a process, errors,
//!   holders of certificates, sums over parts
//! - [`config`], `log`, `stop`, `peer`: settings, logs, the request to stop, the other end of a
//!   connection
//! - [`access`], then [`tls`], then `connection`: roles and the access log, certificates in force
//! - [`net`]: listening and dialing; [`http`], [`ledger`], [`nodes`], [`store`] on top of it
//! - [`telemetry`], then [`health`], then `program`: metrics, probes, the process as a whole

pub mod access;
mod broken;
pub mod config;
mod connection;
mod description;
mod failure;
pub mod health;
pub mod http;
mod identity;
pub mod ledger;
mod log;
pub mod net;
pub mod nodes;
mod parts;
mod peer;
mod program;
mod stop;
pub mod store;
pub mod telemetry;
pub mod tls;

pub use description::{Flag, Program};
pub use failure::{Code, Failure};
pub use log::{Format, Log, log_filter};
pub use program::{Settings, arguments, run, run_parsed};
pub use stop::Stop;
pub use telemetry::Telemetry;
