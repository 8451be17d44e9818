use coppice_types::{Digest, RaftId};
use tokio::sync::oneshot::{self, Receiver, error::TryRecvError};

use super::*;

type Got<T> = Receiver<Result<T, Refusal>>;

fn at(index: u64, term: u64) -> Position {
    Position { index, term }
}

fn alone() -> Voters {
    Voters { incoming: vec![RaftId(1)], outgoing: Vec::new() }
}

/// The comparisons of a voter that has applied the entries up to an index.
fn agreed(index: u64) -> Agreements {
    let mut agreements = Agreements::new(RaftId(1));
    (1..=index).for_each(|index| agreements.note_own(index, Digest([1; 32])));
    agreements
}

fn command(waiters: &mut Waiters<u64>, position: Position) -> Got<u64> {
    let (answer, got) = oneshot::channel();
    waiters.command(position, answer, Way::default());
    got
}

fn change(waiters: &mut Waiters<u64>, position: Position) -> Got<()> {
    let (answer, got) = oneshot::channel();
    waiters.change(position, answer);
    got
}

#[track_caller]
fn refused<T: std::fmt::Debug>(got: &mut Got<T>) -> Refusal {
    got.try_recv().expect("it is answered").expect_err("it is refused")
}

#[track_caller]
fn waits<T: std::fmt::Debug>(got: &mut Got<T>) {
    assert!(matches!(got.try_recv(), Err(TryRecvError::Empty)), "it is answered already");
}

#[test]
fn a_proposer_is_answered_once_its_entry_is_applied_and_a_majority_agrees() {
    let mut waiters = Waiters::new();
    let mut got = command(&mut waiters, at(5, 2));
    waiters.settle(&mut agreed(5), &alone(), |_| ());
    waits(&mut got);
    waiters.applied(at(5, 2), 70);
    waiters.settle(&mut agreed(4), &alone(), |_| ());
    waits(&mut got);
    waiters.settle(&mut agreed(5), &alone(), |reply| *reply += 7);
    assert_eq!(got.try_recv().expect("it is answered"), Ok(77), "the reply is completed before it is sent");
}

#[test]
fn an_outcome_that_a_majority_does_not_share_answers_nobody() {
    let mut waiters = Waiters::new();
    let voters = Voters { incoming: [1, 2, 3].map(RaftId).to_vec(), outgoing: Vec::new() };
    let (mut first, mut second) = (command(&mut waiters, at(5, 2)), command(&mut waiters, at(6, 2)));
    (5..=6).for_each(|index| waiters.applied(at(index, 2), index));
    let mut agreements = agreed(6);
    agreements.note_report(RaftId(2), 5, Digest([2; 32]));
    agreements.note_report(RaftId(2), 6, Digest([1; 32]));
    waiters.settle(&mut agreements, &voters, |_| ());
    waits(&mut first);
    assert_eq!(second.try_recv().expect("it is answered"), Ok(6), "each entry is compared by itself");
}

#[test]
fn a_proposal_that_lost_its_place_is_refused_with_an_unknown_outcome() {
    let mut waiters = Waiters::new();
    let mut by_term = command(&mut waiters, at(5, 2));
    waiters.applied(at(5, 3), 1);
    assert_eq!(refused(&mut by_term).reason, Reason::Unavailable, "an entry of another term is there");
    waiters.settle(&mut agreed(9), &alone(), |_| ());

    let mut by_successor = command(&mut waiters, at(6, 3));
    let mut successor = command(&mut waiters, at(6, 4));
    assert_eq!(refused(&mut by_successor).reason, Reason::Unavailable, "the log was cut back and grew again");
    waits(&mut successor);

    let mut by_change = command(&mut waiters, at(7, 3));
    waiters.changed(at(7, 3));
    assert_eq!(refused(&mut by_change).message, lost().message);
    let mut by_command = change(&mut waiters, at(8, 3));
    waiters.applied(at(8, 3), 1);
    assert_eq!(refused(&mut by_command).message, lost().message);
}

#[test]
fn a_change_of_members_is_answered_when_it_takes_effect() {
    let mut waiters = Waiters::new();
    let (mut early, mut late) = (change(&mut waiters, at(5, 2)), change(&mut waiters, at(6, 2)));
    waiters.changed(at(5, 2));
    assert_eq!(early.try_recv().expect("it is answered"), Ok(()));
    waits(&mut late);
}

#[test]
fn an_empty_entry_tells_a_change_that_another_is_in_progress_and_a_command_that_it_is_lost() {
    let mut waiters = Waiters::new();
    let (mut members, mut write) = (change(&mut waiters, at(5, 2)), command(&mut waiters, at(6, 2)));
    (5..=7).for_each(|index| waiters.empty(at(index, 2)));
    assert!(refused(&mut members).message.contains("another change of members"));
    assert_eq!(refused(&mut write).message, lost().message);
}

#[test]
fn room_is_bounded_and_comes_back_from_callers_that_gave_up() {
    let mut waiters = Waiters::new();
    let mut callers: Vec<_> = (1..=WAITERS_MAX as u64).map(|index| command(&mut waiters, at(index, 2))).collect();
    // A half of them wait for their entry, the other half for a majority.
    (1..=WAITERS_MAX as u64 / 2).for_each(|index| waiters.applied(at(index, 2), index));
    assert!(!waiters.has_room());
    drop(callers.remove(0));
    assert!(waiters.has_room(), "the caller of an applied entry has gone");
    let _another = command(&mut waiters, at(9_999, 2));
    assert!(!waiters.has_room());
    drop(callers.pop());
    assert!(waiters.has_room(), "the caller of a proposed entry has gone");
}

#[test]
fn all_waiters_are_refused_at_once_and_later_outcomes_reach_nobody() {
    let mut waiters = Waiters::new();
    let (mut proposed, mut applied) = (command(&mut waiters, at(5, 2)), command(&mut waiters, at(4, 2)));
    let mut members = change(&mut waiters, at(6, 2));
    waiters.applied(at(4, 2), 1);
    let refusal = Refusal::new(Reason::Unavailable, "the replica is quarantined");
    waiters.fail_all(&refusal);
    assert_eq!([refused(&mut proposed), refused(&mut applied)], [refusal.clone(), refusal.clone()]);
    assert_eq!(refused(&mut members), refusal);
    waiters.applied(at(5, 2), 2);
    waiters.settle(&mut agreed(9), &alone(), |_| panic!("nobody waits"));
}

fn read(reads: &mut Reads) -> Got<u64> {
    let (answer, got) = oneshot::channel();
    reads.queue(answer);
    got
}

#[test]
fn one_read_index_serves_all_reads_that_were_queued_before_it_was_sent() {
    let mut reads = Reads::default();
    assert!(!reads.wants_index());
    let (mut first, mut second) = (read(&mut reads), read(&mut reads));
    reads.sent(ReadId(1), Duration::ZERO);
    assert!(!reads.wants_index());
    let mut late = read(&mut reads);
    assert!(reads.wants_index());
    reads.ready(ReadId(2), 40);
    waits(&mut first);
    reads.ready(ReadId(1), 41);
    assert_eq!([&mut first, &mut second].map(|got| got.try_recv().expect("it is answered")), [Ok(41), Ok(41)]);
    waits(&mut late);
}

#[test]
fn a_lost_read_index_is_asked_for_again_without_the_callers_that_gave_up() {
    let mut reads = Reads::default();
    let (mut patient, impatient) = (read(&mut reads), read(&mut reads));
    reads.sent(ReadId(1), Duration::from_millis(100));
    reads.retry(Duration::from_millis(100));
    assert!(!reads.wants_index(), "it is not late yet");
    drop(impatient);
    reads.retry(Duration::from_millis(101));
    assert!(reads.wants_index());
    assert_eq!(reads.queued.len(), 1);
    reads.ready(ReadId(1), 7);
    waits(&mut patient);
    reads.sent(ReadId(2), Duration::from_millis(101));
    reads.ready(ReadId(2), 8);
    assert_eq!(patient.try_recv().expect("it is answered"), Ok(8));
}

#[test]
fn a_read_whose_only_caller_gave_up_asks_for_no_index() {
    let mut reads = Reads::default();
    drop(read(&mut reads));
    reads.retry(Duration::ZERO);
    assert!(!reads.wants_index());
}

#[test]
fn reads_that_wait_are_bounded_wherever_they_wait() {
    let mut reads = Reads::default();
    let mut waiting: Vec<_> = (1..PARKED_MAX).map(|_| read(&mut reads)).collect();
    reads.sent(ReadId(1), Duration::ZERO);
    waiting.push(read(&mut reads));
    assert_eq!(refused(&mut read(&mut reads)).reason, Reason::ResourceExhausted);
    reads.ready(ReadId(1), 3);
    waits(&mut read(&mut reads));
}
