//! `coppice dev`: a whole cluster in one process.

pub mod home;
pub mod shape;
