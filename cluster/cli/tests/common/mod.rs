//! Helpers of the tests that run the command: a `coppice dev` process, other commands, real and
//! generated histories, and the replay of a history.
#![expect(dead_code, reason = "each test binary uses a part of it")]

pub mod page;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use coppice_env::{Rng, SimRng};
use flate2::read::GzDecoder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longest time for anything before a test fails.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn coppice() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coppice"));
    command.env_remove("COPPICE_ENDPOINT").stdin(Stdio::null());
    command
}

/// The exit code and the output of a command that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// The one object on standard output.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The objects on standard output, one per line.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// The error object on standard error.
    pub fn error(&self) -> Value {
        let line = self
            .stderr
            .lines()
            .find(|line| line.starts_with("{\"error\""))
            .unwrap_or_else(|| panic!("no error object: {self:?}"));
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))["error"].clone()
    }

    /// Fails the test unless the command ended with this code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Runs a command to its end, within a limit.
pub fn run(command: &mut Command) -> Done {
    let shown = format!("{command:?}");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command can be run");
    Running::new(child, shown).finish(LIMIT)
}

/// A running command whose output is collected.
pub struct Running {
    child: Child,
    shown: String,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    pub fn new(mut child: Child, shown: String) -> Self {
        let stdout = collect(child.stdout.take().expect("it is piped"));
        let stderr = collect(child.stderr.take().expect("it is piped"));
        Self { child, shown, stdout, stderr }
    }

    /// Waits for the end of the command. Returns `None` if it still runs after `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> Option<Done> {
        match self.stdout.recv_timeout(limit) {
            Ok(stdout) => {
                let stderr = self.stderr.recv_timeout(LIMIT).unwrap_or_default();
                let status = self.child.wait().expect("it is our child");
                Some(Done { code: status.code().unwrap_or(-1), stdout, stderr })
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(error) => panic!("{}: {error}", self.shown),
        }
    }

    /// Waits for the end of the command, and fails the test after `limit`.
    pub fn finish(mut self, limit: Duration) -> Done {
        let done = self.ends_within(limit);
        done.unwrap_or_else(|| panic!("still running after {limit:?}: {}", self.shown))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends the output.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// A running `coppice dev`.
pub struct Dev {
    child: Child,
    ended: Receiver<String>,
    pub endpoint: String,
    pub dir: PathBuf,
}

/// Options for a cluster so small that a short history spans shards, freezes trees and merges them.
pub fn small_shape(split: &str) -> Vec<String> {
    ["--split", split, "--replicas", "3", "--partition-capacity", "128"].map(str::to_owned).to_vec()
}

impl Dev {
    /// Starts a cluster on a directory and waits until it serves.
    pub fn start(dir: &Path, shape: &[String]) -> Self {
        Self::try_start(dir, shape).unwrap_or_else(|done| panic!("no ready line: {done:?}"))
    }

    /// Starts a cluster. If it ends before it serves, returns its exit code and output as the
    /// error.
    pub fn try_start(dir: &Path, shape: &[String]) -> Result<Self, Done> {
        let log = dir.with_extension("log");
        let stderr =
            fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log file next to the directory");
        let mut command = coppice();
        // Every cluster has its own port: clients of a stopped cluster must not reach that of
        // another test.
        if !shape.iter().any(|option| option == "--listen") {
            command.args(["dev", "--listen", "127.0.0.1:0"]);
        } else {
            command.arg("dev");
        }
        command.arg("--data-dir").arg(dir).args(shape).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the command can be run");
        let (lines, ready) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
            let _ = end.send(String::new());
        });
        let limit = LIMIT;
        loop {
            match ready.recv_timeout(limit) {
                Ok(line) => {
                    if let Some(endpoint) = line.strip_prefix("ready ") {
                        let endpoint = endpoint.to_owned();
                        return Ok(Self { child, ended, endpoint, dir: dir.to_owned() });
                    }
                }
                Err(_) => {
                    let _ = child.kill();
                    let status = child.wait().expect("it is our child");
                    let stderr = fs::read_to_string(&log).unwrap_or_default();
                    return Err(Done { code: status.code().unwrap_or(-1), stdout: String::new(), stderr });
                }
            }
        }
    }

    /// A command for this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = coppice();
        command.env("COPPICE_ENDPOINT", &self.endpoint).args(arguments);
        command
    }

    /// Runs a command for this cluster.
    pub fn run(&self, arguments: &[&str]) -> Done {
        run(&mut self.command(arguments))
    }

    /// Starts a command for this cluster.
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let shown = format!("{command:?}");
        Running::new(
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command can be run"),
            shown,
        )
    }

    /// The head as an object.
    pub fn head(&self) -> Value {
        self.run(&["head", "--json"]).expect(0).json()
    }

    /// The version of the head.
    pub fn version(&self) -> u64 {
        self.head()["version"].as_u64().expect("a version")
    }

    /// The public key's file, as an argument.
    pub fn vkey(&self) -> String {
        format!("@{}", self.dir.join("ledger.vkey").display())
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("it is our child");
    }

    fn wait(mut self) -> ExitStatus {
        assert!(self.ended.recv_timeout(LIMIT).is_ok(), "coppice dev does not end");
        self.child.wait().expect("it is our child")
    }

    /// Ends the process as Ctrl-C does.
    pub fn stop(self) {
        self.signal(Signal::INT);
        let log = self.dir.with_extension("log");
        let status = self.wait();
        assert!(status.success(), "{status}: {}", fs::read_to_string(log).unwrap_or_default());
    }

    /// Ends the process as a power failure would, although the disks keep what was written.
    pub fn kill(self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that `fsck` of a directory finds nothing.
pub fn assert_sound(dir: &Path) {
    run(coppice().arg("fsck").arg(dir)).expect(0);
}

/// One version of a history.
#[derive(Clone, Debug)]
pub struct Line {
    pub text: String,
    pub puts: Vec<(String, String)>,
    pub deletes: Vec<String>,
    pub hex: bool,
}

/// A file of the shared data folder; `None`, with a message, if there is no such folder.
pub fn shared(name: &str) -> Option<PathBuf> {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = above.map(|dir| dir.join("shared/data").join(name)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("NOT TESTED ON REAL DATA: there is no shared/data/{name} above this package; generated data instead");
    }
    found
}

/// Reads a gzipped file of JSON lines.
pub fn read_history(path: &Path) -> Vec<Line> {
    let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| parse(&line.expect("a gzipped file"))).collect()
}

fn parse(text: &str) -> Line {
    let value: Value = serde_json::from_str(text).expect("a JSON line");
    let string = |value: &Value| value.as_str().expect("a string").to_owned();
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    Line {
        text: text.to_owned(),
        puts: list("put").iter().map(|pair| (string(&pair[0]), string(&pair[1]))).collect(),
        deletes: list("delete").iter().map(string).collect(),
        hex: value["encoding"] == "hex",
    }
}

/// A history of accounts: `lines` versions over `keys` keys, some of which are deleted again.
pub fn generated(seed: u64, lines: u64, keys: u64) -> Vec<Line> {
    let mut rng = SimRng::new(seed);
    let mut history = Vec::new();
    for number in 0..lines {
        let mut puts = BTreeMap::new();
        for _ in 0..=rng.below(12) {
            let len = if rng.chance(50) { 3000 } else { rng.below(60) };
            let value: String =
                (0..len).map(|_| char::from(b'a' + u8::try_from(rng.below(26)).expect("a letter"))).collect();
            puts.insert(format!("account/{:05}", rng.below(keys)), value);
        }
        let delete = format!("account/{:05}", rng.below(keys));
        let deletes = if puts.contains_key(&delete) { Vec::new() } else { vec![delete] };
        let puts: Vec<(String, String)> = puts.into_iter().collect();
        let text = serde_json::json!({ "note": format!("line {number}"), "put": puts, "delete": deletes }).to_string();
        history.push(Line { text, puts, deletes, hex: false });
    }
    history
}

/// Writes a history as a file of JSON lines.
pub fn write_history(path: &Path, history: &[Line]) {
    let text: String = history.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect();
    fs::write(path, text).expect("a file can be written");
}

/// The state after each version, in order; version v is at v - 1.
pub fn replay(history: &[Line]) -> Vec<BTreeMap<String, String>> {
    let mut state = BTreeMap::new();
    let step = |line: &Line| {
        state.extend(line.puts.iter().cloned());
        for key in &line.deletes {
            state.remove(key);
        }
        state.clone()
    };
    history.iter().map(step).collect()
}
