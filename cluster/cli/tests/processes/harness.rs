//! A cluster of real processes on the loopback interface: three nodes, and one coordinator with an
//! embedded metadata store.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use coppice_env::{Clock, SystemClock};
use coppice_metadata::testing::Etcd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{self, Done, LIMIT, Running};

/// Time between two checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// A binary in the directory of the `coppice` command.
pub fn binary(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_coppice")).with_file_name(name);
    assert!(path.is_file(), "{}: not there; `make build` or `cargo test --workspace` makes it", path.display());
    path
}

/// Waits until `look` finds something, within the limit of all tests.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let (pause, nothing) = std::sync::mpsc::channel::<()>();
    for _ in 0..LIMIT.as_millis() / LOOK.as_millis() {
        if let Some(found) = look() {
            return found;
        }
        // Nobody sends on this channel: it only waits.
        let _ = nothing.recv_timeout(LOOK);
    }
    drop(pause);
    panic!("{what}: not within {LIMIT:?}");
}

/// The first of `count` consecutive ports that are all free now.
pub fn free_row(count: u16) -> u16 {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Tests that run at the same time start their search at different ports, below those that the
    // system hands out.
    let first = 10_000 + u16::try_from(std::process::id() % 400).expect("a small number") * 50;
    let mut rows = (0..400).map(|row| 10_000 + (first - 10_000 + row * 50) % 20_000);
    rows.find(|row| (*row..row + count).all(|port| free(&port))).expect("there are free ports")
}

/// Ports that are free now.
fn free_ports(count: usize) -> Vec<u16> {
    let listen = |_| TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    let held: Vec<TcpListener> = (0..count).map(listen).collect();
    held.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect()
}

/// A process of the cluster, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where the process's part of the log file begins.
    from: usize,
}

impl Process {
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> Self {
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log file");
        let from = file.metadata().expect("it is open").len();
        let clone = file.try_clone().expect("it is open");
        let child = command.stdin(Stdio::null()).stdout(clone).stderr(file).spawn().expect("the binary can be run");
        Self { name: name.to_owned(), child, log, from: usize::try_from(from).expect("a log is short") }
    }

    /// The log since the process was started.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).expect("it was made");
        String::from_utf8_lossy(&bytes[self.from..]).into_owned()
    }

    /// Waits for words in the log.
    pub fn says(&mut self, words: &str) {
        self.says_times(1, words);
    }

    /// Waits until the log has the words this many times.
    pub fn says_times(&mut self, times: usize, words: &str) {
        until(&format!("{} says {words:?} {times} times", self.name), || {
            let log = self.log();
            if log.matches(words).count() >= times {
                return Some(());
            }
            let ended = self.child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "{} ended with {ended:?} before it said {words:?}: {log}", self.name);
            None
        });
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("it is our child");
    }

    /// Waits for the process to end.
    pub fn ends(&mut self) -> ExitStatus {
        until(&format!("{} ends", self.name), || self.child.try_wait().expect("it is our child"))
    }

    /// Stops the process in order. Returns how long that took.
    pub fn stop(self) -> Duration {
        self.stop_with_log().0
    }

    /// Stops the process in order. Returns how long that took, and the log since its start.
    pub fn stop_with_log(mut self) -> (Duration, String) {
        let since = SystemClock::new();
        self.signal(Signal::TERM);
        let status = self.ends();
        assert!(status.success(), "{}: {status}: {}", self.name, self.log());
        (since.now(), self.log())
    }

    /// Kills the process.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.ends();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files and addresses of a cluster; its processes come and go.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    /// Ports of the nodes, then of the coordinator, and one that nobody uses.
    ports: Vec<u16>,
    /// Ports of health and metrics.
    health: Vec<u16>,
    /// Ports for clients of processes that are node and coordinator. The first is the
    /// coordinator's.
    apis: Vec<u16>,
    tls: bool,
    etcd: Option<Etcd>,
    authority: Option<Authority>,
}

impl Cluster {
    /// A cluster of three nodes without certificates.
    pub fn plain() -> Self {
        Self::new(3, false, false)
    }

    /// A cluster of one node without certificates.
    pub fn alone() -> Self {
        Self::new(1, false, false)
    }

    /// A cluster with mutual TLS and an etcd, in which the certificate of each node is that of a
    /// coordinator, too.
    pub fn of_both_roles() -> Self {
        let cluster = Self::new(3, true, true);
        for name in ["node-1", "node-2", "node-3"] {
            cluster.authority().certify_as(cluster.dir.path(), name, &["node", "coordinator"]);
        }
        cluster
    }

    /// A cluster with mutual TLS.
    pub fn tls() -> Self {
        Self::new(3, true, false)
    }

    /// A cluster without certificates, whose processes register in an etcd.
    pub fn registered() -> Self {
        Self::new(3, false, true)
    }

    /// A cluster with mutual TLS and an etcd: it may have several coordinators.
    pub fn tls_registered() -> Self {
        Self::new(3, true, true)
    }

    /// A cluster with mutual TLS of one node, which keeps ledgers of members.
    pub fn of_ledgers() -> Self {
        Self::with(1, true, false, "ledgers = true")
    }

    fn new(nodes: usize, tls: bool, registered: bool) -> Self {
        Self::with(nodes, tls, registered, "splits = [\"account/00350\"]\ncapacity = 128")
    }

    /// A cluster with these lines in the table `[ledger]` of its settings.
    fn with(nodes: usize, tls: bool, registered: bool, ledger: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut ports = free_ports(12);
        let apis = [vec![ports[3]], ports.split_off(10)].concat();
        let health = ports.split_off(5);
        let etcd = registered.then(|| {
            let directory = dir.path().join("etcd");
            fs::create_dir(&directory).expect("a directory");
            Etcd::start(&directory, 1)
        });
        let authority = tls.then(Authority::new);
        let cluster = Self { dir, ports, health, apis, tls, etcd, authority };
        let key = cluster.path("ledger.key");
        common::run(common::coppice().arg("keygen").arg("--out").arg(&key)).expect(0);
        let vkey = fs::read_to_string(cluster.path("ledger.vkey")).expect("it was made");
        let name = vkey.split('+').next().expect("a name");
        let id = name.rsplit('/').next().expect("a cluster id");
        let mut text = format!("cluster_id = \"{id}\"\n[ledger]\n{ledger}\n");
        for (at, port) in cluster.ports[..nodes].iter().enumerate() {
            let ordinal = at + 1;
            text += &format!("[nodes.node-{ordinal}]\nordinal = {ordinal}\naddress = \"127.0.0.1:{port}\"\n");
        }
        if let Some(etcd) = &cluster.etcd {
            text += &format!("[metadata]\nendpoints = {:?}\n", etcd.endpoints());
        }
        fs::write(cluster.path("cluster.toml"), text).expect("a file can be written");
        if let Some(authority) = &cluster.authority {
            for name in CERTIFIED {
                authority.certify(cluster.dir.path(), name);
            }
        }
        cluster
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The authority that signed the cluster's certificates.
    pub fn authority(&self) -> &Authority {
        self.authority.as_ref().expect("it has certificates")
    }

    /// The etcd in which the processes register.
    pub fn etcd(&self) -> &Etcd {
        self.etcd.as_ref().expect("it has an etcd")
    }

    /// Kills the etcd.
    pub fn kill_etcd(&mut self) {
        self.etcd.as_mut().expect("it has an etcd").kill(0);
    }

    /// The port of a node; the fourth is the coordinator's, and a reader may use the fifth.
    pub fn port_of(&self, ordinal: usize) -> u16 {
        self.ports[ordinal - 1]
    }

    /// The command of a node, with more flags after the necessary ones.
    pub fn node_command(&self, ordinal: usize, more: &[&str]) -> Command {
        let name = format!("node-{ordinal}");
        let mut command = self.command("coppice-shard-node", &name);
        command.args(["--node", &name, "--listen", &format!("127.0.0.1:{}", self.ports[ordinal - 1])]);
        if let Some(health) = self.health.get(ordinal - 1) {
            command.args(["--health-listen", &format!("127.0.0.1:{health}")]);
        }
        command.arg("--data-dir").arg(self.path(&name)).args(more);
        command
    }

    /// Adds a fifth node, with readers, to the settings of processes that are started later.
    pub fn add_reader(&self) {
        let path = self.path("cluster.toml");
        let port = self.ports[4];
        let node = format!("[nodes.node-5]\nordinal = 5\naddress = \"127.0.0.1:{port}\"\nreader = true\n");
        fs::write(&path, fs::read_to_string(&path).expect("it was made") + &node).expect("it can be written");
        if let Some(authority) = &self.authority {
            authority.certify(self.dir.path(), "node-5");
        }
    }

    /// The command of a process that is node and coordinator, with more flags after the necessary
    /// ones.
    pub fn serve_command(&self, ordinal: usize, more: &[&str]) -> Command {
        let name = format!("node-{ordinal}");
        let mut command = Command::new(binary("coppice"));
        self.settings(command.arg("serve"), &name);
        command.args(["--node", &name, "--listen", &format!("127.0.0.1:{}", self.ports[ordinal - 1])]);
        command.args(["--api-listen", &format!("127.0.0.1:{}", self.apis[ordinal - 1])]);
        command.args(["--health-listen", &format!("127.0.0.1:{}", self.health[ordinal - 1])]);
        command.arg("--signing-key-file").arg(self.path("ledger.key"));
        if self.tls {
            command
                .arg("--set")
                .arg(format!("access.log_file={}", self.path(&format!("access-log-{ordinal}")).display()));
        }
        if self.etcd.is_none() {
            command.arg("--set").arg(format!("metadata.dir={}", self.path("metadata").display()));
        }
        command.arg("--data-dir").arg(self.path(&name)).args(more);
        command
    }

    /// Starts a process that is node and coordinator.
    pub fn serve(&self, ordinal: usize) -> Process {
        let name = format!("node-{ordinal}");
        let command = self.serve_command(ordinal, &["--bootstrap", "new"]);
        Process::spawn(&name, command, self.path(&format!("{name}.log")))
    }

    /// The endpoint of the coordinator in such a process.
    pub fn api(&self, ordinal: usize) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.apis[ordinal - 1])
    }

    fn command(&self, program: &str, name: &str) -> Command {
        let mut command = Command::new(binary(program));
        self.settings(&mut command, name);
        command
    }

    /// Adds the settings that all processes share, and the certificate of this name.
    fn settings(&self, command: &mut Command, name: &str) {
        command.env_clear().arg("--config").arg(self.path("cluster.toml"));
        if self.tls {
            for (key, file) in
                [("ca", "ca.pem".to_owned()), ("cert", format!("{name}.pem")), ("key", format!("{name}.key"))]
            {
                command.arg("--set").arg(format!("tls.{key}={}", self.path(&file).display()));
            }
        }
    }

    /// Starts a node, which may form groups.
    pub fn node(&self, ordinal: usize) -> Process {
        self.node_with(ordinal, &[], &[])
    }

    /// Starts a node with more flags and variables.
    pub fn node_with(&self, ordinal: usize, more: &[&str], variables: &[(&str, &str)]) -> Process {
        let name = format!("node-{ordinal}");
        let mut command = self.node_command(ordinal, &["--bootstrap", "new"]);
        command.args(more).envs(variables.iter().copied());
        Process::spawn(&name, command, self.path(&format!("{name}.log")))
    }

    /// Starts a node at an address other than the configured one.
    pub fn node_elsewhere(&self, ordinal: usize) -> Process {
        let name = format!("node-{ordinal}");
        let address = format!("127.0.0.1:{}", free_ports(1)[0]);
        let mut command = self.command("coppice-shard-node", &name);
        command.args(["--node", &name, "--listen", &address, "--set", &format!("nodes.{name}.address={address}")]);
        command.arg("--data-dir").arg(self.path(&name));
        Process::spawn(&name, command, self.path(&format!("{name}.log")))
    }

    /// Starts the coordinator.
    pub fn coordinator(&self) -> Process {
        self.coordinator_with(&[], &[])
    }

    /// Starts the coordinator with more flags and variables.
    pub fn coordinator_with(&self, more: &[&str], variables: &[(&str, &str)]) -> Process {
        let name = "coordinator-1";
        let mut command = self.command("coppice-coordinator", name);
        command.args(["--name", name, "--listen", &format!("127.0.0.1:{}", self.ports[3])]);
        command.args(["--health-listen", &format!("127.0.0.1:{}", self.health[3])]);
        command.arg("--signing-key-file").arg(self.path("ledger.key"));
        if self.tls {
            command.arg("--set").arg(format!("access.log_file={}", self.path("access-log").display()));
        }
        if self.etcd.is_none() {
            command.arg("--set").arg(format!("metadata.dir={}", self.path("metadata").display()));
        }
        command.args(more).envs(variables.iter().copied());
        Process::spawn(name, command, self.path("coordinator-1.log"))
    }

    /// Starts a second coordinator. Returns the process and its address.
    pub fn second_coordinator(&self) -> (Process, String) {
        let name = "coordinator-2";
        let address = format!("127.0.0.1:{}", free_ports(1)[0]);
        let mut command = self.command("coppice-coordinator", name);
        command.args(["--name", name, "--listen", &address]);
        command.arg("--signing-key-file").arg(self.path("ledger.key"));
        command.arg("--set").arg(format!("access.log_file={}", self.path("access-log-2").display()));
        (Process::spawn(name, command, self.path("coordinator-2.log")), address)
    }

    /// The answer of a process on its health port: 1 to 3 for the nodes, 4 for the coordinator, 5
    /// for a reader.
    /// `None` if it does not listen.
    pub fn probe(&self, process: usize, path: &str) -> Option<(u16, Value)> {
        let (code, body) = self.ask(process, path)?;
        Some((code, serde_json::from_str(&body).ok()?))
    }

    /// A process's metrics, as text.
    pub fn metrics(&self, process: usize) -> String {
        let (code, body) = self.ask(process, "/metrics").expect("it listens");
        assert_eq!(code, 200, "{body}");
        body
    }

    fn ask(&self, process: usize, path: &str) -> Option<(u16, String)> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.health[process - 1])).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        connection.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.get(9..12)?.parse().ok()?, body.to_owned()))
    }

    /// The coordinator's endpoint.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[3])
    }

    /// Waits until a process is unready for a reason with these words, or ready if the words are
    /// empty.
    pub fn until_ready(&self, process: usize, why_not: &str) {
        let code = if why_not.is_empty() { 200 } else { 503 };
        until(&format!("process {process} answers {code} {why_not}"), || {
            let (answered, body) = self.probe(process, "/readyz")?;
            let why = body["why"].as_str().unwrap_or_default();
            (answered == code && why.contains(why_not)).then_some(())
        });
    }

    /// Starts the three nodes.
    pub fn nodes(&self) -> Vec<Process> {
        (1..=3).map(|ordinal| self.node(ordinal)).collect()
    }

    /// A command for this cluster with the certificate of this name. The name of a role stands for
    /// a certificate with only that role.
    pub fn coppice_as(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.coppice(arguments);
        command.env("COPPICE_CLIENT_CERT", self.path(&format!("{name}.pem")));
        command.env("COPPICE_CLIENT_KEY", self.path(&format!("{name}.key")));
        command
    }

    /// A command for this cluster, by a client with all client roles.
    pub fn coppice(&self, arguments: &[&str]) -> Command {
        let mut command = common::coppice();
        let scheme = if self.tls { "https" } else { "http" };
        command.env("COPPICE_ENDPOINT", format!("{scheme}://127.0.0.1:{}", self.ports[3])).args(arguments);
        if self.tls {
            command.env("COPPICE_CA", self.path("ca.pem"));
            command.env("COPPICE_CLIENT_CERT", self.path("client.pem"));
            command.env("COPPICE_CLIENT_KEY", self.path("client.key"));
        }
        command
    }

    /// Runs a command for this cluster.
    pub fn run(&self, arguments: &[&str]) -> Done {
        common::run(&mut self.coppice(arguments))
    }

    /// Starts a command for this cluster.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.coppice(arguments);
        let shown = format!("{command:?}");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command can be run");
        Running::new(child, shown)
    }

    /// Starts a load, and waits until some of its lines are committed.
    pub fn start_load(&self, arguments: &[&str]) -> Running {
        let before = self.version();
        let load = self.start(&[&["load"], arguments].concat());
        until("the load goes on", || (self.version() > before + 5).then_some(()));
        load
    }

    /// Waits until a commit succeeds.
    pub fn until_it_commits(&self, pair: &str) {
        until("a commit", || (self.run(&["commit", "--put", pair]).code == 0).then_some(()));
    }

    /// The version of the head.
    pub fn version(&self) -> u64 {
        self.run(&["head", "--json"]).expect(0).json()["version"].as_u64().expect("a version")
    }

    /// The replicas of each group: (node, role, raft id).
    pub fn replicas(&self) -> Option<Vec<Vec<(String, String, u64)>>> {
        let done = self.run(&["status", "--json"]);
        if done.code != 0 {
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let replica = |replica: &Value| {
            (text(&replica["node"]), text(&replica["role"]), replica["raft_id"].as_u64().unwrap_or_default())
        };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let groups = list(&done.json()["groups"]);
        Some(groups.iter().map(|group| list(&group["replicas"]).iter().map(replica).collect()).collect())
    }

    /// Waits until every group has a voter on each of three nodes, and one leader.
    pub fn until_whole(&self) -> Vec<Vec<(String, String, u64)>> {
        until("all groups are whole", || {
            let groups = self.replicas()?;
            let count =
                |group: &[(String, String, u64)], role: &str| group.iter().filter(|(_, is, _)| is == role).count();
            let whole = groups.iter().all(|group| count(group, "leader") == 1 && count(group, "follower") == 2);
            (whole && groups.len() == 3).then_some(groups)
        })
    }
}

/// The holders of certificates in a cluster with TLS: the processes, a client with all roles, one
/// client for each role, and one without roles.
pub const CERTIFIED: [&str; 11] = [
    "node-1",
    "node-2",
    "node-3",
    "coordinator-1",
    "coordinator-2",
    "client",
    "reader",
    "writer",
    "operator",
    "auditor",
    "nobody",
];

/// The roles of a certificate's holder.
fn roles_of(name: &str) -> Vec<&str> {
    match name.split_once('-') {
        Some((role, _)) => vec![role],
        None if name == "nobody" => Vec::new(),
        None if name == "client" => vec!["writer", "operator", "auditor"],
        None => vec![name],
    }
}

/// A certificate authority.
pub struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
        Self { issuer: rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }

    /// Makes `ca.pem`, `<name>.pem` and `<name>.key`.
    pub fn certify(&self, dir: &Path, name: &str) {
        fs::write(dir.join("ca.pem"), self.pem()).expect("a file can be written");
        self.certify_only(dir, name);
    }

    /// The authority's own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Makes `<name>.pem` and `<name>.key`.
    pub fn certify_only(&self, dir: &Path, name: &str) {
        self.certify_as(dir, name, &roles_of(name));
    }

    /// Makes `<name>.pem` and `<name>.key` of a member of ledgers.
    pub fn certify_member(&self, dir: &Path, name: &str) {
        self.certify_uris(dir, name, vec![format!("urn:coppice:member:{name}")]);
    }

    /// Makes `<name>.pem` and `<name>.key` with these roles.
    pub fn certify_as(&self, dir: &Path, name: &str, roles: &[&str]) {
        let mut uris: Vec<String> = roles.iter().map(|role| format!("urn:coppice:role:{role}")).collect();
        if name.contains('-') {
            uris.push(format!("urn:coppice:name:{name}"));
        }
        self.certify_uris(dir, name, uris);
    }

    fn certify_uris(&self, dir: &Path, name: &str, uris: Vec<String>) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = rcgen::CertificateParams::new(hosts).expect("names of hosts");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        for uri in uris {
            params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().expect("it is ASCII")));
        }
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let write = |file: String, text: String| fs::write(dir.join(file), text).expect("a file can be written");
        write(format!("{name}.pem"), certificate.pem());
        write(format!("{name}.key"), key.serialize_pem());
        let owner_only = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join(format!("{name}.key")), owner_only).expect("it is ours");
    }
}
