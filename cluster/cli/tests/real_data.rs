//! Real histories, loaded into a cluster whose split lies between the keys and whose partitions are
//! small. They equal a replay of the files at every version checked, and every answer has a proof
//! that holds offline.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use common::{Dev, Line};
use coppice_env::{Rng, SimRng};
use coppice_verify::hash::sha256;
use serde_json::json;

/// Number of reads that are compared and proven, one by one.
const SAMPLES: u64 = 120;

/// The histories, and their files.
fn histories(dir: &std::path::Path) -> Vec<(PathBuf, Vec<Line>)> {
    let names = ["eips-history.jsonl.gz", "ethereum-genesis.jsonl.gz"];
    let real: Option<Vec<PathBuf>> = names.iter().map(|name| common::shared(name)).collect();
    match real {
        Some(paths) => paths.into_iter().map(|path| (path.clone(), common::read_history(&path))).collect(),
        None => {
            let (path, history) = (dir.join("generated.jsonl"), common::generated(3, 300, 900));
            common::write_history(&path, &history);
            vec![(path, history)]
        }
    }
}

fn bytes(text: &str, hex_encoded: bool) -> Vec<u8> {
    if hex_encoded { hex::decode(text.trim_start_matches("0x")).expect("hex") } else { text.as_bytes().to_vec() }
}

#[test]
fn every_version_equals_a_replay_and_every_answer_is_proven() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let histories = histories(work.path());
    let lines: Vec<Line> = histories.iter().flat_map(|(_, lines)| lines.clone()).collect();
    let keys: BTreeSet<(String, bool)> =
        lines.iter().flat_map(|line| line.puts.iter().map(|(key, _)| (key.clone(), line.hex))).collect();
    let keys: Vec<(String, bool)> = keys.into_iter().collect();
    let texts: Vec<&String> = keys.iter().filter(|(_, hex)| !hex).map(|(key, _)| key).collect();
    let dev = Dev::start(&work.path().join("data"), &common::small_shape(texts[texts.len() / 2]));
    for (path, _) in &histories {
        dev.run(&["load", &path.display().to_string()]).expect(0);
    }
    let states = common::replay(&lines);
    assert_eq!(dev.version(), states.len() as u64);
    check_every_version(&dev, &lines, &states);
    check_ranges(&dev, &states, work.path());

    let mut rng = SimRng::new(11);
    let proof = work.path().join("proof").display().to_string();
    for sample in 0..SAMPLES {
        let version = 1 + rng.below(states.len() as u64);
        let state = &states[usize::try_from(version).expect("small") - 1];
        let (key, hex) = &keys[usize::try_from(rng.below(keys.len() as u64)).expect("small")];
        // One sample in four asks for a key that was never there, next to one that is.
        let asked = if sample % 4 == 0 { format!("{key}{}", if *hex { "00" } else { "~" }) } else { key.clone() };
        check_key(&dev, &asked, *hex, version, state.get(&asked), &proof);
    }
    dev.stop();
    common::assert_sound(&work.path().join("data"));
}

/// Checks every key at every version, by induction. The first state and some others are compared
/// completely. Each version differs from the previous one only in the keys and values of its line.
fn check_every_version(dev: &Dev, lines: &[Line], states: &[BTreeMap<String, String>]) {
    let empty = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        let before = index.checked_sub(1).map_or(&empty, |index| &states[index]);
        let mut expected: BTreeMap<String, Option<String>> =
            line.puts.iter().map(|(key, value)| (as_hex(key), Some(as_hex(value)))).collect();
        expected.extend(line.deletes.iter().filter(|key| before.contains_key(*key)).map(|key| (as_hex(key), None)));
        let (from, to) = (index.to_string(), (index + 1).to_string());
        let found = dev.run(&["diff", &from, &to, "--encoding", "hex", "--json"]).expect(0).lines();
        let found: BTreeMap<String, Option<String>> =
            found.iter().map(|line| (text(&line["key"]).expect("a key"), text(&line["after"]["value"]))).collect();
        assert_eq!(found.len(), expected.len(), "version {to}");
        assert!(found == expected, "version {to} differs from its line");
    }
    for version in [1, states.len() / 2, states.len()] {
        let number = version.to_string();
        let found = dev
            .run(&[
                "range",
                "0x00",
                &format!("0x{}", "ff".repeat(32)),
                "--version",
                &number,
                "--encoding",
                "hex",
                "--json",
            ])
            .expect(0)
            .lines();
        let found: Vec<_> = found.iter().map(|line| (text(&line["key"]), text(&line["value"]))).collect();
        let mut expected: Vec<_> =
            states[version - 1].iter().map(|(key, value)| (Some(as_hex(key)), Some(as_hex(value)))).collect();
        expected.sort();
        assert!(found == expected, "the state of version {number}");
    }
}

/// Ranges with proofs, across the split, limited and empty: the proofs show what the replay has.
fn check_ranges(dev: &Dev, states: &[BTreeMap<String, String>], work: &std::path::Path) {
    let proof = work.join("range-proof").display().to_string();
    let mut rng = SimRng::new(12);
    for _ in 0..12 {
        let version = 1 + usize::try_from(rng.below(states.len() as u64)).expect("small");
        let state: BTreeMap<Vec<u8>, Vec<u8>> = states[version - 1]
            .iter()
            .map(|(key, value)| (bytes(key, is_hex(key)), bytes(value, is_hex(value))))
            .collect();
        let keys: Vec<&Vec<u8>> = state.keys().collect();
        let low = keys[usize::try_from(rng.below(keys.len() as u64)).expect("small")].clone();
        let limit = 1 + usize::try_from(rng.below(40)).expect("small");
        let (from, number, most) = (format!("0x{}", hex::encode(&low)), version.to_string(), limit.to_string());
        let high = format!("0x{}", "ff".repeat(32));
        let range = ["range", &from, &high, "--version", &number, "--limit", &most, "--proof", &proof, "--json"];
        dev.run(&range).expect(0);
        let said = dev.run(&["verify", &proof, "--key", &dev.vkey(), "--encoding", "hex", "--json"]).expect(0).json();
        assert_eq!((&said["valid"], &said["kind"], &said["version"]), (&json!(true), &json!("range"), &json!(version)));
        let proven = said["records"].as_array().expect("records");
        let proven: Vec<_> =
            proven.iter().map(|record| (text(&record["key"]), text(&record["value_sha256"]))).collect();
        let expected: Vec<_> = state
            .range(low..)
            .take(limit)
            .map(|(key, value)| (Some(format!("0x{}", hex::encode(key))), Some(sha256(value).to_string())))
            .collect();
        assert_eq!(proven, expected, "from {from} at version {number}");
    }
}

fn is_hex(text: &str) -> bool {
    text.starts_with("0x")
}

fn as_hex(text: &str) -> String {
    format!("0x{}", hex::encode(bytes(text, is_hex(text))))
}

fn text(value: &serde_json::Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn check_key(dev: &Dev, key: &str, hex: bool, version: u64, want: Option<&String>, proof: &str) {
    let (encoding, number) = (if hex { "hex" } else { "utf8" }, version.to_string());
    let got = dev.run(&["get", key, "--version", &number, "--encoding", encoding, "--json", "--proof", proof]);
    let got = got.expect(i32::from(want.is_none())).json();
    let context = format!("{key} at {version}");
    assert_eq!(got["found"], json!(want.is_some()), "{context}");
    if let Some(want) = want {
        assert_eq!(got["value"], json!(want), "{context}");
    }
    assert_eq!(got["version"], json!(version), "{context}");
    let said = dev.run(&["verify", proof, "--key", &dev.vkey(), "--encoding", encoding, "--json"]).expect(0).json();
    let hash = want.map(|value| sha256(&bytes(value, hex)).to_string());
    assert_eq!(said["valid"], json!(true), "{context}");
    assert_eq!((&said["found"], &said["key"]), (&json!(want.is_some()), &json!(key)), "{context}");
    assert_eq!((&said["value_sha256"], &said["version"]), (&json!(hash), &json!(version)), "{context}");
}
