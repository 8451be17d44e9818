//! The `coppice-shard-node` binary by itself: settings, data directory and exit codes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

const CLUSTER: &str = "00112233445566778899aabbccddeeff";

/// A node whose settings come from a file in `dir`. Nothing listens at the other node's address.
fn node(dir: &Path) -> Command {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = port.expect("there is a free port").port();
    let file = dir.join("node.toml");
    let text = format!(
        "node = 'node-1'\ncluster_id = '{CLUSTER}'\ndata_dir = '{}'\nlisten = '127.0.0.1:{port}'\n\
         [nodes.node-1]\nordinal = 1\naddress = '127.0.0.1:{port}'\n\
         [nodes.node-2]\nordinal = 2\naddress = '127.0.0.1:1'\n",
        dir.join("data").display()
    );
    fs::write(&file, text).expect("a file can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice-shard-node"));
    command.env_clear().arg("--config").arg(file);
    command
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Exit code and output of a command that ends by itself.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary can be run");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Starts a node and waits until it serves.
fn serving(command: &mut Command) -> Child {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary can be run");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("serving"))), "it ended before it served");
    // Later lines are of no interest, but must be read, or the node would block.
    std::thread::spawn(move || lines.count());
    child
}

#[test]
fn unknown_keys_and_wrong_values_are_named_wherever_they_stand() {
    let dir = dir();
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 6] = [
        (&[("COPPICE_LISTNE", "127.0.0.1:1")], &[], &["listne", "COPPICE_LISTNE"]),
        (&[("COPPICE_TLS__CAA", "x")], &[], &["caa", "COPPICE_TLS__CAA"]),
        (&[], &["--set", "tuning.tik_ms=1"], &["tik_ms"]),
        (&[], &["--bootstrap", "maybe"], &["bootstrap"]),
        (&[], &["--node", "node-9"], &["node-9", "[nodes]"]),
        (&[], &["--listen", "here"], &["listen"]),
    ];
    for (environment, arguments, words) in cases {
        let mut command = node(dir.path());
        let (code, text) = ended(command.envs(environment.iter().copied()).args(arguments));
        assert_eq!(code, Some(2), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
    }
    let mut command = node(dir.path());
    fs::write(dir.path().join("more.toml"), "colour = 'red'").expect("a file can be written");
    let (code, text) = ended(command.arg("--config").arg(dir.path().join("more.toml")));
    assert!(code == Some(2) && text.contains("colour") && text.contains("more.toml"), "{text}");
    assert!(!dir.path().join("data").exists(), "wrong settings leave no trace");
}

#[test]
fn the_settings_in_force_are_printed_and_can_be_used_again() {
    let dir = dir();
    let (code, printed) =
        ended(node(dir.path()).env("COPPICE_TUNING__TICK_MS", "70").args(["--print-config", "--log", "warn"]));
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("tick_ms = 70") && printed.contains("log = \"warn\""), "{printed}");
    let file = dir.path().join("printed.toml");
    fs::write(&file, &printed).expect("a file can be written");
    let mut again = Command::new(env!("CARGO_BIN_EXE_coppice-shard-node"));
    assert_eq!(ended(again.env_clear().arg("--config").arg(file).arg("--print-config")), (Some(0), printed));
    let (code, help) = ended(Command::new(env!("CARGO_BIN_EXE_coppice-shard-node")).arg("--help"));
    assert!(code == Some(0) && help.contains("--print-config") && help.contains("Exit codes"), "{help}");
}

#[test]
fn a_directory_in_use_or_of_another_node_cluster_or_ledger_is_refused() {
    let dir = dir();
    let mut held = serving(&mut node(dir.path()));
    let (code, text) = ended(&mut node(dir.path()));
    assert!(code == Some(3) && text.contains("another process"), "{text}");
    held.kill().expect("it is our child");
    held.wait().expect("it is our child");
    let others: [(&[&str], &str); 3] = [
        (&["--cluster-id", "ffeeddccbbaa99887766554433221100"], CLUSTER),
        (&["--node", "node-2"], "node-1"),
        (&["--set", "ledger.capacity=128"], "[ledger]"),
    ];
    for (arguments, word) in others {
        let (code, text) = ended(node(dir.path()).args(arguments));
        assert!(code == Some(3) && text.contains(word) && text.contains("data_dir"), "{arguments:?}: {text}");
    }
    let letters = dir.path().join("letters");
    fs::create_dir(&letters).expect("a directory");
    fs::write(letters.join("dear.txt"), "dear").expect("a file can be written");
    let (code, text) = ended(node(dir.path()).arg("--data-dir").arg(&letters));
    assert!(code == Some(3) && text.contains("dear.txt"), "{text}");
    let mut again = serving(&mut node(dir.path()));
    again.kill().expect("it is our child");
    again.wait().expect("it is our child");
}

#[test]
fn a_missing_certificate_or_a_taken_port_ends_it_with_a_word_of_advice() {
    let dir = dir();
    let tls = ["ca", "cert", "key"].map(|key| format!("tls.{key}=/nonexistent/{key}.pem"));
    let mut command = node(dir.path());
    for setting in &tls {
        command.args(["--set", setting]);
    }
    let (code, text) = ended(&mut command);
    assert!(code == Some(2) && text.contains("/nonexistent/"), "{text}");
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let (code, text) = ended(node(dir.path()).args(["--listen", &address]));
    assert!(code == Some(3) && text.contains(&address), "{text}");
}
