//! The root log for strangers: over HTTP, with cosignatures of witnesses.

pub mod http;
pub mod publish;
pub mod witness;
