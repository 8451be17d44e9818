use coppice_proto::status;

use super::*;
use crate::{
    DuplexNet,
    hosted::tests::{SHARD, hosted},
    replica::{Input, tests::raft_id},
    service::tests::certified,
};

fn request(change: &str, raft_id: RaftId, node: &str) -> v1::ChangeMemberRequest {
    let (change, node) = (change.to_owned(), node.to_owned());
    v1::ChangeMemberRequest { group: SHARD.number(), raft_id: raft_id.0, node, change }
}

#[test]
fn changes_of_members_are_read_strictly() {
    let id = raft_id(2);
    let read =
        |change_of: &str, raft_id, node: &str| change(&request(change_of, raft_id, node)).map_err(|it| it.reason);
    let learner = Member { raft_id: id, node: "n".repeat(NODE_NAME_BYTES_MAX) };
    assert_eq!(read("add_learner", id, &learner.node), Ok(Change::AddLearner(learner.clone())));
    assert_eq!(read("promote", id, ""), Ok(Change::Promote(id)));
    assert_eq!(read("remove", id, ""), Ok(Change::Remove(id)));
    assert_eq!(read("lead", id, ""), Ok(Change::Lead(id)));
    for (change_of, raft_id, node) in [
        ("", id, ""),
        ("Promote", id, ""),
        ("add_learner", id, ""),
        ("add_learner", id, &*"n".repeat(NODE_NAME_BYTES_MAX + 1)),
        ("remove", RaftId(0), ""),
        ("remove", RaftId::new(0, 1), ""),
        ("remove", RaftId::new(2, 0), ""),
    ] {
        assert_eq!(read(change_of, raft_id, node), Err(Reason::InvalidArgument), "{change_of} {raft_id}");
    }
}

#[tokio::test]
async fn a_node_changes_only_the_membership_of_its_own_replicas() {
    let service = NodeService { hosted: hosted(&DuplexNet::new()) };
    let asks = async |role, change: &str, raft_id, node: &str| {
        let answer = service.change_member(certified(request(change, raft_id, node), role, "node-2")).await;
        status::reason(&answer.expect_err("no replica is here")).expect("it has a reason")
    };
    // Requests that are not denied find no replica here.
    let own = RaftId::new(2, 5);
    assert_eq!(asks(Role::Node, "add_learner", own, "node-2").await, Reason::NotFound);
    assert_eq!(asks(Role::Node, "remove", own, "").await, Reason::NotFound);
    assert_eq!(asks(Role::Node, "remove", raft_id(3), "").await, Reason::Denied);
    assert_eq!(asks(Role::Node, "add_learner", own, "node-3").await, Reason::Denied, "under its id, elsewhere");
    assert_eq!(asks(Role::Node, "add_learner", raft_id(8), "node-8").await, Reason::Denied, "its node is unknown");
    assert_eq!(asks(Role::Node, "lead", own, "").await, Reason::Denied);
    for change in ["lead", "remove"] {
        assert_eq!(asks(Role::Coordinator, change, raft_id(3), "").await, Reason::NotFound);
    }
}

#[tokio::test]
async fn a_change_is_handed_to_the_groups_replica_and_its_refusal_to_the_caller() {
    let hosted = hosted(&DuplexNet::new());
    let replica = hosted.put_shard(None);
    let service = NodeService { hosted };
    let asked = service.change_member(Request::new(request("remove", raft_id(2), "")));
    let answer = async {
        replica.shared.mailbox.arrival(crate::replica::tests::LIMIT).await;
        match replica.shared.mailbox.take(Duration::ZERO).pop() {
            Some(Input::Change(Change::Remove(id), answer)) if id == raft_id(2) => {
                answer.send(Err(Refusal::not_leader("node-3"))).expect("the caller waits");
            }
            other => panic!("another input: {other:?}"),
        }
    };
    let (answer, ()) = tokio::join!(asked, answer);
    let refusal = answer.expect_err("it does not lead");
    assert_eq!(status::metadata(&refusal, status::LEADER).as_deref(), Some("node-3"));
}

#[tokio::test]
async fn a_group_that_is_not_here_is_not_led_from_here() {
    let hosted = hosted(&DuplexNet::new());
    let replica = hosted.put_shard(None);
    let service = NodeService { hosted };
    let leads = async |group: u32| {
        let answer = service.leads(Request::new(v1::LeadsRequest { group })).await.expect("it answers").into_inner();
        (answer.leads, answer.term)
    };
    assert_eq!(leads(SHARD.number()).await, (false, 0));
    {
        let mut status = replica.shared.status.write().expect("nobody panicked");
        (status.role, status.term) = (ReplicaRole::Leader, 7);
    }
    assert_eq!((leads(SHARD.number()).await, leads(9).await), ((true, 7), (false, 0)));
}
