//! Tests of the whole engine, driven by random but repeatable workloads against a model.
//!
//! `COPPICE_SEEDS=1000` runs the first thousand seeds of each test instead of a few,
//! `COPPICE_SEEDS=17..18` exactly one. A failure prints its seed.

mod cold;
mod common;
mod crash;
mod damage;
mod erase;
mod full;
mod model;
mod shortage;
mod twins;
