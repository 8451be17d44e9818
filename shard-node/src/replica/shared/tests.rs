use std::sync::mpsc;

use super::*;
use crate::replica::tests::{LIMIT, Script, shared, toy};

#[test]
fn a_closed_gate_holds_readers_until_it_is_opened() {
    let gate = Gate::default();
    gate.pass();
    gate.close();
    assert!(!gate.is_open());
    std::thread::scope(|scope| {
        let (passed, passes) = mpsc::channel();
        let gate = &gate;
        for _ in 0..3 {
            let passed = passed.clone();
            scope.spawn(move || {
                gate.pass();
                passed.send(gate.is_open()).expect("the test waits");
            });
        }
        assert!(passes.try_recv().is_err());
        gate.open();
        // All of them wake, and none before the gate is open.
        (0..3).for_each(|_| assert_eq!(passes.recv_timeout(LIMIT), Ok(true)));
    });
}

#[test]
fn the_writer_closes_the_gate_behind_a_reader_and_opens_it_when_its_turn_has_come() {
    let shared = shared(Some(toy(&Script::default())));
    let reader = shared.read_machine();
    assert!(shared.try_machine().is_none());
    assert!(!shared.gate.is_open() && shared.gate.is_blocked(), "no new reader passes the waiting writer");
    assert!(shared.gate.take_blocked());
    assert!(!shared.gate.is_blocked(), "the flag is told once");
    drop(reader);
    assert!(shared.try_machine().is_some());
    assert!(shared.gate.is_open() && !shared.gate.is_blocked());
    shared.gate.close();
    drop(shared.wait_for_machine());
    assert!(shared.gate.is_open());
}

#[test]
fn elections_are_counted_by_the_changes_of_role_that_they_show_in() {
    let counted = |roles: &[Role]| {
        let counts = Counts::default();
        roles.windows(2).for_each(|roles| counts.note_role(roles[0], roles[1]));
        [&counts.campaigns, &counts.leaderships].map(|count| count.load(Ordering::Relaxed))
    };
    use Role::{Candidate, Follower, Leader, Quarantined, Unknown};
    assert_eq!(counted(&[Unknown, Follower, Follower, Quarantined]), [0, 0]);
    assert_eq!(counted(&[Follower, Candidate, Candidate, Leader, Leader]), [1, 1]);
    assert_eq!(counted(&[Follower, Candidate, Follower, Candidate, Follower]), [2, 0]);
    assert_eq!(counted(&[Follower, Leader]), [1, 1], "begun and won between two looks");
}
