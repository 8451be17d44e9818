//! Real histories, loaded into a cluster whose split lies inside the keys and whose partitions are small, equal a replay of
//! the files at every version looked at, and every answer has a proof that holds offline.

mod common;

use std::{collections::BTreeSet, path::PathBuf};

use common::{Dev, Line};
use coppice_env::{Rng, SimRng};
use coppice_verify::hash::sha256;
use serde_json::json;

/// Reads that are compared and proven, one by one.
const SAMPLES: u64 = 120;

/// The histories and where they lie.
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

    let mut rng = SimRng::new(11);
    let proof = work.path().join("proof").display().to_string();
    for sample in 0..SAMPLES {
        let version = 1 + rng.below(states.len() as u64);
        let state = &states[usize::try_from(version).expect("small") - 1];
        let (key, hex) = &keys[usize::try_from(rng.below(keys.len() as u64)).expect("small")];
        // One sample in four asks for what was never there, next to what is.
        let asked = if sample % 4 == 0 { format!("{key}{}", if *hex { "00" } else { "~" }) } else { key.clone() };
        check_key(&dev, &asked, *hex, version, state.get(&asked), &proof);
    }
    dev.stop();
    common::assert_sound(&work.path().join("data"));
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
