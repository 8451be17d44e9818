//! The code that the benchmarks share. It depends on no other database, so continuous integration
//! builds and tests it.
//!
//! - [`workload`]: records, and the order in which they are written and read, as functions of a
//!   seed;
//! - [`system`]: the operations of a store under comparison; [`coppice`]: our engine, driven as a
//!   replica drives it;
//! - [`jobs`]: the timed operations; [`plan`]: the order of the jobs, and the places of their
//!   figures in the report;
//! - [`figures`], [`statistics`], [`goals`], [`report`], [`regression`]: the steps from samples to
//!   a verdict;
//! - [`machine`]: the speed and the load of the machine; [`memory`]: a check that its free memory
//!   is really there.

pub mod coppice;
pub mod figures;
pub mod goals;
pub mod jobs;
pub mod machine;
pub mod memory;
pub mod plan;
pub mod regression;
pub mod report;
pub mod statistics;
pub mod system;
pub mod workload;
