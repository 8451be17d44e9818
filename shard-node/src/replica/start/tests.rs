use std::sync::atomic::Ordering;

use coppice_env::{OpenMode, SimStorage};
use tokio::sync::oneshot;

use super::*;
use crate::replica::{
    any::AnyReplica,
    home::IncomingCopy,
    input::Input,
    mailbox::Lane,
    tests::{LIMIT, Parts, Rig, Toy, content, damage, full, manifest, no_handles, offered, raft_id, shared, toy},
};

fn founding() -> Bootstrap {
    Bootstrap::New { voters: vec![raft_id(1)] }
}

fn rig_on(disk: SimStorage) -> Rig {
    Rig::on(disk, founding(), |_| ())
}

const FIRST: Position = Position { index: 1, term: 1 };
const ZERO: Position = Position { index: 0, term: 0 };

#[tokio::test]
async fn a_first_start_that_any_crash_cuts_off_begins_again_and_founds_the_group_once() {
    for ios in 0.. {
        let rig = rig_on(SimStorage::new());
        rig.disk.crash_after(ios);
        let founded = open(&rig.config, false).is_ok();
        for seed in 0..8 {
            let again = rig_on(rig.disk.power_loss(seed));
            let opened = open(&again.config, false).expect("it begins again");
            let membership = opened.group.status().membership;
            assert_eq!((opened.applied, &membership.voters[..]), (FIRST, &[raft_id(1)][..]), "after {ios} changes");
            assert!(opened.home.started() && opened.machine.is_some() && opened.note.is_empty());
        }
        if founded {
            assert!(ios > 10, "so few changes found no group");
            break;
        }
    }
}

#[tokio::test]
async fn a_replica_that_joins_has_no_vote_and_no_state_before_and_after_a_restart() {
    let rig = Rig::tuned(Bootstrap::Join, |_| ());
    for _ in 0..2 {
        let mut opened = open(&rig.config, false).expect("the disk is sound");
        assert!(opened.machine.is_none() && opened.group.quarantined().is_none());
        assert_eq!((opened.applied, opened.note.as_str()), (ZERO, "waits for a snapshot"));
        opened.group.campaign().expect_err("it has no vote");
    }
}

#[tokio::test]
async fn the_way_to_begin_is_ignored_once_there_is_a_directory() {
    let rig = rig_on(SimStorage::new());
    drop(open(&rig.config, false).expect("it is founded"));
    let voters = [1, 2, 3].map(raft_id).to_vec();
    for bootstrap in [Bootstrap::Join, Bootstrap::New { voters }] {
        let again = Rig::on(rig.disk.clone(), bootstrap, |_| ());
        let opened = open(&again.config, false).expect("the disk is sound");
        assert_eq!(opened.group.status().membership.voters, [raft_id(1)]);
    }
}

#[tokio::test]
async fn a_damaged_state_is_quarantined_at_the_next_start_and_stays_so() {
    let rig = rig_on(SimStorage::new());
    drop(open(&rig.config, false).expect("it is founded"));
    rig.disk.flip_bit("group-0/state-1/toy", 5, 1);
    let opened = open(&rig.config, false).expect("it waits for a snapshot");
    assert!(opened.machine.is_none());
    let evidence = opened.group.quarantined().expect("its state is not believed");
    assert!(String::from_utf8_lossy(evidence).contains("toy is damaged"), "{}", opened.note);
    drop(opened);
    // The damage may go away. Raft's note of it stays.
    rig.disk.flip_bit("group-0/state-1/toy", 5, 1);
    let opened = open(&rig.config, false).expect("it waits for a snapshot");
    assert!(opened.machine.is_none());
    assert_eq!(opened.note, "quarantined: waits for a snapshot");
}

#[tokio::test]
async fn a_state_that_a_shortage_keeps_closed_is_not_damaged() {
    let rig = rig_on(SimStorage::new());
    drop(open(&rig.config, false).expect("it is founded"));
    for error in [full(), no_handles()] {
        rig.script.fail("open", error);
        assert!(open(&rig.config, false).err().is_some_and(|error| error.passes()));
    }
    let opened = open(&rig.config, false).expect("the shortage is over");
    assert!(opened.machine.is_some() && opened.group.quarantined().is_none());
}

#[tokio::test]
async fn a_start_on_a_full_disk_gives_the_reserve_up_first() {
    let rig = rig_on(SimStorage::new());
    drop(open(&rig.config, false).expect("it is founded"));
    rig.config.site.reserve.take(GroupId::Root, 1 << 20).expect("there is room");
    let has_reserve = || rig.reserve_bytes() > 0;
    drop(open(&rig.config, false).expect("the disk is sound"));
    assert!(has_reserve());
    drop(open(&rig.config, true).expect("the disk is sound"));
    assert!(!has_reserve());
}

/// A disk on which raft has taken a snapshot, but the state has not switched to it yet. `note`
/// writes the replica's own notes of the snapshot.
fn cut_off(note: impl Fn(&Home, &IncomingCopy)) -> Rig {
    let rig = Rig::tuned(Bootstrap::Join, |_| ());
    let (mut parts, offer) = offered(&rig, |position| manifest(3, position, &content(position)));
    let copy = parts.home.begin_incoming(offer.position, &offer.manifest).expect("there is room");
    let state = parts.home.state_of(&copy).expect("there is room");
    let file = state.open("toy", OpenMode::CreateNew).expect("there is room");
    file.write_all_at(&content(offer.position), 0).expect("there is room");
    note(&parts.home, &copy);
    parts.group.accept_snapshot(offer.position).expect("it was offered");
    let output = parts.group.advance(&mut |_| ()).expect("there is room");
    assert!(output.install.is_some(), "raft takes the snapshot");
    rig
}

#[tokio::test]
async fn a_switch_to_a_snapshot_that_a_crash_cut_off_is_finished_at_the_next_start() {
    let rig = cut_off(|home, copy| home.complete_incoming(copy).expect("there is room"));
    let opened = open(&rig.config, false).expect("it goes on");
    let durable = opened.machine.as_ref().map(StateMachine::durable).expect("it serves");
    assert_eq!((durable, opened.applied, opened.note.as_str()), (opened.applied, durable, ""));
    assert_eq!(opened.home.floor().expect("it is sound"), durable);
    assert_eq!(opened.home.incoming().expect("it is sound"), None);
    assert!(durable.index > 0 && rig.disk.files().contains(&"group-0/state-2/toy".to_owned()));
    drop(opened);
    assert_eq!(open(&rig.config, false).expect("it is an ordinary replica").applied, durable);
}

#[tokio::test]
async fn a_snapshot_that_raft_took_and_the_directory_does_not_have_is_damage() {
    let elsewhere = Position { index: 999, term: 1 };
    let complete = |home: &Home| {
        let copy = IncomingCopy { generation: 2, position: elsewhere, complete: true, manifest: Vec::new() };
        home.complete_incoming(&copy).expect("there is room");
    };
    let notes: [fn(&Home); 2] = [|_| (), |home| home.drop_incoming().expect("removed")];
    let rigs = notes.into_iter().map(|note| cut_off(|home, _| note(home)));
    for rig in rigs.chain([cut_off(|home, _| complete(home))]) {
        let refused = open(&rig.config, false).err().expect("the state is lost");
        assert!(matches!(refused, Error::Damaged { file: "incoming", .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_replica_that_ends_closes_its_state_and_says_whether_it_is_broken() {
    let rig = Rig::new();
    for (result, broken, full_disk) in [(Ok(()), false, false), (Err(damage()), true, false), (Err(full()), true, true)]
    {
        let shared = shared(Some(toy(&rig.script)));
        shared.set_note("before");
        shared.gate.close();
        let said = result.as_ref().err().map_or_else(|| "before".to_owned(), Error::chain);
        end(GroupId::Root, &shared, &rig.config.site, result);
        assert!(shared.machine.read().is_none() && shared.gate.is_open(), "readers are let through and refused");
        let status = shared.status.read().expect("nobody panicked");
        assert_eq!((status.role, status.broken, status.full), (Role::Stopped, broken, full_disk));
        assert_eq!(status.note, said);
    }
}

#[tokio::test]
async fn requests_to_a_replica_that_waits_for_a_resource_are_answered_and_a_closed_mailbox_ends_the_wait() {
    let rig = Rig::new();
    let Parts { shared, .. } = rig.parts(1);
    let (answer, answered) = oneshot::channel();
    shared.mailbox.put(Lane::Requests, Input::ReadIndex(answer)).expect("there is room");
    let wait = reopen_when_possible::<Toy>(Arc::clone(&rig.config), &shared, no_handles());
    let close = async {
        answered.await.expect_err("nobody answers, and the caller need not wait");
        shared.mailbox.close();
    };
    let both = futures::future::join(wait, close);
    let (again, ()) = tokio::time::timeout(LIMIT, both).await.expect("it ends");
    assert!(again.expect("nothing failed").is_none());
}

#[tokio::test]
async fn a_started_replica_serves_until_it_retires_and_its_directory_is_free_then() {
    let rig = Rig::new();
    let config = |rig: &Rig| {
        let Config { identity, bootstrap, machine, site } = &*rig.config;
        Config::<Toy> {
            identity: *identity,
            bootstrap: bootstrap.clone(),
            machine: machine.clone(),
            site: Arc::clone(site),
        }
    };
    let (replica, work) = start(config(&rig)).expect("the disk is empty");
    // A replica refuses commands until it is elected.
    let elected = async {
        loop {
            match replica.command(b"x".to_vec()).await {
                Ok(reply) => return reply,
                Err(refusal) => assert_eq!(refusal.reason, coppice_types::Reason::NotLeader),
            }
        }
    };
    let reply = tokio::time::timeout(LIMIT, elected).await.expect("the only voter is elected");
    assert_eq!(reply, "x by 1 of 1");
    assert_eq!(replica.shared.counts.proposals.load(Ordering::Relaxed), 1);
    assert!(matches!(start(config(&rig)), Err(Error::InUse)));
    replica.retire(true).await;
    tokio::time::timeout(LIMIT, work.ended()).await.expect("it ends by itself");
    assert_eq!((replica.status().role, replica.status().broken), (Role::Stopped, false));
    replica.command(b"y".to_vec()).await.expect_err("it has stopped");
    let again = rig_on(rig.disk.clone());
    let opened = open(&again.config, false).expect("the directory is free");
    // The status that a replica shows may be behind its answers. The log never is.
    assert_eq!(opened.applied, opened.group.status().last, "all was flushed");
}

#[tokio::test]
async fn a_log_that_ends_before_its_state_is_damage_and_the_replica_does_not_start() {
    let rig = Rig::new();
    let mut parts = rig.parts(1);
    parts.lead();
    parts.commit(3);
    let machine = parts.shared.machine.write().take();
    machine.expect("it is there").flush(Position { index: 99, term: 2 }).expect("there is room");
    drop(parts);
    let refused = open(&rig.config, false).err().expect("the log has lost entries");
    assert_eq!(refused.kind(), ErrorKind::Corrupted, "{refused}");
}
