//! The API over HTTP with certificates: each role by `curl`, HTTP/1.1 and HTTP/2, and denials on
//! record.

use std::{fs, process::Command};

use serde_json::Value;

use crate::{
    common::{self, Done},
    harness::{Cluster, until},
};

const MEMBER: &str = "mill";

/// A request: its path and flags, the names that may send it, their answer, and the method that it
/// stands for.
type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], u16, &'a str);

/// Runs `curl` with the certificate of this name. Standard output ends with the code of the answer.
fn curl(cluster: &Cluster, name: &str, path: &str, more: &[&str]) -> Done {
    let file = |end: &str| cluster.path(&format!("{name}.{end}"));
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "50", "-w", "\n%{http_code} %{http_version}", "--cacert"]);
    command.arg(cluster.path("ca.pem")).arg("--cert").arg(file("pem")).arg("--key").arg(file("key")).args(more);
    common::run(command.arg(format!("https://127.0.0.1:{}{path}", cluster.port_of(4))))
}

fn code(done: &Done) -> u16 {
    let last = done.stdout.lines().last().unwrap_or_default();
    last.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{done:?}"))
}

/// The denials in the access log: subject and method.
fn denials(cluster: &Cluster) -> Vec<(String, String)> {
    let log = fs::read_to_string(cluster.path("access-log")).unwrap_or_default();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    lines
        .filter(|line| line["method"].is_string())
        .map(|line| (text(&line["subject"]), text(&line["method"])))
        .collect()
}

#[test]
fn each_role_may_do_over_http_what_it_may_by_grpc() {
    let cluster = Cluster::of_ledgers();
    cluster.authority().certify_member(cluster.dir.path(), MEMBER);
    let (_node, _coordinator) = (cluster.node(1), cluster.coordinator());
    cluster.until_it_commits("alice=100");
    let put = ["-X", "PUT", "-H", "Coppice-Write: any", "-d", "1"];
    let delete = ["-X", "DELETE", "-H", "Coppice-Write: any"];
    let batch = ["-H", "Content-Type: application/json", "-d", "{\"put\":[[\"x\",\"1\"]]}"];
    let (read, write, log) = (
        &["reader", "writer", "auditor", "coordinator-1", "client"][..],
        &["writer", "coordinator-1", "client"][..],
        &["reader", "writer", "operator", "auditor", MEMBER, "coordinator-1", "client"][..],
    );
    let version = cluster.version();
    let diff = format!("/v1/diff?from={}&to={version}&low=a", version - 1);
    let requests: [Case<'_>; 14] = [
        ("/v1/records/alice", &[], read, 200, "Get"),
        ("/v1/records/none", &[], read, 404, "Get"),
        ("/v1/records?prefix=a", &[], read, 200, "Range"),
        ("/v1/records/alice/history", &[], read, 200, "History"),
        (&diff, &[], read, 200, "Diff"),
        ("/v1/records/new", &put, write, 200, "Commit"),
        ("/v1/records/new", &delete, write, 200, "Commit"),
        ("/v1/batches", &batch, write, 200, "Commit"),
        ("/v1/sessions/000102030405060708090a0b0c0d0e0f", &put, write, 200, "OpenSession"),
        ("/v1/head", &[], log, 200, "Head"),
        ("/v1/log", &[], log, 200, "WatchHeads"),
        ("/v1/checkpoint", &[], log, 200, "GetCheckpoint"),
        ("/v1/status", &[], log, 200, "Status"),
        ("/v1/nothing", &[], log, 404, "ServerReflectionInfo"),
    ];
    let mut expected = Vec::new();
    for name in ["reader", "writer", "operator", "auditor", MEMBER, "nobody", "node-1", "coordinator-1", "client"] {
        for (at, (path, more, roles, answer, method)) in requests.into_iter().enumerate() {
            let version = if at % 2 == 0 { "--http1.1" } else { "--http2" };
            let done = curl(&cluster, name, path, &[more, &[version]].concat());
            let told = done.stdout.lines().last().unwrap_or_default();
            assert!(told.ends_with(if at % 2 == 0 { " 1.1" } else { " 2" }), "{name} {path}: {done:?}");
            let may = roles.contains(&name);
            assert_eq!(code(&done), if may { answer } else { 403 }, "{name} {path}: {done:?}");
            if !may {
                assert!(done.stdout.contains("\"DENIED\""), "{name} {path}: {done:?}");
                expected.push((format!("CN={name}"), method));
            }
        }
    }
    let recorded = until("all denials are on record", || {
        let recorded = denials(&cluster);
        (recorded.len() >= expected.len()).then_some(recorded)
    });
    assert_eq!(recorded.len(), expected.len(), "{recorded:?}");
    for ((subject, method), (name, wanted)) in recorded.iter().zip(&expected) {
        assert!(subject == name && method.ends_with(&format!("/{wanted}")), "{subject} {method}: {name} {wanted}");
    }
    for (header, name, answer) in [
        ("coppice-forwarded: 1", "writer", 403),
        ("coppice-caller-bin: Q049YWxpY2U", "client", 403),
        ("coppice-forwarded: 1", "coordinator-1", 200),
    ] {
        let done = curl(&cluster, name, "/v1/records/forged", &["-X", "PUT", "-H", header, "-d", "1"]);
        assert_eq!(code(&done), answer, "{header} {name}: {done:?}");
    }
    let none = Command::new("curl")
        .args(["-s", "--max-time", "50", "--cacert"])
        .arg(cluster.path("ca.pem"))
        .arg(format!("https://127.0.0.1:{}/v1/head", cluster.port_of(4)))
        .output()
        .expect("there is curl");
    assert!(!none.status.success() && none.stdout.is_empty(), "without a certificate nothing is said: {none:?}");
    let proof = cluster.path("alice.proof");
    let wanted = ["-H", "Accept: application/vnd.coppice.proof", "-o", &proof.display().to_string()];
    assert_eq!(code(&curl(&cluster, "reader", "/v1/records/alice", &wanted)), 200);
    let key = format!("@{}", cluster.path("ledger.vkey").display());
    let verified =
        common::run(common::coppice().arg("verify").arg(&proof).args(["--key", &key, "--expect-key", "alice"]));
    assert!(verified.expect(0).stdout.contains("`100`"));
}
