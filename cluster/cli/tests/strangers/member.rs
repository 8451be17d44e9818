//! A member's cosigner as a process of its own.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::Stdio,
};

use coppice_verify::cosignature::{CosignerKey, WitnessKey};
use serde_json::Value;

use super::{
    Process,
    common::{coppice, run},
    eventually, free_port, http_get,
};

/// The folder of a cosigner, and where it serves.
pub struct Member {
    dir: PathBuf,
    port: u16,
    vkey: String,
    /// The line by which a policy names it.
    pub line: String,
}

impl Member {
    /// Makes a cosigner of the log at a URL, with the name `NAME.example/w`.
    pub fn new(work: &Path, name: &str, log_key: &str, log: &str) -> Self {
        let (dir, port) = (work.join(name), free_port());
        let mut init = coppice();
        init.args(["cosigner", "init", "--json", "--ledger-key", log_key, "--log", log]);
        init.args(["--name", &format!("{name}.example/w"), "--listen", &format!("127.0.0.1:{port}")]).arg(&dir);
        let made = run(&mut init).expect(0).json();
        let text = |name: &str| made[name].as_str().expect("a text").to_owned();
        Self { dir, port, vkey: text("vkey"), line: format!("{}\n", text("policy_line")) }
    }

    /// Names another member, which is asked every second.
    pub fn knows(&self, peer: &Self) {
        let file = self.dir.join("cosigner.toml");
        let config = fs::read_to_string(&file).expect("the settings");
        let config = config.replace("gossip_seconds = 30", "gossip_seconds = 1");
        assert!(config.contains("gossip_seconds = 1\n"), "{config}");
        let peer = format!("\n[[peers]]\nurl = \"{}\"\nvkey = \"{}\"\n", peer.url(), peer.vkey);
        fs::write(file, config + &peer).expect("they can be written");
    }

    pub fn start(&self) -> Process {
        let log = fs::File::create(self.dir.with_extension("log")).expect("a log file");
        let mut command = coppice();
        command.args(["cosigner", "run"]).arg(&self.dir).stdout(Stdio::null()).stderr(log);
        let process = Process(command.spawn().expect("it can be run"));
        eventually("the cosigner listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        process
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it serves at a path.
    pub fn get(&self, path: &str) -> String {
        http_get(self.port, path)
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status")).expect("JSON")
    }

    pub fn has_halted(&self) -> bool {
        self.status()["halted"].is_string()
    }

    /// Its evidence files.
    pub fn evidence(&self) -> Vec<String> {
        self.get("/evidence/").lines().map(|name| self.get(&format!("/evidence/{name}"))).collect()
    }

    /// Whether its line is on a note.
    pub fn has_cosigned(&self, note: &[u8]) -> bool {
        has_cosigned(&CosignerKey::parse(&self.vkey).expect("the key of a witness"), note)
    }
}

/// Whether a line of this key is on a note.
pub fn has_cosigned(key: &CosignerKey, note: &[u8]) -> bool {
    WitnessKey::from(key.clone()).cosigned(note).expect("no forged line").is_some()
}
