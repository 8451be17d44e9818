//! A second implementation in Python, written from `docs/verification.md`, agrees with the vectors.
//! Its command line judges every proof file in them as the vectors say.
//!
//! Without Python 3.11 these tests fail, since no other test reads the page independently of the
//! code. `COPPICE_WITHOUT_PYTHON=1` lets them pass unchecked, and they say so.

mod common;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use common::vectors::{path, stored};
use serde_json::Value;

/// Environment variable that allows the absence of Python.
const WITHOUT_PYTHON: &str = "COPPICE_WITHOUT_PYTHON";

/// Whether Python 3.11 or newer is installed. Its absence is an error unless the environment allows
/// it.
fn has_python() -> bool {
    let version = "import sys; sys.exit(sys.version_info < (3, 11))";
    if Command::new("python3").args(["-c", version]).output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    let allowed = env::var_os(WITHOUT_PYTHON).is_some_and(|value| value == "1");
    assert!(
        allowed,
        "python3 is missing or older than 3.11: install it (Debian: apt-get install python3), or set \
         {WITHOUT_PYTHON}=1 to leave `docs/verification.md` unchecked against the code"
    );
    eprintln!("NOT CHECKED: second.py: no Python 3.11, and {WITHOUT_PYTHON}=1 allows its absence");
    false
}

fn second(arguments: &[&str]) -> Output {
    Command::new("python3").arg(path("second.py")).args(arguments).output().expect("python3 was found")
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn the_second_implementation_agrees_with_the_vectors() {
    if !has_python() {
        return;
    }
    let output = second(&[]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.ends_with("agree")).count(), 16, "{said}");
}

/// A directory for this test alone.
fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).expect("it can be made");
    directory
}

fn save(directory: &Path, name: &str, bytes: &[u8]) -> String {
    let file = directory.join(name);
    fs::write(&file, bytes).expect("it is written");
    file.to_str().expect("UTF-8").to_owned()
}

/// Judges a file by the command line, and compares exit code and step with the vector.
fn judge(directory: &Path, name: &str, case: &Value, vkey: Option<&str>) {
    let bytes = |field: &str| case[field].as_str().map(|hex| hex::decode(hex).expect("hex"));
    let file = save(directory, &format!("{name}.proof"), &bytes("file").expect("a file"));
    let mut arguments = vec![file];
    match (vkey, case["policy"].as_str()) {
        (Some(vkey), None) => arguments.extend(["--key".to_owned(), vkey.to_owned()]),
        (None, Some(policy)) => {
            arguments.extend(["--policy".to_owned(), save(directory, &format!("{name}.policy"), policy.as_bytes())]);
        }
        trust => panic!("either a key or a policy: {trust:?}"),
    }
    if let Some(newer) = bytes("newer") {
        arguments.extend(["--newer".to_owned(), save(directory, &format!("{name}.newer"), &newer)]);
    }
    let output = second(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let said = said(&output);
    match case["failed step"].as_str() {
        None => assert!(output.status.code() == Some(0) && said.starts_with("valid:"), "{}: {said}", case["name"]),
        Some(step) => {
            let refused = said.starts_with(&format!("refused, at step {step}: "));
            assert!(output.status.code() == Some(1) && refused, "{}: {said}", case["name"]);
        }
    }
}

#[test]
fn its_command_line_judges_every_proof_file_as_the_vectors_say() {
    if !has_python() {
        return;
    }
    let directory = directory("second");
    let (proofs, cases) = (stored("proofs.json"), stored("cases.json"));
    let list = |vectors: &Value| vectors["cases"].as_array().expect("a list").clone();
    let vkey = proofs["vkey"].as_str().map(str::to_owned);
    let key_of = |case: &Value| case["vkey"].as_str().map(str::to_owned);
    let proofs = list(&proofs).into_iter().map(|case| (case, vkey.clone()));
    let cases = list(&cases).into_iter().map(|case| (key_of(&case), case)).map(|(key, case)| (case, key));
    let all: Vec<(Value, Option<String>)> = proofs.chain(cases).collect();
    thread::scope(|scope| {
        for (part, cases) in all.chunks(all.len().div_ceil(2)).enumerate() {
            let directory = &directory;
            scope.spawn(move || {
                for (at, (case, vkey)) in cases.iter().enumerate() {
                    judge(directory, &format!("{part}-{at}"), case, vkey.as_deref());
                }
            });
        }
    });
}

#[test]
fn its_command_line_judges_evidence() {
    if !has_python() {
        return;
    }
    let directory = directory("second-evidence");
    let cases = stored("evidence.json");
    let cases = cases["cases"].as_array().expect("a list").iter();
    for (at, case) in cases.enumerate().filter(|(at, case)| case["valid"] == true || at % 5 == 0) {
        let text = |field: &str| case[field].as_str().expect("a text");
        let file = save(&directory, &format!("{at}.evidence"), text("file").as_bytes());
        let mut arguments = vec!["--evidence", &file, "--key", text("vkey")];
        let policy = case["policy"].as_str().map(|policy| save(&directory, "policy", policy.as_bytes()));
        arguments.extend(policy.iter().flat_map(|policy| ["--policy", policy]));
        let output = second(&arguments);
        let said = said(&output);
        match case["failed step"].as_str() {
            None => assert!(output.status.code() == Some(0) && said.starts_with("valid evidence:"), "{said}"),
            Some(step) => {
                let refused = said.starts_with(&format!("refused, at step {step}"));
                assert!(output.status.code() == Some(1) && refused, "{}: {said}", text("name"));
            }
        }
    }
    let file = save(&directory, "a.evidence", b"");
    assert_eq!(second(&["--evidence", &file]).status.code(), Some(2));
    assert_eq!(second(&["--evidence", &file, &file, "--key", "x"]).status.code(), Some(2));
}

#[test]
fn its_command_line_refuses_to_guess() {
    if !has_python() {
        return;
    }
    let directory = directory("second-usage");
    let proofs = stored("proofs.json");
    let vkey = proofs["vkey"].as_str().expect("a key");
    let file = proofs["cases"][0]["file"].as_str().expect("a file");
    let file = save(&directory, "a.proof", &hex::decode(file).expect("hex"));
    let policy = save(&directory, "a.policy", b"quorum nobody\n");
    for arguments in [
        vec![file.as_str()],
        vec![&file, "--key", "no key"],
        vec![&file, "--key", vkey, "--policy", &policy],
        vec![&file, "--policy", &policy],
        vec![&file, "--key"],
        vec!["--key", vkey],
        vec![&file, &file, "--key", vkey],
        vec![&file, "--trust", vkey],
        vec!["/nowhere", "--key", vkey],
    ] {
        let output = second(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
    }
    let key = save(&directory, "ledger.vkey", format!("{vkey}\n").as_bytes());
    assert_eq!(second(&[&file, "--key", &format!("@{key}")]).status.code(), Some(0));
}
