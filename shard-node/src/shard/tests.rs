//! The rules of protocol.md for shards, one trace for each test, without raft or network.

mod talk;

use std::sync::Arc;

use bytes::Bytes;
use coppice_engine::Options;
use coppice_env::{Rng, SimRng, SimStorage, Storage};
use coppice_types::{Change, Epoch, Operation, Params, ShardId, Stamp};

pub(crate) use self::talk::{Talk, config, open};

use super::*;
use crate::{
    limits::STAGED_MAX,
    replica::{
        machine::{Position, StateMachine},
        maintain::{Backlog, Disk, Maintain, catch_up},
        runner::Runner,
    },
};

#[test]
fn merges_catch_up_as_long_as_something_else_goes_on_and_no_reader_is_in_the_way() {
    let mut talk = Talk::new();
    let mut version = 0;
    while talk.machine.backlog() != Backlog::Behind {
        version += 1;
        assert!(version < 20, "full trees are to be merged");
        let Body::Prepare(mut prepare) = talk.attempt(version, version, talk.context.decided, "value") else {
            panic!()
        };
        let first = prepare.operations[0].clone();
        let of = |n: u8| Operation { key: vec![version as u8, n].into(), ..first.clone() };
        prepare.operations = (0..2).map(of).collect();
        let reply = talk.send(Body::Prepare(prepare)).expect("the version is staged");
        let state = ShardState { version: Version(version), digest: reply.staged.expect("a Prepare stages") };
        talk.finalize(state).expect("it is decided");
    }
    let machine = parking_lot::RwLock::new(Some(talk.machine));
    let backlog = || machine.read().as_ref().map(Maintain::backlog);
    catch_up(&machine, Backlog::Behind, &|| false).expect("there is nothing to wait for");
    assert_eq!(backlog(), Some(Backlog::Behind));
    let reader = machine.read();
    catch_up(&machine, Backlog::Behind, &|| true).expect("a reader comes first");
    drop(reader);
    assert_eq!(backlog(), Some(Backlog::Behind));
    catch_up(&machine, Backlog::Behind, &|| true).expect("sound pages");
    assert_ne!(backlog(), Some(Backlog::Behind));
}

#[track_caller]
fn refused(outcome: Outcome, reason: Reason) -> Refusal {
    match outcome {
        Err(refusal) if refusal.reason == reason => refusal,
        other => panic!("expected {reason}, got {other:?}"),
    }
}

#[test]
fn a_repeated_prepare_gives_the_same_answer_and_stages_once() {
    let mut talk = Talk::new();
    let base = talk.decided();
    let body = talk.attempt(1, 1, base, "a");
    let first = talk.send(body.clone()).expect("staged");
    assert_eq!(talk.send(body).expect("staged"), first);
    assert_eq!(talk.staged().len(), 1);
    let state = ShardState { version: Version(1), digest: first.staged.expect("staged") };
    let elsewhere = talk.attempt(1, 2, state, "a");
    talk.send(elsewhere).expect("the same attempt number names another version here");
}

/// Looks ahead at the next entries, and stages at most one of them. Returns the number of staged
/// versions.
fn foresee(machine: &mut ShardMachine, commands: &[(u64, Bytes)]) -> usize {
    commands.iter().for_each(|(index, command)| machine.foresee(*index, command));
    machine.engine().staged().len()
}

#[test]
fn what_is_staged_while_the_log_writes_it_is_there_when_it_is_applied_and_never_durable_before() {
    let disk = SimStorage::new();
    let mut talk = Talk::new();
    talk.machine = open(disk.storage());
    talk.adopt().expect("adopted");
    let encoded = |talk: &Talk, attempt| {
        let body = talk.attempt(attempt, 1, talk.decided(), "a");
        Bytes::from(Command { context: talk.context, body }.encode())
    };
    let (one, two) = (encoded(&talk, 1), encoded(&talk, 2));
    assert_eq!(foresee(&mut talk.machine, &[(7, one.clone()), (8, two.clone())]), 1);
    assert_eq!(talk.machine.disk(true), Disk::Busy);
    let applied = talk.machine.apply(7, &one).expect("applied");
    assert!(applied.reply.expect("staged").staged.is_some());
    assert_eq!(talk.machine.engine().counters().stages, 1);
    assert_eq!(talk.machine.disk(true), Disk::Idle);
    // Another entry gets the index, or the entry gets another index: the version that was staged
    // early is dropped before the command is carried out.
    for index in [8, 9] {
        assert_eq!(foresee(&mut talk.machine, &[(8, two.clone())]), 2);
        let other = Bytes::from(Command { context: talk.context, body: Body::Adopt }.encode());
        talk.machine.apply(index, &other).expect("applied");
        assert_eq!(talk.staged().len(), 1);
    }
    assert_eq!(foresee(&mut talk.machine, &[(9, two)]), 2);
    talk.machine.flush(Position { index: 8, term: 1 }).expect("flushed");
    assert_eq!(talk.staged().len(), 1);
    let staged = talk.staged();
    drop(talk);
    let found: Vec<_> = open(disk.storage()).engine().staged().iter().map(|it| it.state).collect();
    assert_eq!(found, staged);
}

#[test]
fn a_version_that_is_staged_early_is_neither_decided_nor_repeated_by_commands_before_it() {
    let mut talk = Talk::new();
    let base = talk.decided();
    let state = talk.prepare(1, base, "a");
    let body = Body::Abort { version: state.version, prepare_id: PrepareId { term: Term(1), attempt: 1 } };
    talk.send(body).expect("aborted");
    let again = talk.attempt(2, 1, base, "a");
    let encoded = |context, body: &Body| Bytes::from(Command { context, body: body.clone() }.encode());
    let (finalize, decided) = (Body::Finalize, Context { decided: state, ..talk.context });
    // Other replicas don't have the state yet, so no earlier command may decide it.
    assert_eq!(foresee(&mut talk.machine, &[(8, encoded(talk.context, &again))]), 1);
    let applied = talk.machine.apply(7, &encoded(decided, &finalize)).expect("applied");
    refused(applied.reply, Reason::BaseMismatch);
    // A command that names its own outcome as decided is not staged early.
    assert_eq!(foresee(&mut talk.machine, &[(8, encoded(decided, &again))]), 0);
    // A command that decides another state keeps the staged version.
    assert_eq!(foresee(&mut talk.machine, &[(9, encoded(talk.context, &again))]), 1);
    talk.machine.apply(8, &encoded(talk.context, &finalize)).expect("applied").reply.expect("nothing new is decided");
    assert_eq!(talk.staged(), [state]);
    // A delayed copy of the same attempt with other content is not mistaken for it.
    let other = talk.attempt(2, 1, base, "b");
    let applied = talk.machine.apply(8, &encoded(talk.context, &other)).expect("applied").reply.expect("staged");
    assert_ne!(applied.staged, Some(state.digest));
    assert_eq!(talk.staged().len(), 1);
}

#[test]
fn siblings_and_chains_are_staged_and_only_the_named_one_stays() {
    let mut talk = Talk::new();
    let base = talk.decided();
    let (a, b) = (talk.prepare(1, base, "a"), talk.prepare(1, base, "b"));
    let child_of_a = talk.prepare(2, a, "aa");
    let child_of_b = talk.prepare(2, b, "bb");
    assert_eq!(talk.staged().len(), 4);
    talk.finalize(b).expect("decided");
    assert_eq!(talk.decided(), b);
    assert_eq!(talk.staged(), vec![child_of_b]);
    refused(talk.finalize(child_of_a), Reason::BaseMismatch);
}

#[test]
fn a_stale_term_is_refused_and_a_newer_term_alone_drops_nothing() {
    let mut talk = Talk::new();
    let staged = talk.prepare(1, talk.decided(), "a");
    talk.context.term = Term(3);
    talk.send(Body::Finalize).expect("nothing new is decided");
    assert_eq!(talk.staged(), vec![staged]);
    let old = Context { term: Term(2), ..talk.context };
    refused(talk.send_as(old, Body::Finalize), Reason::StaleTerm);
}

#[test]
fn a_new_leader_keeps_what_is_decided_and_drops_the_rest() {
    let mut talk = Talk::new();
    let one = talk.prepare(1, talk.decided(), "a");
    let two = talk.prepare(2, one, "b");
    let three = talk.prepare(3, two, "c");
    talk.context = Context { term: Term(2), decided: two, ..talk.context };
    let reply = talk.adopt().expect("adopted");
    assert_eq!(reply.decided, two);
    assert_eq!(talk.staged(), vec![]);
    let body = talk.attempt(9, 4, three, "d");
    refused(talk.send(body), Reason::BaseMismatch);
}

#[test]
fn a_repeated_adopt_does_not_drop_what_the_new_leader_staged_since() {
    let mut talk = Talk::new();
    let first = talk.decided();
    talk.context.term = Term(2);
    talk.adopt().expect("adopted");
    let staged = talk.prepare(1, first, "a");
    talk.adopt().expect("a delayed copy of the first message");
    assert_eq!(talk.staged(), vec![staged]);
}

#[test]
fn only_the_leader_that_adopted_the_shard_stages_and_fences() {
    let mut talk = Talk::new();
    talk.context.term = Term(2);
    let prepare = talk.attempt(1, 1, talk.decided(), "a");
    refused(talk.send(prepare.clone()), Reason::BaseMismatch);
    let fence = Body::Fence { attempt: 1, next_epoch: Epoch(1), target: Version(0) };
    refused(talk.send(fence.clone()), Reason::BaseMismatch);
    talk.adopt().expect("adopted");
    talk.send(prepare).expect("staged");
    talk.send(fence).expect("fenced");
}

#[test]
fn decided_states_are_named_exactly_and_older_knowledge_changes_nothing() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let two = talk.commit(2, "b");
    talk.finalize(one).expect("older knowledge");
    assert_eq!(talk.decided(), two);
    refused(talk.finalize(ShardState { digest: one.digest, ..two }), Reason::BaseMismatch);
    refused(talk.finalize(ShardState { version: Version(3), digest: two.digest }), Reason::BaseMismatch);
    assert_eq!(talk.decided(), two);
}

#[test]
fn a_prepare_settles_what_its_context_names_before_it_stages() {
    let mut talk = Talk::new();
    let one = talk.prepare(1, talk.decided(), "a");
    talk.context.decided = one;
    let two = talk.prepare(2, one, "b");
    assert_eq!(talk.decided(), one);
    assert_eq!(talk.staged(), vec![two]);
}

#[test]
fn a_prepare_builds_only_on_a_tip() {
    let mut talk = Talk::new();
    let genesis = talk.decided();
    let one = talk.commit(1, "a");
    let on_genesis = talk.attempt(8, 2, genesis, "b");
    refused(talk.send(on_genesis), Reason::BaseMismatch);
    let wrong_digest = talk.attempt(8, 2, ShardState { digest: genesis.digest, ..one }, "b");
    refused(talk.send(wrong_digest), Reason::BaseMismatch);
    assert_eq!(talk.staged(), vec![]);
}

#[test]
fn an_abort_takes_the_children_and_a_delayed_prepare_of_that_attempt_is_refused() {
    let mut talk = Talk::new();
    let base = talk.decided();
    let body = talk.attempt(1, 1, base, "a");
    let one = talk.send(body.clone()).expect("staged").staged.expect("staged");
    talk.attempt = 1;
    talk.prepare(2, ShardState { version: Version(1), digest: one }, "b");
    let abort = Body::Abort { version: Version(1), prepare_id: PrepareId { term: Term(1), attempt: 1 } };
    talk.send(abort.clone()).expect("aborted");
    assert_eq!(talk.staged(), vec![]);
    refused(talk.send(body), Reason::BaseMismatch);
    talk.send(abort).expect("a repeated abort changes nothing");
    let again = talk.prepare(1, base, "a");
    assert_eq!(again.digest, one);
}

#[test]
fn an_abort_does_not_touch_what_is_decided() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    talk.send(Body::Abort { version: Version(1), prepare_id: PrepareId { term: Term(1), attempt: 1 } })
        .expect("applied");
    assert_eq!(talk.decided(), one);
}

#[test]
fn a_later_attempt_overrides_a_fence_that_was_delayed() {
    let mut talk = Talk::new();
    let fence = |attempt| Body::Fence { attempt, next_epoch: Epoch(1), target: Version(0) };
    talk.send(Body::Unfence { attempt: 2 }).expect("lifted, though there is none");
    refused(talk.send(fence(1)), Reason::BaseMismatch);
    refused(talk.send(fence(2)), Reason::BaseMismatch);
    talk.send(fence(4)).expect("fenced");
    talk.send(fence(4)).expect("fenced already");
    refused(talk.send(fence(3)), Reason::BaseMismatch);
    talk.send(Body::Unfence { attempt: 3 }).expect("an older unfence lifts nothing");
    let prepare = talk.attempt(1, 1, talk.decided(), "a");
    refused(talk.send(prepare.clone()), Reason::FencedForRollback);
    talk.send(Body::Unfence { attempt: 4 }).expect("lifted");
    talk.send(prepare).expect("staged");
}

#[test]
fn a_new_leader_lifts_the_fences_of_those_before() {
    let mut talk = Talk::new();
    talk.send(Body::Fence { attempt: 7, next_epoch: Epoch(1), target: Version(0) }).expect("fenced");
    talk.context.term = Term(2);
    talk.send(Body::Finalize).expect("a newer term alone lifts nothing");
    assert!(talk.machine.protocol().fence.is_some());
    talk.adopt().expect("adopted");
    assert_eq!(talk.machine.protocol().fence, None);
    talk.send(Body::Fence { attempt: 1, next_epoch: Epoch(1), target: Version(0) }).expect("its own fences count anew");
}

#[test]
fn a_rollback_settles_first_what_was_decided_before_it() {
    // Version 7 is decided and its Finalize is pending. The rollback to 7 must not drop it as
    // undecided.
    let mut talk = Talk::new();
    let five = talk.commit(5, "a");
    let seven = talk.prepare(7, five, "b");
    talk.prepare(8, seven, "c");
    talk.context.admin_sequence = 1;
    let body = talk.rollback(1, 7, 1, seven, seven);
    let reply = talk.send(body).expect("executed");
    assert_eq!(reply.decided, seven);
    assert_eq!(talk.staged(), vec![]);
    assert_eq!(talk.machine.engine().epoch(), Epoch(1));
}

#[test]
fn a_rollback_drops_what_is_newer_lifts_the_fence_and_happens_once() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let two = talk.commit(2, "b");
    let fence = Body::Fence { attempt: 1, next_epoch: Epoch(1), target: Version(1) };
    talk.send(fence.clone()).expect("fenced");
    talk.context.admin_sequence = 1;
    let body = talk.rollback(1, 1, 1, one, two);
    assert_eq!(talk.send(body.clone()).expect("executed").decided, one);
    assert_eq!(talk.machine.protocol().fence, None);
    refused(talk.send(fence), Reason::BaseMismatch);
    talk.context.decided = one;
    let three = talk.commit(2, "c");
    assert_eq!(talk.send(body).expect("executed already").decided, three);
    assert_eq!(talk.decided(), three);
    assert!(!talk.machine.engine().has(&two).expect("readable"));
}

#[test]
fn missed_admin_operations_are_executed_in_order_before_anything_else() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let two = talk.commit(2, "b");
    talk.context.admin_sequence = 2;
    let refusal = refused(talk.send(Body::Finalize), Reason::MissedAdmin);
    assert_eq!(refusal.fact, Some(("executed", "0".to_owned())));
    assert!(talk.machine.readable(&talk.context, &one).is_err_and(|refusal| refusal.reason == Reason::MissedAdmin));
    let prune = Body::Execute(Execute {
        admin_sequence: 2,
        operation: AdminOperation::Prune { before: Version(1) },
        boundary: one,
        newest: one,
    });
    refused(talk.send(prune.clone()), Reason::MissedAdmin);
    let rollback = talk.rollback(1, 1, 1, one, two);
    talk.send(rollback).expect("executed");
    talk.send(prune).expect("executed");
    talk.context.decided = one;
    talk.send(Body::Finalize).expect("up to date");
    assert_eq!(talk.machine.readable(&talk.context, &one), Ok(()));
}

#[test]
fn a_message_from_before_an_admin_operation_is_refused() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let before = talk.context;
    let delayed = talk.attempt(50, 2, one, "b");
    talk.context.admin_sequence = 1;
    let rollback = talk.rollback(1, 1, 1, one, one);
    talk.send(rollback).expect("executed");
    refused(talk.send_as(before, delayed), Reason::BaseMismatch);
    refused(talk.send_as(before, Body::Finalize), Reason::BaseMismatch);
}

#[test]
fn an_operation_that_names_other_states_than_the_shards_is_refused_and_changes_nothing() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let two = talk.commit(2, "b");
    talk.context.admin_sequence = 1;
    let wrong = ShardState { digest: two.digest, ..one };
    let body = talk.rollback(1, 1, 1, wrong, two);
    refused(talk.send(body), Reason::BaseMismatch);
    let body = talk.rollback(1, 1, 1, one, one);
    refused(talk.send(body), Reason::BaseMismatch);
    assert_eq!((talk.decided(), talk.machine.protocol().executed), (two, 0));
}

#[test]
fn a_prune_keeps_the_newest_version_at_the_boundary() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let four = talk.commit(4, "b");
    let nine = talk.commit(9, "c");
    talk.context.admin_sequence = 1;
    let prune = Execute {
        admin_sequence: 1,
        operation: AdminOperation::Prune { before: Version(6) },
        boundary: four,
        newest: nine,
    };
    talk.send(Body::Execute(prune)).expect("executed");
    assert!(!talk.machine.engine().has(&one).expect("readable"));
    assert!(talk.machine.engine().has(&four).expect("readable") && talk.machine.engine().has(&nine).expect("readable"));
}

#[test]
fn reads_name_exact_states_and_a_fence_closes_those_above_its_target() {
    let mut talk = Talk::new();
    let one = talk.commit(1, "a");
    let staged = talk.prepare(2, one, "b");
    let read = |talk: &Talk, state: &ShardState| talk.machine.readable(&talk.context, state).map_err(|it| it.reason);
    assert_eq!(read(&talk, &one), Ok(()));
    assert_eq!(read(&talk, &staged), Ok(()));
    assert_eq!(read(&talk, &ShardState { digest: one.digest, ..staged }), Err(Reason::StateMissing));
    talk.send(Body::Fence { attempt: 1, next_epoch: Epoch(1), target: Version(1) }).expect("fenced");
    assert_eq!(read(&talk, &one), Ok(()));
    assert_eq!(read(&talk, &staged), Err(Reason::FencedForRollback));
}

#[test]
fn staged_versions_are_bounded_before_they_are_proposed() {
    let mut talk = Talk::new();
    let base = talk.decided();
    for at in 0..STAGED_MAX {
        talk.prepare(1, base, &at.to_string());
    }
    let admit = |body| talk.machine.admit(&Command { context: talk.context, body }.encode()).map_err(|it| it.reason);
    assert_eq!(admit(talk.attempt(999, 1, base, "one more")), Err(Reason::ResourceExhausted));
    assert_eq!(admit(Body::Adopt), Ok(()));
}

#[test]
fn an_unknown_command_stops_the_replica() {
    let mut talk = Talk::new();
    let mut bytes = Command { context: talk.context, body: Body::Finalize }.encode();
    bytes[1] = 99;
    assert!(matches!(talk.machine.apply_command(&bytes.into()), Err(Error::UnknownCommand(_))));
}

/// Commands of all kinds, valid and invalid, as a careless leader might send them.
fn random_command(rng: &mut SimRng, known: &[ShardState], executed: u64, term: u64) -> Command {
    let mut pick = |below: u64| rng.next_u64() % below;
    let state = |at: u64| known[usize::try_from(at).expect("small") % known.len()];
    let len = known.len() as u64;
    let context = Context {
        term: Term(term + pick(8) / 7),
        admin_sequence: executed + pick(12) / 11,
        decided: state(len - 1 - pick(len.min(4))),
    };
    let base = state(len - 1 - pick(len.min(3)));
    let boundary = state(pick(len));
    let body = match pick(20) {
        0..=10 => Body::Prepare(Prepare {
            stamp: Stamp { epoch: Epoch(executed), version: Version(base.version.0 + 1 + pick(2)) },
            attempt: pick(40),
            base,
            merges: Vec::new(),
            operations: (0..pick(4))
                .map(|at| Operation {
                    key: vec![u8::try_from(at).expect("small"), u8::try_from(pick(9)).expect("small")].into(),
                    change: if pick(4) == 0 { Change::Delete } else { Change::Put(vec![7; 3].into()) },
                })
                .collect(),
            journal: Vec::new(),
        }),
        11 | 12 => Body::Finalize,
        13 => Body::Abort { version: base.version, prepare_id: PrepareId { term: Term(term), attempt: pick(40) } },
        14 | 15 => Body::Adopt,
        16 => Body::Fence { attempt: pick(5), next_epoch: Epoch(executed + 1), target: boundary.version },
        17 => Body::Unfence { attempt: pick(5) },
        18 => Body::Execute(Execute {
            admin_sequence: executed + pick(2),
            operation: AdminOperation::Rollback { to: boundary.version, epoch: Epoch(executed + 1) },
            boundary,
            newest: state(len - 1),
        }),
        _ => Body::Execute(Execute {
            admin_sequence: executed + 1,
            operation: AdminOperation::Prune { before: boundary.version },
            boundary,
            newest: context.decided,
        }),
    };
    Command { context, body }
}

#[test]
fn replicas_that_flush_and_restart_at_different_times_give_the_same_outcomes() {
    let (mut decided, mut early) = (0, 0);
    for seed in 0..24 {
        let mut rng = SimRng::new(seed);
        let disks = [SimStorage::new(), SimStorage::new()];
        let mut machines = disks.each_ref().map(|disk| open(disk.storage()));
        let mut log: Vec<Bytes> = Vec::new();
        let mut known = vec![machines[0].engine().decided()];
        let mut next = None;
        for index in 1..150 {
            let protocol = machines[0].protocol();
            let (executed, term) = (protocol.executed, protocol.term.0.max(1));
            let make = |rng: &mut SimRng| {
                let command = random_command(rng, &known, executed, term);
                (Bytes::from(command.encode()), command)
            };
            let (bytes, command) = next.take().filter(|_| rng.chance(800)).unwrap_or_else(|| make(&mut rng));
            // One machine looks ahead at entries that are applied next, later or never.
            if rng.chance(300) {
                machines[1].foresee(index, &bytes);
            }
            if rng.chance(500) {
                next = Some(make(&mut rng));
                next.iter().for_each(|(bytes, _)| machines[1].foresee(index + 1, bytes));
            }
            let stages = |machines: &[ShardMachine; 2]| machines.each_ref().map(|it| it.engine().counters().stages);
            let before = stages(&machines);
            let outcomes = machines.each_mut().map(|machine| machine.apply(index, &bytes).expect("applied"));
            let after = stages(&machines);
            early += u32::from(after[0] > before[0] && after[1] == before[1]);
            assert_eq!(outcomes[0].digest, outcomes[1].digest, "seed {seed}: {command:?}");
            assert_eq!(machines[0].protocol(), machines[1].protocol(), "seed {seed}");
            log.push(bytes);
            known.extend(machines[0].engine().staged().iter().map(|staged| staged.state));
            known.push(machines[0].engine().decided());
            known.sort_unstable();
            known.dedup();
            let at = Position { index: log.len() as u64, term: 1 };
            match rng.next_u64() % 20 {
                0 => machines[1].flush(at).expect("flushed"),
                1 => machines[1].work().expect("worked"),
                2 => machines[1] = restart(&disks[1], &mut machines[1], &log),
                // The flush runs during the next entries, until one of these steps or another flush
                // ends it.
                3 => machines[1].begin_flush(at).expect("begun"),
                4 => machines[1].write_on(true).expect("ended"),
                _ => continue,
            }
            if machines[1].foreseen.is_none() {
                let staged = |at: usize| machines[at].engine().staged().into_iter().map(|it| (it.state, it.prepare_id));
                assert_eq!(staged(1).collect::<Vec<_>>(), staged(0).collect::<Vec<_>>(), "seed {seed}");
            }
        }
        decided += machines[0].engine().decided().version.0;
    }
    assert!(decided > 20, "the commands decided next to nothing");
    assert!(early > 40, "{early} versions were staged early");
}

/// Opens the shard from its disk and replays the entries after its last flush.
fn restart(disk: &SimStorage, old: &mut ShardMachine, log: &[Bytes]) -> ShardMachine {
    *old = open(SimStorage::new().storage());
    let mut machine = open(disk.storage());
    let durable = usize::try_from(machine.durable().index).expect("small");
    for bytes in &log[durable..] {
        machine.apply_command(bytes).expect("applied");
    }
    machine
}

#[test]
fn a_mark_erases_its_envelope_once_it_is_decided_and_needs_one() {
    let key = |kind: u8, number: u8| [&[0, 9][..], &[7; 16], &[kind], &[0; 7], &[number]].concat();
    let put = |key: Vec<u8>| Operation { key: key.into(), change: Change::Put(vec![5; 300].into()) };
    let mut talk = Talk::new();
    talk.commit_all(1, vec![put(key(2, 1)), put(key(2, 2))]);
    let send = |talk: &mut Talk, attempt: u64, operations: Vec<Operation>| {
        let Body::Prepare(prepare) = talk.attempt(attempt, 2, talk.decided(), "") else { panic!() };
        talk.send(Body::Prepare(Prepare { operations, ..prepare }))
    };
    refused(send(&mut talk, 11, vec![put(key(3, 9))]), Reason::InvalidArgument);
    refused(send(&mut talk, 12, vec![put(key(2, 3)), put(key(3, 3))]), Reason::InvalidArgument);
    assert_eq!(talk.machine.erasure_mark().last, 0);

    let reply = send(&mut talk, 13, vec![put(key(3, 1))]).expect("it has an envelope");
    assert!(!talk.machine.engine().is_erased(&key(2, 1)), "it is not decided");
    talk.finalize(ShardState { version: Version(2), digest: reply.staged.expect("a Prepare stages") })
        .expect("decided");
    assert!(talk.machine.engine().is_erased(&key(2, 1)) && !talk.machine.engine().is_erased(&key(2, 2)));
    assert!(talk.machine.much_waits(), "a flush is due");

    // A Prepare that comes late with the value is refused, and the log has it again.
    let before = talk.machine.erasure_mark();
    let Body::Prepare(prepare) = talk.attempt(14, 3, talk.decided(), "") else { panic!() };
    let late = Body::Prepare(Prepare { operations: vec![put(key(2, 1))], ..prepare });
    refused(talk.send(late), Reason::InvalidArgument);
    assert!(before.last > 0 && talk.machine.erasure_mark().strays == before.strays + 1);
    talk.machine.flush(Position { index: 9, term: 1 }).expect("there is room");
    while talk.machine.engine().is_erasing() {
        assert!(talk.machine.backlog() >= Backlog::Some);
        talk.machine.work().expect("sound pages");
    }
    assert_eq!(talk.machine.engine().erasures(u64::MAX).through, Version(2));
    assert_eq!(talk.machine.engine().erasures(0).open, 1, "copies outside of the engine are not cleared");
}
