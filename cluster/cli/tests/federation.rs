//! Three members, an outside auditor, a cosigned proof and a fork that is caught: the commands of
//! `docs/federation.md`, run as they are printed.

mod common;

use std::{fs, net::TcpListener, path::Path};

use common::{
    coppice,
    page::{commands, run_all},
    run,
};
use serde_json::Value;

/// The ports on the page.
const PORTS: [&str; 8] = ["7401", "7402", "7480", "7481", "7601", "7602", "7603", "7604"];

#[test]
fn the_page_leads_from_keys_to_a_fork_that_is_caught() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root");
    let page = fs::read_to_string(root.join("docs/federation.md")).expect("the page is there");
    // All are held until each has its own.
    let free: Vec<TcpListener> =
        PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("there are free ports")).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("it listens").to_string();
    let pairs: Vec<(String, String)> =
        PORTS.iter().zip(&free).map(|(port, listener)| (format!("127.0.0.1:{port}"), address(listener))).collect();
    drop(free);
    let work = tempfile::tempdir().expect("a temporary directory");
    let endpoint = format!("http://{}", pairs[0].1);
    let commands = commands(&page);
    for part in ["cosigner init", "--cosigned", "verify loaded.proof --policy", "coppice audit", "evidence verify"] {
        assert!(commands.iter().any(|printed| printed.command.contains(part)), "the page has no {part}");
    }
    run_all(&commands, work.path(), &endpoint, &pairs);
}

#[test]
fn each_refusal_has_its_code_and_its_reason() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| work.path().join(name).display().to_string();
    run(coppice().args(["keygen", "--out", &path("ledger.key")])).expect(0);
    let key = format!("@{}", path("ledger.vkey"));
    let log = ["--log", "http://127.0.0.1:1", "--name", "member.example/w"];
    let init = |dir: &str, key: &str| {
        let dir = path(dir);
        run(coppice().args(["cosigner", "init", &dir, "--ledger-key", key]).args(log).arg("--json"))
    };
    let made = init("member", &key).expect(0).json();
    let vkey = made["vkey"].as_str().expect("a key").to_owned();
    assert_eq!(made["policy_line"], format!("witness member.example/w {vkey} http://127.0.0.1:7600/w"));
    assert_eq!(fs::read_to_string(path("member/witness.vkey")).expect("it was written"), format!("{vkey}\n"));
    assert!(init("member", &key).expect(3).error()["message"].as_str().expect("a text").contains("there already"));
    let secret = fs::read_to_string(path("ledger.key")).expect("the key");
    let refused = init("other", secret.trim()).expect(2);
    assert!(!refused.stderr.contains("PRIVATE"), "{refused:?}");
    let act = |words: &[&str]| run(coppice().arg("cosigner").args(words).arg("--json"));
    let status = act(&["status", &path("member")]).expect(0).json();
    assert_eq!((&status["vkey"], &status["log_entries"], &status["halted"]), (&vkey.into(), &0.into(), &Value::Null));
    for (words, code, part) in [
        (vec!["status".to_owned(), path("nothing")], 3, "cosigner.toml"),
        (vec!["run".to_owned(), path("nothing")], 3, "cosigner.toml"),
        (vec!["accept".to_owned(), path("member"), key.clone()], 3, "no key change waits"),
        (vec!["accept".to_owned(), path("member"), "no key".to_owned()], 2, "not a public key"),
        (vec!["resume".to_owned(), path("member"), "--seen".to_owned(), path("ledger.vkey")], 3, "has not halted"),
        (vec!["resume".to_owned(), path("member")], 2, "--seen"),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let refused = act(&words).expect(code);
        assert!(refused.stderr.contains(part), "{words:?}: {refused:?}");
    }
    // A state that is gone is never made anew by a start.
    fs::remove_file(path("member/state")).expect("it was there");
    let refused = act(&["run", &path("member")]).expect(3);
    assert!(refused.stderr.contains("coppice cosigner recover"), "{refused:?}");
    assert!(!Path::new(&path("member/state")).exists());
    assert_eq!(act(&["recover", &path("member")]).expect(0).json()["kept_a_cosignature"], false);
    assert_eq!(act(&["status", &path("member")]).expect(0).json()["cosigned_entries"], 0);
}
