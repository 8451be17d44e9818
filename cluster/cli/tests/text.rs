//! Text that people see and type. Text from others can't drive a terminal or forge a line. Pipes
//! get whole values, and advice is true. A reader that goes away is not an error, and commands that
//! can't be undone ask first.

mod common;

use std::{fs, path::Path, process::Command};

use common::{Dev, Done};
use coppice_types::text::is_control;
use serde_json::json;

/// A key, value or reason that clears the screen, begins a line, changes the text direction, and
/// ends in invalid UTF-8.
const HOSTILE: &[u8] = b"k\x1b[2J\x1b]0;title\x07\n4\tcommit\t0.3\tstate root 0000\xc2\x9b1m\xe2\x80\xae\\\xff";

fn one_replica(work: &Path) -> Dev {
    Dev::start(&work.join("data"), &["--replicas", "1"].map(str::to_owned))
}

/// Runs a command on its own terminal. The result's standard output has everything that the
/// terminal shows, including errors and the echo of `input`.
fn on_terminal(command: &Command, input: &str) -> Done {
    const SPAWN: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut python = Command::new("python3");
    python.args(["-c", SPAWN]).arg(command.get_program()).args(command.get_args()).env_remove("COPPICE_ENDPOINT");
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            python.env(name, value);
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let typed = dir.path().join("typed");
    fs::write(&typed, input).expect("a file can be written");
    common::run(python.stdin(fs::File::open(&typed).expect("it was written")))
}

/// Checks that the text has no control characters except line ends and tabs.
fn assert_harmless(shown: &str, what: &str) {
    let wild = shown.chars().find(|c| is_control(*c) && !['\n', '\t', '\r'].contains(c));
    assert_eq!(wild, None, "{what}: {shown:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |hex, byte| format!("{hex}{byte:02x}"))
}

fn shell(script: &str, dev: &Dev) -> Done {
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).env("COPPICE", env!("CARGO_BIN_EXE_coppice")).env("COPPICE_ENDPOINT", &dev.endpoint);
    common::run(&mut bash)
}

#[test]
fn nothing_that_others_wrote_drives_a_terminal_or_forges_a_line() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    let pair = format!("{0}={0}", hex(HOSTILE));
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    dev.run(&["commit", "--put", &pair]).expect(0);
    dev.run(&["commit", "--put", &pair.replace("=0x6b", "=0x6c")]).expect(0);
    // Another ledger may hold such texts; this one may refuse them.
    let text = String::from_utf8_lossy(&HOSTILE[..HOSTILE.len() - 1]).into_owned();
    dev.run(&["prune", "--before", "1", "--reason", &text, "--principal", &text]);
    let proof = work.path().join("proof").display().to_string();
    let key = hex(HOSTILE);
    let vkey = dev.vkey();
    let commands: [&[&str]; 12] = [
        &["range", "", "", "--proof", &proof],
        &["verify", &proof, "--key", &vkey],
        &["diff", "1", "3"],
        &["history", &key],
        &["get", "--version", "1", &key],
        &["log"],
        &["header", "--sequence", "4"],
        &["merge", "--base", "2", "--left", "1", "--right", "3"],
        &["status"],
        &["lead", &text, &text],
        &["get", &format!("@/nowhere/{text}")],
        &["watch", "--from", "2", "--limit", "2", "--values"],
    ];
    for command in commands {
        for json in [&[][..], &["--json"]] {
            let arguments = [command, json].concat();
            let done = dev.run(&arguments);
            assert_ne!(done.code, 101, "{command:?}: {done:?}");
            for shown in [&done.stdout, &done.stderr] {
                assert_harmless(shown, command[0]);
            }
            assert_harmless(&on_terminal(&dev.command(&arguments), "").stdout, command[0]);
        }
    }
    let range = dev.run(&["range", "", ""]).expect(0).stdout;
    assert_eq!(range.lines().count(), 2, "a record is a line: {range}");
    let shown = range.lines().nth(1).and_then(|line| line.split('\t').next()).expect("a key");
    // Printed keys can be typed again.
    dev.run(&["get", &format!("esc:{shown}")]).expect(0);
    let log = dev.run(&["log"]).expect(0).stdout;
    assert!(!log.lines().any(|line| line.starts_with("4\tcommit")), "{log}");
    assert_harmless(&on_terminal(&dev.command(&["get", &key]), "").stdout.replace("\r\n", ""), "get");
    dev.stop();
}

#[test]
fn a_value_goes_as_it_is_into_a_pipe_or_a_file_and_escaped_to_a_terminal() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    let value = b"two\nlines\x1b[2J\xff";
    fs::write(work.path().join("long"), "v".repeat(5000)).expect("a file can be written");
    let long = format!("long=@{}", work.path().join("long").display());
    dev.run(&["commit", "--put", &format!("k={}", hex(value)), "--put", &long]).expect(0);

    let piped = dev.command(&["get", "k"]).output().expect("the command can be run");
    assert_eq!(piped.stdout, value);
    let out = work.path().join("out");
    let name = out.display().to_string();
    assert_eq!(dev.run(&["get", "k", "--out", &name]).expect(0).stdout, "");
    assert_eq!(fs::read(&out).expect("it was written"), value);
    assert_eq!(dev.command(&["get", "k", "--out", "-"]).output().expect("it can be run").stdout, value);

    let shown = on_terminal(&dev.command(&["get", "k"]), "").expect(0).stdout;
    assert_eq!(shown, "two\r\nlines\\x1b[2J\\xff\r\n");
    let raw = on_terminal(&dev.command(&["get", "k", "--raw"]), "").expect(0).stdout;
    assert!(raw.starts_with("two\r\nlines\u{1b}[2J"), "{raw:?}");
    dev.run(&["get", "k", "--raw", "--json"]).expect(2);
    dev.run(&["get", "k", "--out", "-", "--proof", "-"]).expect(2);

    // Pipes get the whole value, a terminal gets what fits.
    let range = dev.run(&["range", "long", ""]).expect(0).stdout;
    assert_eq!(range, format!("long\t{}\n", "v".repeat(5000)));
    let range = on_terminal(&dev.command(&["range", "long", ""]), "").expect(0).stdout;
    assert!(range.contains("KEY") && range.contains('…') && range.len() < 400, "{range}");

    // A proof may go through a pipe.
    let vkey = dev.vkey();
    let script = format!("set -o pipefail; \"$COPPICE\" get k --proof - | \"$COPPICE\" verify - --key {vkey}");
    let verified = shell(&script, &dev).expect(0);
    assert!(verified.stdout.starts_with("valid: `k` has the value `two\\x0alines"), "{}", verified.stdout);
    dev.stop();
}

#[test]
fn json_tells_the_encoding_of_a_key_from_that_of_its_value() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    // A key that is no text has a text as its value. A text that looks like that key has a value
    // that is none.
    let (no_text, looks_like_it) = ("0xff00", hex(b"0xff00"));
    dev.run(&["commit", "--put", "0xff00=plain", "--put", &format!("{looks_like_it}=0x00ff")]).expect(0);
    let file = work.path().join("proof").display().to_string();
    let key = format!("@{}", dev.dir.join("ledger.vkey").display());
    for (key_argument, key_encoding, encoding, value) in
        [(no_text, "hex", "utf8", "plain"), (&looks_like_it, "utf8", "hex", "0x00ff")]
    {
        let judge = |what: &str, shown: &serde_json::Value| {
            assert_eq!(shown["key"], "0xff00", "{what}: {shown}");
            assert_eq!(
                (&shown["key_encoding"], &shown["value"]),
                (&json!(key_encoding), &json!(value)),
                "{what}: {shown}"
            );
            assert_eq!(shown["encoding"], encoding, "{what}: {shown}");
        };
        judge("get", &dev.run(&["get", key_argument, "--proof", &file, "--json"]).expect(0).json());
        let mut verify = common::coppice();
        judge("verify", &common::run(verify.args(["verify", &file, "--key", &key, "--json"])).expect(0).json());
        let range = dev.run(&["range", key_argument, &format!("{key_argument}00"), "--json"]).expect(0).lines();
        judge("range", &range[0]);
        judge("history", &dev.run(&["history", key_argument, "--json"]).expect(0).lines()[0]);
        let watch = ["watch", key_argument, "--from", "0", "--limit", "2", "--values", "--json"];
        let changes = dev.run(&watch).expect(0).lines();
        judge("watch", changes.iter().find(|line| line["key"].is_string()).expect("a change"));
        let difference = dev.run(&["diff", "0", "1", "--json"]).expect(0).lines();
        let found = difference.iter().find(|line| line["key_encoding"] == key_encoding);
        assert_eq!(found.expect("a difference")["after"]["value"], value);
    }
    let absent = dev.run(&["get", "0xfe", "--json"]).json();
    assert_eq!((&absent["key_encoding"], &absent["encoding"]), (&json!("hex"), &json!("hex")));
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    dev.run(&["commit", "--put", "k=v"]).expect(0);
    let words =
        ["completions bash", "completions zsh", "completions fish", "log", "head", "range '' ''", "get k", "--help"];
    for words in words {
        let done = shell(&format!("\"$COPPICE\" {words} | true; exit ${{PIPESTATUS[0]}}"), &dev);
        assert_eq!((done.code, done.stderr.contains("panicked")), (0, false), "{words}: {done:?}");
    }
    // A missing reader of standard error is not an error either.
    for (words, code) in [("get nothing", 1), ("range '' ''", 0), ("get ''", 2), ("prune --before 99 --reason r", 3)] {
        let done = shell(&format!("\"$COPPICE\" {words} 2> /dev/full > /dev/null"), &dev);
        assert_eq!(done.code, code, "{words}");
    }
    dev.stop();
}

#[test]
fn a_variable_that_is_set_to_nothing_is_not_set() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    let names = ["COPPICE_CA", "COPPICE_CLIENT_CERT", "COPPICE_CLIENT_KEY", "COPPICE_TRUST"];
    let empty = |command: &mut Command| {
        command.envs(names.map(|name| (name, "")));
    };
    let mut head = dev.command(&["head"]);
    empty(&mut head);
    common::run(&mut head).expect(0);
    let mut keygen = common::coppice();
    keygen.arg("keygen").arg("--out").arg(work.path().join("new.key")).env("COPPICE_ENDPOINT", "");
    empty(&mut keygen);
    common::run(&mut keygen).expect(0);
    let halves = common::run(dev.command(&["head"]).env("COPPICE_CLIENT_CERT", "some.pem")).expect(2);
    assert!(halves.stderr.contains("--client-key"), "{}", halves.stderr);
    dev.stop();
}

#[test]
fn advice_is_about_what_happened() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    assert_eq!(dev.run(&["history", "a"]).expect(0).stderr, "");
    dev.run(&["prune", "--before", "1", "--reason", "r"]).expect(0);
    assert_eq!(dev.run(&["history", "a"]).expect(0).stderr, "", "nothing came before version 1");
    assert!(dev.run(&["history", "none"]).expect(1).stderr.contains("never written"));
    dev.run(&["commit", "--put", "b=1"]).expect(0);
    dev.run(&["commit", "--put", "b=2"]).expect(0);
    dev.run(&["prune", "--before", "3", "--reason", "r"]).expect(0);
    assert!(dev.run(&["history", "b"]).expect(0).stderr.contains("were pruned"));
    assert_eq!(dev.run(&["history", "a"]).expect(0).stderr, "");

    // If the answer is too large for a message, the advice names neither disks nor another attempt.
    let value = work.path().join("value");
    fs::write(&value, "x".repeat(1 << 20)).expect("a file can be written");
    for number in 0..14 {
        dev.run(&["commit", "--put", &format!("v{number:02}=@{}", value.display())]).expect(0);
    }
    let proof = work.path().join("proof").display().to_string();
    let refused = dev.run(&["range", "", "", "--proof", &proof]).expect(3);
    assert!(refused.stderr.contains("ask for less") && refused.stderr.contains("LIMIT_EXCEEDED"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("disk") && !refused.stderr.contains("written"), "{}", refused.stderr);

    // A request that was never sent did nothing, and a read is not called a write.
    for endpoint in ["http://127.0.0.1:1", "http://no-such-host.invalid:1"] {
        let patience = ["--endpoint", endpoint, "--patience", "0"];
        for words in [&["commit", "--put", "a=1"][..], &["prune", "--before", "1", "--reason", "r"]] {
            let lost = dev.run(&[words, &patience].concat()).expect(4);
            assert!(lost.stderr.contains("Nothing was written."), "{}", lost.stderr);
        }
        let lost = dev.run(&[&["get", "a"][..], &patience].concat()).expect(4);
        assert!(!lost.stderr.contains("writ"), "{}", lost.stderr);
    }
    let old = dev.run(&["get", "a", "--version", "1"]).expect(3);
    assert!(old.stderr.contains("the oldest that is left"), "{}", old.stderr);
    dev.stop();
}

#[test]
fn a_retry_is_not_advised_for_a_proof_that_does_not_hold() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    let other = work.path().join("other.key");
    common::run(common::coppice().arg("keygen").arg("--out").arg(&other)).expect(0);
    let trust = format!("@{}", other.with_extension("vkey").display());
    for words in [&["get", "a"][..], &["range", "", ""], &["commit", "--put", "a=2"]] {
        let done = dev.run(&[words, &["--trust", &trust]].concat()).expect(1);
        assert!(done.stderr.contains("Is --trust the key of this ledger?"), "{}", done.stderr);
    }
    dev.stop();
}

#[test]
fn a_verified_proof_says_what_and_when() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    dev.run(&["commit", "--put", "a=1", "--put", "b=2", "--put", "c=3"]).expect(0);
    let (proof, vkey) = (work.path().join("proof").display().to_string(), dev.vkey());
    let verify = |arguments: &[&str]| {
        dev.run(&[arguments, &["--proof", &proof]].concat());
        common::run(common::coppice().args(["verify", &proof, "--key", &vkey]).env("TZ", "UTC")).expect(0).stdout
    };
    let one = verify(&["get", "a"]);
    assert!(one.contains("`a` has the value `1`") && one.contains("version 0.1, committed 20"), "{one}");
    let none = verify(&["get", "d"]);
    assert!(none.contains("`d` is not there"), "{none}");
    let all = verify(&["range", "", ""]);
    assert!(all.contains("from the first key to the last there are these 3 records and no others"), "{all}");
    assert!(all.contains("`c` has the value `3`"), "{all}");
    let single = verify(&["range", "--prefix", "a"]);
    assert!(single.contains("there is this record and no other"), "{single}");
    dev.stop();
}

#[test]
fn prune_and_rollback_ask_for_consent_on_a_terminal() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    for value in 1..=6 {
        dev.run(&["commit", "--put", &format!("k={value}")]).expect(0);
    }
    let prune: &[&str] = &["prune", "--before", "3", "--reason", "old"];
    let rollback: &[&str] = &["rollback", "--to", "4", "--reason", "wrong"];
    let before = dev.head();
    for words in [prune, rollback] {
        let dry = dev.run(&[words, &["--dry-run"]].concat()).expect(0).stdout;
        assert!(dry.contains("would"), "{dry}");
        dev.run(&[words, &["--dry-run", "--json"]].concat()).expect(0).json();
        for answer in ["n\n", "\n", "\u{4}"] {
            let asked = on_terminal(&dev.command(words), answer).expect(2).stdout;
            assert!(asked.contains("Go on? [y/N]") && asked.contains("nothing was done"), "{asked}");
        }
        assert_eq!(dev.head(), before, "nothing was done");
    }
    dev.run(&["prune", "--before", "99", "--reason", "r", "--dry-run"]).expect(3);
    dev.run(&["rollback", "--to", "99", "--reason", "r", "--dry-run"]).expect(3);
    on_terminal(&dev.command(prune), "y\n").expect(0);
    assert_eq!(dev.head()["pruned_boundary"], 3);
    // There is no question without a terminal, or if the user agreed beforehand.
    on_terminal(&dev.command(&[rollback, &["--yes"]].concat()), "").expect(0);
    dev.run(&["rollback", "--to", "0.3", "--reason", "again"]).expect(0);
    let head = dev.head();
    assert_eq!((&head["epoch"], &head["version"]), (&json!(2), &json!(3)));
    dev.run(&["rollback", "--to", "1.3", "--reason", "it stands in epoch 0"]).expect(3);
    dev.stop();
}

#[test]
fn a_version_has_one_notation_and_times_are_for_people() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = one_replica(work.path());
    dev.run(&["commit", "--put", "k=1"]).expect(0);
    let told = dev.run(&["commit", "--put", "k=2", "--expect-version", "0.1"]).expect(0).stdout;
    assert!(told.starts_with("version 0.2, "), "{told}");
    assert_eq!(dev.run(&["get", "k", "--version", "0.1"]).expect(0).stdout, "1");
    assert_eq!(dev.run(&["history", "k"]).expect(0).stdout, "0.2\t2\n0.1\t1\n");
    assert_eq!(dev.run(&["diff", "0.1", "0.2"]).expect(0).stdout, "~\tk\t2\n");
    dev.run(&["diff", "0.1", "2"]).expect(2);
    dev.run(&["get", "k", "--version", "0.1", "--epoch", "1"]).expect(2);
    dev.run(&["commit", "--put", "k=3", "--if-changed", "k=0.2"]).expect(0);
    let log = common::run(dev.command(&["log", "--from", "3"]).env("TZ", "IST-5:30")).expect(0).stdout;
    assert!(log.starts_with("3\tcommit\t0.3\t20") && log.contains("+05:30\tstate root"), "{log}");
    let log = on_terminal(&dev.command(&["log"]), "").expect(0).stdout;
    assert!(log.starts_with("ENTRY"), "{log}");
    let pin = dev.run(&["pin", "--seconds", "60"]).expect(0).stdout;
    assert!(pin.contains("is pinned until 20"), "{pin}");
    assert!(dev.run(&["status"]).expect(0).stdout.contains(" on disk"));
    let range = dev.run(&["range", "--prefix", "k", "--keys-only"]).expect(0);
    assert_eq!((range.stdout.as_str(), range.stderr.as_str()), ("k\n", "1 record at version 0.3\n"));
    dev.run(&["range", "a"]).expect(2);
    let watched = dev.run(&["watch", "k", "--from", "2", "--limit", "2", "--json", "--values"]).expect(0).lines();
    let values: Vec<&serde_json::Value> = watched.iter().map(|change| &change["value"]).collect();
    assert_eq!(values, ["2", "3"]);
    assert_eq!(dev.run(&["watch", "other", "--from", "2", "--limit", "2"]).expect(0).stdout, "");
    dev.stop();
}

#[test]
fn offline_commands_know_no_connection_and_help_comes_in_every_form() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let help = |words: &[&str]| common::run(common::coppice().args(words)).expect(0).stdout;
    for command in ["verify", "keygen", "fsck", "completions", "dev", "man", "version"] {
        assert!(!help(&[command, "--help"]).contains("--endpoint"), "{command}");
    }
    let get = help(&["get", "--help"]);
    let (_, connection) = get.split_once("Connection:").expect("a heading of its own");
    for option in ["--endpoint", "--ca", "--client-cert", "--client-key", "--trust", "--timeout", "--patience"] {
        assert!(connection.contains(option), "{option}: {get}");
    }
    assert_eq!(help(&["help", "get"]), get);
    assert_eq!(help(&["version"]), help(&["--version"]));
    let refused = common::run(common::coppice().args(["verify", "x", "--key", "y", "--endpoint", "z"])).expect(2);
    assert!(refused.stderr.contains("opens no connection"), "{}", refused.stderr);
    let man = work.path().join("man");
    common::run(common::coppice().arg("man").arg("--out").arg(&man)).expect(0);
    for page in ["coppice.1", "coppice-get.1", "coppice-log-check.1"] {
        let page = fs::read_to_string(man.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(page.contains(".SH NAME"), "{page}");
    }
}
