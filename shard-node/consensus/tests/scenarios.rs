//! Scenarios, one for each promise of the protocol about votes, disks, snapshots, membership and
//! reads.

mod world;

use bytes::Bytes;
use coppice_consensus::{Change, Error, Group, Membership, Message, Position, RaftId, Role};
use coppice_env::{SimRng, SimStorage};
use coppice_types::ErrorKind;
use world::{World, options};

const A: RaftId = RaftId::new(1, 1);
const B: RaftId = RaftId::new(2, 1);
const C: RaftId = RaftId::new(3, 1);

fn rng() -> Box<SimRng> {
    Box::new(SimRng::new(1))
}

fn cut(world: &World, id: RaftId) {
    let others: Vec<String> = world.ids().into_iter().filter(|other| *other != id).map(|id| id.to_string()).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    world.network.partition(&[&id.to_string()], &others);
}

/// A world of three replicas in which `leader` leads.
fn led_by(leader: RaftId) -> World {
    let mut world = World::new(5, 3);
    world.group(leader).campaign().expect("it has a vote");
    world.run_until("the leader is elected", |world| world.leader() == Some(leader));
    world.run(10);
    world
}

fn commit(world: &mut World) -> Position {
    let leader = world.leader().expect("there is a leader");
    let position = world.propose(leader).expect("it proposes");
    world.run_until("the entry is acknowledged", |world| world.acknowledged.contains_key(&position.index));
    position
}

fn fill(world: &mut World, entries: u32) {
    for _ in 0..entries {
        commit(world);
    }
}

#[test]
fn an_empty_directory_never_votes() {
    // A and B commit e while C lags. B comes back empty, and A goes down. C must not win with B's
    // help.
    let mut world = led_by(A);
    cut(&world, C);
    let e = commit(&mut world);
    assert!(world.nodes[&C].machine.position.index < e.index);
    world.crash(B);
    world.nodes.remove(&B);
    let empty = RaftId::new(2, 2);
    world.add_empty(empty);
    world.crash(A);
    world.network.heal();
    world.run(300);
    assert_eq!(world.leader(), None, "one vote of three elects nobody");
    // B does not vote even if it is asked under its own name.
    let bytes = {
        let mut forged = None;
        let mut pair = World::new(9, 2);
        pair.network.partition(&["1.1"], &["2.1"]);
        for _ in 0..100 {
            pair.tick();
            pair.group(A).tick();
            while pair.group(A).has_ready() {
                let send = &mut |message: Message| forged = Some(message.encode());
                pair.group(A).advance(send).expect("advances");
            }
        }
        let mut bytes = forged.expect("it asks for votes");
        bytes[14..22].copy_from_slice(&empty.0.to_le_bytes());
        bytes
    };
    let message = Message::decode(&bytes).expect("it is well formed");
    assert_eq!((message.kind(), message.to()), ("pre_vote", empty));
    let refused = world.group(empty).step(message).expect_err("it has no vote");
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert!(!world.group(empty).has_ready(), "it says nothing");
    world.group(empty).campaign().expect_err("it can't lead");
    // A comes back: e is still there, and B's successor gets it.
    world.restart(A);
    world.run_until("a leader", |world| world.leader().is_some());
    world.run_until("the learner is added", |world| world.change(&[Change::AddLearner(empty)]).is_some());
    world.run_until("it is promoted", |world| {
        world.change(&[Change::Promote(empty), Change::Remove(B)]);
        world.nodes[&empty].machine.entries.iter().any(|(position, _)| *position == e)
            && world.group(empty).status().membership.voters == [A, empty, C]
    });
    world.converge();
}

#[test]
fn a_log_is_made_once_and_opened_only_where_it_is() {
    let disk = SimStorage::new();
    assert!(!Group::exists(&disk).expect("reads"));
    Group::open(disk.storage(), options(A), rng(), Position::START).expect_err("there is none");
    Group::create(disk.storage(), options(A), rng(), &[B, C]).expect_err("it is not one of them");
    Group::create(disk.storage(), options(A), rng(), &[A, A]).expect_err("one of them is there twice");
    drop(Group::create(disk.storage(), options(A), rng(), &[A, B, C]).expect("makes"));
    assert!(Group::exists(&disk).expect("reads"));
    let again = Group::create(disk.storage(), options(A), rng(), &[A, B, C]).expect_err("there is one");
    assert_eq!(again.kind(), ErrorKind::Conflict);
    Group::create_empty(disk.storage(), options(A), rng()).expect_err("there is one");
    let other = Group::open(disk.storage(), options(B), rng(), Position::START).expect_err("it is A's");
    assert!(matches!(other, Error::WrongOwner { .. }), "{other}");
    Group::open(disk.storage(), options(A), rng(), Position::START).expect("it is there");
}

#[test]
fn a_machine_that_does_not_fit_the_log_is_refused() {
    let mut world = led_by(A);
    fill(&mut world, 5);
    world.crash(B);
    let disk = world.nodes[&B].disk.clone();
    let last = world.nodes[&A].machine.position;
    let open = |position| Group::open(disk.storage(), options(B), rng(), position).map(|_| ());
    let ahead = Position { index: last.index + 100, term: last.term };
    for wrong in [ahead, Position { index: 2, term: 99 }, Position { index: 0, term: 0 }] {
        let error = open(wrong).expect_err("it does not fit");
        assert!(matches!(error, Error::StateMismatch { .. }) && error.kind() == ErrorKind::Corrupted, "{error}");
    }
    open(Position::START).expect("it fits");
}

#[test]
fn a_group_of_one_works() {
    let mut world = World::new(3, 1);
    world.run_until("it leads", |world| world.leader() == Some(A));
    fill(&mut world, 20);
    world.read(A);
    world.settle(A);
    assert_eq!(world.reads_done, 1);
    world.persist(A);
    world.crash(A);
    world.restart(A);
    world.group(A).campaign().expect("it has a vote");
    world.settle(A);
    assert_eq!(world.leader(), Some(A), "at once");
    fill(&mut world, 5);
    world.converge();
}

#[test]
fn reads_need_a_majority_and_see_what_was_acknowledged() {
    let mut world = led_by(A);
    fill(&mut world, 3);
    world.read(A);
    world.read(B);
    world.run_until("both are answered", |world| world.reads_done == 2);
    cut(&world, A);
    world.group(A).read_index().expect("it still thinks that it leads");
    world.run_until("another leads", |world| world.leader().is_some_and(|id| id != A));
    fill(&mut world, 1);
    assert_eq!(world.reads_done, 2, "a leader without followers answers nothing");
    world.run(30);
    assert_eq!(world.group(A).status().role, Role::Candidate, "and steps down");
    assert_eq!(world.group(A).read_index().expect_err("no leader").kind(), ErrorKind::Unavailable);
}

#[test]
fn only_the_leader_takes_proposals_and_names_itself() {
    let mut world = led_by(A);
    let refused = world.group(B).propose(Bytes::from_static(b"x")).expect_err("it follows");
    assert!(matches!(refused, Error::NotLeader { leader: Some(leader) } if leader == A), "{refused}");
    let empty = world.group(A).propose(Bytes::new()).expect_err("it says nothing");
    assert_eq!(empty.kind(), ErrorKind::Invalid);
    let large = Bytes::from(vec![0; options(A).entry_bytes_max + 1]);
    assert!(matches!(world.group(A).propose(large).expect_err("too large"), Error::TooLarge { .. }));
}

#[test]
fn leadership_goes_where_it_is_sent() {
    let mut world = led_by(A);
    world.group(A).transfer_leader(RaftId(77)).expect_err("nobody");
    world.group(A).transfer_leader(A).expect_err("itself");
    world.group(A).transfer_leader(C).expect("a voter");
    assert!(world.propose(A).is_none(), "no proposals meanwhile");
    world.run_until("C leads", |world| world.leader() == Some(C));
    world.group(C).step_down();
    assert_eq!(world.group(C).status().role, Role::Follower);
    world.converge();
}

#[test]
fn a_leader_ahead_of_all_others_resigns_to_one_that_leads_at_once() {
    let mut world = led_by(A);
    world.group(A).resign_to(A).expect_err("itself");
    world.group(A).resign_to(RaftId(77)).expect_err("nobody");
    // No other replica has this entry yet, so a transfer would wait for it.
    world.propose(A).expect("it leads");
    world.group(A).resign_to(C).expect("a voter");
    assert_eq!(world.group(A).status().role, Role::Follower);
    // The others have just heard of A. By themselves they would campaign only after their timeout
    // of 10 ticks.
    world.run(5);
    assert_ne!(world.leader(), Some(A));
    world.run_until("there is a leader", |world| world.leader().is_some());
    world.converge();
}

#[test]
fn a_reluctant_replica_leads_only_if_no_other_can() {
    for round in 0..10 {
        let mut world = led_by(A);
        world.group(B).set_reluctant(true);
        world.run(round);
        world.crash(A);
        world.run_until("C leads", |world| world.leader() == Some(C));
        world.restart(A);
        world.group(A).set_reluctant(true);
        world.run(5);
        world.crash(C);
        world.run_until("there is a leader", |world| world.leader().is_some());
        world.restart(C);
        world.converge();
    }
}

#[test]
fn a_quarantined_replica_votes_but_leaves_leading_to_the_others() {
    let mut world = led_by(A);
    fill(&mut world, 20);
    cut(&world, B);
    world.run(5);
    world.group(B).quarantine(b"a digest differs").expect("the disk works");
    world.crash(B);
    world.restart(B);
    assert_eq!(world.group(B).quarantined(), Some(&b"a digest differs"[..]), "it is not forgotten");
    let term = world.group(B).status().term;
    world.run(100);
    assert_eq!(world.group(B).status().term, term, "it leaves leading to the others");
    assert_eq!(world.group(B).status().role, Role::Follower);
    world.group(B).campaign().expect_err("not even when told");
    let installed = world.snapshots_installed;
    // With A gone, C needs its vote.
    world.crash(A);
    world.network.heal();
    world.run_until("C leads by its vote", |world| world.leader() == Some(C));
    fill(&mut world, 1);
    world.run_until("it gets a snapshot though its log matches", |world| world.snapshots_installed > installed);
    assert!(world.group(B).quarantined().is_none());
    world.converge();
}

#[test]
fn a_quarantined_replica_that_alone_has_the_end_of_the_log_leads_until_another_has_it() {
    let mut world = led_by(A);
    cut(&world, C);
    fill(&mut world, 5);
    world.crash(A);
    world.group(B).quarantine(b"a digest differs").expect("the disk works");
    world.network.heal();
    let last = world.group(B).status().last;
    assert!(world.group(C).status().last < last, "C can't be elected without what A and B committed");
    world.run_until("B leads", |world| world.leader() == Some(B));
    world.run_until("B hands over", |world| {
        if world.group(B).status().role == Role::Leader {
            world.group(B).transfer_leader(C).expect("it has a vote");
        }
        world.leader() == Some(C)
    });
    assert!(world.group(C).status().last > last);
    let installed = world.snapshots_installed;
    world.run_until("B gets a snapshot", |world| world.snapshots_installed > installed);
    assert!(world.group(B).quarantined().is_none());
    world.converge();
}

#[test]
fn a_snapshot_is_asked_for_again_if_a_later_leader_has_a_shorter_log() {
    let mut shorter = 0;
    for seed in 0..8 {
        let mut world = led_by(A);
        world.rng = SimRng::new(seed);
        fill(&mut world, 10);
        cut(&world, C);
        // A sends before its fsync, so its entries reach B and may be lost on A.
        for _ in 0..5 {
            world.propose(A).expect("it leads");
        }
        world.node(A).disk.crash_after(0);
        world.settle(A);
        assert!(world.nodes[&A].group.is_none(), "A crashed in its fsync");
        world.run(2);
        let last = world.group(B).status().last;
        world.group(B).quarantine(b"a digest differs").expect("the disk works");
        world.run(2);
        world.network.heal();
        world.restart(A);
        cut(&world, B);
        world.run_until("A and C elect one of them", |world| world.leader().is_some());
        world.run(5);
        let leader = world.leader().expect("there is one");
        shorter += u32::from(world.group(leader).status().last.index < last.index);
        world.network.heal();
        let installed = world.snapshots_installed;
        world.run_until("B gets a snapshot", |world| world.snapshots_installed > installed);
        world.converge();
    }
    assert!(shorter > 0, "A lost its entries at times");
}

/// Only two of three replicas are up, so nothing is committed without the quarantined one. The
/// leader does not know that the quarantined replica's log has the newest entry.
#[test]
fn a_quarantined_replica_takes_what_is_not_committed_before_it_waits_for_a_snapshot() {
    for another_leads in [false, true] {
        let mut world = led_by(A);
        fill(&mut world, 10);
        if !another_leads {
            world.crash(C);
        }
        let last = world.group(B).status().last.index;
        world.propose(A).expect("it leads");
        while world.group(B).status().last.index == last {
            world.tick();
        }
        world.network.clear_inbox(&A.to_string());
        world.group(B).quarantine(b"a digest differs").expect("the disk works");
        if another_leads {
            world.tick();
            world.crash(A);
            let waits = world.group(C).status();
            assert!(waits.commit < waits.last.index, "C does not know whether A has committed the rest");
        }
        let installed = world.snapshots_installed;
        world.run_until("it gets a snapshot", |world| world.snapshots_installed > installed);
        assert!(world.group(B).quarantined().is_none());
        fill(&mut world, 1);
    }
}

#[test]
fn a_snapshot_that_was_asked_for_earlier_takes_no_acknowledged_entry_away() {
    let mut world = led_by(A);
    fill(&mut world, 10);
    world.held = Some(Vec::new());
    world.group(B).quarantine(b"a digest differs").expect("the disk works");
    world.run_until("one is on its way", |world| world.held.as_ref().is_some_and(|held| !held.is_empty()));
    let late = world.held.as_ref().expect("they are held")[0].clone();
    world.crash(C);
    // Entries that B takes meanwhile are committed only when A learns of them.
    let last = world.group(B).status().last.index;
    world.run_until("it has more than that", |world| {
        world.propose(A).expect("it leads");
        world.group(B).status().last.index > last
    });
    cut(&world, B);
    let last = world.group(B).status().last.index;
    let mut refused = 0;
    for _ in 0..15 {
        refused += u32::from(matches!(world.group(B).step(late.clone()), Err(Error::Refused(_))));
        world.tick();
        assert_eq!(world.group(B).status().last.index, last, "it keeps what it has acknowledged");
    }
    assert!(refused > 0, "it asked again meanwhile");
    world.network.heal();
    world.held = None;
    world.run_until("it gets a newer one", |world| world.snapshots_installed > 0);
    world.converge();
}

#[test]
fn a_replica_that_was_added_later_gets_a_snapshot_that_knows_it() {
    let mut world = led_by(A);
    fill(&mut world, 40);
    world.persist(A);
    let base = world.group(A).status().base.index;
    let index = world.nodes[&A].machine.position.index;
    assert!(base > 1, "the log alone is not enough");
    world.group(A).set_snapshot(index, Bytes::from_static(b"older")).expect("an applied state");
    let new = RaftId::new(4, 1);
    world.add_empty(new);
    world.change(&[Change::AddLearner(new)]).expect("proposes");
    world.run_until("it has a snapshot", |world| world.snapshots_installed > 0);
    world.converge();
}

#[test]
fn a_leader_that_is_quarantined_steps_down() {
    let mut world = led_by(A);
    fill(&mut world, 10);
    world.group(A).quarantine(b"mine differs").expect("the disk works");
    assert_eq!(world.group(A).status().role, Role::Follower);
    world.run_until("another leads", |world| world.leader().is_some_and(|id| id != A));
    let installed = world.snapshots_installed;
    world.run_until("it gets a snapshot", |world| world.snapshots_installed > installed);
    world.converge();
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let mut world = led_by(A);
    let new = RaftId::new(4, 1);
    let cases: [&[Change]; 8] = [
        &[],
        &[Change::AddLearner(B)],
        &[Change::Promote(B)],
        &[Change::Promote(new)],
        &[Change::Remove(new)],
        &[Change::Remove(A)],
        &[Change::AddLearner(new), Change::Remove(new)],
        &[Change::AddLearner(RaftId(0))],
    ];
    for changes in cases {
        let refused = world.group(A).change_membership(changes).expect_err("it makes no sense");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{changes:?}");
    }
    let refused = world.group(B).change_membership(&[Change::AddLearner(new)]).expect_err("it follows");
    assert!(matches!(refused, Error::NotLeader { .. }));
    world.group(A).change_membership(&[Change::AddLearner(new)]).expect("it makes sense");
    let second = world.group(A).change_membership(&[Change::Remove(B)]).expect_err("one at a time");
    assert_eq!(second.kind(), ErrorKind::Unavailable);
}

/// A later start could not read a membership that its log can't name.
#[test]
fn a_group_takes_no_more_replicas_than_its_log_can_name() {
    let mut world = led_by(A);
    for ordinals in (4..=64).collect::<Vec<u32>>().chunks(16) {
        let changes: Vec<Change> =
            ordinals.iter().map(|ordinal| Change::AddLearner(RaftId::new(*ordinal, 1))).collect();
        world.change(&changes).expect("proposes");
        let last = changes[changes.len() - 1].id();
        world.run_until("they are learners", |world| {
            let membership = world.group(A).status().membership;
            membership.learners.contains(&last) && !membership.is_joint()
        });
    }
    let one_more = [Change::AddLearner(RaftId::new(65, 1))];
    let refused = world.group(A).change_membership(&one_more).expect_err("the 65th");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    world.restart(A);
    assert_eq!(world.group(A).status().membership.learners.len(), 61);
}

/// If a replica took a made-up term and then campaigned in the next one, no other replica could
/// follow it.
#[test]
fn a_made_up_term_changes_nothing() {
    let mut world = led_by(A);
    fill(&mut world, 3);
    let (term, own) = (world.group(A).status().term, world.group(B).status().term);
    // A heartbeat that commits nothing.
    let mut bytes = vec![1, 6];
    bytes.extend(options(A).group.number().to_le_bytes());
    [A.0, B.0, (1 << 61) - 1, 0, 0, 0, 0, 0, 0].iter().for_each(|number: &u64| bytes.extend(number.to_le_bytes()));
    bytes.extend([0; 8]);
    let message = Message::decode(&bytes).expect("it is well formed");
    assert_eq!((message.kind(), message.to()), ("heartbeat", B));
    let refused = world.group(B).step(message).expect_err("no election led to this term");
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert_eq!((world.group(A).status().term, world.group(B).status().term), (term, own));
    fill(&mut world, 3);
    world.converge();
}

#[test]
fn a_learner_is_promoted_once_it_has_caught_up() {
    let mut world = led_by(A);
    fill(&mut world, 40);
    let new = RaftId::new(4, 1);
    world.change(&[Change::AddLearner(new)]).expect("proposes");
    world.run_until("it is a learner", |world| world.group(A).status().membership.learners == [new]);
    let early = world.group(A).change_membership(&[Change::Promote(new)]).expect_err("it has nothing");
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    world.add_empty(new);
    world.run_until("it has caught up", |world| {
        let peers = world.group(A).status().peers;
        let commit = world.group(A).status().commit;
        peers.iter().any(|peer| peer.id == new && peer.learner && peer.matched == commit)
    });
    assert!(world.snapshots_installed > 0);
    world.group(new).campaign().expect_err("a learner does not lead");
    world.change(&[Change::Promote(new)]).expect("proposes");
    world.run_until("it votes", |world| world.group(new).status().membership.is_voter(new));
    world.change(&[Change::Remove(B)]).expect("proposes");
    world.run_until("B is gone", |world| !world.group(A).status().membership.contains(B));
    world.node(B).removed = true;
    world.converge();
}

#[test]
fn a_learner_never_stands_for_election_even_if_it_is_quarantined_and_alone() {
    let mut world = led_by(A);
    let new = RaftId::new(4, 1);
    world.add_empty(new);
    world.change(&[Change::AddLearner(new)]).expect("proposes");
    fill(&mut world, 5);
    world.run_until("it has caught up", |world| world.group(new).status().commit == world.group(A).status().commit);
    for quarantined in [false, true] {
        [A, B, C].into_iter().for_each(|id| world.crash(id));
        if quarantined {
            world.group(new).quarantine(b"a digest differs").expect("the disk works");
        }
        let term = world.group(new).status().term;
        for _ in 0..500 {
            world.tick();
            let status = world.group(new).status();
            assert_eq!((status.role, status.term), (Role::Follower, term));
        }
        [A, B, C].into_iter().for_each(|id| world.restart(id));
        world.run_until("a voter leads", |world| world.leader().is_some_and(|id| id != new));
    }
    world.converge();
}

#[test]
fn a_voter_keeps_the_snapshot_that_it_is_being_sent_whatever_a_learner_needs() {
    let mut world = led_by(A);
    cut(&world, C);
    fill(&mut world, 60);
    world.persist(A);
    world.held = Some(Vec::new());
    world.network.heal();
    world.run_until("C is offered a snapshot", |world| world.held.as_ref().is_some_and(|held| !held.is_empty()));
    // The learner needs a snapshot that is newer than its membership.
    let new = RaftId::new(4, 1);
    world.add_empty(new);
    world.change(&[Change::AddLearner(new)]).expect("proposes");
    world.run(60);
    let held = world.held.take().expect("it was set");
    assert!(held.iter().all(|message| message.to() == C), "{held:?}");
    world.run_until("C has it, and then the learner", |world| world.snapshots_installed > 1);
    world.converge();
}

#[test]
fn a_new_leader_ends_a_joint_membership_that_the_old_one_began() {
    let mut ended = 0;
    for delay in 0..6 {
        let mut world = led_by(A);
        let new = RaftId::new(4, 1);
        world.add_empty(new);
        world.change(&[Change::AddLearner(new)]).expect("proposes");
        world.run_until("it has caught up", |world| {
            let commit = world.group(A).status().commit;
            world.group(A).status().peers.iter().any(|peer| peer.id == new && peer.matched == commit)
        });
        world.change(&[Change::Promote(new), Change::Remove(B)]).expect("proposes");
        world.settle(A);
        world.run(delay);
        let old = Membership::of_voters(&[A, B, C]);
        let untouched = |world: &World, id: &RaftId| {
            let membership = world.nodes[id].group.as_ref().expect("up").status().membership;
            membership.voters == old.voters
        };
        let before = world.ids().iter().filter(|id| untouched(&world, id)).count();
        world.crash(A);
        world.run_until("another leads", |world| world.leader().is_some());
        world.run(60);
        let leader = world.leader().expect("there is one");
        let membership = world.group(leader).status().membership;
        assert!(!membership.is_joint(), "after {delay} ticks, {before} not touched: {membership:?}");
        ended += u32::from(membership.voters == [A, C, new]);
    }
    assert!(ended > 0, "the change survived the leader at times");
}

#[test]
fn a_full_disk_refuses_entries_and_harms_nothing() {
    let mut world = led_by(A);
    fill(&mut world, 5);
    let disk = world.nodes[&A].disk.clone();
    disk.set_capacity(Some(disk.used_bytes()));
    let mut refused = None;
    for _ in 0..200 {
        if let Err(error) = world.group(A).propose(Bytes::from(vec![1; 2000])) {
            refused = Some(error);
            break;
        }
        world.run(3);
    }
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    world.read(A);
    world.run_until("reads go on", |world| world.reads_done == 1);
    assert_eq!(world.leader(), Some(A));
    disk.set_capacity(None);
    fill(&mut world, 5);
    // A full disk of a follower stops that follower only.
    let disk = world.nodes[&C].disk.clone();
    disk.set_capacity(Some(disk.used_bytes()));
    fill(&mut world, 150);
    assert!(world.nodes[&C].machine.position < world.nodes[&B].machine.position);
    disk.set_capacity(None);
    world.converge();
}

#[test]
fn an_installation_that_was_cut_off_is_finished_after_the_restart() {
    let mut cut_off = 0;
    for crash_after in 0..30 {
        let mut world = led_by(A);
        cut(&world, C);
        fill(&mut world, 60);
        world.persist(A);
        world.persist(B);
        let base = world.group(A).status().base.index;
        assert!(base > world.nodes[&C].machine.position.index, "C needs a snapshot");
        world.node(C).disk.crash_after(crash_after);
        world.network.heal();
        world.run(60);
        if world.nodes[&C].group.is_some() {
            continue;
        }
        let disk = world.nodes[&C].disk.clone();
        let position = world.nodes[&C].durable.position;
        let opened = Group::open(disk.storage(), options(C), rng(), position);
        cut_off += u32::from(matches!(opened, Err(Error::InstallPending { .. })));
        world.converge();
    }
    assert!(cut_off > 0, "a crash hit between the log's reset and the machine's");
}

#[test]
fn entries_after_the_machines_durable_state_are_handed_out_again() {
    let mut world = led_by(A);
    fill(&mut world, 30);
    world.persist(B);
    let durable = world.nodes[&B].durable.position;
    fill(&mut world, 30);
    world.crash(B);
    world.restart(B);
    assert_eq!(world.nodes[&B].machine.position, durable);
    // Its own log is enough for entries that it knew to be committed. A leader tells it of the
    // others.
    cut(&world, B);
    world.settle(B);
    assert!(world.nodes[&B].machine.position.index > durable.index);
    world.converge();
}

#[test]
fn a_replica_that_was_removed_is_told_and_harms_nobody() {
    let mut world = led_by(A);
    world.change(&[Change::Remove(C)]).expect("proposes");
    world.run_until("C knows", |world| world.nodes[&C].removed);
    let term = world.group(A).status().term;
    world.run(200);
    assert_eq!(world.group(A).status().term, term, "it does not disturb the others");
    world.converge();
    assert_eq!(world.group(A).status().membership.voters, [A, B]);
}

#[test]
fn a_leader_whose_connections_broke_is_replaced_before_the_election_timeout() {
    let mut world = led_by(A);
    commit(&mut world);
    let (began, term) = (world.ticks, world.group(B).status().term);
    world.crash(A);
    for id in [B, C] {
        world.group(id).suspect(A);
    }
    world.run_until("another one leads", |world| world.leader().is_some());
    assert!(world.ticks < began + 10, "{} ticks are no fewer than the shortest timeout", world.ticks - began);
    let leader = world.leader().expect("one leads");
    assert_eq!(world.group(leader).status().term, term + 1, "one election was enough");
    commit(&mut world);
    world.converge();
}

#[test]
fn a_leader_that_is_heard_stays_whatever_is_said_of_its_connections() {
    let mut world = led_by(A);
    let term = world.group(A).status().term;
    for _ in 0..200 {
        for id in [B, C] {
            world.group(id).suspect(A);
        }
        world.tick();
    }
    assert_eq!((world.leader(), world.group(A).status().term), (Some(A), term));
}

#[test]
fn a_replica_that_alone_does_not_hear_the_leader_wins_no_votes_and_returns_without_an_election() {
    let mut world = led_by(A);
    let term = world.group(A).status().term;
    world.network.partition(&[&A.to_string()], &[&C.to_string()]);
    world.group(C).suspect(A);
    world.run(15);
    assert_eq!(world.group(C).status().role, Role::Candidate, "it asks early");
    world.network.heal();
    world.run(15);
    assert_eq!(world.group(C).status().leader, Some(A));
    assert_eq!((world.leader(), world.group(A).status().term), (Some(A), term));
}

#[test]
fn a_group_is_settled_when_every_member_has_applied_everything_and_follows_the_leader() {
    let mut world = led_by(A);
    let settled = |world: &mut World| [A, B, C].map(|id| world.group(id).is_settled());
    commit(&mut world);
    world.run_until("all is settled", |world| settled(world) == [true; 3]);
    world.propose(A).expect("it leads");
    assert_eq!(settled(&mut world), [false, true, true], "the entry is on its way");
    world.run_until("all is settled", |world| settled(world) == [true; 3]);
    world.group(B).quarantine(b"evidence").expect("there is room");
    assert!(!world.group(B).is_settled());
    world.run_until("a snapshot is installed", |world| world.group(B).quarantined().is_none());
    cut(&world, C);
    commit(&mut world);
    assert!(!world.group(A).is_settled(), "one member lacks an entry");
    world.network.heal();
    world.crash(A);
    world.run_until("the leader is missed", |world| !world.group(B).is_settled() || world.leader() == Some(B));
}
