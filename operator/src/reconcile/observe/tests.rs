//! Pods and reports as Kubernetes and the coordinators provide them.

use std::collections::BTreeMap;

use coppice_proto::v1;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("it is a time")
}

fn facts() -> Facts {
    let object = json!({ "apiVersion": "coppice.dev/v1alpha1", "kind": "LedgerCluster",
        "metadata": { "name": "ledger", "namespace": "bank", "uid": "1" }, "spec": {} });
    Facts {
        cluster: serde_json::from_value(object).expect("it can be read"),
        cluster_id: String::new(),
        signing_secret: "k".to_owned(),
        next_key: false,
        founded: true,
        certificates: BTreeMap::new(),
    }
}

fn pod(name: &str, revision: &str, container: Value, ready: (&str, i64)) -> Pod {
    let since = now().checked_sub(SignedDuration::from_secs(ready.1)).expect("it is a time");
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": "u", "labels": { "controller-revision-hash": revision } },
        "status": {
            "containerStatuses": [{ "name": "node", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": container }],
            "conditions": [{ "type": "Ready", "status": ready.0, "lastTransitionTime": since.to_string() }],
        },
    }))
    .expect("it is a pod")
}

fn running() -> Value {
    json!({ "running": {} })
}

fn set(revision: &str, observed: i64) -> StatefulSet {
    serde_json::from_value(json!({
        "metadata": { "name": "ledger-node", "generation": 2 },
        "status": { "replicas": 3, "observedGeneration": observed, "updateRevision": revision },
    }))
    .expect("it is a set")
}

#[test]
fn a_pod_is_what_its_containers_and_conditions_say() {
    let of = |container: Value, ready: (&str, i64)| state(Some(&pod("p", "r", container, ready)), now());
    assert_eq!(of(running(), ("True", 5)), State::Ready);
    assert_eq!(of(running(), ("False", 5)), State::Running);
    assert_eq!(of(running(), ("False", 601)), State::Stalled);
    for reason in ["ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError"] {
        assert_eq!(of(json!({ "waiting": { "reason": reason } }), ("False", 5)), State::Stopped);
    }
    assert_eq!(of(json!({ "terminated": { "exitCode": 3 } }), ("False", 5)), State::Stopped);
    assert_eq!(state(None, now()), State::Gone);
    let mut going = pod("p", "r", running(), ("True", 5));
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(state(Some(&going), now()), State::Gone);
    let mut homeless = pod("p", "r", running(), ("False", 5));
    homeless.status.as_mut().expect("it has one").container_statuses = None;
    assert_eq!(state(Some(&homeless), now()), State::Stopped, "no machine has room for it");
}

#[test]
fn a_pod_of_another_template_is_outdated_once_the_template_was_seen() {
    let pods =
        vec![pod("ledger-node-0", "old", running(), ("True", 5)), pod("ledger-node-1", "new", running(), ("True", 5))];
    let mut observed = Observed { sets: vec![set("new", 2)], pods };
    let members = observed.members(&facts(), Role::Node, now()).expect("the template was seen");
    let outdated: Vec<bool> = members.iter().map(|member| member.outdated).collect();
    assert_eq!(outdated, [true, false, false], "what is not there is made of the new one");
    assert_eq!(members[2].state, State::Gone);
    observed.sets = vec![set("new", 1)];
    assert_eq!(observed.members(&facts(), Role::Node, now()), None, "its revision may still be the old one");
}

#[test]
fn a_reader_that_has_not_served_for_minutes_is_stalled_whatever_the_reason() {
    let of = |pod: &Pod| reader_state(Some(pod), now());
    let waiting = || json!({ "waiting": { "reason": "ImagePullBackOff" } });
    for (container, late, early) in [(running(), 181, State::Running), (waiting(), 181, State::Stopped)] {
        assert_eq!(of(&pod("p", "r", container.clone(), ("False", 179))), early);
        assert_eq!(of(&pod("p", "r", container, ("False", late))), State::Stalled);
    }
    assert_eq!(of(&pod("p", "r", running(), ("True", 9_999))), State::Ready);
    assert_eq!(reader_state(None, now()), State::Stalled, "nobody may make it");
    let time = |seconds| {
        let time = now().checked_sub(SignedDuration::from_secs(seconds)).expect("it is a time");
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time))
    };
    let mut going = pod("p", "r", running(), ("True", 9_999));
    for (seconds, state) in [(5, State::Gone), (181, State::Stalled)] {
        going.metadata.deletion_timestamp = time(seconds);
        assert_eq!(of(&going), state, "{seconds} s after the end of its grace");
    }
    let mut homeless: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" } })).expect("it is a pod");
    for (seconds, state) in [(5, State::Stopped), (181, State::Stalled)] {
        homeless.metadata.creation_timestamp = time(seconds);
        assert_eq!(of(&homeless), state, "{seconds} s without a machine");
    }
}

fn replica(node: &str, role: &str, applied: u64) -> v1::ReplicaStatus {
    v1::ReplicaStatus { node: node.to_owned(), role: role.to_owned(), applied, ..v1::ReplicaStatus::default() }
}

#[test]
fn groups_are_those_that_the_ledger_reports() {
    let group =
        |name: &str, replicas| v1::GroupStatus { group: name.to_owned(), replicas, ..v1::GroupStatus::default() };
    let status = v1::StatusResponse {
        groups: vec![
            group(
                "root",
                vec![
                    replica("ledger-node-0", "leader", 5000),
                    replica("ledger-node-1", "follower", 4000),
                    replica("ledger-node-2", "follower", 3999),
                ],
            ),
            // Node 1 lost its volume, and its old replica is still listed; node 2 is not reported
            // at all.
            group(
                "shard-0",
                vec![
                    replica("ledger-node-0", "follower", 9),
                    replica("ledger-node-1", "stopped", 0),
                    replica("ledger-node-1", "follower", 9),
                ],
            ),
            group(
                "shard-1",
                vec![
                    replica("ledger-node-0", "leader", 9),
                    replica("ledger-node-1", "learner", 9),
                    replica("ledger-node-2", "quarantined", 9),
                ],
            ),
        ],
        ..v1::StatusResponse::default()
    };
    let groups = node_groups(&facts(), &Report { status, state_root: Vec::new() });
    let parts = |index: usize| groups[index].parts.values().copied().collect::<Vec<_>>();
    assert_eq!((parts(0), groups[0].led), (vec![Part::Leads, Part::Votes, Part::Behind], true));
    assert_eq!((parts(1), groups[1].led), (vec![Part::Votes, Part::Votes, Part::Unknown], false));
    assert_eq!((parts(2), groups[2].led), (vec![Part::Leads, Part::Silent, Part::Behind], true));
    assert!(groups.iter().all(|group| group.quorum == 2));
}

#[test]
fn the_voters_are_those_that_raft_counts_whatever_a_replica_says() {
    let group = |voters: &[u64], third: &str| {
        let replicas = (0..3).map(|index: u64| v1::ReplicaStatus {
            raft_id: index + 1,
            ..replica(
                &format!("ledger-node-{index}"),
                ["leader", "follower", third][usize::try_from(index).expect("small")],
                9,
            )
        });
        let group = v1::GroupStatus {
            group: "root".to_owned(),
            replicas: replicas.collect(),
            voters: voters.to_vec(),
            ..v1::GroupStatus::default()
        };
        let status = v1::StatusResponse { groups: vec![group], ..v1::StatusResponse::default() };
        node_groups(&facts(), &Report { status, state_root: Vec::new() }).swap_remove(0)
    };
    let of = |voters: &[u64]| {
        let group = group(voters, "follower");
        (group.parts[&2], group.quorum, group.ghosts)
    };
    assert_eq!(of(&[1, 2, 3]), (Part::Votes, 2, 0));
    assert_eq!(of(&[1, 2]), (Part::Silent, 2, 0), "it has lost its vote, and does not know it yet");
    assert_eq!(of(&[1, 2, 3, 9]), (Part::Votes, 3, 1), "another one is counted that nobody has");
    assert_eq!(of(&[1, 2, 9]), (Part::Silent, 2, 0));
    assert_eq!(of(&[]), (Part::Votes, 2, 0), "an older coordinator does not tell");
    for role in ["candidate", "learner", "a role of a later version"] {
        assert_eq!(group(&[1, 2, 3], role).parts[&2], Part::Unknown, "{role}: it is counted, and may vote");
        assert_eq!(group(&[1, 2], role).parts[&2], Part::Silent, "{role}");
    }
    assert_eq!(group(&[], "learner").parts[&2], Part::Silent);
    assert_eq!(group(&[1, 2, 3], "stopped").parts[&2], Part::Silent);
}

#[test]
fn without_a_report_the_nodes_groups_are_unknown_and_the_others_are_not() {
    let observed = Observed { sets: vec![set("new", 2)], pods: Vec::new() };
    let fleet = observed.fleet(&facts(), Role::Node, None, now()).expect("the template was seen");
    assert_eq!((fleet.groups, fleet.unborn), (None, false));
    let member = |state| Member { name: "a".to_owned(), outdated: false, state };
    let members = [member(State::Ready), member(State::Running)];
    let group = ready_group("etcd", &members, 2, Some("a"), Part::Unknown);
    assert_eq!(group.parts.into_values().collect::<Vec<_>>(), [Part::Leads, Part::Unknown]);
}
