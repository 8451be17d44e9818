//! A cosigner among stock tools: a log of tessera asks it for cosignatures, and it stands in one
//! policy with a stock witness.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use coppice_cosigner::config::origin_hash;
use coppice_verify::checkpoint::Checkpoint;

use super::{
    Stock,
    common::{Dev, coppice, run},
    copy, free_port, go_tool,
    member::{Member, has_cosigned},
    put, small,
};

/// Longest request for a file, in bytes.
const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// Serves the files of a folder over HTTP until the test ends, and returns the port.
fn serve(dir: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let port = listener.local_addr().expect("it listens").port();
    let dir = dir.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A caller that leaves early harms nobody.
            let _ = answer(stream, &dir);
        }
    });
    port
}

fn answer(mut stream: TcpStream, dir: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        (&stream).take(REQUEST_BYTES_MAX - request.len() as u64).read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let found = if path.contains("..") { None } else { fs::read(dir.join(path)).ok() };
    let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
    let body = found.unwrap_or_default();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

/// A log that tessera's command for files keeps.
struct Tessera {
    program: PathBuf,
    work: PathBuf,
}

impl Tessera {
    /// Adds entries to the log in a folder, and publishes a checkpoint that satisfies a policy.
    fn add(&self, log: &str, policy: &str, kind: &str, count: u64) -> Vec<u8> {
        let file = |name: &str| self.work.join(name).display().to_string();
        let entries = self.work.join(format!("{log}-{kind}"));
        fs::create_dir(&entries).expect("a new directory");
        for at in 0..count {
            fs::write(entries.join(format!("{at:04}")), format!("{kind} {at}\n")).expect("a file can be written");
        }
        fs::write(file("policy"), policy).expect("a file can be written");
        let mut command = Command::new(&self.program);
        command.arg(format!("--storage_dir={}", file(log))).arg(format!("--entries={}/*", entries.display()));
        command.arg(format!("--private_key={}", file("log.key"))).arg("--logtostderr");
        run(command.arg(format!("--witness_policy_file={}", file("policy")))).expect(0);
        fs::read(self.work.join(log).join("checkpoint")).expect("it was published")
    }
}

#[test]
fn a_log_of_tessera_is_cosigned_and_its_fork_is_convicted() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    run(coppice().args(["keygen", "--name", "tessera.example/log", "--out", &file("log.key")])).expect(0);
    let vkey = fs::read_to_string(file("log.vkey")).expect("the public key").trim().to_owned();
    let port = serve(&work.path().join("log"));
    let member = Member::new(work.path(), "acme", &vkey, &format!("http://127.0.0.1:{port}"));
    let stock = Stock::new(&work.path().join("stock"), "tessera.example/log", &vkey);
    let _running = (member.start(), stock.start());
    let both = format!(
        "{}witness stock {} http://127.0.0.1:{}\ngroup both all acme.example/w stock\nquorum both\n",
        member.line, stock.cosigner, stock.port
    );
    let package = "github.com/transparency-dev/tessera/cmd/examples/posix-oneshot";
    let tessera = Tessera { program: go_tool("fsck", "oneshot", package), work: work.path().to_owned() };
    // Entries mean nothing to a witness, so a log of other people is as good as a ledger's.
    for (kind, count, size) in [("first", 300, 300), ("more", 5, 305)] {
        if kind == "more" {
            copy(&work.path().join("log"), &work.path().join("twin"));
        }
        let note = tessera.add("log", &both, kind, count);
        assert_eq!(Checkpoint::claimed(&note).expect("a checkpoint").size, size);
        assert!(member.has_cosigned(&note) && has_cosigned(&stock.cosigner, &note), "{kind}");
    }
    // Tessera's own check reads the member's mirror.
    let fsck = go_tool("fsck", "fsck", "github.com/transparency-dev/tessera/cmd/fsck");
    let mirror = format!("--storage_url={}/{}/", member.url(), origin_hash("tessera.example/log"));
    let checked = run(Command::new(fsck).args(["--ui=false", &mirror, &format!("--public_key={}", file("log.vkey"))]));
    assert!(checked.stderr.contains("Successfully fsck'd"), "{checked:?}");
    // The log's key signs another log, which somebody was shown.
    let shown = tessera.add("twin", "quorum none\n", "other", 5);
    assert!(!member.has_cosigned(&shown));
    let report = |log: &str| {
        run(coppice().args(["evidence", "report", "--to", &member.url(), &format!("{}/checkpoint", file(log))]))
    };
    assert!(report("log").expect(0).stdout.contains("says: fine"));
    assert!(report("twin").expect(1).stdout.contains("says: evidence"));
    assert!(member.has_halted());
    let found = member.evidence();
    assert_eq!(found.len(), 1);
    fs::write(file("found"), &found[0]).expect("it is written");
    let verdict =
        run(coppice().args(["evidence", "verify", &file("found"), "--key", &vkey, "--json"])).expect(0).json();
    assert_eq!((&verdict["a"]["signed_by"], &verdict["one_key"]), (&vkey.clone().into(), &true.into()));
    run(Command::new(go_tool("judge", "judge", ".")).args([&file("found"), &vkey])).expect(0);
}

#[test]
fn a_cosigner_and_a_stock_witness_stand_in_one_policy() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| work.path().join(name).display().to_string();
    let dir = work.path().join("ledger");
    fs::create_dir(&dir).expect("a new directory");
    run(coppice().args(["keygen", "--out"]).arg(dir.join("ledger.key"))).expect(0);
    let vkey = fs::read_to_string(dir.join("ledger.vkey")).expect("the public key").trim().to_owned();
    let port = free_port();
    let member = Member::new(work.path(), "acme", &vkey, &format!("http://127.0.0.1:{port}"));
    let stock = Stock::new(&work.path().join("stock"), vkey.split_once('+').expect("a vkey").0, &vkey);
    let _running = (member.start(), stock.start());
    let named =
        format!("log {vkey}\n{}witness stock {} http://127.0.0.1:{}\n", member.line, stock.cosigner, stock.port);
    let absent = Member::new(work.path(), "bolt", &vkey, &format!("http://127.0.0.1:{port}"));
    for (name, more, all) in [("both", "", ""), ("three", absent.line.as_str(), " bolt.example/w")] {
        let text = format!("{named}{more}group g all acme.example/w stock{all}\nquorum g\n");
        fs::write(file(name), text).expect("a file can be written");
    }
    let listen = format!("127.0.0.1:{port}");
    let dev = Dev::start(&dir, &small(&["--http-listen", &listen, "--witness-policy", &file("both")]));
    put(&dev, 1);
    dev.run(&["get", "k", "--proof", &file("proof"), "--cosigned"]).expect(0);
    let verify = |policy: &str| run(coppice().args(["verify", &file("proof"), "--policy", &file(policy), "--json"]));
    let proven = verify("both").expect(0).json();
    let mut names: Vec<&str> = proven["cosignatures"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["witness"].as_str().expect("a name"))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["acme.example/w", "stock"], "{proven}");
    assert_eq!(verify("three").expect(1).json()["failed_step"], "cosignatures");
    dev.stop();
}
