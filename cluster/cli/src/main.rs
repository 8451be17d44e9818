//! The `coppice` command.
fn main() {}
