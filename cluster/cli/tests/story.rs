//! Prune, then rollback, then new commits. Each kind of dead version has its own error, the epoch
//! rises, and the root log shows everything. Old checkpoints are consistent with new ones, and
//! proofs of rolled-back versions fail against a newer checkpoint.

mod common;

use std::path::Path;

use common::Dev;
use serde_json::{Value, json};

struct Story {
    dev: Dev,
    work: tempfile::TempDir,
}

impl Story {
    fn file(&self, name: &str) -> String {
        self.work.path().join(name).display().to_string()
    }

    fn get(&self, version: u64) -> common::Done {
        self.dev.run(&["get", "k", "--version", &version.to_string(), "--json"])
    }

    /// Checks that a read of the version is refused for this reason.
    fn refused(&self, version: u64, reason: &str) {
        let error = self.get(version).expect(3).error();
        assert_eq!(error["reason"], reason, "version {version}: {error}");
    }

    fn prove(&self, version: u64, name: &str) {
        self.dev.run(&["get", "k", "--version", &version.to_string(), "--proof", &self.file(name)]).expect(0);
    }

    fn verify(&self, proof: &str, newer: Option<&str>) -> common::Done {
        let (proof, key) = (self.file(proof), self.dev.vkey());
        let mut arguments = vec!["verify", &proof, "--key", &key, "--json"];
        let newer = newer.map(|name| self.file(name));
        if let Some(newer) = &newer {
            arguments.extend(["--checkpoint", newer]);
        }
        common::run(common::coppice().args(arguments))
    }

    fn standing(&self, since: &str, name: &str) {
        self.dev.run(&["checkpoint", "--since", &self.file(since), "--proof", &self.file(name)]).expect(0);
    }

    fn put(&self, value: u64) -> Value {
        self.dev
            .run(&["commit", "--put", &format!("k={value}"), "--put", &format!("z{value}=x"), "--json"])
            .expect(0)
            .json()
    }
}

#[test]
fn prune_rollback_and_new_commits_are_in_the_open() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let mut shape = common::small_shape("m");
    shape[5] = "8".to_owned();
    let story = Story { dev: Dev::start(&work.path().join("data"), &shape), work };
    for value in 1..=30 {
        assert_eq!(story.put(value)["version"], value);
    }
    story.prove(15, "kept");
    story.prove(28, "doomed");
    story.dev.run(&["checkpoint"]).expect(0);
    for proof in ["kept", "doomed"] {
        assert_eq!(story.verify(proof, None).expect(0).json()["valid"], true);
    }

    let pruned = story.dev.run(&["prune", "--before", "10", "--reason", "enough", "--principal", "tester", "--json"]);
    assert_eq!(pruned.expect(0).json()["pruned_boundary"], 10);
    story.refused(9, "PRUNED");
    story.get(10).expect(0);
    let rolled = story
        .dev
        .run(&["rollback", "--to", "20", "--reason", "mistake", "--principal", "tester", "--json"])
        .expect(0)
        .json();
    assert_eq!((&rolled["epoch"], &rolled["version"]), (&json!(1), &json!(20)));
    story.refused(21, "ROLLED_BACK");
    story.refused(30, "ROLLED_BACK");
    story.refused(9, "PRUNED");
    let got = story.get(20).expect(0).json();
    assert_eq!((&got["epoch"], &got["version"], &got["value"]), (&json!(0), &json!(20), &json!("20")));
    let error = story.dev.run(&["rollback", "--to", "5", "--reason", "too far", "--json"]).expect(3).error();
    assert_eq!(error["reason"], "PRUNED");

    for value in 101..=110 {
        let done = story.put(value);
        assert_eq!((&done["epoch"], &done["version"]), (&json!(1), &json!(value - 80)));
    }
    assert_eq!(story.get(25).expect(0).json()["value"], "105");
    story.refused(31, "NOT_YET");
    check_log(&story.dev);
    check_proofs(&story);
    check_times(&story);
    let data = story.work.path().join("data");
    story.dev.stop();
    common::assert_sound(&data);
    check_after_restart(&data, &shape);
}

/// Every time has its newest version that stands, pruned or not. Reads at a time are of it.
fn check_times(story: &Story) {
    let log = story.dev.run(&["log", "--json"]).expect(0).lines();
    let number = |header: &Value, field: &str| header[field].as_u64().expect("a number");
    let stands = |header: &&Value| {
        let version = number(header, "version");
        let commit = header["kind"] == "commit" && (number(header, "epoch") == 1 || version <= 20);
        commit || header["kind"] == "genesis"
    };
    let standing: Vec<(u64, u64)> =
        log.iter().filter(stands).map(|header| (number(header, "version"), number(header, "timestamp_ms"))).collect();
    assert_eq!(standing.len(), 31);
    let (key, file) = (story.dev.vkey(), story.file("time"));
    for version in [0, 5, 15, 20, 21, 29, 30] {
        let at = standing[version].1;
        let naive = standing.iter().rev().find(|(_, time_ms)| *time_ms <= at).expect("genesis is as old").0;
        let text = at.to_string();
        let told = story.dev.run(&["time", "--at", &text, "--proof", &file, "--json"]).expect(0).json();
        assert_eq!((&told["version"], &told["final"]), (&json!(naive), &json!(naive < 30)), "{told}");
        assert_eq!(told["next"].is_null(), naive == 30, "{told}");
        let verify = |expected: &str| {
            common::run(common::coppice().args(["verify", &file, "--key", &key, "--expect-time", expected, "--json"]))
        };
        let proven = verify(&text).expect(0).json();
        assert_eq!((&proven["kind"], &proven["version"]), (&json!("time"), &told["version"]));
        assert_eq!((&proven["next"], &proven["final"]), (&told["next"], &told["final"]));
        assert_eq!(verify(&(at + 1).to_string()).expect(1).json()["failed_step"], "question");
        for trust in [&[][..], &["--trust", &key]] {
            let got = story.dev.run(&[&["get", "k", "--at-time", &text, "--json"], trust].concat());
            match naive {
                30 => assert_eq!(got.expect(3).error()["reason"], "NOT_YET"),
                0..10 => assert_eq!(got.expect(3).error()["reason"], "PRUNED"),
                _ => assert_eq!(got.expect(0).json()["version"], naive),
            }
        }
    }
    let old = story.dev.run(&["time", "--at", "2001-01-01T00:00:00Z", "--json"]).expect(1).error();
    assert_eq!(old["reason"], "NOT_FOUND");
}

fn check_log(dev: &Dev) {
    let log = dev.run(&["log", "--json"]).expect(0).lines();
    let kinds = |kind: &str| log.iter().filter(|header| header["kind"] == kind).cloned().collect::<Vec<Value>>();
    assert_eq!((kinds("genesis").len(), kinds("commit").len()), (1, 40));
    let prune = &kinds("prune")[0]["prune"];
    assert_eq!(
        (&prune["boundary"], &prune["principal"], &prune["reason"]),
        (&json!(10), &json!("unauthenticated (says \"tester\")"), &json!("enough"))
    );
    let rollback = &kinds("rollback")[0]["rollback"];
    assert_eq!((&rollback["target"]["version"], &rollback["head_before"]["version"]), (&json!(20), &json!(30)));
    for pair in log.windows(2) {
        assert_eq!(pair[1]["previous"], pair[0]["entry_hash"], "the log is a chain");
    }
}

fn check_proofs(story: &Story) {
    story.standing("kept", "newer-kept");
    let said = story.verify("kept", Some("newer-kept")).expect(0).json();
    assert_eq!((&said["version"], &said["value"]), (&json!(15), &json!("15")));
    story.standing("doomed", "newer-doomed");
    let said = story.verify("doomed", Some("newer-doomed")).expect(1).json();
    assert_eq!((&said["valid"], &said["failed_step"]), (&json!(false), &json!("standing")));
    // Alone, the old proof still holds: the version stood at its checkpoint.
    story.verify("doomed", None).expect(0);
    let said = story.verify("newer-doomed", None).expect(0).json();
    assert_eq!(
        (&said["kind"], &said["epochs"]),
        (&json!("standing"), &json!([{ "epoch": 0, "base": 0 }, { "epoch": 1, "base": 20 }]))
    );
    // A standing proof from another checkpoint proves nothing about this one.
    story.prove(25, "young");
    assert_eq!(story.verify("young", Some("newer-doomed")).expect(1).json()["failed_step"], "standing");
}

fn check_after_restart(data: &Path, shape: &[String]) {
    let dev = Dev::start(data, shape);
    let head = dev.head();
    assert_eq!((&head["epoch"], &head["version"], &head["pruned_boundary"]), (&json!(1), &json!(30), &json!(10)));
    let got = dev.run(&["get", "k", "--version", "21", "--json"]).expect(0).json();
    assert_eq!((&got["value"], &got["epoch"]), (&json!("101"), &json!(1)));
    dev.stop();
}

#[test]
fn a_loaded_input_that_was_rolled_back_is_not_loaded_again_unless_asked_for() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let input = work.path().join("lines.jsonl");
    common::write_history(&input, &common::generated(1, 6, 20));
    let input = input.display().to_string();
    let dev = Dev::start(&work.path().join("data"), &["--replicas".to_owned(), "1".to_owned()]);
    dev.run(&["load", &input]).expect(0);
    dev.run(&["rollback", "--to", "2", "--reason", "wrong input"]).expect(0);
    let error = dev.run(&["load", &input, "--json"]).expect(3).error();
    assert_eq!(error["reason"], "ROLLED_BACK");
    dev.run(&["load", &input, "--session", "second attempt"]).expect(0);
    assert_eq!(dev.version(), 8);
    dev.stop();
}

#[test]
fn a_key_change_is_rehearsed_as_the_guide_describes() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let data = work.path().join("data");
    let path = |file: &str| data.join(file).display().to_string();
    let shape = ["--replicas".to_owned(), "1".to_owned()];
    let dev = Dev::start(&data, &shape);
    let old = std::fs::read_to_string(path("ledger.vkey")).expect("a public key");
    let (name, _) = old.split_once('+').expect("a vkey");
    common::run(common::coppice().args(["keygen", "--out", &path("next.key"), "--name", name])).expect(0);
    let next = format!("@{}", path("next.vkey"));
    let rotate = ["rotate-key", next.as_str(), "--reason", "rehearsal"];
    let refused = dev.run(&rotate).expect(3);
    assert!(refused.stderr.contains("next_signing_key_file"), "{}", refused.stderr);
    dev.stop();

    let dev = Dev::start(&data, &shape);
    dev.run(&rotate).expect(0);
    dev.run(&["commit", "--put", "k=1"]).expect(0);
    let proof = work.path().join("k.proof").display().to_string();
    dev.run(&["get", "k", "--proof", &proof]).expect(0);
    common::run(common::coppice().args(["verify", &proof, "--key", old.trim()])).expect(0);
    dev.stop();

    std::fs::rename(path("next.key"), path("ledger.key")).expect("a file can be renamed");
    let dev = Dev::start(&data, &shape);
    dev.run(&["get", "k", "--proof", &proof, "--trust", old.trim()]).expect(0);
    common::run(common::coppice().args(["verify", &proof, "--key", &dev.vkey()])).expect(0);
    dev.stop();
}

/// Uses this repository's own history if there is one, else generated accounts.
#[test]
fn the_demonstration_comes_to_its_end() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo.sh");
    let done = std::process::Command::new(script).arg(env!("CARGO_BIN_EXE_coppice")).output().expect("it runs");
    let (shown, told) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{}: {shown}{told}", done.status);
    for step in ["Prune:", "Rollback:", "does not stand any more", "Done."] {
        assert!(shown.contains(step), "`{step}` is missing: {shown}{told}");
    }
}

/// Whether a file below the directory has these bytes.
fn is_on_disk(dir: &Path, bytes: &[u8]) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        // A running cluster removes files meanwhile.
        let found = if path.is_dir() {
            is_on_disk(&path, bytes)
        } else {
            let content = std::fs::read(&path).unwrap_or_default();
            content.windows(bytes.len()).any(|window| window == bytes).then_some(path)
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Owner and regulator occult a journal, step by step as the manual has it. No disk has the content
/// then, and everything else is as it was.
#[test]
fn content_that_is_occulted_is_on_no_disk_and_all_proofs_hold() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let shape = ["--ledgers", "--shards", "4", "--replicas", "3"].map(str::to_owned);
    let dir = work.path().join("ledger");
    let dev = Dev::start(&dir, &shape);
    for name in ["bank", "mill", "court"] {
        common::run(common::coppice().args(["keygen", "--name", name, "--out", &file(&format!("{name}.key"))]))
            .expect(0);
    }
    let key = |name: &str| file(&format!("{name}.key"));
    let (vkey, mill, court) = (dev.vkey(), file("mill.vkey"), file("court.vkey"));
    let run = |arguments: &[&str]| dev.run(&[arguments, &["--trust", &vkey]].concat());
    run(&["ledger", "create", "grain", "--owner", &key("bank"), "--regulator", &court, "--member", &mill]).expect(0);
    let secret = "a name that must go, 4711";
    let (receipt, kept) = (file("receipt"), file("kept"));
    let append = |data: &str, receipt: &str| {
        let (key, receipt) = (key("mill"), receipt.to_owned());
        run(&["ledger", "append", "grain", "--key", &key, "--clue", "lot-7", "--data", data, "--receipt", &receipt])
            .expect(0);
    };
    append(secret, &receipt);
    append("flour", &kept);
    assert!(is_on_disk(&dir, secret.as_bytes()).is_some());

    let order = file("order.json");
    run(&["ledger", "occult", "prepare", "grain", "--jsn", "1", "--out", &order]).expect(0);
    let alone = run(&["order", "submit", &order, "--key", &key("bank"), "--json"]).expect(3).error();
    assert_eq!(alone["reason"], "ORDER_INCOMPLETE");
    common::run(common::coppice().args(["order", "sign", &order, "--key", &key("court")])).expect(0);
    let shown = common::run(common::coppice().args(["order", "show", &order, "--json"])).expect(0).json();
    assert_eq!((&shown["signed_by"], &shown["journals"][0]["jsn"]), (&json!(["court"]), &json!(1)));
    let done = run(&["order", "submit", &order, "--key", &key("bank"), "--wait", "--json"]).expect(0).json();
    assert_eq!((&done["erased"], &done["occulted"], &done["first_jsn"]), (&json!(true), &json!([1]), &json!(3)));
    assert_eq!(done["replicas"].as_array().map(Vec::len), Some(3));
    assert_eq!(is_on_disk(&dir, secret.as_bytes()), None);

    let gone = run(&["ledger", "get", "grain", "1"]).expect(1);
    assert!(gone.stderr.contains("occulted by the order in journal 3, signed by bank and court"), "{}", gone.stderr);
    assert_eq!(run(&["ledger", "get", "grain", "2"]).expect(0).stdout, "flour");
    for receipt in [&receipt, &kept] {
        common::run(common::coppice().args(["verify", receipt, "--key", &vkey])).expect(0);
    }
    // A journal is verified by its proof, by an anchor, or by the coordinator.
    let anchor = file("grain.anchor");
    let verify = |jsn, data, by: &[&str]| dev.run(&[&["ledger", "verify", "grain", jsn, "--data", data], by].concat());
    dev.run(&["ledger", "anchor", "grain", &anchor]).expect(2);
    let trusted = run(&["ledger", "anchor", "grain", &anchor, "--json"]).expect(0).json();
    assert_eq!((&trusted["before"], &trusted["journals"]), (&json!(0), &json!(4)));
    for by in [&["--trust", &vkey][..], &["--anchor", &anchor], &["--server"]] {
        assert!(verify("2", "flour", by).expect(0).stdout.starts_with("valid: journal 2"));
        assert!(verify("2", "rye", by).expect(1).stdout.contains("fails at `payload`"));
    }
    verify("2", "flour", &[]).expect(2);
    verify("1", "gone", &["--trust", &vkey, "--anchor", &anchor]).expect(1);
    run(&["ledger", "append", "grain", "--key", &key("bank"), "--data", "more"]).expect(0);
    verify("4", "more", &["--anchor", &anchor]).expect(2);
    let trusted = run(&["ledger", "anchor", "grain", &anchor, "--json"]).expect(0).json();
    assert_eq!((&trusted["before"], &trusted["journals"]), (&json!(4), &json!(5)));
    verify("4", "more", &["--anchor", &anchor]).expect(0);
    let audited = run(&["ledger", "audit", "grain", "--values", "--json"]).expect(0).json();
    assert_eq!((&audited["sound"], &audited["journals"]), (&json!(true), &json!(5)));
    assert_eq!((&audited["occulted"], &audited["payloads"]), (&json!(1), &json!(4)));
    run(&["audit"]).expect(0);
    // An audit may begin with the state of a version, records of ledgers included.
    run(&["audit", "--from", "3"]).expect(0);
    run(&["ledger", "occult", "status", "grain", "3"]).expect(0);
    let again = run(&["order", "submit", &order, "--key", &key("bank"), "--json"]).expect(3).error();
    assert_eq!(again["reason"], "NOT_POSSIBLE");

    // It stays so when all replicas start again.
    dev.stop();
    common::assert_sound(&dir);
    let dev = Dev::start(&dir, &shape);
    dev.run(&["ledger", "get", "grain", "1", "--trust", &vkey]).expect(1);
    dev.run(&["ledger", "occult", "status", "grain", "3", "--wait"]).expect(0);
    assert_eq!(is_on_disk(&dir, secret.as_bytes()), None);
    dev.stop();
    assert_eq!(is_on_disk(&dir, secret.as_bytes()), None);
}

/// Members purge old journals step by step as the manual has it. What is kept and what came since
/// is proven, and the audit judges it.
#[test]
fn a_purge_is_signed_by_all_whose_journals_go_and_audits_hold_behind_it() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let dev = Dev::start(&work.path().join("ledger"), &["--ledgers", "--shards", "4"].map(str::to_owned));
    for name in ["bank", "mill", "court"] {
        common::run(common::coppice().args(["keygen", "--name", name, "--out", &file(&format!("{name}.key"))]))
            .expect(0);
    }
    let key = |name: &str| file(&format!("{name}.key"));
    let (vkey, mill, court) = (dev.vkey(), file("mill.vkey"), file("court.vkey"));
    let run = |arguments: &[&str]| dev.run(&[arguments, &["--trust", &vkey]].concat());
    let (receipt, order) = (file("receipt"), file("order.json"));
    for (ledger, spread) in [("grain", None), ("wide", Some("--spread"))] {
        let create = ["ledger", "create", ledger, "--owner", &key("bank"), "--regulator", &court, "--member", &mill];
        let create = [&create[..], &["--notice", "0s", "--retain", "2"], spread.as_slice()].concat();
        run(&create).expect(0);
        let append = |data: &[&str]| {
            let (key, receipt) = (key("mill"), receipt.clone());
            let data: Vec<&str> = data.iter().flat_map(|data| ["--data", *data]).collect();
            let append = ["ledger", "append", ledger, "--key", &key, "--clue", "lot-7", "--receipt", &receipt];
            run(&[&append[..], &data].concat()).expect(0);
        };
        append(&["one", "two"]);
        append(&["three", "four"]);
        append(&["five"]);
        let anchor = file(&format!("{ledger}.anchor"));
        run(&["ledger", "anchor", ledger, &anchor]).expect(0);
        let audit = || run(&["ledger", "audit", ledger, "--values", "--json"]).expect(0).json();
        assert_eq!((&audit()["sound"], &audit()["since"]), (&json!(true), &json!(null)));

        let within = run(&["ledger", "purge", "prepare", ledger, "--before", "9", "--out", &order]);
        within.expect(2);
        let told = run(&["ledger", "purge", "prepare", ledger, "--before", "5", "--out", &order, "--json"]);
        assert_eq!(told.expect(0).json()["to_sign"], json!(["bank", "mill"]));
        let submit = || run(&["order", "submit", &order, "--key", &key("bank"), "--json"]);
        assert_eq!(submit().expect(3).error()["reason"], "ORDER_INCOMPLETE");
        common::run(common::coppice().args(["order", "sign", &order, "--key", &key("mill")])).expect(0);
        assert_eq!(submit().expect(0).json()["purge"]["before"], json!(5));
        run(&["ledger", "purge", "recall", ledger, "--key", &key("mill")]).expect(0);
        assert_eq!(run(&["ledger", "purge", "status", ledger, "--json"]).expect(0).json()["state"], "recalled");
        run(&["ledger", "purge", "sweep", ledger, "--key", &key("bank")]).expect(3);
        submit().expect(0);
        run(&["ledger", "purge", "retain", ledger, "--jsn", "4", "--key", &key("court")]).expect(0);
        let sweep = || run(&["ledger", "purge", "sweep", ledger, "--key", &key("bank")]);
        sweep().expect(0);
        sweep().expect(3);
        assert_eq!(run(&["ledger", "purge", "status", ledger, "--json"]).expect(0).json()["state"], "swept");

        // Journals 1 and 2 are gone; 3 and 4 were kept with their request.
        let gone = run(&["ledger", "get", ledger, "2", "--json"]).expect(1).error();
        assert_eq!(gone["reason"], "PURGED_JOURNAL");
        assert_eq!(run(&["ledger", "get", ledger, "3"]).expect(0).stdout, "three");
        let below = |jsn, data| run(&["ledger", "verify", ledger, jsn, "--data", data, "--anchor", &anchor, "--json"]);
        assert_eq!(below("2", "two").expect(1).error()["reason"], "PURGED_JOURNAL");
        below("3", "three").expect(0);
        append(&["six", "seven"]);
        let shown = run(&["ledger", "lineage", ledger, "lot-7", "--json"]).expect(0).stdout;
        assert_eq!(shown.lines().count(), 5, "{shown}");
        common::run(common::coppice().args(["verify", &receipt, "--key", &vkey])).expect(0);
        // The audit begins behind the sweep, and reads what it needs from there: old leaves, too.
        run(&["ledger", "occult", "prepare", ledger, "--jsn", "3", "--out", &order]).expect(0);
        common::run(common::coppice().args(["order", "sign", &order, "--key", &key("court")])).expect(0);
        run(&["order", "submit", &order, "--key", &key("bank"), "--wait"]).expect(0);
        let audited = audit();
        assert_eq!((&audited["sound"], &audited["purged"]), (&json!(true), &json!(5)));
        assert!(audited["since"].as_u64().is_some_and(|since| since > 0), "{audited}");
        assert_eq!(audited["occulted"], json!(1));

        // To close a ledger deletes it.
        run(&["ledger", "purge", "prepare", ledger, "--close", "--out", &order]).expect(0);
        for signer in ["mill", "court"] {
            common::run(common::coppice().args(["order", "sign", &order, "--key", &key(signer)])).expect(0);
        }
        submit().expect(0);
        let closed = run(&["ledger", "append", ledger, "--key", &key("mill"), "--data", "late", "--json"]);
        assert_eq!(closed.expect(3).error()["reason"], "NOT_POSSIBLE");
        let id = run(&["ledger", "show", ledger, "--json"]).expect(0).json()["id"].as_str().expect("an id").to_owned();
        sweep().expect(0);
        run(&["ledger", "show", ledger]).expect(1);
        let by_id = format!("0x{id}");
        assert_eq!(run(&["ledger", "show", &by_id, "--json"]).expect(0).json()["closed"], json!(true));
        let audited = run(&["ledger", "audit", &by_id, "--json"]).expect(0).json();
        assert_eq!(audited["sound"], json!(true));
    }
    run(&["audit"]).expect(0);
    dev.stop();
}
