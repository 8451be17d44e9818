//! Tests of the whole crate on emulated DPUs, against the engine's own proofs.

mod balance;
mod emulator;
mod failures;
mod kernel;
mod places;
mod size;
