//! Reads of committed state, and their proofs. They need no leadership.

pub mod interval;
pub mod ledgers;
pub mod proofs;
pub mod reads;
pub mod receipts;

mod journals;
mod pages;
mod queries;
mod room;
mod scans;
mod times;
