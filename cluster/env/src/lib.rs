//! The seams to the outside: clock, randomness, storage and network. Each is a small trait with a
//! simulated implementation and, except for the network, a real one.
//!
//! Code that must be repeatable from a seed uses these traits. No other crate may use `std::fs`,
//! `SystemTime` or `Instant`. The simulated storage is the adversary of all crash tests:
//! [`SimStorage`] says what it may do to writes that were not synced.
//!
//! Layers, each using only those above it:
//!
//! - `shortage`, `secret`, `bug`, `watch`, `workers`: for real runs and simulations alike
//! - `clock`, `rng`, `storage`: the traits
//! - `disk`, `tiers`, `network`, `sim`: implementations

pub mod bug;
mod clock;
mod disk;
mod network;
mod rng;
mod secret;
mod shortage;
mod sim;
mod storage;
mod tiers;
pub mod watch;
mod workers;

pub use clock::{Clock, SimClock, SystemClock};
pub use disk::DiskStorage;
pub use network::{Faults, Network, SimNetwork};
pub use rng::{Rng, SimRng, SystemRng};
pub use secret::{check_secret, read_secret};
pub use shortage::Shortage;
pub use sim::{Fault, Operation, SimStorage};
pub use storage::{DirectBuffer, File, OpenMode, Storage};
pub use tiers::TieredStorage;
pub use workers::{OrderedQueue, Workers, spawn_thread};
