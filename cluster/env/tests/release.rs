//! A release holds no deliberate bug.

use std::{path::Path, process::Command};

/// This compiles only if the constant is `false`.
const PROOF: &str =
    "const _: () = assert!(!bug::planted(bug::Bug::SkippedSync) && !bug::strikes(bug::Bug::OneDigestBelieved, 1));";

fn compiles(directory: &Path, flags: &[&str]) -> bool {
    let source = directory.join("proof.rs");
    let switch = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bug.rs");
    std::fs::write(&source, format!("#![allow(dead_code)]\n#[path = {switch:?}]\npub mod bug;\n{PROOF}\n"))
        .expect("a file is written");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
        .arg(directory)
        .arg(source)
        .args(flags);
    command.output().expect("there is a compiler").status.success()
}

#[test]
fn a_release_holds_no_deliberate_bug() {
    let directory = tempfile::tempdir().expect("there is a place for files");
    assert!(compiles(directory.path(), &["-O"]), "without debug_assertions no bug can be planted");
    assert!(!compiles(directory.path(), &["-O", "-Cdebug-assertions=yes"]), "the proof is one");
    let manifest =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).expect("it is there");
    assert!(!manifest.contains("debug-assertions"), "no profile turns them on or off");
}
