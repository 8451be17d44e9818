//! The verifier links without `std`.

use std::{env, fs, path::Path, process::Command};

use coppice_verify::Step;

/// Builds `tests/no-std/lib.rs` as a library of its own, with the workspace's locked versions and
/// no network. It has its own panic handler, so the compiler refuses it if anything brings `std`
/// in.
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

/// `run.mjs` learns only the number of a step from the wasm32 build.
#[test]
fn the_script_for_wasm_knows_all_steps_by_their_numbers() {
    let script = include_str!("no-std/run.mjs");
    let (_, list) = script.split_once("const steps = [").expect("it has a list of steps");
    let (list, _) = list.split_once(']').expect("the list ends");
    let names: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, Step::ALL.iter().map(|step| step.name()).collect::<Vec<_>>());
    assert!(Step::ALL.iter().enumerate().all(|(number, step)| *step as usize == number));
}
