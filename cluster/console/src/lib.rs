//! The console: pages in a browser that read a ledger and verify what they show. `docs/console.md`
//! describes them.
//!
//! The pages and the verifier are files of `dist/`, which `make console` builds, and which are part
//! of the program ([`Front`]). [`routes`] serves them to the one user of this machine, and passes
//! reads on to a [`Ledger`](coppice_proto::v1::ledger_server::Ledger).
//!
//! **Invariants.** Nothing that is served here changes a ledger. A request is answered only if it
//! names this server as its host and, where it states its origin, comes from a page of this server.
//! What tells anything about a ledger also needs the secret that only this user was told. Nothing
//! but the files of `dist/` is ever run by a page: each answer says so in its policy.

#![warn(missing_docs)]

mod assets;
mod guard;
mod ledgers;
mod serve;

pub use assets::Front;
pub use guard::{Guard, SECRET};
pub use serve::{Settings, routes, serve};
