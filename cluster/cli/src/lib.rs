//! The `coppice` command as a library: arguments, commands, [`dev`], a whole cluster in one
//! process, [`serve`], a node and a coordinator in one process, and [`kubectl`], a plugin.
//!
//! Invariants: results go to standard output, everything else to standard error. Every command ends
//! with one of the five exit codes of [`failure::Code`]. The offline commands (`verify`, `keygen`,
//! `fsck`, `completions`, `man`) open no connection. Text that others wrote is escaped before it is
//! printed, and everything is printed through [`output`].
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod args;
pub mod bytes;
pub mod commands;
mod console;
pub mod dev;
pub mod failure;
mod files;
mod genesis;
pub mod input;
pub mod kubectl;
mod load;
pub mod output;
pub mod serve;
pub mod text;
pub mod time;
