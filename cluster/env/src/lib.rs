//! The seams to the outside: clock, randomness and storage. Each is a small trait with a real
//! and a simulated implementation.
//!
//! Code that must be repeatable from a seed uses these traits. No other crate may use `std::fs`,
//! `SystemTime` or `Instant`. The simulated storage is the adversary of all crash tests:
//! [`SimStorage`] says what it may do to writes that were not synced.
//!
//! Layers, each using only those above it:
//!
//! - `shortage`, `secret`, `bug`, `laps`, `watch`, `workers`: for real runs and simulations alike
//! - `clock`, `rng`, `storage`: the traits
//! - `disk`, `tiers`, `sim`: implementations

pub mod bug;
mod clock;
mod disk;
mod laps;
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
pub use laps::Laps;
pub use rng::{Rng, SimRng, SystemRng};
pub use secret::{check_secret, read_secret};
pub use shortage::Shortage;
pub use sim::{Fault, Operation, SimStorage};
pub use storage::{DirectBuffer, File, OpenMode, Storage};
pub use tiers::TieredStorage;
pub use workers::{OrderedQueue, Workers, spawn_thread};
