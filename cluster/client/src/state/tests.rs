//! A cache beside a model of a ledger, and before a coordinator that lies.

mod cases;
mod changes;
mod lies;
mod model;
mod random;
mod samples;
mod views;
mod world;
