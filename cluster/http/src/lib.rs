//! The ledger's API as HTTP resources, for programs that have no gRPC: `docs/http.md`.
//!
//! [`routes`] turns requests into calls of a [`Ledger`], which may be the service of a coordinator
//! or anything else that implements it. [`Problems`] is the outermost layer of a server: it turns
//! refusals into problem documents (RFC 9457), whoever refused: the limits on calls, the guard, or
//! the ledger. It also translates gRPC-web.
//!
//! **Invariants.** A request stands for one method of the gRPC API ([`coppice_proto::rest`]), by
//! which it is judged and counted before it gets here. Nothing in a request's headers reaches the
//! ledger as metadata, so no request claims to be forwarded. An answer that breaks off never looks
//! complete.

#![warn(missing_docs)]

mod api;
mod ask;
mod body;
pub mod forms;
pub mod line;
mod log;
mod problem;
mod reads;
mod unread;
mod web;
mod writes;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::any,
};
use coppice_proto::{rest::PREFIX, v1::ledger_server::Ledger};
use tonic::Status;

use self::api::Api;

pub use self::{
    api::OPENAPI,
    ask::PROOF,
    problem::{Problems, Telling, code_of},
};

/// The routes of the API. A body of a request has at most `body_bytes_max` bytes.
pub fn routes<L: Ledger>(ledger: L, body_bytes_max: usize) -> Router {
    let api = Arc::new(Api { ledger, body_bytes_max });
    Router::new().route(&format!("{PREFIX}{{*rest}}"), any(answer::<L>)).with_state(api)
}

async fn answer<L: Ledger>(State(api): State<Arc<Api<L>>>, request: Request) -> Response {
    api.answer(request).await.unwrap_or_else(Status::into_http::<Body>)
}
