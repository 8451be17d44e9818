//! Hashing, encodings and offline verification of everything a ledger signs.
//!
//! `docs/verification.md` specifies every byte; this is its first implementation. Nothing here does I/O, reads a clock,
//! or panics on bytes from outside; it needs `alloc` but not `std`. Prover and verifier share the hash functions
//! ([`hash`], [`merkle`]) and the encodings ([`header`], [`proof`]), but walking a proof is the verifier's alone.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

#[cfg(feature = "replay")]
pub mod audit;
mod base64;
pub mod check;
pub mod checkpoint;
pub mod cosignature;
pub mod epochs;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod hash;
pub mod header;
pub mod journal;
pub mod keys;
pub mod merkle;
pub mod note;
pub mod policy;
pub mod principal;
pub mod proof;
#[cfg(feature = "replay")]
pub mod replay;
pub mod rules;
mod sha256;
pub mod shard_map;
pub mod tile;

pub use check::{Failure, Question, Step, Subject, Verified, verify, verify_answer};
