//! The dependency directions of the workspace, as `docs/architecture.md` states them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The packages of the workspace that each package may use in its product code.
const ALLOWED: &[(&str, &[&str])] = &[
    ("coppice-types", &[]),
    ("coppice-protoc", &[]),
    ("coppice-proto", &["types", "verify"]),
    ("coppice-verify", &["types"]),
    ("coppice-timestamp", &["types"]),
    ("coppice-env", &["types"]),
    ("coppice-metadata", &["types", "env"]),
    ("coppice-process", &["types", "verify", "proto", "env", "metadata"]),
    ("coppice-http", &["types", "verify", "timestamp", "proto"]),
    ("coppice-console", &["types", "verify", "proto", "process", "http"]),
    ("coppice-engine", &["types", "verify", "env"]),
    ("coppice-pim", &["types", "verify", "env", "engine"]),
    ("coppice-root", &["types", "verify", "env"]),
    ("coppice-consensus", &["types", "env"]),
    (
        "coppice-shard-node",
        &["types", "verify", "proto", "env", "engine", "pim", "root", "consensus", "metadata", "process"],
    ),
    (
        "coppice-coordinator",
        &["types", "verify", "timestamp", "proto", "env", "metadata", "process", "http", "console"],
    ),
    ("coppice-client", &["types", "verify", "proto"]),
    ("coppice-cosigner", &["types", "verify", "proto", "env", "process", "client"]),
    ("coppice-operator", &["types", "verify", "proto", "env", "client"]),
    ("coppice-measure", &["types", "verify", "env", "engine", "consensus"]),
    ("coppice-pim-bench", &["types", "env", "engine", "pim", "root"]),
    ("coppice-bench", &["types", "verify", "proto", "env", "client", "measure"]),
    (
        "coppice-sim",
        &[
            "types",
            "verify",
            "proto",
            "env",
            "metadata",
            "engine",
            "root",
            "consensus",
            "shard-node",
            "coordinator",
            "client",
            "cosigner",
        ],
    ),
];

/// Additional dependencies of tests: a coordinator is tested against real groups.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    ("coppice-coordinator", &["shard-node", "client"]),
    ("coppice-shard-node", &["client"]),
    ("coppice-operator", &["process", "shard-node", "coordinator", "coppice"]),
];

/// Packages that are synchronous, and know no network.
const SYNCHRONOUS: &[&str] = &[
    "coppice-types",
    "coppice-verify",
    "coppice-timestamp",
    "coppice-env",
    "coppice-engine",
    "coppice-pim",
    "coppice-root",
    "coppice-consensus",
];

/// Dependencies that only one package may have.
const SOLE_USERS: &[(&str, &[&str])] = &[
    ("raft", &["coppice-consensus"]),
    ("etcd-client", &["coppice-metadata"]),
    ("ed25519-dalek", &["coppice-verify"]),
    ("sha2", &["coppice-verify"]),
    ("libloading", &["coppice-pim"]),
    ("clap", &["coppice", "coppice-bench", "coppice-process", "coppice-operator"]),
    ("config", &["coppice-process"]),
    ("rustls", &["coppice-process", "coppice-proto"]),
    ("rustls-webpki", &["coppice-timestamp"]),
    ("tonic-web", &["coppice-http"]),
    ("x509-parser", &["coppice-process", "coppice-proto", "coppice-timestamp"]),
    ("anyhow", &["coppice", "coppice-bench", "coppice-measure", "coppice-pim-bench"]),
];

struct Package {
    name: String,
    dir: PathBuf,
    /// (name, is for tests only)
    dependencies: BTreeSet<(String, bool)>,
}

fn workspace_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this package lies two levels below the root")
        .to_owned()
}

fn packages() -> BTreeMap<String, Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(workspace_dir())
        .output()
        .expect("cargo runs this test, so it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages.iter().map(package).map(|package| (package.name.clone(), package)).collect()
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().expect("cargo metadata gives a string").to_owned();
    let dependencies = value["dependencies"].as_array().expect("a list of dependencies");
    Package {
        name: text(&value["name"]),
        dir: Path::new(&text(&value["manifest_path"])).parent().expect("a manifest lies in a directory").to_owned(),
        dependencies: dependencies
            .iter()
            .map(|dependency| (text(&dependency["name"]), dependency["kind"] == "dev"))
            .collect(),
    }
}

fn allowed(table: &[(&str, &[&str])], package: &str, dependency: &str) -> bool {
    let short = dependency.strip_prefix("coppice-").unwrap_or(dependency);
    table.iter().any(|(name, names)| *name == package && names.contains(&short))
}

#[test]
fn packages_depend_only_on_those_below_them() {
    let packages = packages();
    for package in packages.values().filter(|package| package.name != "coppice") {
        assert!(ALLOWED.iter().any(|(name, _)| *name == package.name), "{} has no line in the table", package.name);
        for (dependency, tests_only) in &package.dependencies {
            if !packages.contains_key(dependency) || *dependency == package.name {
                continue;
            }
            let in_tests =
                *tests_only && (allowed(ALLOWED_IN_TESTS, &package.name, dependency) || dependency == "coppice-verify");
            assert!(
                in_tests || allowed(ALLOWED, &package.name, dependency),
                "{} may not use {dependency}",
                package.name
            );
        }
    }
}

#[test]
fn synchronous_packages_know_no_runtime_and_no_network() {
    for package in packages().values().filter(|package| SYNCHRONOUS.contains(&package.name.as_str())) {
        for (dependency, _) in &package.dependencies {
            let foreign = ["tokio", "tonic", "prost", "hyper", "futures", "async-trait"]
                .iter()
                .any(|name| dependency.starts_with(name));
            assert!(!foreign, "{} is synchronous and may not use {dependency}", package.name);
        }
    }
}

#[test]
fn dependencies_with_a_sole_user_have_no_other() {
    for package in packages().values() {
        for (dependency, tests_only) in &package.dependencies {
            let sole = SOLE_USERS.iter().find(|(name, _)| name == dependency);
            let fine = *tests_only || sole.is_none_or(|(_, users)| users.contains(&package.name.as_str()));
            assert!(
                fine,
                "{} may not use {dependency}: it is for {:?} alone",
                package.name,
                sole.map(|(_, users)| users)
            );
        }
    }
}

#[test]
fn packages_on_the_seams_are_bound_by_a_nearer_clippy_file() {
    let packages = packages();
    let bans = [
        "std::time::SystemTime::now",
        "std::time::Instant::now",
        "std::thread::sleep",
        "std::thread::spawn",
        "std::fs::File",
        "std::fs::rename",
    ];
    for name in ["coppice-engine", "coppice-root", "coppice-consensus", "coppice-coordinator"] {
        let file = packages[name].dir.join("clippy.toml");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for ban in bans {
            assert!(text.contains(&format!("path = \"{ban}\", reason = ")), "{} does not ban {ban}", file.display());
        }
    }
}

#[test]
fn every_package_takes_the_lints_of_the_workspace() {
    for package in packages().values() {
        let manifest = fs::read_to_string(package.dir.join("Cargo.toml")).expect("cargo read it too");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} has lints of its own", package.name);
    }
}

#[test]
fn the_commit_planner_is_synchronous() {
    let source = workspace_dir().join("coordinator/src");
    let files: Vec<PathBuf> = walk(&source)
        .into_iter()
        .filter(|path| {
            path.strip_prefix(&source).is_ok_and(|path| path.starts_with("plan") || path == Path::new("plan.rs"))
        })
        .collect();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file can be read");
        for word in ["tokio", "tonic", "async fn", "Instant", "SystemTime"] {
            assert!(!text.contains(word), "{} mentions {word}", file.display());
        }
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files = Vec::new();
    for entry in entries.map(|entry| entry.expect("a directory can be listed").path()) {
        if entry.is_dir() { files.extend(walk(&entry)) } else { files.push(entry) }
    }
    files
}
