//! The gRPC API: requests are checked, and served here or by the coordinator that leads.

mod appends;
pub mod forward;
pub mod health;
pub mod intake;
pub mod service;

mod lead;
mod stream;
