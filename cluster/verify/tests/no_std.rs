//! The verifier links without `std`.

use std::{env, fs, path::Path, process::Command};

/// Builds `tests/no-std/lib.rs` as a library of its own, with the workspace's locked versions and no network. A second `std`
/// beside its own panic handler would be an error of the compiler.
#[test]
fn the_verifier_builds_without_std() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-std");
    fs::create_dir_all(&dir).expect("a folder under target");
    let manifest = format!(
        r#"[package]
name = "verify-no-std"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[lib]
path = {source:?}
crate-type = ["cdylib"]

[dependencies]
coppice-verify = {{ path = {here:?} }}

[profile.dev]
panic = "abort"
debug = false
"#,
        source = here.join("tests/no-std/lib.rs"),
    );
    fs::write(dir.join("Cargo.toml"), manifest).expect("the manifest is written");
    let lock = here.join("../../Cargo.lock");
    fs::copy(lock, dir.join("Cargo.lock")).expect("the workspace is locked");
    let output = Command::new(env::var_os("CARGO").expect("cargo runs the tests"))
        .args(["build", "--offline", "--target-dir"])
        .arg(dir.join("target"))
        .arg("--manifest-path")
        .arg(dir.join("Cargo.toml"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    assert!(dir.join("target/debug/libverify_no_std.so").is_file() || !cfg!(target_os = "linux"), "{messages}");
}
