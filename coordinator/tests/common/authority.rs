//! Time-stamping authorities of RFC 3161: OpenSSL's tokens over HTTP, the faults of authorities,
//! and sigstore's server.
#![expect(clippy::disallowed_methods, reason = "OpenSSL reads and writes real files")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use axum::{
    Router, body::Body, body::Bytes, extract::State, http::StatusCode, http::header::CONTENT_TYPE,
    response::IntoResponse, response::Response, routing::post,
};
use coppice_coordinator::{Post, Tsa};
use coppice_timestamp::Authority;
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch};

/// The behaviour of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It behaves as specified.
    Sound,
    /// It takes requests and never answers.
    Silent,
    /// It answers after this number of milliseconds.
    Slow(u64),
    /// Its answer has no end.
    Endless,
    /// It answers with errors.
    Broken,
    /// It sends no time stamp.
    Nonsense,
    /// It stamps something else.
    OtherImprint,
    /// It answers another request.
    OtherNonce,
    /// Its certificate is for another purpose, too.
    TwoPurposes,
    /// Its clock is an hour fast.
    HourFast,
}

/// Offset of the imprint in a request.
const IMPRINT_AT: usize = 24;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies one level below the root")
}

/// Runs a command that must succeed, and returns what it prints.
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} doesn't start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for this test")
}

/// The folder with authorities that `cluster/timestamp/tests/openssl.sh` makes, once for all tests.
pub fn authorities() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let made = DIR.get_or_init(|| {
        let dir = scratch();
        run(Command::new(workspace().join("cluster/timestamp/tests/openssl.sh")).arg(dir.path()));
        fs::write(dir.path().join("fast.c"), FAST).expect("the source is written");
        let mut compile = Command::new("cc");
        run(compile.args(["-shared", "-fPIC", "-o", "fast.so", "fast.c"]).current_dir(dir.path()));
        dir
    });
    made.path()
}

/// The clock of a process, an hour fast.
const FAST: &str = "#define _GNU_SOURCE\n#include <sys/syscall.h>\n#include <sys/time.h>\n#include <time.h>\n#include <unistd.h>\n\
int gettimeofday(struct timeval *tv, void *tz) { long r = syscall(SYS_gettimeofday, tv, tz); tv->tv_sec += 3600; return (int)r; }\n\
time_t time(time_t *t) { struct timeval tv; gettimeofday(&tv, 0); if (t) *t = tv.tv_sec; return tv.tv_sec; }\n";

/// The authority with this root.
pub fn trusted(root: &str) -> Authority {
    Authority::new(&fs::read(authorities().join(format!("{root}.pem"))).expect("a root")).expect("a root")
}

/// The authority that sigstore's server is, with its intermediate certificate.
pub fn sigstores() -> Authority {
    let read = |name: &str| fs::read(authorities().join(name)).expect("a certificate");
    Authority::from_certificates(&[read("chain-p384.pem"), read("first.pem")].concat()).expect("a chain")
}

/// An authority that runs in the test.
pub struct Server {
    inner: Arc<Inner>,
    url: String,
}

struct Inner {
    section: &'static str,
    habit: watch::Sender<Habit>,
    /// The imprints of all requests.
    asked: Mutex<Vec<[u8; 32]>>,
    /// OpenSSL does not lock its serial numbers.
    turn: Mutex<()>,
}

impl Server {
    /// Starts an authority that stamps by this section of `tsa.cnf`.
    pub async fn start(section: &'static str, habit: Habit) -> Self {
        let inner = Arc::new(Inner {
            section,
            habit: watch::Sender::new(habit),
            asked: Mutex::default(),
            turn: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let url = format!("http://{}/stamp", listener.local_addr().expect("it listens"));
        let routes = Router::new().route("/stamp", post(answer)).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { inner, url }
    }

    /// The authority as in a coordinator's settings, below this root.
    pub fn tsa(&self, root: &str) -> Tsa {
        Tsa { url: self.url.clone(), authority: trusted(root) }
    }

    /// Changes the behaviour from now on.
    pub fn behave(&self, habit: Habit) {
        self.inner.habit.send_replace(habit);
    }

    /// The imprints that were to be stamped.
    pub fn asked(&self) -> Vec<[u8; 32]> {
        self.inner.asked.lock().expect("no handler panics").clone()
    }
}

async fn answer(State(inner): State<Arc<Inner>>, headers: axum::http::HeaderMap, query: Bytes) -> Response {
    assert_eq!(headers.get(CONTENT_TYPE).map(|it| it.as_bytes()), Some(&b"application/timestamp-query"[..]));
    let imprint = query[IMPRINT_AT..IMPRINT_AT + 32].try_into().expect("32 bytes");
    inner.asked.lock().expect("no handler panics").push(imprint);
    let habit = *inner.habit.borrow();
    match habit {
        Habit::Silent => std::future::pending().await,
        Habit::Slow(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Habit::Broken => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Habit::Nonsense => return "no time stamp".into_response(),
        Habit::Endless => {
            let chunk = || Some((Ok::<_, std::io::Error>(Bytes::from(vec![0x30; 1024])), ()));
            return Body::from_stream(futures::stream::unfold((), move |()| async move { chunk() })).into_response();
        }
        _ => {}
    }
    let stamped = tokio::task::spawn_blocking(move || inner.stamp(&query, habit)).await;
    let kind = [(CONTENT_TYPE, "application/timestamp-reply")];
    (kind, stamped.expect("OpenSSL stamps")).into_response()
}

impl Inner {
    fn stamp(&self, query: &[u8], habit: Habit) -> Vec<u8> {
        let dir = scratch();
        let mut query = query.to_vec();
        match habit {
            Habit::OtherImprint => query[IMPRINT_AT] ^= 1,
            // The flag that asks for certificates takes the last three bytes.
            Habit::OtherNonce => {
                let at = query.len() - 4;
                query[at] ^= 1;
            }
            _ => {}
        }
        fs::write(dir.path().join("query"), query).expect("the query is written");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("openssl");
        command.args(["ts", "-reply", "-config", "tsa.cnf", "-section", self.section, "-queryfile"]);
        command.arg(dir.path().join("query")).arg("-out").arg(dir.path().join("answer"));
        if habit == Habit::HourFast {
            command.env("LD_PRELOAD", authorities().join("fast.so"));
        }
        run(command.current_dir(authorities()));
        if habit == Habit::TwoPurposes {
            return signed_by(dir.path(), "two_purposes");
        }
        fs::read(dir.path().join("answer")).expect("OpenSSL wrote its answer")
    }
}

/// The statement of the answer in this folder, signed by another certificate.
fn signed_by(dir: &Path, signer: &str) -> Vec<u8> {
    let path = |name: &str| dir.join(name);
    let openssl = |words: &[&str]| {
        let words = words.iter().map(|word| word.replace("DIR/", &format!("{}/", dir.display())));
        run(Command::new("openssl").args(words).current_dir(authorities()))
    };
    openssl(&["ts", "-reply", "-in", "DIR/answer", "-token_out", "-out", "DIR/token"]);
    openssl(&["cms", "-verify", "-noverify", "-nosigs", "-inform", "DER", "-in", "DIR/token", "-out", "DIR/content"]);
    let (certificate, key) = (format!("{signer}.pem"), format!("{signer}.key"));
    let kind = "1.2.840.113549.1.9.16.1.4";
    openssl(&[
        "cms",
        "-sign",
        "-nodetach",
        "-binary",
        "-nosmimecap",
        "-outform",
        "DER",
        "-econtent_type",
        kind,
        "-md",
        "sha256",
        "-signer",
        &certificate,
        "-inkey",
        &key,
        "-cades",
        "-in",
        "DIR/content",
        "-out",
        "DIR/signed",
    ]);
    fs::read(path("signed")).expect("OpenSSL wrote the token")
}

/// Posts to sigstore's authority, which is built from its pinned Go module. It signs by the key
/// `p384` of [`authorities`], and runs for each request in a network of its own.
pub fn sigstore() -> Post {
    static SERVER: OnceLock<PathBuf> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let path = run(&mut Command::new(workspace().join("scripts/install-timestamp-authority.sh")));
        PathBuf::from(String::from_utf8(path).expect("a path").trim_end())
    });
    Arc::new(move |_, query| {
        Box::pin(async move {
            let stamped = tokio::task::spawn_blocking(move || {
                let dir = scratch();
                fs::write(dir.path().join("request.tsq"), query).expect("the query is written");
                let read = |name: &str| fs::read(authorities().join(name)).expect("a certificate");
                let chain = [read("chain-p384.pem"), read("first.pem")].concat();
                fs::write(dir.path().join("signer.pem"), chain).expect("the chain is written");
                let mut command = Command::new(workspace().join("cluster/timestamp/tests/sigstore.sh"));
                command.arg(server).arg(dir.path()).args(["--timestamp-signer=file", "--timestamp-signer-hash=sha384"]);
                command.arg(format!("--file-signer-key-path={}", authorities().join("p384.key").display()));
                command.arg(format!("--certificate-chain-path={}", dir.path().join("signer.pem").display()));
                run(&mut command);
                fs::read(dir.path().join("request.tsr")).expect("an answer")
            });
            Ok((reqwest::StatusCode::OK, stamped.await.map_err(|error| error.to_string())?))
        })
    })
}
