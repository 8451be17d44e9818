//! Tools that know nothing of Coppice check its log: Go's checksum-database packages, tessera's
//! fsck, a stock witness. Also `coppice log check`, which tells a log that grew from one that
//! shrank or forked, and `coppice evidence`, by which a third party learns of it. A member's
//! cosigner stands among these tools, too.
//!
//! The Go programs are built by `scripts/go-tool.sh` from pinned modules in
//! `cluster/verify/interop/`, once.

#[path = "../common/mod.rs"]
mod common;
mod fork;
mod member;
mod tools;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use common::{Dev, LIMIT, coppice, run};
use coppice_env::{Clock, SystemClock};
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{Cosigner, CosignerKey, add_lines},
    note::SignerKey,
};
use serde_json::Value;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root").to_owned()
}

/// Builds a program of an interoperability module, if it is not built yet.
fn go_tool(module: &str, program: &str, package: &str) -> PathBuf {
    let script = workspace().join("scripts/go-tool.sh");
    let dir = workspace().join("cluster/verify/interop").join(module);
    let output = Command::new(&script).arg(program).arg(&dir).arg(package).output().expect("the script can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {program} {} {package}: {said}", script.display(), dir.display());
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// Waits until something holds; each check takes its time.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let clock = SystemClock::new();
    while !holds() {
        assert!(clock.now() < LIMIT, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    listener.local_addr().expect("it listens").port()
}

fn small(extra: &[&str]) -> Vec<String> {
    let shape = ["--replicas", "1", "--shards", "1"];
    shape.iter().chain(extra).map(|word| (*word).to_owned()).collect()
}

fn put(dev: &Dev, value: u64) {
    dev.run(&["commit", "--put", &format!("k={value}")]).expect(0);
}

/// The body of a GET, over a plain socket.
fn http_bytes(port: u16, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it takes a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&answer));
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a body");
    answer.split_off(end + 4)
}

fn http_get(port: u16, path: &str) -> String {
    String::from_utf8(http_bytes(port, path)).expect("text")
}

#[test]
fn go_programs_open_walk_and_recompute_the_log() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let port = free_port();
    let dev = Dev::start(&work.path().join("ledger"), &small(&["--http-listen", &format!("127.0.0.1:{port}")]));
    let lines: String = (0..600).map(|at| format!("{{\"put\": [[\"k{at}\", \"{at}\"]]}}\n")).collect();
    let file = work.path().join("lines");
    fs::write(&file, lines).expect("a file can be written");
    dev.run(&["load", &file.display().to_string()]).expect(0);
    dev.run(&["prune", "--before", "100", "--reason", "room"]).expect(0);
    dev.run(&["rollback", "--to", "550", "--reason", "wrong"]).expect(0);
    // The published checkpoint is at most a second old.
    eventually("603 entries are published", || http_get(port, "/checkpoint").contains("\n603\n"));
    let url = format!("http://127.0.0.1:{port}/");
    let vkey = fs::read_to_string(dev.dir.join("ledger.vkey")).expect("the public key");
    let walked = run(Command::new(go_tool("walk", "walk", ".")).args([&url, vkey.trim()])).expect(0);
    assert!(walked.stdout.starts_with("603 entries included, "), "{walked:?}");
    let fsck = go_tool("fsck", "fsck", "github.com/transparency-dev/tessera/cmd/fsck");
    let key = format!("--public_key={}", dev.dir.join("ledger.vkey").display());
    let checked = run(Command::new(fsck).args(["--ui=false", &format!("--storage_url={url}"), &key]));
    // The tool exits with 0 even when it fails.
    assert!(checked.stderr.contains("Successfully fsck'd"), "{checked:?}");
    // The walker notices another key, and another log.
    let other = run(coppice().args(["keygen", "--out"]).arg(work.path().join("other.key"))).expect(0);
    let other_key = fs::read_to_string(work.path().join("other.vkey")).unwrap_or(other.stdout);
    run(Command::new(go_tool("walk", "walk", ".")).args([&url, other_key.trim()])).expect(1);
    dev.stop();
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Stock {
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    cosigner: CosignerKey,
}

impl Stock {
    /// A witness with a new key, for one log.
    fn new(dir: &Path, origin: &str, vkey: &str) -> Self {
        let program = go_tool("omniwitness", "omniwitness", "github.com/transparency-dev/witness/cmd/omniwitness");
        fs::create_dir(dir).expect("a new directory");
        let secret = dir.join("witness.key");
        let made = run(coppice().args(["keygen", "--witness", "--name", "witness.example/w", "--out"]).arg(&secret));
        let cosigner = CosignerKey::parse(made.expect(0).stdout.trim()).expect("the key of a witness");
        let file = fs::read_to_string(dir.join("witness.vkey")).expect("the public key");
        assert_eq!(file, format!("{cosigner}\n"));
        let signer = SignerKey::parse(fs::read_to_string(&secret).expect("the key").trim()).expect("a key");
        assert_eq!(signer.verifier().public_key(), cosigner.public_key());
        let logs = format!("Logs:\n- Origin: {origin}\n  URL: http://127.0.0.1:1/\n  PublicKey: {vkey}\n");
        fs::write(dir.join("logs.yaml"), logs).expect("a file can be written");
        Self { program, dir: dir.to_owned(), port: free_port(), cosigner }
    }

    fn start(&self) -> Process {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let child = Command::new(&self.program)
            .arg(format!("--listen=127.0.0.1:{}", self.port))
            .arg("--metrics_listen=")
            .arg(format!("--db_file={}", file("witness.db")))
            .arg(format!("--private_key_path={}", file("witness.key")))
            .arg(format!("--additional_logs={}", file("logs.yaml")))
            .arg("--logtostderr")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(file("log")).expect("a log file"))
            .spawn()
            .expect("it can be run");
        let process = Process(child);
        eventually("the witness listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        process
    }
}

#[test]
fn a_stock_witness_cosigns_and_the_policy_holds() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let dir = work.path().join("ledger");
    fs::create_dir(&dir).expect("a new directory");
    run(coppice().args(["keygen", "--out"]).arg(dir.join("ledger.key"))).expect(0);
    let vkey = fs::read_to_string(dir.join("ledger.vkey")).expect("the public key").trim().to_owned();
    let origin = vkey.split_once('+').expect("a vkey").0;
    let stock = Stock::new(&work.path().join("witness"), origin, &vkey);
    fs::write(file("policy"), format!("log {vkey}\nwitness stock {}\nquorum stock\n", stock.cosigner))
        .expect("a file can be written");
    let witness = stock.start();
    let port = free_port();
    let shape = small(&[
        "--http-listen",
        &format!("127.0.0.1:{port}"),
        "--witness",
        &stock.cosigner.to_string(),
        &format!("http://127.0.0.1:{}", stock.port),
    ]);
    let dev = Dev::start(&dir, &shape);
    put(&dev, 1);
    let verify = |name: &str| run(coppice().args(["verify", &file(name), "--policy", &file("policy"), "--json"]));
    dev.run(&["get", "k", "--proof", &file("bare")]).expect(0);
    dev.run(&["get", "k", "--proof", &file("cosigned"), "--cosigned"]).expect(0);
    let proven = verify("cosigned").expect(0).json();
    assert_eq!(proven["cosignatures"][0]["witness"], "stock", "{proven}");
    let failed = verify("bare");
    assert!(failed.code == 1 && failed.json()["failed_step"] == "cosignatures", "{failed:?}");
    fs::write(file("published"), http_get(port, "/checkpoint")).expect("a file can be written");
    let check =
        |dev: &Dev| dev.run(&["log", "check", "--from", &file("published"), "--policy", &file("policy"), "--json"]);
    assert_eq!(check(&dev).expect(0).json()["verdict"], "fine");
    // A dead witness delays no commit. When it is back, it says what it cosigned last, and goes on
    // from there. The ledger does the same, and keeps nothing of it on disk.
    drop(witness);
    (2..6).for_each(|value| put(&dev, value));
    dev.stop();
    let dev = Dev::start(&dir, &shape);
    put(&dev, 6);
    let _witness = stock.start();
    eventually("the witness is asked again", || check(&dev).code == 0);
    let checked = check(&dev);
    assert_eq!(checked.expect(0).json()["verdict"], "fine");
    dev.stop();
}

#[test]
fn a_ledger_that_keeps_its_journals_can_be_audited() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dir = work.path().join("ledger");
    let shape = ["--replicas", "1", "--split", "k5", "--partition-capacity", "32", "--journals"];
    let dev = Dev::start(&dir, &shape.map(str::to_owned));
    let line = |at: u64| {
        format!("{{\"put\": [[\"k{}\", \"{at}\"], [\"z{at}\", \"\"]], \"delete\": [\"z{}\"]}}\n", at % 50, at / 2)
    };
    let lines: String = (0..300).map(line).collect();
    let file = work.path().join("lines");
    fs::write(&file, lines).expect("a file can be written");
    dev.run(&["load", &file.display().to_string()]).expect(0);
    dev.run(&["prune", "--before", "200", "--reason", "room"]).expect(0);
    dev.run(&["rollback", "--to", "290", "--reason", "wrong"]).expect(0);
    put(&dev, 1);
    let key = dev.vkey();
    let report = dev.run(&["audit", "--key", &key, "--json"]).expect(0).json();
    assert_eq!((&report["sound"], &report["compared"], &report["to"]), (&true.into(), &291.into(), &291.into()));
    dev.stop();
    // The journals lie on disk and are sound for fsck, and the choice holds after a restart.
    common::assert_sound(&dir);
    let dev = Dev::start(&dir, &[]);
    let report = dev.run(&["audit", "--key", &key, "--from", "250", "--to", "260", "--json"]).expect(0).json();
    assert_eq!((&report["sound"], &report["compared"]), (&true.into(), &11.into()));
    for missing in ["--to", "--from"] {
        let refused = dev.run(&["audit", "--key", &key, missing, "999"]).expect(3);
        assert!(refused.stderr.contains("NOT_YET"), "{missing}: {}", refused.stderr);
    }
    dev.run(&["audit", "--key", &key, "--from", "9", "--to", "5"]).expect(2);
    dev.run(&["audit"]).expect(2);
    dev.stop();
}

#[test]
fn a_log_that_shrank_or_forked_is_told_from_one_that_goes_on() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let start = |name: &str| {
        let dir = work.path().join(name);
        fs::create_dir(&dir).expect("a new directory");
        fs::copy(file("key"), dir.join("ledger.key")).expect("the key is there");
        Dev::start(&dir, &small(&[]))
    };
    run(coppice().args(["keygen", "--out", &file("key")])).expect(0);
    // Two ledgers under one key, as a thief of the key or a dishonest operator can make them.
    let (honest, forked) = (start("honest"), start("forked"));
    let vkey = honest.vkey();
    let check = |dev: &Dev, from: &str, code: i32| {
        let done = dev.run(&["log", "check", "--from", &file(from), "--key", &vkey, "--json"]).expect(code);
        done.json()["verdict"].as_str().expect("a verdict").to_owned()
    };
    let save = |dev: &Dev, name: &str| {
        let checkpoint = dev.run(&["checkpoint", "--json"]).expect(0).json();
        fs::write(file(name), checkpoint["note"].as_str().expect("a note")).expect("a file can be written");
    };
    put(&honest, 1);
    save(&honest, "saved");
    assert_eq!(check(&honest, "saved", 0), "fine");
    put(&honest, 2);
    assert_eq!(check(&honest, "saved", 0), "fine");
    honest.run(&["get", "k", "--proof", &file("proof")]).expect(0);
    assert_eq!(check(&forked, "saved", 1), "shrunk");
    put(&forked, 1);
    assert_eq!(check(&forked, "saved", 1), "fork", "of the same size");
    put(&forked, 3);
    put(&forked, 4);
    assert_eq!(check(&forked, "saved", 1), "fork", "grown");
    assert_eq!(check(&honest, "proof", 0), "fine");
    // The newest checkpoint replaces the saved one only if all is fine.
    let saving = ["log", "check", "--from", &file("saved"), "--key", &vkey, "--save", &file("saved")];
    let before = fs::read(file("saved")).expect("it was saved");
    forked.run(&saving).expect(1);
    assert_eq!(fs::read(file("saved")).expect("it is there"), before);
    honest.run(&saving).expect(0);
    assert_ne!(fs::read(file("saved")).expect("it is there"), before);
    fs::write(file("not"), "no checkpoint\n").expect("a file can be written");
    honest.run(&["log", "check", "--from", &file("not"), "--key", &vkey]).expect(2);
    honest.run(&["log", "check", "--from", &file("saved")]).expect(2);
    honest.stop();
    forked.stop();
}

/// A ledger whose log is served over HTTP.
struct Served {
    dev: Dev,
    port: u16,
}

impl Served {
    fn start(dir: &Path) -> Self {
        let port = free_port();
        Self { dev: Dev::start(dir, &small(&["--http-listen", &format!("127.0.0.1:{port}")])), port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The published checkpoint of so many entries.
    fn checkpoint(&self, size: u64) -> String {
        eventually("the checkpoint is published", || {
            Checkpoint::claimed(&http_bytes(self.port, "/checkpoint")).is_ok_and(|it| it.size == size)
        });
        http_get(self.port, "/checkpoint")
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("it can be copied");
        }
    }
}

/// A witness that signs whatever it is shown, at this time.
fn cosigned(witness: &Cosigner, note: &str, time: u64) -> Vec<u8> {
    let text = Checkpoint::claimed(note.as_bytes()).expect("a checkpoint").text();
    add_lines(note.as_bytes(), &[witness.cosign(&text, time)]).expect("a line")
}

#[test]
fn two_ledgers_of_one_key_are_convicted_before_a_third_party() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let dir = work.path().join("honest");
    let dev = Dev::start(&dir, &small(&[]));
    let vkey = fs::read_to_string(dir.join("ledger.vkey")).expect("the public key").trim().to_owned();
    put(&dev, 1);
    dev.stop();
    // The copy goes on by itself.
    copy(&dir, &work.path().join("forked"));
    let (honest, forked) = (Served::start(&dir), Served::start(&work.path().join("forked")));
    put(&forked.dev, 2);
    put(&honest.dev, 3);
    let honest_before = honest.checkpoint(3);
    put(&honest.dev, 4);
    let [witness, stranger] = [1, 2].map(|seed| Cosigner::from_seed("witness.example/w", &[seed; 32]).expect("a name"));
    let (shown, grown) = (forked.checkpoint(3), honest.checkpoint(4));
    for (name, note, time) in [("a", &shown, 100), ("b", &grown, 90)] {
        let note = cosigned(&witness, note, time);
        fs::write(file(name), cosigned(&stranger, str::from_utf8(&note).expect("text"), 7)).expect("it is written");
    }
    fs::write(file("before"), honest_before).expect("it is written");
    fs::write(file("policy"), format!("witness w {}\nquorum none\n", witness.verifier())).expect("it is written");
    let evidence = |arguments: &[&str]| run(coppice().arg("evidence").args(arguments));
    let made = evidence(&["make", &file("b"), &file("a"), "--from", &honest.url(), "--out", &file("found"), "--json"]);
    assert_eq!(made.expect(0).json()["kind"], "contradiction");
    // Only the file and the key are left.
    let verify = |name: &str, more: &[&str], code: i32| -> Value {
        let path = file(name);
        let arguments = [&["verify", &path, "--key", &vkey, "--json"], more].concat();
        evidence(&arguments).expect(code).json()
    };
    let verdict = verify("found", &["--policy", &file("policy")], 0);
    assert_eq!(
        (&verdict["one_key"], &verdict["a"]["size"], &verdict["b"]["size"]),
        (&true.into(), &3.into(), &4.into())
    );
    assert_eq!(verdict["a"]["signed_by"], vkey);
    assert_eq!(verdict["cosigners"].as_array().expect("a list").len(), 1, "{verdict}");
    assert_eq!((&verdict["cosigners"][0]["witness"], &verdict["cosigners"][0]["time_a"]), (&"w".into(), &100.into()));
    assert_eq!(verdict["unknown_cosigners"].as_array().expect("a list").len(), 1, "{verdict}");
    let bare = verify("found", &[], 0);
    assert_eq!(
        (&bare["cosigners"], bare["unknown_cosigners"].as_array().map(Vec::len)),
        (&serde_json::json!([]), Some(2))
    );
    let said = evidence(&["verify", &file("found"), "--key", &vkey, "--policy", &file("policy")]).expect(0).stdout;
    assert_eq!(said.matches("CONVICTED").count(), 2, "{said}");
    // Two checkpoints of one size, and the log from a mirror of its tiles.
    let same = evidence(&["make", &file("a"), &file("before"), "--key", &vkey, "--out", &file("same")]);
    assert!(same.expect(0).stdout.contains("CONVICTED: the holder of"));
    for tile in ["tile/0/000.p/4", "tile/entries/000.p/4"] {
        let path = work.path().join("mirror").join(tile);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(path, http_bytes(honest.port, &format!("/{tile}"))).expect("it is written");
    }
    let mirrored = evidence(&["make", &file("a"), &file("b"), "--from", &file("mirror")]).expect(0).stdout;
    assert_eq!(mirrored, fs::read_to_string(file("found")).expect("it was made"));
    // A program that knows nothing of Coppice comes to the same verdict.
    let judge = |name: &str, code: i32| {
        run(Command::new(go_tool("judge", "judge", ".")).args([&file(name), &vkey])).expect(code)
    };
    judge("found", 0);
    judge("same", 0);
    // What is honest is no evidence, and nothing is written.
    let agreed = evidence(&["make", &file("before"), &file("b"), "--from", &honest.url(), "--out", &file("none")]);
    assert!(agreed.expect(1).stderr.contains("agree") && !Path::new(&file("none")).exists());
    let elsewhere = evidence(&["make", &file("a"), &file("b"), "--from", &forked.url()]).expect(1);
    assert!(elsewhere.stderr.contains("the larger one"), "{elsewhere:?}");
    evidence(&["make", &file("a"), &file("b"), "--from", "http://127.0.0.1:1/"]).expect(4);
    evidence(&["make", &file("a"), &file("b")]).expect(2);
    evidence(&["make", &file("a"), &file("policy"), "--from", &honest.url()]).expect(2);
    let text = fs::read_to_string(file("found")).expect("it was made");
    fs::write(file("changed"), text.replacen("size 3", "size 2", 1)).expect("it is written");
    assert_eq!(verify("changed", &[], 1)["failed_step"], "notes");
    judge("changed", 1);
    assert_eq!(verify("a", &[], 1)["failed_step"], "format");
    evidence(&["verify", &file("found"), "--policy", &file("policy")]).expect(2);
    evidence(&["verify", &file("found")]).expect(2);
    // The check of a saved checkpoint writes the same.
    let check = ["log", "check", "--from", &file("a"), "--key", &vkey, "--json", "--evidence", &file("checked")];
    assert_eq!(honest.dev.run(&check).expect(1).json()["verdict"], "fork");
    let checked = verify("checked", &["--policy", &file("policy")], 0);
    assert_eq!((&checked["kind"], &checked["a"]), (&verdict["kind"], &verdict["a"]));
    assert_eq!(
        forked
            .dev
            .run(&["log", "check", "--from", &file("b"), "--key", &vkey])
            .expect(1)
            .stdout
            .lines()
            .next()
            .map(|line| &line[..7]),
        Some("shrunk:")
    );
    honest.dev.stop();
    forked.dev.stop();
}
