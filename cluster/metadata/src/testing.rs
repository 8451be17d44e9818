//! Real etcd for tests: processes of the pinned etcd that `scripts/install-etcd.sh` builds. Each
//! has a loopback address of its own.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    thread::sleep,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// The pause between checks whether a starting member is healthy, and the most checks.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 3000;
/// The ports for clients, and for members among themselves.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// The port for health checks of a member that asks its clients for certificates.
const HEALTH_PORT: u16 = 2381;

/// The directory of the pinned etcd, which is built if it is missing.
///
/// # Panics
/// If it can't be built, with the output of the script.
#[must_use]
pub fn etcd_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-etcd.sh");
        let built = Command::new(&script).output().expect("the script runs");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "these tests need etcd; {} says: {said}", script.display());
        PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())
    })
}

/// The members of an etcd cluster. Dropping it kills them, but leaves their directories.
#[derive(Debug)]
pub struct Etcd {
    directory: PathBuf,
    members: Vec<Process>,
    tls: bool,
}

#[derive(Debug)]
struct Process {
    address: Ipv4Addr,
    child: Option<Child>,
}

impl Etcd {
    /// Starts a cluster of this many members in an empty directory, and waits until it serves.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(directory: &Path, members: usize) -> Self {
        Self::start_with(directory, members, false)
    }

    /// Starts a cluster like [`Etcd::start`] that only serves clients with a certificate of the
    /// authority in [`Etcd::certificates`].
    ///
    /// # Panics
    /// If it does not start, or `scripts/certificates.sh` fails.
    #[must_use]
    pub fn start_with_tls(directory: &Path, members: usize) -> Self {
        Self::start_with(directory, members, true)
    }

    fn start_with(directory: &Path, members: usize, tls: bool) -> Self {
        // Test processes differ in the middle bytes, members in the last. So no two share an
        // address.
        static LAST: AtomicU8 = AtomicU8::new(0);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let process = || {
            let last = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            Process { address: Ipv4Addr::new(127, high | 0x80, low, last), child: None }
        };
        let mut etcd =
            Self { directory: directory.to_owned(), members: (0..members).map(|_| process()).collect(), tls };
        for index in 0..members {
            if tls {
                certify(&etcd.certificates(), &format!("member-{index}"), &etcd.members[index].address.to_string());
            }
            etcd.launch(index);
        }
        etcd.wait();
        etcd
    }

    /// The URLs for clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| self.client_url(member.address)).collect()
    }

    /// The directory with `ca.pem`, and with each member's certificate and key.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        self.directory.join("tls")
    }

    fn client_url(&self, address: Ipv4Addr) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{address}:{CLIENT_PORT}")
    }

    /// The directory with a member's data.
    #[must_use]
    pub fn data(&self, index: usize) -> PathBuf {
        self.directory.join(format!("member-{index}"))
    }

    /// Starts a member that does not run, and waits until the cluster serves.
    ///
    /// # Panics
    /// If it does not start.
    pub fn run(&mut self, index: usize) {
        self.launch(index);
        self.wait();
    }

    fn launch(&mut self, index: usize) {
        let named = |(index, member): (usize, &Process)| format!("m{index}={}", peer_url(member.address));
        let all: Vec<_> = self.members.iter().enumerate().map(named).collect();
        let address = self.members[index].address;
        let (client, peer) = (self.client_url(address), peer_url(address));
        let log = fs::File::create(self.directory.join(format!("member-{index}.log"))).expect("a file for its log");
        let mut command = Command::new(etcd_binary());
        if self.tls {
            let file = |name: String| self.certificates().join(name);
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem".to_owned()));
            command.arg("--cert-file").arg(file(format!("member-{index}.pem")));
            command.arg("--key-file").arg(file(format!("member-{index}.key")));
            command.args(["--listen-metrics-urls", &format!("http://{address}:{HEALTH_PORT}")]);
        }
        let child = command
            .args(["--name", &format!("m{index}")])
            .arg("--data-dir")
            .arg(self.data(index))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(","), "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        assert!(self.members[index].child.replace(child).is_none(), "it does not run yet");
    }

    /// Waits until every running member reports that it is healthy.
    #[expect(clippy::disallowed_methods, reason = "a condition of another process, with a limit")]
    fn wait(&mut self) {
        let mut looks = 0;
        for index in 0..self.members.len() {
            while self.members[index].child.is_some() && !self.is_healthy(index) {
                let child = self.members[index].child.as_mut().expect("checked above");
                let ended = child.try_wait().expect("a child of ours");
                let log = || fs::read_to_string(self.directory.join(format!("member-{index}.log")));
                assert!(ended.is_none() && looks < LOOKS_MAX, "etcd did not start: {:?}", log());
                looks += 1;
                sleep(LOOK);
            }
        }
    }

    fn is_healthy(&self, index: usize) -> bool {
        is_healthy(self.members[index].address, if self.tls { HEALTH_PORT } else { CLIENT_PORT })
    }

    /// Kills a member with `kill -9`. Its data stay.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.members[index].child.take().expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("a child of ours ends");
    }

    /// Pauses a member. [`Etcd::resume`] lets it continue.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pause(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Lets a paused member continue.
    ///
    /// # Panics
    /// If it does not run.
    pub fn resume(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        let child = self.members[index].child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("a child of ours");
    }

    /// Removes the data of a member that does not run.
    ///
    /// # Panics
    /// If there are none.
    pub fn wipe(&self, index: usize) {
        assert!(self.members[index].child.is_none(), "its data are at rest");
        fs::remove_dir_all(self.data(index)).expect("its data are there");
    }

    /// Copies the data of a member that does not run.
    ///
    /// # Errors
    /// If files can't be copied.
    pub fn copy_data(&self, index: usize, to: &Path) -> io::Result<()> {
        assert!(self.members[index].child.is_none(), "its data are at rest");
        copy(&self.data(index), to)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            // The process may have ended by itself.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

/// Makes `NAME.pem` and `NAME.key` in a directory, signed by the authority there. The authority is
/// made if it is missing. The certificates state no role, since etcd needs none.
///
/// # Panics
/// If `scripts/certificates.sh` fails, with its output.
pub fn certify(directory: &Path, name: &str, host: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/certificates.sh");
    let made = Command::new(&script).arg(directory).args([name, "none", host]).output().expect("the script runs");
    assert!(made.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&made.stderr));
}

fn peer_url(address: Ipv4Addr) -> String {
    format!("http://{address}:{PEER_PORT}")
}

/// Asks `/health`. A member answers 200 only if it could write to the cluster.
fn is_healthy(address: Ipv4Addr, port: u16) -> bool {
    use io::{Read, Write};
    let ask = || -> io::Result<Vec<u8>> {
        let limit = Duration::from_secs(2);
        let mut connection = TcpStream::connect_timeout(&SocketAddr::from((address, port)), limit)?;
        connection.set_read_timeout(Some(limit))?;
        connection.write_all(b"GET /health HTTP/1.0\r\nHost: etcd\r\n\r\n")?;
        let mut answer = Vec::new();
        connection.take(4096).read_to_end(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200"))
}

/// Copies a directory tree.
///
/// # Errors
/// If files can't be copied.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
