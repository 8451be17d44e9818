//! `coppice pim selftest`, on the emulator and on a library of the vendor's shape.

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use common::Done;

fn selftest(arguments: &[&str]) -> Done {
    common::run(common::coppice().args(["pim", "selftest"]).args(arguments))
}

/// The emulator as a shared library, which the command takes for the vendor's.
fn library(dir: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shard-node/pim");
    let library = dir.join("libdpu.so");
    let files = ["kernel/kernel.c", "emulator/machine.c", "emulator/libdpu.c", "emulator/violations.c"];
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-o"]).arg(&library);
    common::run(compiler.args(files.map(|file| sources.join(file)))).expect(0);
    library
}

#[test]
fn the_emulator_conforms_and_its_times_are_said_to_be_modelled() {
    let done = selftest(&["--emulator", "--dpus", "4"]).expect(0);
    assert!(done.stdout.starts_with("4 DPUs conform: "), "{done:?}");
    assert!(done.stdout.contains("modelled for UPMEM v1A from published constants, not run on hardware"), "{done:?}");
    let steps: Vec<&str> = done.stderr.lines().map(|line| &line[..5]).collect();
    assert_eq!(steps, ["[1/6]", "[2/6]", "[3/6]", "[4/6]", "[5/6]", "[6/6]"], "{done:?}");
    let done = selftest(&["--emulator", "--dpus", "4", "--json"]).expect(0);
    let report = done.json();
    assert_eq!((&report["conforms"], &report["modelled"], &report["dpus"]), (&true.into(), &true.into(), &4.into()));
    assert!(report["lookups"].as_u64() > Some(20_000), "{report}");
    assert_eq!(report["calibration"]["launch_s"], 0.0005, "it is a published constant");
    assert!(report["calibration"]["host_lookup_s"].as_f64() > Some(0.0), "{report}");
    assert_eq!(done.stderr, "", "JSON has no progress");
}

#[test]
fn a_library_is_measured_and_compared_with_the_emulator() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let library = library(dir.path()).display().to_string();
    let run = |program: &str| selftest(&["--library", &library, "--program", program, "--dpus", "2", "--json"]);
    let report = run("emulator:kernel").expect(0).json();
    assert_eq!((&report["conforms"], &report["modelled"]), (&true.into(), &false.into()), "{report}");
    assert_ne!(report["calibration"]["launch_s"], 0.0005, "it is measured");
    // A program that answers nothing.
    let wrong = run("emulator:none").expect(1).error();
    assert!(wrong["hint"].as_str().is_some_and(|hint| hint.contains("do not let a reader")), "{wrong}");
    let missing = run("kernel.dpu").expect(4).error();
    assert!(missing["message"].as_str().is_some_and(|it| it.contains("dpu_load failed with code 22")), "{missing}");
    let profile = selftest(&["--library", &library, "--profile", "tasklets=99"]).expect(4);
    assert!(profile.stderr.contains("dpu_alloc failed") && profile.stderr.contains("--profile"), "{profile:?}");
}

#[test]
fn what_is_missing_or_contradictory_is_named() {
    let missing = selftest(&["--library", "libdpu-that-nobody-has.so"]).expect(4);
    let (first, rest) = missing.stderr.split_once('\n').expect("an error and a hint");
    assert!(first.starts_with("coppice: no libdpu-that-nobody-has.so: cannot open shared object"), "{missing:?}");
    assert!(rest.contains("--emulator"), "{missing:?}");
    let other = selftest(&["--library", "libc.so.6", "--json"]).expect(4).error();
    assert!(other["message"].as_str().is_some_and(|message| message.contains("dpu_alloc")), "{other}");
    selftest(&["--emulator", "--library", "libdpu.so"]).expect(2);
    selftest(&["--emulator", "--dpus", "0"]).expect(2);
    selftest(&["--emulator", "--endpoint", "http://127.0.0.1:1"]).expect(2);
    let help = selftest(&["--help"]).expect(0).stdout;
    assert!(help.contains("not run on hardware") && help.contains("--program"), "{help}");
}
