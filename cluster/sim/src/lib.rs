//! Whole clusters in one thread, from one seed.
//!
//! The real engine, consensus, root state machine, commit planner and executor, and metadata logic
//! run on the seams of `coppice_env` and `coppice_proto::Channel`. They run on one tokio runtime of
//! one thread with paused time: time goes on only when nothing else can be done. The network
//! ([`net`]), disks, clocks ([`life`]) and the metadata store ([`metadata`]) are simulated, and
//! suffer the faults of the [`nemesis`]. Everything that passes a seam is in the [`trace`]. Clients
//! ([`client`]) record their answers ([`history`]), and the checkers ([`check`]) judge them.
//!
//! **Invariants.** A run is a function of its seed: there is no other source of randomness or time,
//! no thread, and no iteration over a `HashMap`. The only faults are those that the design promises
//! to survive. In a run that ends without a finding, every checker was content.
//!
//! A module uses only modules in the rows below its own:
//!
//! ```text
//!  run                                    a seed, from its first event to the verdict
//!  federation                             members' cosigners, and a model of a ledger that forks
//!  nemesis   check                        the faults, and the judges
//!  world     rot                          everything in a run; images with a bad byte
//!  author                                 members that append to a ledger
//!  coordinators   client                  processes that ask nodes, and their clients
//!  node                                   machines with nodes
//!  witnesses   time_ledger                 witnesses of the root log; the ledger that stamps it
//!  net       metadata                     calls between processes; the metadata store
//!  shape     history     life     trace   the cluster of a seed; records; processes; events
//! ```

pub mod trace;

pub mod history;
pub mod life;
pub mod shape;

pub mod metadata;
pub mod net;

pub mod time_ledger;
pub mod witnesses;

pub mod node;

pub mod client;
pub mod coordinators;

pub mod author;

pub mod rot;
pub mod world;

pub mod check;
pub mod nemesis;

pub mod federation;

pub mod run;

pub use run::{Settings, Verdict, run};
