//! The root log as it is published: over HTTP, with the cosignatures of witnesses.

pub mod http;
pub mod publish;
pub mod witness;
