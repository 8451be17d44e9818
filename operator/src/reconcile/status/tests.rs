//! Statuses for given observations.

use std::collections::BTreeMap;

use coppice_proto::v1;
use serde_json::json;

use super::*;
use crate::{reconcile::build::Facts, rollout::Member};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("it is a time")
}

fn cluster() -> LedgerCluster {
    let object = json!({ "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerCluster",
        "metadata": { "name": "ledger", "namespace": "bank", "uid": "1", "generation": 7 },
        "spec": { "shards": { "count": 1 } } });
    serde_json::from_value(object).expect("it can be read")
}

fn found(cluster: &LedgerCluster) -> Dereferenced {
    let facts = Facts {
        cluster: cluster.clone(),
        cluster_id: "0f".to_owned(),
        signing_secret: "k".to_owned(),
        next_key: false,
        founded: true,
        certificates: BTreeMap::new(),
    };
    Dereferenced { facts, vkey: "vkey".to_owned(), tls: None, authorities: Vec::new() }
}

fn fleets(found: &Dereferenced) -> Vec<(Role, Fleet)> {
    let member = |name| Member { name, outdated: false, state: State::Ready };
    let fleet =
        |role| Fleet { members: found.facts.pods(role).into_iter().map(member).collect(), groups: None, unborn: false };
    Role::ALL.map(|role| (role, fleet(role))).to_vec()
}

fn report() -> Report {
    let replica = |index: usize| v1::ReplicaStatus {
        node: format!("ledger-node-{index}"),
        role: if index == 1 { "leader" } else { "follower" }.to_owned(),
        ..v1::ReplicaStatus::default()
    };
    let group = |name: &str| v1::GroupStatus {
        group: name.to_owned(),
        replicas: (0..3).map(replica).collect(),
        ..v1::GroupStatus::default()
    };
    let status = v1::StatusResponse {
        head: Some(v1::Stamp { epoch: 1, version: 42 }),
        pruned_boundary: 3,
        leader: "ledger-coordinator-0".to_owned(),
        groups: vec![group("root"), group("shard-0")],
        ..v1::StatusResponse::default()
    };
    Report { status, state_root: vec![0xab; 32] }
}

fn condition<'a>(status: &'a LedgerClusterStatus, kind: &str) -> (&'a str, &'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind).expect("it is reported");
    (&condition.status, &condition.reason, &condition.message)
}

#[test]
fn a_cluster_that_is_whole_is_ready_and_reports_its_head() {
    let cluster = cluster();
    let (found, report) = (found(&cluster), report());
    let fleets = fleets(&found);
    let outcome = Outcome { found: &found, fleets: &fleets, report: Some(&report), progress: None };
    let status = status(&cluster, &outcome, at(5));
    assert_eq!(condition(&status, "Ready").0, "True");
    assert_eq!(condition(&status, "Progressing"), ("False", "Current", "all pods are of the current template"));
    let head = status.head.expect("it is known");
    assert_eq!((head.epoch, head.version, head.state_root.len()), (1, 42, 64));
    assert_eq!((status.nodes.as_deref(), status.coordinators.as_deref()), (Some("3/3"), Some("2/2")));
    assert_eq!(status.leader.as_deref(), Some("ledger-coordinator-0"));
    assert_eq!(
        status.groups.iter().map(|group| group.leader.as_deref()).collect::<Vec<_>>(),
        [Some("ledger-node-1"); 2]
    );
    assert_eq!(status.observed_generation, Some(7));
    assert_eq!(status.endpoint.as_deref(), Some("https://ledger.bank.svc:7411"));
}

#[test]
fn one_process_counts_as_a_node_and_as_a_coordinator() {
    let mut cluster = cluster();
    (cluster.spec.one_process, cluster.spec.nodes.count) = (true, 1);
    let (found, report) = (found(&cluster), report());
    let fleets = fleets(&found);
    let outcome = Outcome { found: &found, fleets: &fleets, report: Some(&report), progress: None };
    let status = status(&cluster, &outcome, at(5));
    assert_eq!((status.nodes.as_deref(), status.coordinators.as_deref()), (Some("1/1"), Some("1/1")));
}

#[test]
fn what_is_missing_is_named() {
    let cluster = cluster();
    let found = found(&cluster);
    let mut fleets = fleets(&found);
    let mut report = report();
    report.status.groups[1].replicas[2].role = "learner".to_owned();
    let ready = |fleets: &[(Role, Fleet)], report: Option<&Report>, progress: Option<&str>| {
        let progress = progress.map(str::to_owned);
        let status = status(&cluster, &Outcome { found: &found, fleets, report, progress }, at(5));
        let (holds, _, message) = condition(&status, "Ready");
        assert_eq!(holds, "False");
        message.to_owned()
    };
    assert_eq!(ready(&fleets, Some(&report), None), "shard-0: not voting, or far behind: ledger-node-2");
    report.status.groups[1].replicas[1].role = "follower".to_owned();
    assert!(ready(&fleets, Some(&report), None).starts_with("shard-0: it has no leader; "));
    assert!(ready(&fleets, None, None).starts_with("no coordinator answers"));
    let mut haunted = super::tests::report();
    haunted.status.groups[1].voters = vec![0, 1, 2, 3];
    haunted.status.groups[1].replicas.iter_mut().zip(0..).for_each(|(replica, id)| replica.raft_id = id);
    let words = "shard-0: the vote of a replica that is gone is still counted";
    assert_eq!(ready(&fleets, Some(&haunted), None), words);
    let outcome = Outcome { found: &found, fleets: &fleets, report: Some(&haunted), progress: None };
    let voters = status(&cluster, &outcome, at(5)).groups.into_iter().map(|group| group.voters);
    assert_eq!(voters.collect::<Vec<_>>(), [None, Some("4/3".to_owned())]);
    let whole = super::tests::report();
    assert_eq!(ready(&fleets, Some(&whole), Some("ledger-node-2 goes")), "ledger-node-2 goes");
    fleets[2].1.members[0].state = State::Stopped;
    assert_eq!(ready(&fleets, Some(&report), None), "ledger-node-0 does not start: see its events and logs");
    fleets.remove(0);
    assert_eq!(ready(&fleets, Some(&report), None), "ledger-etcd is being made");
}

#[test]
fn a_reader_that_does_not_serve_is_reported_and_makes_nothing_else_unready() {
    let mut cluster = cluster();
    let plain = found(&cluster);
    cluster.spec.readers = Some(serde_json::from_value(json!({ "count": 2 })).expect("it can be read"));
    let found = found(&cluster);
    let mut report = report();
    for (node, applied) in [("ledger-reader-0", 70), ("ledger-reader-1", 58), ("ledger-node-0", 75)] {
        let role = if node == "ledger-node-0" { "follower" } else { "learner" };
        let replica =
            v1::ReplicaStatus { node: node.to_owned(), role: role.to_owned(), applied, ..v1::ReplicaStatus::default() };
        report.status.groups[1].replicas.push(replica);
    }
    let mut fleets = fleets(&found);
    let of = |found: &Dereferenced, fleets: &[(Role, Fleet)]| {
        status(&cluster, &Outcome { found, fleets, report: Some(&report), progress: None }, at(5))
    };
    let well = of(&found, &fleets);
    assert_eq!((well.readers.as_deref(), well.reader_lag), (Some("2/2"), Some(17)));
    assert_eq!(condition(&well, READERS_READY), ("True", "AllWell", "every reader is ready"));
    for (state, words) in [
        (State::Gone, "is being replaced"),
        (State::Stopped, "does not start"),
        (State::Running, "is being filled"),
        (State::Stalled, "is missing, or has not been ready for minutes"),
    ] {
        fleets[1].1.members[1].state = state;
        let ill = of(&found, &fleets);
        assert_eq!(ill.readers.as_deref(), Some("1/2"));
        let (holds, reason, message) = condition(&ill, READERS_READY);
        assert_eq!((holds, reason), ("False", "ReaderNotReady"));
        assert!(message.starts_with("ledger-reader-1 ") && message.contains(words), "{message}");
        assert_eq!(condition(&ill, "Ready").0, "True", "the ledger does everything without it");
    }
    fleets.remove(1);
    assert_eq!(condition(&of(&found, &fleets), READERS_READY).2, "ledger-reader is being made");
    cluster.status = Some(well);
    let without =
        status(&cluster, &Outcome { found: &plain, fleets: &fleets, report: Some(&report), progress: None }, at(5));
    assert_eq!((without.readers, without.reader_lag), (None, None));
    assert!(without.conditions.iter().all(|condition| condition.type_ != READERS_READY), "there are none any more");
}

#[test]
fn what_was_known_stays_while_nobody_answers() {
    let mut cluster = cluster();
    let (found, report) = (found(&cluster), report());
    let fleets = fleets(&found);
    let outcome = |report| Outcome { found: &found, fleets: &fleets, report, progress: None };
    cluster.status = Some(status(&cluster, &outcome(Some(&report)), at(5)));
    let later = status(&cluster, &outcome(None), at(9));
    assert_eq!(later.head.map(|head| head.version), Some(42));
    assert_eq!(later.leader, None);
    let blocked = blocked(&cluster, "SigningKeyLost", "put it back", at(9));
    assert_eq!(condition(&blocked, "Ready"), ("False", "SigningKeyLost", "put it back"));
    assert_eq!(blocked.head.map(|head| head.version), Some(42));
}

#[test]
fn a_condition_has_the_time_of_its_last_change() {
    let mut cluster = cluster();
    let (found, report) = (found(&cluster), report());
    let fleets = fleets(&found);
    let outcome = |report| Outcome { found: &found, fleets: &fleets, report, progress: None };
    let since = |cluster: &LedgerCluster| {
        let conditions = &cluster.status.as_ref().expect("it is reported").conditions;
        conditions
            .iter()
            .find(|condition| condition.type_ == "Available")
            .map(|condition| condition.last_transition_time.0)
    };
    for (now, answer, changed) in
        [(5, Some(&report), 5), (6, Some(&report), 5), (7, None, 7), (8, None, 7), (9, Some(&report), 9)]
    {
        cluster.status = Some(status(&cluster, &outcome(answer), at(now)));
        assert_eq!(since(&cluster), Some(at(changed)), "{now}");
    }
}

#[test]
fn a_pause_is_reported() {
    let mut cluster = cluster();
    cluster.spec.paused = true;
    let (found, report) = (found(&cluster), report());
    let fleets = fleets(&found);
    let outcome = Outcome { found: &found, fleets: &fleets, report: Some(&report), progress: None };
    assert_eq!(condition(&status(&cluster, &outcome, at(5)), "Progressing").1, "Paused");
}
