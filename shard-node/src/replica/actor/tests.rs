use coppice_consensus::{Change as RaftChange, Heartbeat};
use coppice_engine::MergeName;
use coppice_proto::v1::{self, Sleep};
use coppice_types::{GroupId, RaftId};
use opentelemetry::Context;
use tokio::sync::oneshot;

use super::*;
use crate::{
    limits::{BUILT_MERGES_MAX, WAITERS_MAX},
    replica::{
        config::Bootstrap,
        input::Change,
        tests::{Ears, Far, LIMIT, Rig, Toy, damage, full, raft_id},
    },
};

type Got<T> = oneshot::Receiver<Result<T, Refusal>>;

/// A replica that a test drives step by step.
struct Scene {
    rig: Rig,
    shared: Arc<Shared<Toy>>,
    actor: Actor<Toy>,
}

impl Scene {
    /// A replica of a group with the voters 1 to `voters`, before its first step.
    fn of(voters: u32) -> Self {
        let rig = Rig::tuned(Bootstrap::Join, |_| ());
        let parts = rig.parts(voters);
        let shared = Arc::clone(&parts.shared);
        let config = Arc::clone(&rig.config);
        let actor = Actor::new(config, Arc::clone(&shared), parts.home, parts.group, parts.applied);
        Self { rig, shared, actor }
    }

    /// A group's only replica, which leads.
    fn leading() -> Self {
        let mut scene = Self::of(1);
        scene.actor.begin().expect("there is room");
        scene.step([]);
        assert_eq!(scene.status().role, Role::Leader);
        scene.rig.script.take_calls();
        scene
    }

    fn step(&mut self, inputs: impl IntoIterator<Item = Input<Toy>>) {
        self.actor.step(inputs.into_iter().collect()).expect("the replica goes on");
    }

    fn status(&self) -> super::super::Status {
        self.shared.status.read().expect("nobody panicked").clone()
    }

    /// Sends a command, and takes a step with it.
    fn command(&mut self, command: &str) -> Got<String> {
        let (input, got) = proposal(command);
        self.step([input]);
        got
    }

    fn change(&mut self, change: Change) -> Result<(), Reason> {
        let (answer, mut got) = oneshot::channel();
        self.step([Input::Change(change, answer)]);
        got.try_recv().expect("it is answered").map_err(|refusal| refusal.reason)
    }

    /// A message of another node's replica.
    fn message(from: u32, body: Body) -> Input<Toy> {
        let message = PeerMessage {
            cluster_id: Bytes::new(),
            group: 0,
            from_raft_id: raft_id(from).0,
            to_raft_id: raft_id(1).0,
            unfit: false,
            body: Some(body),
        };
        Input::Peer(message, format!("node-{from}"))
    }

    /// Lets this replica and a far one talk, at a tick a round, until a condition holds.
    async fn talk(&mut self, ears: &mut Ears, far: &mut Far, is_so: impl Fn(&Self, &Far) -> bool) {
        let talk = async {
            while !is_so(self, far) {
                let heard = std::iter::from_fn(|| ears.try_next());
                let decode = |message: PeerMessage| match message.body {
                    Some(Body::Raft(bytes)) => Some(Message::decode(&bytes).expect("it is whole")),
                    _ => None,
                };
                let heard: Vec<Message> = heard.filter_map(decode).collect();
                far.group.tick();
                let near = |message: &Message| message.to() == raft_id(1);
                let answers: Vec<_> = far.take(heard).into_iter().filter(near).collect();
                self.rig.pass(1);
                self.step(answers.iter().map(|message| Self::message(2, Body::Raft(message.encode().into()))));
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, talk).await.expect("it comes to pass");
    }
}

fn proposal(command: &str) -> (Input<Toy>, Got<String>) {
    let (answer, got) = oneshot::channel();
    (Input::Command(command.as_bytes().to_vec(), answer, Context::new()), got)
}

#[track_caller]
fn answered<T: std::fmt::Debug>(mut got: Got<T>) -> Result<T, Reason> {
    got.try_recv().expect("it is answered").map_err(|refusal| refusal.reason)
}

#[tokio::test]
async fn commands_of_one_step_are_applied_in_order_and_answered_by_it() {
    let mut scene = Scene::leading();
    let (inputs, got): (Vec<_>, Vec<_>) = ["a", "b", "c"].into_iter().map(proposal).unzip();
    scene.step(inputs);
    let replies: Vec<_> = got.into_iter().map(|got| answered(got).expect("it is applied")).collect();
    assert_eq!(replies, ["a by 1 of 1", "b by 1 of 1", "c by 1 of 1"]);
    let first = scene.actor.applied.index - 2;
    let applies: Vec<String> = (first..first + 3).map(|index| format!("apply {index}")).collect();
    assert_eq!(
        scene.rig.script.take_calls().iter().filter(|call| call.contains("apply")).collect::<Vec<_>>(),
        applies.iter().collect::<Vec<_>>()
    );
    assert_eq!(*scene.shared.applied.borrow(), scene.actor.applied.index, "readers that wait are told");
}

#[tokio::test]
async fn a_replica_that_does_not_lead_or_is_about_to_end_proposes_nothing() {
    let mut follower = Scene::of(2);
    assert_eq!(answered(follower.command("a")), Err(Reason::NotLeader));
    assert_eq!(follower.change(Change::Remove(raft_id(2))), Err(Reason::NotLeader));
    let mut scene = Scene::leading();
    let (answer, _retired) = oneshot::channel();
    let (input, got) = proposal("a");
    scene.step([Input::Retire(true, answer), input]);
    assert_eq!(answered(got), Err(Reason::NotLeader));
    assert_eq!(scene.shared.counts.proposals.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_command_that_the_state_machine_does_not_admit_or_whose_caller_has_gone_is_not_proposed() {
    let mut scene = Scene::leading();
    scene.rig.script.acts().refuses = true;
    assert_eq!(answered(scene.command("a")), Err(Reason::ResourceExhausted));
    scene.rig.script.acts().refuses = false;
    let (input, got) = proposal("b");
    drop(got);
    scene.step([input]);
    assert_eq!(answered(scene.command("")), Err(Reason::InvalidArgument), "raft has no empty entries");
    assert_eq!(scene.shared.counts.proposals.load(Ordering::Relaxed), 0);
    assert_eq!(answered(scene.command("c")), Ok("c by 1 of 1".to_owned()));
}

#[tokio::test]
async fn a_shortage_refuses_what_grows_and_lets_what_makes_room_through() {
    for (short_of, reason) in [(Shortage::Space, Reason::DiskFull), (Shortage::Handles, Reason::Unavailable)] {
        let mut scene = Scene::leading();
        scene.actor.flushing.note_shortage(short_of);
        assert_eq!(answered(scene.command("a")), Err(reason));
        assert_eq!(answered(scene.command("-b")), Ok("-b by 1 of 1".to_owned()));
        assert_eq!(scene.status().full, short_of == Shortage::Space);
        assert!(!scene.status().note.is_empty(), "it says what it lacks");
    }
}

#[tokio::test]
async fn a_command_that_makes_room_on_a_full_disk_uses_the_reserve() {
    let mut scene = Scene::leading();
    let has_reserve = |scene: &Scene| scene.rig.reserve_bytes() > 0;
    assert!(has_reserve(&scene));
    scene.rig.disk.set_capacity(Some(0));
    let mut refused = 0;
    // The log first uses up the room that it has prepared.
    while refused == 0 {
        let got = scene.command(&"x".repeat(8 << 10));
        refused += usize::from(answered(got) == Err(Reason::DiskFull));
    }
    assert!(has_reserve(&scene), "a version gets nothing of it");
    scene.rig.disk.set_capacity(Some(scene.rig.disk.used_bytes()));
    let long = format!("-{}", "x".repeat(8 << 10));
    assert!(answered(scene.command(&long)).is_ok());
    assert!(!has_reserve(&scene));
}

#[tokio::test]
async fn commands_that_wait_behind_a_reader_are_bounded_and_all_answered_when_it_leaves() {
    let mut scene = Scene::leading();
    let shared = Arc::clone(&scene.shared);
    let reader = shared.machine.read();
    let before = scene.actor.applied;
    let (inputs, got): (Vec<_>, Vec<_>) = (0..WAITERS_MAX).map(|_| proposal("a")).unzip();
    scene.step(inputs);
    assert_eq!(answered(scene.command("b")), Err(Reason::ResourceExhausted));
    assert_eq!((scene.actor.applied, scene.status().applied), (before, before.index));
    assert_eq!(scene.status().committed, before.index + WAITERS_MAX as u64, "raft goes on meanwhile");
    assert!(scene.actor.wait() <= BLOCKED_WAIT && !shared.gate.is_open(), "the reader's successors wait");
    drop(reader);
    scene.step([]);
    assert!(got.into_iter().all(|got| answered(got).is_ok()));
    assert!(shared.gate.is_open());
    let index = |call: &String| call.strip_prefix("apply ").and_then(|index| index.parse::<u64>().ok());
    let applied: Vec<u64> = scene.rig.script.take_calls().iter().filter_map(index).collect();
    assert!(applied.len() == WAITERS_MAX && applied.is_sorted(), "the reader changed no order");
}

#[tokio::test]
async fn a_gate_that_no_work_needs_any_more_is_opened_by_the_next_step() {
    let mut scene = Scene::leading();
    scene.shared.gate.close();
    scene.step([]);
    assert!(scene.shared.gate.is_open());
}

#[tokio::test]
async fn damage_quarantines_a_replica_refuses_its_callers_and_is_told_once() {
    let mut scene = Scene::leading();
    let (answer, reading) = oneshot::channel();
    let (input, got) = proposal("a");
    scene.rig.script.fail("apply", damage());
    scene.step([input, Input::ReadIndex(answer)]);
    assert_eq!(answered(got), Err(Reason::Unavailable));
    drop(reading);
    scene.step([Input::Damaged("page 7".to_owned())]);
    let status = scene.status();
    assert_eq!((status.role, scene.shared.machine.read().is_none()), (Role::Quarantined, true));
    assert!(status.note.contains("toy is damaged"), "the first evidence stays: {}", status.note);
    assert_eq!(scene.shared.counts.quarantines.load(Ordering::Relaxed), 1);
    assert_eq!(answered(scene.command("b")), Err(Reason::NotLeader));
}

#[tokio::test]
async fn a_read_that_met_damage_quarantines_the_replica() {
    let mut scene = Scene::leading();
    scene.step([Input::Damaged("page 7".to_owned())]);
    assert_eq!(scene.status().role, Role::Quarantined);
    assert!(scene.status().note.contains("page 7"));
    assert!(scene.actor.group.quarantined().is_some(), "a restart finds it");
}

#[tokio::test]
async fn an_entry_that_a_replica_cannot_apply_stops_it() {
    let mut scene = Scene::leading();
    let unknown = || Error::UnknownCommand(coppice_types::codec::Error::Trailing);
    scene.rig.script.fail("apply", unknown());
    let (input, _got) = proposal("a");
    let error = scene.actor.step(vec![input]).expect_err("the others can apply it");
    assert!(matches!(error, Error::UnknownCommand(_)) && !error.passes(), "{error}");
    assert!(scene.actor.group.quarantined().is_none(), "its state is not damaged");
}

#[tokio::test]
async fn a_replica_that_retires_flushes_what_it_applied_and_ends() {
    let mut scene = Scene::leading();
    answered(scene.command("a")).expect("it is applied");
    let (answer, retired) = oneshot::channel();
    scene.rig.pass(1);
    scene.step([Input::Retire(true, answer)]);
    assert!(scene.actor.is_over());
    answered(retired).expect("it is done");
    let durable = scene.shared.machine.read().as_ref().map(StateMachine::durable);
    assert_eq!(durable, Some(scene.actor.applied));
}

#[tokio::test]
async fn a_leader_without_a_successor_retires_when_its_patience_ends() {
    let mut scene = Scene::of(2);
    let mut ears = Ears::of(&scene.rig.net, "node-2");
    let mut far = Far::new(2, &[1, 2].map(raft_id));
    scene.actor.group.campaign().expect("it has a vote");
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.heir().is_some()).await;
    let (answer, mut retired) = oneshot::channel();
    scene.step([Input::Retire(true, answer)]);
    // The other replica is silent from now on.
    for _ in 0..39 {
        scene.rig.pass(1);
        scene.step([]);
    }
    assert!(retired.try_recv().is_err() && !scene.actor.is_over());
    scene.rig.pass(1);
    scene.step([]);
    answered(retired).expect("it ends in order");
    assert!(scene.actor.is_over());
}

#[tokio::test]
async fn missed_ticks_are_made_up_for_in_small_number() {
    let mut scene = Scene::leading();
    scene.rig.pass(1);
    scene.step([]);
    let before = scene.actor.ticks;
    scene.rig.pass(3);
    scene.step([]);
    assert_eq!(scene.actor.ticks - before, 3);
    scene.rig.pass(1000);
    scene.step([]);
    assert_eq!(scene.actor.ticks - before, 4, "a long pause must not look like a silent leader");
}

#[tokio::test]
async fn each_tick_checks_its_share_of_the_state_unless_a_reader_has_it() {
    let mut scene = Scene::leading();
    scene.rig.pass(2);
    scene.step([]);
    let share = (1 << 20) / 20;
    let scrubs = |scene: &Scene| {
        scene.rig.script.take_calls().into_iter().filter(|it| it.starts_with("scrub")).collect::<Vec<_>>()
    };
    assert_eq!(scrubs(&scene), [format!("scrub {share}"), format!("scrub {share}")]);
    let shared = Arc::clone(&scene.shared);
    let reader = shared.machine.read();
    scene.rig.pass(1);
    scene.step([]);
    assert!(scrubs(&scene).is_empty());
    drop(reader);
    scene.rig.pass(1);
    scene.rig.script.fail("scrub", damage());
    scene.step([]);
    assert_eq!(scene.status().role, Role::Quarantined);
}

#[tokio::test]
async fn background_work_waits_for_an_idle_replica_unless_it_is_behind() {
    let works = |backlog, idle: bool, short: bool| {
        let mut scene = Scene::leading();
        scene.rig.script.acts().backlog = backlog;
        if short {
            scene.actor.flushing.note_shortage(Shortage::Handles);
        }
        scene.actor.work_at = None;
        // An urgent step goes on until its part of the tick is over, so it is made to fail.
        scene.rig.script.fail("work", full());
        let next = scene.actor.work(idle).expect("a shortage postpones it");
        (!scene.rig.script.take_calls().is_empty(), next.is_some())
    };
    assert_eq!(works(Backlog::None, true, false), (false, false));
    for backlog in [Backlog::Waiting, Backlog::Some] {
        assert!(works(backlog, true, false).0);
        assert_eq!(works(backlog, false, false), (false, true), "{backlog:?}: it is done soon");
        assert_eq!(works(backlog, true, true), (false, false), "{backlog:?}: it adds to what must be written");
    }
    assert!(works(Backlog::Behind, false, false).0);
    assert!(works(Backlog::Behind, false, true).0, "a command waits for it");
}

#[tokio::test]
async fn a_step_of_work_is_followed_by_a_rest_of_at_most_a_tick() {
    let mut scene = Scene::leading();
    scene.rig.script.acts().backlog = Backlog::Some;
    let now = scene.actor.now();
    let next = scene.actor.work(true).expect("it works").expect("there is more");
    assert!(next > now && next <= now + scene.rig.config.site.tuning.tick);
    scene.actor.work_at = Some(next);
    scene.rig.script.take_calls();
    assert_eq!(scene.actor.work(true).expect("it rests"), Some(next));
    assert!(scene.rig.script.take_calls().is_empty());
}

#[tokio::test]
async fn reports_count_from_members_only_and_malformed_ones_not_at_all() {
    let mut scene = Scene::of(2);
    let report = |digest: &[u8]| {
        let digest = Bytes::copy_from_slice(digest);
        Body::Digest(DigestReport { raft_index: 5, digest, want_answer: false })
    };
    scene.step([Scene::message(2, report(&[7; 31])), Scene::message(3, report(&[7; 32]))]);
    scene.actor.agreements.note_own(5, Digest([7; 32]));
    assert_eq!(scene.actor.agreements.verdict(5, &scene.actor.voters), Verdict::Open);
    scene.step([Scene::message(2, report(&[7; 32]))]);
    assert_eq!(scene.actor.agreements.verdict(5, &scene.actor.voters), Verdict::Agreed);

    let merge = convert::to_merge(&MergeName { inputs: vec![Digest([1; 32])], output: Digest([2; 32]) });
    let broken = v1::Merge { output: Bytes::new(), ..merge.clone() };
    let built = |from, built| Scene::message(from, Body::Merge(MergeReport { built }));
    scene.step([built(3, vec![merge.clone()]), built(2, [vec![broken], vec![merge; 2 * BUILT_MERGES_MAX]].concat())]);
    let noted: Vec<_> = scene.rig.script.acts().noted.clone().into_iter().collect();
    assert_eq!(noted, [(raft_id(2), BUILT_MERGES_MAX - 1)]);
}

#[tokio::test]
async fn a_member_that_asks_for_a_digest_gets_this_replicas_and_no_question_back() {
    let mut scene = Scene::of(2);
    let mut ears = Ears::of(&scene.rig.net, "node-2");
    scene.actor.agreements.note_own(5, Digest([7; 32]));
    let ask = |raft_index| {
        let digest = Bytes::copy_from_slice(&[7; 32]);
        Scene::message(2, Body::Digest(DigestReport { raft_index, digest, want_answer: true }))
    };
    scene.step([ask(4), ask(5)]);
    let (from, message) = ears.next().await;
    assert_eq!((from.as_str(), message.from_raft_id), ("node-1", raft_id(1).0));
    assert_eq!(message.body, Some(Body::Digest(to_report(5, Digest([7; 32]), false))), "entry 4 is not known here");
}

#[tokio::test]
async fn a_raft_message_counts_only_if_it_is_from_the_replica_on_its_envelope() {
    let mut scene = Scene::of(2);
    // A leader's first entry changes the term of a replica that believes it.
    let mut far = Far::new(2, &[raft_id(2)]);
    far.group.campaign().expect("it has a vote");
    far.take([]);
    far.group.change_membership(&[RaftChange::AddLearner(raft_id(1))]).expect("it leads");
    let appends = far.take([]);
    let bytes = || Bytes::from(appends[0].encode());
    let before = scene.actor.group.status();
    scene.step([Scene::message(3, Body::Raft(bytes())), Scene::message(2, Body::Raft(Bytes::from_static(b"noise")))]);
    assert_eq!(scene.actor.group.status(), before);
    scene.step([Scene::message(2, Body::Raft(bytes()))]);
    assert_eq!(scene.actor.group.status().leader, Some(raft_id(2)));
}

#[tokio::test]
async fn a_replica_whose_outcome_is_in_the_minority_is_quarantined() {
    let mut scene = Scene::of(3);
    let mut ears = Ears::of(&scene.rig.net, "node-2");
    let mut far = Far::new(2, &[1, 2, 3].map(raft_id));
    far.group.campaign().expect("it has a vote");
    scene.talk(&mut ears, &mut far, |scene, _| scene.status().leader == Some(raft_id(2))).await;
    scene.rig.script.acts().spoils = true;
    let index = far.group.propose(Bytes::from_static(b"x")).expect("it leads").index;
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.applied.index == index).await;
    let report = |from| {
        let digest = Bytes::copy_from_slice(&[0xdd; 32]);
        Scene::message(from, Body::Digest(DigestReport { raft_index: index, digest, want_answer: false }))
    };
    scene.step([report(2)]);
    assert_eq!(scene.status().role, Role::Follower, "one other report proves nothing");
    scene.step([report(3)]);
    assert_eq!(scene.status().role, Role::Quarantined);
    assert!(scene.status().note.contains(&Digest([0xee; 32]).to_string()), "{}", scene.status().note);
}

#[tokio::test]
async fn an_unfit_leader_hands_over_to_a_fit_voter_and_keeps_leading_without_one() {
    for fit in [false, true] {
        let mut scene = Scene::of(2);
        let mut ears = Ears::of(&scene.rig.net, "node-2");
        let mut far = Far::new(2, &[1, 2].map(raft_id));
        scene.actor.group.campaign().expect("it has a vote");
        scene.talk(&mut ears, &mut far, |scene, _| scene.actor.heir().is_some()).await;
        scene.actor.fitness.note_other(raft_id(2), !fit);
        scene.actor.flushing.note_shortage(Shortage::Space);
        assert_eq!(scene.actor.heir().is_some(), fit);
        scene.step([]);
        assert!(scene.actor.fitness.told, "the others are told in any case");
        assert_eq!((scene.actor.fitness.tried, scene.status().role), (fit, Role::Leader));
        if fit {
            scene.talk(&mut ears, &mut far, |scene, _| scene.status().leader == Some(raft_id(2))).await;
            assert_eq!(answered(scene.command("a")), Err(Reason::NotLeader));
        }
    }
}

#[tokio::test]
async fn a_slow_write_makes_a_replica_unfit_for_a_while() {
    let mut scene = Scene::leading();
    scene.actor.note_pace(fitness::SYNC_SLOW);
    assert_eq!(scene.actor.unfit(), None);
    scene.actor.note_pace(fitness::SYNC_SLOW + Duration::from_millis(1));
    assert_eq!(scene.actor.unfit(), Some(fitness::SLOW));
    scene.rig.clock.advance(fitness::SLOW_KEPT);
    assert_eq!(scene.actor.unfit(), None);
}

#[tokio::test]
async fn changes_of_members_that_are_done_or_make_no_sense_are_answered_at_once() {
    let mut scene = Scene::leading();
    assert_eq!(scene.change(Change::Promote(raft_id(1))), Ok(()));
    assert_eq!(scene.change(Change::Lead(raft_id(1))), Ok(()));
    assert_eq!(scene.change(Change::Remove(raft_id(3))), Ok(()), "it is no member");
    assert_eq!(scene.change(Change::Lead(raft_id(3))), Err(Reason::InvalidArgument));
    let learner = Member { raft_id: RaftId::new(7, 2), node: "node-7".to_owned() };
    assert_eq!(scene.change(Change::AddLearner(learner.clone())), Ok(()));
    assert_eq!(scene.status().learners, std::slice::from_ref(&learner), "its node is learned");
    assert_eq!(scene.change(Change::AddLearner(learner)), Ok(()));
    assert_eq!(scene.change(Change::Promote(RaftId::new(7, 2))), Err(Reason::Unavailable), "it has no state yet");
}

#[tokio::test]
async fn a_read_index_waits_for_a_leader_and_its_callers_are_bounded() {
    let (answer, mut early) = oneshot::channel();
    let mut follower = Scene::of(2);
    follower.step([Input::ReadIndex(answer)]);
    assert!(early.try_recv().is_err(), "nobody leads");
    let mut scene = Scene::leading();
    answered(scene.command("a")).expect("it is applied");
    let (answer, got) = oneshot::channel();
    scene.step([Input::ReadIndex(answer)]);
    assert_eq!(answered(got), Ok(scene.actor.applied.index));
}

/// A replica of two that leads the other one, and the other one's ears.
async fn leading_two() -> (Scene, Ears, Far) {
    let mut scene = Scene::of(2);
    let mut ears = Ears::of(&scene.rig.net, "node-2");
    let mut far = Far::new(2, &[1, 2].map(raft_id));
    scene.actor.group.campaign().expect("it has a vote");
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.heir().is_some()).await;
    (scene, ears, far)
}

#[tokio::test]
async fn a_quiet_leader_sleeps_without_ticks_and_wakes_for_any_input_but_a_late_answer() {
    let (mut scene, mut ears, mut far) = leading_two().await;
    let site = Arc::clone(&scene.rig.config.site);
    let term = scene.status().term;
    let late = {
        scene.actor.group.ping();
        scene.step([]);
        let bytes = loop {
            match ears.next().await.1.body {
                Some(Body::Raft(bytes)) if Message::heartbeat(&bytes) == Some(Heartbeat::Sign) => break bytes,
                _ => {}
            }
        };
        far.take([Message::decode(&bytes).expect("it is whole")]).pop().expect("a heartbeat is answered")
    };
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.rest.asleep).await;
    assert!(site.sleepers.is_asleep(GroupId::Root));
    assert_eq!(site.sleepers.beats()["node-2"], v1::Beat { groups: vec![0], terms: vec![term] });
    scene.rig.pass(200);
    let ticks = scene.actor.ticks;
    scene.step([Scene::message(2, Body::Raft(late.encode().into()))]);
    assert_eq!((scene.actor.ticks, scene.actor.rest.asleep), (ticks, true));
    let got = scene.command("a");
    assert!(!scene.actor.rest.asleep && !site.sleepers.is_asleep(GroupId::Root));
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.applied == scene.actor.group.status().last).await;
    let report = DigestReport { raft_index: scene.actor.applied.index, ..DigestReport::default() };
    let digest = scene.actor.agreements.own(report.raft_index).expect("it was applied");
    let report = to_report(report.raft_index, digest, false);
    scene.step([Scene::message(2, Body::Digest(report))]);
    assert!(answered(got).is_ok());
    assert_eq!(scene.status().term, term, "no election was needed");
}

#[tokio::test]
async fn a_group_with_work_left_does_not_sleep() {
    let busy: [fn(&mut Scene); 4] = [
        |scene| scene.rig.script.acts().backlog = Backlog::Waiting,
        |scene| scene.rig.script.acts().cold_due = true,
        |scene| scene.actor.fitness.note_other(raft_id(2), true),
        |scene| scene.actor.flushing.note_entry(),
    ];
    for make_busy in busy {
        let (mut scene, mut ears, mut far) = leading_two().await;
        scene.talk(&mut ears, &mut far, |scene, _| scene.actor.rest.asleep).await;
        scene.step([Input::Wake(Duration::ZERO)]);
        scene.actor.rest.next_try = 0;
        let quiet_from = scene.actor.ticks + scene.rig.config.site.tuning.quiet_ticks;
        make_busy(&mut scene);
        scene.talk(&mut ears, &mut far, |scene, _| scene.actor.ticks > quiet_from + 10).await;
        assert!(!scene.actor.rest.asleep);
    }
}

#[tokio::test]
async fn a_follower_sleeps_at_its_leaders_word_and_the_silence_counts_for_its_timeout() {
    let tick = crate::Tuning::default().tick;
    for silent in [0_u32, 5, 5, 5, 5, 500] {
        let mut scene = Scene::of(2);
        let mut ears = Ears::of(&scene.rig.net, "node-2");
        let mut far = Far::new(2, &[1, 2].map(raft_id));
        far.group.campaign().expect("it has a vote");
        let ready = |scene: &Scene, _: &Far| scene.actor.group.is_settled() && scene.actor.flushing.is_idle();
        scene.talk(&mut ears, &mut far, ready).await;
        let (term, last) = (scene.status().term, scene.actor.applied.index);
        for wrong in [Sleep { term: term + 1, last }, Sleep { term, last: last + 1 }] {
            scene.step([Scene::message(2, Body::Sleep(wrong))]);
            assert!(!scene.actor.rest.asleep);
        }
        scene.step([Scene::message(2, Body::Sleep(Sleep { term, last }))]);
        assert!(scene.actor.rest.asleep);
        scene.rig.pass(1000);
        scene.step([]);
        assert_eq!(scene.status().role, Role::Follower, "its timer stands still");
        scene.step([Input::Wake(tick * silent)]);
        let mut ticks = silent.min(5);
        while scene.status().role == Role::Follower {
            scene.rig.pass(1);
            scene.step([]);
            ticks += 1;
        }
        assert!((7..=20).contains(&ticks), "{ticks} ticks without a sign of the leader");
    }
}

#[tokio::test]
async fn a_sleeping_replica_goes_on_checking_its_state_and_ends_its_sleep_when_it_finds_damage() {
    let (mut scene, mut ears, mut far) = leading_two().await;
    scene.talk(&mut ears, &mut far, |scene, _| scene.actor.rest.asleep).await;
    scene.rig.script.take_calls();
    let scrubs = |scene: &Scene| scene.rig.script.take_calls().iter().filter(|call| call.starts_with("scrub")).count();
    let wait = scene.actor.wait();
    assert!(wait > scene.rig.config.site.tuning.tick && wait <= Duration::from_secs(1), "{wait:?}");
    scene.rig.clock.advance(wait);
    scene.step([]);
    assert_eq!(scrubs(&scene), 20, "the share of twenty ticks");
    scene.rig.script.acts().scrub_ends = true;
    scene.rig.clock.advance(scene.actor.wait());
    scene.step([]);
    assert_eq!(scrubs(&scene), 1, "a round has ended");
    assert_eq!(scene.actor.wait(), Duration::from_secs(10), "a small state is not read over and over");
    scene.rig.clock.advance(scene.actor.wait());
    scene.rig.script.fail("scrub", damage());
    scene.step([]);
    assert_eq!((scene.status().role, scene.actor.rest.asleep), (Role::Quarantined, false));
}
