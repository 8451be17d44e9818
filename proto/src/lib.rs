//! Generated messages and services of the `coppice.v1` API, without logic but the mapping of errors
//! in [`status`], the times of calls in [`timeout`], how calls are traced and measured in
//! [`telemetry`], and what both ends of TLS do: certificates that are read anew in [`live`], what a
//! certificate says in [`certificate`], and who is believed to answer in [`secure`].
//!
//! `v1::ledger_*` is what clients use; `v1::{peer,shard,root,node}_*` is what coordinators and shard-nodes say to each other.

#![warn(missing_docs)]

pub mod certificate;
mod channel;
pub mod convert;
pub mod live;
pub mod secure;
pub mod status;
pub mod telemetry;
pub mod timeout;

pub use channel::{Channel, HttpRequest, HttpResponse};

/// Version 1 of the API.
#[expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the .proto files carry the comments"
)]
pub mod v1 {
    tonic::include_proto!("coppice.v1");
}

/// The encoded descriptor set, for gRPC reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));
