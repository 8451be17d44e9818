//! Helpers of the tests: a `coppice dev` process, and a relay that breaks connections to it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod ethereum;

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use coppice_revm::{Chain, Options};
use coppice_verify::note::VerifierKey;
use tempfile::TempDir;

/// Longest time until a ledger is ready.
const START_MAX: Duration = Duration::from_secs(60);

/// The `coppice` command: that of `COPPICE_BIN`, or else the debug build of the repository.
fn coppice() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/debug/coppice");
    let bin = env::var_os("COPPICE_BIN").map_or(built, PathBuf::from);
    assert!(bin.is_file(), "these tests need the coppice command: `make build`, or COPPICE_BIN; {bin:?} is none");
    bin
}

/// Splits for four shards: accounts lie in the first two, slots in the last two.
pub const FOUR_SHARDS: [&str; 3] = ["0x6574682f6180", "0x6574682f73", "0x6574682f7380"];

/// A `coppice dev` of a test.
pub struct Ledger {
    directory: TempDir,
    splits: Vec<String>,
    process: Child,
    pub endpoint: String,
}

impl Ledger {
    pub fn start(splits: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let splits = splits.iter().map(|split| (*split).to_owned()).collect::<Vec<_>>();
        let (process, endpoint) = run(directory.path(), &splits, "127.0.0.1:0");
        Self { directory, splits, process, endpoint }
    }

    pub fn address(&self) -> &str {
        self.endpoint.trim_start_matches("http://")
    }

    /// Kills the ledger, and runs it again at the same address.
    pub fn restart(&mut self) {
        self.kill();
        (self.process, self.endpoint) = run(self.directory.path(), &self.splits, self.address());
    }

    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        self.process.wait().expect("it is our child");
    }

    /// The settings of a client that trusts the ledger, at another endpoint of it or at its own.
    pub fn client_at(&self, endpoint: &str) -> coppice_client::Options {
        let key = fs::read_to_string(self.directory.path().join("ledger.vkey")).expect("the ledger's key");
        let trust = Some(VerifierKey::parse(key.trim()).expect("a key"));
        coppice_client::Options { trust, ..coppice_client::Options::new(endpoint) }
    }

    pub fn options(&self) -> Options {
        Options::new(self.client_at(&self.endpoint))
    }

    pub fn open(&self) -> Chain {
        Chain::open(self.options()).expect("a chain")
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(directory: &Path, splits: &[String], listen: &str) -> (Child, String) {
    let mut command = Command::new(coppice());
    command.args(["dev", "--replicas", "1", "--listen", listen, "--data-dir"]).arg(directory);
    let shards = if splits.is_empty() { vec!["--shards".to_owned(), "1".to_owned()] } else { Vec::new() };
    command.args(shards).args(splits.iter().flat_map(|split| ["--split".to_owned(), split.clone()]));
    command.env_remove("COPPICE_ENDPOINT").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("the ledger can be run");
    let output = process.stdout.take().expect("it is piped");
    let (sender, ready) = mpsc::channel();
    thread::spawn(move || {
        // Nobody waits for the lines behind the first endpoint.
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(endpoint) = line.strip_prefix("ready ") {
                let _ = sender.send(endpoint.to_owned());
            }
        }
    });
    let endpoint = ready.recv_timeout(START_MAX);
    if endpoint.is_err() {
        let _ = process.kill();
    }
    (process, endpoint.expect("the ledger is ready in time"))
}

/// Passes connections on to a ledger, and breaks each after so many bytes of answers.
pub struct Cutter {
    pub endpoint: String,
    /// Number of connections that were broken.
    pub cuts: Arc<AtomicU64>,
}

impl Cutter {
    /// `after` gives the number of bytes for a new connection from the number of those that were
    /// broken.
    pub fn start(ledger: &Ledger, after: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (to, cuts, after) = (ledger.address().to_owned(), Arc::<AtomicU64>::default(), Arc::new(after));
        let count = cuts.clone();
        // The thread waits for connections until the tests end.
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let (count, after) = (count.clone(), after.clone());
                let asks = (caller.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
                thread::spawn(move || pass(asks.0, asks.1, u64::MAX));
                thread::spawn(move || {
                    if pass(server, caller, after(count.load(Ordering::Relaxed))) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { endpoint, cuts }
    }
}

/// Copies bytes until one side ends, or until there were so many. Returns whether there were.
fn pass(mut from: TcpStream, mut to: TcpStream, most: u64) -> bool {
    let (mut left, mut buffer) = (most, [0; 16_384]);
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match from.read(&mut buffer[..part]) {
            Ok(read) if read > 0 && to.write_all(&buffer[..read]).is_ok() => left -= read as u64,
            _ => break,
        }
    }
    // The other side may have closed it already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    left == 0
}
