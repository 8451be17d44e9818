//! The `coppice-coordinator` binary by itself: its settings and its key. The tests of the `coppice`
//! command cover whole clusters.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    process::{Command, Output, Stdio},
};

use coppice_verify::note::SignerKey;

const CLUSTER: &str = "00112233445566778899aabbccddeeff";

/// A coordinator without a settings file: all settings are flags.
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
    let cases: [(&str, &str); 8] = [
        ("limits.queue_mx=1", "queue_mx"),
        ("limits.queue_max=0", "queue_max"),
        ("limits.stages_max=129", "stages_max is at most 128"),
        ("limits.stages_per_caller_max=17", "stages_per_caller_max at most stages_max"),
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

#[test]
#[expect(clippy::disallowed_methods, reason = "the process under test reads real files")]
fn the_signing_key_is_neither_printed_nor_logged() {
    let dir = tempfile::tempdir().expect("a directory");
    let seed = [0xa7; 32];
    let key = SignerKey::from_seed(&format!("coppice/{CLUSTER}"), &seed).expect("a name");
    let (file, store) = (dir.path().join("ledger.key"), dir.path().join("metadata"));
    fs::write(&file, format!("{}\n", *key.to_private_text())).expect("a file can be written");
    let set_mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    set_mode(0o600);
    // The secret part of the text: the seed in hex, and as a list of numbers.
    let text = key.to_private_text();
    let secret = text.rsplit('+').next().expect("it has parts");
    let shown = [secret.to_owned(), "a7".repeat(8), "167, 167".to_owned(), "PRIVATE".to_owned()];
    let assert_hidden = |output: &str| {
        for secret in &shown {
            assert!(!output.to_lowercase().contains(&secret.to_lowercase()), "{secret}: {output}");
        }
    };
    let command = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-coordinator"));
        command
            .env_clear()
            .args(["--name", "c-1", "--listen", "127.0.0.1:0", "--log", "trace", "--signing-key-file"])
            .arg(&file);
        command.args(["--set", "nodes.n-1.ordinal=1", "--set", "nodes.n-1.address=127.0.0.1:1", "--set"]);
        command.arg(format!("metadata.dir={}", store.display())).args(more);
        command
    };
    let printed = command(&["--print-config"]).output().expect("the binary can be run");
    assert!(printed.status.success());
    assert_hidden(&String::from_utf8_lossy(&printed.stdout));

    let mut child = command(&[]).stderr(Stdio::piped()).spawn().expect("the binary can be run");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let (mut said, mut line) = (String::new(), String::new());
    // The coordinator has read the key, and now looks for the nodes.
    while !said.contains("waiting for a leader") && log.read_line(&mut line).expect("it is text") > 0 {
        said += &std::mem::take(&mut line);
    }
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    log.read_to_string(&mut said).expect("it is text");
    assert!(said.contains("waiting for a leader"), "{said}");
    assert_hidden(&said);

    // A key that everybody can read is refused. A key in place of its file's name is not repeated
    // in messages.
    set_mode(0o644);
    let refused = command(&[]).output().expect("the binary can be run");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && words.contains("chmod 600"), "{words}");
    set_mode(0o600);
    let setting = format!("signing_key_file={}", *text);
    for more in [&["--set", setting.as_str()][..], &["--set", setting.as_str(), "--print-config"]] {
        let refused = command(more).output().expect("the binary can be run");
        let words = [&refused.stdout[..], &refused.stderr[..]].concat();
        let words = String::from_utf8_lossy(&words);
        assert!(refused.status.code() == Some(2) && !words.contains(secret), "{words}");
    }

    // A damaged key is not shown either.
    fs::write(&file, text.replace("PRIVATE+KEY+coppice", "PRIVATE+KEY+other")).expect("a file can be written");
    let refused = command(&[]).output().expect("the binary can be run");
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.contains("ledger.key"), "{words}");
    assert!(!words.contains(secret), "{words}");
}
