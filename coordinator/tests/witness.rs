//! Witnesses cosign the log. The tests show what is published and what is not, and that no witness
//! delays anything.

use std::time::Duration;

use coppice_coordinator::{Quorum, check_witnesses};
use coppice_proto::v1;
use coppice_types::{Params, Reason};
use coppice_verify::{Step, check, checkpoint::Checkpoint, policy::Policy};
use tokio::time::{Instant, sleep, timeout};

mod common;

use common::{
    LIMIT, Running, World, at, commit, get,
    member::{Habit, Member},
    put, reason, roll_back,
};

async fn world() -> World {
    World::of(1, &[], Params::default()).await
}

async fn members(world: &World, habits: &[Habit]) -> Vec<Member> {
    let mut members = Vec::new();
    for (seed, habit) in (1..).zip(habits) {
        members.push(Member::start(seed, world.key().verifier().clone(), *habit).await);
    }
    members
}

/// A policy of any `quorum` of the members.
fn policy(world: &World, members: &[Member], quorum: usize) -> Policy {
    let mut text = format!("log {}\n", world.key().verifier());
    let names: Vec<String> = (0..members.len()).map(|at| format!("w{at}")).collect();
    for (name, member) in names.iter().zip(members) {
        text.push_str(&member.policy_line(name));
    }
    text.push_str(&format!("group all-of-them {quorum} {}\nquorum all-of-them\n", names.join(" ")));
    Policy::parse(text.as_bytes()).expect("a policy")
}

async fn leader(world: &World, members: &[Member], quorum: usize) -> (Running, String) {
    let witnesses = members.iter().map(Member::witness).collect();
    let (running, url) = world.coordinator_with_witnesses("a", witnesses, quorum).await;
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
    (running, url)
}

async fn write(running: &mut Running, value: &str) -> u64 {
    let answer = running.client.commit(commit(vec![put("a", value)], Vec::new())).await.expect("it commits");
    answer.into_inner().stamp.expect("a stamp").version
}

async fn published(url: &str) -> Vec<u8> {
    let answer = reqwest::get(format!("{url}/checkpoint")).await.expect("the server answers");
    answer.bytes().await.expect("a body").to_vec()
}

/// Waits until the published checkpoint has the quorum and at least this many entries.
async fn cosigned(url: &str, policy: &Policy, entries: u64) -> Checkpoint {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let examined = policy.examine(&published(url).await).expect("the log signed it");
        if examined.quorum && examined.checkpoint.size >= entries {
            return examined.checkpoint;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("no checkpoint of {entries} entries was cosigned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_says_whose_cosignatures_count_and_the_others_are_asked_too() {
    let world = world().await;
    let members = members(&world, &[Habit::Sound, Habit::Broken, Habit::Sound]).await;
    let mut text: String =
        members.iter().enumerate().map(|(at, member)| member.policy_line(&format!("w{at}"))).collect();
    text.push_str("group owners all w0 w1\nquorum owners\n");
    let asked = Policy::parse(text.as_bytes()).expect("a policy");
    let judge = Policy::parse(format!("log {}\n{text}", world.key().verifier()).as_bytes()).expect("a policy");
    let witnesses: Vec<_> = members.iter().map(Member::witness).collect();
    let quorum = Quorum::Policy(Box::new(asked));
    assert!(check_witnesses(&witnesses[..1], &quorum).is_err(), "one of the owners can't be asked");
    let (mut running, url) = world.coordinator_with_witnesses("a", witnesses, quorum).await;
    timeout(LIMIT, running.handle.leading()).await.expect("it leads in time");
    let version = write(&mut running, "1").await;
    // Two of three have cosigned, and an owner has not.
    while members[0].size() < version || members[2].size() < version {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!judge.examine(&published(&url).await).expect("the log signed it").quorum);
    members[1].behave(Habit::Sound);
    let until = Instant::now() + LIMIT;
    loop {
        let examined = judge.examine(&published(&url).await).expect("the log signed it");
        // The line of the witness outside of the quorum is in the note, too.
        if examined.quorum && examined.cosignatures.len() == 3 {
            break;
        }
        assert!(Instant::now() < until, "not all three have cosigned in time");
        write(&mut running, "2").await;
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_a_lying_and_an_endless_witness_hold_nobody_up() {
    let world = world().await;
    let habits = [Habit::Sound, Habit::Silent, Habit::SignsAnother, Habit::Endless, Habit::Broken, Habit::Sound];
    let members = members(&world, &habits).await;
    let (mut running, url) = leader(&world, &members, 2).await;
    let policy = policy(&world, &members, 2);
    for round in 0..3 {
        let version = write(&mut running, &round.to_string()).await;
        let checkpoint = cosigned(&url, &policy, version + 1).await;
        let examined = policy.examine(&published(&url).await).expect("the log signed it");
        let names: Vec<_> = examined.cosignatures.iter().map(|it| it.key_name.as_str()).collect();
        assert_eq!(names, ["w1.example", "w6.example"], "the others did not cosign, or not this");
        assert_eq!(checkpoint, examined.checkpoint);
    }
    // A witness that comes back is included again.
    members[4].behave(Habit::Sound);
    let until = Instant::now() + LIMIT;
    while members[4].size() == 0 && Instant::now() < until {
        write(&mut running, "more").await;
        sleep(Duration::from_millis(100)).await;
    }
    assert!(members[4].size() > 0);
    assert!(members[1].asked() <= 3, "a witness has one request at a time");
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_under_a_cosigned_checkpoint_wait_for_one_that_covers_the_version() {
    let world = world().await;
    let members = members(&world, &[Habit::Sound, Habit::Sound]).await;
    let (mut running, url) = leader(&world, &members, 2).await;
    let policy = policy(&world, &members, 2);
    write(&mut running, "1").await;
    let old = cosigned(&url, &policy, 2).await;
    write(&mut running, "2").await;
    let plain = running.client.get(get("a", None)).await.expect("it is there").into_inner();
    let failure = check::verify_under(&plain.proof, &policy, None).expect_err("nobody cosigned it yet");
    assert_eq!(failure.step, Step::Cosignatures);
    let mut request = get("a", None);
    request.read.as_mut().expect("get sets it").cosigned = true;
    let answer = running.client.get(request.clone()).await.expect("it is there").into_inner();
    assert_eq!(answer.read_at, Some(at(0, 2)));
    let (verified, examined) = check::verify_under(&answer.proof, &policy, None).expect("two have cosigned");
    assert!(verified.checkpoint.size >= 3 && examined.cosignatures.len() == 2);
    // A standing proof under a cosigned checkpoint also works for a proof that was made before.
    let newer = v1::GetCheckpointRequest { old_size: check_size(&plain.proof, &world), cosigned: true };
    let newer = running.client.get_checkpoint(newer).await.expect("it is given").into_inner();
    check::verify_under(&plain.proof, &policy, Some(&newer.standing)).expect("the newer one vouches for it");
    // From then on, no cosigned checkpoint that is shown covers rolled-back versions as standing.
    let rollback = roll_back(1);
    running.client.rollback(rollback).await.expect("it rolls back");
    let answer = running.client.get(request).await.expect("it is there").into_inner();
    let (verified, _) = check::verify_under(&answer.proof, &policy, None).expect("two have cosigned");
    assert!(verified.checkpoint.size >= 4, "the checkpoint knows of the rollback");
    assert!(verified.checkpoint.size > old.size);
}

#[tokio::test(flavor = "multi_thread")]
async fn witnesses_of_both_types_of_key_make_a_quorum_and_a_wrong_line_of_either_none() {
    let world = world().await;
    let mut members = members(&world, &[Habit::Sound]).await;
    for (seed, habit) in [(2, Habit::Sound), (3, Habit::SignsAnother)] {
        members.push(Member::start_mldsa(seed, world.key().verifier().clone(), habit).await);
    }
    let (mut running, url) = leader(&world, &members, 2).await;
    let policy = policy(&world, &members, 2);
    let version = write(&mut running, "1").await;
    cosigned(&url, &policy, version + 1).await;
    let examined = policy.examine(&published(&url).await).expect("the log signed it");
    let names: Vec<_> = examined.cosignatures.iter().map(|it| it.witness.as_slice()).collect();
    assert_eq!(names, [b"w0", b"w1"], "the third signed another checkpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_witnesses_are_taken_as_one_note_can_hold() {
    let world = world().await;
    let mut witnesses = Vec::new();
    for seed in 0..19 {
        let member = Member::start_mldsa(seed, world.key().verifier().clone(), Habit::Sound).await;
        witnesses.push(member.witness());
    }
    let refused = check_witnesses(&witnesses, &1.into()).expect_err("19 lines are too long").to_string();
    assert!(refused.contains("at most 61440"), "{refused}");
    assert_eq!(check_witnesses(&witnesses[..18], &1.into()).map_err(|error| error.to_string()), Ok(()));
}

fn check_size(proof: &[u8], world: &World) -> u64 {
    check::verify(proof, world.key().verifier(), None).expect("it is a proof").checkpoint.size
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_goes_on_where_the_witnesses_are() {
    let world = world().await;
    let members = members(&world, &[Habit::Sound]).await;
    let policy = policy(&world, &members, 1);
    let (mut first, url) = leader(&world, &members, 1).await;
    write(&mut first, "1").await;
    cosigned(&url, &policy, 2).await;
    first.kill();
    // This coordinator does not know which size was cosigned. The witness tells it.
    let (mut second, url) = leader(&world, &members, 1).await;
    write(&mut second, "2").await;
    let checkpoint = cosigned(&url, &policy, 3).await;
    assert!(members[0].size() >= checkpoint.size);
    // The log has not grown, so no witness is asked.
    let asked = members[0].asked();
    cosigned(&url, &policy, 3).await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(members[0].asked(), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_witnesses_there_are_no_cosigned_proofs() {
    let world = world().await;
    let mut running = world.leader().await;
    let request = v1::GetCheckpointRequest { old_size: 0, cosigned: true };
    let error = running.client.get_checkpoint(request).await.expect_err("it knows no witnesses");
    assert_eq!(reason(&error), Reason::InvalidArgument);
}
