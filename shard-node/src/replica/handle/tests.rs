use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt;

use super::*;
use crate::replica::{
    any::AnyReplica,
    status::Role,
    tests::{LANE_MAX, LIMIT, Script, Toy, handle, toy},
};

fn replica() -> ReplicaHandle<Toy> {
    handle(GroupId::Root, Some(toy(&Script::default())))
}

/// Asks for a read index, which is answered or not as a test says.
async fn ask(replica: &ReplicaHandle<Toy>, limit: Duration) -> Result<u64, Refusal> {
    replica.ask(limit, Input::ReadIndex).await
}

/// The answer's end of the only question in the mailbox.
fn question(replica: &ReplicaHandle<Toy>) -> Answer<u64> {
    match replica.shared.mailbox.take(Duration::ZERO).pop() {
        Some(Input::ReadIndex(answer)) => answer,
        other => panic!("no question is there: {other:?}"),
    }
}

#[tokio::test]
async fn a_question_is_answered_refused_or_given_up_and_the_caller_learns_which() {
    let replica = replica();
    let mut asked = Box::pin(ask(&replica, LIMIT));
    assert!(asked.as_mut().now_or_never().is_none(), "nobody has answered");
    question(&replica).send(Ok(7)).expect("the caller waits");
    assert_eq!(asked.await, Ok(7));

    let mut asked = Box::pin(ask(&replica, LIMIT));
    assert!(asked.as_mut().now_or_never().is_none());
    let refusal = Refusal::not_leader("node-2");
    question(&replica).send(Err(refusal.clone())).expect("the caller waits");
    assert_eq!(asked.await, Err(refusal));

    let refusal = ask(&replica, Duration::ZERO).await.expect_err("nobody answers");
    assert_eq!(refusal.reason, Reason::Unavailable);
    assert!(refusal.message.contains("gave no answer in time"), "{refusal:?}");
    assert!(question(&replica).is_closed(), "the replica sees that the caller has gone");
}

#[tokio::test]
async fn a_replica_that_stops_answers_those_that_wait_and_refuses_those_that_come() {
    let replica = replica();
    let mut asked = Box::pin(ask(&replica, LIMIT));
    assert!(asked.as_mut().now_or_never().is_none());
    replica.close();
    let refusal = asked.await.expect_err("it has stopped");
    assert!(refusal.message.contains("stopped meanwhile"), "{refusal:?}");
    let refusal = ask(&replica, LIMIT).await.expect_err("it has stopped");
    assert_eq!(refusal.reason, Reason::Unavailable, "another replica may answer");
    replica.retire(true).await;
}

#[tokio::test]
async fn a_full_mailbox_refuses_requests_and_drops_messages_of_peers_each_by_its_own_bound() {
    let replica = replica();
    let waiting: Vec<_> = (0..LANE_MAX).map(|_| Box::pin(ask(&replica, LIMIT))).collect();
    let mut waiting = waiting;
    waiting.iter_mut().for_each(|asked| assert!(asked.as_mut().now_or_never().is_none()));
    let refusal = ask(&replica, LIMIT).await.expect_err("there is no room");
    assert_eq!(refusal.reason, Reason::ResourceExhausted, "the same replica may answer later");
    (0..2 * LANE_MAX).for_each(|_| replica.peer(coppice_proto::v1::PeerMessage::default(), "node-2"));
    replica.unreachable("node-2");
    assert_eq!(replica.waiting(), (LANE_MAX as u64, LANE_MAX as u64));
}

#[tokio::test]
async fn a_read_index_holds_a_read_until_the_entry_is_applied_here() {
    let replica = replica();
    let mut read = Box::pin(replica.read_index());
    assert!(read.as_mut().now_or_never().is_none());
    question(&replica).send(Ok(5)).expect("the caller waits");
    for applied in [0, 4] {
        replica.shared.applied.send_replace(applied);
        assert!(read.as_mut().now_or_never().is_none(), "entry {applied} is not the fifth");
    }
    replica.shared.applied.send_replace(6);
    assert_eq!(read.await, Ok(()));
}

#[tokio::test]
async fn a_replica_without_a_state_refuses_reads_and_says_why() {
    let replica = handle::<Toy>(GroupId::Root, None);
    replica.shared.set_note("quarantined: waits for a snapshot");
    replica.shared.status.write().expect("nobody panicked").role = Role::Quarantined;
    assert!(!replica.is_open());
    let refusal = replica.read(|_| Ok(())).await.expect_err("there is no state");
    assert_eq!(refusal.reason, Reason::Unavailable);
    assert!(refusal.message.contains("waits for a snapshot"), "{refusal:?}");
    assert_eq!(replica.read_memory(|_| Ok(())).await, Err(refusal));
    assert_eq!(replica.status().role, Role::Quarantined);
}

#[tokio::test]
async fn a_state_that_is_being_written_to_counts_as_there() {
    let replica = replica();
    let writer = replica.shared.machine.write();
    assert!(replica.is_open());
    drop(writer);
}

#[tokio::test]
async fn a_read_of_damaged_bytes_is_reported_to_the_replica_and_any_other_refusal_is_not() {
    let replica = replica();
    let refuse = |reason| move |_: &Toy| -> Result<(), Refusal> { Err(Refusal::new(reason, "page 7")) };
    for reason in [Reason::NotFound, Reason::Pruned, Reason::Internal] {
        replica.read(refuse(reason)).await.expect_err("it is refused");
    }
    assert!(replica.shared.mailbox.take(Duration::ZERO).is_empty());
    for _ in 0..2 * LANE_MAX {
        let refusal = replica.read(refuse(Reason::Corrupted)).await.expect_err("it is refused");
        assert_eq!(refusal.reason, Reason::Corrupted, "the caller is told, too");
    }
    let inputs = replica.shared.mailbox.take(Duration::ZERO);
    assert_eq!(inputs.len(), LANE_MAX, "a full lane takes no more of the same");
    assert!(inputs.iter().all(|input| matches!(input, Input::Damaged(note) if note == "page 7")));
}

#[tokio::test]
async fn a_read_that_panics_is_an_internal_refusal_and_the_next_one_works() {
    let replica = replica();
    let broken = replica.read(|_| -> Result<(), Refusal> { panic!("the read is broken") }).await;
    assert_eq!(broken.map_err(|refusal| refusal.reason), Err(Reason::Internal));
    assert_eq!(replica.read(|_| Ok(3)).await, Ok(3));
}

#[tokio::test]
async fn a_read_of_memory_blocks_no_task_while_the_replica_has_the_state_or_wants_it() {
    let replica = replica();
    let here = std::thread::current().id();
    let thread = || replica.read_memory(|_| Ok(std::thread::current().id()));
    assert_eq!(thread().await, Ok(here));
    let writer = replica.shared.machine.write();
    let mut read = Box::pin(thread());
    assert!(read.as_mut().now_or_never().is_none());
    drop(writer);
    assert_ne!(read.await.expect("it is answered"), here);
    replica.shared.gate.close();
    let mut read = Box::pin(thread());
    assert!(read.as_mut().now_or_never().is_none(), "the replica's thread comes first");
    replica.shared.gate.open();
    assert_ne!(read.await.expect("it is answered"), here);
}

#[tokio::test]
async fn a_read_of_a_state_that_may_come_is_tried_again_after_each_entry_and_no_other_one_is() {
    let replica = replica();
    let attempts = Arc::new(AtomicU32::new(0));
    let read = |reasons: &'static [Reason]| {
        attempts.store(0, Ordering::Relaxed);
        let attempts = Arc::clone(&attempts);
        replica.read_when(move |_| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) as usize;
            reasons.get(attempt).map_or(Ok(attempt), |reason| Err(Refusal::new(*reason, "not yet")))
        })
    };
    let tried = async |times: u32| {
        while attempts.load(Ordering::Relaxed) < times {
            tokio::task::yield_now().await;
        }
    };
    let patient = tokio::time::timeout(LIMIT, read(&[Reason::StateMissing, Reason::MissedAdmin]));
    let entries = async {
        for entry in 1..=2 {
            tried(entry).await;
            replica.shared.applied.send_replace(entry.into());
        }
    };
    let (answer, ()) = tokio::join!(patient, entries);
    assert_eq!(answer.expect("it is answered"), Ok(2));
    // Entries that come meanwhile change nothing about it.
    let lost = read(&[Reason::Pruned, Reason::Pruned]);
    let entries = async {
        tried(1).await;
        replica.shared.applied.send_replace(3);
    };
    let (answer, ()) = tokio::join!(lost, entries);
    assert_eq!(answer.map_err(|refusal| refusal.reason), Err(Reason::Pruned));
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
}
