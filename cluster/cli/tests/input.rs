//! Input that people type, pipe and keep: secrets stay secret, no input is lost in silence, and a
//! command checks before it acts.

mod common;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{Dev, LIMIT, Running, coppice, run};
use coppice_env::{Clock, SystemClock};
use coppice_verify::note::SignerKey;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A cluster with one replica per group, and the directory around its data directory.
fn ledger() -> (tempfile::TempDir, Dev) {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = Dev::start(&work.path().join("data"), &["--replicas".to_owned(), "1".to_owned()]);
    (work, dev)
}

fn written(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).expect("a file can be written");
    path.display().to_string()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory can be listed");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Waits until the ledger has a version.
fn await_version(dev: &Dev, version: u64) {
    let clock = SystemClock::new();
    while dev.version() < version {
        assert!(clock.now() < LIMIT, "version {version} does not come");
    }
}

#[test]
fn no_error_repeats_a_private_key() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| work.path().join(name).display().to_string();
    run(coppice().args(["keygen", "--out", &path("mine.key"), "--name", "t"])).expect(0);
    let text = fs::read_to_string(path("mine.key")).expect("it was made");
    let (text, file) = (text.trim(), format!("@{}", path("mine.key")));
    let secret = text.rsplit('+').next().expect("it has parts");
    written(work.path(), "proof", "x");
    written(work.path(), "policy", &format!("log {text}\nquorum none\n"));
    written(work.path(), "witnesses", &format!("witness w {text}\nquorum w\n"));
    let (proof, policy, witnesses, data) = (path("proof"), path("policy"), path("witnesses"), path("data"));
    let nowhere = "http://127.0.0.1:1";
    let mut cases: Vec<Vec<&str>> = vec![
        vec!["verify", &proof, "--policy", &policy],
        vec!["verify", &proof, "--policy", &witnesses],
        vec!["dev", "--data-dir", &data, "--witness", text, "http://127.0.0.1:1/"],
    ];
    for key in [text, &file] {
        cases.push(vec!["verify", &proof, "--key", key]);
        cases.push(vec!["head", "--endpoint", nowhere, "--trust", key]);
        cases.push(vec!["audit", "--endpoint", nowhere, "--key", key]);
        cases.push(vec!["log", "check", "--from", &proof, "--endpoint", nowhere, "--key", key]);
        cases.push(vec!["rotate-key", key, "--reason", "r", "--endpoint", nowhere]);
    }
    for case in &cases {
        for json in [&["--json"][..], &[]] {
            let done = run(coppice().args(case).args(json)).expect(2);
            assert!(!done.stdout.contains(secret) && !done.stderr.contains(secret), "{case:?}: {done:?}");
        }
    }
    let told = run(coppice().args(["verify", &proof, "--key", &file])).expect(2).stderr;
    assert!(told.contains("private key"), "{told}");
    assert!(!Path::new(&data).exists(), "a refused option leaves no directory");
}

#[test]
fn key_files_that_everybody_can_read_are_refused() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let data = work.path().join("data");
    Dev::start(&data, &["--replicas".to_owned(), "1".to_owned()]).stop();
    fs::set_permissions(data.join("ledger.key"), fs::Permissions::from_mode(0o644)).expect("it is ours");
    let Err(done) = Dev::try_start(&data, &[]) else { panic!("it serves with a malformed key") };
    assert!(done.code == 2 && done.stderr.contains("chmod 600"), "{done:?}");
    let key = written(work.path(), "tls.key", "of no use");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let certificates = ["--ca", &key, "--client-cert", &key, "--client-key", &key];
    let done = run(coppice().args(["head", "--endpoint", "https://localhost:1"]).args(certificates)).expect(2);
    assert!(done.stderr.contains("chmod 600"), "{done:?}");
}

#[test]
fn a_data_directory_is_for_its_owner_alone() {
    let (_work, dev) = ledger();
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    let mut dirs: Vec<PathBuf> = vec![dev.dir.clone()];
    let mut looked_at = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory can be listed") {
            let path = entry.expect("an entry").path();
            // The file may have been removed meanwhile.
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let mode = found.permissions().mode() & 0o777;
            let expected = match (found.is_dir(), path.ends_with("ledger.vkey")) {
                (true, _) => 0o700,
                (false, true) => 0o644,
                (false, false) => 0o600,
            };
            assert_eq!(mode, expected, "{}", path.display());
            looked_at += 1;
            if found.is_dir() {
                dirs.push(path);
            }
        }
    }
    assert!(looked_at > 20, "{looked_at}");
    dev.stop();
}

#[test]
fn keys_made_at_once_leave_one_pair_that_matches() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let (dir, out) = (work.path().join("keys"), work.path().join("keys/ledger.key"));
    fs::create_dir(&dir).expect("a directory can be made");
    written(&dir, "ledger.new", "of somebody else");
    let start = |_| {
        let mut command = coppice();
        command.arg("keygen").arg("--out").arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command.spawn().expect("the command can be run"), "keygen".to_owned())
    };
    let running: Vec<Running> = (0..8).map(start).collect();
    let mut codes: Vec<i32> = running.into_iter().map(|running| running.finish(LIMIT).code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 3, 3, 3, 3, 3, 3, 3]);
    let key = SignerKey::parse(fs::read_to_string(&out).expect("one was made").trim()).expect("a key");
    let public = fs::read_to_string(dir.join("ledger.vkey")).expect("one was made");
    assert_eq!(public.trim(), key.verifier().to_string());
    assert_eq!(names(&dir), ["ledger.key", "ledger.new", "ledger.vkey"]);
}

#[test]
fn a_ledger_whose_key_is_missing_is_not_given_another_one() {
    let (work, dev) = ledger();
    let dir = dev.dir.clone();
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    dev.stop();
    let public = fs::read_to_string(dir.join("ledger.vkey")).expect("it was made");
    let name = public.split('+').next().expect("it has parts").to_owned();
    let next = dir.join("next.key").display().to_string();
    run(coppice().args(["keygen", "--out", &next, "--name", &name])).expect(0);
    fs::rename(dir.join("ledger.key"), work.path().join("elsewhere.key")).expect("it was made");
    let Err(done) = Dev::try_start(&dir, &[]) else { panic!("it serves without its key") };
    assert!(done.code == 3 && done.stderr.contains("ledger.key") && done.stderr.contains("next.key"), "{done:?}");
    assert!(!dir.join("ledger.key").exists());
    assert_eq!(fs::read_to_string(dir.join("ledger.vkey")).expect("it stays"), public);
    fs::rename(work.path().join("elsewhere.key"), dir.join("ledger.key")).expect("it is there");
    let dev = Dev::start(&dir, &[]);
    assert_eq!(dev.version(), 1);
    dev.stop();
}

#[test]
fn an_input_that_differs_in_the_middle_is_not_taken_for_the_one_that_is_there() {
    let (work, dev) = ledger();
    let day = |name: &str, balance: &str, more: &str| {
        let (begin, end) = ("{\"put\":[[\"run\",\"begin\"]]}", "{\"put\":[[\"run\",\"end\"]]}");
        let text = format!("{begin}\n{{\"put\":[[\"balance\",\"{balance}\"]]}}\n{end}\n{more}");
        written(work.path(), name, &text)
    };
    let (monday, tuesday) = (day("monday", "100", ""), day("tuesday", "250", ""));
    dev.run(&["load", &monday]).expect(0);
    let refused = dev.run(&["load", &tuesday, "--json"]).expect(3);
    assert_eq!(refused.error()["reason"], "SESSION_MISMATCH");
    assert_eq!(dev.run(&["get", "balance"]).expect(0).stdout.trim(), "100");
    let again = dev.run(&["load", &monday, "--json"]).expect(0).json();
    assert_eq!((&again["applied"], &again["already_there"]), (&0.into(), &3.into()));
    let grown = day("grown", "100", "{\"put\":[[\"balance\",\"300\"]]}\n");
    let grown = dev.run(&["load", &grown, "--json"]).expect(0).json();
    assert_eq!((&grown["applied"], &grown["already_there"]), (&1.into(), &3.into()));
    dev.run(&["load", &tuesday, "--session", "tuesday"]).expect(0);
    assert_eq!(dev.run(&["get", "balance"]).expect(0).stdout.trim(), "250");
    dev.stop();
}

#[test]
fn every_load_says_how_many_lines_are_written() {
    let (work, dev) = ledger();
    let empty = dev.run(&["load", &written(work.path(), "none", ""), "--json"]).expect(0).json();
    let lines = "{\"put\":[[\"k\",\"1\"]]}\n{\"put\":[[\"k\",\"2\"]]}\n";
    let full = dev.run(&["load", &written(work.path(), "lines", lines), "--json"]).expect(0).json();
    let fields = |object: &Value| object.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&empty), fields(&full));
    let wrong = written(work.path(), "wrong", &format!("{lines}[]\n{lines}"));
    let done = dev.run(&["load", &wrong, "--session", "wrong"]).expect(2);
    assert!(done.stderr.contains("2 versions written") && done.stderr.contains("line 3"), "{done:?}");
    assert_eq!(dev.version(), 4);
    let again = dev.run(&["load", &wrong, "--session", "wrong"]).expect(2);
    assert!(again.stderr.contains("2 were there already"), "{again:?}");
    dev.stop();
}

#[test]
fn a_line_from_a_pipe_is_written_before_the_next_one_comes() {
    let (_work, dev) = ledger();
    let mut child = dev.command(&["load", "-"]);
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be run");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("a process id");
    let mut pipe = child.stdin.take().expect("it is piped");
    let running = Running::new(child, "load -".to_owned());
    let line = |number: u64| format!("{{\"put\":[[\"event\",\"{number}\"]]}}\n");
    for number in 1..=3 {
        pipe.write_all(line(number).as_bytes()).expect("it reads");
        await_version(&dev, number);
        assert_eq!(dev.run(&["get", "event"]).expect(0).stdout.trim(), number.to_string());
    }
    kill_process(pid, Signal::INT).expect("it is our child");
    let done = running.finish(LIMIT);
    assert_eq!(done.code, 4, "{done:?}");
    assert!(done.stderr.contains("interrupted") && done.stderr.contains("versions written"), "{done:?}");
    drop(pipe);
    dev.stop();
}

#[test]
fn a_receipt_that_can_not_be_written_is_found_before_the_commit() {
    let (work, dev) = ledger();
    let kept = written(work.path(), "kept", "an older receipt");
    let done = dev.run(&["commit", "--put", "n=1", "--receipt", "/nowhere/receipt", "--json"]).expect(2);
    assert!(done.stdout.is_empty(), "{done:?}");
    dev.run(&["commit", "--put", "n=1", "--if-value", "n=7", "--receipt", &kept]).expect(3);
    assert_eq!(fs::read_to_string(&kept).expect("it stays"), "an older receipt");
    assert_eq!(dev.version(), 0);
    dev.run(&["commit", "--put", "n=1", "--receipt", &kept]).expect(0);
    let key = dev.vkey();
    dev.run(&["verify", &kept, "--key", &key]).expect(0);
    assert_eq!(dev.version(), 1);
    dev.stop();
}

#[test]
fn a_replica_that_is_missing_or_empty_is_not_sound() {
    let (work, dev) = ledger();
    let dir = dev.dir.clone();
    dev.run(&["commit", "--put", "a=1"]).expect(0);
    dev.stop();
    common::assert_sound(&dir);
    let (replica, aside) = (dir.join("node-1/group-1"), work.path().join("aside"));
    fs::rename(&replica, &aside).expect("it is there");
    for made in [false, true] {
        if made {
            fs::create_dir(&replica).expect("a directory can be made");
        }
        let done = run(coppice().arg("fsck").arg(&dir)).expect(1);
        assert!(done.stdout.contains("node-1 shard-0: MISSING") && done.stdout.contains("group-1"), "{done:?}");
    }
    fs::remove_dir(&replica).expect("it is empty");
    fs::rename(&aside, &replica).expect("it is there");
    fs::rename(dir.join("node-1"), &aside).expect("it is there");
    let done = run(coppice().arg("fsck").arg(&dir)).expect(1);
    assert!(done.stdout.contains("node-1 root: MISSING"), "{done:?}");
}

#[test]
fn dev_tells_events_as_json_and_logs_without_colours() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let data = work.path().join("data").display().to_string();
    let mut command: Command = coppice();
    command.env("COPPICE_LOG", "info").args(["dev", "--data-dir", &data, "--replicas", "1", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command can be run");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("a process id");
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let mut first = String::new();
    std::io::BufRead::read_line(&mut lines, &mut first).expect("text");
    kill_process(pid, Signal::INT).expect("it is our child");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).expect("text");
    let done = child.wait_with_output().expect("it is our child");
    let events: Vec<Value> =
        [&*first, &*rest].iter().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"ready".into(), &"stopped".into()));
    assert!(events[0]["endpoint"].as_str().is_some_and(|endpoint| endpoint.starts_with("http://127.0.0.1:")));
    let log = String::from_utf8_lossy(&done.stderr);
    assert!(log.contains("INFO") && !log.contains('\u{1b}'), "{log}");
}
