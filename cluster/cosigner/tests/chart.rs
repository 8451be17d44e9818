//! The chart `coppice-cosigner` writes settings that a cosigner takes, and starts it on an empty
//! volume.

use std::{os::unix::fs::PermissionsExt, path::Path};

use coppice_cosigner::{
    config::{Config, KeyChanges},
    run,
};
use coppice_verify::note::SignerKey;

/// The settings in the rendered chart: the indented block after its file name.
fn rendered() -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/golden/coppice-cosigner-choices.yaml");
    let text = std::fs::read_to_string(golden).expect("the render is there");
    let (_, block) = text.split_once("\n  cosigner.toml: |\n").expect("the settings are in a config map");
    let lines = block.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect()
}

#[test]
fn the_settings_of_the_chart_are_those_of_a_cosigner() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("cosigner.toml"), rendered()).expect("it can be written");
    let config = Config::read(dir.path()).expect("a cosigner takes them");
    assert_eq!(config.listen.to_string(), "0.0.0.0:7600");
    assert_eq!((config.key_changes, config.floor(), config.gossip_seconds), (KeyChanges::Ask, 2, 30));
    assert_eq!(config.logs, ["https://ledger.example/0", "https://ledger.example/1"]);
    let peers: Vec<&str> = config.peers.iter().map(|peer| peer.url.as_str()).collect();
    assert_eq!(peers, ["https://cosigner.bolt.example", "https://cosigner.crane.example"]);
    assert_eq!(config.ca.as_deref(), Some(Path::new("/etc/coppice-cosigner/ca/ca.crt")));
}

#[test]
fn a_new_volume_gets_a_state_and_a_second_start_keeps_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("cosigner.toml"), rendered()).expect("it can be written");
    let key = SignerKey::from_seed("acme.example/ledger", &[7; 32]).expect("a key").to_private_text();
    let path = dir.path().join("witness.key");
    std::fs::write(&path, format!("{}\n", *key)).expect("it can be written");
    // As a secret is mounted for the group of the pod.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o440)).expect("it is ours");
    assert!(run::open(dir.path()).is_err(), "a folder without a state may have lost it");
    for start in ["first", "second"] {
        assert!(run::recover(dir.path()).expect(start).lost, "{start}: peers are asked before a signature");
        let (cosigners, _) = run::open(dir.path()).expect("a cosigner takes the folder");
        assert_eq!(cosigners.witness.status().expect("it has one").cosigned_entries, 0);
    }
}
