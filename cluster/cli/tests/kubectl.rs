//! The plugin of kubectl, with a kubectl that answers from files.

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use common::{Dev, Done, run};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

/// Notes each call, and answers it from a file beside it.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
if [ -e fails ]; then cat fails >&2; exit 1; fi
case "$*" in
    *port-forward*) echo $$ > pid; cat forward; exec sleep 600 ;;
    *"get secret"*) cat secret ;;
    *"dev -o json"*|*--all-namespaces*) cat list ;;
    *) cat one ;;
esac
"#;

struct Kubectl {
    dir: tempfile::TempDir,
}

impl Kubectl {
    fn new(cluster: &Value) -> Self {
        let it = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        it.put("kubectl", KUBECTL);
        fs::set_permissions(it.path("kubectl"), fs::Permissions::from_mode(0o755)).expect("it is ours");
        symlink(env!("CARGO_BIN_EXE_coppice"), it.path("kubectl-coppice")).expect("it can be linked");
        it.put("one", &cluster.to_string());
        it.put("list", &json!({ "items": [cluster] }).to_string());
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it can be written");
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("kubectl-coppice"));
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").expect("there is a PATH"));
        command.env("PATH", path).env_remove("COPPICE_ENDPOINT").stdin(Stdio::null()).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Done {
        run(&mut self.command(words))
    }

    /// Whether the process that forwards a port is still there.
    fn forwards(&self) -> bool {
        let pid = fs::read_to_string(self.path("pid")).expect("a port was forwarded");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
        test_kill_process(pid).is_ok()
    }
}

fn cluster(name: &str, ready: &str, vkey: &str, plaintext: bool) -> Value {
    json!({
        "metadata": { "namespace": "bank", "name": name },
        "spec": { "tls": { "plaintext": plaintext } },
        "status": {
            "conditions": [{ "type": "Ready", "status": ready, "message": "some words" }],
            "vkey": vkey, "nodes": "3/3",
        },
    })
}

#[test]
fn a_command_reads_with_a_proof_through_a_forwarded_port_that_ends_with_it() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = Dev::start(&work.path().join("data"), &["--replicas".to_owned(), "1".to_owned()]);
    let vkey = fs::read_to_string(dev.dir.join("ledger.vkey")).expect("the ledger has a key");
    let port = dev.endpoint.rsplit(':').next().expect("it has a port").to_owned();
    let kubectl = Kubectl::new(&cluster("ledger", "True", vkey.trim(), true));
    kubectl.put("forward", &format!("Forwarding from 127.0.0.1:{port} -> 7411\nHandling connection for {port}\n"));
    kubectl.run(&["-n", "bank", "commit", "--put", "a=1"]).expect(0);
    assert!(!kubectl.forwards(), "the port is forwarded for the command alone");
    let proof = work.path().join("a.proof");
    let got = kubectl.run(&["--context=x", "get", "a", "--proof", proof.to_str().expect("it is text")]).expect(0);
    assert_eq!(got.stdout.trim(), "1");
    dev.run(&["verify", proof.to_str().expect("it is text"), "--key", vkey.trim()]).expect(0);
    assert_eq!(kubectl.run(&["--json", "get", "a"]).expect(0).json()["value"], "1");
    kubectl.run(&["get", "none"]).expect(1);
    let calls = kubectl.calls();
    assert!(calls.starts_with("--namespace=bank get ledgerclusters.coppice.dev -o json"), "{calls}");
    assert!(calls.contains("--context=x port-forward --address=127.0.0.1 service/ledger :7411"), "{calls}");
    assert!(!calls.contains("secret"), "the ledger has no certificates: {calls}");

    // The server is trusted in nothing that the resource's key did not sign.
    let other = dev.run(&["keygen", "--out", work.path().join("other.key").to_str().expect("it is text")]).expect(0);
    kubectl.put("list", &json!({ "items": [cluster("ledger", "True", other.stdout.trim(), true)] }).to_string());
    kubectl.run(&["get", "a"]).expect(1);
    kubectl.put("forward", "error: no pods\n");
    kubectl.put("fails", "error: unable to forward port because pod is not running\n");
    let failed = kubectl.run(&["get", "a"]).expect(4);
    assert!(failed.stderr.contains("unable to forward port"), "{failed:?}");
}

#[test]
fn a_status_is_that_of_the_operator_and_the_exit_code_says_whether_all_is_well() {
    let kubectl = Kubectl::new(&cluster("ledger", "True", "v", false));
    let said = kubectl.run(&["status"]).expect(0);
    assert!(said.stdout.starts_with("bank/ledger: ready\n"), "{said:?}");
    let object = kubectl.run(&["status", "--json", "ledger"]).expect(0).json();
    assert_eq!(
        (&object["name"], &object["ready"], &object["status"]["nodes"]),
        (&json!("ledger"), &json!(true), &json!("3/3"))
    );
    let both = [cluster("ledger", "True", "v", false), cluster("other", "False", "v", false)];
    kubectl.put("list", &json!({ "items": both }).to_string());
    let said = kubectl.run(&["status", "-A"]).expect(1);
    assert!(said.stdout.contains("bank/other: NOT READY: some words"), "{said:?}");
    assert!(kubectl.calls().contains("--all-namespaces"));
    let which = kubectl.run(&["--json", "get", "a"]).expect(2).error();
    assert!(which["message"].as_str().is_some_and(|words| words.contains("ledger, other")), "{which}");
    kubectl.put("list", r#"{ "items": [] }"#);
    for words in [&["status"][..], &["get", "a"]] {
        assert!(kubectl.run(words).expect(1).stderr.contains("there is no LedgerCluster"));
    }
    kubectl.put("one", &json!({ "metadata": { "name": "new" } }).to_string());
    assert!(kubectl.run(&["--cluster", "new", "get", "a"]).expect(4).stderr.contains("has no key yet"));
    assert!(kubectl.run(&["--cluster=--token", "get", "a"]).expect(2).stderr.contains("not the name of an object"));
}

#[test]
fn what_kubectl_refuses_is_said_in_its_words() {
    let kubectl = Kubectl::new(&cluster("ledger", "True", "v", false));
    for (words, code) in [
        ("Error from server (NotFound): ledgerclusters.coppice.dev \"x\" not found", 1),
        ("error: the server doesn't have a resource type \"ledgerclusters\"", 1),
        ("Unable to connect to the server: \u{1b}[2J refused", 4),
    ] {
        kubectl.put("fails", words);
        let said = kubectl.run(&["--json", "status"]).expect(code).error();
        let message = said["message"].as_str().expect("it has words").to_owned();
        assert!(message.starts_with("kubectl: ") && !message.contains('\u{1b}'), "{message:?}");
    }
    let mut without = kubectl.command(&["status"]);
    let said = run(without.env("PATH", "/nonexistent")).expect(2);
    assert!(said.stderr.contains("needs kubectl in PATH"), "{said:?}");
    kubectl.run(&["--role", "queen", "status"]).expect(2);
    kubectl.run(&["--help"]).expect(0);
}

#[test]
fn a_forwarded_port_shows_the_clients_files_to_its_owner_alone_and_takes_them_along() {
    let kubectl = Kubectl::new(&cluster("ledger", "True", "ledger's+key", false));
    kubectl.put("forward", "Forwarding from 127.0.0.1:45678 -> 7411\n");
    let files = [("ca.crt", "ca"), ("tls.crt", "own"), ("tls.key", "private")];
    let data: serde_json::Map<String, Value> =
        files.iter().map(|(name, text)| ((*name).to_owned(), json!(STANDARD.encode(text)))).collect();
    kubectl.put("secret", &json!({ "data": data }).to_string());
    let mut command = kubectl.command(&["--role", "writer", "port-forward", "--json", "--port", "45678"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let ready: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("an object");
    let variables = &ready["variables"];
    assert_eq!(variables["COPPICE_ENDPOINT"], "https://localhost:45678");
    assert_eq!(variables["COPPICE_TRUST"], "ledger's+key");
    let file = |name: &str| PathBuf::from(variables[name].as_str().expect("a path"));
    for (variable, (_, text)) in ["COPPICE_CA", "COPPICE_CLIENT_CERT", "COPPICE_CLIENT_KEY"].into_iter().zip(files) {
        assert_eq!(fs::read_to_string(file(variable)).expect("it is there"), text);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&file(variable)), 0o600);
        assert_eq!(mode(file(variable).parent().expect("it is in a folder")), 0o700);
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::TERM).expect("it is our child");
    assert!(child.wait().expect("it ends").success());
    assert!(!file("COPPICE_CLIENT_KEY").exists() && !kubectl.forwards());
    let calls = kubectl.calls();
    assert!(calls.contains("get secret ledger-writer-tls -o json"), "{calls}");
    assert!(calls.contains("service/ledger 45678:7411"), "{calls}");
    kubectl.put("secret", r#"{ "data": {} }"#);
    assert!(kubectl.run(&["--secret", "mine", "get", "a"]).expect(4).stderr.contains("secret mine has no ca.crt"));
}
