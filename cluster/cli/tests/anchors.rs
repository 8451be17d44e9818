//! Trusted time by the command: a cluster that an authority stamps, and what a verifier makes of
//! it.

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use common::{Dev, LIMIT, coppice, run};
use serde_json::Value;

/// The folder with authorities that `cluster/timestamp/tests/openssl.sh` makes.
fn authorities(dir: &Path) -> PathBuf {
    let made = dir.join("authorities");
    fs::create_dir(&made).expect("a folder");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root");
    let script = workspace.join("cluster/timestamp/tests/openssl.sh");
    let output = Command::new(script).arg(&made).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    made
}

/// Serves OpenSSL's stamps by this section over HTTP, one request at a time. Returns the address.
fn serve(authorities: PathBuf, section: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let url = format!("http://{}/", listener.local_addr().expect("it listens"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is not this test's concern.
            let _ = answer(stream, &authorities, section);
        }
    });
    url
}

fn answer(mut stream: TcpStream, authorities: &Path, section: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    let (end, length) = loop {
        let mut some = [0; 4096];
        let read = stream.read(&mut some)?;
        request.extend_from_slice(&some[..read]);
        let end = request.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        let head = String::from_utf8_lossy(&request[..end.unwrap_or(0)]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        match (end, length) {
            (Some(end), Some(length)) if request.len() >= end + length => break (end, length),
            _ if read == 0 => return Ok(()),
            _ => {}
        }
    };
    let (query, reply) = (authorities.join("query"), authorities.join("reply"));
    fs::write(&query, &request[end..end + length])?;
    let mut command = Command::new("openssl");
    command.args(["ts", "-reply", "-config", "tsa.cnf", "-section", section, "-queryfile"]).arg(&query);
    command.arg("-out").arg(&reply).current_dir(authorities).output()?;
    let body = fs::read(reply)?;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/timestamp-reply\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a real process is watched until it has made an anchor")]
fn a_receipt_is_judged_by_the_clock_of_an_authority() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = authorities(dir.path());
    let url = serve(made.clone(), "millis");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let root = made.join("first.pem").display().to_string();
    let stranger = made.join("third.pem").display().to_string();
    let data = path("data");
    let shape = ["--replicas", "1", "--tsa", &url, "--tsa-root", &root, "--anchor-every", "1s"].map(str::to_owned);
    let dev = Dev::start(Path::new(&data), &shape);
    let at = |words: &[&str]| dev.run(words);
    at(&["commit", "--put", "a=1"]).expect(0);
    at(&["anchor", "now"]).expect(0);
    let receipt = path("receipt");
    at(&["commit", "--put", "a=2", "--receipt", &receipt]).expect(0);
    let now = at(&["--json", "anchor", "now"]).expect(0).json();
    assert_eq!(now["tokens"][0]["accuracy_s"], 1.5);

    let anchors = at(&["--json", "anchor", "list"]).expect(0).lines();
    assert!(anchors.len() >= 2 && anchors.iter().all(|anchor| anchor["tokens"][0]["time"].is_string()), "{anchors:?}");
    let listed = at(&["anchor", "list"]).expect(0).stdout;
    assert!(listed.contains("+-1.5 s") && listed.contains("plain"), "{listed}");
    let log = at(&["log"]).expect(0).stdout;
    assert!(log.contains("1 token over the first"), "{log}");

    let out = path("out");
    at(&["anchor", "export", "last", &out]).expect(0);
    let verified = Command::new("openssl")
        .args(["ts", "-verify", "-data", "checkpoint", "-in", "token.tsr", "-CAfile", &root])
        .current_dir(&out)
        .output()
        .expect("openssl is installed");
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    assert!(fs::read_to_string(format!("{out}/certificates.pem")).expect("it is there").contains("BEGIN CERTIFICATE"));

    let time = path("time");
    at(&["anchor", "interval", "--version", "2", "--proof", &time]).expect(0);
    let key = format!("@{data}/ledger.vkey");
    let verify = |words: &[&str]| run(coppice().args(["--json", "verify"]).args(words).args(["--key", &key]));
    let judged = verify(&[&time, "--tsa-root", &root, "--max-window", "60s"]).expect(0).json();
    assert_eq!((&judged["kind"], &judged["version"]), (&Value::from("interval"), &Value::from(2)));
    assert_eq!((&judged["time"]["proven"], &judged["time"]["quorum"]), (&Value::from(true), &Value::from(1)));
    assert!(judged["time"]["window_s"].as_f64().is_some_and(|width| (3.0..60.0).contains(&width)), "{judged}");
    let of_receipt = verify(&[&receipt, "--time", &time, "--tsa-root", &root, "--max-window", "60s"]).expect(0).json();
    assert_eq!((&of_receipt["kind"], &of_receipt["time"]), (&Value::from("receipt"), &judged["time"]));

    let refused = |words: &[&str], why: &str| {
        let object = verify(words).expect(1).json();
        assert_eq!((&object["valid"], &object["failed_step"]), (&Value::from(false), &Value::from("time")), "{object}");
        assert!(object["error"].as_str().is_some_and(|error| error.contains(why)), "{object}");
    };
    refused(&[&time, "--tsa-root", &root, "--max-window", "1s"], "wider than 1 s");
    refused(&[&time, "--tsa-root", &stranger, "--max-window", "60s"], "no chain to the authority's roots");
    refused(&[&time, "--tsa-root", &root, "--tsa-root", &stranger, "--max-window", "60s"], "unknown time");
    let other = path("other");
    at(&["anchor", "interval", "--version", "1", "--proof", &other]).expect(0);
    refused(&[&receipt, "--time", &other, "--tsa-root", &root], "another entry");
    refused(&[&receipt, "--time", &receipt, "--tsa-root", &root], "another kind");
    // Without authorities all is a claim, and a proof without stamps can't be judged.
    let claimed = verify(&[&time]).expect(0).json();
    assert_eq!(claimed["time"]["proven"], false);
    let words = run(coppice().args(["verify", &time, "--key", &key])).expect(0).stdout;
    assert!(words.contains("nothing of it is proven without --tsa-root"), "{words}");
    verify(&[&receipt, "--tsa-root", &root]).expect(2);
    verify(&[&time, "--max-window", "10s"]).expect(2);
    verify(&[&time, "--tsa-root", &root, "--tsa-root", &root]).expect(2);
    verify(&[&time, "--tsa-root", &root, "--tsa-quorum", "2"]).expect(2);
    // The wait is over at once: anchors go on by themselves.
    let begun = Instant::now();
    let count = || at(&["--json", "anchor", "list"]).expect(0).lines().len();
    let first = count();
    while count() == first {
        assert!(begun.elapsed() < LIMIT, "anchors are made each second");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_time_ledger_stamps_two_clusters_and_is_stamped_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = authorities(dir.path());
    let url = serve(made.clone(), "millis");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (root, stranger) = (made.join("first.pem").display().to_string(), made.join("third.pem").display().to_string());
    let data = path("time");
    let shape = ["--replicas", "1", "--tsa", &url, "--tsa-root", &root, "--anchor-every", "1h"].map(str::to_owned);
    let clock = Dev::start(Path::new(&data), &shape);
    let clock_key = format!("@{data}/ledger.vkey");
    // Each member has a cluster of its own, and both use one time ledger.
    let member = |name: &str| {
        let shape = [
            "--replicas",
            "1",
            "--time-ledger",
            clock.endpoint.trim_start_matches("http://"),
            &clock_key,
            "--anchor-every",
            "1h",
        ];
        Dev::start(Path::new(&path(name)), &shape.map(str::to_owned))
    };
    let members = [member("one"), member("two")];
    for (member, name) in members.iter().zip(["one", "two"]) {
        clock.run(&["anchor", "now"]).expect(0);
        let before = member.run(&["--json", "anchor", "now"]).expect(0).json();
        assert_eq!(
            (&before["tokens"][0]["type"], before["tokens"].as_array().map(Vec::len)),
            (&Value::from(2), Some(1))
        );
        clock.run(&["anchor", "now"]).expect(0);
        member.run(&["commit", "--put", "contract=signed"]).expect(0);
        member.run(&["anchor", "now"]).expect(0);
        let (time, proofs) = (path(&format!("{name}.time")), path(&format!("{name}.proofs")));
        member.run(&["anchor", "interval", "--version", "1", "--proof", &time]).expect(0);
        let early = clock.run(&["--json", "anchor", "prove", &time, &proofs]).expect(0).json();
        assert_eq!(
            (early["files"].as_array().map(Vec::len), &early["without_later_stamp"]),
            (Some(2), &Value::from(1))
        );
        let own_key = format!("@{}/ledger.vkey", path(name));
        let verify = |words: &[&str]| {
            let files = fs::read_dir(&proofs).expect("a folder").map(|entry| entry.expect("an entry").path());
            let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
            let mut command = coppice();
            command.args(["--json", "verify", &time, "--key", &own_key]).args(words);
            run(command.arg("--time-proof").args(files))
        };
        let believed = ["--time-ledger", &clock_key, "--time-ledger-root", &root];
        let open = verify(&[&believed[..], &["--max-window", "60s"]].concat()).expect(1).json();
        assert!(open["error"].as_str().is_some_and(|error| error.contains("no stamp on one side")), "{open}");
        clock.run(&["anchor", "now"]).expect(0);
        clock.run(&["anchor", "prove", &time, &proofs]).expect(0);
        let judged = verify(&[&believed[..], &["--max-window", "60s"]].concat()).expect(0).json();
        assert_eq!((&judged["time"]["proven"], &judged["time"]["quorum"]), (&Value::from(true), &Value::from(1)));
        let width = judged["time"]["window_s"].as_f64().expect("both bounds");
        assert!((3.0..60.0).contains(&width), "the authority names an accuracy of 1.5 s: {judged}");
        let refused = |words: &[&str], why: &str| {
            let object = verify(words).expect(1).json();
            assert!(object["error"].as_str().is_some_and(|error| error.contains(why)), "{why}: {object}");
        };
        refused(&["--time-ledger", &clock_key, "--time-ledger-root", &stranger], "no chain to the authority's roots");
        refused(&["--time-ledger", &own_key, "--time-ledger-root", &root], "checkpoint");
        let none = run(coppice().args(["--json", "verify", &time, "--key", &own_key]).args(believed)).expect(1).json();
        assert!(none["error"].as_str().is_some_and(|error| error.contains("no --time-proof says when")), "{none}");
        verify(&["--time-ledger", &clock_key, "--time-ledger", &clock_key]).expect(2);
    }
    // The receipts of one member are worth nothing in the log of another.
    let (time, proofs) = (path("one.time"), path("none"));
    members[1].run(&["anchor", "prove", &time, &proofs]).expect(1);
    let listed = clock.run(&["--json", "range", "--prefix", "time/"]).expect(0).lines();
    let taken_in = listed.iter().filter(|record| record["value"].is_string()).count();
    assert_eq!(taken_in, 4, "the time ledger shows what it took in: {listed:?}");
    let words = members[0].run(&["anchor", "list"]).expect(0).stdout;
    assert!(words.contains("of the time ledger"), "{words}");
}

#[test]
fn an_authority_without_its_root_is_refused() {
    for words in [
        &["--tsa", "http://127.0.0.1:1/"][..],
        &["--tsa-root", "/dev/null"],
        &["--tsa", "http://127.0.0.1:1/", "--tsa-root", "/dev/null"],
        &["--anchor-every", "2"],
        &["--time-ledger", "127.0.0.1:1", "no key"],
        &["--time-ledger", "no address", "no key"],
    ] {
        run(coppice().arg("dev").args(words)).expect(2);
    }
}
