//! Whole clusters in one thread, from one seed.
//!
//! The real engine, consensus, root state machine, commit planner and executor, and metadata logic run on the seams of `coppice_env` and
//! `coppice_proto::Channel`: one tokio runtime of one thread with paused time, where time goes on only when nothing else can be done. The network
//! ([`net`]), disks, clocks ([`life`]) and the metadata store ([`metadata`]) are simulated, suffer what the [`nemesis`] does to them, and
//! everything that passes a seam is in the [`trace`]. Clients ([`client`]) write down what they hear ([`history`]), and the checkers
//! ([`check`]) judge it.
//!
//! **Invariants.** A run is a function of its seed: no other source of randomness or time, no threads, no order of a `HashMap`. Only faults
//! happen that the design promises to survive. A run that ends without a finding has shown that every checker was content.

pub mod check;
pub mod client;
pub mod coordinators;
pub mod history;
pub mod life;
pub mod metadata;
pub mod nemesis;
pub mod net;
pub mod node;
pub mod rot;
pub mod run;
pub mod shape;
pub mod trace;
pub mod witnesses;
pub mod world;

pub use run::{Settings, Verdict, run};
