//! The binary `coppice-coordinator` by itself: its settings and its key. Whole clusters are tested with the command.

use std::process::{Command, Output};

const CLUSTER: &str = "00112233445566778899aabbccddeeff";

/// A coordinator without a file: all settings are flags.
fn coordinator(more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-coordinator"));
    command.env_clear().args([
        "--name",
        "c-1",
        "--listen",
        "127.0.0.1:0",
        "--signing-key-file",
        "/nonexistent/ledger.key",
    ]);
    let settings = ["nodes.n-1.ordinal=1", "nodes.n-1.address=127.0.0.1:1", "metadata.dir=/nonexistent/metadata"];
    for setting in settings {
        command.args(["--set", setting]);
    }
    let Output { status, stdout, stderr } = command.args(more).output().expect("the binary can be run");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[test]
fn settings_are_printed_and_unknown_or_contradictory_ones_are_named() {
    let (code, printed) = coordinator(&["--print-config", "--cluster-id", CLUSTER]);
    assert_eq!((code, printed.contains("unexpected argument")), (Some(2), true), "{printed}");
    let (code, printed) = coordinator(&["--print-config", "--set", &format!("cluster_id={CLUSTER}")]);
    assert!(code == Some(0) && printed.contains("commit_timeout_ms") && printed.contains(CLUSTER), "{printed}");
    let cases: [(&str, &str); 5] = [
        ("limits.queue_mx=1", "queue_mx"),
        ("metadata.endpoints=http://127.0.0.1:2379", "metadata"),
        ("metadata.user=root", "password_file"),
        ("nodes.n-2.ordinal=1", "address"),
        ("cluster_id=00", "cluster_id"),
    ];
    for (setting, word) in cases {
        let (code, text) = coordinator(&["--set", setting]);
        assert!(code == Some(2) && text.contains(word), "{setting}: {text}");
    }
}

#[test]
fn a_missing_key_is_named_with_what_makes_one() {
    let (code, text) = coordinator(&[]);
    assert!(code == Some(2) && text.contains("/nonexistent/ledger.key") && text.contains("coppice keygen"), "{text}");
}
