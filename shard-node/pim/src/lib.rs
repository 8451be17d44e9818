//! Lookups with proofs inside memory modules that compute: UPMEM's DPUs, or an emulator of them.
//!
//! A [`Reader`] serves some versions of one shard. It lays their nodes out as pages in the memories
//! of DPUs, sends batches of lookups there, and joins what comes back to the proofs that the engine
//! itself would make, byte by byte. The host keeps all nodes, too. So it answers what the DPUs
//! can't: small batches, subtrees that are asked for often, and lookups on DPUs that failed.
//!
//! Nothing that a DPU says is believed. Each answer is judged by checks of 8 bytes, and one answer
//! of each rank and batch by its hashes. A client verifies the proof as any other.
//!
//! Modules import only from those below them:
//!
//! ```text
//! selftest   times and conformance of DPUs      batch   collects queries
//! reader     versions, batches, what fails
//! image      nodes, pages and their places      balance  hot subtrees, and what a batch costs
//! space      free bytes of a memory
//! layout     bytes of pages, queries, results
//! node       a node on the host
//! abi        the functions of libdpu; all unsafe code
//! error
//! ```
//!
//! `docs/pim.md` has the design, its limits and the sources of all constants.

mod error;

mod abi;

mod node;

mod layout;

mod space;

mod balance;
mod image;

mod batch;
mod reader;

mod selftest;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use abi::{DpuApi, Dpus};
pub use balance::Calibration;
pub use batch::{Batcher, BatcherOptions};
pub use error::{Error, Result};
pub use image::{ImageOptions, Loading};
pub use layout::{LEVELS_MAX, query_bytes};
pub use reader::{Counts, LookupCost, Options, Query, Reader};
pub use selftest::{Report, Step, measure_times, selftest};
