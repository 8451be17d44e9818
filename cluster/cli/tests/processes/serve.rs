//! `coppice serve`: processes that are node and coordinator.

use std::{collections::BTreeSet, fs, net::TcpListener};

use serde_json::Value;

use super::{STOP_LIMIT, assert_all_there, load_file};
use crate::{
    common,
    harness::{Cluster, Process, until},
};

/// The value of a metric with labels that contain these words.
pub fn metric(text: &str, name: &str, words: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(words));
    let line = line.unwrap_or_else(|| panic!("there is no {name} with {words}: {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn one_process_commits_proves_stops_in_order_and_recovers_when_it_is_killed() {
    let cluster = Cluster::alone();
    let vkey = fs::read_to_string(cluster.path("ledger.vkey")).expect("it was made");
    let mut process = cluster.serve(1);
    cluster.until_it_commits("ready=yes");
    cluster.until_ready(1, "");
    assert_eq!(cluster.run(&["get", "ready", "--trust", vkey.trim()]).expect(0).stdout, "yes");
    let metrics = cluster.metrics(1);
    assert!(metric(&metrics, "coppice_commit_versions_total", "") >= 1.0);
    assert!(metric(&metrics, "rpc_server_call_duration_seconds_count", "coppice.v1.Shard/Prepare") >= 1.0);
    let connections = |cluster: &Cluster| metric(&cluster.metrics(1), "coppice_net_connections", "of=\"grpc\"");
    until("only clients had connections", || (connections(&cluster) == 0.0).then_some(()));

    // Each end of the process has a load of its own: one for both could end while it starts.
    let (file, mut history) = load_file(cluster.dir.path(), 1, 200);
    let load = cluster.start_load(&[&file, "--patience", "60"]);
    let (took, log) = process.stop_with_log();
    assert!(took < STOP_LIMIT);
    let place = |role: &str| log.find(&format!("{role}::process: stopped in order"));
    let (coordinator, node) = (place("coppice_coordinator"), place("coppice_shard_node"));
    assert!(coordinator.is_some() && coordinator < node, "the coordinator ends first: {log}");
    process = cluster.serve(1);
    load.finish(common::LIMIT).expect(0);
    let (file, lines) = load_file(cluster.dir.path(), 2, 200);
    history.extend(lines);
    let load = cluster.start_load(&[&file, "--patience", "60"]);
    process.kill();
    process = cluster.serve(1);
    load.finish(common::LIMIT).expect(0);
    assert_eq!(cluster.version(), 1 + history.len() as u64);
    assert_all_there(&cluster, &history);
    let last = cluster.run(&["get", "ready", "--trust", vkey.trim()]).expect(0);
    assert_eq!(last.stdout, "yes");
    assert!(process.stop() < STOP_LIMIT);
    common::assert_sound(&cluster.path("node-1"));
}

/// The actions in the access log of a process.
fn actions(cluster: &Cluster, ordinal: usize) -> Vec<Value> {
    let text = fs::read_to_string(cluster.path(&format!("access-log-{ordinal}"))).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["action"].is_string()).collect()
}

#[test]
fn three_processes_are_a_cluster_in_which_each_coordinator_finds_the_leaders() {
    let cluster = Cluster::of_both_roles();
    let vkey = fs::read_to_string(cluster.path("ledger.vkey")).expect("it was made");
    let mut processes: Vec<Option<Process>> = (1..=3).map(|ordinal| Some(cluster.serve(ordinal))).collect();
    (1..=3).for_each(|ordinal| cluster.until_ready(ordinal, ""));
    let at = |ordinal: usize, arguments: &[&str]| {
        common::run(cluster.coppice(arguments).env("COPPICE_ENDPOINT", cluster.api(ordinal)))
    };
    let commits = |ordinal: usize, pair: &str| {
        until("a commit", || (at(ordinal, &["commit", "--put", pair]).code == 0).then_some(()));
    };
    cluster.until_whole();
    // The groups are led on three nodes, and one coordinator orders the writes of all.
    for (group, node) in [("root", "node-1"), ("shard-0", "node-2"), ("shard-1", "node-3")] {
        until("the leadership moves", || (at(1, &["lead", group, node]).code == 0).then_some(()));
    }
    for ordinal in 1..=3 {
        commits(ordinal, &format!("account/{ordinal}=1"));
        commits(ordinal, &format!("zone/{ordinal}={ordinal}"));
    }
    for ordinal in 1..=3 {
        for other in 1..=3 {
            let got = at(ordinal, &["get", &format!("zone/{other}"), "--trust", vkey.trim()]).expect(0);
            assert_eq!(got.stdout, other.to_string());
        }
    }
    let status = at(2, &["status", "--json"]).expect(0).json();
    let leader = status["leader"].as_str().and_then(|name| name.strip_prefix("node-")).expect("a leading coordinator");
    let leader: usize = leader.parse().expect("a number");
    // The node beside the coordinator recorded who took over: it saw its certificate.
    let took_over: BTreeSet<String> = (1..=3)
        .flat_map(|ordinal| actions(&cluster, ordinal))
        .filter(|line| line["action"] == "take over")
        .map(|line| line["caller"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert!(took_over.contains(&format!("CN=node-{leader}")), "{took_over:?}");

    processes[leader - 1].take().expect("it runs").kill();
    let other = leader % 3 + 1;
    commits(other, "zone/1=4");
    assert_eq!(at(other, &["get", "zone/1", "--trust", vkey.trim()]).expect(0).stdout, "4");
    processes[leader - 1] = Some(cluster.serve(leader));
    cluster.until_ready(leader, "");
    commits(leader, "zone/2=5");
    assert_eq!(at(leader, &["get", "zone/2", "--trust", vkey.trim()]).expect(0).stdout, "5");
    for process in processes.into_iter().flatten() {
        assert!(process.stop() < STOP_LIMIT);
    }
    (1..=3).for_each(|ordinal| common::assert_sound(&cluster.path(&format!("node-{ordinal}"))));
}

#[test]
fn wrong_settings_are_refused_before_anything_is_opened() {
    let cluster = Cluster::of_both_roles();
    let fails = |code: i32, more: &[&str], words: &str| {
        let done = common::run(&mut cluster.serve_command(1, more)).expect(code);
        assert!(done.stderr.contains(words), "{}", done.stderr);
    };
    fails(2, &["--set", "naem=x"], "`naem`");
    fails(2, &["--set", "name=other"], "node-1.pem");
    fails(2, &["--set", "api_listen=nowhere"], "api_listen");
    fails(2, &["--set", "api_listen=0.0.0.0:1"], "api_listen = 0.0.0.0:1 tells others nothing");
    fails(2, &["--set", "signing_key_file=none.key"], "none.key");
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    let address = taken.local_addr().expect("it is bound");
    fails(3, &["--set", &format!("api_listen={address}")], "cannot listen on");
    let shown = common::run(&mut cluster.serve_command(1, &["--print-config"])).expect(0);
    assert!(shown.stdout.contains("api_listen = ") && shown.stdout.contains("node = \"node-1\""), "{}", shown.stdout);
    // A node's certificate is not that of a coordinator.
    cluster.authority().certify_as(cluster.dir.path(), "node-1", &["node"]);
    fails(2, &[], "coordinator");
    assert!(!cluster.path("node-1").exists(), "nothing was made");
}
