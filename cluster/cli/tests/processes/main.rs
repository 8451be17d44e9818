//! Real processes over TCP. They start in any order, stop under load without losing anything, come
//! back without their disks, refuse foreign data, and accept only certificates of their cluster.

#[path = "../common/mod.rs"]
mod common;
mod harness;
mod http;
mod members;
mod peers;
mod readers;
mod script;
mod serve;
mod telemetry;
mod web;
mod who;

use std::{fs, path::Path, time::Duration};

use coppice_proto::v1::{self, ledger_client::LedgerClient, node_client::NodeClient, root_client::RootClient};
use harness::{Authority, Cluster, until};
use serde_json::Value;
use tonic::{
    Code,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

/// Longest time to stop in order, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// A file of lines to load. Each part of a history has lines of its own.
fn load_file(dir: &Path, part: u64, lines: u64) -> (String, Vec<common::Line>) {
    let history = common::generated(10 + part, lines, 700);
    let path = dir.join(format!("load-{part}.jsonl"));
    common::write_history(&path, &history);
    (path.display().to_string(), history)
}

/// Checks that the state at head is that of the whole history.
fn assert_all_there_with(command: impl Fn(&[&str]) -> std::process::Command, history: &[common::Line]) {
    let expected = common::replay(history).pop().expect("the history is not empty");
    let records =
        common::run(&mut command(&["range", "account/", "account0", "--limit", "100000", "--json"])).expect(0).lines();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let records = records.iter().filter(|record| record["key"].is_string());
    let found: Vec<(String, String)> = records.map(|record| (text(&record["key"]), text(&record["value"]))).collect();
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
}

fn assert_all_there(cluster: &Cluster, history: &[common::Line]) {
    assert_all_there_with(|arguments| cluster.coppice(arguments), history);
}

#[test]
fn processes_start_in_any_order_and_stop_under_load_without_losing_anything() {
    let cluster = Cluster::plain();
    let mut coordinator = cluster.coordinator();
    coordinator.says("waiting for a leader");
    let mut first = cluster.node(3);
    first.says("waiting for node-1, node-2 to answer");
    let mut second = cluster.node(1);
    second.says("waiting for node-2 to answer");
    let mut nodes = vec![second, cluster.node(2), first];
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();

    let mut history = Vec::new();
    for ordinal in 1..=3 {
        // Each stop has a load of its own: one for all could end while a node starts.
        let (file, lines) = load_file(cluster.dir.path(), ordinal, 150);
        let load = cluster.start_load(&[&file]);
        let took = nodes.remove(0).stop();
        assert!(took < STOP_LIMIT, "node-{ordinal} took {took:?} to stop");
        nodes.push(cluster.node(usize::try_from(ordinal).expect("a small number")));
        load.finish(common::LIMIT).expect(0);
        cluster.until_whole();
        history.extend(lines);
    }
    assert_eq!(cluster.version(), 1 + history.len() as u64);
    assert_all_there(&cluster, &history);
    assert!(coordinator.stop() < STOP_LIMIT);
    for node in nodes {
        assert!(node.stop() < STOP_LIMIT);
    }
    for ordinal in 1..=3 {
        common::assert_sound(&cluster.path(&format!("node-{ordinal}")));
    }
}

#[test]
fn the_health_port_says_which_processes_live_have_started_and_serve() {
    let cluster = Cluster::tls();
    let started = |process| until("it has started", || (cluster.probe(process, "/startupz")?.0 == 200).then_some(()));
    let coordinator = cluster.coordinator();
    let mut nodes = vec![cluster.node(1)];
    started(1);
    cluster.until_ready(1, "is to be formed or joined");
    cluster.until_ready(4, "root");
    started(4);
    nodes.extend([cluster.node(2), cluster.node(3)]);
    (1..=4).for_each(|process| cluster.until_ready(process, ""));
    // Without a majority, no node serves, and restarting the remaining one would not help.
    nodes.drain(1..).for_each(harness::Process::kill);
    cluster.until_ready(1, "has no leader");
    cluster.until_ready(4, "root");
    for process in [1, 4] {
        assert_eq!(cluster.probe(process, "/livez").expect("it listens").0, 200);
        started(process);
    }
    nodes.extend([cluster.node(2), cluster.node(3)]);
    (1..=4).for_each(|process| cluster.until_ready(process, ""));
    drop((coordinator, nodes));
}

#[test]
fn status_shows_what_is_known_when_a_majority_is_away() {
    let cluster = Cluster::plain();
    let mut nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    nodes.remove(2).kill();
    until("one node of three is away", || {
        let done = cluster.run(&["status", "--json"]);
        (done.code == 0 && done.json()["unreachable"] == serde_json::json!(["node-3"])).then_some(())
    });
    nodes.remove(1).kill();
    let done = cluster.run(&["status", "--json"]).expect(4);
    let status = done.json();
    assert_eq!(status["unreachable"], serde_json::json!(["node-2", "node-3"]));
    assert_eq!(status["without_majority"], serde_json::json!(["root", "shard-0", "shard-1"]));
    assert_eq!((&status["version"], &status["pruned_boundary"]), (&Value::Null, &Value::Null), "head is not known");
    for group in status["groups"].as_array().expect("a list") {
        assert_eq!(group["replicas"].as_array().map(Vec::len), Some(1), "{group}");
        assert_eq!(group["voters"].as_array().map(Vec::len), Some(3), "{group}");
    }
    let text = cluster.run(&["status"]).expect(4);
    assert!(text.stdout.contains("root: 3 voters") && text.stdout.contains("NO MAJORITY"), "{}", text.stdout);
    assert!(text.stderr.contains("without a majority: root, shard-0, shard-1"), "{}", text.stderr);
    drop((coordinator, nodes));
}

#[test]
fn a_node_without_its_disk_comes_back_under_a_new_raft_id_however_often_it_is_killed_on_the_way() {
    let cluster = Cluster::plain();
    let mut nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    let before = cluster.until_whole();
    let (file, history) = load_file(cluster.dir.path(), 1, 250);
    let load = cluster.start(&["load", &file]);
    nodes.remove(1).kill();
    fs::remove_dir_all(cluster.path("node-2")).expect("its disk is lost");
    for words in ["joining the group", "a snapshot was installed", "joined the group"] {
        let node = cluster.node(2);
        // The last round may find nothing left to do.
        let mut seen = false;
        until("a step of the join", || {
            seen = node.log().contains(words);
            let voting = || cluster.replicas().is_some_and(|groups| voters_of(&groups, "node-2") == 3);
            (seen || voting()).then_some(())
        });
        node.kill();
    }
    let node = cluster.node(2);
    let after = cluster.until_whole();
    for (before, after) in before.iter().zip(&after) {
        let id = |group: &[(String, String, u64)], node: &str| {
            group.iter().find(|(name, ..)| name == node).map(|(_, _, id)| *id).expect("it has a replica")
        };
        assert_ne!(id(before, "node-2"), id(after, "node-2"), "a raft id is never used twice");
        assert_eq!(id(before, "node-1"), id(after, "node-1"));
    }
    // The old ids are no longer members: with node-1 gone, the two remaining nodes are a majority.
    nodes.remove(0).kill();
    load.finish(common::LIMIT).expect(0);
    assert_all_there(&cluster, &history);
    drop((coordinator, nodes, node));
}

fn voters_of(groups: &[Vec<(String, String, u64)>], node: &str) -> usize {
    let votes = |(name, role, _): &&(String, String, u64)| name == node && (role == "follower" || role == "leader");
    groups.iter().filter(|group| group.iter().any(|replica| votes(&replica))).count()
}

#[test]
fn a_node_that_moves_to_another_port_is_found_without_a_restart_of_anybody_else() {
    let cluster = Cluster::registered();
    let mut nodes = cluster.nodes();
    let mut coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    nodes.remove(1).kill();
    let moved = cluster.node_elsewhere(2);
    coordinator.says("a node is registered somewhere else now");
    cluster.until_whole();
    // With node-1 gone, this node is needed for a majority, by the coordinator and by node-3.
    nodes.remove(0).kill();
    cluster.until_it_commits("moved=yes");
    drop((coordinator, nodes, moved));
}

#[test]
fn a_new_authority_is_taken_up_without_a_restart_and_open_connections_end_with_the_old_one() {
    let words = "the next connections use them";
    let cluster = Cluster::tls();
    let mut nodes = cluster.nodes();
    let mut coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    let follow = cluster.coppice(&["log", "--follow"]);
    let mut follower = harness::Process::spawn("follower", follow, cluster.path("follower.log"));
    follower.says("1");
    let lines = |follower: &harness::Process| follower.log().lines().count();

    let old = fs::read_to_string(cluster.path("ca.pem")).expect("it was made");
    let new = Authority::new();
    fs::write(cluster.path("ca.pem"), old + &new.pem()).expect("a file can be written");
    // A process logs this twice: for its listener, and for its own connections.
    nodes.iter_mut().for_each(|node| node.says_times(2, words));
    coordinator.says_times(2, words);
    for name in harness::CERTIFIED {
        new.certify_only(cluster.dir.path(), name);
    }
    nodes.iter_mut().for_each(|node| node.says_times(4, words));
    coordinator.says_times(4, words);
    let before = lines(&follower);
    cluster.until_it_commits("both=yes");
    until("an earlier stream goes on while both are trusted", || (lines(&follower) > before).then_some(()));
    fs::write(cluster.path("ca.pem"), new.pem()).expect("a file can be written");
    // A process that starts now trusts only the new authority, and everyone must show a certificate
    // from it.
    nodes.remove(1).kill();
    nodes.insert(1, cluster.node(2));
    cluster.until_whole();
    cluster.until_it_commits("renewed=yes");
    coordinator.says("an open connection ends: its other end is no longer trusted");
    assert!(!follower.ends().success(), "its certificate is of the authority that went");
    drop((coordinator, nodes));
}

#[test]
fn a_client_takes_up_renewed_certificates_while_it_runs() {
    let cluster = Cluster::tls();
    let _nodes = cluster.nodes();
    let _coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    let own = |name: &str| {
        for kind in ["pem", "key"] {
            let (from, to) = (cluster.path(&format!("{name}.{kind}")), cluster.path(&format!("own.{kind}")));
            fs::copy(from, to).expect("a file can be written");
        }
    };
    own("reader");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let entered = runtime.enter();
    let identity = Some((cluster.path("own.pem"), cluster.path("own.key")));
    let tls = Some(coppice_client::Tls::Files { ca: cluster.path("ca.pem"), identity });
    let endpoint = cluster.endpoint().replace("http://", "https://");
    let options = coppice_client::Options { tls, ..coppice_client::Options::new(endpoint) };
    let client = coppice_client::Client::new(options.clone()).expect("the files are whole");
    let put = |value: &'static [u8]| v1::Operation {
        key: bytes::Bytes::from_static(b"renewed"),
        change: Some(v1::operation::Change::Put(bytes::Bytes::from_static(value))),
    };
    let commit = || {
        let batch = v1::Batch { operations: vec![put(b"yes")], ..Default::default() };
        runtime.block_on(client.commit(batch, false))
    };
    let refused = commit().expect_err("a reader writes nothing");
    assert!(refused.to_string().contains("writer"), "{refused}");
    own("writer");
    until("the same client writes", || commit().ok());
    // A certificate with the key of another one is not a valid pair, so it is ignored.
    fs::copy(cluster.path("reader.key"), cluster.path("own.key")).expect("a file can be written");
    let broken = coppice_client::Client::new(options).expect_err("a client that begins now");
    assert!(broken.to_string().starts_with("certificates: "), "{broken}");
    commit().expect("what the files held before stays in force");
    drop(entered);
}

#[test]
fn a_process_with_a_foreign_certificate_is_not_let_in_and_nothing_is_spoken_in_the_clear() {
    let cluster = Cluster::tls();
    let mut nodes = cluster.nodes();
    let mut coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.until_whole();
    nodes.remove(2).kill();
    let theirs = Authority::new();
    theirs.certify_only(cluster.dir.path(), "node-3");
    // The impostor trusts the others, but shows somebody else's certificate.
    let impostor = cluster.node(3);
    nodes[0].says("a connection was refused: TLS");
    cluster.until_it_commits("still=yes");
    let groups = cluster.replicas().expect("the others serve");
    assert_eq!(voters_of(&groups, "node-3"), 0, "nobody talks to it: {groups:?}");
    impostor.kill();

    fs::write(cluster.path("theirs.pem"), theirs.pem()).expect("a file can be written");
    let stranger = common::run(cluster.coppice(&["head"]).env("COPPICE_CA", cluster.path("theirs.pem")));
    assert_ne!(stranger.code, 0, "the client trusts another authority");
    let plain = cluster.coppice(&["head"]).env_remove("COPPICE_CA").output().expect("the command can be run");
    assert_eq!(plain.status.code(), Some(2), "https without an authority");
    coordinator.says("this coordinator leads");
    drop((coordinator, nodes));
}

/// The denials in the coordinator's access log.
fn denials(cluster: &Cluster) -> Vec<Value> {
    let text = fs::read_to_string(cluster.path("access-log")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["why"].is_string()).collect()
}

#[test]
fn a_client_may_do_what_its_role_says_and_what_is_denied_changes_nothing_and_is_recorded() {
    let cluster = Cluster::tls();
    let nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("held=1");
    cluster.until_whole();
    let roles = ["reader", "writer", "operator", "auditor", "nobody"];
    // Two commands of each kind, and the roles that may give them.
    let vkey = fs::read_to_string(cluster.path("ledger.vkey")).expect("it was made");
    let commands: [(&[&str], &str, &[&str]); 11] = [
        (&["get", "held"], "Get", &["reader", "writer", "auditor"]),
        (&["history", "held"], "History", &["reader", "writer", "auditor"]),
        (&["head"], "Head", &["reader", "writer", "operator", "auditor"]),
        (&["status"], "Status", &["reader", "writer", "operator", "auditor"]),
        (&["commit", "--put", "held=2"], "OpenSession", &["writer"]),
        (&["pin"], "Pin", &["operator"]),
        (&["lead", "root", "node-9"], "TransferLeader", &["operator"]),
        (&["anchor", "now"], "Anchor", &["operator"]),
        (&["rotate-key", vkey.trim(), "--reason", "test"], "RotateKey", &["operator"]),
        (&["prune", "--before", "1", "--reason", "room"], "Prune", &["operator"]),
        (&["rollback", "--to", "1", "--reason", "test"], "Rollback", &["operator"]),
    ];
    let head = || cluster.run(&["head", "--json"]).expect(0).json();
    let before = head();
    let mut recorded = 0;
    for (words, method, may) in commands {
        for role in roles.iter().filter(|role| !may.contains(role)) {
            let denied = common::run(cluster.coppice_as(role, words).arg("--json")).expect(3);
            assert_eq!(denied.error()["reason"], "DENIED", "{role} {words:?}");
            until("the denial is recorded", || (denials(&cluster).len() > recorded).then_some(()));
            let lines = denials(&cluster);
            assert_eq!(lines.len(), recorded + 1, "{role} {words:?}: {lines:?}");
            let known: &[&str] = if *role == "nobody" { &[] } else { &[role] };
            assert_eq!(lines[recorded]["roles"], serde_json::json!(known));
            let path = lines[recorded]["method"].as_str().unwrap_or_default();
            // A caller without a role fails on the first call that a command makes.
            assert!(*role == "nobody" || path == format!("/coppice.v1.Ledger/{method}"), "{path} is {method}");
            recorded += 1;
        }
    }
    assert_eq!(head(), before, "nothing was written, pruned or rolled back");
    assert_eq!(cluster.run(&["pins", "--json"]).expect(0).lines(), Vec::<Value>::new());

    for (words, _, may) in commands {
        for role in may {
            let done = common::run(cluster.coppice_as(role, words).arg("--json"));
            let allowed = done.code == 0 || done.error()["reason"] != "DENIED";
            assert!(allowed, "{role} {words:?}");
        }
    }
    assert_eq!(denials(&cluster).len(), recorded);
    let mut uncertified = cluster.coppice(&["head"]);
    uncertified.env_remove("COPPICE_CLIENT_CERT").env_remove("COPPICE_CLIENT_KEY");
    let refused = common::run(&mut uncertified).expect(4);
    assert!(refused.stderr.contains("--client-cert"), "{}", refused.stderr);
    until("the client without a certificate is recorded", || (denials(&cluster).len() > recorded).then_some(()));
    drop((coordinator, nodes));
}

#[test]
fn a_caller_that_may_watch_the_log_but_not_read_is_sent_no_changed_records() {
    let cluster = Cluster::tls();
    let (nodes, coordinator) = (cluster.nodes(), cluster.coordinator());
    cluster.until_it_commits("held=1");
    let runtime = tokio::runtime::Runtime::new().expect("the system gives threads");
    let watch = |name: &str, want_changed_keys, want_changed_values| {
        let request =
            v1::WatchHeadsRequest { want_changed_keys, want_changed_values, ..v1::WatchHeadsRequest::default() };
        let call = async { LedgerClient::new(connect(&cluster, name, 4)).watch_heads(request).await };
        runtime.block_on(call).map(|_| ()).map_err(|refused| refused.code())
    };
    for (keys, values) in [(true, false), (false, true), (true, true)] {
        assert_eq!(watch("operator", keys, values), Err(Code::PermissionDenied));
        assert_eq!(watch("reader", keys, values), Ok(()));
    }
    assert_eq!(watch("operator", false, false), Ok(()));
    // Without values, a range may show records of ledgers, which are not for readers.
    let range = |name: &str, without_values| {
        let request = v1::RangeRequest { low: vec![1].into(), without_values, ..v1::RangeRequest::default() };
        let call = async { LedgerClient::new(connect(&cluster, name, 4)).range(request).await };
        runtime.block_on(call).map(|_| ()).map_err(|refused| refused.code())
    };
    assert_eq!(range("reader", true), Err(Code::PermissionDenied));
    assert_eq!((range("reader", false), range("auditor", true)), (Ok(()), Ok(())));
    let lines = until("the denials are recorded", || Some(denials(&cluster)).filter(|lines| lines.len() == 4));
    assert!(lines[..3].iter().all(|line| line["roles"] == serde_json::json!(["operator"])), "{lines:?}");
    drop((coordinator, nodes));
}

#[test]
fn the_signing_key_is_changed_and_clients_that_trust_the_old_one_follow() {
    let cluster = Cluster::plain();
    let nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("held=1");
    let path = |name: &str| cluster.path(name).display().to_string();
    let vkey = |name: &str| fs::read_to_string(cluster.path(name)).expect("a public key").trim().to_owned();
    let old = vkey("ledger.vkey");
    let (name, _) = old.split_once('+').expect("a vkey");
    cluster.run(&["keygen", "--out", &path("next.key"), "--name", name]).expect(0);
    let new = vkey("next.vkey");
    cluster.run(&["get", "held", "--proof", &path("before.proof")]).expect(0);
    let rotate = || cluster.run(&["rotate-key", &new, "--reason", "schedule", "--principal", "ops", "--json"]);
    let refused = rotate().expect(3);
    assert!(refused.stderr.contains("next_signing_key_file"), "{}", refused.stderr);

    coordinator.stop();
    let next = format!("next_signing_key_file={}", path("next.key"));
    let coordinator = cluster.coordinator_with(&["--set", &next], &[]);
    cluster.until_it_commits("held=2");
    fs::write(cluster.path("saved"), cluster.run(&["checkpoint"]).expect(0).stdout).expect("a file can be written");
    let entry = rotate().expect(0).json();
    assert_eq!((entry["kind"].as_str(), entry["vkey"].as_str()), (Some("key"), Some(new.as_str())));
    assert_eq!(cluster.run(&["status", "--json"]).expect(0).json()["vkey"], new.as_str());

    cluster.run(&["commit", "--put", "held=3", "--trust", &old]).expect(0);
    cluster.run(&["get", "held", "--proof", &path("after.proof"), "--trust", &old]).expect(0);
    let newer = path("newer.proof");
    cluster.run(&["checkpoint", "--since", &path("before.proof"), "--proof", &newer]).expect(0);
    let verify = |file: &str, key: &str, more: &[&str]| {
        let mut command = common::coppice();
        command.args(["verify", "--json", "--key", key]).args(more).arg(path(file));
        common::run(&mut command)
    };
    for key in [&old, &new] {
        let proven = verify("after.proof", key, &[]).expect(0).json();
        assert_eq!(proven["signed_by"], new.as_str());
        assert_eq!(proven["key_changes"], serde_json::json!([{ "sequence": entry["sequence"], "vkey": new }]));
        let proven = verify("before.proof", key, &["--checkpoint", &newer]).expect(0).json();
        assert_eq!(proven["signed_by"], old.as_str());
        let checked = cluster.run(&["log", "check", "--from", &path("saved"), "--key", key, "--json"]).expect(0).json();
        assert_eq!(checked["verdict"], "fine");
    }
    verify("before.proof", &old, &[]).expect(0);
    let alone = verify("before.proof", &new, &[]).expect(1).json();
    let words = alone["error"].as_str().unwrap_or_default();
    assert!(words.contains("one of another key of its name"), "{words}");

    coordinator.stop();
    let forgotten = cluster.coordinator();
    cluster.until_ready(4, "next_signing_key_file");
    forgotten.stop();
    fs::copy(cluster.path("next.key"), cluster.path("ledger.key")).expect("a file can be copied");
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("held=4");
    cluster.run(&["get", "held", "--trust", &old]).expect(0);
    drop((coordinator, nodes));
}

/// A channel to a node, with the certificate of this name.
fn connect(cluster: &Cluster, name: &str, node: usize) -> Channel {
    let read = |name: String| fs::read_to_string(cluster.path(&name)).expect("it was made");
    let own = Identity::from_pem(read(format!("{name}.pem")), read(format!("{name}.key")));
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem".to_owned()))).identity(own);
    let endpoint = Endpoint::from_shared(format!("https://localhost:{}", cluster.port_of(node)));
    endpoint.expect("an endpoint").tls_config(tls).expect("the files are whole").connect_lazy()
}

#[test]
fn no_client_may_call_nodes_whatever_its_role() {
    let cluster = Cluster::tls();
    let (mut nodes, coordinator) = (cluster.nodes(), cluster.coordinator());
    cluster.until_it_commits("held=1");
    let runtime = tokio::runtime::Runtime::new().expect("the system gives threads");
    runtime.block_on(async {
        for name in ["client", "reader", "writer", "operator", "auditor", "nobody"] {
            for node in 1..=3 {
                let channel = connect(&cluster, name, node);
                let takes_over = RootClient::new(channel.clone()).take_over(v1::TakeOverRequest::default()).await;
                let reads = RootClient::new(channel.clone()).read_root(v1::ReadRootRequest::default()).await;
                let asks = NodeClient::new(channel).node_status(v1::NodeStatusRequest {}).await;
                for code in [takes_over.err(), reads.err(), asks.err()].map(|error| error.map(|error| error.code())) {
                    assert_eq!(code, Some(Code::PermissionDenied), "{name} at node {node}");
                }
            }
        }
        let process =
            NodeClient::new(connect(&cluster, "coordinator-1", 1)).node_status(v1::NodeStatusRequest {}).await;
        process.expect("a coordinator may ask");
    });
    nodes[0].says("a call was denied");
    cluster.until_it_commits("held=2");
    drop((coordinator, nodes));
}

#[test]
fn clients_of_an_authority_of_their_own_reach_coordinators_and_no_node() {
    let cluster = Cluster::tls();
    let path = |name: &str| cluster.path(name).display().to_string();
    let clients = Authority::new();
    clients.certify_only(cluster.dir.path(), "writer");
    // The holder of this authority could name its client like a coordinator; nodes must not trust
    // it.
    clients.certify_only(cluster.dir.path(), "coordinator-2");
    fs::write(cluster.path("clients.pem"), clients.pem()).expect("a file can be written");
    let mut nodes = cluster.nodes();
    let shown = [("cert", "coordinator-1.pem"), ("key", "coordinator-1.key"), ("client_ca", "clients.pem")];
    let settings = shown.map(|(key, file)| format!("api_tls.{key}={}", path(file)));
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let coordinator = cluster.coordinator_with(&flags, &[]);
    // This certificate comes from the cluster's authority, like another coordinator's.
    cluster.until_it_commits("held=1");
    common::run(&mut cluster.coppice_as("writer", &["commit", "--put", "held=2"])).expect(0);
    let denied = common::run(cluster.coppice_as("writer", &["rollback", "--to", "1", "--reason", "x"]).arg("--json"));
    assert_eq!(denied.expect(3).error()["reason"], "DENIED");
    let runtime = tokio::runtime::Runtime::new().expect("the system gives threads");
    let refused = runtime.block_on(async {
        NodeClient::new(connect(&cluster, "coordinator-2", 1)).node_status(v1::NodeStatusRequest {}).await
    });
    assert_ne!(refused.expect_err("it is not let in").code(), Code::PermissionDenied, "there is no connection");
    nodes[0].says("a connection was refused: TLS");
    drop((coordinator, nodes));
}

#[test]
fn old_values_go_to_the_cold_directory_and_a_node_does_not_start_without_it() {
    let cluster = Cluster::plain();
    let cold = |ordinal: usize| cluster.path(&format!("cold-{ordinal}"));
    let node = |ordinal: usize| {
        let dir = format!("cold.dir={}", cold(ordinal).display());
        let settings = [&dir, "cold.hot_value_bytes=1", "tuning.flush_interval_ms=200"];
        cluster.node_with(ordinal, &settings.map(|setting| ["--set", setting]).concat(), &[])
    };
    let mut nodes: Vec<_> = (1..=3).map(node).collect();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    let values = |number: u64| -> Vec<(String, String)> {
        (0..10).map(|key| (format!("account/{key:05}"), format!("{number}").repeat(100_000))).collect()
    };
    let line = |number: u64| {
        let puts = values(number);
        let text = serde_json::json!({ "put": puts }).to_string();
        common::Line { text, puts, deletes: Vec::new(), hex: false }
    };
    let history: Vec<_> = (1..=9).map(line).collect();
    let file = cluster.path("load.jsonl");
    common::write_history(&file, &history);
    common::run(&mut cluster.coppice(&["load", &file.display().to_string()])).expect(0);
    let moved = |ordinal: usize| {
        let state = fs::read_dir(cold(ordinal).join("group-1/state-1")).ok()?;
        let names = state.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.into_iter().find(|name| name.starts_with("values-") && !name.ends_with(".new"))
    };
    for ordinal in 1..=3 {
        until("old values are in the cold directory", || moved(ordinal));
    }
    assert_all_there(&cluster, &history);
    let old = common::run(&mut cluster.coppice(&["get", "account/00003", "--version", "2"])).expect(0).stdout;
    assert_eq!(old.trim_end(), "1".repeat(100_000));
    nodes.remove(0).stop();
    let data = cluster.path("node-1");
    common::run(common::coppice().arg("fsck").arg(&data).arg("--cold-dir").arg(cold(1))).expect(0);
    let refused = common::run(common::coppice().arg("fsck").arg(&data));
    assert!(refused.expect(4).stderr.contains("the cold directory"));
    // Without its cold directory, the node throws none of its data away.
    let mut without = cluster.node(1);
    without.says("lies in the cold directory, which is missing");
    without.kill();
    nodes.push(node(1));
    cluster.until_whole();
    assert!(moved(1).is_some());
    drop((coordinator, nodes));
}
