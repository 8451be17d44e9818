//! The API over HTTP, as a client without gRPC sees it: the commands of `docs/http.md` as they are
//! printed, the description of the API, and clients that mean harm.

#[path = "../common/mod.rs"]
mod common;
mod description;
mod hostile;
mod page;
mod wire;

use common::Dev;

/// A small cluster in a new directory.
fn start(work: &std::path::Path) -> Dev {
    Dev::start(&work.join("my-ledger"), &["--replicas", "1", "--shards", "2"].map(str::to_owned))
}
