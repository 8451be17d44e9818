//! `coppice console` as other programs on the machine see it: who is let in, and what may be asked.

mod common;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

use common::{Dev, LIMIT, run};

/// A running console.
struct Console {
    child: Child,
    port: u16,
    secret: String,
}

impl Console {
    fn start(dev: &Dev) -> Self {
        let mut command = dev.command(&["console", "--trust", &format!("@{}", dev.dir.join("ledger.vkey").display())]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command can be run");
        let mut ready = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
        lines.read_line(&mut ready).expect("it says where it is");
        let url = ready.trim().strip_prefix("ready http://127.0.0.1:").unwrap_or_else(|| panic!("{ready}"));
        let (port, secret) = url.split_once("/#").expect("an address and a secret");
        assert_eq!(secret.len(), 32, "{ready}");
        Self { port: port.parse().expect("a port"), secret: secret.to_owned(), child }
    }

    /// The code and the whole text of an answer to a request with these lines.
    fn ask(&self, first: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut request = format!("{first} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            request += &format!("{header}\r\n");
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).expect("it reads");
        let mut answer = Vec::new();
        // A server that has refused may close before it has read everything.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.get(9..12).and_then(|code| code.parse().ok());
        (code.unwrap_or_else(|| panic!("{first} {headers:?}: {answer}")), answer)
    }

    fn get(&self, path: &str, headers: &[&str]) -> (u16, String) {
        self.ask(&format!("GET {path}"), headers, "")
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}", self.port)
    }

    fn let_in(&self) -> String {
        format!("Coppice-Console: {}", self.secret)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(work: &std::path::Path) -> Dev {
    Dev::start(&work.join("my-ledger"), &["--replicas", "1", "--shards", "2"].map(str::to_owned))
}

#[test]
fn nobody_but_its_user_gets_anything_out_of_a_console() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let console = Console::start(&dev);
    let (host, let_in) = (console.host(), console.let_in());
    let own = [host.as_str(), let_in.as_str()];
    let (code, page) = console.get("/", &[&host]);
    assert_eq!(code, 200, "{page}");
    let page = page.to_ascii_lowercase();
    assert!(
        page.contains("content-security-policy: default-src 'none'; script-src 'self' 'wasm-unsafe-eval'"),
        "{page}"
    );
    assert!(page.contains("require-trusted-types-for 'script'") && page.contains("frame-ancestors 'none'"), "{page}");
    assert!(!page.contains("access-control"), "no other page may read it");
    assert_eq!(console.get("/v1/head", &own).0, 200);
    let settings = console.get("/settings.json", &own).1;
    let key = std::fs::read_to_string(dev.dir.join("ledger.vkey")).expect("the ledger has a key");
    assert!(settings.contains(key.trim()), "the user's side says whom to trust: {settings}");

    let port = console.port;
    for host in ["127.0.0.1.evil.com".to_owned(), format!("127.0.0.1.evil.com:{port}"), "evil.com".to_owned()] {
        let host = format!("Host: {host}");
        for path in ["/", "/app.js", "/v1/head", "/settings.json", "/nothing"] {
            assert_eq!(console.get(path, &[&host, &let_in]).0, 421, "{path} {host}");
        }
    }
    for port in [port ^ 1, 80] {
        assert_eq!(console.get("/v1/head", &[&format!("Host: localhost:{port}"), &let_in]).0, 421, "another port");
    }
    assert_eq!(console.get("/v1/head", &[&format!("Host: localhost:{port}"), &let_in]).0, 200);
    for stranger in
        ["Origin: http://evil.com", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"]
    {
        for path in ["/", "/v1/head"] {
            assert_eq!(console.get(path, &[&host, &let_in, stranger]).0, 403, "{path} {stranger}");
        }
    }
    for path in ["/v1/head", "/v1/records/k", "/v1/status", "/settings.json"] {
        assert_eq!(console.get(path, &[&host]).0, 403, "{path} without the secret");
        assert_eq!(console.get(path, &[&host, "Coppice-Console: 00000000000000000000000000000000"]).0, 403, "{path}");
    }
}

#[test]
fn a_console_writes_nothing_whatever_it_is_asked() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let console = Console::start(&dev);
    let (host, let_in) = (console.host(), console.let_in());
    let own = [host.as_str(), let_in.as_str(), "Coppice-Write: any", "Content-Type: application/json"];
    let before = console.get("/v1/head", &own).1;
    for first in [
        "PUT /v1/records/k",
        "DELETE /v1/records/k",
        "POST /v1/batches",
        "PUT /v1/sessions/000102030405060708090a0b0c0d0e0f",
        "POST /coppice.v1.Ledger/Commit",
        "POST /coppice.v1.Ledger/Prune",
        "POST /coppice.v1.Ledger/Rollback",
        "POST /",
        "OPTIONS /v1/head",
    ] {
        assert_eq!(console.ask(first, &own, r#"{"put":[["k","v"]]}"#).0, 405, "{first}");
    }
    let web = [host.as_str(), let_in.as_str(), "Content-Type: application/grpc-web+proto"];
    assert_eq!(console.ask("POST /coppice.v1.Ledger/Commit", &web, "\0\0\0\0\0").0, 405);
    for path in [
        "/coppice.v1.Ledger/Prune",
        "/v1/batches",
        "/v1/watch",
        "/v1/openapi.json",
        "/v1/",
        "/v2/head",
        "/../etc/passwd",
    ] {
        assert_eq!(console.get(path, &own).0, 404, "{path}");
    }
    let head = |answer: &str| answer.split("\r\n\r\n").nth(1).map(str::to_owned);
    assert_eq!(head(&console.get("/v1/head", &own).1), head(&before), "nothing was written");
}

#[test]
fn a_console_listens_for_this_machine_alone() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let mut command = common::coppice();
        command.args(["console", "--endpoint", "http://127.0.0.1:1", "--listen", address]);
        let failed = run(&mut command).expect(2);
        assert!(failed.stderr.contains("other machines could reach it"), "{failed:?}");
    }
}
