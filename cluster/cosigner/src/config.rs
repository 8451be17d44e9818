//! The folder of a cosigner: its settings and its private key.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use coppice_env::{DiskStorage, OpenMode, Rng, Storage, read_secret};
use coppice_types::Digest;
use coppice_verify::{
    cosignature::{Cosigner, CosignerKey, WitnessKey},
    hash::sha256,
    note::{SignerKey, VerifierKey},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    error::{Error, disk},
    record::{Record, STATE, Slots},
};

/// Name of the settings' file.
pub const CONFIG: &str = "cosigner.toml";
/// Name of the private key's file.
pub const KEY: &str = "witness.key";
/// Seconds between two rounds of asking peers, unless the settings say otherwise.
pub const GOSSIP_SECONDS: u64 = 30;
/// Longest name of a key: a record holds two notes with it.
const NAME_BYTES_MAX: usize = 400;
/// Most servers of each kind.
const SERVERS_MAX: usize = 32;

/// The behaviour when the ledger changes its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyChanges {
    /// The new key is trusted as the old one was: both signed the change.
    Follow,
    /// Nothing that the new key signs is cosigned until a person accepts it.
    Ask,
}

/// Another member's cosigner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Where it serves what it knows: its monitoring prefix.
    pub url: String,
    /// Its public key.
    pub vkey: String,
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The ledger's public key.
    pub ledger_key: String,
    /// Where coordinators serve the root log: their `http_listen`.
    pub logs: Vec<String>,
    /// The address on which this cosigner serves.
    pub listen: SocketAddr,
    /// The behaviour when the ledger changes its key.
    #[serde(default = "follow")]
    pub key_changes: KeyChanges,
    /// How many peers must have said what they saw of this cosigner before its first signature
    /// after a start [default: 1 if there are peers].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_peers: Option<usize>,
    /// Seconds between two rounds of asking peers.
    #[serde(default = "gossip_seconds")]
    pub gossip_seconds: u64,
    /// The authority of the servers' certificates [default: the public ones].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Other members' cosigners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
}

fn follow() -> KeyChanges {
    KeyChanges::Follow
}

fn gossip_seconds() -> u64 {
    GOSSIP_SECONDS
}

impl Config {
    /// Reads the settings of a folder.
    ///
    /// # Errors
    /// If the file is missing or wrong.
    pub fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(CONFIG);
        let named = |error: String| Error::Refused(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| named(error.to_string()))?;
        if text.contains("PRIVATE+KEY") {
            return Err(named("it holds a private key where a public one belongs".to_owned()));
        }
        let config: Self = toml::from_str(&text).map_err(|error| named(error.to_string()))?;
        config.check().map_err(|error| named(error.to_string()))?;
        Ok(config)
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// Names the first wrong one.
    pub fn check(&self) -> Result<(), Error> {
        let refused = |what: String| Err(Error::Refused(what));
        self.ledger()?;
        self.peer_keys()?;
        let urls = self.logs.iter().chain(self.peers.iter().map(|peer| &peer.url));
        for url in urls {
            if reqwest::Url::parse(url).map_or(true, |url| !matches!(url.scheme(), "http" | "https")) {
                return refused(format!("{url:?} is no http(s) URL"));
            }
        }
        match () {
            () if self.logs.is_empty() => refused("logs: name at least one coordinator's".to_owned()),
            () if self.logs.len() > SERVERS_MAX || self.peers.len() > SERVERS_MAX => {
                refused(format!("at most {SERVERS_MAX} logs and peers"))
            }
            () if self.floor() > self.peers.len() => refused("floor_peers: there are fewer peers".to_owned()),
            () if self.gossip_seconds == 0 => refused("gossip_seconds: at least 1".to_owned()),
            () => Ok(()),
        }
    }

    /// The ledger's public key.
    ///
    /// # Errors
    /// If the text is none.
    pub fn ledger(&self) -> Result<VerifierKey, Error> {
        let wrong = |error| Error::Refused(format!("ledger_key is no ledger's public key: {error}"));
        let key = VerifierKey::parse(self.ledger_key.trim()).map_err(wrong)?;
        check_name(key.name())?;
        Ok(key)
    }

    /// How many peers must answer before the first signature after a start.
    #[must_use]
    pub fn floor(&self) -> usize {
        self.floor_peers.unwrap_or(self.peers.len().min(1))
    }

    /// The keys of the peers, in their order.
    ///
    /// # Errors
    /// If a text is none.
    pub fn peer_keys(&self) -> Result<Vec<WitnessKey>, Error> {
        let wrong = |url: &str, error| Error::Refused(format!("the vkey of {url} is no key of a witness: {error}"));
        let keys =
            self.peers.iter().map(|peer| WitnessKey::parse(peer.vkey.trim()).map_err(|error| wrong(&peer.url, error)));
        keys.collect()
    }
}

/// The hash in the paths of a log: the hex digits of SHA-256 of its origin.
#[must_use]
pub fn origin_hash(origin: &str) -> String {
    hex(&sha256(origin.as_bytes()))
}

/// How paths and files name a key: the hex digits of SHA-256 of its bytes.
#[must_use]
pub fn key_hash(key: &[u8]) -> String {
    hex(&sha256(key))
}

pub(crate) fn hex(digest: &Digest) -> String {
    hex::encode(digest.as_bytes())
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Refused(format!("a key's name may have {NAME_BYTES_MAX} bytes")))
}

/// Makes the folder of a new cosigner, with a new key. Returns the public key.
///
/// # Errors
/// If the settings are wrong, the folder has a cosigner, or the disk refuses.
pub fn init(dir: &Path, config: &Config, name: &str, rng: &mut dyn Rng) -> Result<CosignerKey, Error> {
    config.check()?;
    check_name(name)?;
    let storage = DiskStorage::new(dir);
    storage.create_dir_all("").map_err(disk("the folder"))?;
    for file in [STATE, KEY, CONFIG] {
        if dir.join(file).symlink_metadata().is_ok() {
            let path = dir.join(file);
            return Err(Error::Refused(format!("{}: there already; a folder has one cosigner", path.display())));
        }
    }
    let mut seed = Zeroizing::new([0; 32]);
    rng.fill(&mut *seed);
    let wrong = |error| Error::Refused(format!("key name `{name}`: {error}"));
    let key = SignerKey::from_seed(name, &seed).map_err(wrong)?;
    let public = Cosigner::from_seed(name, &seed).map_err(wrong)?.verifier().clone();
    let text = Zeroizing::new([key.to_private_text().as_str(), "\n"].concat());
    create(&storage, KEY, text.as_bytes())?;
    create(&storage, "witness.vkey", format!("{public}\n").as_bytes())?;
    let settings = toml::to_string(config).map_err(|error| Error::Refused(error.to_string()))?;
    create(&storage, CONFIG, settings.as_bytes())?;
    // The state comes last: a folder with a state is complete.
    Slots::create(&storage, &Record::new(config.ledger()?.name(), public.public_key()))?;
    Ok(public)
}

fn create(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let file = storage.open(name, OpenMode::CreateNew).map_err(disk(name))?;
    file.write_all_at(bytes, 0).and_then(|()| file.sync_data()).map_err(disk(name))?;
    storage.sync_dir("").map_err(disk(name))
}

/// The private key of a folder.
///
/// # Errors
/// If the file is missing, others may read it, or it is no private key.
pub fn read_key(dir: &Path) -> Result<Cosigner, Error> {
    let path = dir.join(KEY);
    let named = |error: String| Error::Refused(format!("{}: {error}", path.display()));
    let text = Zeroizing::new(read_secret(&path).map_err(|error| named(error.to_string()))?);
    Cosigner::parse(text.trim()).map_err(|error| named(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use coppice_env::SimRng;

    use super::*;

    fn config() -> Config {
        let key = SignerKey::from_seed("ledger.example/00000000000000000000000000000009", &[1; 32]).expect("a name");
        Config {
            ledger_key: key.verifier().to_string(),
            logs: vec!["http://127.0.0.1:1".to_owned()],
            listen: "127.0.0.1:7600".parse().expect("an address"),
            key_changes: KeyChanges::Follow,
            floor_peers: None,
            gossip_seconds: 30,
            ca: None,
            peers: Vec::new(),
        }
    }

    #[test]
    fn a_new_folder_is_complete_and_its_key_is_for_its_owner_alone() {
        let work = tempfile::tempdir().expect("a temporary directory");
        let dir = work.path().join("member");
        let key = init(&dir, &config(), "member.example/w", &mut SimRng::new(1)).expect("a new folder");
        assert_eq!(Config::read(&dir).expect("it was written"), config());
        assert_eq!(read_key(&dir).expect("it was written").verifier(), &key);
        let mode = std::fs::metadata(dir.join(KEY)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = init(&dir, &config(), "member.example/w", &mut SimRng::new(2)).expect_err("there is one");
        assert!(again.to_string().contains("there already"), "{again}");
        assert_eq!(read_key(&dir).expect("it stays").verifier(), &key);
        std::fs::set_permissions(dir.join(KEY), std::fs::Permissions::from_mode(0o644)).expect("it is ours");
        assert!(read_key(&dir).expect_err("others may read it").to_string().contains("chmod 600"));
    }

    #[test]
    fn wrong_settings_are_named_and_no_private_key_is_repeated() {
        let secret = SignerKey::from_seed("w", &[3; 32]).expect("a name").to_private_text().to_string();
        let peer = |vkey: &str| Peer { url: "http://127.0.0.1:2".to_owned(), vkey: vkey.to_owned() };
        for (wrong, part) in [
            (Config { ledger_key: secret.clone(), ..config() }, "ledger_key"),
            (Config { logs: Vec::new(), ..config() }, "logs"),
            (Config { logs: vec!["ftp://a".to_owned()], ..config() }, "URL"),
            (Config { peers: vec![peer(&secret)], ..config() }, "vkey"),
            (Config { peers: vec![peer(&config().ledger_key)], ..config() }, "vkey"),
            (Config { floor_peers: Some(1), ..config() }, "floor_peers"),
            (Config { gossip_seconds: 0, ..config() }, "gossip_seconds"),
        ] {
            let refused = wrong.check().expect_err(part).to_string();
            assert!(refused.contains(part) && !refused.contains("PRIVATE"), "{refused}");
        }
        let work = tempfile::tempdir().expect("a temporary directory");
        assert!(init(work.path(), &config(), "two words", &mut SimRng::new(1)).is_err());
        std::fs::write(work.path().join(CONFIG), format!("ledger_key = \"{secret}\"\n")).expect("it can be written");
        let refused = Config::read(work.path()).expect_err("a private key").to_string();
        assert!(!refused.contains(&secret), "{refused}");
    }
}
