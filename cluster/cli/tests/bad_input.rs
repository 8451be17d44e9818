//! Bad input of every kind, on the command line and on the wire: each has its exit code and its
//! reason, and changes nothing.

mod common;

use std::{fs, path::Path, process::Stdio};

use common::{Dev, Done};
use coppice_client::{Client, Error, Options};
use coppice_proto::v1;
use coppice_types::Reason;
use serde_json::{Value, json};

/// A cluster with ten versions and one more. Versions 1 and 2 were pruned, 9 and 10 were rolled
/// back, and head is (1, 9).
struct Scene {
    dev: Dev,
    work: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let work = tempfile::tempdir().expect("a temporary directory");
        let mut shape = common::small_shape("m");
        shape[3] = "1".to_owned();
        let scene = Self { dev: Dev::start(&work.path().join("data"), &shape), work };
        let dev = &scene.dev;
        scene.write("lines", "{\"put\":[[\"k\",\"1\"]]}\n{\"put\":[[\"k\",\"2\"],[\"z\",\"2\"]]}\n");
        dev.run(&["load", &scene.path("lines")]).expect(0);
        for version in 3..=10 {
            dev.run(&["commit", "--put", &format!("k={version}"), "--put", "bin=0xff"]).expect(0);
        }
        dev.run(&["prune", "--before", "3", "--reason", "room"]).expect(0);
        dev.run(&["rollback", "--to", "8", "--reason", "test"]).expect(0);
        dev.run(&["commit", "--put", "k=9"]).expect(0);
        dev.run(&["get", "k", "--proof", &scene.path("proof")]).expect(0);
        scene.make_files();
        scene
    }

    fn make_files(&self) {
        self.write("garbage", "no proof, no note, no lines");
        self.write("empty", "");
        let proof = fs::read(self.path("proof")).expect("it was made");
        fs::write(self.path("short-proof"), &proof[..proof.len() - 9]).expect("a file can be written");
        self.write("big-value", &"x".repeat((1 << 20) + 1));
        self.write("value", &"x".repeat(1 << 20));
        self.write("foreign/letter", "dear");
        self.write("list", "[]");
        self.write("unknown-field", "{\"put\":[],\"puts\":[]}");
        self.write("queries", "{\"key\":\"k\"}\n\n{\"keys\":[\"k\",\"nothing\"],\"version\":999}\n");
        self.write("big-line", &json!({ "put": [["k", "x".repeat((1 << 20) + 1)]] }).to_string());
        self.write("other-second-line", "{\"put\":[[\"k\",\"1\"]]}\n{\"put\":[[\"k\",\"other\"]]}\n");
        self.write("cut-off", "{\"put\":[[\"k\",\"1\"]]}\n");
        self.write("note", "coppice/0\n99999\nAAAA\n\n");
        self.write("torn.gz", "\u{1f}");
        fs::write(self.path("torn.gz"), [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b]).expect("a file can be written");
        for name in ["mine", "other"] {
            common::run(common::coppice().args(["keygen", "--out", &self.path(&format!("{name}.key"))])).expect(0);
        }
    }

    fn path(&self, name: &str) -> String {
        self.work.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.work.path().join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory can be made");
        fs::write(path, text).expect("a file can be written");
    }

    /// Everything that a command could change: head, state root, size of the log, prune boundary.
    fn state(&self) -> Value {
        self.dev.head()
    }
}

/// Arguments, exit code, and words of the error or result object.
type Case<'a> = (&'a [&'a str], i32, &'a str);

fn check(scene: &Scene, cases: &[Case<'_>]) {
    let before = scene.state();
    for (arguments, code, words) in cases {
        let done = scene.dev.run(&[*arguments, &["--json"]].concat());
        check_case(arguments, &done, *code, words);
        assert_eq!(scene.state(), before, "{arguments:?} changed something");
    }
}

fn check_case(arguments: &[&str], done: &Done, code: i32, words: &str) {
    let shown: Vec<String> = arguments.iter().map(|argument| argument.chars().take(60).collect()).collect();
    assert_eq!(done.code, code, "{shown:?}: {}{}", done.stdout, done.stderr);
    let told = format!("{}{}", done.stdout, done.stderr);
    assert!(told.contains(words), "{shown:?} does not say `{words}`: {told}");
}

#[test]
fn bad_reads_are_refused() {
    let scene = Scene::new();
    let long = "x".repeat(513);
    let longer = "x".repeat(600);
    check(
        &scene,
        &[
            (&["get", ""], 2, "at least one byte"),
            (&["get", "0x"], 2, "at least one byte"),
            (&["get", "0xzz"], 2, "is not hex"),
            (&["get", "0x123"], 2, "is not hex"),
            (&["get", "@/nowhere/at/all"], 2, "No such file"),
            (&["get", &long], 3, "LIMIT_EXCEEDED"),
            (&["get", "nothing"], 1, "\"found\":false"),
            (&["get", "k", "--version", "999"], 3, "NOT_YET"),
            (&["get", "k", "--version", "1"], 3, "PRUNED"),
            (&["get", "k", "--version", "10"], 3, "ROLLED_BACK"),
            (&["get", "k", "--version", "9", "--epoch", "0"], 3, "ROLLED_BACK"),
            (&["get", "k", "--version", "9", "--epoch", "7"], 3, "NOT_YET"),
            (&["get", "k", "--version", "18446744073709551615"], 3, "NOT_YET"),
            (&["get", "k", "--version", "18446744073709551616"], 2, "--version"),
            (&["get", "k", "--version", "-1"], 2, ""),
            (&["get", "k", "--epoch", "0"], 2, "--version"),
            (&["get", "bin", "--encoding", "utf8"], 2, "not UTF-8"),
            (&["get", "k", "--encoding", "base64"], 2, "--encoding"),
            (&["get", "k", "--proof", "/nowhere/proof"], 2, "No such file"),
            (&["get"], 2, "KEY"),
            (&["range", "b", "a"], 2, "LOW must be below HIGH"),
            (&["range", "a", "a"], 2, "LOW must be below HIGH"),
            (&["range", "a", &longer], 3, "LIMIT_EXCEEDED"),
            (&["range", "a", "z", "--limit", "0"], 2, "--limit"),
            (&["range", "a", "z", "--version", "999"], 3, "NOT_YET"),
            (&["range", "a", "z", "--version", "2"], 3, "PRUNED"),
            (&["history", ""], 2, "at least one byte"),
            (&["history", "nothing"], 1, "no change in the versions"),
            (&["history", &long], 3, "LIMIT_EXCEEDED"),
            (&["query", &scene.path("lines")], 2, "line 1: no query"),
            (&["query", &scene.path("queries")], 3, "2 of 3 keys got no answer"),
            (&["query", "/nowhere/at/all"], 2, "No such file"),
            (&["diff", "3", "999"], 3, "NOT_YET"),
            (&["diff", "1", "4"], 3, "PRUNED"),
            (&["diff", "4", "99"], 3, "NOT_YET"),
            (&["merge", "--base", "3", "--left", "9", "--right", "999"], 3, "NOT_YET"),
            (&["merge", "--base", "1", "--left", "9", "--right", "4"], 3, "PRUNED"),
            (&["merge", "--base", "4", "--left", "2", "--right", "5"], 3, "PRUNED"),
            (&["merge", "--base", "4", "--left", "10", "--right", "5"], 3, "ROLLED_BACK"),
            (&["merge", "--base", "4", "--left", "9", "--right", "5", "--apply"], 1, "in different ways"),
            (&["merge", "--base", "4", "--left", "9"], 2, "--right"),
            (&["header", "999"], 3, "NOT_YET"),
            (&["header", "10"], 3, "ROLLED_BACK"),
            (&["header", "--sequence", "999"], 1, "NOT_FOUND"),
            (&["header"], 2, "VERSION"),
            (&["header", "1", "--sequence", "1"], 2, "--sequence"),
        ],
    );
}

#[test]
fn bad_writes_are_refused() {
    let scene = Scene::new();
    let long = format!("{}=v", "x".repeat(513));
    let big = format!("k=@{}", scene.path("big-value"));
    let values: Vec<String> = (0..9).map(|number| format!("k{number}=@{}", scene.path("value"))).collect();
    let mut batch = vec!["commit"];
    values.iter().for_each(|value| batch.extend(["--put", value]));
    let reason = "r".repeat(5000);
    let principal = "p".repeat(300);
    check(
        &scene,
        &[
            (&["commit"], 2, "nothing to commit"),
            (&["commit", "--put", "no-equals"], 2, "KEY=VALUE"),
            (&["commit", "--put", "=v"], 2, "at least one byte"),
            (&["commit", "--put", "k=@/nowhere"], 2, "No such file"),
            (&["commit", "--put", "k=0x1"], 2, "is not hex"),
            (&["commit", "--put", &long], 3, "LIMIT_EXCEEDED"),
            (&["commit", "--put", &big], 3, "LIMIT_EXCEEDED"),
            (&batch, 3, "LIMIT_EXCEEDED"),
            (&["commit", "--put", "k=1", "--delete", "k"], 2, "more than once"),
            (&["commit", "--put", "k=1", "--if-absent", "k"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--if-value", "k=8"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--if-value", "nothing=8"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--if-changed", "k=0.8"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--if-changed", "k=8"], 2, "EPOCH.VERSION"),
            (&["commit", "--put", "k=1", "--if-value-sha256", "k=abcd"], 2, "64 hex digits"),
            (&["commit", "--put", "k=1", "--expect-version", "8"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--expect-version", "9", "--expect-epoch", "0"], 3, "PRECONDITION_FAILED"),
            (&["commit", "--put", "k=1", "--expect-epoch", "0"], 2, "--expect-version"),
            (&["commit", "--put", "k=1", "--receipt", "/nowhere/receipt"], 2, "No such file"),
            (&["commit", "--put", "k=1", "--receipt", "/"], 2, "directory"),
            (&["prune", "--before", "999", "--reason", "room"], 3, "NOT_YET"),
            (&["prune", "--before", "5", "--reason", "room", "--principal", &principal], 3, "LIMIT_EXCEEDED"),
            (&["prune"], 2, "--before"),
            (&["prune", "--before", "5"], 2, "--reason"),
            (&["prune", "--before", "5", "--reason", ""], 2, "INVALID_ARGUMENT"),
            (&["prune", "--before", "5", "--reason", "a\nb"], 2, "INVALID_ARGUMENT"),
            (&["rollback", "--to", "999", "--reason", "x"], 3, "NOT_YET"),
            (&["rollback", "--to", "10", "--reason", "x"], 3, "ROLLED_BACK"),
            (&["rollback", "--to", "2", "--reason", "x"], 3, "PRUNED"),
            (&["rollback", "--to", "5", "--reason", &reason], 3, "LIMIT_EXCEEDED"),
            (&["rollback", "--to", "5"], 2, "--reason"),
            (&["load", "/nowhere"], 2, "No such file"),
            (&["load"], 2, "FILE"),
            (&["load", "x", "--git", "y"], 2, "--git"),
            (&["load", &scene.path("garbage")], 2, "line 1"),
            (&["load", &scene.path("unknown-field")], 2, "unknown field"),
            (&["load", &scene.path("list")], 2, "line 1: no batch"),
            (&["load", &scene.path("torn.gz")], 2, "line 1"),
            (&["load", &scene.path("big-line")], 3, "LIMIT_EXCEEDED"),
            (&["load", &scene.path("lines")], 0, "\"applied\":0"),
            (&["load", &scene.path("other-second-line")], 3, "SESSION_MISMATCH"),
            (&["load", &scene.path("cut-off")], 2, "ends after 1"),
            (&["load", &scene.path("lines"), "--session", ""], 2, "a session must have a name"),
            (&["load", "--git", &scene.path("foreign")], 2, "no git repository"),
            (&["time"], 2, "--at"),
            (&["time", "--at", "yesterday"], 2, "with a zone"),
            (&["time", "--at", "1"], 1, "the ledger began at"),
            (&["get", "k", "--at-time", "2026-01-31T12:00:00"], 2, "ms since 1970"),
            (&["get", "k", "--at-time", "1", "--version", "1"], 2, "--version"),
            (&["get", "k", "--at-time", "18446744073709551615"], 3, "NOT_YET"),
            (&["frobnicate"], 2, "frobnicate"),
            (&["head", "--frobnicate"], 2, "--frobnicate"),
            (&["head", "--endpoint", "https://localhost:1"], 2, "--ca"),
            (&["head", "--endpoint", "localhost"], 2, "no port"),
            (&["head", "--endpoint", ""], 2, "coppice dev"),
        ],
    );
}

#[test]
fn bad_proofs_keys_and_directories_are_refused() {
    let scene = Scene::new();
    let (key, proof) = (scene.dev.vkey(), scene.path("proof"));
    let foreign = format!("@{}", scene.path("other.vkey"));
    let data = scene.dev.dir.display().to_string();
    let (garbage, empty, short) = (scene.path("garbage"), scene.path("empty"), scene.path("short-proof"));
    check(
        &scene,
        &[
            (&["verify", &garbage, "--key", &key], 1, "\"failed_step\":\"format\""),
            (&["verify", &empty, "--key", &key], 1, "\"failed_step\":\"format\""),
            (&["verify", &short, "--key", &key], 1, "\"failed_step\":\"format\""),
            (&["evidence", "verify", &garbage, "--key", &key], 1, "\"failed_step\":\"format\""),
            (&["evidence", "verify", &empty, "--key", &key], 1, "\"failed_step\":\"format\""),
            (&["evidence", "verify", &proof, "--key", "garbage"], 2, "is not a public key"),
            (&["evidence", "make", &proof, &garbage, "--key", &key], 2, "neither a proof file nor a checkpoint"),
            (&["evidence", "make", &proof, &proof, "--key", &key], 1, "agree"),
            (&["verify", &proof, "--key", &foreign], 1, "\"failed_step\":\"checkpoint\""),
            (&["verify", &proof, "--key", "garbage"], 2, "is not a public key"),
            (&["verify", &proof, "--key", "@/nowhere"], 2, "No such file"),
            (&["verify", "/nowhere", "--key", &key], 2, "No such file"),
            (&["verify", &proof], 2, "--key"),
            (&["verify", &proof, "--key", &key, "--checkpoint", &garbage], 1, "\"failed_step\":\"standing\""),
            (&["verify", &proof, "--key", &key, "--checkpoint", &proof], 1, "\"failed_step\":\"standing\""),
            (&["checkpoint", "--proof", "x"], 2, "--since"),
            (&["checkpoint", "--proof", "x", "--since", &garbage], 2, "neither a checkpoint nor a proof file"),
            (&["checkpoint", "--proof", "x", "--since", &scene.path("note")], 2, "INVALID_ARGUMENT"),
            (&["keygen", "--out", &scene.path("mine.key")], 3, "there already"),
            (&["keygen", "--name", "two words", "--out", &scene.path("new.key")], 2, "key name"),
            (&["keygen", "--witness", "--out", &scene.path("new.key")], 2, "--name"),
            (&["dev", "--data-dir", &data], 3, "in use"),
            (&["dev", "--data-dir", &scene.path("foreign")], 2, "letter"),
            (&["dev", "--data-dir", &scene.path("new"), "--replicas", "2"], 2, "1, 3 or 5"),
            (&["dev", "--data-dir", &scene.path("new"), "--pim"], 2, "--readers"),
            (&["dev", "--data-dir", &scene.path("new"), "--partition-capacity", "3"], 2, "--partition-capacity"),
            (&["dev", "--data-dir", &scene.path("new"), "--shards", "5", "--split", "a"], 2, "2 shards"),
            (&["dev", "--data-dir", &scene.path("new"), "--split", "a", "--split", "a"], 2, "same"),
            (&["dev", "--data-dir", &scene.path("new"), "--split", ""], 2, "at least one byte"),
            (&["dev", "--data-dir", &scene.path("new"), "--listen", "nonsense"], 2, "--listen"),
            (&["dev", "--data-dir", &scene.path("new"), "--listen", "0.0.0.0:0"], 2, "--plaintext"),
            (&["dev", "--data-dir", &scene.path("new"), "--http-listen", "192.0.2.1:1"], 2, "--http-listen"),
            (&["dev", "--data-dir", &scene.path("new"), "--witness", "bad", "http://127.0.0.1:1/"], 2, "--witness"),
            (&["fsck", &data], 3, "in use"),
            (&["fsck", "/nowhere"], 2, "No such file"),
            (&["fsck", &scene.path("foreign")], 2, "no data directory"),
            (&["completions", "csh"], 2, "csh"),
        ],
    );
    assert!(!Path::new(&scene.path("new")).exists(), "a refused start leaves nothing behind");
    let Scene { dev, work } = scene;
    let dir = dev.dir.clone();
    dev.stop();
    for shape in [["--replicas", "3"], ["--partition-capacity", "256"], ["--split", "q"], ["--shards", "3"]] {
        let child = common::coppice()
            .arg("dev")
            .arg("--data-dir")
            .arg(&dir)
            .args(shape)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command can be run");
        let done = common::Running::new(child, format!("{shape:?}")).finish(common::LIMIT);
        check_case(&shape, &done, 2, "chosen at the first start");
    }
    common::assert_sound(&dir);
    drop(work);
}

#[test]
fn bad_messages_are_refused() {
    let scene = Scene::new();
    let before = scene.state();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(bad_messages(&scene.dev.endpoint));
    assert_eq!(scene.state(), before);
}

async fn bad_messages(endpoint: &str) {
    let client = Client::new(Options::new(endpoint)).expect("an endpoint");
    let mut raw = v1::ledger_client::LedgerClient::connect(endpoint.to_owned()).await.expect("it listens");
    let operation = |key: &[u8], change| v1::Operation { key: key.to_vec().into(), change };
    let put = || Some(v1::operation::Change::Put(b"v".to_vec().into()));
    let batch = |operations| v1::Batch { operations, ..v1::Batch::default() };
    let commit = |batch: Option<v1::Batch>, session: &[u8], number| v1::CommitRequest {
        batch,
        session_id: session.to_vec().into(),
        number,
        want_receipt: false,
    };
    let condition = |condition| v1::Batch {
        operations: vec![operation(b"k", put())],
        preconditions: vec![v1::Precondition { key: b"k".to_vec().into(), condition }],
        ..v1::Batch::default()
    };
    let short_hash = v1::precondition::Condition::ValueSha256(vec![1, 2].into());
    let cases = [
        (commit(None, b"", 0), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(b"k", None)])), b"", 0), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(b"", put())])), b"", 0), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(b"k", put())])), b"short", 1), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(b"k", put())])), &[0; 16], 0), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(b"k", put())])), &[9; 16], 1), Reason::UnknownSession),
        (commit(Some(condition(None)), b"", 0), Reason::InvalidArgument),
        (commit(Some(condition(Some(short_hash))), b"", 0), Reason::InvalidArgument),
        (commit(Some(batch(vec![operation(&[1; 513], put())])), b"", 0), Reason::LimitExceeded),
    ];
    for (request, reason) in cases {
        let shown = format!("{request:?}");
        let error = raw.commit(request).await.map(|_| ()).expect_err("a refusal");
        assert_eq!(coppice_proto::status::reason(&error), Some(reason), "{shown}: {error}");
    }
    let stage = v1::FinalizeRequest { stage_id: b"none".to_vec().into(), want_receipt: false };
    let error = client.finalize(stage, &v1::Batch::default()).await.err();
    assert!(matches!(
        error.and_then(|error: Error| error.reason()),
        Some(Reason::StageLost | Reason::NotFound | Reason::InvalidArgument)
    ));
    let keys = vec![b"k".to_vec().into(), Vec::new().into()];
    let error = client.batch_get(v1::BatchGetRequest { keys, read: None }).await.err();
    assert_eq!(error.and_then(|error| error.reason()), Some(Reason::InvalidArgument));
    let error = client.batch_get(v1::BatchGetRequest::default()).await.err();
    assert_eq!(error.and_then(|error| error.reason()), Some(Reason::InvalidArgument));
}
