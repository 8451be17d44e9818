//! Rust client of a ledger: retries by error kind, verifies what it is told
