//! `kubectl coppice`: this program under the name `kubectl-coppice`, as a plugin of kubectl.
//!
//! A command finds a ledger by its `LedgerCluster`, takes a client's certificate from a secret of
//! it, forwards a port of this machine to its coordinators, and runs `coppice` with these. kubectl
//! does all that needs the API server, so contexts, users and rights are those of kubectl.
//!
//! Invariants: certificates lie in a folder of their own that only its owner can read, and that
//! goes with the command. No name becomes an option of kubectl. Answers are bounded in length and
//! time.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command as Process, ExitCode, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    failure::{Code, Failure},
    files,
    output::{self, line},
    text::safe,
};

/// The name under which kubectl finds the plugin.
pub const NAME: &str = "kubectl-coppice";
/// Longest answer of kubectl, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Longest message of kubectl that is repeated, in bytes.
const MESSAGE_BYTES_MAX: u64 = 4 << 10;
/// Longest wait until a port is forwarded.
const FORWARD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a command may take to end after Ctrl-C.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// The port of coordinators for clients.
const CLIENT_PORT: u16 = 7411;

const AFTER: &str = "Any other command is one of `coppice`, for this ledger: `kubectl coppice get KEY` reads a record whose proof is \
                     checked with the ledger's key, as the LedgerCluster states it. Options of the plugin come before it.\n\n\
                     Exit codes: those of `coppice`; 1 also if a ledger is not ready, 4 if kubectl fails.";

/// Looks at the ledgers of a Kubernetes cluster, and runs commands on one of them.
#[derive(Debug, Parser)]
#[command(name = "kubectl coppice", bin_name = "kubectl coppice", version, after_help = AFTER)]
struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

/// The ledger that is meant, and the client that the command is.
#[derive(Clone, Debug, Args)]
struct Target {
    /// The namespace of the ledger [default: kubectl's].
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// The context of kubectl.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The settings of kubectl.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The name of the `LedgerCluster` [default: the only one of the namespace].
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// The role whose certificate is shown.
    #[arg(long, global = true, value_enum, default_value_t = Role::Reader)]
    role: Role,
    /// A secret with ca.crt, tls.crt and tls.key, in place of the role's.
    #[arg(long, global = true, value_name = "NAME")]
    secret: Option<String>,
    /// Print one JSON object per result; errors too, to standard error.
    #[arg(long, global = true)]
    json: bool,
}

/// Roles of clients for which the operator makes certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Reader,
    Writer,
    Operator,
    Auditor,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the ledgers of the namespace, or one, as the operator reports them. Exit code 1 if one
    /// is not ready.
    Status {
        /// The name of the `LedgerCluster`
        name: Option<String>,
        /// Those of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Forward a port of this machine to the coordinators until Ctrl-C, and print the variables
    /// with which `coppice` and other clients use it.
    PortForward {
        /// The port of this machine [default: a free one]
        #[arg(long, value_name = "PORT", default_value_t = 0)]
        port: u16,
    },
    /// Any command of `coppice`.
    #[command(external_subcommand)]
    Coppice(Vec<OsString>),
}

/// Whether the program was called by the plugin's name.
#[must_use]
pub fn is_called(program: Option<&OsString>) -> bool {
    program.and_then(|program| std::path::Path::new(program).file_stem()).is_some_and(|stem| stem == NAME)
}

/// Runs the plugin.
#[must_use]
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // If the terminal is gone, nobody is left to tell.
            let _ = error.print();
            return ExitCode::from(if asked { 0 } else { Code::Usage as u8 });
        }
    };
    let target = &arguments.target;
    let done = match &arguments.command {
        Command::Status { name, all_namespaces } => target.status(name.as_deref(), *all_namespaces),
        Command::PortForward { port } => target.forward(*port),
        Command::Coppice(words) => return finish(target.coppice(words), target.json),
    };
    finish(done.map(|()| 0), target.json)
}

fn finish(done: Result<u8, Failure>, json: bool) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::failure(&failure, json);
            ExitCode::from(failure.code as u8)
        }
    }
}

/// A forwarded port, and everything else that a client needs. It ends when it is dropped.
struct Connection {
    kubectl: Child,
    endpoint: String,
    vkey: String,
    /// The folder with `ca.crt`, `tls.crt` and `tls.key`; `None` if connections are not encrypted.
    files: Option<TempDir>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

impl Connection {
    /// The variables of `coppice`, those without a value among them.
    fn variables(&self) -> [(&'static str, Option<String>); 5] {
        let file = |name: &str| self.files.as_ref().map(|dir| dir.path().join(name).to_string_lossy().into_owned());
        [
            ("COPPICE_ENDPOINT", Some(self.endpoint.clone())),
            ("COPPICE_TRUST", Some(self.vkey.clone())),
            ("COPPICE_CA", file("ca.crt")),
            ("COPPICE_CLIENT_CERT", file("tls.crt")),
            ("COPPICE_CLIENT_KEY", file("tls.key")),
        ]
    }
}

impl Target {
    /// A call of kubectl for this target.
    fn kubectl(&self) -> Process {
        let mut kubectl = Process::new("kubectl");
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Values follow `=`, so that none is taken for an option.
        kubectl.args(self.namespace.as_ref().map(|name| format!("--namespace={name}")));
        kubectl.args(self.context.as_ref().map(|name| format!("--context={name}")));
        if let Some(file) = &self.kubeconfig {
            let mut word = OsString::from("--kubeconfig=");
            word.push(file);
            kubectl.arg(word);
        }
        kubectl
    }

    /// Reads an object or a list.
    fn ask(&self, words: &[&str]) -> Result<Value, Failure> {
        let mut child = start(self.kubectl().arg("get").args(words).args(["-o", "json", "--request-timeout=30s"]))?;
        let message = told(&mut child);
        let mut answer = Vec::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = stdout.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer);
        if read.is_err() || answer.len() as u64 > ANSWER_BYTES_MAX {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::new(Code::Unavailable, "kubectl's answer could not be read, or is too long"));
        }
        let status = child.wait().map_err(|error| unavailable(&error.to_string()))?;
        if !status.success() {
            return Err(refused(status, &message.recv().unwrap_or_default()));
        }
        serde_json::from_slice(&answer).map_err(|error| unavailable(&format!("its answer is no JSON: {error}")))
    }

    /// The `LedgerCluster` that is meant.
    fn ledger(&self) -> Result<Value, Failure> {
        if let Some(name) = &self.cluster {
            return self.ask(&["ledgerclusters.coppice.dev", checked(name)?]);
        }
        let list = self.ask(&["ledgerclusters.coppice.dev"])?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = items.iter().map(|item| safe(name_of(item))).collect();
        match <[Value; 1]>::try_from(items) {
            Ok([one]) => Ok(one),
            Err(items) if items.is_empty() => {
                let failure = Failure::new(Code::NotFound, "there is no LedgerCluster in this namespace");
                Err(failure.hint("Name another namespace with -n; `kubectl coppice status -A` shows all ledgers."))
            }
            Err(_) => {
                let failure = Failure::usage(format!("there are several LedgerClusters: {}", names.join(", ")));
                Err(failure.hint("Name one with --cluster."))
            }
        }
    }

    fn status(&self, name: Option<&str>, everywhere: bool) -> Result<(), Failure> {
        let clusters = match name.or(self.cluster.as_deref()) {
            Some(name) => vec![self.ask(&["ledgerclusters.coppice.dev", checked(name)?])?],
            None => {
                let mut words = vec!["ledgerclusters.coppice.dev"];
                words.extend(everywhere.then_some("--all-namespaces"));
                self.ask(&words)?["items"].as_array().cloned().unwrap_or_default()
            }
        };
        if clusters.is_empty() {
            return Err(Failure::new(Code::NotFound, "there is no LedgerCluster here")
                .hint("`kubectl coppice status -A` shows those of all namespaces."));
        }
        for cluster in &clusters {
            if self.json {
                output::object(&shown(cluster))?;
            } else {
                line(&coppice_types::escape::guard_but(&described(cluster), &['\n']))?;
            }
        }
        match clusters.iter().all(is_ready) {
            true => Ok(()),
            false => Err(Failure::new(Code::NotFound, "").silent()),
        }
    }

    /// Connects to the coordinators, from a port of this machine; 0 takes a free one.
    fn connect(&self, port: u16) -> Result<Connection, Failure> {
        let ledger = self.ledger()?;
        let name = checked(name_of(&ledger))?;
        let Some(vkey) = ledger["status"]["vkey"].as_str().map(str::to_owned) else {
            let failure = Failure::new(Code::Unavailable, format!("the ledger {name} has no key yet"));
            return Err(failure.hint("`kubectl coppice status` says what it waits for."));
        };
        let plaintext = ledger["spec"]["tls"]["plaintext"] == true;
        let files = if plaintext { None } else { Some(self.certificate(name)?) };
        let local = if port == 0 { String::new() } else { port.to_string() };
        let (service, ports) = (format!("service/{name}"), format!("{local}:{CLIENT_PORT}"));
        let mut kubectl = start(self.kubectl().args(["port-forward", "--address=127.0.0.1", &service, &ports]))?;
        let message = told(&mut kubectl);
        let lines = BufReader::new(kubectl.stdout.take().expect("it is piped")).lines();
        let mut connection = Connection { kubectl, endpoint: String::new(), vkey, files };
        let (sender, receiver) = mpsc::channel();
        // The lines are read until the end: kubectl writes one for each connection.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Once the port is known, nobody listens any more.
                let _ = sender.send(forwarded(&line));
            }
        });
        let port = loop {
            match receiver.recv_timeout(FORWARD_PATIENCE) {
                Ok(Some(port)) => break port,
                Ok(None) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(unavailable("no port was forwarded within 30 s"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = connection.kubectl.wait().map_err(|error| unavailable(&error.to_string()))?;
                    return Err(refused(status, &message.recv().unwrap_or_default()));
                }
            }
        };
        // The coordinators' certificates name this host.
        connection.endpoint = format!("{}://localhost:{port}", if plaintext { "http" } else { "https" });
        Ok(connection)
    }

    /// Writes the files of a client's secret.
    fn certificate(&self, name: &str) -> Result<TempDir, Failure> {
        let role = self.role.to_possible_value().expect("every role has a name").get_name().to_owned();
        let secret = self.secret.clone().unwrap_or_else(|| format!("{name}-{role}-tls"));
        let object = self.ask(&["secret", checked(&secret)?])?;
        let dir = files::private_dir().map_err(|error| unavailable(&error.to_string()))?;
        for file in ["ca.crt", "tls.crt", "tls.key"] {
            let bytes = object["data"][file].as_str().and_then(|text| STANDARD.decode(text).ok());
            let Some(bytes) = bytes else {
                let message = format!("secret {} has no {file}", safe(&secret));
                return Err(Failure::new(Code::Unavailable, message).hint("Name a client's secret with --secret."));
            };
            files::create(&dir.path().join(file), &bytes, files::PRIVATE)?;
        }
        Ok(dir)
    }

    fn forward(&self, port: u16) -> Result<(), Failure> {
        let stops = Stops::listen()?;
        let mut connection = self.connect(port)?;
        let variables = connection.variables();
        let set = variables.iter().filter_map(|(name, value)| Some((*name, value.clone()?)));
        if self.json {
            let fields = set.map(|(name, value)| (name.to_owned(), Value::String(value)));
            output::object(&json!({ "event": "ready", "variables": fields.collect::<serde_json::Map<_, _>>() }))?;
        } else {
            for (name, value) in set {
                line(&format!("export {name}='{}'", safe(&value).replace('\'', r"'\''")))?;
            }
        }
        let ended = stops.wait(&mut connection.kubectl)?;
        match ended {
            None => Ok(()),
            Some(status) => Err(refused(status, "the port is no longer forwarded")),
        }
    }

    /// Runs a command of `coppice`; returns its exit code.
    fn coppice(&self, words: &[OsString]) -> Result<u8, Failure> {
        let stops = Stops::listen()?;
        let connection = self.connect(0)?;
        let program = std::env::current_exe().map_err(|error| unavailable(&error.to_string()))?;
        let mut command = Process::new(program);
        command.arg0("coppice").args(self.json.then_some("--json")).args(words);
        for (name, value) in connection.variables() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn().map_err(|error| unavailable(&error.to_string()))?;
        let ended = stops.wait(&mut child)?;
        let code = ended.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
        Ok(code.unwrap_or(Code::Unavailable as u8))
    }
}

fn start(command: &mut Process) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let failure = Failure::usage(format!("kubectl can't be run: {error}"));
        failure.hint("The plugin needs kubectl in PATH.")
    })
}

/// Collects what a child says on standard error, up to a limit.
fn told(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let mut stderr = child.stderr.take().expect("it is piped");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends the message.
        let _ = (&mut stderr).take(MESSAGE_BYTES_MAX).read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    });
    receiver
}

/// Waits for the end of a child, or for Ctrl-C or SIGTERM. From its making on, these no longer end
/// this process, which has files of a client to remove.
struct Stops {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
    ends: Signal,
}

impl Stops {
    fn listen() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| unavailable(&error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let inside = runtime.enter();
        let of = |kind| signal(kind).map_err(failed);
        let (interrupt, terminate) = (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
        let ends = of(SignalKind::child())?;
        drop(inside);
        Ok(Self { runtime, interrupt, terminate, ends })
    }

    /// The status of a child that has ended. A child that does not follow a signal soon is killed;
    /// `None` then.
    fn wait(self, child: &mut Child) -> Result<Option<ExitStatus>, Failure> {
        let Self { runtime, mut interrupt, mut terminate, mut ends } = self;
        let ended: std::io::Result<Option<ExitStatus>> = runtime.block_on(async {
            let mut limit: Option<tokio::time::Instant> = None;
            loop {
                if let Some(status) = child.try_wait()? {
                    return Ok(limit.is_none().then_some(status));
                }
                let until = limit;
                let patience = async move {
                    match until {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    // A terminal tells the child, too.
                    _ = interrupt.recv() => {
                        limit.get_or_insert(tokio::time::Instant::now() + END_PATIENCE);
                    }
                    _ = terminate.recv() => limit = Some(tokio::time::Instant::now()),
                    _ = ends.recv() => {}
                    () = patience => return Ok(None),
                }
            }
        });
        let ended = ended.map_err(|error| unavailable(&error.to_string()))?;
        if ended.is_none() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(ended)
    }
}

/// The port in kubectl's words `Forwarding from 127.0.0.1:PORT -> 7411`.
fn forwarded(line: &str) -> Option<u16> {
    line.strip_prefix("Forwarding from 127.0.0.1:")?.split_once(" -> ")?.0.parse().ok()
}

fn unavailable(what: &str) -> Failure {
    Failure::new(Code::Unavailable, format!("kubectl: {}", safe(what)))
}

/// A failure of kubectl, in its own words.
fn refused(status: ExitStatus, message: &str) -> Failure {
    let words = message.trim();
    let words = if words.is_empty() { format!("it ended with {status}") } else { words.to_owned() };
    let failure = Failure { message: format!("kubectl: {}", safe(&words)), ..Failure::new(Code::Unavailable, "") };
    if words.contains("the server doesn't have a resource type") {
        return Failure { code: Code::NotFound, ..failure }.hint("The operator's chart brings the resource types.");
    }
    if words.contains("(NotFound)") {
        return Failure { code: Code::NotFound, ..failure };
    }
    failure
}

/// Checks that a name is one of an object: nothing else may stand among the words for kubectl.
fn checked(name: &str) -> Result<&str, Failure> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && name.len() <= 253 && name.bytes().all(fits) {
        return Ok(name);
    }
    Err(Failure::usage(format!("{:?} is not the name of an object", safe(name))))
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// A condition's status and message.
fn condition<'a>(cluster: &'a Value, kind: &str) -> (&'a str, &'a str) {
    let mut conditions = cluster["status"]["conditions"].as_array().into_iter().flatten();
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    conditions
        .find(|condition| condition["type"] == kind)
        .map_or(("Unknown", "the operator has not reported yet"), |it| (text(&it["status"]), text(&it["message"])))
}

fn is_ready(cluster: &Value) -> bool {
    condition(cluster, "Ready").0 == "True"
}

/// The object of a ledger's status.
fn shown(cluster: &Value) -> Value {
    let (metadata, status) = (&cluster["metadata"], &cluster["status"]);
    json!({
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": is_ready(cluster),
        "message": condition(cluster, "Ready").1,
        "status": status,
    })
}

/// A ledger's status in a few lines.
fn described(cluster: &Value) -> String {
    let (metadata, status) = (&cluster["metadata"], &cluster["status"]);
    let text = |value: &Value| safe(value.as_str().unwrap_or("?"));
    let (_, message) = condition(cluster, "Ready");
    let ready = if is_ready(cluster) { "ready".to_owned() } else { format!("NOT READY: {}", safe(message)) };
    let mut lines = vec![format!("{}/{}: {ready}", text(&metadata["namespace"]), text(&metadata["name"]))];
    if let Some(head) = status["head"].as_object() {
        lines.push(format!(
            "version {} of epoch {}, root {}",
            head["version"],
            head["epoch"],
            text(&head["stateRoot"])
        ));
    }
    let counts = ["nodes", "readers", "coordinators"].iter().filter_map(|of| Some((of, status[of].as_str()?)));
    let counts: Vec<String> = counts.map(|(of, count)| format!("{of} {}", safe(count))).collect();
    if !counts.is_empty() {
        lines.push(counts.join(", "));
    }
    if let ("False", words) = condition(cluster, "ReadersReady") {
        lines.push(safe(words));
    }
    if let ("True", words) = condition(cluster, "Progressing") {
        lines.push(safe(words));
    }
    for group in status["groups"].as_array().into_iter().flatten() {
        let led =
            group["leader"].as_str().map_or_else(|| "no leader".to_owned(), |node| format!("led by {}", safe(node)));
        let note = group["note"].as_str().map_or_else(String::new, |note| format!("; {}", safe(note)));
        lines.push(format!("{}: {led}{note}", text(&group["name"])));
    }
    for (name, value) in [("endpoint", &status["endpoint"]), ("key", &status["vkey"])] {
        lines.extend(value.as_str().map(|value| format!("{name} {}", safe(value))));
    }
    lines.join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_called_by_its_name_alone() {
        let called = |program: &str| is_called(Some(&OsString::from(program)));
        assert!(called("kubectl-coppice") && called("/usr/local/bin/kubectl-coppice") && called("kubectl-coppice.exe"));
        assert!(!called("coppice") && !called("/kubectl-coppice/coppice") && !is_called(None));
    }

    #[test]
    fn no_name_becomes_an_option() {
        for name in ["ledger", "a.b-c", "0"] {
            assert_eq!(checked(name).map_err(|failure| failure.message), Ok(name));
        }
        for name in ["", "-A", "--token=x", "a/b", "a b", "A", "a\n"] {
            assert_eq!(checked(name).map_err(|failure| failure.code), Err(Code::Usage), "{name:?}");
        }
    }

    #[test]
    fn a_port_is_read_from_kubectls_words() {
        assert_eq!(forwarded("Forwarding from 127.0.0.1:40123 -> 7411"), Some(40123));
        for other in [
            "Forwarding from [::1]:40123 -> 7411",
            "Handling connection for 40123",
            "",
            "Forwarding from 127.0.0.1:x -> 7411",
        ] {
            assert_eq!(forwarded(other), None);
        }
    }

    #[test]
    fn a_status_shows_what_is_wrong_and_no_control_character() {
        let cluster = json!({
            "metadata": { "namespace": "bank", "name": "ledger" },
            "status": {
                "conditions": [
                    { "type": "Ready", "status": "False", "message": "ledger-node-1 \u{1b}[2J does not start" },
                    { "type": "Progressing", "status": "True", "message": "waits" },
                    { "type": "ReadersReady", "status": "False", "message": "ledger-reader-0 is not ready yet" },
                ],
                "head": { "epoch": 1, "version": 42, "stateRoot": "ab" },
                "nodes": "2/3", "readers": "0/1", "coordinators": "2/2",
                "groups": [{ "name": "root", "leader": "ledger-node-0", "note": "not voting: ledger-node-1" }, { "name": "shard-0" }],
                "vkey": "coppice/1+2+3",
            },
        });
        assert!(!is_ready(&cluster));
        let text = described(&cluster);
        let expected = [
            "bank/ledger: NOT READY: ledger-node-1 ",
            "version 42 of epoch 1, root ab",
            "nodes 2/3, readers 0/1, coordinators 2/2",
            "ledger-reader-0 is not ready yet",
            "root: led by ledger-node-0; not voting: ledger-node-1",
            "shard-0: no leader",
            "key coppice/1+2+3",
        ];
        for words in expected {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(shown(&cluster)["ready"], false);
        let new = json!({ "metadata": { "namespace": "bank", "name": "new" } });
        assert_eq!(described(&new), "bank/new: NOT READY: the operator has not reported yet");
    }
}
