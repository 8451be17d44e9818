//! What the benchmarks share. It depends on no other database, so continuous integration builds and
//! tests it.
//!
//! - [`workload`]: records, and the order in which they are written and read, as functions of a
//!   seed;
//! - [`system`]: what a store must do to be compared; [`coppice`]: our engine, driven as a replica
//!   drives it;
//! - [`jobs`]: what is timed; [`plan`]: in which order, and where the figures go;
//! - [`figures`], [`statistics`], [`goals`], [`report`], [`regression`]: from samples to a verdict;
//! - [`machine`]: what the machine can do, and how busy it was; [`memory`]: that its free memory is
//!   really there.

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
