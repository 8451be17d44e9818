//! The `coppice` command as a library: arguments, commands, and [`dev`], a whole cluster in one process.
//!
//! Invariants: results go to standard output, everything else to standard error; every end has one of the five exit codes
//! of [`failure::Code`]; the offline commands (`verify`, `keygen`, `fsck`, `completions`, `man`) open no connection. What others wrote is
//! escaped before it is printed ([`output`]), and nothing is printed but through [`output`].
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod args;
pub mod commands;
pub mod dev;
pub mod failure;
mod files;
mod genesis;
pub mod input;
mod load;
pub mod output;
pub mod text;
pub mod time;
