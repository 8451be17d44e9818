//! The folder of a cosigner: its settings and its private key.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use coppice_client::{Options, Tls as Trust};
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
/// Names of the files of the witness's private and public key.
pub const KEY: &str = "witness.key";
const PUBLIC_KEY: &str = "witness.vkey";
/// Names of the files of the auditor's private and public key.
pub const AUDITOR_KEY: &str = "auditor.key";
const AUDITOR_PUBLIC_KEY: &str = "auditor.vkey";
/// Folder of the auditor's state.
pub const AUDIT: &str = "audit";
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
    /// The public key of its auditor, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auditor: Option<String>,
}

/// The certificate that a cosigner shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file of the certificate, with those between it and its authority.
    pub cert: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

/// The way to the ledger's API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// Where coordinators serve the API.
    pub endpoints: Vec<String>,
    /// PEM file of the authority of the coordinators' certificates; none without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM files of the certificate and the private key that this member shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl Api {
    /// The client's settings.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn options(&self) -> Result<Options, Error> {
        let refused = |what: &str| Err(Error::Refused(format!("api: {what}")));
        if self.endpoints.is_empty() || self.endpoints.len() > SERVERS_MAX {
            return refused("name 1 to 32 endpoints");
        }
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return refused("set both `cert` and `key`, or neither"),
        };
        let tls = match &self.ca {
            Some(ca) => Some(Trust::Files { ca: ca.clone(), identity }),
            None if identity.is_some() => return refused("`cert` needs `ca`"),
            None => None,
        };
        Ok(Options { tls, ..Options::new(self.endpoints.join(",")) })
    }
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
    /// Whether this member also has an auditor.
    #[serde(default)]
    pub audit: bool,
    /// The name of this member's certificate, if it opens streams on which coordinators ask: they
    /// can't reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The certificate of this cosigner [default: none, for plain HTTP].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The way to the ledger's API, which the auditor and streams need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
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
        self.api.as_ref().map(Api::options).transpose()?;
        match () {
            () if self.audit && self.api.is_none() => refused("audit: it needs `[api]`, to read journals".to_owned()),
            () if self.stream.is_some() && self.api.is_none() => {
                refused("stream: it needs `[api]`, to which it is opened".to_owned())
            }
            () if self.stream.as_ref().is_some_and(|name| name.is_empty() || name.contains(['/', ' '])) => {
                refused("stream: the name of a certificate has no `/` and no space".to_owned())
            }
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

    /// The keys of the peers: for each its witness's and, if it has one, its auditor's.
    ///
    /// # Errors
    /// If a text is none.
    pub fn peer_keys(&self) -> Result<Vec<WitnessKey>, Error> {
        let wrong = |url: &str, error| Error::Refused(format!("the vkey of {url} is no key of a witness: {error}"));
        let texts = self.peers.iter().flat_map(|peer| {
            std::iter::once(&peer.vkey).chain(&peer.auditor).map(move |vkey| (&peer.url, vkey.trim()))
        });
        texts.map(|(url, vkey)| WitnessKey::parse(vkey).map_err(|error| wrong(url, error))).collect()
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

/// The public keys of a new folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The witness's.
    pub witness: CosignerKey,
    /// The auditor's, if the settings want one.
    pub auditor: Option<CosignerKey>,
}

/// The name of the auditor's key, by that of the witness's.
#[must_use]
pub fn auditor_name(name: &str) -> String {
    format!("{name}/auditor")
}

/// Makes the folder of a new cosigner, with new keys. Returns the public ones.
///
/// # Errors
/// If the settings are wrong, the folder has a cosigner, or the disk refuses.
pub fn init(dir: &Path, config: &Config, name: &str, rng: &mut dyn Rng) -> Result<Made, Error> {
    config.check()?;
    let auditor = auditor_name(name);
    check_name(&auditor)?;
    let storage = DiskStorage::new(dir);
    storage.create_dir_all("").map_err(disk("the folder"))?;
    for file in [STATE, KEY, AUDITOR_KEY, AUDIT, CONFIG] {
        if dir.join(file).symlink_metadata().is_ok() {
            let path = dir.join(file);
            return Err(Error::Refused(format!("{}: there already; a folder has one cosigner", path.display())));
        }
    }
    let witness = make_key(&storage, name, (KEY, PUBLIC_KEY), rng)?;
    let mut made = Made { witness, auditor: None };
    let origin = config.ledger()?.name().to_owned();
    if config.audit {
        let key = make_key(&storage, &auditor, (AUDITOR_KEY, AUDITOR_PUBLIC_KEY), rng)?;
        storage.create_dir_all(AUDIT).map_err(disk(AUDIT))?;
        storage.sync_dir("").map_err(disk(AUDIT))?;
        let folder = storage.subdir(AUDIT).map_err(disk(AUDIT))?;
        Slots::create(&*folder, &Record::new(&origin, key.public_key()))?;
        made.auditor = Some(key);
    }
    let settings = toml::to_string(config).map_err(|error| Error::Refused(error.to_string()))?;
    create(&storage, CONFIG, settings.as_bytes())?;
    // The state comes last: a folder with a state is complete.
    Slots::create(&storage, &Record::new(&origin, made.witness.public_key()))?;
    Ok(made)
}

/// Makes a key with this name, and its two files.
fn make_key(
    storage: &dyn Storage,
    name: &str,
    (private, public): (&str, &str),
    rng: &mut dyn Rng,
) -> Result<CosignerKey, Error> {
    let mut seed = Zeroizing::new([0; 32]);
    rng.fill(&mut *seed);
    let wrong = |error| Error::Refused(format!("key name `{name}`: {error}"));
    let key = SignerKey::from_seed(name, &seed).map_err(wrong)?;
    let verifier = Cosigner::from_seed(name, &seed).map_err(wrong)?.verifier().clone();
    let text = Zeroizing::new([key.to_private_text().as_str(), "\n"].concat());
    create(storage, private, text.as_bytes())?;
    create(storage, public, format!("{verifier}\n").as_bytes())?;
    Ok(verifier)
}

fn create(storage: &dyn Storage, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let file = storage.open(name, OpenMode::CreateNew).map_err(disk(name))?;
    file.write_all_at(bytes, 0).and_then(|()| file.sync_data()).map_err(disk(name))?;
    storage.sync_dir("").map_err(disk(name))
}

/// A private key of a folder, by the name of its file.
///
/// # Errors
/// If the file is missing, others may read it, or it is no private key.
pub fn read_key(dir: &Path, name: &str) -> Result<Cosigner, Error> {
    let path = dir.join(name);
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
            audit: false,
            stream: None,
            tls: None,
            api: None,
            peers: Vec::new(),
        }
    }

    #[test]
    fn a_new_folder_is_complete_and_its_key_is_for_its_owner_alone() {
        let work = tempfile::tempdir().expect("a temporary directory");
        let dir = work.path().join("member");
        let api = Api { endpoints: vec!["http://127.0.0.1:3".to_owned()], ca: None, cert: None, key: None };
        let config = || Config { audit: true, api: Some(api.clone()), ..config() };
        let made = init(&dir, &config(), "member.example/w", &mut SimRng::new(1)).expect("a new folder");
        let (key, auditor) = (made.witness, made.auditor.expect("the settings want it"));
        assert_eq!(Config::read(&dir).expect("it was written"), config());
        assert_eq!(read_key(&dir, KEY).expect("it was written").verifier(), &key);
        assert_eq!(read_key(&dir, AUDITOR_KEY).expect("it was written").verifier(), &auditor);
        assert_eq!((auditor.name(), auditor.public_key() == key.public_key()), ("member.example/w/auditor", false));
        for name in [KEY, AUDITOR_KEY] {
            let mode = std::fs::metadata(dir.join(name)).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let again = init(&dir, &config(), "member.example/w", &mut SimRng::new(2)).expect_err("there is one");
        assert!(again.to_string().contains("there already"), "{again}");
        assert_eq!(read_key(&dir, KEY).expect("it stays").verifier(), &key);
        std::fs::set_permissions(dir.join(KEY), std::fs::Permissions::from_mode(0o644)).expect("it is ours");
        assert!(read_key(&dir, KEY).expect_err("others may read it").to_string().contains("chmod 600"));
    }

    #[test]
    fn wrong_settings_are_named_and_no_private_key_is_repeated() {
        let secret = SignerKey::from_seed("w", &[3; 32]).expect("a name").to_private_text().to_string();
        let peer = |vkey: &str| Peer { url: "http://127.0.0.1:2".to_owned(), vkey: vkey.to_owned(), auditor: None };
        let api = Api { endpoints: Vec::new(), ca: None, cert: None, key: None };
        let half = Api { endpoints: vec!["a:1".to_owned()], cert: Some("c".into()), ..api.clone() };
        for (wrong, part) in [
            (Config { ledger_key: secret.clone(), ..config() }, "ledger_key"),
            (Config { logs: Vec::new(), ..config() }, "logs"),
            (Config { logs: vec!["ftp://a".to_owned()], ..config() }, "URL"),
            (Config { peers: vec![peer(&secret)], ..config() }, "vkey"),
            (Config { peers: vec![peer(&config().ledger_key)], ..config() }, "vkey"),
            (Config { audit: true, ..config() }, "[api]"),
            (Config { api: Some(api), ..config() }, "endpoints"),
            (Config { api: Some(half), ..config() }, "`cert`"),
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
