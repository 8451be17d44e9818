//! Tests of the root group's state machine from outside. Tests with seeds name the seed that fails.
//! `COPPICE_SEEDS` (a count, or a range like `5..8`) chooses other seeds.

mod anchors;
mod common;
mod crash;
mod damage;
mod decode;
mod format;
mod keys;
mod ledgers;
mod model;
mod pins;
mod refusals;
mod snapshot;
