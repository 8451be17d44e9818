//! `coppice verify` judges every proof file of `cluster/verify/vectors/cases.json` as the vectors
//! say, and accepts no proof of something else as an answer. The examples of `docs/proof-files.md`
//! print what the page says.

mod common;

use std::{fs, path::Path};

use serde_json::Value;

struct Files {
    work: tempfile::TempDir,
    cases: Vec<Value>,
}

impl Files {
    fn new() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/vectors/cases.json");
        let vectors: Value = serde_json::from_str(&fs::read_to_string(file).expect("it is there")).expect("JSON");
        let cases = vectors["cases"].as_array().expect("a list").clone();
        Self { work: tempfile::tempdir().expect("a directory"), cases }
    }

    fn save(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.work.path().join(name);
        fs::write(&path, bytes).expect("it is written");
        path.to_str().expect("UTF-8").to_owned()
    }

    fn verify(&self, case: &Value, more: &[&str]) -> common::Done {
        let file = hex::decode(case["file"].as_str().expect("a file")).expect("hex");
        let file = self.save("a.proof", &file);
        let trust = match (case["vkey"].as_str(), case["policy"].as_str()) {
            (Some(vkey), _) => ["--key".to_owned(), vkey.to_owned()],
            (None, policy) => {
                ["--policy".to_owned(), self.save("a.policy", policy.expect("a key or a policy").as_bytes())]
            }
        };
        common::run(common::coppice().args(["verify", &file, "--json"]).args(trust).args(more))
    }

    fn named(&self, name: &str) -> &Value {
        self.cases.iter().find(|case| case["name"].as_str() == Some(name)).expect("a case of this name")
    }
}

#[test]
fn every_case_of_the_page_is_judged_as_it_says() {
    let files = Files::new();
    for case in &files.cases {
        let valid = case["valid"] == true;
        let said = files.verify(case, &[]).expect(if valid { 0 } else { 1 }).json();
        assert_eq!((&said["valid"], &said["failed_step"]), (&case["valid"], &case["failed step"]), "{}", case["name"]);
    }
}

#[test]
fn a_proof_of_something_that_was_not_expected_fails() {
    let files = Files::new();
    let key = files.named("a tree of two leaves");
    let range = files.named("a range below the first record there is");
    let receipt = files.named("a batch that wrote `z`, as its receipt says: see also the next");
    let shown = files.verify(range, &[]).expect(0).json();
    let high = shown["high"].as_str().expect("a bound").to_owned();
    let entry = files.verify(receipt, &[]).expect(0).json()["entry_hash"].as_str().expect("a hash").to_owned();
    let other = "00".repeat(32);
    let expected: [(&Value, &[&str], bool); 13] = [
        (key, &["--expect-key", "k"], true),
        (key, &["--expect-key", "k", "--expect-version", "1"], true),
        (key, &["--expect-key", "l"], false),
        (key, &["--expect-key", "k", "--expect-key", "l"], false),
        (key, &["--expect-version", "2"], false),
        (key, &["--expect-range", "", "l"], false),
        (key, &["--expect-batch", &entry], false),
        (range, &["--expect-range", "", &high], true),
        (range, &["--expect-range", "", ""], false),
        (range, &["--expect-range", "a", &high], false),
        (range, &["--expect-key", "a"], false),
        (receipt, &["--expect-batch", &entry, "--expect-version", "1"], true),
        (receipt, &["--expect-batch", &other], false),
    ];
    for (case, options, answered) in expected {
        let said = files.verify(case, options).expect(if answered { 0 } else { 1 }).json();
        let step = if answered { Value::Null } else { Value::from("question") };
        assert_eq!((&said["valid"], &said["failed_step"]), (&Value::from(answered), &step), "{options:?}");
    }
    files.verify(receipt, &["--expect-batch", "abc"]).expect(2);
    files.verify(receipt, &["--expect-key", "k", "--expect-range", "a", "b"]).expect(2);
}

/// The package for JavaScript tests the other examples of the page.
#[test]
fn the_examples_of_the_page_print_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/proof-files.md")).expect("the page is there");
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().expect("a block"));
    let mut examples = 0;
    for example in blocks.flat_map(|block| block.split("$ ").skip(1)) {
        let (line, printed) = example.split_once('\n').expect("a line");
        let Some(arguments) = line.strip_prefix("coppice ") else { continue };
        let vectors = root.join("cluster/verify/vectors");
        let done = common::run(common::coppice().args(arguments.split(' ')).current_dir(vectors));
        assert_eq!(done.stdout + &done.stderr, printed, "{line}");
        examples += 1;
    }
    assert_eq!(examples, 3);
}
