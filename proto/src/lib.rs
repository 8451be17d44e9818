//! The generated messages and services of the `coppice.v1` API, and the code that both ends of a
//! call share.
//!
//! Clients use `v1::ledger_*`. Coordinators and shard-nodes use `v1::{peer,shard,root,node}_*`
//! among each other.
//!
//! Layers, each using only those above it:
//!
//! - [`certificate`]: what a certificate says; [`status`]: refusals as gRPC statuses; [`timeout`]:
//!   the time limits of calls; [`live`]: values made from files, renewed when the files change
//! - [`rest`]: which method a request of the HTTP API stands for; [`page`]: which methods a page in
//!   a browser may call
//! - [`secure`]: whose answers are accepted; [`telemetry`]: how calls are traced and measured
//! - `channel`: the path of a call

#![warn(missing_docs)]

pub mod certificate;
mod channel;
pub mod convert;
pub mod live;
pub mod page;
pub mod rest;
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
