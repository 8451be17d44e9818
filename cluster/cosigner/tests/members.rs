//! Cosigners as they run: over HTTP, with coordinators that lie and peers that tell.

mod common;

use std::{
    future::Future,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use common::{hash, ledger_key, log, note, request};
use coppice_cosigner::{
    Error,
    config::{self, Config, KeyChanges, Peer},
    run,
    tiles::TileLog,
};
use coppice_env::SystemRng;
use coppice_types::Digest;
use coppice_verify::{
    cosignature::{CosignerKey, WitnessKey, add_lines},
    evidence,
    header::Header,
    merkle,
    policy::Policy,
    replay::Ledger,
    tile::{Content, TileName},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);

/// What a coordinator shows: a log, its size, and cosignature lines.
struct Shown {
    log: Ledger,
    size: u64,
    lines: Vec<String>,
}

/// A coordinator's root log over HTTP, of whatever log the test wants.
struct Coordinator {
    shown: Arc<Mutex<Shown>>,
    url: String,
}

impl Coordinator {
    async fn start(log: Ledger, size: u64) -> Self {
        let shown = Arc::new(Mutex::new(Shown { log, size, lines: Vec::new() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let routes = Router::new().route("/{*path}", get(serve)).with_state(shown.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { shown, url }
    }

    fn show(&self, change: impl FnOnce(&mut Shown)) {
        change(&mut self.shown.lock().expect("no holder panics"));
    }
}

async fn serve(State(shown): State<Arc<Mutex<Shown>>>, path: axum::extract::Path<String>) -> impl IntoResponse {
    let shown = shown.lock().expect("no holder panics");
    if path.as_str() == "checkpoint" {
        let note = add_lines(&note(&shown.log, shown.size), &shown.lines).expect("lines");
        return (StatusCode::OK, Body::from(note));
    }
    match TileName::parse(&path).filter(|name| name.is_in(shown.size)) {
        Some(name) => (StatusCode::OK, Body::from(tile(&shown.log, name))),
        None => (StatusCode::NOT_FOUND, Body::empty()),
    }
}

fn tile(log: &Ledger, name: TileName) -> Vec<u8> {
    let (first, width) = (name.number as usize * 256, usize::from(name.width));
    match name.content {
        Content::Entries => {
            let framed = log.headers[first..first + width].iter().flat_map(|header| {
                let entry = header.encode();
                [&u16::try_from(entry.len()).expect("a header is short").to_be_bytes()[..], &entry].concat()
            });
            framed.collect()
        }
        Content::Hashes { level } => {
            let mut hashes: Vec<Digest> = log.headers.iter().map(Header::hash).collect();
            for _ in 0..level {
                hashes = hashes.chunks_exact(256).map(merkle::mth).collect();
            }
            hashes[first..first + width].iter().flat_map(|hash| hash.0).collect()
        }
    }
}

/// A cosigner that runs in this process.
struct Running {
    url: String,
    key: CosignerKey,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

/// The folder of a new cosigner on a free port.
fn folder(dir: &Path, name: &str, logs: &[&Coordinator]) -> (PathBuf, Config, CosignerKey) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("free ports").local_addr().expect("it listens").port();
    let config = Config {
        ledger_key: ledger_key().to_string(),
        logs: logs.iter().map(|log| log.url.clone()).collect(),
        listen: format!("127.0.0.1:{port}").parse().expect("an address"),
        key_changes: KeyChanges::Follow,
        floor_peers: None,
        gossip_seconds: 1,
        ca: None,
        audit: false,
        stream: None,
        tls: None,
        api: None,
        peers: Vec::new(),
    };
    let path = dir.join(name);
    let made = config::init(&path, &config, &format!("{name}.example/w"), &mut SystemRng).expect("a new folder");
    (path, config, made.witness)
}

fn peer(config: &Config, key: &CosignerKey) -> Peer {
    Peer { url: format!("http://{}", config.listen), vkey: key.to_string(), auditor: None }
}

fn save(dir: &Path, config: &Config) {
    let text = toml::to_string(config).expect("settings");
    std::fs::write(dir.join(config::CONFIG), text).expect("it can be written");
}

async fn start(dir: &Path, key: &CosignerKey) -> Running {
    let started = async {
        loop {
            match try_start(dir, key).await {
                Ok(running) => return running,
                // A cosigner that was stopped in this process leaves lock and port a little later.
                Err(Error::Refused(why)) if why.contains("in use") => {
                    tokio::time::sleep(Duration::from_millis(20)).await
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(LIMIT, started).await.expect("it starts in time")
}

async fn try_start(dir: &Path, key: &CosignerKey) -> Result<Running, Error> {
    let (told, ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let dir = dir.to_owned();
    let task = tokio::spawn(async move {
        let stopped = async {
            // A sender that is dropped stops it, too.
            let _ = stopped.await;
        };
        run::run(&dir, stopped, |url, _| told.send(url.to_owned()).expect("the test waits")).await
    });
    match ready.await {
        Ok(url) => Ok(Running { url, key: key.clone(), stop, task }),
        Err(_) => Err(task.await.expect("no panic").expect_err("it did not serve")),
    }
}

impl Running {
    async fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let answer = reqwest::get(format!("{}/{path}", self.url)).await.expect("it answers");
        (answer.status().as_u16(), answer.bytes().await.expect("a body").to_vec())
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> reqwest::Response {
        let client = reqwest::Client::new();
        client.post(format!("{}/{path}", self.url)).body(body).send().await.expect("it answers")
    }

    async fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&self.get("status").await.1).expect("JSON")
    }

    /// The cosignature of a checkpoint, whatever was cosigned before.
    async fn cosign(&self, log: &Ledger, size: u64) -> String {
        let mut old = 0;
        let asked = async {
            loop {
                let answer = self.post("w/add-checkpoint", request(log, old, size)).await;
                let status = answer.status().as_u16();
                let text = answer.text().await.expect("text");
                match status {
                    200 => return text.trim_end().to_owned(),
                    409 => old = text.trim_end().parse().expect("a size"),
                    503 => tokio::time::sleep(Duration::from_millis(50)).await,
                    _ => panic!("{status}: {text}"),
                }
            }
        };
        timeout(LIMIT, asked).await.expect("it cosigns in time")
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(LIMIT, self.task).await.expect("in time").expect("no panic").expect("in order");
    }
}

/// Asks until something holds.
async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let asked = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, asked).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn count(status: &serde_json::Value, field: &str) -> u64 {
    status[field].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cosigner_follows_cosigns_and_serves_the_log() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let good = log(1, 700);
    let coordinator = Coordinator::start(good, 300).await;
    let good = log(1, 700);
    let (dir, _, key) = folder(work.path(), "one", &[&coordinator]);
    let member = start(&dir, &key).await;
    let line = member.cosign(&good, 300).await;
    let cosigned = add_lines(&note(&good, 300), &[line]).expect("a line");
    assert!(WitnessKey::from(member.key.clone()).cosigned(&cosigned).expect("sound").is_some());
    // The log grows, and the cosigner is asked before it has looked.
    coordinator.show(|shown| shown.size = 650);
    member.cosign(&good, 650).await;
    let (status, shown) = member.get(&format!("{}/checkpoint", hash())).await;
    assert_eq!(status, 200);
    assert!(WitnessKey::from(member.key.clone()).cosigned(&shown).expect("sound").is_some());
    for path in ["tile/0/000", "tile/0/002.p/138", "tile/1/000.p/2", "tile/entries/001", "tile/entries/002.p/130"] {
        let (status, bytes) = member.get(&format!("{}/{path}", hash())).await;
        assert_eq!((status, bytes), (200, tile(&good, TileName::parse(path).expect("a tile"))), "{path}");
    }
    for path in ["tile/0/002.p/139", "tile/0/003", "tile/2/000.p/1", "cosigned/00", "nothing"] {
        assert_eq!(member.get(&format!("{}/{path}", hash())).await.0, 404, "{path}");
    }
    for path in ["", "w/add-checkpoint", "evidence/x", "evidence/../state", "state", "witness.key"] {
        assert_eq!(member.get(path).await.0, 404, "{path}");
    }
    assert_eq!(member.get("evidence/").await, (200, Vec::new()));
    let conflict = member.post("w/add-checkpoint", request(&good, 0, 650)).await;
    assert_eq!(conflict.headers()["content-type"], "text/x.tlog.size");
    assert_eq!((conflict.status().as_u16(), conflict.text().await.expect("text").as_str()), (409, "650\n"));
    for (body, expected) in [(vec![b'x'; 70_000], 400), (b"old 0\n\nx\n".to_vec(), 400)] {
        assert_eq!(member.post("w/add-checkpoint", body).await.status().as_u16(), expected);
    }
    assert_eq!(member.post("w/sign-subtree", Vec::new()).await.status().as_u16(), 404);
    let status = member.status().await;
    assert_eq!((count(&status, "log_entries"), count(&status, "cosigned_entries")), (650, 650));
    let metrics = String::from_utf8(member.get("metrics").await.1).expect("text");
    assert!(metrics.contains("\ncoppice_cosigner_cosigned_entries 650\n"), "{metrics}");
    // The mirror is a folder of tiles for `coppice evidence make --from`.
    let mut folder = TileLog::open(&dir.join("log").display().to_string()).expect("a folder");
    for size in [1, 300, 650] {
        assert!(folder.has(&good.checkpoint(size)).await.expect("it can be read"), "{size}");
    }
    assert_eq!(folder.headers_of_keys(650).await.expect("it can be read").len(), 1, "genesis");
    // It can be looked into while it runs, and not be opened.
    assert_eq!(run::status(&dir).expect("a sound state").witness.cosigned_entries, 650);
    assert!(run::open(&dir).expect_err("it runs").to_string().contains("in use"));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_change_is_followed_or_waits_for_a_person() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let changed = || {
        let mut log = log(1, 10);
        log.rotate(&[2; 32]);
        while log.headers.len() < 30 {
            log.append_unknown(9, Vec::new());
        }
        log
    };
    let good = changed();
    let coordinator = Coordinator::start(changed(), 10).await;
    let (dir, _, key) = folder(work.path(), "follows", &[&coordinator]);
    let (cautious_dir, mut config, cautious_key) = folder(work.path(), "asks", &[&coordinator]);
    config.key_changes = KeyChanges::Ask;
    save(&cautious_dir, &config);
    let (follows, asks) = (start(&dir, &key).await, start(&cautious_dir, &cautious_key).await);
    follows.cosign(&good, 10).await;
    asks.cosign(&good, 10).await;
    coordinator.show(|shown| shown.size = 25);
    eventually("both have the new key", || async {
        let statuses = [follows.status().await, asks.status().await];
        statuses.iter().all(|status| count(status, "log_entries") == 25)
    })
    .await;
    follows.cosign(&good, 25).await;
    assert_eq!(asks.post("w/add-checkpoint", request(&good, 10, 25)).await.status().as_u16(), 403);
    assert!(asks.status().await["waits_for_key"].as_str().is_some_and(|key| key == good.key.verifier().to_string()));
    asks.stop().await;
    let (mut cosigners, _) = run::open(&cautious_dir).expect("nobody has it");
    let witness = &mut cosigners.witness;
    assert!(witness.accept(common::ledger_signer(3).verifier()).is_err(), "another key");
    witness.accept(good.key.verifier()).expect("it is the next key");
    assert!(witness.accept(good.key.verifier()).is_err(), "nothing waits any more");
    drop(cosigners);
    let asks = start(&cautious_dir, &cautious_key).await;
    asks.cosign(&good, 25).await;
    // The replaced key signs on: that is late, and evidence.
    let late = good.checkpoint(20).sign(&common::ledger_signer(1)).expect("its name");
    let answer = follows.post(&format!("{}/report", hash()), late.into_bytes()).await;
    let told: serde_json::Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    assert_eq!(told["verdict"], "evidence");
    let file = follows.get(&told["evidence"].as_str().expect("a path")[1..]).await.1;
    let verdict = evidence::verify(&file, &ledger_key(), None).expect("it proves");
    assert!(matches!(verdict.ground, evidence::Ground::Late { index: 10, .. }));
    assert!(follows.status().await["halted"].is_string());
    follows.stop().await;
    asks.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_between_two_members_is_convicted_by_both() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let (good, evil) = (log(1, 60), log(2, 60));
    let (to_one, to_two) = (Coordinator::start(log(1, 60), 30).await, Coordinator::start(log(2, 60), 40).await);
    let (dir_one, mut one, key_one) = folder(work.path(), "one", &[&to_one]);
    let (dir_two, mut two, key_two) = folder(work.path(), "two", &[&to_two]);
    one.peers = vec![peer(&two, &key_two)];
    two.peers = vec![peer(&one, &key_one)];
    save(&dir_one, &one);
    save(&dir_two, &two);
    let (one, two) = (start(&dir_one, &key_one).await, start(&dir_two, &key_two).await);
    one.cosign(&good, 30).await;
    two.cosign(&evil, 40).await;
    // The smaller log grows past the other one, by which its member can show what it had there.
    to_one.show(|shown| shown.size = 50);
    for member in [&one, &two] {
        eventually("the member has halted", || async { member.status().await["halted"].is_string() }).await;
    }
    let policy = format!("witness one {key_one}\nwitness two {key_two}\nquorum none\n");
    let policy = Policy::parse(policy.as_bytes()).expect("a policy");
    for member in [&one, &two] {
        let list = String::from_utf8(member.get("evidence/").await.1).expect("text");
        let name = list.lines().next().expect("a file");
        let file = member.get(&format!("evidence/{name}")).await.1;
        let verdict = evidence::verify(&file, &ledger_key(), Some(&policy)).expect("it proves the fork");
        assert!(verdict.is_one_key() && verdict.cosigners.is_empty(), "no member cosigned both");
        let fork = (verdict.ground.clone(), verdict.a.clone(), verdict.b.clone());
        // Each flipped bit of a sample makes another file, which proves nothing or still the same.
        for at in (0..file.len() * 8).step_by(file.len() * 8 / 1000 + 1) {
            let mut flipped = file.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            if let Ok(judged) = evidence::verify(&flipped, &ledger_key(), None) {
                assert_eq!((&judged.ground, &judged.a, &judged.b), (&fork.0, &fork.1, &fork.2), "bit {at}");
            }
        }
        assert_eq!(member.post("w/add-checkpoint", request(&good, 30, 50)).await.status().as_u16(), 503);
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_one_client_saw_is_convicted_by_its_report() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let (good, evil) = (log(1, 60), log(2, 60));
    let coordinator = Coordinator::start(log(1, 60), 30).await;
    let (dir, _, key) = folder(work.path(), "one", &[&coordinator]);
    let member = start(&dir, &key).await;
    member.cosign(&good, 30).await;
    let path = format!("{}/report", hash());
    let told = |answer: reqwest::Response| async move {
        let status = answer.status().as_u16();
        let object: serde_json::Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
        (status, object["verdict"].as_str().expect("a word").to_owned())
    };
    assert_eq!(told(member.post(&path, note(&good, 12)).await).await, (200, "fine".to_owned()));
    let stranger = good.checkpoint(12).sign(&common::ledger_signer(9)).expect("its name").into_bytes();
    assert_eq!(told(member.post(&path, stranger).await).await, (403, "unsigned".to_owned()));
    // The client was shown a larger log, for a moment.
    assert_eq!(told(member.post(&path, note(&evil, 45)).await).await, (202, "unknown yet".to_owned()));
    assert!(member.status().await["halted"].is_null());
    coordinator.show(|shown| shown.size = 50);
    eventually("the log has grown past the report", || async { member.status().await["halted"].is_string() }).await;
    assert_eq!(told(member.post(&path, note(&evil, 45)).await).await, (200, "evidence".to_owned()));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_abandons_its_log_is_convicted_by_the_new_one() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let good = log(1, 60);
    let coordinator = Coordinator::start(log(1, 60), 30).await;
    let (dir, _, key) = folder(work.path(), "one", &[&coordinator]);
    let member = start(&dir, &key).await;
    member.cosign(&good, 30).await;
    // From now on everybody is shown another log, which is larger.
    coordinator.show(|shown| (shown.log, shown.size) = (log(2, 60), 50));
    eventually("the member has compared the logs", || async { member.status().await["halted"].is_string() }).await;
    assert_eq!(count(&member.status().await, "log_entries"), 30, "the mirror keeps the log that was cosigned");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_was_set_back_learns_from_its_peer_what_it_signed() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let good = log(1, 60);
    let coordinator = Coordinator::start(log(1, 60), 10).await;
    let (dir_one, mut one, key_one) = folder(work.path(), "one", &[&coordinator]);
    let (dir_two, mut two, key_two) = folder(work.path(), "two", &[&coordinator]);
    one.peers = vec![peer(&two, &key_two)];
    two.peers = vec![peer(&one, &key_one)];
    save(&dir_one, &one);
    save(&dir_two, &two);
    let (first, second) = (start(&dir_one, &key_one).await, start(&dir_two, &key_two).await);
    first.cosign(&good, 10).await;
    first.stop().await;
    let backup = work.path().join("backup");
    copy(&dir_one, &backup);
    let first = start(&dir_one, &key_one).await;
    coordinator.show(|shown| shown.size = 20);
    first.cosign(&good, 20).await;
    // The coordinator never shows the line: the peer has it from the cosigner itself.
    let seen = format!("{}/cosigned/{}", hash(), config::key_hash(&key_one.public_key()));
    eventually("the peer has seen the line", || async {
        String::from_utf8_lossy(&second.get(&seen).await.1).contains("\n20\n")
    })
    .await;
    first.stop().await;
    second.stop().await;
    // Without its peer, the copy follows and signs nothing.
    let copied = start(&backup, &key_one).await;
    eventually("the copy follows", || async { count(&copied.status().await, "log_entries") == 20 }).await;
    assert_eq!(copied.post("w/add-checkpoint", request(&good, 10, 20)).await.status().as_u16(), 503);
    assert_eq!(copied.status().await["floor"], false);
    let second = start(&dir_two, &key_two).await;
    eventually("the copy has asked", || async { copied.status().await["floor"] == true }).await;
    assert_eq!(count(&copied.status().await, "cosigned_entries"), 20);
    assert_eq!(copied.post("w/add-checkpoint", request(&good, 10, 20)).await.status().as_u16(), 409);
    copied.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_with_one_key_stop_each_other() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let good = log(1, 60);
    let coordinator = Coordinator::start(log(1, 60), 10).await;
    let (dir, config, key) = folder(work.path(), "one", &[&coordinator]);
    let twin_dir = work.path().join("twin");
    copy(&dir, &twin_dir);
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("free ports").local_addr().expect("it listens");
    save(&twin_dir, &Config { listen: port, ..config });
    let (member, twin) = (start(&dir, &key).await, start(&twin_dir, &key).await);
    member.cosign(&good, 8).await;
    let line = twin.cosign(&good, 10).await;
    coordinator.show(|shown| shown.lines = vec![line]);
    eventually("the twin's line was seen", || async { member.status().await["halted"].is_string() }).await;
    assert!(member.status().await["halted"].as_str().expect("a name").ends_with(".twin"));
    assert!(twin.status().await["halted"].is_null(), "it is the twin's own line");
    member.stop().await;
    twin.stop().await;
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

#[tokio::test]
async fn a_cosigner_shows_its_own_certificate() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let ledger = Coordinator::start(log(1, 20), 10).await;
    let (dir, mut config, key) = folder(work.path(), "acme", &[&ledger]);
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let tls = config::Tls { cert: work.path().join("tls.crt"), key: work.path().join("tls.key") };
    std::fs::write(&tls.cert, cert.pem()).expect("it can be written");
    config.tls = Some(tls.clone());
    save(&dir, &config);
    let refused = try_start(&dir, &key).await.map(drop).expect_err("the key is missing").to_string();
    assert!(refused.contains("tls.key"), "{refused}");
    std::fs::write(&tls.key, signing_key.serialize_pem()).expect("it can be written");
    std::fs::set_permissions(&tls.key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let running = start(&dir, &key).await;
    assert!(running.url.starts_with("https://"), "{}", running.url);
    let ca = reqwest::Certificate::from_pem(cert.pem().as_bytes()).expect("a certificate");
    let client = reqwest::Client::builder().add_root_certificate(ca).build().expect("a client");
    let answer = client.get(format!("{}/status", running.url)).send().await.expect("it answers");
    assert_eq!(answer.status().as_u16(), 200);
    let plain = reqwest::get(running.url.replace("https", "http") + "/status").await;
    assert!(plain.is_err(), "plain HTTP is not served beside it");
    running.stop().await;
}
