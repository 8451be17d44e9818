//! `coppice merge` compared with a model, over every kind of three versions; and the batches that
//! `--apply` commits or refuses.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Dev, Done};
use coppice_env::{Rng, SimRng};
use serde_json::Value;

type State = BTreeMap<String, String>;

fn merge(dev: &Dev, [base, left, right]: [u64; 3], more: &[&str]) -> Done {
    let [base, left, right] = [base, left, right].map(|version| version.to_string());
    let arguments = ["merge", "--base", &base, "--left", &left, "--right", &right, "--json"];
    dev.run(&[&arguments, more].concat())
}

/// The value of one side, if it has one.
fn side(line: &Value, name: &str) -> Option<String> {
    line[name]["value"].as_str().map(str::to_owned)
}

/// The keys that are taken, and those in conflict, with the values in the output.
type Outcome = (BTreeMap<String, Option<String>>, BTreeMap<String, [Option<String>; 3]>);

fn shown(done: &Done) -> Outcome {
    let (mut taken, mut conflicts) = Outcome::default();
    for line in done.lines() {
        let key = line["key"].as_str().expect("a key").to_owned();
        match line["merge"].as_str() {
            Some("taken") => assert!(taken.insert(key, side(&line, "value")).is_none()),
            Some("conflict") => {
                let sides = ["base", "left", "right"].map(|name| side(&line, name));
                assert!(conflicts.insert(key, sides).is_none());
            }
            _ => panic!("{line}"),
        }
    }
    (taken, conflicts)
}

fn expected(base: &State, left: &State, right: &State) -> Outcome {
    let (mut taken, mut conflicts) = Outcome::default();
    let keys: BTreeSet<&String> = base.keys().chain(left.keys()).chain(right.keys()).collect();
    for key in keys {
        let [was, ours, theirs] = [base, left, right].map(|state| state.get(key).cloned());
        if theirs == was || theirs == ours {
            continue;
        }
        if ours == was {
            taken.insert(key.clone(), theirs);
        } else {
            conflicts.insert(key.clone(), [was, ours, theirs]);
        }
    }
    (taken, conflicts)
}

#[test]
fn a_merge_equals_that_of_the_model() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = Dev::start(&work.path().join("data"), &common::small_shape("account/00020"));
    let history = common::generated(5, 40, 40);
    let file = work.path().join("lines");
    common::write_history(&file, &history);
    dev.run(&["load", &file.display().to_string()]).expect(0);
    let states: Vec<State> = [State::new()].into_iter().chain(common::replay(&history)).collect();
    let (mut rng, key) = (SimRng::new(6), dev.vkey());
    let (mut clean, mut torn) = (0, 0);
    for round in 0..24 {
        let mut any = || rng.below(states.len() as u64);
        let mut versions = [any(), any(), any()];
        if round % 4 == 0 {
            // One version is taken back, where it was written or one version later: few conflicts,
            // or none.
            versions[0] = versions[0].clamp(1, states.len() as u64 - 2);
            versions[1] = versions[0] + u64::from(round % 8 == 4);
            versions[2] = versions[0] - 1;
        }
        let trust = ["--trust", key.as_str()];
        let done = merge(&dev, versions, if round % 2 == 0 { &trust } else { &[] });
        let [base, left, right] = versions.map(|version| &states[version as usize]);
        let outcome = expected(base, left, right);
        assert_eq!(done.code, i32::from(!outcome.1.is_empty()), "{versions:?}: {done:?}");
        assert_eq!(shown(&done), outcome, "{versions:?}");
        if outcome.1.is_empty() { clean += 1 } else { torn += 1 }
    }
    assert!(clean > 2 && torn > 2, "{clean} without conflicts, {torn} with some");
    dev.stop();
}

#[test]
fn a_merge_is_applied_as_a_whole_and_only_to_the_head_that_it_saw() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = Dev::start(&work.path().join("data"), &common::small_shape("b"));
    let commit = |arguments: &[&str]| dev.run(&[&["commit"], arguments].concat()).expect(0);
    let get = |key: &str| dev.run(&["get", key]).stdout.trim_end().to_owned();
    commit(&["--put", "a=1", "--put", "b=1", "--put", "c=1"]);
    commit(&["--put", "a=2", "--delete", "c", "--put", "d=2"]);
    commit(&["--put", "b=3"]);

    // Version 2 is taken back, version 3 stays.
    let key = dev.vkey();
    let done = merge(&dev, [2, 3, 1], &["--apply", "--trust", &key]).expect(0);
    let lines = done.lines();
    assert_eq!(lines.last().map(|line| line["version"].clone()), Some(4.into()), "{lines:?}");
    assert_eq!(lines.len(), 4, "a, c and d, and the commit: {lines:?}");
    assert_eq!((get("a"), get("b"), get("c")), ("1".into(), "3".into(), "1".into()));
    dev.run(&["get", "d"]).expect(1);

    // A second merge has nothing to do, so nothing is committed.
    let again = merge(&dev, [2, 4, 1], &["--apply"]).expect(0);
    assert_eq!((again.lines(), dev.version()), (Vec::new(), 4));

    // Head has changed one of the keys since the left version: none of the others is written
    // either.
    commit(&["--put", "c=5"]);
    let error = merge(&dev, [2, 3, 1], &["--apply"]).expect(3).error();
    assert_eq!((error["reason"].as_str(), dev.version()), (Some("PRECONDITION_FAILED"), 5));
    // Head may change other keys.
    commit(&["--put", "e=6"]);
    merge(&dev, [1, 5, 2], &["--apply"]).expect(1);
    assert_eq!(dev.version(), 6, "c is in conflict, and nothing was written");
    commit(&["--put", "c=1"]);
    merge(&dev, [1, 4, 2], &["--apply"]).expect(0);
    assert_eq!((get("a"), get("b"), get("d"), get("e")), ("2".into(), "3".into(), "2".into(), "6".into()));
    dev.run(&["get", "c"]).expect(1);

    // A merge larger than a batch is refused before it is sent.
    let value = work.path().join("value");
    std::fs::write(&value, "x".repeat(1 << 20)).expect("a file can be written");
    for number in 0..9 {
        commit(&["--put", &format!("large{number}=@{}", value.display())]);
    }
    let from = dev.version() - 9;
    let error = merge(&dev, [from, from, from + 9], &["--apply"]).expect(3).error();
    assert_eq!((error["reason"].as_str(), dev.version()), (Some("LIMIT_EXCEEDED"), from + 9));
    dev.stop();
}
