//! The data that the tests stamp, and the programs that stamp it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use coppice_timestamp::{Authority, Moment, Nonce, ObjectIdentifier, Request, Token};
use tempfile::TempDir;

/// The stamped bytes.
pub const DATA: &[u8] = b"a checkpoint of three lines";
pub const POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.99999.1.1");
pub const OTHER_POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.99999.1.2");

/// The SHA-256 of some bytes.
pub fn imprint(data: &[u8]) -> [u8; 32] {
    let mut imprint = [0; 32];
    imprint.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, data).as_ref());
    imprint
}

/// A request for [`DATA`] whose nonce no other request of this run has.
pub fn request() -> Request {
    static LAST: AtomicU64 = AtomicU64::new(0x8000_0000_0000_0000);
    let nonce = LAST.fetch_add(0x0101_0101_0101_0101, Ordering::Relaxed).to_be_bytes();
    Request::new(imprint(DATA), Nonce::new(&nonce).expect("eight bytes"))
}

/// The directory of this package.
pub fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A new directory inside of the build's.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for this test")
}

/// Runs a command that must succeed, and returns what it prints.
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} doesn't start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The authorities that `tests/openssl.sh` makes, once for all tests.
pub struct Bench {
    dir: TempDir,
    /// OpenSSL locks neither its serial numbers nor its list of certificates.
    turn: Mutex<()>,
}

pub fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let dir = scratch();
        run(Command::new(package().join("tests/openssl.sh")).arg(dir.path()));
        Bench { dir, turn: Mutex::new(()) }
    })
}

impl Bench {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn openssl(&self, arguments: &[&str]) -> Vec<u8> {
        run(Command::new("openssl").args(arguments).current_dir(self.dir.path()))
    }

    /// Adds an authority whose certificate expires after this number of seconds.
    pub fn make_brief(&self, seconds: u64) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        run(Command::new(package().join("tests/openssl.sh")).arg(self.dir.path()).arg(seconds.to_string()));
    }

    /// The answer of the authority in this section of `tsa.cnf`.
    pub fn answer(&self, section: &str, request: &Request) -> Vec<u8> {
        let dir = scratch();
        let (query, answer) = (dir.path().join("query"), dir.path().join("answer"));
        fs::write(&query, request.to_der()).expect("the query is written");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("openssl");
        command.args(["ts", "-reply", "-config", "tsa.cnf", "-section", section, "-queryfile"]).arg(query);
        run(command.arg("-out").arg(&answer).current_dir(self.dir.path()));
        fs::read(answer).expect("OpenSSL wrote its answer")
    }

    /// A token of the authority in this section.
    pub fn token(&self, section: &str, request: &Request) -> Token {
        Token::parse(&self.answer(section, request)).unwrap_or_else(|error| panic!("{section}: {error}"))
    }

    /// An authority with this root, that knows the certificates of one signer.
    pub fn authority(&self, root: &str, signer: &str) -> Authority {
        let authority = Authority::new(&self.read(&format!("{root}.pem"))).expect("a root");
        authority.with_certificates(&self.read(&format!("chain-{signer}.pem"))).expect("a chain")
    }

    /// Signs a token's statement by another certificate, and with these flags of `openssl cms`.
    pub fn sign(&self, token: &Token, signer: &str, flags: &[&str]) -> Vec<u8> {
        let dir = scratch();
        let (old, content, new) = (dir.path().join("old"), dir.path().join("content"), dir.path().join("new"));
        fs::write(&old, token.as_der()).expect("the token is written");
        let mut command = Command::new("openssl");
        command.args(["cms", "-verify", "-noverify", "-nosigs", "-inform", "DER", "-in"]).arg(&old);
        run(command.arg("-out").arg(&content));
        let (certificate, key) = (self.path(&format!("{signer}.pem")), self.path(&format!("{signer}.key")));
        let mut command = Command::new("openssl");
        command.args(["cms", "-sign", "-nodetach", "-binary", "-nosmimecap", "-outform", "DER"]);
        command.args(["-econtent_type", "1.2.840.113549.1.9.16.1.4", "-md", "sha256"]);
        command.arg("-signer").arg(certificate).arg("-inkey").arg(key).args(flags).arg("-in").arg(content);
        run(command.arg("-out").arg(&new).current_dir(self.dir.path()));
        fs::read(new).expect("OpenSSL wrote the token")
    }
}

/// The verdict of `openssl ts -verify` on a token over [`DATA`]: its own words if it refuses.
pub fn openssl_verifies(token: &Token, root: &Path, chain: &Path, at: Option<Moment>) -> Result<(), String> {
    let dir = scratch();
    let (data, response) = (dir.path().join("checkpoint"), dir.path().join("token.tsr"));
    fs::write(&data, DATA).expect("the data is written");
    fs::write(&response, token.to_response()).expect("the response is written");
    let mut command = Command::new("openssl");
    command.args(["ts", "-verify", "-data"]).arg(data).arg("-in").arg(response);
    command.arg("-CAfile").arg(root).arg("-untrusted").arg(chain);
    if let Some(at) = at {
        command.arg("-attime").arg(at.seconds().to_string());
    }
    let output = command.output().expect("openssl is installed");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
