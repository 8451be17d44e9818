//! Hashing, encodings and offline verification of everything a ledger signs.
//!
//! `docs/verification.md` specifies every byte, and this crate is its first implementation. It does
//! no I/O, reads no clock, and never panics on bytes from outside. It needs `alloc` but not `std`.
//!
//! Prover and verifier share the hash functions ([`hash`], [`merkle`]) and the encodings
//! ([`header`], [`proof`]). Only the verifier walks through a proof ([`check`]).
//!
//! A module uses only modules in the rows below its own:
//!
//! ```text
//!  fuzz          report                            every decoder, for fuzzers; results as JSON
//!  evidence      trust                             two notes that no honest ledger signs; what a
//!                                                  client believes from answer to answer
//!  check         replay         audit              the verifier, its oracle, the rules of an audit
//!  policy        proof          journal           whom to trust; proof files; entries of journals
//!  ledgers                                         ledgers of members
//!  header        cosignature                       the log's entries, and lines of witnesses
//!  anchor        keys           principal          parts of headers
//!  checkpoint                                      the signed head of the log
//!  note  epochs  shard_map  rules                  notes; lists in headers; shapes of trees
//!  merkle        base64         tile               lists of hashes, texts, names of tiles
//!  hash                                            one function for each kind of hash
//!  sha256                                          several messages side by side
//! ```
//!
//! (`header::part`, which `keys` and `principal` use, lies below both.)

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod sha256;

pub mod hash;

mod base64;
pub mod merkle;
pub mod tile;

pub mod epochs;
pub mod note;
pub mod rules;
pub mod shard_map;

pub mod keys;
pub mod principal;

pub mod anchor;
pub mod checkpoint;
pub mod cosignature;
pub mod header;

pub mod ledgers;

pub mod journal;
pub mod policy;
pub mod proof;

#[cfg(feature = "replay")]
pub mod audit;
pub mod check;
#[cfg(feature = "replay")]
pub mod replay;

pub mod evidence;
pub mod trust;

pub mod report;

#[cfg(feature = "fuzz")]
pub mod fuzz;

pub use check::{Failure, Question, Step, Subject, Verified, verify, verify_answer};
