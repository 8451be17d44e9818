use std::time::Duration;

use coppice_process::access::Role;
use coppice_proto::status;
use coppice_types::Digest;

use super::*;
use crate::{
    DuplexNet,
    hosted::tests::hosted,
    replica::{
        Input, Member,
        tests::{LIMIT, raft_id},
    },
    root::tests::genesis,
    service::tests::certified,
};

fn service(entries: usize) -> RootService {
    let hosted = hosted(&DuplexNet::new());
    hosted.put_root(entries);
    RootService { hosted }
}

#[track_caller]
fn reason<T: std::fmt::Debug>(answer: Result<T, Status>) -> Reason {
    status::reason(&answer.expect_err("it is refused")).expect("it has a reason")
}

#[tokio::test]
async fn a_ledger_is_founded_only_as_the_nodes_are_configured() {
    let service = service(1);
    let header = genesis();
    let Body::Genesis(founding) = &header.body else { panic!("it is a genesis") };
    let ours = ledger::digest(&founding.params, &founding.shard_map);
    let check = |ledger: Option<Digest>, bytes: &[u8]| {
        service.hosted.forming.write().expect("nobody panicked").ledger = ledger;
        service.check_genesis(bytes).map_err(|refusal| refusal.reason)
    };
    assert_eq!(check(Some(ours), &header.encode()), Ok(()));
    assert_eq!(check(None, &header.encode()), Ok(()), "the node has no configuration of its own");
    assert_eq!(check(Some(Digest([1; 32])), &[]), Ok(()), "nothing is founded");
    assert_eq!(check(Some(Digest([1; 32])), &header.encode()), Err(Reason::InvalidArgument));
    assert_eq!(check(Some(ours), &header.encode()[1..]), Err(Reason::InvalidArgument));
}

#[tokio::test]
async fn a_coordinator_takes_over_under_its_own_name_only() {
    let service = service(1);
    let request = v1::TakeOverRequest { candidate: "coordinator-2".to_owned(), genesis: Default::default() };
    let denied = service.take_over(certified(request, Role::Coordinator, "coordinator-1")).await;
    assert_eq!(reason(denied), Reason::Denied);
    let replica = service.hosted.root().expect("it is there");
    assert_eq!(replica.shared.mailbox.waiting(), (0, 0), "nothing was proposed");
}

#[tokio::test]
async fn an_outcome_of_another_command_is_a_bug_and_no_answer() {
    let service = service(1);
    let replica = service.hosted.root().expect("it is there");
    let asked = service.drop_pin(Request::new(v1::UnpinRequest { pin_id: vec![1; 16].into() }));
    let answer = async {
        replica.shared.mailbox.arrival(LIMIT).await;
        match replica.shared.mailbox.take(Duration::ZERO).pop() {
            Some(Input::Command(_, answer, _)) => drop(answer.send(Ok(Ok(Outcome::TookOver { term: Term(3) })))),
            other => panic!("another input: {other:?}"),
        }
    };
    let (answer, ()) = tokio::join!(asked, answer);
    assert_eq!(reason(answer), Reason::Internal);
}

#[tokio::test]
async fn a_command_over_the_limit_of_a_message_is_refused_before_it_is_queued() {
    let service = service(1);
    let max = service.hosted.message_bytes_max;
    let refusal = service.run(vec![0; max + 1]).await.expect_err("it is too large");
    assert_eq!(refusal.reason, Reason::LimitExceeded);
    assert_eq!(service.hosted.root().expect("it is there").shared.mailbox.waiting(), (0, 0));
}

#[tokio::test]
async fn an_attestation_names_the_voters_and_is_empty_without_a_replica() {
    let service = service(3);
    let replica = service.hosted.root().expect("it is there");
    let member = Member { raft_id: raft_id(2), node: "node-2".to_owned() };
    replica.shared.status.write().expect("nobody panicked").voters = vec![member];
    let attest = async |service: &RootService, size| {
        let request = v1::AttestRequest { size, old_size: 0, want_newest: false };
        service.attest(Request::new(request)).await.expect("it answers").into_inner()
    };
    assert_eq!(
        attest(&service, 0).await,
        v1::AttestResponse { voters: vec!["node-2".to_owned()], ..Default::default() }
    );
    assert_eq!(attest(&service, 3).await.log_root.len(), 32);
    let without = RootService { hosted: hosted(&DuplexNet::new()) };
    assert_eq!(attest(&without, 3).await, v1::AttestResponse::default());
}

#[tokio::test]
async fn a_stale_read_asks_no_leader_and_any_other_one_does() {
    let service = service(2);
    let replica = service.hosted.root().expect("it is there");
    let read = |stale_ok| service.read_root(Request::new(v1::ReadRootRequest { stale_ok, read: None }));
    let answer = read(true).await.expect("it is allowed").into_inner();
    assert_eq!(answer.view.map(|view| view.log_size), Some(2));
    assert_eq!(replica.shared.mailbox.waiting(), (0, 0));
    let refuse = async {
        replica.shared.mailbox.arrival(LIMIT).await;
        match replica.shared.mailbox.take(Duration::ZERO).pop() {
            Some(Input::ReadIndex(answer)) => drop(answer.send(Err(Refusal::new(Reason::Unavailable, "cut off")))),
            other => panic!("another input: {other:?}"),
        }
    };
    let (answer, ()) = tokio::join!(read(false), refuse);
    assert_eq!(reason(answer), Reason::Unavailable);
}
