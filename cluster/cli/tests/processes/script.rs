//! `scripts/local-cluster.sh` as docs/operations.md uses it: etcd, three nodes, two coordinators;
//! one of each is killed under load.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    assert_all_there_with, common,
    harness::{binary, free_row, until},
};

struct Script {
    dir: tempfile::TempDir,
    port: u16,
}

impl Script {
    fn run(&self, command: &str, names: &[&str]) {
        let repository =
            Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package lies two levels below");
        let mut script = Command::new(repository.join("scripts/local-cluster.sh"));
        script.arg(command).arg(self.dir.path()).args(names).env("PORT", self.port.to_string());
        script.env("BIN", binary("coppice").parent().expect("a file lies in a directory"));
        let status = script.stdout(std::process::Stdio::null()).status().expect("bash can be run");
        assert!(status.success(), "local-cluster.sh {command} {names:?}: {status}; {}", self.logs());
    }

    fn logs(&self) -> String {
        let path = |name: &str| self.dir.path().join(format!("{name}.log"));
        let tail = |name: &str| {
            let text = std::fs::read_to_string(path(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            format!("\n{name}: {}", lines.join("\n"))
        };
        ["etcd", "node-1", "node-2", "node-3", "coordinator-1", "coordinator-2"].map(tail).concat()
    }

    /// A command that asks a coordinator, and accepts only proven answers.
    fn coppice(&self, coordinator: u16, arguments: &[&str]) -> Command {
        let mut command = common::coppice();
        command.env("COPPICE_ENDPOINT", format!("https://127.0.0.1:{}", self.port + 10 + coordinator));
        for (name, file) in [("CA", "ca.pem"), ("CLIENT_CERT", "client.pem"), ("CLIENT_KEY", "client.key")] {
            command.env(format!("COPPICE_{name}"), self.path("tls").join(file));
        }
        command.env("COPPICE_TRUST", format!("@{}", self.path("ledger.vkey").display())).args(arguments);
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for name in ["coordinator-1", "coordinator-2", "node-1", "node-2", "node-3", "etcd"] {
            let pid = std::fs::read_to_string(self.path(&format!("{name}.pid"))).unwrap_or_default();
            // Ends processes that a failed test left behind.
            let _ = Command::new("kill").args(["-9", pid.trim()]).status();
        }
    }
}

#[test]
fn the_local_cluster_of_the_documentation_survives_a_killed_node_and_a_killed_coordinator() {
    let script = Script { dir: tempfile::tempdir().expect("a temporary directory"), port: free_row(20) };
    script.run("init", &[]);
    script.run("start", &[]);
    let history = common::generated(23, 200, 500);
    let file = script.path("load.jsonl").display().to_string();
    common::write_history(script.path("load.jsonl").as_path(), &history);
    let half = script.path("half.jsonl");
    common::write_history(&half, &history[..100]);
    common::run(&mut script.coppice(1, &["load", &half.display().to_string(), "--session", "one"])).expect(0);
    script.run("kill", &["node-2", "coordinator-1"]);
    // The same load goes on where it was, with the remaining coordinator.
    until("the load ends", || {
        let done = common::run(&mut script.coppice(2, &["load", &file, "--session", "one"]));
        (done.code == 0).then_some(())
    });
    assert_all_there_with(|arguments| script.coppice(2, arguments), &history);
    script.run("start", &["node-2", "coordinator-1"]);
    assert_all_there_with(|arguments| script.coppice(1, arguments), &history);
    script.run("stop", &[]);
    for ordinal in 1..=3 {
        common::assert_sound(&script.path(&format!("node-{ordinal}")));
    }
}
